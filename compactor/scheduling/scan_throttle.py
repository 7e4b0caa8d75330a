"""Throttle of scans over very many topics in a process that also answers requests.

All threads of a process share one interpreter, so a thread that computes for a second delays every answer by a second.
A scan over all topics therefore works on one topic or page at a time, and then rests longer than it worked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from storage.clock import Clock

RESTS = 2
"""Length of a rest, relative to the time of the work before it."""
TOPICS_AT_ONCE = 100
"""Number of topics per page: some milliseconds of work."""

Item = TypeVar("Item")
Throttle = Callable[[float], object]
"""A function that waits at most the given number of seconds."""


def throttle_items(items: Iterable[Item], clock: Clock, throttle: Throttle) -> Iterator[Item]:
    """Yield the items. After each, `throttle` waits `RESTS` times as long as the item took to produce and to handle."""
    start = clock.now_ms()
    for item in items:
        yield item
        throttle(RESTS * max(0, clock.now_ms() - start) / 1000)
        start = clock.now_ms()
