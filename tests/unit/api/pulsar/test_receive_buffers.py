"""Memory for frames that arrive: bounded in all and for a role, continue_reading in order, taken from what stalls."""

from __future__ import annotations

import pytest

from api.pulsar.receive_buffers import STALLED_MS, ReceiveBuffers
from tests.clocks import ManualClock

MOST = 100


class Receiving:
    def __init__(self, buffers: ReceiveBuffers, role: str, size: int) -> None:
        self.buffers = buffers
        self.ended = ""
        self.may_read = buffers.reserve(self, role, size)

    def continue_reading(self) -> None:
        self.may_read = True

    def cut_off(self, reason: str) -> None:
        self.ended = reason
        self.buffers.release(self)


def test_frames_that_arrive_have_no_more_memory_than_there_is() -> None:
    buffers = ReceiveBuffers(MOST, ManualClock())
    receiving = [Receiving(buffers, f"role {number % 10}", 20) for number in range(100)]
    assert sum(item.may_read for item in receiving) == 5
    assert buffers.reserved_bytes == MOST
    for item in receiving:
        assert item.may_read or item is not receiving[0]
        buffers.release(item)
    assert buffers.reserved_bytes == 0


def test_one_role_holds_at_most_half() -> None:
    buffers = ReceiveBuffers(MOST, ManualClock())
    attack = [Receiving(buffers, "attacker", 20) for _ in range(100)]
    assert buffers.reserved_bytes <= MOST // 2
    assert Receiving(buffers, "other", 20).may_read
    buffers.release(attack[0])
    assert [item.may_read for item in attack[:4]] == [True, True, True, False]


def test_a_frame_larger_than_a_half_fits_alone() -> None:
    buffers = ReceiveBuffers(MOST, ManualClock())
    assert Receiving(buffers, "a", 80).may_read
    second = Receiving(buffers, "b", 80)
    assert not second.may_read


def test_a_frame_that_stalls_ends_while_others_wait() -> None:
    clock = ManualClock()
    buffers = ReceiveBuffers(MOST, clock)
    stalled = [Receiving(buffers, "a", 50) for _ in range(1)]
    clock.advance(STALLED_MS)
    buffers.close_stalled_connections()
    assert not stalled[0].ended, "it keeps no other frame waiting"
    waiting = Receiving(buffers, "a", 50)
    buffers.close_stalled_connections()
    assert "50 bytes has not arrived" in stalled[0].ended
    assert waiting.may_read


def test_a_frame_waits_for_none_that_came_later() -> None:
    buffers = ReceiveBuffers(MOST, ManualClock())
    first, large, small = (Receiving(buffers, role, size) for role, size in (("a", 60), ("b", 80), ("c", 20)))
    assert (first.may_read, large.may_read, small.may_read) == (True, False, False)
    buffers.release(first)
    assert (large.may_read, small.may_read) == (True, True)


def test_a_frame_that_waits_and_ends_keeps_no_other_one_waiting() -> None:
    buffers = ReceiveBuffers(MOST, ManualClock())
    _, large, small = (Receiving(buffers, role, size) for role, size in (("a", 60), ("b", 80), ("c", 20)))
    buffers.release(large)
    assert small.may_read


def test_roles_have_their_turns() -> None:
    buffers = ReceiveBuffers(MOST, ManualClock())
    first = Receiving(buffers, "first", MOST)
    many = [Receiving(buffers, "many", 20) for _ in range(3)]
    other = Receiving(buffers, "other", 60)
    buffers.release(first)
    assert [item.may_read for item in (*many, other)] == [True, True, False, True]


class CountedRole(str):
    """Counts how often it is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        CountedRole.lookups += 1
        return super().__hash__()


@pytest.mark.parametrize("size", [20, MOST])
def test_a_release_looks_at_no_frame_that_it_cannot_grant(size: int) -> None:
    """The frames are of a role that has its half, or of others and do not fit."""
    buffers = ReceiveBuffers(MOST, ManualClock())
    continue_reading = [Receiving(buffers, CountedRole("a"), 20) for _ in range(2)]
    for number in range(1_000):
        assert not Receiving(buffers, CountedRole("a" if size == 20 else number), size).may_read
    CountedRole.lookups = 0
    buffers.release(continue_reading[0])
    assert 0 < CountedRole.lookups < 50
