"""Models of the documents that `api/reports.py` builds: one list of fields for the commands and REST.

They are apart from the functions, which the commands import at their start: the models cost some milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storage.metadata.records import RunState


@dataclass
class RunReport:
    """A compaction run, as `compactor compactions show` prints it; times in milliseconds since 1970."""

    run: int
    topic: str
    state: RunState
    cause: str
    phase: str
    tasks_done: int | None
    tasks_total: int | None
    bytes_done: int | None
    started_at: int
    heartbeat_at: int
    heartbeat_expired: bool | None
    finished_at: int | None
    error: str | None
    compacted_ledger: int | None
    horizon: str | None
    horizon_offset: int | None
    epoch: int
    attempt: str
    holder: str
    policies: dict[str, Any]
    statistics: dict[str, Any]


@dataclass
class MirrorPartitionReport:
    """A partition of a mirror, by the last report of the service that mirrors it. `gap_end`: the offset before which
    records are missing at the source, so that the mirror stopped."""

    partition: int
    next_offset: int | None
    end_offset: int | None
    lag: int | None
    records_per_second: int | None
    reported_at: int | None
    gap_end: int | None


@dataclass
class MirrorReport:
    """A mirror of a Kafka topic. `error`: why it stopped, or what its last try met; `lag`, `records_per_second`: of all
    partitions that were reported. No option is a secret."""

    topic: str
    source: str
    state: str
    error: str | None
    lag: int | None
    records_per_second: int | None
    options: dict[str, Any]
    cluster_id: str
    source_topic_id: str
    created_at: int
    changed_at: int
    partitions: list[MirrorPartitionReport]


@dataclass
class VerifyDifference:
    """One difference that a verification has found: its kind, its place and its description; the key as text and in
    base64."""

    kind: str
    where: str
    what: str
    offset: int | None
    key: str | None
    key_base64: str | None
    key_hash: Any


@dataclass
class VerifyReport:
    """The result of a verification: the checked and unchecked objects, and the differences. `total` also counts
    differences that are not named."""

    topic: str
    compacted_ledger: int | None
    generation: int
    checked: dict[str, int]
    unchecked: list[str]
    differences: list[VerifyDifference]
    counts: dict[str, int]
    total: int


@dataclass
class TrimmedLedger:
    """A trimmed ledger, or one that a trim would remove."""

    ledger: int
    first_offset: int
    last_offset: int
    messages: int
    logical_bytes: int
    why: str


@dataclass
class TrimHold:
    """The cursor that keeps further ledgers from being trimmed, and these ledgers."""

    cursor: str
    mark_delete: str | None
    mark_delete_offset: int | None
    ledgers: list[TrimmedLedger]
    start_offset: int


@dataclass
class TrimReport:
    """The trimmed ledgers, or those that a trim would remove; as `compactor topics trim --output json` prints it.

    `start_offset`: below it everything is trimmed. `first_offset`: of the first raw message; compacted ones may be
    before it.
    """

    topic: str
    dry_run: bool
    start_offset: int
    first_offset: int
    ledgers: list[TrimmedLedger]
    held: TrimHold | None
    tail_left: str | None


@dataclass
class CompactionControlReport:
    """The state of a topic's compaction at one moment: requested, paused (and how many times), or failing."""

    topic: str
    state: str
    requested_at: int | None
    cause: str
    paused: int
    aborting: bool
    failures: int
    retry_at: int | None
    last_error: str


@dataclass
class LiveService:
    """A live service process."""

    name: str
    url: str
    started_at: int
    heartbeat_at: int
    leads: bool


@dataclass
class SchedulerStatus:
    """The compaction scheduler: its leader, the queue, the runs, and the topics that fail or are paused."""

    leader: str | None
    services: list[LiveService]
    queue: list[CompactionControlReport]
    running: list[RunReport]
    failing: list[CompactionControlReport]
    paused: list[CompactionControlReport]
