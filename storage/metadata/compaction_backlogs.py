"""What is behind the horizon of topics, summed by SQL: a few statements for a page of them.

Invariants: a message counts once, in its ledger or in the rolled segment that no ledger replaces yet. What is open is
not summed: its rows know nothing of it. A ledger that straddles the horizon, which no run of ours leaves, counts by
the share of its offsets; its messages are offsets, so they are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, RowMapping, Select, bindparam, case, func, literal, select

from storage.metadata import queries, row_mapping, topics
from storage.metadata.queries import Store
from storage.metadata.records import CompactionBacklogRecord, SegmentState
from storage.metadata.tables import compacted_ledgers, ledgers, segments, topics as topics_table


class CompactionBacklogStore(Store):
    """Backlogs."""

    def of(self, topic_ids: Collection[int]) -> list[CompactionBacklogRecord]:
        """What is behind the horizon of these topics (S1), by id; ids that are gone are left out."""
        found = []
        with self._database.snapshot() as connection:
            for ids in queries.batches(sorted(topic_ids)):
                these = {"ids": ids}
                found += _of_rows(connection, connection.execute(_THESE, these).mappings(), _LISTED, these)
        return found

    def in_pages(self, count: int) -> Iterator[list[CompactionBacklogRecord]]:
        """What is behind the horizon of all topics, by id, `count` at a time; each page is of its own moment."""
        after = -1
        while True:
            with self._database.snapshot() as connection:
                rows = topics.page_rows(connection, after, count)
                if not rows:
                    return
                page = _of_rows(connection, rows, _RANGE, {"first": rows[0]["id"], "last": rows[-1]["id"]})
            yield page
            after = page[-1].topic.id


class _Statements:
    """What is asked of some topics. Made once: making them costs as much as asking."""

    def __init__(self, these: Callable[[ColumnElement[int]], ColumnElement[bool]]) -> None:
        """`these`: whether a topic's id is one of theirs."""
        serving = compacted_ledgers.c
        columns = (serving.topic_id, serving.horizon_offset, serving.logical_bytes)
        self.serving = select(*columns).where(serving.retired_at.is_(None), these(serving.topic_id))
        self.pieces = (
            _summed(ledgers.c, ledgers.c.deleted_at.is_(None) & these(ledgers.c.topic_id), ledgers.c.created_at),
            _summed(
                segments.c,
                (segments.c.state == SegmentState.ROLLED.value) & these(segments.c.topic_id),
                segments.c.rolled_at,
            ),
        )
        opened = segments.c.state == SegmentState.OPEN.value
        self.opened = select(segments).where(opened, these(segments.c.topic_id))


def _of_rows(
    connection: Connection, rows: Iterable[RowMapping], statements: _Statements, these: Mapping[str, object]
) -> list[CompactionBacklogRecord]:
    found = {row["id"]: CompactionBacklogRecord(row_mapping.topic(row)) for row in rows}
    for serving in connection.execute(statements.serving, these):
        horizon, clean = serving.horizon_offset, serving.logical_bytes
        found[serving.topic_id] = replace(found[serving.topic_id], horizon=horizon, clean_bytes=clean)
    begins: dict[int, int] = {}
    for statement in statements.pieces:
        for sums in connection.execute(statement, these):
            first = sums.first < begins.setdefault(sums.topic_id, sums.first + 1)
            begins[sums.topic_id] = min(begins[sums.topic_id], sums.first)
            found[sums.topic_id] = _with(found[sums.topic_id], sums, first=first)
    for segment in connection.execute(statements.opened, these).mappings():
        topic_id = segment["topic_id"]
        found[topic_id] = replace(found[topic_id], open_segment=row_mapping.segment(segment))
    return list(found.values())


def _summed(columns: Any, counts: ColumnElement[bool], closed_at: ColumnElement[int]) -> Select[Any]:
    """Sums over the rows of a topic that are behind its horizon. No message was published after `closed_at`."""
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
    pieces = (
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
    found = pieces.subquery().c
    return select(
        found.topic_id,
        func.min(found.first_offset).label("first"),
        func.sum(found.bytes).label("bytes"),
        func.sum(found.messages).label("messages"),
        func.min(found.oldest).label("oldest"),
        func.min(found.soonest).label("soonest"),  # they are the same
    ).group_by(found.topic_id)


_IDS = bindparam("ids", expanding=True, type_=BigInteger)
_THESE = select(topics_table).where(topics_table.c.id.in_(_IDS)).order_by(topics_table.c.id)
_LISTED = _Statements(lambda topic_id: topic_id.in_(_IDS))
_RANGE = _Statements(lambda topic_id: topic_id.between(bindparam("first"), bindparam("last")))


def _with(found: CompactionBacklogRecord, row: Any, *, first: bool) -> CompactionBacklogRecord:
    """`first`: the row's pieces begin before those that were added already."""
    oldest = row.oldest if found.oldest is None else min(found.oldest, row.oldest)
    soonest = row.soonest if first else found.soonest
    # int(): PostgreSQL's sum of BIGINT is a decimal.
    return replace(
        found,
        closed_bytes=found.closed_bytes + int(row.bytes),
        closed_messages=found.closed_messages + int(row.messages),
        oldest=oldest,
        soonest=soonest,
    )
