"""A clock that tests move by hand: no test sleeps, and none checks the wall clock."""

from __future__ import annotations

import threading


class ManualClock:
    """A `storage.clock.Clock`: time stands still until `advance`, or until somebody waits. Thread-safe."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        with self._lock:
            return self._now_ms

    def advance(self, milliseconds: int) -> None:
        """Let `milliseconds` go by at once."""
        with self._lock:
            self._now_ms += milliseconds

    def wait(self, seconds: float) -> None:
        """Returns at once; the time has gone by."""
        self.advance(round(seconds * 1000))
