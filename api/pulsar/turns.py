"""Turns of connections on the event loop: a flood on one connection delays no other connection and no HTTP request.

A connection handles received frames at once while that takes little time. Otherwise it waits for its turn. In one
iteration of the loop connections handle frames for at most `TURN_SECONDS`: role by role, and connection by connection
of each role, each for `QUANTUM_SECONDS`. Then all other work of the loop runs. So a role with a thousand connections
gets as much of the loop as a role with one. Must not know: frames, sockets.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

TURN_SECONDS = 0.001
QUANTUM_SECONDS = 0.000_25
_WINDOW_SECONDS = 0.004
"""A window of time. In each, all connections together handle frames at once for `TURN_SECONDS`."""


class TurnConnection(Protocol):
    """A connection that takes turns to handle its frames."""

    @property
    def role(self) -> str:
        """The client's role, or its address if it has none."""

    def handle_frames(self, seconds: float) -> float:
        """Handle frames for about `seconds`. Return the seconds that were used."""

    @property
    def has_frames(self) -> bool:
        """Return whether there are frames to handle now."""


class TurnQueue:
    """The queue of connections that wait for a turn to handle their frames, role by role. For one event loop."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], now: Callable[[], float] = time.perf_counter
    ) -> None:
        """`call_soon`: calls a function in the next iteration of the loop; `now`: seconds."""
        self._call_soon = call_soon
        self.now = now
        self._roles: OrderedDict[str, deque[TurnConnection]] = OrderedDict()
        self._queued: dict[TurnConnection, str] = {}
        self._is_scheduled = False
        self._window = 0.0
        self._used = 0.0

    def handle_now_or_enqueue(self, connection: TurnConnection) -> None:
        """Let a connection handle its frames, at once or in its turn. Idempotent while it waits for its turn."""
        if connection in self._queued:
            return
        if not self._roles and self._may_work_at_once():
            self._used += connection.handle_frames(QUANTUM_SECONDS)
        if connection.has_frames:
            self._enqueue(connection)

    def remove(self, connection: TurnConnection) -> None:
        """Remove a connection that has ended from the queue. Idempotent."""
        role = self._queued.pop(connection, None)
        if role is not None:
            self._roles[role].remove(connection)
            if not self._roles[role]:
                del self._roles[role]

    def _may_work_at_once(self) -> bool:
        now = self.now()
        if now - self._window >= _WINDOW_SECONDS:
            self._window, self._used = now, 0.0
        return self._used < TURN_SECONDS

    def _enqueue(self, connection: TurnConnection) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run_turns)
        self._queued[connection] = role = connection.role
        self._roles.setdefault(role, deque()).append(connection)

    def _run_turns(self) -> None:
        """Let queued connections handle frames for about `TURN_SECONDS`; continue in the next iteration of the loop."""
        self._is_scheduled = False
        used = 0.0
        while self._roles and used < TURN_SECONDS:
            role, queue = self._roles.popitem(last=False)
            connection = queue.popleft()
            del self._queued[connection]
            if queue:
                self._roles[role] = queue
            used += connection.handle_frames(QUANTUM_SECONDS)
            if connection.has_frames:
                self._enqueue(connection)
        if self._roles and not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run_turns)
