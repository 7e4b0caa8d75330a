"""The page of a topic that a subscription delivers next, and the position at which the following page begins.

    from memory    at the topic's end: its newest entries (tail.py)
    by threads     before that: one reader (entry_pages.py), which keeps its position between two pages

Invariant: entries come in order, without a repetition or an omission. `release_memory` drops the page: the reader
returns to its first entry, keeps the state of a compacted read (R7), and releases its buffers and its pin.

For the event loop alone. Must not know: consumers, acknowledgements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from api.broker.serving.entry_pages import EntryPages
from api.broker.serving.page_budget import READER_BYTES, entry_bytes
from api.broker.serving.position import SubscriptionPosition
from api.broker.serving.served_topic import ServedTopic
from storage.entries.rebuild import DeliverableEntry
from storage.model import EARLIEST
from storage.positions import StartOffset


class ReadAhead:
    """The page of entries that a subscription delivers next, and the reader that reads the following one."""

    def __init__(self, topic: ServedTopic, position: SubscriptionPosition) -> None:
        self._topic = topic
        self._position = position
        self._page: deque[DeliverableEntry] = deque()
        self._page_bytes = 0
        self._reader_bytes = 0
        self._pages: EntryPages | None = None
        self._next: int | None = None
        """The offset that is read next, once the reader has come to the end; None: the reader's own position."""
        self._is_at_end = False
        self._reads = 0
        """The number of restarts: a read that began before one is dropped."""
        self.gap_from = -1
        """Offsets from this one to the next entry have no message and are acknowledged with that entry; -1: none."""

    @property
    def first(self) -> DeliverableEntry | None:
        """The entry that is delivered next; None: the page is empty."""
        return self._page[0] if self._page else None

    @property
    def bytes(self) -> int:
        """The memory, in bytes, of the page and of the reader that continues after it."""
        return self._page_bytes + self._reader_bytes

    def remove_first(self) -> None:
        """Remove the first entry of the page, because it was delivered or needs no delivery."""
        entry = self._page.popleft()
        self._page_bytes -= entry_bytes(entry)
        self.gap_from = entry.end

    async def fill(self, may_read: Callable[[], bool]) -> bool:
        """Read the next page. The present one is empty. Return False if the topic has no more entries, or memory admits
        no read, now.

        `may_read` returns whether memory admits a page that is read by threads.
        """
        if self._is_at_end and self._next is not None:
            newest = self._topic.tail.read(self._next)
            if newest is not None and not newest and not self._topic.is_lost:
                return False
            if newest:
                self._add(newest)
                self._next = newest[-1].end
                return True
        if not may_read():
            return False
        reads, self._reader_bytes = self._reads, 0  # it cannot release memory while it reads
        entries, following = await self._ensure_pages().next(self._next)
        if reads != self._reads:
            return True
        self._is_at_end = not entries
        self._next = following if self._is_at_end else None
        if self._is_at_end and following is not None and self.gap_from < 0:
            self.gap_from = following
        self._reader_bytes = 0 if self._is_at_end else READER_BYTES
        self._add(entries)
        return bool(entries)

    def _add(self, entries: Sequence[DeliverableEntry]) -> None:
        """Add entries to the end of the page, and their bytes to its memory."""
        self._page.extend(entries)
        self._page_bytes += sum(map(entry_bytes, entries))

    def _ensure_pages(self) -> EntryPages:
        """Return the read of the topic by threads, which is begun at the next offset if there is none."""
        if self._pages is None:
            start = self._position.next_position if self._next is None else StartOffset(self._next)
            if self.gap_from < 0 and isinstance(start, StartOffset):
                self.gap_from = start.offset
            elif self.gap_from < 0 and start == EARLIEST:
                self.gap_from = 0
            self._pages = EntryPages(self._topic.store, lambda: self._position.open_reader(start))
        return self._pages

    def release_memory(self) -> None:
        """Drop the page of entries from memory; it is read again later. A read in progress continues."""
        first = self._page[0].offset if self._page else self.gap_from
        if self._reader_bytes and self._pages is not None:
            self._reader_bytes = 0
            self._pages.rewind_to(first)
            self._topic.spawn(self._pages.release_memory())
        elif self._page:  # of the newest entries: the reader is at the end and has no memory
            self._next = first
        self._clear_page()

    def discard_read_result(self) -> None:
        """Drop the result of a read in progress. The caller must call `rewind` later."""
        self._reads += 1

    def rewind(self) -> None:
        """Drop the page and the reader: the next read begins at the first message that is not acknowledged."""
        self._reads += 1
        self._clear_page()
        self._close_pages()
        self._next, self._is_at_end, self.gap_from = None, False, -1

    def reopen_reader(self) -> None:
        """Close the reader; the next `fill` opens another one after the page."""
        self._close_pages()
        position = self._page[-1].end if self._page else self.gap_from
        self._next, self._is_at_end = (position if position >= 0 else None), False

    async def close(self) -> None:
        """Close the reader of the topic, if there is one, and wait for it."""
        pages, self._pages = self._pages, None
        if pages is not None:
            await pages.close()

    def _clear_page(self) -> None:
        self._page.clear()
        self._page_bytes = 0

    def _close_pages(self) -> None:
        """Begin to close the reader of the topic, if there is one, in the background."""
        pages, self._pages = self._pages, None
        self._reader_bytes = 0
        if pages is not None:
            self._topic.spawn(pages.close())
