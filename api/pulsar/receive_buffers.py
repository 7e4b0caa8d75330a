"""Memory for large frames while they arrive: bounded for all connections together, and for those of one role.

A frame up to `SMALL_BYTES` needs no grant. A larger frame needs a grant of its size. While it waits for one, its
connection reads nothing, and the client waits as for a slow network. One role, or one address without a role, holds at
most half of the memory, so it cannot keep others from sending. Roles have their turns, and a frame whose turn it is
waits until it fits. A release looks at no more frames than it grants, and one. A connection is closed if its frame is
incomplete `STALLED_MS` after the grant while other frames wait. Must not know: sockets, commands.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from api.broker.shares import Shares
from storage.clock import Clock

SMALL_BYTES = 64 << 10
STALLED_MS = 30_000


class Receiver(Protocol):
    """A connection on which a frame arrives."""

    def continue_reading(self) -> None:
        """Read from the socket again: the memory for the frame is reserved now."""

    def cut_off(self, reason: str) -> None:
        """End the connection, and log the reason."""


@dataclass(frozen=True)
class _Grant:
    """Memory that was granted to a receiver of a role: bytes, and time in milliseconds."""

    role: str
    size: int
    at_ms: int


_Queue = OrderedDict[Receiver, int]
"""Receivers that wait, with the sizes of their frames."""


class ReceiveBuffers:
    """The memory that connections reserve for large frames while they arrive. For one event loop."""

    def __init__(self, max_bytes: int, clock: Clock) -> None:
        """`max_bytes`: of all grants together; a larger frame arrives alone."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._grants: dict[Receiver, _Grant] = {}
        self._of_role = Shares[str]()
        self.reserved_bytes = 0
        """The bytes of all grants."""
        self._waiting: dict[Receiver, str] = {}
        """The role of each receiver that waits."""
        self._ready: OrderedDict[str, _Queue] = OrderedDict()
        """The waiting frames of roles that may have more memory. The first frame of the first role does not fit yet."""
        self._full: dict[str, _Queue] = {}
        """Those of roles that have to release some first."""

    def reserve(self, receiver: Receiver, role: str, size: int) -> bool:
        """Grant memory for a frame of `size` bytes. Return False if the receiver has to wait; its
        `continue_reading` is called later."""
        may_have_more = role not in self._full and self._role_may_reserve(role, size)
        if not self._ready and may_have_more and self._fits_in_total(size):
            self._grant(receiver, role, size)
            return True
        queue = self._full.get(role) or self._ready.get(role)
        if queue is None:
            queue = (self._ready if may_have_more else self._full)[role] = OrderedDict()
        queue[receiver] = size
        self._waiting[receiver] = role
        return False

    def release(self, receiver: Receiver) -> None:
        """Release the memory of a receiver, or end its wait, and grant memory to others that wait. Idempotent."""
        grant = self._grants.pop(receiver, None)
        if grant is not None:
            role = grant.role
            self.reserved_bytes -= grant.size
            self._of_role.add(role, -grant.size)
        elif receiver in self._waiting:
            role = self._waiting[receiver]
            self._remove_waiting(receiver)
        else:
            return
        if role in self._full:
            self._ready[role] = self._full.pop(role)
        self._grant_waiting()

    def close_stalled_connections(self) -> None:
        """Close connections whose frame is incomplete `STALLED_MS` after its grant, if other frames wait for memory."""
        if not self._waiting:
            return
        oldest = self._clock.now_ms() - STALLED_MS
        for receiver, grant in list(self._grants.items()):
            if grant.at_ms <= oldest:
                receiver.cut_off(
                    f"a frame of {grant.size} bytes has not arrived within {STALLED_MS} ms, and other frames wait for "
                    "its memory"
                )

    def _grant_waiting(self) -> None:
        while self._ready:
            role, queue = next(iter(self._ready.items()))
            receiver, size = next(iter(queue.items()))
            if not self._role_may_reserve(role, size):
                self._full[role] = self._ready.pop(role)
            elif self._fits_in_total(size):
                self._ready.move_to_end(role)
                self._remove_waiting(receiver)
                self._grant(receiver, role, size)
                receiver.continue_reading()
            else:
                return

    def _remove_waiting(self, receiver: Receiver) -> None:
        role = self._waiting.pop(receiver)
        queues = self._full if role in self._full else self._ready
        del queues[role][receiver]
        if not queues[role]:
            del queues[role]

    def _role_may_reserve(self, role: str, size: int) -> bool:
        size_of_role = self._of_role.get(role, 0)
        return not size_of_role or size_of_role + size <= self._max_bytes // 2

    def _fits_in_total(self, size: int) -> bool:
        return not self.reserved_bytes or self.reserved_bytes + size <= self._max_bytes

    def _grant(self, receiver: Receiver, role: str, size: int) -> None:
        self._grants[receiver] = _Grant(role, size, self._clock.now_ms())
        self._of_role[role] += size
        self.reserved_bytes += size
