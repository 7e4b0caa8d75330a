"""Doing something for very many topics beside a service that answers: a little, a rest, a little.

A thread that computes for a second makes every answer of that second late: all threads of a process share one
interpreter. So what goes over all topics goes over them one by one or page by page, and leaves most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from storage.clock import Clock

RESTS = 2
"""Of the time that it takes of a thread, how many times as much it leaves."""
TOPICS_AT_ONCE = 100
"""Topics of a page: some milliseconds of work."""

Item = TypeVar("Item")
Rest = Callable[[float], object]
"""Waits that many seconds, or shorter."""


def paced(items: Iterable[Item], clock: Clock, rest: Rest) -> Iterator[Item]:
    """The items; after each, `rest` waits `RESTS` times as long as making and handling the item took."""
    began = clock.now_ms()
    for item in items:
        yield item
        rest(RESTS * max(0, clock.now_ms() - began) / 1000)
        began = clock.now_ms()
