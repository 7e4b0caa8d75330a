"""Received bytes of a connection: their frames are handled in turns, and reading pauses while frames wait.

The connection reads nothing from its socket while frames wait for their turn (turns.py), while a large frame waits for
memory (receive_buffers.py), and while the session holds it back: too many entries wait to be appended, or too many
bytes of requests are under way. So a connection has at most one frame and the last piece of its bytes in memory. Must
not know: commands.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import Protocol

from api.pulsar.frames import Frame, FrameParser, MalformedFrame
from api.pulsar.receive_buffers import SMALL_BYTES, ReceiveBuffers
from api.pulsar.turns import TurnQueue

LOG = logging.getLogger(__name__)


class ClientConnection(Protocol):
    """The part of a client's connection that IncomingFrames uses."""

    @property
    def role(self) -> str: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def address(self) -> str: ...

    def handle_frame(self, frame: Frame) -> None:
        """Handle the command of a frame. Raise MalformedFrame for one that must end the connection."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def cut_off(self, reason: str) -> None: ...

    def close(self) -> None: ...


class IncomingFrames:
    """The received bytes of one connection: handles their frames in turns (turns.py), and pauses reading meanwhile."""

    def __init__(
        self,
        client: ClientConnection,
        turns: TurnQueue,
        buffers: ReceiveBuffers,
        max_frame_bytes: int,
        kinds: Container[int],
    ) -> None:
        """`kinds`: the types of commands that are expected."""
        self._client = client
        self._turns = turns
        self._buffers = buffers
        self._frames = FrameParser(max_frame_bytes, kinds)
        self._holds: set[str] = set()
        self._is_working = False
        self._expected_bytes = 0
        self._waits_for_memory = False
        self._charged = 0.0
        self.is_paused = False

    def accept_commands(self, max_frame_bytes: int, kinds: Container[int]) -> None:
        """Accept frames up to `max_frame_bytes` with commands of the types `kinds` from now on."""
        self._frames.accept_commands(max_frame_bytes, kinds)

    def receive_bytes(self, data: memoryview) -> None:
        """Add received bytes, and handle their frames at once or in turn. The caller may change the bytes later."""
        self._frames.add_bytes(data)
        try:
            self._handle_frames_now_or_in_turn()
        finally:
            self._frames.copy_unread_bytes()

    def charge(self, seconds: float) -> None:
        """Add `seconds` to the time of the present frame: its command costs the event loop this time later."""
        self._charged += seconds

    def hold_requests(self, reason: str) -> None:
        """Handle no frame until `resume_requests` with the same reason."""
        self._holds.add(reason)
        self._update_reading()

    def resume_requests(self, reason: str) -> None:
        """Handle frames again, unless there is another reason to hold them."""
        if reason in self._holds:
            self._holds.discard(reason)
            self._handle_frames_now_or_in_turn()

    def continue_reading(self) -> None:
        """Read from the socket again: the memory for a large frame is reserved now."""
        self._waits_for_memory = False
        self._update_reading()

    def cut_off(self, reason: str) -> None:
        """End the connection, and log the reason."""
        self._client.cut_off(reason)

    def end(self) -> None:
        """Drop received bytes, and give up turn and memory: the connection has ended."""
        self._turns.remove(self)
        self._buffers.release(self)
        self._frames.clear()

    # Calls of TurnQueue

    @property
    def role(self) -> str:
        return self._client.role

    @property
    def has_frames(self) -> bool:
        return not self._holds and not self._client.is_closed and self._frames.has_complete_frame

    def handle_frames(self, seconds: float) -> float:
        """Handle complete frames for about `seconds`. Return the seconds that were used or charged."""
        started = self._turns.now()
        self._is_working, self._charged = True, 0.0
        used = 0.0
        try:
            while used < seconds and not self._holds and not self._client.is_closed:
                frame = self._frames.take_frame()
                if frame is None:
                    break
                if self._expected_bytes:
                    self._reserve_frame_memory(
                        0
                    )  # the next frame needs a grant of its own, also if it has the same size
                self._client.handle_frame(frame)
                used = self._turns.now() - started + self._charged
        except MalformedFrame as error:
            self._client.cut_off(str(error))
        except Exception:
            LOG.exception("a command of %s failed, and its connection is closed", self._client.address)
            self._client.close()
        finally:
            self._is_working = False
        self._update_reading()
        return used

    # Reading

    def _handle_frames_now_or_in_turn(self) -> None:
        """Handle complete frames now or in turn, and update reading. Do nothing while a frame is handled."""
        if not self._is_working and not self._client.is_closed:
            self._turns.handle_now_or_enqueue(self)
            self._update_reading()

    def _update_reading(self) -> None:
        """Reserve memory for the incomplete frame, and pause or resume reading from the socket."""
        if self._client.is_closed or self._is_working:
            return
        expected = self._frames.incomplete_frame_full_size
        if expected != self._expected_bytes:
            self._reserve_frame_memory(expected)
        pauses = bool(self._holds) or self._waits_for_memory or self.has_frames
        if pauses != self.is_paused:
            self.is_paused = pauses
            (self._client.pause_reading if pauses else self._client.resume_reading)()

    def _reserve_frame_memory(self, size: int) -> None:
        """Release the memory of the previous frame, and reserve memory for a frame of `size` bytes."""
        self._expected_bytes = size
        self._buffers.release(self)
        self._waits_for_memory = size > SMALL_BYTES and not self._buffers.reserve(self, self.role, size)
