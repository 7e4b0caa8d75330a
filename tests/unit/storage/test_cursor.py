"""A cursor as its owner has it: what is remembered, when it is flushed, how much it may hold, and who else may come.

semantics.md R4, R9, A4; Pulsar #21187 (resume behind mark-delete), #23494 (single acknowledgements last), #25998.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from storage.ack_ranges import MAX_STRETCH_BYTES, RANGE_OFFSETS, STRETCH_OVERHEAD
from storage.cursor import Cursor, CursorSettings
from storage.errors import Fenced, InvalidInput, NotFound, ObjectMissing, Unavailable
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import MessageId, Position, TopicName
from tests.clocks import ManualClock
from tests.entries import one
from tests.workbench import Workbench

MANUAL = CursorSettings(flush_acknowledgements=None, flush_ms=None)
KIB_64 = 64 * 1024


def at(offset: int) -> Position:
    """A topic of ledgers of ten messages, in batches of five."""
    return Position(offset, MessageId(offset // 10, offset % 10 // 5, -1, offset % 5))


@dataclass
class World:
    metadata: MetadataStore
    clock: ManualClock
    topic: TopicRecord
    located: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """Offsets of messages that are gone."""
    locate_fails: Exception | None = None
    end: int = 1 << 40
    asked: int = 0
    """How often the end was asked for."""

    def locate(self, offset: int) -> Position | None:
        self.located.append(offset)
        if self.locate_fails is not None:
            raise self.locate_fails
        while offset in self.lost:
            offset += 1
        return at(offset)

    def open(self, settings: CursorSettings = MANUAL, name: str = "s") -> Cursor:
        return Cursor(self.metadata, self.clock, self.topic, name, self.locate, self.ends, settings)

    def ends(self) -> int:
        self.asked += 1
        return self.end

    def stored(self) -> Position | None:
        return self.metadata.cursors.get(self.topic.id, "s").mark_delete

    def statements(self) -> list[tuple[str, int]]:
        """From now on: the beginning of each statement, and how many rows' parameters it has."""
        seen: list[tuple[str, int]] = []

        def before(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
            seen.append((" ".join(statement.split()[:3]), len(parameters) if many else 1))

        event.listen(self.metadata.database.engine, "before_cursor_execute", before)
        return seen


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    metadata = MetadataStore(f"sqlite:///{tmp_path / 'metadata.db'}", clock)
    metadata.upgrade()
    topic = metadata.tenancy.ensure_topic(TopicName.parse("orders"))
    metadata.cursors.ensure(topic.id, "s")
    yield World(metadata, clock, topic)
    metadata.close()


def to_deliver(cursor: Cursor, end: int) -> list[int]:
    return [offset for gap in cursor.unacknowledged(end) for offset in gap]


def test_what_was_flushed_is_not_delivered_again(world: World) -> None:
    cursor = world.open()
    assert to_deliver(cursor, 5) == [0, 1, 2, 3, 4]
    for offset in (0, 1, 3, 7, 5):
        cursor.acknowledge(at(offset))
    assert cursor.mark_delete == at(1)
    cursor.flush()
    cursor.acknowledge(at(2))
    assert cursor.is_acknowledged(2)
    again = world.open()
    assert again.mark_delete == at(1)
    assert [again.is_acknowledged(offset) for offset in range(-1, 9)] == [
        offset in (0, 1, 3, 5, 7) for offset in range(-1, 9)
    ]
    assert list(again.unacknowledged(10)) == [range(2, 3), range(4, 5), range(6, 7), range(8, 10)]
    assert list(again.unacknowledged(10, 6)) == [range(6, 7), range(8, 10)]
    assert list(again.unacknowledged(2)) == []
    assert again.backlog(10) == 5
    assert again.backlog(10, 6) == 3
    assert again.backlog(1) == again.backlog(5, 7) == 0


def test_a_closed_hole_moves_mark_delete_to_the_exact_id(world: World) -> None:
    cursor = world.open()
    for offset in (0, 2, 3, 6, 1):
        cursor.acknowledge(at(offset))
    assert world.located == []
    cursor.flush()
    assert world.located == [3]
    stored = world.stored()
    assert (stored, stored and stored.message_id) == (at(3), at(3).message_id)
    assert cursor.mark_delete == at(3)
    cursor.acknowledge(at(5))
    cursor.acknowledge(at(4))
    cursor.close()
    assert world.located == [3], "the id of 6 was handed in"
    assert world.stored() == at(6)


def test_in_order_nobody_is_asked_and_nothing_is_held(world: World) -> None:
    cursor = world.open()
    for offset in range(1000):
        cursor.acknowledge(at(offset))
    assert cursor.held_bytes == 0
    seen = world.statements()
    cursor.flush()
    assert [one for one in seen if not one[0].startswith(("SELECT", "BEGIN"))] == [("UPDATE cursors SET", 1)]
    assert (world.located, world.stored()) == ([], at(999))


def test_what_does_not_exist_yet_cannot_be_acknowledged(world: World) -> None:
    """The message that comes there would never be delivered."""
    world.end, world.lost = 5, {6}
    cursor = world.open()
    refused: list[Callable[[], None]] = [
        lambda: cursor.acknowledge(at(5)),
        lambda: cursor.acknowledge(at(1000)),
        lambda: cursor.acknowledge(at(5), 2),
        lambda: cursor.acknowledge_cumulative(at(5)),
        lambda: cursor.acknowledge_below(7),
    ]
    for acknowledge in refused:
        with pytest.raises(InvalidInput, match=r"offset \d+ of \S+ cannot be acknowledged: .* ends before offset 5"):
            acknowledge()
    cursor.close()
    assert (cursor.mark_delete, world.stored(), cursor.backlog(2000)) == (None, None, 2000)
    world.end = 6
    cursor.acknowledge_cumulative(at(5))
    assert cursor.mark_delete == at(5)


def test_what_lies_in_the_open_segment_exists(tmp_path: Path) -> None:
    """SQL alone does not know where the topic ends."""
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    with topic.append_log() as log:
        first, second = (log.append(one(b"k", b"%d" % number)).first for number in range(2))
    bench.metadata.cursors.ensure(topic.record.id, "s")
    cursor = Cursor(
        bench.metadata, bench.clock, topic.record, "s", topic.locate, lambda: topic.snapshot_reader().end, MANUAL
    )
    cursor.acknowledge_cumulative(second)
    assert cursor.mark_delete == second
    with pytest.raises(InvalidInput, match="ends before offset 2"):
        cursor.acknowledge(Position(2, first.message_id))
    bench.metadata.close()


def test_the_end_is_asked_for_only_behind_what_is_known(world: World) -> None:
    world.end = 10
    cursor = world.open()
    for offset in range(10):
        cursor.acknowledge(at(offset))
    assert world.asked == 1
    world.end = 12
    for offset in (10, 11):
        cursor.acknowledge(at(offset))
    assert world.asked == 2


def test_cumulative(world: World) -> None:
    cursor = world.open()
    cursor.acknowledge(at(4))
    cursor.acknowledge(at(11))
    cursor.acknowledge_cumulative(at(9))
    assert cursor.mark_delete == at(9)
    cursor.acknowledge_cumulative(at(6))
    assert cursor.mark_delete == at(9), "it does not go back"
    cursor.flush()
    assert to_deliver(world.open(), 13) == [10, 12]


def test_offsets_that_hold_nothing_for_a_reader_are_no_holes(world: World) -> None:
    """A compacted reader is given 4, 9 and 20, and acknowledges them one by one, in another order."""
    cursor = world.open()
    cursor.acknowledge(at(9), first=5)
    cursor.acknowledge(at(20), first=10)
    assert cursor.mark_delete is None
    cursor.acknowledge(at(4), first=0)
    cursor.flush()
    assert world.stored() == at(20)
    for first, last in ((3, 2), (-1, 2)):
        with pytest.raises(InvalidInput, match="cannot be acknowledged"):
            cursor.acknowledge(at(last), first=first)


def test_a_flush_is_due_by_number_or_by_time(world: World) -> None:
    cursor = world.open(CursorSettings(flush_acknowledgements=3, flush_ms=100))
    cursor.acknowledge(at(0))
    cursor.acknowledge(at(1))
    assert (world.stored(), cursor.due) == (None, False)
    cursor.acknowledge(at(2))
    assert world.stored() == at(2)
    cursor.acknowledge(at(3))
    world.clock.advance(99)
    assert (cursor.flush_due(), world.stored()) == (False, at(2))
    world.clock.advance(1)
    assert cursor.due
    assert (cursor.flush_due(), world.stored()) == (True, at(3))
    assert (cursor.due, cursor.flush_due()) == (False, False)
    cursor.acknowledge(at(4))
    world.clock.advance(100)
    cursor.acknowledge(at(5))
    assert world.stored() == at(5)
    for _ in range(3):
        cursor.acknowledge(at(5))
    assert not cursor.due, "what is known already is not written again"


def test_a_thousand_acknowledgements_are_one_transaction(world: World) -> None:
    cursor = world.open(CursorSettings(flush_acknowledgements=1000, flush_ms=None))
    seen = world.statements()
    for number in range(5000):
        cursor.acknowledge(at(2 * number + 1))
    assert len([one for one in seen if one[0].startswith("BEGIN")]) == 5


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
    sizes = [len(one.serialize()) for one in loaded.stretches.values()]
    assert len(sizes) == rows
    assert max(sizes) <= MAX_STRETCH_BYTES <= KIB_64 + 128
    assert summary.stored_bytes == sum(sizes)
    assert cursor.held_bytes == summary.stored_bytes + rows * STRETCH_OVERHEAD
    assert (cursor.forgotten, cursor.backlog(last)) == (0, 1_000_000)
    again = world.open()
    assert again.held_bytes == cursor.held_bytes
    assert sum(1 for _ in again.unacknowledged(last)) == 1_000_000
    seen = world.statements()
    again.acknowledge(at(1_000_000))
    again.flush()
    assert [one for one in seen if not one[0].startswith(("SELECT", "BEGIN"))] == [("UPDATE cursor_ranges SET", 1)]
    again.acknowledge_cumulative(at(RANGE_OFFSETS + 1))
    again.flush()
    assert world.metadata.cursors.summary(world.topic.id, "s")[1].rows == rows - 1


def test_what_finds_no_room_is_delivered_again_and_counted(world: World) -> None:
    room = 4 * STRETCH_OVERHEAD
    cursor = world.open(CursorSettings(None, None, max_held_bytes=room))
    for number in range(1, 11):
        cursor.acknowledge(at(number * RANGE_OFFSETS))
    assert cursor.held_bytes <= room
    remembered = [number for number in range(1, 11) if cursor.is_acknowledged(number * RANGE_OFFSETS)]
    assert remembered == [1, 2, 3]
    assert cursor.forgotten == 7
    cursor.acknowledge(at(10 * RANGE_OFFSETS))
    assert cursor.forgotten == 8
    cursor.acknowledge(at(RANGE_OFFSETS))
    assert cursor.forgotten == 8, "what is known needs no room"
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


def test_held_bytes_are_never_less_than_the_bitmaps(world: World) -> None:
    """Between flushes too, when an offset counts as the most it can cost."""
    room = 3 * MAX_STRETCH_BYTES
    cursor = world.open(CursorSettings(None, None, max_held_bytes=room))
    for offset in range(1, 4 * RANGE_OFFSETS, 5):
        cursor.acknowledge(at(offset))
    assert cursor.forgotten > 0
    estimated = cursor.held_bytes
    cursor.flush()
    stored = world.metadata.cursors.summary(world.topic.id, "s")[1].stored_bytes
    assert stored < cursor.held_bytes <= estimated <= room


def test_rows_beyond_the_room_are_left_out_and_not_lost(world: World) -> None:
    first = world.open()
    for number in range(1, 6):
        first.acknowledge(at(number * RANGE_OFFSETS))
    first.flush()
    small = CursorSettings(None, None, max_held_bytes=2 * STRETCH_OVERHEAD + 100)
    narrow = world.open(small)
    assert narrow.left_out == 3
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


def test_an_id_whose_message_is_gone_does_not_move_mark_delete(world: World) -> None:
    """R9, #25998: the ranges say what is acknowledged; mark-delete waits for a message that can be named."""
    world.lost = {4, 5}
    cursor = world.open()
    cursor.acknowledge(at(1))
    for offset in (3, 4, 8, 2):
        cursor.acknowledge(at(offset))
    cursor.acknowledge(at(0))
    cursor.flush()
    assert world.stored() == at(0)
    assert not cursor.due
    seen = world.statements()
    cursor.flush()
    assert (world.located, seen) == ([4], []), "it is not asked again and again"
    again = world.open()
    assert to_deliver(again, 10) == [5, 6, 7, 9]
    for offset in (6, 7, 5):
        again.acknowledge(at(offset))
    again.flush()
    assert world.stored() == at(8)


@pytest.mark.parametrize(
    "error", [ObjectMissing("rows/4 is not there", "restore it"), Unavailable("no answer", "wait")]
)
def test_no_lookup_still_writes_what_is_acknowledged(world: World, error: Exception) -> None:
    world.locate_fails = error
    cursor = world.open()
    for offset in (1, 2, 4, 0):
        cursor.acknowledge(at(offset))
    cursor.flush()
    assert world.stored() == at(0)
    assert to_deliver(world.open(), 6) == [3, 5]
    world.locate_fails = None
    cursor.flush()
    assert world.stored() == (at(2) if isinstance(error, Unavailable) else at(0))


def test_two_owners_lose_nothing_of_each_other(world: World) -> None:
    even, odd = world.open(), world.open()
    for offset in range(0, 20, 2):
        even.acknowledge(at(offset))
        odd.acknowledge(at(offset + 1))
    odd.flush()
    even.flush()
    assert to_deliver(world.open(), 22) == [20, 21]
    assert even.is_acknowledged(1)
    even.flush()
    assert world.stored() == at(19), "the other's acknowledgements have closed the holes"
    odd.acknowledge(at(20))
    odd.close()
    assert world.stored() == at(20)
    behind = world.open()
    even.acknowledge_cumulative(at(30))
    even.flush()
    behind.acknowledge_cumulative(at(25))
    behind.flush()
    assert world.stored() == behind.mark_delete == at(30), "mark-delete does not go back"


def test_a_hole_that_another_owner_closed_makes_a_flush_due(world: World) -> None:
    settings = CursorSettings(flush_acknowledgements=None, flush_ms=10)
    one, other = world.open(settings), world.open()
    other.acknowledge(at(1))
    other.flush()
    one.acknowledge(at(0))
    world.clock.advance(10)
    assert (one.flush_due(), world.stored()) == (True, at(0))
    assert one.is_acknowledged(1)
    world.clock.advance(10)
    assert (one.flush_due(), world.stored()) == (True, at(1))
    world.clock.advance(10)
    assert not one.due


def test_a_reset_fences_the_owners_from_before(world: World) -> None:
    old, resetting = world.open(), world.open()
    old.acknowledge_cumulative(at(50))
    old.acknowledge(at(60))
    resetting.acknowledge(at(70))
    resetting.reset(at(9))
    assert (world.stored(), resetting.mark_delete) == (at(9), at(9))
    assert to_deliver(resetting, 12) == [10, 11]
    assert not resetting.is_acknowledged(70)
    for _ in range(2):
        with pytest.raises(Fenced, match=r"'s' of persistent://public/default/orders was reset"):
            old.flush()
    for call in (lambda: old.acknowledge(at(11)), lambda: old.reset(None), old.flush_due):
        with pytest.raises(Fenced):
            call()
    resetting.acknowledge(at(10))
    resetting.flush()
    assert world.stored() == at(10)
    resetting.reset(None)
    assert (world.stored(), resetting.mark_delete) == (None, None)
    assert list(world.open().unacknowledged(100)) == [range(100)]


def test_a_deleted_cursor_does_not_come_back(world: World) -> None:
    cursor = world.open()
    cursor.acknowledge(at(5))
    cursor.flush()
    world.metadata.cursors.delete(world.topic.id, "s")
    cursor.acknowledge(at(7))
    with pytest.raises(NotFound, match="no cursor 's'"):
        cursor.flush()
    world.metadata.cursors.ensure(world.topic.id, "s")
    with pytest.raises(Fenced):
        cursor.flush()
    assert list(world.open().unacknowledged(10)) == [range(10)]


def test_the_compaction_cursor_is_nobodys(world: World) -> None:
    """A4."""
    world.metadata.cursors.ensure(world.topic.id, COMPACTION_CURSOR)
    with pytest.raises(InvalidInput, match="compaction horizon"):
        world.open(name=COMPACTION_CURSOR)
    with pytest.raises(NotFound, match="no cursor 'other'"):
        world.open(name="other")


def test_skip(world: World) -> None:
    cursor = world.open()
    for offset in (2, 3, 5):
        cursor.acknowledge(at(offset))
    assert cursor.skip(3, 10) == 3
    assert cursor.mark_delete == at(4)
    assert to_deliver(cursor, 10) == [6, 7, 8, 9]
    assert cursor.skip(0, 10) == 0
    assert cursor.skip(99, 10) == 4
    assert cursor.skip(1, 10) == 0
    cursor.close()
    assert world.stored() == at(9)
    world.lost = {11}
    assert cursor.skip(2, 20) == 2
    cursor.flush()
    assert world.stored() == at(9)
    assert to_deliver(world.open(), 14) == [12, 13]
    assert cursor.skip(2, 20) == 2
    world.lost = {15}
    assert cursor.skip(2, 20) == 2
    cursor.acknowledge(at(16))
    assert cursor.mark_delete == at(16), "no hole is left by what was skipped"


def test_what_is_trimmed_is_not_skipped(world: World) -> None:
    cursor = world.open()
    assert cursor.skip(2, 10, 5) == 2
    assert cursor.mark_delete == at(6)
    assert to_deliver(cursor, 10) == [7, 8, 9]
    assert cursor.skip(1, 10, 5) == 1
    assert cursor.mark_delete == at(7)


def test_mark_delete_crosses_the_borders_of_stretches(world: World) -> None:
    cursor = world.open()
    for offset in (RANGE_OFFSETS + 1, RANGE_OFFSETS - 1, RANGE_OFFSETS):
        cursor.acknowledge(at(offset))
    cursor.acknowledge(at(3 * RANGE_OFFSETS - 1), first=RANGE_OFFSETS + 2)
    cursor.acknowledge_cumulative(at(RANGE_OFFSETS - 2))
    cursor.flush()
    assert world.stored() == at(3 * RANGE_OFFSETS - 1)
    assert cursor.held_bytes == 0


def test_a_flush_that_failed_is_made_by_the_next_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = world.open(CursorSettings(flush_acknowledgements=2, flush_ms=None))
    merge = world.metadata.cursors.merge
    happens = [False, True]

    def failing(*arguments: Any) -> Any:
        if happens.pop(0):
            merge(*arguments)  # only the answer is lost
        raise Unavailable("the database does not answer", "try again")

    cursor.acknowledge(at(1))
    monkeypatch.setattr(world.metadata.cursors, "merge", failing)
    for _ in range(2):
        with pytest.raises(Unavailable):
            cursor.acknowledge(at(3))
    monkeypatch.undo()
    cursor.acknowledge(at(5))
    assert to_deliver(world.open(), 6) == [0, 2, 4]


def test_acknowledgements_from_several_threads(world: World) -> None:
    cursor = world.open(CursorSettings(flush_acknowledgements=50, flush_ms=None))

    def acknowledging(start: int) -> Callable[[], None]:
        def work() -> None:
            for offset in range(start, 2000, 4):
                cursor.acknowledge(at(offset))

        return work

    threads = [threading.Thread(target=acknowledging(start)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cursor.close()
    assert to_deliver(world.open(), 2001) == [2000]
    cursor.flush()
    assert world.stored() == at(1999)
