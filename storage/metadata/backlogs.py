"""What lies behind the horizon of topics, summed by SQL: two statements for all of them.

Invariants: a message counts once, in its ledger or in the rolled segment that no ledger stands for yet. What is open is
not summed: its rows know nothing of it. A ledger that straddles the horizon, which no run of ours leaves, counts by
the share of its offsets; its messages are offsets, so they are exact.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, func, literal, select

from storage.metadata import mapping
from storage.metadata.control_records import BacklogRecord
from storage.metadata.records import SegmentState
from storage.metadata.tables import compacted_ledgers, ledgers, segments
from storage.metadata.tables import topics as topics_table

_AT_ONCE = 1000


def of(connection: Connection, topic_ids: Collection[int] | None) -> list[BacklogRecord]:
    """The backlogs of these topics, or of all; ids that are gone are left out."""
    if topic_ids is None:
        return _some(connection, None)
    ids = sorted(topic_ids)
    return [one for first in range(0, len(ids), _AT_ONCE) for one in _some(connection, ids[first : first + _AT_ONCE])]


def _some(connection: Connection, ids: list[int] | None) -> list[BacklogRecord]:
    serving = select(
        compacted_ledgers.c.topic_id, compacted_ledgers.c.horizon_offset, compacted_ledgers.c.logical_bytes
    ).where(compacted_ledgers.c.retired_at.is_(None))
    statement = select(topics_table)
    if ids is not None:
        serving = serving.where(compacted_ledgers.c.topic_id.in_(ids))
        statement = statement.where(topics_table.c.id.in_(ids))
    compacted = {one.topic_id: (one.horizon_offset, one.logical_bytes) for one in connection.execute(serving)}
    found = {}
    for row in connection.execute(statement).mappings():
        horizon, clean = compacted.get(row["id"], (-1, 0))
        found[row["id"]] = BacklogRecord(mapping.topic(row), horizon, clean)
    unsealed = segments.c.state == SegmentState.ROLLED.value
    begins: dict[int, int] = {}
    for pieces, counts in ((ledgers, ledgers.c.deleted_at.is_(None)), (segments, unsealed)):
        for sums in connection.execute(_summed(pieces.c, counts, ids)):
            if sums.topic_id in found:
                first = sums.first < begins.setdefault(sums.topic_id, sums.first + 1)
                begins[sums.topic_id] = min(begins[sums.topic_id], sums.first)
                found[sums.topic_id] = _with(found[sums.topic_id], sums, first=first)
    opened = select(segments).where(segments.c.state == SegmentState.OPEN.value)
    if ids is not None:
        opened = opened.where(segments.c.topic_id.in_(ids))
    for segment in connection.execute(opened).mappings():
        topic_id = segment["topic_id"]
        if topic_id in found:
            found[topic_id] = replace(found[topic_id], open_segment=mapping.segment(segment))
    return [found[topic_id] for topic_id in sorted(found)]


def _summed(columns: Any, counts: ColumnElement[bool], ids: list[int] | None) -> Select[Any]:
    """Sums over the rows of a topic that lie behind its horizon."""
    serving = (compacted_ledgers.c.topic_id == columns.topic_id) & compacted_ledgers.c.retired_at.is_(None)
    horizon = func.coalesce(compacted_ledgers.c.horizon_offset, -1)
    first, last = columns.first_offset, columns.last_offset
    straddles = first <= horizon
    logical = case(
        (straddles, columns.logical_bytes * (last - horizon) // (last - first + literal(1))),
        else_=columns.logical_bytes,
    )
    of_first = func.first_value(columns.max_publish_time).over(partition_by=columns.topic_id, order_by=first)
    pieces = (
        select(
            columns.topic_id,
            first,
            logical.label("bytes"),
            (last - case((straddles, horizon), else_=first - 1)).label("messages"),
            columns.min_publish_time,
            of_first.label("soonest"),
        )
        .select_from(columns.topic_id.table.outerjoin(compacted_ledgers, serving))
        .where(counts, last > horizon)
    )
    if ids is not None:
        pieces = pieces.where(columns.topic_id.in_(ids))
    found = pieces.subquery().c
    return select(
        found.topic_id,
        func.min(found.first_offset).label("first"),
        func.sum(found.bytes).label("bytes"),
        func.sum(found.messages).label("messages"),
        func.min(found.min_publish_time).label("oldest"),
        func.min(found.soonest).label("soonest"),  # they are the same
    ).group_by(found.topic_id)


def _with(found: BacklogRecord, row: Any, *, first: bool) -> BacklogRecord:
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
