"""A cursor as its owner has it: what is remembered, when it is flushed, how much it may hold, and who else may come.

semantics.md R4, R9, A4; Pulsar #21187 (resume behind mark-delete), #23494 (single acknowledgements last), #25998.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from storage.ack_ranges import RANGE_OFFSETS, bitmap_of, mask_of
from storage.cursor import Cursor, flush_together
from storage.errors import Fenced, InvalidInput, NotFound, ObjectMissing, Unavailable
from storage.metadata.records import COMPACTION_CURSOR
from storage.model import LogPosition
from tests.cursors import World, at, to_deliver
from tests.entries import single
from tests.workbench import Workbench


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
    assert cursor.bitmap_bytes == 0
    seen = world.statements()
    cursor.flush()
    assert [item for item in seen if not item[0].startswith(("SELECT", "BEGIN"))] == [("UPDATE cursors SET", 1)]
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
        first, second = (log.append(single(b"k", b"%d" % number)).first for number in range(2))
    bench.metadata.cursors.ensure(topic.record.id, "s")
    cursor = Cursor(bench.metadata, topic.record, "s", topic.first_raw_at_or_after, lambda: topic.snapshot_reader().end)
    cursor.acknowledge_cumulative(second)
    assert cursor.mark_delete == second
    with pytest.raises(InvalidInput, match="ends before offset 2"):
        cursor.acknowledge(LogPosition(2, first.message_id))
    bench.metadata.close()


def test_the_end_is_asked_for_only_behind_what_is_known(world: World) -> None:
    world.end = 10
    cursor = world.open()
    for offset in range(10):
        cursor.acknowledge(at(offset))
    assert world.end_calls == 1
    world.end = 12
    for offset in (10, 11):
        cursor.acknowledge(at(offset))
    assert world.end_calls == 2


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
    cursor.acknowledge(at(9), first_offset=5)
    cursor.acknowledge(at(20), first_offset=10)
    assert cursor.mark_delete is None
    cursor.acknowledge(at(4), first_offset=0)
    cursor.flush()
    assert world.stored() == at(20)
    for first, last in ((3, 2), (-1, 2)):
        with pytest.raises(InvalidInput, match="cannot be acknowledged"):
            cursor.acknowledge(at(last), first_offset=first)


def test_known_acknowledgements_are_not_written_again(world: World) -> None:
    cursor = world.open()
    cursor.acknowledge(at(0))
    assert world.stored() is None, "only a flush writes"
    cursor.flush()
    assert world.stored() == at(0)
    for _ in range(3):
        cursor.acknowledge(at(0))
    seen = world.statements()
    cursor.flush()
    assert seen == []


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


def test_a_hole_that_another_owner_closed_moves_mark_delete_with_the_next_flush(world: World) -> None:
    first, other = world.open(), world.open()
    other.acknowledge(at(1))
    other.flush()
    first.acknowledge(at(0))
    first.flush()
    assert (first.is_acknowledged(1), world.stored()) == (True, at(0))
    first.flush()
    assert world.stored() == at(1)
    seen = world.statements()
    first.flush()
    assert seen == []


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
    for call in (lambda: old.acknowledge(at(11)), lambda: old.reset(None), old.resolve_mark_delete_id):
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
    with pytest.raises(InvalidInput, match=r"cannot acknowledge: .*: compact the topic to move it on$"):
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


def test_a_flush_that_failed_is_made_by_the_next_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = world.open()
    merge = world.metadata.cursors.merge
    happens = [False, True]

    def failing(*arguments: Any) -> Any:
        if happens.pop(0):
            merge(*arguments)  # only the answer is lost
        raise Unavailable("the database does not answer", "try again")

    cursor.acknowledge(at(1))
    monkeypatch.setattr(world.metadata.cursors, "merge", failing)
    for _ in range(2):
        cursor.acknowledge(at(3))
        with pytest.raises(Unavailable):
            cursor.flush()
    monkeypatch.undo()
    cursor.acknowledge(at(5))
    cursor.flush()
    assert to_deliver(world.open(), 6) == [0, 2, 4]


def test_acknowledgements_from_several_threads(world: World) -> None:
    cursor = world.open()

    def acknowledging(start: int) -> Callable[[], None]:
        def work() -> None:
            for number, offset in enumerate(range(start, 2000, 4)):
                cursor.acknowledge(at(offset))
                if number % 12 == start:
                    cursor.flush()

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


def test_slots_are_acknowledged_in_one_step_and_masks_say_which(world: World) -> None:
    cursor = world.open()
    base = RANGE_OFFSETS - 5
    every_other = int("01" * 500, 2)
    cursor.acknowledge(at(base + 1))
    cursor.acknowledge_slots(base, every_other, at(base + 998))
    assert cursor.acknowledged_mask(base, 1_000) == every_other | 2
    assert cursor.acknowledged_mask(base + 2, 4) == 0b0101
    assert [cursor.acknowledged_mask(offset, 1) for offset in (0, base, base + 1, base + 3)] == [0, 1, 1, 0]
    cursor.acknowledge(at(base), 0)
    assert cursor.acknowledged_to == base + 2
    assert cursor.acknowledged_mask(base - 3, 8) == 0b10111111
    cursor.flush()
    again = world.open()
    assert again.acknowledged_mask(base, 1_000) == every_other | 2


def test_bits_and_bitmaps_are_inverse() -> None:
    runs = (1 << 262_144) - 1 ^ 0b1011 << 200_000
    for mask in (1, 0b1011, 1 << 63, 1 << 64, 1 << 70, (1 << 262_144) - 1, runs, int("01" * 70_000, 2) << 3):
        assert mask_of(bitmap_of(mask)) == mask
    assert list(bitmap_of(0b1011 << 62)) == [62, 63, 65]
    assert list(bitmap_of((1 << 64) - 1 << 5)) == list(range(5, 69))
    assert (mask_of(BitMap()), bitmap_of(0)) == (0, BitMap())


def test_cursors_are_written_in_one_transaction_and_one_that_was_moved_keeps_no_other(world: World) -> None:
    cursors = []
    for name in ("a", "b", "c"):
        world.metadata.cursors.create(world.topic.id, name, None, {})
        cursors.append(world.open(name=name))
        cursors[-1].acknowledge(at(3), 0)
    world.metadata.cursors.reset(world.topic.id, "b", None)
    seen = world.statements()
    errors = flush_together(world.metadata, cursors)
    assert [statement for statement, _ in seen].count("BEGIN IMMEDIATE") <= 1
    assert list(errors) == [cursors[1]]
    assert isinstance(errors[cursors[1]], Fenced)
    marks = [world.metadata.cursors.get(world.topic.id, name).mark_delete for name in ("a", "b", "c")]
    assert marks == [at(3), None, at(3)]


def test_a_group_reads_no_topic_and_a_mark_is_located_beside_it(world: World) -> None:
    world.metadata.cursors.create(world.topic.id, "a", None, {})
    cursor = world.open(name="a")
    for offset in (2, 3, 9, 1, 0):
        cursor.acknowledge(at(offset))
    assert cursor.lacks_mark_delete_id
    assert flush_together(world.metadata, [cursor]) == {}
    assert world.located == []
    assert world.metadata.cursors.get(world.topic.id, "a").mark_delete == at(0)
    assert world.open(name="a").acknowledged_to == 3
    cursor.resolve_mark_delete_id()
    assert (world.located, cursor.lacks_mark_delete_id) == ([3], False)
    flush_together(world.metadata, [cursor])
    assert world.metadata.cursors.get(world.topic.id, "a").mark_delete == at(3)


def test_a_mark_that_is_being_located_holds_up_no_flush_and_undoes_no_reset(world: World) -> None:
    """An object that hangs must not keep acknowledgements from being written."""
    during: list[Callable[[], object]] = []

    def locating(offset: int) -> LogPosition:
        during.pop()()
        return at(offset)

    world.metadata.cursors.create(world.topic.id, "a", None, {})
    cursor = Cursor(world.metadata, world.topic, "a", locating, world.ends)
    for offset in (2, 3, 9, 1, 0):
        cursor.acknowledge(at(offset))
    during.append(lambda: flush_together(world.metadata, [cursor]) == {} or pytest.fail("it waits"))
    cursor.resolve_mark_delete_id()
    assert world.open(name="a").is_acknowledged(9)
    for offset in (6, 7, 5, 4):
        cursor.acknowledge(at(offset))
    during.append(lambda: cursor.reset(at(1)))
    cursor.resolve_mark_delete_id()
    assert cursor.mark_delete == at(1)


def test_a_group_that_cannot_be_written_is_written_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.metadata.cursors.create(world.topic.id, "a", None, {})
    cursor = world.open(name="a")
    cursor.acknowledge(at(5))
    with monkeypatch.context() as patch:
        patch.setattr(world.metadata.cursors, "merge", raising(Unavailable("down", "wait")))
        with pytest.raises(Unavailable):
            flush_together(world.metadata, [cursor])
    assert flush_together(world.metadata, [cursor]) == {}
    assert world.open(name="a").is_acknowledged(5)


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise error

    return call
