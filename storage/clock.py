"""Time, as a component that callers pass.

Every time that is stored, compared or waited for comes from a `Clock` that callers pass; tests pass one that they set.
Only the rates of heartbeats and of progress output, which decide nothing, use the machine's time directly.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time in milliseconds since the Unix epoch, and waiting."""

    def now_ms(self) -> int:
        """Return the wall time, in milliseconds since the Unix epoch."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def is_due(last_ms: int | None, interval_ms: int, now_ms: int) -> bool:
    """Return whether `interval_ms` have passed since `last_ms`, at `now_ms`.

    Also True if `last_ms` is None (never), or in the future: the clock was set back.
    """
    return last_ms is None or not last_ms <= now_ms < last_ms + interval_ms
