"""Received bytes: each large frame needs a grant of its own."""

from __future__ import annotations

from api.pulsar.frames import Frame, build_frame
from api.pulsar.incoming import IncomingFrames
from api.pulsar.receive_buffers import STALLED_MS, ReceiveBuffers
from api.pulsar.turns import TurnQueue
from tests.clocks import ManualClock

SIZE = 700_000
HEAD = 100


class Client:
    """A connection that notes its frames, whether it reads, and why it was cut off."""

    address = "test"
    is_closed = False

    def __init__(self, role: str, buffers: ReceiveBuffers) -> None:
        self.role = role
        self.frames = 0
        self.reads = True
        self.ended = ""
        turns = TurnQueue(lambda _: None, float)
        self.incoming = IncomingFrames(self, turns, buffers, 2 * SIZE, range(100))

    def handle_frame(self, _: Frame) -> None:
        self.frames += 1

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def cut_off(self, reason: str) -> None:
        self.ended = reason

    def close(self) -> None:
        self.is_closed = True


def test_a_stream_of_frames_of_one_size_keeps_no_other_client_waiting() -> None:
    clock = ManualClock()
    buffers = ReceiveBuffers(1_000_000, clock)
    busy, other = Client("busy", buffers), Client("other", buffers)
    frame = b"".join(build_frame(b"\x08\x06" + bytes(SIZE)))
    busy.incoming.receive_bytes(memoryview(frame[:HEAD]))
    other.incoming.receive_bytes(memoryview(frame[:HEAD]))
    assert (busy.reads, other.reads) == (True, False)
    clock.advance(STALLED_MS - 1)
    busy.incoming.receive_bytes(memoryview(frame[HEAD:] + frame[:HEAD]))
    assert (busy.frames, busy.reads, other.reads) == (1, False, True)
    clock.advance(STALLED_MS - 1)
    buffers.close_stalled_connections()
    assert not busy.ended
    other.incoming.receive_bytes(memoryview(frame[HEAD:]))
    assert (other.frames, busy.reads) == (1, True)
