"""An unsealed segment: the paths, places and options that its writer and readers share.

A segment is one file and two side files, in the folder of its topic, named by its first offset:

    <first offset, 20 digits>.log      header and frames (frames.py); the only file that counts
    <first offset, 20 digits>.end      the flushed and readable end (high_watermark.py); rebuilt by recovery
    <first offset, 20 digits>.index    pointers to some frames (sparse_index.py); rebuilt by recovery

Entry ids count from 0. Offsets are dense: an entry takes as many as its header says (entry.py), so the ids and offsets
of a segment follow from its bytes, frame by frame.

Must not know: SQL, the list of a topic's segments.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.entries.entry import EntryHeader, inspect
from storage.entries.expansion import check_expansion
from storage.errors import (
    CompactorError,
    InvalidInput,
    InvalidRecord,
    Misconfigured,
    ObjectMissing,
    StorageFull,
    Unavailable,
)
from storage.log.directory import LogDirectory
from storage.log.frames import LARGEST_ENTRY, SegmentHeader
from storage.log.sparse_index import SPACING_BYTES
from storage.metadata.records import SegmentContent, SegmentRecord, TopicRecord
from storage.model import LogPosition, MessageId

MAX_ENTRY_BYTES = (5 << 20) + (10 << 10)
"""The default size of the largest entry: Pulsar's maxMessageSize and its padding of a frame."""
MAX_PENDING_BYTES = 32 << 20

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@dataclass(frozen=True)
class FlushPolicy:
    """The rule when appended entries are flushed to disk.

    `messages`: 1: each entry is flushed before it is acknowledged; M: entries are acknowledged when they are written,
    and flushed when M messages are not flushed. `ms`: entries are flushed at most that long after the first unflushed
    one. Both None: never, until the segment rolls. Raises InvalidInput for a number below 1.
    """

    messages: int | None = 1
    ms: int | None = None

    def __post_init__(self) -> None:
        for what, value in (("messages", self.messages), ("milliseconds", self.ms)):
            if value is not None and value < 1:
                raise InvalidInput(f"a flush every {value} {what} cannot be meant", "give 1 or more, or none")


@dataclass(frozen=True)
class WriterOptions:
    """The options of a segment's writer.

    `max_entry_bytes`: the largest entry, as it is sent. `max_ahead_ms`: how far in the future a publish time may be;
    None: any distance. `max_pending_bytes`: the bytes of appends with callbacks that may wait. `index_spacing`: bytes
    of the segment between two pointers of the sparse index.
    """

    policy: FlushPolicy = FlushPolicy()
    max_entry_bytes: int = MAX_ENTRY_BYTES
    max_ahead_ms: int | None = None
    max_pending_bytes: int = MAX_PENDING_BYTES
    index_spacing: int = SPACING_BYTES

    def read_valid_header(self, entry: bytes, now_ms: int, header: EntryHeader | None = None) -> EntryHeader:
        """Check that an entry may be appended at the time `now_ms`, and return its header. `header`: the same, if the
        caller has it; None: it is read.

        Raises InvalidRecord for an entry that may not be appended.
        """
        limit = min(self.max_entry_bytes, LARGEST_ENTRY)
        if len(entry) > limit:
            raise InvalidRecord(
                f"an entry of {len(entry)} bytes is larger than the limit of {limit}",
                "send smaller batches, or messages in chunks, or raise the policy max.message.bytes (10 KiB of "
                "metadata come on top); nothing of it was kept",
            )
        if header is None:
            header = inspect(entry)
        check_expansion(header, limit)
        if self.max_ahead_ms is not None and header.publish_time > now_ms + self.max_ahead_ms:
            raise ahead_of_time_error(header.publish_time, now_ms, self.max_ahead_ms)
        return header


def ahead_of_time_error(publish_time: int, now_ms: int, max_ahead_ms: int) -> InvalidRecord:
    """Return the error for a message whose publish time is too far in the future: it would delay every policy by time.
    Times in ms."""
    return InvalidRecord(
        f"the publish time {publish_time} of a message is {publish_time - now_ms} ms in the future, and at most "
        f"{max_ahead_ms} ms are allowed",
        "correct the producer's clock, or raise the policy message.timestamp.after.max.ms; nothing of it was kept",
    )


@dataclass(frozen=True)
class AppendResult:
    """The position of an appended entry's first message, and the number of its offsets."""

    first: LogPosition
    messages: int


