"""Statistics of a topic, in few statements: sums over its ledgers, no row of a ledger and no index directory.

Everything is of one moment. The cost depends on the topic's own rows only, however many topics exist: statements go by
`topic_id`, and only the newest `RUNS_SEEN` runs are read. Must not know: files, objects, JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, Select, bindparam, case, func, select

from storage.metadata import cursor_ranges, cursors, queries, row_mapping, segments, topics
from storage.metadata.extent_bytes import bytes_after
from storage.metadata.records import (
    CompactedLedgerRecord,
    CursorRecord,
    RunRecord,
    RunState,
    SegmentRecord,
    TopicRecord,
)
from storage.metadata.tables import ledgers, runs
from storage.model import MessageId, TopicName

RUNS_SEEN = 1000
"""The number of the newest runs that are searched for the last success and the last failure."""


@dataclass(frozen=True)
class LedgerSums:
    """Sums over the sealed ledgers of a topic that are not trimmed.

    `first_offset` None: there are no ledgers; `max_publish_time`: in ms, 0 without ledgers.
    """

    entries: int
    logical_bytes: int
    first_offset: int | None
    max_publish_time: int


@dataclass(frozen=True)
class LedgerSummary:
    """A sealed ledger in a list of them."""

    ledger_id: int
    entries: int
    logical_bytes: int
    created_at: int
    last_message_id: MessageId


@dataclass(frozen=True)
class CursorStatsRecord:
    """A cursor, and its backlog in sealed ledgers.

    `sealed_bytes`: logical bytes after mark-delete; a ledger that straddles it counts by its share of messages.
    `oldest_publish_time`: in ms, of these ledgers; 0: there are none. `acknowledged`, `ranges`: the messages above
    mark-delete that are acknowledged, and the number of ranges they form.
    """

    record: CursorRecord
    sealed_bytes: int
    oldest_publish_time: int
    acknowledged: int = 0
    ranges: int = 0


@dataclass(frozen=True)
class TopicStatsRecord:
    """The statistics of a topic. `segments`: open and rolled ones.

    `succeeded`: the last run that ended as SUCCESS; `failed`: the last that ended as ERROR or CANCELLED; None: none
    among the newest RUNS_SEEN. `ledgers`, `properties`: empty unless they were requested.
    """

    topic: TopicRecord
    sums: LedgerSums
    segments: tuple[SegmentRecord, ...]
    cursors: tuple[CursorStatsRecord, ...]
    compacted: CompactedLedgerRecord | None
    succeeded: RunRecord | None
    failed: RunRecord | None
    ledgers: tuple[LedgerSummary, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def of_topic(connection: Connection, name: TopicName, *, with_ledgers: bool = False) -> TopicStatsRecord:
    """Return the statistics of a topic. Raises TopicNotFound.

    `with_ledgers`: with a LedgerSummary of each ledger, and the topic's properties.
    """
    topic = topics.by_name(connection, name)
    records = cursors.of_topic(connection, topic.id)
    marks = sorted({record.mark_delete_offset for record in records})
    sums, backlogs = _ledger_sums_and_backlogs(connection, topic.id, marks)
    succeeded, failed = _last_succeeded_and_failed_runs(connection, topic.id)
    summaries = cursor_ranges.summaries(connection, topic, records)
    stats = []
    for record in records:
        backlog, above = backlogs[record.mark_delete_offset], summaries[record.name]
        stats.append(CursorStatsRecord(record, *backlog, above.messages, above.ranges))
    return TopicStatsRecord(
        topic=topic,
        sums=sums,
        segments=tuple(segments.of_topic(connection, topic.id, segments.TAIL)),
        cursors=tuple(stats),
        compacted=cursors.serving_compacted_ledger(connection, topic.id),
        succeeded=succeeded,
        failed=failed,
        ledgers=_ledger_summaries(connection, topic.id) if with_ledgers else (),
        properties=topics.properties(connection, topic.id) if with_ledgers else {},
    )


class _SealedBacklog(NamedTuple):
    """The logical bytes in ledgers after a mark-delete offset, and the oldest publish time (ms) of these ledgers."""

    sealed_bytes: int
    oldest_publish_time: int


def _ledger_sums_and_backlogs(
    connection: Connection, topic_id: int, marks: Sequence[int]
) -> tuple[LedgerSums, dict[int, _SealedBacklog]]:
    """Return the sums over all ledgers, and the backlog of each mark-delete offset of `marks`."""
    parameters = {"topic": topic_id, **{f"mark_{number}": mark for number, mark in enumerate(marks)}}
    row = connection.execute(_sums_statement(len(marks)), parameters).mappings().one()
    backlogs = {
        mark: _SealedBacklog(row[f"bytes_{number}"], row[f"oldest_{number}"]) for number, mark in enumerate(marks)
    }
    return row_mapping.record(LedgerSums, row), backlogs


@lru_cache(maxsize=64)
def _sums_statement(marks: int) -> Select[Any]:
    """Return the statement that selects the sums, for a number of mark-delete offsets.

    Cached: building it costs as much as executing it.
    """
    columns: list[Any] = [
        *(queries.total(ledgers.c[name]).label(name) for name in ("entries", "logical_bytes")),
        func.min(ledgers.c.first_offset).label("first_offset"),
        func.coalesce(func.max(ledgers.c.max_publish_time), 0).label("max_publish_time"),
    ]
    for number in range(marks):
        mark = bindparam(f"mark_{number}", type_=BigInteger)
        ahead = ledgers.c.last_offset > mark
        oldest = func.coalesce(func.min(case((ahead, ledgers.c.min_publish_time))), 0)
        columns.append(queries.total(case((ahead, bytes_after(ledgers.c, mark)), else_=0)).label(f"bytes_{number}"))
        columns.append(oldest.label(f"oldest_{number}"))
    return select(*columns).where(ledgers.c.topic_id == bindparam("topic"), ledgers.c.deleted_at.is_(None))


_LINES = (
    select(
        ledgers.c.ledger_id,
        ledgers.c.entries,
        ledgers.c.logical_bytes,
        ledgers.c.created_at,
        *(ledgers.c[f"last_message_{part}"] for part in ("ledger_id", "entry_id", "partition", "batch_index")),
    )
    .where(ledgers.c.topic_id == bindparam("topic"), ledgers.c.deleted_at.is_(None))
    .order_by(ledgers.c.first_offset)
)


def _ledger_summaries(connection: Connection, topic_id: int) -> tuple[LedgerSummary, ...]:
    return tuple(
        LedgerSummary(ledger_id, entries, size, created_at, MessageId(*message_id))
        for ledger_id, entries, size, created_at, *message_id in connection.execute(_LINES, {"topic": topic_id})
    )


_SEEN = (
    select(runs.c.run_id, runs.c.state)
    .where(runs.c.topic_id == bindparam("topic"))
    .order_by(runs.c.run_id.desc())
    .limit(RUNS_SEEN)
    .cte("seen")
)
_SUCCEEDED = select(func.max(_SEEN.c.run_id)).where(_SEEN.c.state == RunState.SUCCESS.value)
_FAILED = select(func.max(_SEEN.c.run_id)).where(
    (_SEEN.c.state == RunState.ERROR.value) | (_SEEN.c.state == RunState.CANCELLED.value)
)
_LAST_RUNS = select(runs).where(runs.c.run_id.in_(_SUCCEEDED.union_all(_FAILED)))


def _last_succeeded_and_failed_runs(connection: Connection, topic_id: int) -> tuple[RunRecord | None, RunRecord | None]:
    """Return the topic's last run that succeeded, and the last that failed or was cancelled; None: there is none."""
    last = queries.fetch(connection, _LAST_RUNS, row_mapping.run, {"topic": topic_id})
    succeeded = next((run for run in last if run.state is RunState.SUCCESS), None)
    return succeeded, next((run for run in last if run.state is not RunState.SUCCESS), None)
