"""What SQL holds of scheduling, as frozen values: what is wanted of a topic's compaction, and who serves.

Times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.metadata.records import RunRecord, SegmentRecord, TopicRecord

RUN_DEAD_MS = 30_000
"""A run whose heartbeat is older than this is held for dead, unless a caller says otherwise."""
SERVICE_DEAD_MS = 15_000
"""A service whose heartbeat is older than this is held for dead, unless a caller says otherwise."""


@dataclass(frozen=True)
class CompactionState:
    """What is wanted of a topic's compaction. `requested_at`: it waits for a run since then, for `cause`.

    `paused`: how many pauses want a resume. `aborting`: a run was ended by a pause or an abort, and its worker has not
    stopped yet. `failures`: since the last success; the next try comes at `retry_at` (S6).
    """

    requested_at: int | None = None
    cause: str = ""
    paused: int = 0
    failures: int = 0
    retry_at: int | None = None
    last_error: str = ""
    aborting: bool = False
    requested_by: str = ""


@dataclass(frozen=True)
class Retry:
    """A topic is tried again at `at`, because of `error`."""

    error: str
    at: int


@dataclass(frozen=True)
class Activity:
    """A topic's compaction as of one moment. `running`: it is requested, or a run of it lives."""

    control: CompactionState
    last_run: RunRecord | None
    running: bool


@dataclass(frozen=True)
class ServiceRecord:
    """A service process. `name`: an owner (storage/owner.py); `log_uid`: of its log directory, if that exists yet."""

    name: str
    url: str
    log_uid: str | None
    started_at: int
    heartbeat_at: int


@dataclass(frozen=True)
class BacklogRecord:
    """What SQL knows of what is behind a topic's horizon (offset `horizon`; -1: never compacted).

    `clean_bytes`: logical bytes of the compacted ledger. `closed_…`: of sealed ledgers and rolled segments behind the
    horizon; `oldest`: the earliest publish time there, `soonest`: by when the first of them was published whole.
    `open_segment` is for the process that has its file to count.
    """

    topic: TopicRecord
    horizon: int = -1
    clean_bytes: int = 0
    closed_bytes: int = 0
    closed_messages: int = 0
    oldest: int | None = None
    soonest: int | None = None
    open_segment: SegmentRecord | None = None
