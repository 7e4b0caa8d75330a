"""Entries with a delivery time (`deliverAt`, `deliverAfter`), by the time at which they are due.

For shared and key-shared subscriptions, as in Pulsar (InMemoryDelayedDeliveryTracker): a Roaring bitmap of offsets for
each tenth of a second. They are in memory only: an entry that was not delivered is not acknowledged, so it is read
again after a restart.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

from pyroaring import BitMap64

TICK_MS = 100
"""An entry is delivered up to this long after its time, and never before it."""
MAX_DELAYED = 1_000_000
"""Entries of one subscription that may wait: a few MiB of bitmaps. Beyond, no entry is read until some are due."""
DUE_AT_ONCE = 1_000
"""Offsets that one step of the event loop takes: a million take 0.4 s."""


class DelayedEntries:
    """The offsets of entries that wait for their delivery time."""

    def __init__(self) -> None:
        self._ticks: dict[int, BitMap64] = {}
        self._order: list[int] = []
        self._count = 0
        self._due: Iterator[int] = iter(())
        """The remaining offsets of the last tick that became due."""
        self._due_tick: int | None = None
        """That tick, while more may be due; None: all that were due are taken."""

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= MAX_DELAYED

    def add(self, due_ms: int, offset: int) -> None:
        """Keep the offset of an entry until its delivery time `due_ms`, in milliseconds since the Unix epoch.
        Idempotent."""
        tick = -(-due_ms // TICK_MS)
        offsets = self._ticks.get(tick)
        if offsets is None:
            offsets = self._ticks[tick] = BitMap64()
            heapq.heappush(self._order, tick)
        if offset not in offsets:
            offsets.add(offset)
            self._count += 1

    @property
    def next_due_ms(self) -> int | None:
        """The time in ms at which the next entry is due; None: no entry waits."""
        if self._due_tick is not None:
            return self._due_tick * TICK_MS
        return self._order[0] * TICK_MS if self._order else None

    def pop_due(self, now_ms: int) -> list[int]:
        """Remove offsets whose delivery time has come, `DUE_AT_ONCE` at most, and return them."""
        due = list(islice(self._due, DUE_AT_ONCE))
        while len(due) < DUE_AT_ONCE and self._order and self._order[0] * TICK_MS <= now_ms:
            self._due_tick = heapq.heappop(self._order)
            self._due = iter(self._ticks.pop(self._due_tick))
            due.extend(islice(self._due, DUE_AT_ONCE - len(due)))
        if len(due) < DUE_AT_ONCE:
            self._due_tick = None
        self._count -= len(due)
        return due

    def clear(self) -> None:
        """Remove the offsets of all delayed entries."""
        self._ticks, self._order, self._count = {}, [], 0
        self._due, self._due_tick = iter(()), None
