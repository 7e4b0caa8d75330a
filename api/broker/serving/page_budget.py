"""The memory budget of entries that subscriptions have read and not delivered yet.

A subscription notes its bytes after each read and as it delivers. When all together exceed the budget, subscriptions
release theirs and read the entries again later: first those whose consumers receive nothing now, then those that are
about to continue; of each kind the one that delivered least recently first. A subscription never loses the page that it
has just read, even if the page alone exceeds the budget: it delivers some of it before another one can take its place.

A subscription does not begin a read while others that are about to continue use the whole budget: otherwise they would
read the same entries again and again, and deliver a few for each read. A subscription whose read is refused is woken
when the others have delivered, wait or read themselves. Reads in progress, a few for each service (`threads.store`),
are not counted.

For the event loop alone. Must not know: topics, entries' contents.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Protocol

from storage.entries.rebuild import DeliverableEntry

PAGE_BYTES = 2 << 20
"""The usual size of a page (`segment_tables.ENTRIES_BYTES`, `rows.GROUP_BYTES`)."""
READER_BYTES = 2 << 20
"""The memory of a reader besides the page, until it has come to the end: a part of a segment, or a row group."""
ENTRY_BYTES = 200
"""The memory of an entry besides its bytes and the bits of its messages."""


class PageHolder(Protocol):
    """A subscription that has entries in memory, as the budget calls it."""

    @property
    def is_delivering(self) -> bool:
        """True while the holder continues to deliver as soon as it has its turn."""

    def release_memory(self) -> None:
        """Drop all entries from memory; the holder reads them again when it needs them."""

    def wake(self) -> None:
        """Wake the holder, so that it asks again for a read that was refused."""


class PageBudget:
    """The memory budget of the entries that all subscriptions of a service have read and not delivered yet."""

    def __init__(self, limit: int) -> None:
        """Make an empty budget. `limit`: the bytes that all holders together may have."""
        self._limit = limit
        self._held: dict[PageHolder, int] = {}
        """The bytes of each holder that has any; the last one delivered last."""
        self.held = 0
        """The bytes of all."""
        self._refused: dict[PageHolder, None] = {}
        """Holders whose last read was refused; the first one was refused first."""

    def set_held_bytes(self, holder: PageHolder, size: int) -> None:
        """Set the bytes of entries that a holder has in memory, after it has read or delivered. If the budget is
        exceeded, other holders release theirs."""
        self._remove(holder)
        if size:
            self._held[holder] = size
            self.held += size
        if self.held > self._limit:
            self._make_room(holder)
        self._wake_refused(lambda other: other is holder or other.is_delivering)

    def _make_room(self, holder: PageHolder) -> None:
        """Let holders other than `holder` release their memory, idle ones first, until the budget is kept."""
        others = [other for other in self._held if other is not holder]
        idle = (other for other in others if not other.is_delivering)
        busy = (other for other in others if other.is_delivering)
        for victim in chain(idle, busy):
            self._remove(victim)
            victim.release_memory()
            if self.held <= self._limit:
                break

    def remove_holder(self, holder: PageHolder) -> None:
        """Remove a holder that has ended, with its bytes, and wake holders whose read was refused."""
        self._remove(holder)
        self._refused.pop(holder, None)
        self.wake_refused()

    def try_admit(self, holder: PageHolder) -> bool:
        """Return whether the budget admits that a holder reads a page now. A holder that is refused, because others are
        delivering, is woken soon to ask again."""
        if not self._has_room(lambda other: other is not holder and other.is_delivering):
            self._refused[holder] = None
            return False
        self._refused.pop(holder, None)
        self.wake_refused()  # it delivers nothing while it reads
        return True

    def wake_refused(self) -> None:
        """Wake the holders whose read was refused, if the budget admits reads now: a holder has stopped delivering."""
        self._wake_refused(lambda other: other.is_delivering)

    def _wake_refused(self, is_busy: Callable[[PageHolder], bool]) -> None:
        """Wake the holders whose read was refused, if those for which `is_busy` is true leave room for a page."""
        if self._refused and self._has_room(is_busy):
            refused, self._refused = self._refused, {}
            for holder in refused:
                holder.wake()

    def _has_room(self, is_busy: Callable[[PageHolder], bool]) -> bool:
        """Return whether a page fits into the budget beside the holders for which `is_busy` is true, or those have no
        bytes."""
        if self.held + PAGE_BYTES <= self._limit:
            return True
        busy = sum(size for holder, size in self._held.items() if is_busy(holder))
        return not busy or busy + PAGE_BYTES <= self._limit

    def _remove(self, holder: PageHolder) -> None:
        self.held -= self._held.pop(holder, 0)


def entry_bytes(entry: DeliverableEntry) -> int:
    """Return the memory that an entry takes, in bytes. A batch of 262,144 messages has a bit for each, even if its data
    is tiny."""
    return len(entry.data) + entry.messages // 7 + ENTRY_BYTES
