"""Memory for frames that arrive: bounded in all and for a role, granted in order, taken from what stalls."""

from __future__ import annotations

from api.pulsar.receive_buffers import STALLED_MS, ReceiveBuffers
from tests.clocks import ManualClock

MOST = 100


class Receiving:
    def __init__(self, buffers: ReceiveBuffers, role: str, size: int) -> None:
        self.buffers = buffers
        self.ended = ""
        self.may_read = buffers.reserve(self, role, size)

    def granted(self) -> None:
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
    buffers.end_stalled()
    assert not stalled[0].ended, "it keeps no other frame waiting"
    waiting = Receiving(buffers, "a", 50)
    buffers.end_stalled()
    assert "50 bytes has not arrived" in stalled[0].ended
    assert waiting.may_read
