"""The bytes that all subscriptions of a service may hold of their topics while their consumers take them.

A subscription notes its bytes after each read, and as it delivers. When all have more than they may, subscriptions give
theirs back, the one that delivered least recently first: those whose consumers take nothing now before those that are
about to continue. One that gave back its entries reads them again later. So a subscription always keeps what it has
just read, even if that alone is more than all may have: it delivers some of it before another one can take its place.

A subscription does not begin a read while others that are about to continue hold all there is: subscriptions would
read the same entries again and again, a few for each read. Reads that are in progress, a few for each service
(`threads.store`), are not counted.

For the event loop alone. Must not know: topics, entries' contents.
"""

from __future__ import annotations

from itertools import chain
from typing import Protocol

from storage.entries.rebuild import DeliverableEntry

PAGE_BYTES = 2 << 20
"""The usual size of a page (`segment_tables.ENTRIES_BYTES`, `rows.GROUP_BYTES`)."""
READER_BYTES = 2 << 20
"""What a reader holds besides the page, until it has come to the end: a part of a segment, or a row group."""
_ENTRY_BYTES = 200
"""What an entry takes in memory besides its bytes and the bits of its messages."""


class PageHolder(Protocol):
    """A subscription that holds entries."""

    @property
    def is_delivering(self) -> bool:
        """Whether it continues to deliver as soon as it has its turn."""

    def give_back(self) -> None:
        """Hold nothing; read it again when it is needed."""


class PageBudget:
    """Bytes that the pages of all subscriptions may have."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[PageHolder, int] = {}
        """The bytes of each holder that has any; last the one that delivered last."""
        self.held = 0
        """The bytes of all."""

    def hold(self, holder: PageHolder, size: int) -> None:
        """Note the bytes of a holder that has read or delivered. Others give theirs back until all fit."""
        self.release(holder)
        if size:
            self._held[holder] = size
            self.held += size
        if self.held <= self._most:
            return
        others = [other for other in self._held if other is not holder]
        idle = (other for other in others if not other.is_delivering)
        busy = (other for other in others if other.is_delivering)
        for victim in chain(idle, busy):
            self.release(victim)
            victim.give_back()
            if self.held <= self._most:
                break

    def release(self, holder: PageHolder) -> None:
        """Note that a holder has nothing any more."""
        self.held -= self._held.pop(holder, 0)

    def admits(self, holder: PageHolder) -> bool:
        """Return whether a holder may read a page now; if not, it may soon."""
        if self.held + PAGE_BYTES <= self._most:
            return True
        busy = sum(size for other, size in self._held.items() if other is not holder and other.is_delivering)
        return not busy or busy + PAGE_BYTES <= self._most


def entry_bytes(entry: DeliverableEntry) -> int:
    """Return the memory of an entry: a batch of 262,144 messages has a bit for each, also if its data is tiny."""
    return len(entry.data) + entry.messages // 7 + _ENTRY_BYTES
