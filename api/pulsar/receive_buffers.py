"""Memory for large frames while they arrive: bounded for all connections together, and for those of one role.

A frame up to `SMALL_BYTES` needs no grant. A larger frame needs a grant of its size. While it waits for one, its
connection reads nothing, and the client waits as for a slow network. One role, or one address without a role, holds at
most half of the memory, so it cannot keep others from sending. A connection is closed if its frame is incomplete
`STALLED_MS` after the grant while other frames wait. Must not know: sockets, commands.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Protocol

from storage.clock import Clock

SMALL_BYTES = 64 << 10
STALLED_MS = 30_000


class Receiver(Protocol):
    """A connection on which a frame arrives."""

    def granted(self) -> None:
        """Continue to read: the memory for the frame is reserved."""

    def cut_off(self, reason: str) -> None:
        """End the connection."""


@dataclass(frozen=True)
class _Grant:
    role: str
    size: int
    at_ms: int


class ReceiveBuffers:
    """The memory of all connections. For one event loop."""

    def __init__(self, max_bytes: int, clock: Clock) -> None:
        """`max_bytes`: of all grants together; a larger frame arrives alone."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._grants: dict[Receiver, _Grant] = {}
        self._of_role: Counter[str] = Counter()
        self.reserved_bytes = 0
        """The bytes of all grants."""
        self._waiting: OrderedDict[Receiver, tuple[str, int]] = OrderedDict()

    def reserve(self, receiver: Receiver, role: str, size: int) -> bool:
        """Grant memory for a frame. Return False if the receiver has to wait; `granted` is called later."""
        if self._fits(role, size):
            self._grant(receiver, role, size)
            return True
        self._waiting[receiver] = role, size
        return False

    def release(self, receiver: Receiver) -> None:
        """End the grant of a receiver, or its wait, and grant memory to those that wait."""
        self._waiting.pop(receiver, None)
        grant = self._grants.pop(receiver, None)
        if grant is None:
            return
        self.reserved_bytes -= grant.size
        self._of_role[grant.role] -= grant.size
        if not self._of_role[grant.role]:
            del self._of_role[grant.role]
        for waiting, (role, size) in list(self._waiting.items()):
            if self._fits(role, size):
                del self._waiting[waiting]
                self._grant(waiting, role, size)
                waiting.granted()

    def end_stalled(self) -> None:
        """Close connections whose frame does not arrive while other frames wait for memory."""
        if not self._waiting:
            return
        oldest = self._clock.now_ms() - STALLED_MS
        for receiver, grant in list(self._grants.items()):
            if grant.at_ms <= oldest:
                receiver.cut_off(
                    f"a frame of {grant.size} bytes has not arrived within {STALLED_MS} ms, and other frames wait for "
                    "its memory"
                )

    def _fits(self, role: str, size: int) -> bool:
        size_of_role = self._of_role.get(role, 0)
        if not self.reserved_bytes:
            return True
        return self.reserved_bytes + size <= self._max_bytes and (
            size_of_role == 0 or size_of_role + size <= self._max_bytes // 2
        )

    def _grant(self, receiver: Receiver, role: str, size: int) -> None:
        self._grants[receiver] = _Grant(role, size, self._clock.now_ms())
        self._of_role[role] += size
        self.reserved_bytes += size
