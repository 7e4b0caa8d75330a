"""Time, as a component that is handed in.

What is written down, compared or waited for goes by a `Clock` that is handed in; tests hand in one that they move by
hand. Only what decides nothing has its own time: the rate of heartbeats, the rate of progress output.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time in milliseconds since the Unix epoch, and waiting."""

    def now_ms(self) -> int:
        """The wall time, in milliseconds since the Unix epoch."""
        ...

    def wait(self, seconds: float) -> None:
        """Let `seconds` go by."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)
