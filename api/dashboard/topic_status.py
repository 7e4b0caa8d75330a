"""State of a topic for the top of its pages: states, the share that compaction saves, and the next run.

Pure, but for `current_states`.

States and the share are those of the topic's row in the table of topics (`topics_table.py`), so both pages agree. A
topic that is due is due by the code of the control loop (`compactor/scheduling/due.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api.broker.broker import Broker
from api.dashboard.formats import count, duration, share, size
from api.dashboard.topics_table import (
    DUE,
    FAILING,
    PAUSED,
    REQUESTED,
    RUNNING,
    STATES,
    CompactionStates,
    TopicRow,
    cleanable_ratio,
    topic_rows,
)
from compactor.scheduling.backlog import Backlog
from compactor.scheduling.due import cause_of
from storage.metadata.records import CompactionControl
from storage.model import TopicName
from storage.options.resolution import CompactionTriggers

UP_TO_DATE, NOT_DUE, UNREADABLE, WAITING = "up to date", "not due", "unreadable", "waiting for a service"
"""States of a topic that has none of the table's: without a backlog, with one that no policy asks to compact, with a
lost object that reads need, and with unsealed messages that no live service has."""


@dataclass(frozen=True)
class TopicStatus:
    """The state of a topic.

    `saved_share`: the share of its raw bytes that a compacted read does not read; None: never compacted.
    `compacted_read_messages`: what a compacted read returns; `compacted_read_bytes`: what it reads, with garbage.
    `raw_messages`, `raw_bytes`: of a raw read. `next_run`: cause of the next run, in words; `next_at`: its time in
    milliseconds, where that is known.
    """

    states: Sequence[str]
    saved_share: float | None
    raw_messages: int
    raw_bytes: int
    compacted_read_messages: int | None
    compacted_read_bytes: int | None
    next_run: str
    next_at: int | None = None


def topic_status(
    row: TopicRow,
    backlog: Backlog,
    control: CompactionControl,
    compacted_messages: int | None,
    now: int,
    *,
    is_waiting: bool = False,
    is_raw_lost: bool = False,
) -> TopicStatus:
    """Return the state of a topic. `row`: its row in the table; `compacted_messages`: of its compacted ledger;
    `is_waiting`: no live service has some of its unsealed messages; `is_raw_lost`: an object with raw messages is
    lost."""
    next_run, next_at = _next_run_text_and_time(row, backlog, control, now, is_waiting)
    returned = None if compacted_messages is None else compacted_messages + backlog.messages
    return TopicStatus(
        _displayed_states(row, backlog, is_waiting, is_raw_lost),
        row.saved_share,
        row.messages,
        row.raw_bytes,
        returned,
        row.compacted_read_bytes,
        next_run,
        next_at,
    )


def current_states(broker: Broker, name: TopicName) -> Sequence[str]:
    """Return the states of a topic; none for a partitioned topic. Reads the database."""
    metadata = broker.environment.metadata
    topic_ids = [record.id for record in metadata.topics.by_names([name]).values()]
    backlogs = broker.backlogs.read(topic_ids)
    rows = CompactionStates.read(broker.environment).rows_with_states(
        topic_rows(metadata.topics.summaries(topic_ids), backlogs)
    )
    is_waiting = bool(topic_ids) and any(name in log.topics for log in broker.ownership.unserved_log_directories())
    return [
        state for row in rows if row.backlog is not None for state in _displayed_states(row, row.backlog, is_waiting)
    ]


def _displayed_states(row: TopicRow, backlog: Backlog, is_waiting: bool, is_raw_lost: bool = False) -> list[str]:
    if (row.is_unreadable or is_raw_lost) and not row.states:
        return [UNREADABLE]
    if is_waiting and not row.states:
        return [WAITING]
    return sorted(row.states, key=STATES.index) or [NOT_DUE if backlog.messages else UP_TO_DATE]


def _next_run_text_and_time(
    row: TopicRow, backlog: Backlog, control: CompactionControl, now: int, is_waiting: bool
) -> tuple[str, int | None]:
    """Return the cause of a topic's next run in words, and its time in milliseconds; None: the time is not known."""
    if RUNNING in row.states:
        return "a run is active", None
    if is_waiting and PAUSED not in row.states:
        return "none until a service has all messages that are not sealed yet", None
    if REQUESTED in row.states:
        return "requested, begins when the leader has a free slot", None
    if PAUSED in row.states:
        return "none until compaction is resumed", None
    left = _backlog_text(backlog)
    if FAILING in row.states and control.retry_at is not None:
        return f"as the next try; {left}", control.retry_at
    if DUE in row.states:
        return f"due now by {row.cause}; {left}{_trigger_progress_text(backlog)}", None
    if not backlog.messages:
        return "none; there is no message to compact", None
    triggers = backlog.triggers
    if not triggers.has_any:
        return f"on request; {left}, no threshold is set", None
    if triggers.min_lag_ms and cause_of(backlog, now) is None:
        begins = (backlog.first_extent_newest_time or now) + triggers.min_lag_ms
        if begins > now:
            return f"not yet; {left}, younger than min.compaction.lag.ms ({duration(triggers.min_lag_ms)})", None
    if triggers.max_lag_ms and backlog.oldest is not None:
        latest = max(backlog.oldest + triggers.max_lag_ms, now)
        return f"at the latest by max.compaction.lag.ms; {left}{_trigger_progress_text(backlog)}", latest
    return f"when a policy requires it; {left}{_trigger_progress_text(backlog)}", None


def _backlog_text(backlog: Backlog) -> str:
    """Return the size of the backlog in words."""
    return f"{count(backlog.messages)} {'message' if backlog.messages == 1 else 'messages'} not compacted yet"


def _trigger_progress_text(backlog: Backlog) -> str:
    """Return in words how near the backlog is to each trigger that is set."""
    triggers: CompactionTriggers = backlog.triggers
    parts = []
    if triggers.threshold_bytes:
        parts.append(f"{share(backlog.bytes / triggers.threshold_bytes)} of the threshold of "
                     f"{size(triggers.threshold_bytes)}")  # fmt: skip
    if triggers.threshold_messages:
        part = share(backlog.messages / triggers.threshold_messages)
        parts.append(f"{part} of the threshold of {count(triggers.threshold_messages)} messages")
    if triggers.dirty_ratio is not None:
        ratio = cleanable_ratio(backlog)
        now = "nothing sealed" if ratio is None else f"cleanable ratio {share(ratio)}"
        parts.append(f"{now}, due above {'a ratio of ' if ratio is None else ''}{share(triggers.dirty_ratio)}")
    return "".join(f", {part}" for part in parts)
