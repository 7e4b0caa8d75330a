"""Entries that wait: where their acknowledgement begins, what stays in memory, what removes them."""

from __future__ import annotations

import pytest

from api.broker.serving import delayed, waiting
from api.broker.serving.delayed import TICK_MS
from api.broker.serving.pending_acks import PendingAck
from api.broker.serving.waiting import WaitingEntries
from tests.unit.api.broker.serving.consumers import entry


def returned(offset: int) -> PendingAck:
    return PendingAck((1, offset), offset, offset, 1, False, 1, None)


def test_a_held_entry_keeps_its_content_and_the_offset_where_it_acknowledges() -> None:
    entries = WaitingEntries()
    held = entry(7, data=b"four")
    entries.add_held(held, "chunk", ack_start=5)
    assert entries.entries_in_memory(7) == [held]
    assert (entries.ack_start(7), entries.bytes) == (5, 4)
    assert entries.queue.blocks("chunk")
    assert entries.drop(7) is None
    assert (entries.ack_start(7), entries.bytes, len(entries.queue)) == (7, 0, 0)


def test_held_entries_beyond_the_bound_and_those_whose_memory_is_released_are_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "HELD_BYTES", 6)
    monkeypatch.setattr(waiting, "MAX_HELD", 3)
    entries = WaitingEntries()
    for offset in range(3):
        assert not entries.is_full
        entries.add_held(entry(offset, data=b"four"), offset, ack_start=offset)
    assert entries.is_full
    assert [bool(entries.entries_in_memory(offset)) for offset in range(3)] == [True, False, False]
    entries.release_memory()
    assert (entries.bytes, entries.entries_in_memory(0), len(entries.queue)) == (0, (), 3)
    entries.drop(0)
    assert entries.bytes == 0
    assert not entries.is_full


def test_a_returned_entry_is_gone_when_it_is_acknowledged_or_delivered() -> None:
    entries = WaitingEntries()
    first, second = returned(1), returned(2)
    entries.add_returned(first)
    entries.add_returned(second)
    entries.cancel_redelivery(1)
    entries.cancel_redelivery(3)
    assert (1 in entries.queue, 2 in entries.queue) == (False, True)
    assert entries.drop(2) is second


def test_the_page_that_was_read_for_redelivery_serves_until_no_entry_waits() -> None:
    entries = WaitingEntries()
    for offset in (1, 3):
        entries.add_returned(returned(offset))
    page = [entry(offset, data=b"x") for offset in (1, 2, 3)]
    entries.set_replay_page(page)
    assert entries.entries_in_memory(2) == page[1:]
    assert entries.entries_in_memory(4) == ()
    entries.drop(1)
    assert entries.entries_in_memory(3) == page[2:]
    entries.drop(3)
    assert (entries.entries_in_memory(3), entries.bytes) == ((), 0)


def test_a_delayed_entry_is_queued_when_it_is_due() -> None:
    entries = WaitingEntries()
    entries.add_delayed(4, 10 * TICK_MS, ack_start=2)
    assert (len(entries.delayed), entries.delayed.next_due_ms, len(entries.queue)) == (1, 10 * TICK_MS, 0)
    entries.queue_due(10 * TICK_MS - 1)
    assert len(entries.queue) == 0
    entries.queue_due(10 * TICK_MS)
    assert (len(entries.delayed), 4 in entries.queue, entries.ack_start(4)) == (0, True, 2)
    entries.clear()
    assert (len(entries.queue), entries.ack_start(4)) == (0, 4)


def test_a_step_queues_a_bounded_number_of_due_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """X6: a million that were due together held the event loop for 0.4 s."""
    monkeypatch.setattr(delayed, "DUE_AT_ONCE", 4)
    entries = WaitingEntries()
    for offset in range(6):
        entries.add_delayed(offset, 10 * TICK_MS, offset)
    for offset in range(6, 12):
        entries.add_delayed(offset, 11 * TICK_MS, offset)
    steps = []
    while (due := entries.delayed.next_due_ms) is not None and due <= 20 * TICK_MS:
        before = len(entries.queue)
        entries.queue_due(20 * TICK_MS)
        steps.append(len(entries.queue) - before)
    assert (steps, len(entries.delayed)) == ([4, 4, 4, 0], 0)
    entries.add_delayed(20, 10 * TICK_MS, 20)
    entries.add_delayed(21, 12 * TICK_MS, 21)
    entries.queue_due(11 * TICK_MS)
    assert (20 in entries.queue, entries.delayed.next_due_ms) == (True, 12 * TICK_MS)


def test_due_entries_that_are_not_queued_yet_are_removed_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "DUE_AT_ONCE", 1)
    entries = WaitingEntries()
    for offset in range(3):
        entries.add_delayed(offset, TICK_MS, offset)
    entries.queue_due(TICK_MS)
    entries.clear()
    entries.queue_due(TICK_MS)
    assert (len(entries.delayed), entries.delayed.next_due_ms, len(entries.queue)) == (0, None, 0)
