"""Compaction backlogs: sums of the messages after the horizon of topics, in a few statements for a page of topics.

Invariants: a message counts once, in its ledger or in the rolled segment that no ledger replaces yet. An open segment
is not summed: its row does not know what it holds. A ledger that straddles the horizon, which no run of ours leaves,
counts by the share of its offsets; its messages are offsets, so they are exact.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, bindparam, case, func, literal, select, union_all

from storage.metadata import queries, row_mapping
from storage.metadata.records import CompactionBacklogRecord, SegmentState
from storage.metadata.tables import compacted_ledgers, ledgers, segments, topics

_IDS = bindparam("ids", expanding=True, type_=BigInteger)


def of(connection: Connection, topic_ids: Collection[int]) -> list[CompactionBacklogRecord]:
    """Return the backlogs of these topics (S1), by id; ids of deleted topics are left out."""
    return [backlog for ids in queries.batches(sorted(topic_ids)) for backlog in _page(connection, ids)]


def _page(connection: Connection, ids: list[int]) -> list[CompactionBacklogRecord]:
    """Return the backlogs of as many topics as one statement takes, by id."""
    selected = {"ids": ids}
    records = queries.fetch(connection, _TOPICS, row_mapping.topic, selected)
    backlogs = {topic.id: CompactionBacklogRecord(topic) for topic in records}
    for serving in connection.execute(_SERVING, selected):
        horizon, clean = serving.horizon_offset, serving.logical_bytes
        backlogs[serving.topic_id] = replace(backlogs[serving.topic_id], horizon=horizon, clean_bytes=clean)
    for sums in connection.execute(_SUMS, selected).mappings():
        values = {name: value for name, value in sums.items() if name != "topic_id"}
        backlogs[sums["topic_id"]] = replace(backlogs[sums["topic_id"]], **values)
    for segment in connection.execute(_OPEN, selected).mappings():
        topic_id = segment["topic_id"]
        backlogs[topic_id] = replace(backlogs[topic_id], open_segment=row_mapping.segment(segment))
    return list(backlogs.values())


def _extents(columns: Any, counts: ColumnElement[bool], closed_at: ColumnElement[int]) -> Select[Any]:
    """Return a statement: the extents of the topics after their horizons.

    `columns`: of ledgers or segments; `counts`: which rows count; `closed_at`: when an extent was closed, so no message
    in it was published later.
    """
    newest, oldest = (
        case((time > closed_at, closed_at), else_=time) for time in (columns.max_publish_time, columns.min_publish_time)
    )
    serving = (compacted_ledgers.c.topic_id == columns.topic_id) & compacted_ledgers.c.retired_at.is_(None)
    horizon = func.coalesce(compacted_ledgers.c.horizon_offset, -1)
    first, last = columns.first_offset, columns.last_offset
    straddles = first <= horizon
    logical = case(
        (straddles, columns.logical_bytes * (last - horizon) // (last - first + literal(1))),
        else_=columns.logical_bytes,
    )
    return (
        select(
            columns.topic_id,
            first,
            logical.label("bytes"),
            (last - case((straddles, horizon), else_=first - 1)).label("messages"),
            oldest.label("oldest"),
            newest.label("newest"),
        )
        .select_from(columns.topic_id.table.outerjoin(compacted_ledgers, serving))
        .where(counts, columns.topic_id.in_(_IDS), last > horizon)
    )


def _summed(extents: Any) -> Select[Any]:
    """Return a statement: per topic, the sums over its extents. `extents`: columns of extents."""
    of_first = func.first_value(extents.newest).over(partition_by=extents.topic_id, order_by=extents.first_offset)
    extent = select(*extents, of_first.label("soonest")).subquery().c
    return select(
        extent.topic_id,
        queries.total(extent.bytes).label("closed_bytes"),
        queries.total(extent.messages).label("closed_messages"),
        func.min(extent.oldest).label("oldest"),
        func.min(extent.soonest).label("soonest"),  # equal in all rows of a topic
    ).group_by(extent.topic_id)


# Built once: building them costs as much as executing them.
_TOPICS = select(topics).where(topics.c.id.in_(_IDS)).order_by(topics.c.id)
_SERVING = select(compacted_ledgers.c.topic_id, compacted_ledgers.c.horizon_offset, compacted_ledgers.c.logical_bytes)
_SERVING = _SERVING.where(compacted_ledgers.c.retired_at.is_(None), compacted_ledgers.c.topic_id.in_(_IDS))
_SUMS = _summed(
    union_all(
        _extents(ledgers.c, ledgers.c.deleted_at.is_(None), ledgers.c.created_at),
        _extents(segments.c, segments.c.state == SegmentState.ROLLED.value, segments.c.rolled_at),
    )
    .subquery()
    .c
)
_OPEN = select(segments).where(segments.c.state == SegmentState.OPEN.value, segments.c.topic_id.in_(_IDS))
