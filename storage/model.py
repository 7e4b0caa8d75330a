"""Topic names, message ids, messages, sealed ledgers and their objects: frozen values in Pulsar's terms.

Rules: a topic is `persistent://tenant/namespace/topic`, or short `topic` for `persistent://public/default/topic`,
or `tenant/namespace/topic`; only persistent topics exist here. A message id is (ledger, entry, partition, batch
index), ordered numerically by (ledger, entry, batch index). Each message also has a 64-bit offset in its topic, dense
and never reused: Kafka's view of the same position.

Sources: Pulsar's TopicName, NamedEntity and MessageIdImpl; semantics.md P4, P5.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import total_ordering
from types import MappingProxyType
from typing import NamedTuple

from storage.errors import InvalidMessageId, InvalidTopicName

DOMAIN = "persistent"
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"
MAX_NAME_LENGTH = 255

_NAMED_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"^(?P<parent>.+)-partition-(?P<index>0|[1-9][0-9]*)$", re.DOTALL)
_CONTROL = frozenset({"Cc", "Cs", "Zl", "Zp"})
_NAME_REMEDY = "use persistent://tenant/namespace/topic, or just topic for persistent://public/default/topic"


@dataclass(frozen=True, order=True)
class TopicName:
    """A topic's full name; `str()` gives `persistent://tenant/namespace/topic`. Raises InvalidTopicName."""

    tenant: str
    namespace: str
    topic: str

    def __post_init__(self) -> None:
        for part, value in (("tenant", self.tenant), ("namespace", self.namespace)):
            if not value:
                raise InvalidTopicName(f"the {part} of a topic name is empty", _NAME_REMEDY)
            if not _NAMED_ENTITY.fullmatch(value):
                raise InvalidTopicName(
                    f"the {part} {value!r} of a topic name has other characters than letters, digits, and _ - = : .",
                    _NAME_REMEDY,
                )
        if not self.topic or "/" in self.topic or _has_control_character(self.topic):
            raise InvalidTopicName(
                f"the topic name {self.topic!r} is empty or holds a slash or a control character", _NAME_REMEDY
            )
        for value in (self.tenant, self.namespace, self.topic):
            if 4 * len(value) > MAX_NAME_LENGTH and len(value.encode()) > MAX_NAME_LENGTH:
                raise InvalidTopicName(
                    f"the topic name part {value[:32]!r}… is longer than {MAX_NAME_LENGTH} bytes",
                    "choose a shorter one",
                )

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Return the topic name that `text` gives in full or in a short form.

        Raises InvalidTopicName, also for a topic that is not persistent.
        """
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = DOMAIN, text
        if domain != DOMAIN:
            raise InvalidTopicName(
                f"the topic {text!r} is not a persistent topic", "only persistent:// topics can be stored and compacted"
            )
        parts = rest.split("/")
        if not separator and len(parts) == 1:
            parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, *parts]
        if len(parts) != 3:
            raise InvalidTopicName(
                f"the topic name {text!r} has {len(parts)} parts, not tenant/namespace/topic", _NAME_REMEDY
            )
        return cls(*parts)

    def check_new(self) -> None:
        """Raise InvalidTopicName for a name that a new topic may not have: browsers remove `.` and `..` from paths."""
        for part in (self.tenant, self.namespace, self.topic):
            if part in (".", ".."):
                raise InvalidTopicName(
                    f"the part {part!r} of the topic name {self} would be lost in the paths of URLs",
                    "choose another name",
                )

    @property
    def partition(self) -> int:
        """The number of the partition that this name names; -1: the name is not one of a partition."""
        match = _PARTITION.match(self.topic)
        return int(match["index"]) if match else -1

    @property
    def partitioned_topic(self) -> TopicName | None:
        """The name of the partitioned topic to which a partition of this name belongs; None: it names no partition."""
        match = _PARTITION.match(self.topic)
        return TopicName(self.tenant, self.namespace, match["parent"]) if match else None

    def of_partition(self, index: int) -> TopicName:
        """Return the name of partition number `index` of the partitioned topic of this name."""
        return TopicName(self.tenant, self.namespace, f"{self.topic}-partition-{index}")

    def __str__(self) -> str:
        return f"{DOMAIN}://{self.tenant}/{self.namespace}/{self.topic}"


def _has_control_character(text: str) -> bool:
    """Return whether a text has a control character; `isprintable` is the faster test for most texts."""
    return not text.isprintable() and any(unicodedata.category(c) in _CONTROL for c in text)


_MESSAGE_ID = re.compile(r"(-?\d{1,19}):(-?\d{1,19})(?::(-?\d{1,10}))?(?::(-?\d{1,10}))?", re.ASCII)


@total_ordering
@dataclass(frozen=True, eq=False)
class MessageId:
    """Pulsar's position of a message; partition -1 = no partitions, batch index -1 = not in a batch.

    Equality and order are those of (ledger, entry, batch index), numerically.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Return the id that the text `ledger:entry[:partition[:batch_index]]` names. Raises InvalidMessageId."""
        match = _MESSAGE_ID.fullmatch(text)
        numbers = [int(part) for part in match.groups() if part is not None] if match else []
        if not numbers or min(numbers) < -1 or max(numbers) > 2**63 - 1:
            raise InvalidMessageId(
                f"{text!r} is not a message id",
                "use ledger:entry:partition, or ledger:entry:partition:batch_index in a batch",
            )
        return cls(*numbers)

    @property
    def sort_key(self) -> tuple[int, int, int]:
        """The numbers by which ids are compared: ledger, entry, batch index."""
        return (self.ledger_id, self.entry_id, self.batch_index)

    def __eq__(self, other: object) -> bool:
        return self.sort_key == other.sort_key if isinstance(other, MessageId) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self.sort_key < other.sort_key if isinstance(other, MessageId) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.sort_key)

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return f"{text}:{self.batch_index}" if self.batch_index >= 0 else text


EARLIEST = MessageId(-1, -1)
"""Before every message; also the last message id of an empty topic (Pulsar's -1:-1)."""
LATEST = MessageId(2**63 - 1, 2**63 - 1)
"""After every message."""


@dataclass(frozen=True, order=True)
class LogPosition:
    """A position of a message: its offset in the topic and its id."""

    offset: int
    message_id: MessageId


@dataclass(frozen=True)
class Message:
    """One message as a reader gets it. Times are milliseconds since the Unix epoch.

    `key` None: no key (never compacted by key). `payload` None or empty with a key: a tombstone (P5). With a
    `chunk_uuid` it is one chunk of a chunked message (P10), number `chunk_index` of `chunk_count`, and no message by
    itself; `storage/entries/chunk_assembler.py` assembles the message. A producer compresses before it divides:
    `chunk_codec` is a number of `rows.CompressionType`, `chunk_size` the bytes of the whole uncompressed payload.
    """

    message_id: MessageId
    offset: int
    key: bytes | None
    payload: bytes | None
    publish_time: int
    event_time: int | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    chunk_uuid: str | None = None
    chunk_index: int | None = None
    chunk_count: int | None = None
    chunk_codec: int = 0
    chunk_size: int = 0

    @property
    def is_chunk(self) -> bool:
        """True for a chunk, False for a whole message."""
        return self.chunk_uuid is not None

    @property
    def is_tombstone(self) -> bool:
        """True if this message deletes its key."""
        return self.key is not None and not self.payload and not self.is_chunk


class SourcePosition(NamedTuple):
    """The position of a replicated entry in the topic of its source cluster. Positions ascend."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


class SourceProgress(NamedTuple):
    """The position up to which the entries of a source cluster are stored, and the newest publish time (ms) of any."""

    position: SourcePosition
    publish_time: int

    def merged(self, other: SourceProgress | None) -> SourceProgress:
        """Return the later position and the later publish time of this progress and `other`; None: this one."""
        if other is None:
            return self
        return SourceProgress(max(self.position, other.position), max(self.publish_time, other.publish_time))


def merged_progress(
    newer: Mapping[str, SourceProgress], older: Mapping[str, SourceProgress]
) -> dict[str, SourceProgress]:
    """Return the progress of each source cluster, by name, merged: the later position and publish time of each."""
    return {**older, **{name: progress.merged(older.get(name)) for name, progress in newer.items()}}


@dataclass(frozen=True)
class StoredObject:
    """An object that a row names. `crc32c` covers all its bytes; of a rows object, the footer (docs/format.md)."""

    name: str
    size: int
    crc32c: int


@dataclass(frozen=True)
class LedgerStart:
    """The start of a sealed ledger: its id, and the offset of its first row in the topic."""

    ledger_id: int
    first_offset: int


@dataclass(frozen=True)
class RowsObject:
    """A stored object of message rows, as a row or manifest names it; `stored.crc32c` is the CRC32C of the footer.

    `place`: of the ledger that it is, if it is one: rows that count from 0 are moved there.
    """

    stored: StoredObject
    footer_size: int
    place: LedgerStart | None = field(default=None, compare=False)


@dataclass(frozen=True)
class IndexLocation:
    """The location of a ledger's key index inside an object that it may share, and its directory (docs/format.md).

    `first_offset`: of the ledger, if it is a sealed one: an index that counts from 0 is moved there.
    """

    name: str
    offset: int
    length: int
    directory: bytes
    first_offset: int = field(default=0, compare=False)


@dataclass(frozen=True)
class LedgerRecord:
    """A sealed ledger of raw messages. Offsets and ids are inclusive; times are milliseconds since the Unix epoch.

    `attempt_id`: of the attempt that wrote its objects. `deleted_at`: when it was trimmed; None: it is not.
    """

    ledger_id: int
    first_offset: int
    last_offset: int
    messages: int
    entries: int
    last_message_id: MessageId
    logical_bytes: int
    min_publish_time: int
    max_publish_time: int
    rows: StoredObject
    footer_size: int
    index: IndexLocation
    attempt_id: str
    created_at: int
    deleted_at: int | None = None

    @property
    def content(self) -> LedgerRecord:
        """This record itself, which has the offsets, counts and times that `SegmentRecord.content` has."""
        return self

    @property
    def rows_object(self) -> RowsObject:
        """The ledger's object of message rows, with the size of its footer and the start of the ledger."""
        return RowsObject(self.rows, self.footer_size, LedgerStart(self.ledger_id, self.first_offset))

    @property
    def newest_publish_time(self) -> int:
        """The largest publish time (ms) of its messages, at most the time at which the ledger was created."""
        return min(self.max_publish_time, self.created_at)
