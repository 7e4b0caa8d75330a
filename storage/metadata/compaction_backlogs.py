"""Compaction backlogs: sums of the messages after the horizon of topics, in a few statements for a page of topics.

Invariants: a message counts once, in its ledger or in the rolled segment that no ledger replaces yet. An open segment
is not summed: its row does not know what it holds. A ledger that straddles the horizon, which no run of ours leaves,
counts by the share of its offsets; its messages are offsets, so they are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, bindparam, case, func, select, true, union_all

from storage.metadata import queries, row_mapping
from storage.metadata.extent_bytes import bytes_after
from storage.metadata.records import CompactionBacklogRecord, SegmentState, TopicRecord
from storage.metadata.tables import compacted_ledgers, ledgers, segments, topics


def of_topics(connection: Connection, topic_ids: Collection[int]) -> list[CompactionBacklogRecord]:
    """Return the compaction backlogs (S1) of these topics, ordered by topic id; deleted topics are left out."""
    return [
        backlog
        for ids in queries.batches(sorted(topic_ids))
        for backlog in _fetch_backlogs(connection, _OF_IDS, {"ids": ids})
    ]


def of_all(connection: Connection) -> list[CompactionBacklogRecord]:
    """Return the compaction backlogs of all topics, ordered by topic id, in four statements."""
    return _fetch_backlogs(connection, _OF_ALL, {})


_NEVER_COMPACTED: Sequence[Any] = (-1, 0)
_NO_EXTENTS: Sequence[Any] = (0, 0, None, None)


class _BacklogStatements(NamedTuple):
    """Statements that select rows of the same topics, with their ids first. The columns of `serving`, and of `sums`,
    the sums over their extents after the horizon, are fields of CompactionBacklogRecord in their order."""

    topics: Select[Any]
    serving: Select[Any]
    sums: Select[Any]
    open_segments: Select[Any]


def _fetch_backlogs(
    connection: Connection, statements: _BacklogStatements, parameters: Mapping[str, object]
) -> list[CompactionBacklogRecord]:
    serving, sums = (
        {topic_id: values for topic_id, *values in connection.execute(statement, parameters).all()}
        for statement in (statements.serving, statements.sums)
    )
    opened = {
        row["topic_id"]: row_mapping.segment(row)
        for row in connection.execute(statements.open_segments, parameters).mappings()
    }
    records = []
    for topic in queries.fetch(connection, statements.topics, row_mapping.topic, parameters):
        horizon, clean = serving.get(topic.id, _NEVER_COMPACTED)
        size, messages, oldest, soonest = sums.get(topic.id, _NO_EXTENTS)
        segment = opened.get(topic.id)
        records.append(CompactionBacklogRecord(topic, horizon, clean, size, messages, oldest, soonest, segment))
    return records


def _select_extents(columns: Any, condition: ColumnElement[bool], closed_at: ColumnElement[int]) -> Select[Any]:
    """Return a statement that selects ledgers, or segments, with the bytes and messages in each after the horizon.

    `columns`: of ledgers or segments; `condition`: on their rows; `closed_at`: the time at which one was
    closed, so no message in it counts as published later.
    """
    newest, oldest = (
        case((time > closed_at, closed_at), else_=time) for time in (columns.max_publish_time, columns.min_publish_time)
    )
    serving = (compacted_ledgers.c.topic_id == columns.topic_id) & compacted_ledgers.c.retired_at.is_(None)
    horizon = func.coalesce(compacted_ledgers.c.horizon_offset, -1)
    first, last = columns.first_offset, columns.last_offset
    return (
        select(
            columns.topic_id,
            first,
            bytes_after(columns, horizon).label("bytes"),
            (last - case((first <= horizon, horizon), else_=first - 1)).label("messages"),
            oldest.label("oldest"),
            newest.label("newest"),
        )
        .select_from(columns.topic_id.table.outerjoin(compacted_ledgers, serving))
        .where(condition, last > horizon)
    )


def _select_sums(extents: Any) -> Select[Any]:
    """Return a statement that selects the sums over rows of `_select_extents`, by topic. `extents`: their columns."""
    of_first = func.first_value(extents.newest).over(partition_by=extents.topic_id, order_by=extents.first_offset)
    extent = select(*extents, of_first.label("first_extent_newest_time")).subquery().c
    return select(
        extent.topic_id,
        queries.total(extent.bytes).label("closed_bytes"),
        queries.total(extent.messages).label("closed_messages"),
        func.min(extent.oldest).label("oldest"),
        func.min(extent.first_extent_newest_time).label("first_extent_newest_time"),  # equal in all rows of a topic
    ).group_by(extent.topic_id)


def _build_statements(chosen: Callable[[ColumnElement[int]], ColumnElement[bool]]) -> _BacklogStatements:
    """Return the statements for some topics. `chosen`: the condition on a column with ids of topics."""
    extents = (
        _select_extents(ledgers.c, ledgers.c.deleted_at.is_(None) & chosen(ledgers.c.topic_id), ledgers.c.created_at),
        _select_extents(
            segments.c,
            (segments.c.state == SegmentState.ROLLED.value) & chosen(segments.c.topic_id),
            segments.c.rolled_at,
        ),
    )
    serving = select(
        compacted_ledgers.c.topic_id, compacted_ledgers.c.horizon_offset, compacted_ledgers.c.logical_bytes
    ).where(compacted_ledgers.c.retired_at.is_(None), chosen(compacted_ledgers.c.topic_id))
    is_open = segments.c.state == SegmentState.OPEN.value
    return _BacklogStatements(
        select(*(topics.c[name] for name in row_mapping.field_names(TopicRecord)))
        .where(chosen(topics.c.id))
        .order_by(topics.c.id),
        serving,
        _select_sums(union_all(*extents).subquery().c),
        select(segments).where(is_open, chosen(segments.c.topic_id)),
    )


# Built once: building them costs as much as executing them.
_IDS = bindparam("ids", expanding=True, type_=BigInteger)
_OF_IDS = _build_statements(lambda column: column.in_(_IDS))
_OF_ALL = _build_statements(lambda column: true())
