"""What a cursor has acknowledged: its mark-delete position and, above it, a row a range of offsets.

A row is a Roaring bitmap (storage/ack_ranges.py), at most 64 KiB. Its number is the range's, so the rows of a
cursor are as many as the ranges in which something above mark-delete is acknowledged.

Invariants: in one incarnation of a cursor nothing that was acknowledged is lost. Owners may be several: what one writes
is merged with what is there, and mark-delete only grows. A reset, or another cursor of the same name, is another one;
an owner from before it is Fenced. `__compaction` is moved by `publishing` alone (A4).

A transaction that changes a cursor's rows holds the row in `cursors` until the transaction ends; the topic's row is not
needed, so acknowledging never waits for appends or publishing. May go wrong: ObjectDamaged for a row that is no bitmap.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby

from pyroaring import BitMap
from sqlalchemy import Connection, Select, bindparam, delete, func, insert, select, update

from storage.ack_ranges import RANGE_BITS, RANGE_OVERHEAD, decode, encode, joined, range_number, ranges, without_below
from storage.errors import Fenced, InvalidInput, NotFound, ObjectDamaged
from storage.metadata import row_mapping
from storage.metadata.records import COMPACTION_CURSOR, CursorRecord, TopicRecord
from storage.metadata.tables import cursor_ranges, cursors
from storage.model import LogPosition

_PAGE = 64
"""Rows that are checked together: 4 MiB at most."""


@dataclass(frozen=True)
class CursorState:
    """A cursor as an owner opens it. `left_out`: stored bitmaps that went beyond the bytes that it may hold."""

    record: CursorRecord
    incarnation: str
    ranges: Mapping[int, BitMap]
    left_out: int


@dataclass(frozen=True)
class CursorUpdate:
    """What an owner of a cursor has to write: mark-delete, and bitmaps by number that have changed."""

    topic_id: int
    name: str
    incarnation: str
    mark_delete: LogPosition | None
    changed: Mapping[int, BitMap]


@dataclass(frozen=True)
class MergeResult:
    """What is stored after a flush: the position, and the bitmaps that the flush checked."""

    mark_delete: LogPosition | None
    ranges: Mapping[int, BitMap]


@dataclass(frozen=True)
class RangesSummary:
    """Of what is acknowledged above mark-delete: messages, ranges of consecutive offsets, rows and their bytes."""

    messages: int
    ranges: int
    rows: int
    stored_bytes: int


def new_incarnation() -> str:
    return uuid.uuid4().hex


def load(connection: Connection, topic: TopicRecord, name: str, max_bytes: int) -> CursorState:
    """Raises NotFound, and InvalidInput for `__compaction`."""
    record, incarnation = _cursor(connection, topic, name, select(cursors))
    taken: dict[int, BitMap] = {}
    remaining = max_bytes
    for number, stored in _pages(connection, topic.id, name, record.mark):
        remaining -= len(stored) + RANGE_OVERHEAD
        if remaining < 0:
            break
        taken[number] = without_below(number, _decoded(topic, name, number, stored), record.mark)
    here = cursor_ranges.c
    rows = select(func.count()).where(
        here.topic_id == topic.id, here.name == name, here.number >= range_number(record.mark + 1)
    )
    return CursorState(record, incarnation, taken, connection.execute(rows).scalar_one() - len(taken))


def merge(connection: Connection, topic: TopicRecord, change: CursorUpdate) -> MergeResult:
    """Add what an owner knows to what is stored. Raises NotFound, Fenced; InvalidInput for `__compaction`.

    Nothing of the cursor is written when one of these is raised.
    """
    name, mark_delete, changed = change.name, change.mark_delete, change.changed
    stored, present = _cursor(connection, topic, name, select(cursors).with_for_update())
    if present != change.incarnation:
        raise Fenced(
            f"the cursor {name!r} of {topic.name} was reset, or deleted and created again, by another caller",
            "open the cursor again and read from where it is now; what was not flushed is delivered again",
        )
    if mark_delete is None or mark_delete.offset <= stored.mark:
        mark_delete = stored.mark_delete
    else:
        connection.execute(
            update(cursors)
            .where(cursors.c.topic_id == topic.id, cursors.c.name == name)
            .values(**row_mapping.position_values("mark_delete", mark_delete))
        )
    mark = mark_delete.offset if mark_delete else -1
    first = range_number(mark + 1)
    if first > range_number(stored.mark + 1):
        here = cursor_ranges.c
        connection.execute(
            delete(cursor_ranges).where(here.topic_id == topic.id, here.name == name, here.number < first)
        )
    # The range that mark-delete has come to is checked too: another owner may know what is acknowledged in it.
    there = dict(_stored(connection, topic, name, {first, *(number for number in changed if number >= first)}))
    merged = {number: without_below(number, bitmap.copy(), mark) for number, bitmap in there.items()}
    for number, bitmap in changed.items():
        if number >= first:
            merged[number] = merged.get(number, BitMap()) | without_below(number, bitmap.copy(), mark)
    _write(connection, topic.id, name, {n: one for n, one in merged.items() if n in changed}, there)
    return MergeResult(mark_delete, merged)


def clear(connection: Connection, topic_id: int, name: str) -> None:
    """Delete all rows of a cursor, whose row in `cursors` this transaction has changed or deleted before."""
    connection.execute(delete(cursor_ranges).where(cursor_ranges.c.topic_id == topic_id, cursor_ranges.c.name == name))


def summaries(connection: Connection, topic: TopicRecord, records: Sequence[CursorRecord]) -> dict[str, RangesSummary]:
    """Return what is stored above the mark-delete of each cursor, by name, in one statement.

    A few rows at a time are in memory.
    """
    table = cursor_ranges.c
    rows = connection.execute(
        select(table.name, table.number, table.acknowledged)
        .where(table.topic_id == topic.id, table.name.in_([record.name for record in records]))
        .order_by(table.name, table.number)
        .execution_options(yield_per=_PAGE)
    )
    marks = {record.name: record.mark for record in records}
    with closing(rows):  # a damaged row leaves the rest unread
        counted = {
            name: _summary(topic, name, marks[name], ((row.number, bytes(row.acknowledged)) for row in of_cursor))
            for name, of_cursor in groupby(rows, key=lambda row: str(row.name))
        }
    return {name: counted.get(name, RangesSummary(0, 0, 0, 0)) for name in marks}


def _summary(topic: TopicRecord, name: str, mark: int, stored: Iterable[tuple[int, bytes]]) -> RangesSummary:
    messages = rows = stored_bytes = 0

    def parts() -> Iterator[range]:
        nonlocal messages, rows, stored_bytes
        for number, data in stored:
            if number < range_number(mark + 1):
                continue
            bitmap = without_below(number, _decoded(topic, name, number, data), mark)
            messages += len(bitmap)
            rows += 1
            stored_bytes += len(data)
            yield from ranges(bitmap, number << RANGE_BITS)

    count = sum(1 for _ in joined(parts()))
    return RangesSummary(messages, count, rows, stored_bytes)


def _pages(connection: Connection, topic_id: int, name: str, mark: int) -> Iterator[tuple[int, bytes]]:
    """All rows above a mark by number, a page at a time."""
    here = cursor_ranges.c
    next_number = range_number(mark + 1)
    while True:
        statement = (
            select(here.number, here.acknowledged)
            .where(here.topic_id == topic_id, here.name == name, here.number >= next_number)
            .order_by(here.number)
            .limit(_PAGE)
        )
        page = connection.execute(statement).all()
        yield from ((number, bytes(stored)) for number, stored in page)
        if len(page) < _PAGE:
            return
        next_number = page[-1][0] + 1


def _stored(
    connection: Connection, topic: TopicRecord, name: str, numbers: Collection[int]
) -> Iterator[tuple[int, BitMap]]:
    here = cursor_ranges.c
    wanted = sorted(numbers)
    for start in range(0, len(wanted), _PAGE):
        statement = select(here.number, here.acknowledged).where(
            here.topic_id == topic.id, here.name == name, here.number.in_(wanted[start : start + _PAGE])
        )
        for number, stored in connection.execute(statement):
            yield number, _decoded(topic, name, number, bytes(stored))


def _write(
    connection: Connection, topic_id: int, name: str, merged: Mapping[int, BitMap], there: Mapping[int, BitMap]
) -> None:
    """Make the rows of these ranges what was merged; those that are it already are left alone."""
    here = cursor_ranges.c
    one_row = (here.topic_id == topic_id, here.name == name, here.number == bindparam("range"))
    new, other, empty = [], [], []
    for number, bitmap in merged.items():
        if not bitmap:
            empty += [{"range": number}] if number in there else []
        elif number not in there:
            new.append({"topic_id": topic_id, "name": name, "number": number, "acknowledged": encode(bitmap)})
        elif bitmap != there[number]:
            other.append({"range": number, "bits": encode(bitmap)})
    if new:
        connection.execute(insert(cursor_ranges), new)
    if other:
        connection.execute(update(cursor_ranges).where(*one_row).values(acknowledged=bindparam("bits")), other)
    if empty:
        connection.execute(delete(cursor_ranges).where(*one_row), empty)


def _decoded(topic: TopicRecord, name: str, number: int, stored: bytes) -> BitMap:
    try:
        return decode(stored)
    except ValueError as error:
        raise ObjectDamaged(
            f"row {number} of the acknowledged ranges of the cursor {name!r} of {topic.name} is no bitmap: {error}",
            "reset the cursor to its mark-delete position: what was acknowledged above it is delivered again",
        ) from error


def _cursor(
    connection: Connection, topic: TopicRecord, name: str, rows: Select[tuple[object, ...]]
) -> tuple[CursorRecord, str]:
    """A cursor and its incarnation, from `rows` of cursors. Raises NotFound, and InvalidInput for `__compaction`."""
    if name == COMPACTION_CURSOR:
        raise InvalidInput(
            f"the cursor {COMPACTION_CURSOR} of {topic.name} cannot acknowledge: it is the compaction horizon",
            "compact the topic to move it on",
        )
    ours = rows.where(cursors.c.topic_id == topic.id, cursors.c.name == name)
    row = connection.execute(ours).mappings().one_or_none()
    if row is None:
        raise missing(topic, name)
    return row_mapping.cursor(row), row["life"]


def missing(topic: TopicRecord, name: str) -> NotFound:
    """The error that names a cursor that the topic does not have."""
    return NotFound(f"the topic {topic.name} has no cursor {name!r}", "create it first, or check its name")