@dataclass(frozen=True)
class SegmentPaths:
    """The paths of the three files of one segment, which need not exist. `folder`: that of its topic."""

    folder: Path
    first_offset: int

    @property
    def log(self) -> Path:
        return self.folder / f"{self.first_offset:020d}.log"

    @property
    def high_watermark(self) -> Path:
        return self.folder / f"{self.first_offset:020d}.end"

    @property
    def index(self) -> Path:
        return self.folder / f"{self.first_offset:020d}.index"

    def remove(self) -> None:
        """Remove the segment's files that exist. Idempotent; raises OSError.

        The log goes first, so that no reader takes the rest for an empty segment.
        """
        for path in (self.log, self.high_watermark, self.index):
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class LocalSegment:
    """A segment in this machine's log directory: its folder, its identity, its topic's partition."""

    folder: Path
    header: SegmentHeader
    partition: int

    @classmethod
    def from_row(cls, log: LogDirectory, topic: TopicRecord, row: SegmentRecord) -> LocalSegment:
        """Return the segment that a database row describes. `log`: the log directory that holds it
        (`LogDirectory.check_is_local`)."""
        header = SegmentHeader(topic.uid, row.ledger_id, row.first_offset)
        return cls(log.topic_folder(topic.uid), header, topic.name.partition)

    @property
    def files(self) -> SegmentPaths:
        return SegmentPaths(self.folder, self.header.first_offset)

    def first_position(self, entry_id: int, offset: int, header: EntryHeader) -> LogPosition:
        """Return the position of the first message of an entry."""
        batch_index = 0 if _has_batch_indexes(header) else -1
        return LogPosition(offset, MessageId(self.header.ledger_id, entry_id, self.partition, batch_index))

    def last_position(self, entry_id: int, offset: int, header: EntryHeader) -> LogPosition:
        """Return the position of the last message of an entry whose first message is at `offset`."""
        message_id = MessageId(self.header.ledger_id, entry_id, self.partition, _last_batch_index_of(header))
        return LogPosition(offset + header.messages - 1, message_id)


def _has_batch_indexes(header: EntryHeader) -> bool:
    """Return whether the messages of an entry have batch indexes."""
    return header.batched and not header.encrypted


def _last_batch_index_of(header: EntryHeader) -> int:
    return header.messages - 1 if _has_batch_indexes(header) else -1


class SegmentTally:
    """A count of the content of a segment, to which entries are added in order.

    Times in ms; the extreme numbers before the first entry.
    """

    def __init__(self, segment: LocalSegment) -> None:
        self.entries = 0
        self.next_offset = segment.header.first_offset
        self.messages = 0
        self.logical_bytes = 0
        self.min_publish_time = 2**63 - 1
        self.max_publish_time = -(2**63)
        self._segment = segment
        self._last_batch_index = -1

    def add(self, header: EntryHeader) -> None:
        """Count the next entry of the segment, by its header."""
        self.entries += 1
        self.next_offset += header.messages
        self.messages += header.messages
        self.logical_bytes += header.logical_bytes
        if header.publish_time < self.min_publish_time:
            self.min_publish_time = header.publish_time
        if header.publish_time > self.max_publish_time:
            self.max_publish_time = header.publish_time
        self._last_batch_index = _last_batch_index_of(header)

    def content(self, size: int) -> SegmentContent | None:
        """Return the counted content of the segment, whose file has `size` bytes; None: there is no entry."""
        if not self.entries:
            return None
        ledger_id, partition = self._segment.header.ledger_id, self._segment.partition
        return SegmentContent(
            last_offset=self.next_offset - 1,
            last_message_id=MessageId(ledger_id, self.entries - 1, partition, self._last_batch_index),
            messages=self.messages,
            entries=self.entries,
            logical_bytes=self.logical_bytes,
            min_publish_time=self.min_publish_time,
            max_publish_time=self.max_publish_time,
            size=size,
        )


@contextmanager
def translating_os_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn an OSError inside the context into the project's error (`storage_error`), which names the file.

    `verb`: the attempted action, for the error's text.
    """
    try:
        yield
    except OSError as error:
        raise storage_error(error, path, verb) from error


def storage_error(error: OSError, path: Path, verb: str) -> CompactorError:
    """Return the project's error for an OSError about a segment's file: ObjectMissing, StorageFull, Misconfigured or
    Unavailable.

    `verb`: the attempted action, for the error's text.
    """
    what = f"cannot {verb} the segment {path}, {error.strerror or error}"
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return ObjectMissing(
            what, "check that COMPACTOR_LOG is the directory it was written to, else restore it (docs/operations.md)"
        )
    if error.errno in _FULL:
        return StorageFull(what, "free space or raise the quota, then try again")
    if error.errno in _REFUSED:
        return Misconfigured(what, "let this user read and write there")
    return Unavailable(what, "check the disk, then try again")
