"""Acknowledgements of a cursor: its mark-delete position and, above it, one row per range of offsets.

A row is a Roaring bitmap (storage/ack_ranges.py), at most 64 KiB. Its number is the range's, so a cursor has one row
for each range in which something above mark-delete is acknowledged.

Invariants: in one incarnation of a cursor no acknowledgement is lost. A cursor may have several owners: the updates of
each are merged with the stored rows, and mark-delete only grows. A reset, or another cursor of the same name, is
another incarnation; an owner of the one before is Fenced. `__compaction` is moved by `publishing` alone (A4).

A transaction that changes a cursor's rows holds the row in `cursors` until the transaction ends; the topic's row is not
needed, so acknowledging never waits for appends or publishing. A row that is no bitmap raises ObjectDamaged.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby

from pyroaring import BitMap
from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, insert, select, update

from storage.ack_ranges import (
    RANGE_BITS,
    RANGE_OVERHEAD,
    decode,
    encode,
    join_adjacent_ranges,
    range_number_of,
    ranges,
    remove_up_to_mark,
)
from storage.errors import CompactionCursorProtected, CursorNotFound, Fenced, ObjectDamaged
from storage.metadata import queries, row_mapping
from storage.metadata.records import COMPACTION_CURSOR, CursorRecord, TopicRecord
from storage.metadata.tables import cursor_ranges, cursors
from storage.model import LogPosition

_PAGE = 64
"""Rows that are checked together: 4 MiB at most."""


@dataclass(frozen=True)
class CursorState:
    """A cursor as an owner opens it. `incarnation`: new at creation and at each reset.

    `ranges`: the bitmaps of acknowledged offsets, by range number (storage/ack_ranges.py), as many as the owner may
    hold.
    """

    record: CursorRecord
    incarnation: str
    ranges: Mapping[int, BitMap]


@dataclass(frozen=True)
class CursorUpdate:
    """The changes of a cursor by one owner, for the incarnation that it opened.

    `mark_delete` None: there is none yet. `changed`: the bitmaps that have changed, by range number.
    """

    topic_id: int
    name: str
    incarnation: str
    mark_delete: LogPosition | None
    changed: Mapping[int, BitMap]


@dataclass(frozen=True)
class MergeResult:
    """The state that a flush has stored: mark-delete, and the bitmaps that it read or wrote, by range number."""

    mark_delete: LogPosition | None
    ranges: Mapping[int, BitMap]


@dataclass(frozen=True)
class RangesSummary:
    """Totals of the acknowledgements of a cursor above its mark-delete.

    `messages`: acknowledged offsets; `ranges`: ranges of consecutive ones; `rows`, `stored_bytes`: rows in SQL, and
    their bytes.
    """

    messages: int
    ranges: int
    rows: int
    stored_bytes: int


def new_incarnation() -> str:
    """Return a new random id of an incarnation of a cursor: 32 hex digits."""
    return uuid.uuid4().hex


def load(connection: Connection, topic: TopicRecord, name: str, max_bytes: int) -> CursorState:
    """Return a cursor with at most `max_bytes` of bitmaps: those of the lowest ranges.

    Raises NotFound, CompactionCursorProtected, ObjectDamaged.
    """
    record, incarnation = _get_with_incarnation(connection, topic, name, select(cursors))
    loaded: dict[int, BitMap] = {}
    remaining = max_bytes
    for number, stored in _rows_above_mark(connection, topic.id, name, record.mark_delete_offset):
        remaining -= len(stored) + RANGE_OVERHEAD
        if remaining < 0:
            break
        loaded[number] = remove_up_to_mark(number, _decode_row(topic, name, number, stored), record.mark_delete_offset)
    return CursorState(record, incarnation, loaded)


def merge(connection: Connection, topic: TopicRecord, change: CursorUpdate) -> MergeResult:
    """Merge an owner's update into the stored rows. Raises NotFound, Fenced, CompactionCursorProtected, ObjectDamaged.

    Nothing of the cursor is written when one of these is raised.
    """
    name, mark_delete, changed = change.name, change.mark_delete, change.changed
    stored, present = _get_with_incarnation(connection, topic, name, select(cursors).with_for_update())
    if present != change.incarnation:
        raise Fenced(
            f"the cursor {name!r} of {topic.name} was reset, or deleted and created again, by another caller",
            "open the cursor again and read from where it is now; what was not flushed is delivered again",
        )
    if mark_delete is None or mark_delete.offset <= stored.mark_delete_offset:
        mark_delete = stored.mark_delete
    else:
        cursor = (cursors.c.topic_id == topic.id) & (cursors.c.name == name)
        queries.change_where(connection, cursors, cursor, **row_mapping.position_values("mark_delete", mark_delete))
    mark = mark_delete.offset if mark_delete else -1
    first = range_number_of(mark + 1)
    if first > range_number_of(stored.mark_delete_offset + 1):
        below = cursor_ranges.c.number < first
        connection.execute(delete(cursor_ranges).where(*_cursor_conditions(topic.id, name), below))
    # The range that mark-delete has reached is merged too: another owner may have acknowledged offsets in it.
    numbers = {first, *(number for number in changed if number >= first)}
    before = dict(_read_bitmaps(connection, topic, name, numbers))
    merged = {number: remove_up_to_mark(number, bitmap.copy(), mark) for number, bitmap in before.items()}
    for number, bitmap in changed.items():
        if number >= first:
            merged[number] = merged.get(number, BitMap()) | remove_up_to_mark(number, bitmap.copy(), mark)
    updated = {number: bitmap for number, bitmap in merged.items() if number in changed}
    _write_bitmaps(connection, topic.id, name, updated, before)
    return MergeResult(mark_delete, merged)


def delete_ranges(connection: Connection, topic_id: int, name: str) -> None:
    """Delete all acknowledged ranges of a cursor, whose own row this transaction has changed or deleted before."""
    connection.execute(delete(cursor_ranges).where(*_cursor_conditions(topic_id, name)))


def summaries(connection: Connection, topic: TopicRecord, records: Sequence[CursorRecord]) -> dict[str, RangesSummary]:
    """Return the totals above the mark-delete of each of the cursors `records`, by name, in one statement.

    A few rows at a time are in memory. Raises ObjectDamaged.
    """
    table = cursor_ranges.c
    rows = connection.execute(
        select(table.name, table.number, table.acknowledged)
        .where(table.topic_id == topic.id, table.name.in_([record.name for record in records]))
        .order_by(table.name, table.number)
        .execution_options(yield_per=_PAGE)
    )
    marks = {record.name: record.mark_delete_offset for record in records}
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
            if number < range_number_of(mark + 1):
                continue
            bitmap = remove_up_to_mark(number, _decode_row(topic, name, number, data), mark)
            messages += len(bitmap)
            rows += 1
            stored_bytes += len(data)
            yield from ranges(bitmap, number << RANGE_BITS)

    count = sum(1 for _ in join_adjacent_ranges(parts()))
    return RangesSummary(messages, count, rows, stored_bytes)


def _rows_above_mark(connection: Connection, topic_id: int, name: str, mark: int) -> Iterator[tuple[int, bytes]]:
    """Yield the range number and the bytes of each row of a cursor above a mark, by number. Reads page by page."""
    row = cursor_ranges.c
    next_number = range_number_of(mark + 1)
    while True:
        statement = (
            select(row.number, row.acknowledged)
            .where(*_cursor_conditions(topic_id, name), row.number >= next_number)
            .order_by(row.number)
            .limit(_PAGE)
        )
        page = connection.execute(statement).all()
        yield from ((number, bytes(stored)) for number, stored in page)
        if len(page) < _PAGE:
            return
        next_number = page[-1][0] + 1


def _read_bitmaps(
    connection: Connection, topic: TopicRecord, name: str, numbers: Collection[int]
) -> Iterator[tuple[int, BitMap]]:
    row = cursor_ranges.c
    for page in queries.batches(sorted(numbers), _PAGE):
        statement = select(row.number, row.acknowledged).where(
            *_cursor_conditions(topic.id, name), row.number.in_(page)
        )
        for number, stored in connection.execute(statement):
            yield number, _decode_row(topic, name, number, bytes(stored))


def _write_bitmaps(
    connection: Connection, topic_id: int, name: str, merged: Mapping[int, BitMap], present: Mapping[int, BitMap]
) -> None:
    """Store the bitmaps `merged` that differ from the stored ones, `present`; delete the rows of empty ones."""
    same_range = (*_cursor_conditions(topic_id, name), cursor_ranges.c.number == bindparam("range"))
    new, changed, empty = [], [], []
    for number, bitmap in merged.items():
        if not bitmap:
            empty += [{"range": number}] if number in present else []
        elif number not in present:
            new.append({"topic_id": topic_id, "name": name, "number": number, "acknowledged": encode(bitmap)})
        elif bitmap != present[number]:
            changed.append({"range": number, "bits": encode(bitmap)})
    if new:
        connection.execute(insert(cursor_ranges), new)
    if changed:
        connection.execute(update(cursor_ranges).where(*same_range).values(acknowledged=bindparam("bits")), changed)
    if empty:
        connection.execute(delete(cursor_ranges).where(*same_range), empty)


def _cursor_conditions(topic_id: int, name: str) -> tuple[ColumnElement[bool], ...]:
    return cursor_ranges.c.topic_id == topic_id, cursor_ranges.c.name == name


def _decode_row(topic: TopicRecord, name: str, number: int, stored: bytes) -> BitMap:
    try:
        return decode(stored)
    except ValueError as error:
        raise ObjectDamaged(
            f"row {number} of the acknowledged ranges of the cursor {name!r} of {topic.name} is no bitmap: {error}",
            "reset the cursor to its mark-delete position: what was acknowledged above it is delivered again",
        ) from error


def _get_with_incarnation(
    connection: Connection, topic: TopicRecord, name: str, rows: Select[tuple[object, ...]]
) -> tuple[CursorRecord, str]:
    """Return a cursor and its incarnation, from `rows` of cursors. Raises NotFound, CompactionCursorProtected."""
    if name == COMPACTION_CURSOR:
        raise CompactionCursorProtected(topic.name, "acknowledge")
    statement = rows.where(cursors.c.topic_id == topic.id, cursors.c.name == name)
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        raise CursorNotFound(topic.name, name)
    return row_mapping.cursor(row), row["life"]
