"""Entries that wait for their delivery: again, later, or for their own consumer."""

from __future__ import annotations

import random

from api.broker.serving.delayed import TICK_MS, DelayedEntries
from api.broker.serving.draining import DrainingHashes
from api.broker.serving.redelivery import SEARCHED_GROUPS, WaitingOffsets
from tests.unit.api.broker.serving.consumers import consumer


def test_the_lowest_offset_of_the_groups_that_can_go_comes_first() -> None:
    queue = WaitingOffsets()
    for offset, group in ((5, 1), (3, 2), (9, 1), (7, None), (3, 9)):
        queue.add(offset, group)
    assert len(queue) == 4
    assert queue.next(lambda _: True) == 3
    assert queue.next(lambda group: group != 2) == 5
    assert queue.next(lambda group: group is None) == 7
    assert queue.next(lambda _: False) is None
    assert [queue.is_next(offset) for offset in (3, 5, 9, 7, 8)] == [True, True, False, True, False]
    assert [queue.blocks(group) for group in (1, 2, 3, None)] == [True, True, False, False]
    queue.remove(5)
    queue.remove(5)
    assert queue.is_next(9)
    queue.remove(9)
    assert not queue.blocks(1)


def test_a_search_looks_at_some_groups_and_the_next_one_continues() -> None:
    """Entries of 50,000 keys may wait for a consumer that takes none, and the loop must not look at all in a turn."""
    queue, count = WaitingOffsets(), 5 * SEARCHED_GROUPS + 1
    for group in range(count):
        queue.add(group, group)
    looked_at: list[object] = []

    def can_go(group: object) -> bool:
        looked_at.append(group)
        return group == count - 1

    searches = 1
    while (offset := queue.next(can_go)) is None:
        assert queue.has_unchecked_groups
        assert len(looked_at) == SEARCHED_GROUPS * searches
        searches += 1
    assert (offset, searches) == (count - 1, 6)
    assert not queue.has_unchecked_groups
    looked_at.clear()
    queue.remove(count - 1)
    while queue.next(can_go) is None and queue.has_unchecked_groups:
        pass
    assert set(looked_at) == set(range(count - 1)), "the end of a search: no group can go"


def test_a_search_that_is_under_way_sees_what_changes() -> None:
    queue, count = WaitingOffsets(), 2 * SEARCHED_GROUPS
    for group in range(count):
        queue.add(group, group)
    assert queue.next(lambda _: False) is None
    queue.recheck_groups()  # group 0 can go from here on
    assert queue.next(lambda group: group == 0) is None
    assert queue.has_unchecked_groups
    assert queue.next(lambda group: group == 0) == 0


def test_a_group_keeps_its_order_whatever_is_removed() -> None:
    rnd, queue = random.Random(7), WaitingOffsets()
    expected: dict[int, list[int]] = {}
    for offset in rnd.sample(range(10_000), 500):
        group = rnd.randrange(5)
        queue.add(offset, group)
        expected.setdefault(group, []).append(offset)
    for group, offsets in expected.items():
        for offset in rnd.sample(offsets, len(offsets) // 2):
            queue.remove(offset)
            offsets.remove(offset)
        order = []
        while (offset_ := queue.next(lambda item, group=group: item == group)) is not None:  # type: ignore[misc]
            order.append(offset_)
            queue.remove(offset_)
        assert order == sorted(offsets)
    assert not len(queue)


def test_what_waits_without_a_group_can_join_one() -> None:
    queue = WaitingOffsets()
    queue.add(4, None)
    assert not queue.set_group_if_missing(4, None)
    assert queue.set_group_if_missing(4, 11)
    assert not queue.set_group_if_missing(4, 12)
    assert queue.blocks(11)
    assert queue.next(lambda group: group == 11) == 4


def test_entries_are_due_in_the_order_of_their_times_and_never_before() -> None:
    delayed = DelayedEntries()
    delayed.add(9_010, 1)
    delayed.add(3_000, 2)
    delayed.add(3_000, 2)
    delayed.add(3_000 + TICK_MS, 1 << 40)
    assert (len(delayed), delayed.next_due_ms) == (3, 3_000)
    assert delayed.pop_due(2_999) == []
    assert delayed.pop_due(3_000) == [2]
    assert delayed.pop_due(9_010 + TICK_MS) == [1 << 40, 1]
    assert (len(delayed), delayed.next_due_ms) == (0, None)
    delayed.add(1, 1)
    delayed.clear()
    assert (len(delayed), delayed.pop_due(10)) == (0, [])


def test_a_hash_stays_with_its_consumer_until_its_entries_are_settled() -> None:
    owners, first, second = DrainingHashes(), consumer("a"), consumer("b")
    assert owners.allows(5, first)
    owners.add_entry(5, first)
    owners.add_entry(5, first)
    assert (owners.allows(5, first), owners.allows(5, second), owners.allows(6, second)) == (True, False, True)
    owners.subtract_entry(5)
    assert not owners.allows(5, second)
    owners.subtract_entry(5)
    assert owners.allows(5, second)
    owners.subtract_entry(5)
    assert owners.allows(5, first)
