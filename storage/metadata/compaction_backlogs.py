"""Compaction backlogs: sums of the messages after the horizon of topics, in a few statements for a page of topics.

Invariants: a message counts once, in its ledger or in the rolled segment that no ledger replaces yet. An open segment
is not summed: its row does not know what it holds. A ledger that straddles the horizon, which no run of ours leaves,
counts by the share of its offsets; its messages are offsets, so they are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, RowMapping, Select, bindparam, case, func, literal, select

from storage.metadata import queries, row_mapping, topics
from storage.metadata.records import CompactionBacklogRecord, SegmentState
from storage.metadata.tables import compacted_ledgers, ledgers, segments, topics as topics_table


def of(connection: Connection, topic_ids: Collection[int]) -> list[CompactionBacklogRecord]:
    """Return the backlogs of these topics (S1), by id; ids of deleted topics are left out."""
    backlogs = []
    for ids in queries.batches(sorted(topic_ids)):
        page = {"ids": ids}
        backlogs += _of_rows(connection, connection.execute(_LISTED_TOPICS, page).mappings(), _LISTED, page)
    return backlogs


def page_of(connection: Connection, after: int, count: int) -> list[CompactionBacklogRecord]:
    """Return the backlogs of the next `count` topics whose ids are greater than `after`, by id."""
    rows = topics.page_rows(connection, after, count)
    if not rows:
        return []
    return _of_rows(connection, rows, _RANGE, {"first": rows[0]["id"], "last": rows[-1]["id"]})


class _Statements:
    """The statements over one selection of topics. Built once: building them costs as much as executing them."""

    def __init__(self, selects: Callable[[ColumnElement[int]], ColumnElement[bool]]) -> None:
        """`selects`: the condition that a topic's id is in the selection."""
        serving = compacted_ledgers.c
        columns = (serving.topic_id, serving.horizon_offset, serving.logical_bytes)
        self.serving = select(*columns).where(serving.retired_at.is_(None), selects(serving.topic_id))
        self.extents = (
            _summed(ledgers.c, ledgers.c.deleted_at.is_(None) & selects(ledgers.c.topic_id), ledgers.c.created_at),
            _summed(
                segments.c,
                (segments.c.state == SegmentState.ROLLED.value) & selects(segments.c.topic_id),
                segments.c.rolled_at,
            ),
        )
        opened = segments.c.state == SegmentState.OPEN.value
        self.opened = select(segments).where(opened, selects(segments.c.topic_id))


def _of_rows(
    connection: Connection, rows: Iterable[RowMapping], statements: _Statements, selected: Mapping[str, object]
) -> list[CompactionBacklogRecord]:
    """Return the backlogs of topics in the order of their rows. `selected`: the parameters of `statements`."""
    backlogs = {row["id"]: CompactionBacklogRecord(row_mapping.topic(row)) for row in rows}
    for serving in connection.execute(statements.serving, selected):
        horizon, clean = serving.horizon_offset, serving.logical_bytes
        backlogs[serving.topic_id] = replace(backlogs[serving.topic_id], horizon=horizon, clean_bytes=clean)
    begins: dict[int, int] = {}
    for statement in statements.extents:
        for sums in connection.execute(statement, selected):
            first = sums.first < begins.setdefault(sums.topic_id, sums.first + 1)
            begins[sums.topic_id] = min(begins[sums.topic_id], sums.first)
            backlogs[sums.topic_id] = _with(backlogs[sums.topic_id], sums, first=first)
    for segment in connection.execute(statements.opened, selected).mappings():
        topic_id = segment["topic_id"]
        backlogs[topic_id] = replace(backlogs[topic_id], open_segment=row_mapping.segment(segment))
    return list(backlogs.values())


def _summed(columns: Any, counts: ColumnElement[bool], closed_at: ColumnElement[int]) -> Select[Any]:
    """Return a statement: per topic, sums over its extents after the horizon.

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
    of_first = func.first_value(newest).over(partition_by=columns.topic_id, order_by=first)
    extents = (
        select(
            columns.topic_id,
            first,
            logical.label("bytes"),
            (last - case((straddles, horizon), else_=first - 1)).label("messages"),
            oldest.label("oldest"),
            of_first.label("soonest"),
        )
        .select_from(columns.topic_id.table.outerjoin(compacted_ledgers, serving))
        .where(counts, last > horizon)
    )
    extent = extents.subquery().c
    return select(
        extent.topic_id,
        func.min(extent.first_offset).label("first"),
        func.sum(extent.bytes).label("bytes"),
        func.sum(extent.messages).label("messages"),
        func.min(extent.oldest).label("oldest"),
        func.min(extent.soonest).label("soonest"),  # equal in all rows of a topic
    ).group_by(extent.topic_id)


_IDS = bindparam("ids", expanding=True, type_=BigInteger)
_LISTED_TOPICS = select(topics_table).where(topics_table.c.id.in_(_IDS)).order_by(topics_table.c.id)
_LISTED = _Statements(lambda topic_id: topic_id.in_(_IDS))
_RANGE = _Statements(lambda topic_id: topic_id.between(bindparam("first"), bindparam("last")))


def _with(backlog: CompactionBacklogRecord, sums: Any, *, first: bool) -> CompactionBacklogRecord:
    """Return a backlog with the sums of more extents. `first`: they begin before those that were added already."""
    oldest = sums.oldest if backlog.oldest is None else min(backlog.oldest, sums.oldest)
    soonest = sums.soonest if first else backlog.soonest
    # int(): PostgreSQL's sum of BIGINT is a decimal.
    return replace(
        backlog,
        closed_bytes=backlog.closed_bytes + int(sums.bytes),
        closed_messages=backlog.closed_messages + int(sums.messages),
        oldest=oldest,
        soonest=soonest,
    )
