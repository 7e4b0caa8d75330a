"""The newest entries in memory: without a gap, and within a bound that topics share."""

from __future__ import annotations

import pytest

from api.broker.serving import page_budget
from api.broker.serving.tail import READ_BYTES, Tail, TailBudget
from storage.log.segment import AppendResult
from storage.model import LogPosition, MessageId


@pytest.fixture(autouse=True)
def only_data_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of these tests are of the entries' data."""
    monkeypatch.setattr(page_budget, "ENTRY_BYTES", 0)


def appended(offset: int, size: int = 10, messages: int = 1) -> tuple[bytes, AppendResult]:
    first = LogPosition(offset, MessageId(3, offset, -1, 0 if messages > 1 else -1))
    return b"x" * size, AppendResult(first, messages)


def offsets(tail: Tail, start: int) -> list[int] | None:
    entries = tail.read(start)
    return None if entries is None else [entry.offset for entry in entries]


def test_entries_are_read_from_any_of_them_on() -> None:
    tail = Tail(TailBudget(1000))
    tail.append([appended(5), appended(6, messages=3), appended(9)])
    assert offsets(tail, 5) == [5, 6, 9]
    assert offsets(tail, 6) == [6, 9]
    assert offsets(tail, 10) == []
    assert offsets(tail, 7) is None  # in the middle of a batch
    assert offsets(tail, 4) is None
    assert offsets(tail, 11) is None


def test_what_does_not_continue_begins_a_new_piece() -> None:
    tail = Tail(TailBudget(1000))
    tail.append([appended(5)])
    tail.append([appended(8)])
    assert offsets(tail, 5) is None
    assert offsets(tail, 8) == [8]


def test_what_is_there_is_not_taken_twice() -> None:
    tail = Tail(TailBudget(1000))
    tail.append([appended(5), appended(6)])
    tail.append([appended(5), appended(6), appended(7)])
    assert offsets(tail, 5) == [5, 6, 7]


def test_one_read_has_a_bound_but_gives_something() -> None:
    tail = Tail(TailBudget(10 * READ_BYTES))
    tail.append([appended(0, 2 * READ_BYTES), appended(1, READ_BYTES // 2), appended(2, READ_BYTES // 2)])
    assert offsets(tail, 0) == [0]
    assert offsets(tail, 1) == [1, 2]


def test_the_oldest_go_first() -> None:
    tail = Tail(TailBudget(100))
    tail.append([appended(offset, 30) for offset in range(5)])
    assert offsets(tail, 1) is None
    assert offsets(tail, 2) == [2, 3, 4]


def test_an_entry_that_is_larger_than_the_bound_leaves_the_end_known() -> None:
    tail = Tail(TailBudget(100))
    tail.append([appended(0, 500)])
    assert offsets(tail, 0) is None
    assert offsets(tail, 1) == []


def test_the_topic_that_got_nothing_for_longest_gives_way() -> None:
    budget = TailBudget(100)
    first, second, third = (Tail(budget) for _ in range(3))
    first.append([appended(0, 40)])
    second.append([appended(0, 40)])
    first.append([appended(1, 10)])
    third.append([appended(0, 40)])
    assert offsets(second, 0) is None
    assert offsets(first, 0) == [0, 1]
    assert offsets(third, 0) == [0]


@pytest.mark.parametrize("cleared", [True, False])
def test_a_cleared_tail_leaves_its_room_to_others(cleared: bool) -> None:
    budget = TailBudget(100)
    first, second = Tail(budget), Tail(budget)
    first.append([appended(0, 60)])
    second.append([appended(0, 40)])
    if cleared:
        first.clear()
        assert offsets(first, 0) is None
    second.append([appended(1, 60)])
    assert offsets(second, 0) == [0, 1]
    assert offsets(first, 0) is None


def test_small_entries_count_with_the_memory_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit for each message, and what Python needs for an entry."""
    monkeypatch.undo()
    tail = Tail(TailBudget(1 << 20))
    tail.append([appended(offset << 18, 33, messages=1 << 18) for offset in range(100)])
    assert offsets(tail, 50 << 18) is None
    assert offsets(tail, 99 << 18) == [99 << 18]
    tail.clear()
    tail.append([appended(offset, 1) for offset in range(10_000)])
    assert offsets(tail, 0) is None
    assert offsets(tail, 9_999) == [9_999]
