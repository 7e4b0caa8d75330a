"""The size of a cursor: bitmaps of single acknowledgements, their rows, and acknowledgements beyond the bound."""

from __future__ import annotations

import pytest

from storage.ack_ranges import MAX_RANGE_BYTES, RANGE_OFFSETS, RANGE_OVERHEAD
from tests.cursors import World, at

KIB_64 = 64 * 1024


def test_a_thousand_acknowledgements_are_one_transaction(world: World) -> None:
    cursor = world.open()
    seen = world.statements()
    for number in range(1000):
        cursor.acknowledge(at(2 * number + 1))
    cursor.flush()
    assert len([item for item in seen if item[0].startswith("BEGIN")]) == 1


@pytest.mark.slow
def test_a_million_holes(world: World) -> None:
    """Every second one of two million: rows of at most 64 KiB, memory of the same size, one row for one more."""
    last = 2_000_000
    cursor = world.open()
    for offset in range(1, last, 2):
        cursor.acknowledge(at(offset))
    cursor.flush()
    rows = -(-last // RANGE_OFFSETS)
    ((record, summary),) = world.metadata.cursors.summaries(world.topic.id)
    assert (record.mark_delete, summary.messages, summary.ranges, summary.rows) == (None, 1_000_000, 1_000_000, rows)
    loaded = world.metadata.cursors.load(world.topic.id, "s", 1 << 30)
    sizes = [len(stretch.serialize()) for stretch in loaded.ranges.values()]
    assert len(sizes) == rows
    assert max(sizes) <= MAX_RANGE_BYTES <= KIB_64 + 128
    assert summary.stored_bytes == sum(sizes)
    assert cursor.bitmap_bytes == summary.stored_bytes + rows * RANGE_OVERHEAD
    assert (cursor.dropped_acknowledgements, cursor.backlog(last)) == (0, 1_000_000)
    again = world.open()
    assert again.bitmap_bytes == cursor.bitmap_bytes
    assert sum(1 for _ in again.unacknowledged(last)) == 1_000_000
    seen = world.statements()
    again.acknowledge(at(1_000_000))
    again.flush()
    assert [item for item in seen if not item[0].startswith(("SELECT", "BEGIN"))] == [("UPDATE cursor_ranges SET", 1)]
    again.acknowledge_cumulative(at(RANGE_OFFSETS + 1))
    again.flush()
    assert world.metadata.cursors.summary(world.topic.id, "s")[1].rows == rows - 1


def test_what_finds_no_room_is_delivered_again_and_counted(world: World) -> None:
    room = 4 * RANGE_OVERHEAD
    cursor = world.open(max_held_bytes=room)
    for number in range(1, 11):
        cursor.acknowledge(at(number * RANGE_OFFSETS))
    assert cursor.bitmap_bytes <= room
    remembered = [number for number in range(1, 11) if cursor.is_acknowledged(number * RANGE_OFFSETS)]
    assert remembered == [1, 2, 3]
    assert cursor.dropped_acknowledgements == 7
    cursor.acknowledge(at(10 * RANGE_OFFSETS))
    assert cursor.dropped_acknowledgements == 8
    cursor.acknowledge(at(RANGE_OFFSETS))
    assert cursor.dropped_acknowledgements == 8, "what is known needs no room"
    cursor.flush()
    again = world.open()
    assert again.backlog(11 * RANGE_OFFSETS) == 11 * RANGE_OFFSETS - 3
    # What moves the mark is always remembered, and makes room.
    cursor.acknowledge(at(0))
    cursor.acknowledge_cumulative(at(RANGE_OFFSETS - 1))
    assert cursor.mark_delete == at(RANGE_OFFSETS - 1)
    cursor.flush()
    assert world.stored() == at(RANGE_OFFSETS)
    cursor.acknowledge_cumulative(at(2 * RANGE_OFFSETS))
    cursor.acknowledge(at(10 * RANGE_OFFSETS))
    assert cursor.is_acknowledged(10 * RANGE_OFFSETS)


@pytest.mark.slow
def test_held_bytes_are_never_less_than_the_bitmaps(world: World) -> None:
    """Between flushes too, when an offset counts as the most it can cost."""
    room = 3 * MAX_RANGE_BYTES
    cursor = world.open(max_held_bytes=room)
    for offset in range(1, 4 * RANGE_OFFSETS, 5):
        cursor.acknowledge(at(offset))
    assert cursor.dropped_acknowledgements > 0
    estimated = cursor.bitmap_bytes
    cursor.flush()
    stored = world.metadata.cursors.summary(world.topic.id, "s")[1].stored_bytes
    assert stored < cursor.bitmap_bytes <= estimated <= room


def test_rows_beyond_the_room_are_left_out_and_not_lost(world: World) -> None:
    first = world.open()
    for number in range(1, 6):
        first.acknowledge(at(number * RANGE_OFFSETS))
    first.flush()
    narrow = world.open(max_held_bytes=2 * RANGE_OVERHEAD + 100)
    assert [narrow.is_acknowledged(number * RANGE_OFFSETS) for number in range(1, 6)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    narrow.acknowledge_cumulative(at(2 * RANGE_OFFSETS))
    narrow.flush()
    narrow.acknowledge(at(4 * RANGE_OFFSETS + 7))
    narrow.close()
    wide = world.open()
    assert [wide.is_acknowledged(number * RANGE_OFFSETS) for number in range(1, 6)] == [True] * 5
    assert wide.is_acknowledged(4 * RANGE_OFFSETS + 7)


def test_mark_delete_crosses_the_borders_of_ranges(world: World) -> None:
    cursor = world.open()
    for offset in (RANGE_OFFSETS + 1, RANGE_OFFSETS - 1, RANGE_OFFSETS):
        cursor.acknowledge(at(offset))
    cursor.acknowledge(at(3 * RANGE_OFFSETS - 1), first_offset=RANGE_OFFSETS + 2)
    cursor.acknowledge_cumulative(at(RANGE_OFFSETS - 2))
    cursor.flush()
    assert world.stored() == at(3 * RANGE_OFFSETS - 1)
    assert cursor.bitmap_bytes == 0
