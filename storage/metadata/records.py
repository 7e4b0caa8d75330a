"""Records of the metadata: frozen values of rows. No record is per key or per message.

Times are milliseconds since the Unix epoch, sizes are bytes. `logical_bytes` are those of keys, payloads and properties
(docs/scheduling.md), the unit of thresholds (semantics.md S1); `StoredObject.size` is the size of the stored bytes.
Offsets and message ids are inclusive at both ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from storage.errors import NO_ERROR, ErrorText
from storage.model import LedgerRecord, LogPosition, MessageId, SourcePosition, StoredObject, TopicName

COMPACTION_CURSOR = "__compaction"
"""The cursor whose mark-delete position is the compaction horizon (Pulsar's name)."""
COMPACTED_LEDGER_PROPERTY = "CompactedTopicLedger"
"""The property of that cursor that names the compacted ledger's id (Pulsar's name)."""
READ_COMPACTED_PROPERTY = "readCompacted"
"""The property, "true", of a cursor whose reader reads compacted data: tombstones may wait for it (T1)."""


@dataclass(frozen=True)
class TopicRecord:
    """A topic. `uid` (32 hex digits) is new for each incarnation of a name; `generation` and `epoch` only ever grow.

    `hash_seed`: of the hashes of its keys, secret. `generation`: the number of compactions that were published;
    `epoch`: rises with each claim, and whenever a run must be fenced. `next_offset`: the offset after the last sealed
    ledger or rolled segment; an open segment continues from there. `start_offset`: messages below it are deleted or
    hidden (C1).
    """

    id: int
    uid: str
    name: TopicName
    hash_seed: int
    generation: int
    epoch: int
    next_offset: int
    created_at: int
    start_offset: int = 0


@dataclass(frozen=True)
class TopicSummary:
    """A topic in a list: totals of its raw ledgers, and the compacted ledger that serves, if any.

    `messages`, `logical_bytes`: of sealed ledgers; `unsealed_…`: of rolled segments, and of the open one once
    storage/log/open_segments.py has added it."""

    topic_id: int
    name: TopicName
    ledgers: int
    messages: int
    logical_bytes: int
    compacted_ledger_id: int | None
    compacted_bytes: int | None = None
    compacted_at: int | None = None
    unsealed_messages: int = 0
    unsealed_bytes: int = 0

    @property
    def all_messages(self) -> int:
        """The number of messages that are not trimmed, sealed or not."""
        return self.messages + self.unsealed_messages

    @property
    def all_bytes(self) -> int:
        """The logical bytes of messages that are not trimmed, sealed or not."""
        return self.logical_bytes + self.unsealed_bytes


class SegmentState(StrEnum):
    """States of a segment; each follows the one before."""

    OPEN = "OPEN"
    """Messages are appended to it; only its file knows its content."""
    ROLLED = "ROLLED"
    """It is closed; its row has its content."""
    SEALED = "SEALED"
    """The ledger of the same id holds the same messages; the file waits to be removed."""


@dataclass(frozen=True)
class SegmentContent:
    """The content of a segment, known once it is rolled. Offsets and ids are inclusive; `size`: bytes of the file.

    `logical_bytes`: by the entries' metadata; its ledger will have the exact number.
    """

    last_offset: int
    last_message_id: MessageId
    messages: int
    entries: int
    logical_bytes: int
    min_publish_time: int
    max_publish_time: int
    size: int


MANUAL = "manual"
"""The cause of a compaction that a person or a client requested, by any interface."""
MAX_SEALING_TRIES = 5
"""A segment is sealed only by hand once this many sealers died of it."""


@dataclass(frozen=True)
class SegmentRecord:
    """An unsealed segment, in the log directory `log_uid`. `content` None: it is open.

    `sealing_tries`: the number of sealing claims that ended neither with a ledger nor with a release.
    """

    ledger_id: int
    first_offset: int
    log_uid: str
    state: SegmentState
    created_at: int
    rolled_at: int | None = None
    sealed_at: int | None = None
    sealing_attempt_id: str | None = None
    content: SegmentContent | None = None
    sealing_tries: int = 0

    @property
    def newest_publish_time(self) -> int | None:
        """The largest publish time (ms) of its messages, at most the time of the roll; None: the segment is open."""
        if self.content is None or self.rolled_at is None:
            return None
        return min(self.content.max_publish_time, self.rolled_at)

    @property
    def has_exceeded_sealing_tries(self) -> bool:
        """True if so many tries to seal it failed that it is sealed only by hand. The last may be under way."""
        return self.state is SegmentState.ROLLED and self.sealing_tries >= MAX_SEALING_TRIES


@dataclass(frozen=True)
class CursorRecord:
    """A durable cursor. `mark_delete` None: nothing is acknowledged (for `__compaction`: no horizon, A4)."""

    name: str
    mark_delete: LogPosition | None
    properties: Mapping[str, str]

    @property
    def mark_delete_offset(self) -> int:
        """The offset of mark-delete; -1: nothing is acknowledged."""
        return self.mark_delete.offset if self.mark_delete else -1


@dataclass(frozen=True)
class CompactedLedgerRecord:
    """A compacted ledger, one generation of a topic. `last_message_id` None: it is empty.

    `retired_at`: when it was taken out of service; None: it serves. `table_metadata`: the metadata of the topic's
    Iceberg table while it serves; None: the topic has no table. `source_horizon`: the position of the horizon at the
    source cluster of a replicated topic; None: it is unknown.
    """

    ledger_id: int
    generation: int
    horizon: LogPosition
    manifest: StoredObject
    messages: int
    logical_bytes: int
    stored_bytes: int
    last_message_id: MessageId | None
    attempt_id: str
    created_at: int
    retired_at: int | None = None
    table_metadata: StoredObject | None = None
    source_horizon: SourcePosition | None = None


class RunState(StrEnum):
    """States of a compaction run (semantics.md S7); all but RUNNING are final."""

    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"


TAIL_LEFT = "tail_left"
"""The name of `RunRecord.skipped_tail_error` in the statistics of a run."""
TABLE_ERROR = "table_error"
"""The name of `RunRecord.iceberg_table_error` in the statistics of a run."""
TABLE_RETRY = "table_retry"
"""The name of `RunRecord.can_retry_iceberg_table` in the statistics of a run."""


@dataclass(frozen=True)
class RunRecord:
    """One compaction run. `policies` are frozen at the claim, with the clock (`started_at`).

    `error` is why it ended as ERROR or CANCELLED. `cause`: what it was requested for; empty: a process began it without
    a request, which reports show as MANUAL.
    """

    run_id: int
    topic_id: int
    attempt_id: str
    owner: str
    epoch: int
    state: RunState
    phase: str
    policies: Mapping[str, object]
    started_at: int
    heartbeat_at: int
    finished_at: int | None = None
    error: ErrorText = NO_ERROR
    horizon: LogPosition | None = None
    compacted_ledger_id: int | None = None
    statistics: Mapping[str, object] = field(default_factory=dict)
    cause: str = ""

    @property
    def skipped_tail_error(self) -> ErrorText:
        """The error because of which the run left unsealed messages, at the topic's end, to a later run."""
        return ErrorText.from_fields(TAIL_LEFT, self.statistics)

    @property
    def iceberg_table_error(self) -> ErrorText:
        """The error because of which the run wrote no snapshot of the topic's Iceberg table."""
        return ErrorText.from_fields(TABLE_ERROR, self.statistics)

    @property
    def can_retry_iceberg_table(self) -> bool:
        """True if the next run may write the Iceberg table even without new messages, since the error may pass."""
        return bool(self.statistics.get(TABLE_RETRY))


TASKS_MS = 24 * 3_600_000
"""The time within which an append by tasks must commit."""


class AttemptKind(StrEnum):
    """Kinds of attempts; each attempt has a row before its first object, and all but TASKS have heartbeats."""

    IMPORT = "import"
    RUN = "run"
    SEAL = "seal"
    TASKS = "tasks"
    """An append whose ledgers are written by tasks that have no database: it counts as alive for TASKS_MS."""

    def heartbeat_ttl_ms(self, dead_ms: int) -> int:
        """Return the age (ms) of a heartbeat from which an attempt of this kind is dead. `dead_ms`: for other kinds."""
        return max(dead_ms, TASKS_MS) if self is AttemptKind.TASKS else dead_ms


@dataclass(frozen=True)
class Attempt:
    """A piece of work of a process that may write objects under `attempt_id` (32 hex digits)."""

    attempt_id: str
    topic_id: int
    kind: AttemptKind
    owner: str
    started_at: int
    heartbeat_at: int
    finished_at: int | None = None


@dataclass(frozen=True)
class Lease:
    """The right to write a topic until `expires_at`; `token` grows with each new owner and fences the owners before."""

    topic_id: int
    owner: str
    token: int
    expires_at: int


@dataclass(frozen=True)
class TopicSnapshot:
    """A topic as one transaction saw it; ledgers and segments in offset order.

    `segments`: those that no ledger replaces yet, OPEN and ROLLED; none overlaps a ledger.
    """

    topic: TopicRecord
    ledgers: tuple[LedgerRecord, ...]
    cursor: CursorRecord | None
    compacted: CompactedLedgerRecord | None
    last_run: RunRecord | None
    segments: tuple[SegmentRecord, ...] = ()

    @cached_property
    def extents(self) -> tuple[LedgerRecord | SegmentRecord, ...]:
        """The ledgers and segments of raw messages in the order of offsets; never a ledger and its own segment."""
        return tuple(sorted((*self.ledgers, *self.segments), key=lambda extent: extent.first_offset))

    @property
    def first_offset(self) -> int:
        """The offset of the first raw message; of the next message, if there is none."""
        first = self.extents[0].first_offset if self.extents else self.topic.next_offset
        return max(first, self.topic.start_offset)

    @property
    def horizon(self) -> LogPosition | None:
        """The compaction horizon, or None if the topic was never compacted (R1, R3, A4)."""
        return self.compacted.horizon if self.compacted else None


@dataclass(frozen=True)
class TopicActiveSegment:
    """A topic and its active segment, by their rows. `open`: the open segment; None: there is none."""

    topic: TopicRecord
    open: SegmentRecord | None


@dataclass(frozen=True)
class Pin:
    """A reader's hold on a compacted ledger until `expires_at`; its objects stay as long (A3)."""

    pin_id: str
    topic_id: int
    ledger_id: int
    owner: str
    expires_at: int


@dataclass(frozen=True)
class GcSnapshot:
    """The rows of a topic that garbage collection needs, of one moment.

    `compacted`: every compacted ledger whose objects must stay, the serving and the retired ones, by generation.
    `attempts`: all that have a row, finished or not; `pins`: those that were live at that moment.
    """

    topic: TopicRecord
    ledgers: tuple[LedgerRecord, ...]
    compacted: tuple[CompactedLedgerRecord, ...]
    attempts: tuple[Attempt, ...]
    pins: tuple[Pin, ...]


RUN_DEAD_MS = 30_000
"""The default age of a heartbeat at which a run counts as dead."""
SERVICE_DEAD_MS = 15_000
"""The default age of a heartbeat at which a service counts as dead."""


@dataclass(frozen=True)
class CompactionControl:
    """Requests, pauses and failures of a topic's compaction. `requested_at`: the time of the request, for `cause`.

    `paused`: the number of pauses without a resume. `aborting`: a run was ended by a pause or an abort, and its worker
    has not stopped yet. `failures`: their number since the last success; the next try is at `retry_at` (S6).
    """

    requested_at: int | None = None
    cause: str = ""
    paused: int = 0
    failures: int = 0
    retry_at: int | None = None
    last_error: ErrorText = NO_ERROR
    aborting: bool = False
    requested_by: str = ""


@dataclass(frozen=True)
class CompactionRetry:
    """A further try of a topic's compaction at the time `at` (ms), because of `error`."""

    error: ErrorText
    at: int


@dataclass(frozen=True)
class CompactionActivity:
    """A topic's compaction as of one moment. `running`: it is requested, or a run of it lives."""

    control: CompactionControl
    last_run: RunRecord | None
    running: bool


@dataclass(frozen=True)
class ServiceRecord:
    """A service process. `name`: an owner (storage/owner.py); `log_uid`: of its log directory, if that exists yet.

    `broker_service_url` and `broker_service_url_tls` None: no Pulsar protocol, without or with TLS.
    """

    name: str
    url: str
    log_uid: str | None
    started_at: int
    heartbeat_at: int
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None


@dataclass(frozen=True)
class CompactionBacklogRecord:
    """The messages after a topic's horizon (offset `horizon`; -1: never compacted), by the rows in SQL.

    `clean_bytes`: logical bytes of the compacted ledger. `closed_…`: of sealed ledgers and rolled segments after the
    horizon; `oldest`: the earliest publish time in them, `first_extent_newest_time`: the latest publish time of the
    first of them. The messages of `open_segment` are counted by the process that has its file.
    """

    topic: TopicRecord
    horizon: int = -1
    clean_bytes: int = 0
    closed_bytes: int = 0
    closed_messages: int = 0
    oldest: int | None = None
    first_extent_newest_time: int | None = None
    open_segment: SegmentRecord | None = None


CLUSTER = "standalone"
"""The name of the only cluster, as in Pulsar's standalone broker."""


@dataclass(frozen=True)
class TenantRecord:
    """A tenant. `admin_roles` may administer all its namespaces; `permissions`: actions by role."""

    name: str
    admin_roles: tuple[str, ...]
    allowed_clusters: tuple[str, ...]
    permissions: Mapping[str, tuple[str, ...]]
    created_at: int


@dataclass(frozen=True)
class NamespaceRecord:
    """A namespace; `name`: `tenant/namespace`; `permissions`: actions by role."""

    name: str
    permissions: Mapping[str, tuple[str, ...]]
    created_at: int


@dataclass(frozen=True)
class PartitionedTopic:
    """A partitioned topic: its partitions are topics of their own, `name-partition-0` and so on."""

    name: TopicName
    partitions: int
    properties: Mapping[str, str]
    created_at: int


@dataclass(frozen=True)
class DeletedTopic:
    """A topic that was deleted (S8); its files may still exist."""

    uid: str
    name: TopicName
    deleted_at: int
