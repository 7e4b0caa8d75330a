"""The entries of a topic page by page, read by threads.

A page is never lost: a thread stores it in this object, so a caller that was cancelled or timed out gets it from its
next call. Only one thread reads at a time. The reader is closed while no thread uses it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from api.broker.threads import Workers
from storage.entries.rebuild import DeliverableEntry
from storage.errors import CompactorError, Unavailable
from storage.reading.entry_reader import EntryReader

_TURN_SECONDS = 1.0
"""The time that a thread waits for another one that still reads."""


class Page(NamedTuple):
    """The entries of a page. At the end of the topic: no entries, and `end`, the offset of the next one; else None."""

    entries: list[DeliverableEntry]
    end: int | None


class EntryPages:
    """A read of a topic's entries by threads, page by page. For one task of the event loop. The caller closes it."""

    def __init__(self, workers: Workers, open_reader: Callable[[], EntryReader]) -> None:
        """Make a read of a topic. `open_reader` is called once by a thread, at the first page."""
        self._workers = workers
        self._open_reader = open_reader
        self._reader: EntryReader | None = None
        self._page: Page | None = None
        self._rewind_offset: int | None = None
        """The offset where the next page begins; None: where the last one ended."""
        self._lock = threading.Lock()
        self._is_closed = False

    async def next(self, skip_to: int | None = None) -> Page:
        """Read and return the next page; at the present end of the topic, or after `close`, a page without entries.

        `skip_to`: for a read at the end, the offset before which the caller has read all entries from memory. Raises
        CompactorError; then it can be called again.
        """
        await self._workers.run(self._read_page, skip_to)
        page, self._page = self._page, None
        return Page([], None) if page is None else page

    async def close(self) -> None:
        """End the read of the topic, and release the memory and the pin of its reader."""
        self._is_closed = True
        with suppress(CompactorError):  # the thread that reads closes it, or the pin ends by its age
            await self._workers.run(self._close_reader)

    def rewind_to(self, offset: int) -> None:
        """Let the next page begin at an offset: of an entry of the last page, or its end. Not while `next` waits."""
        self._rewind_offset = offset

    async def release_memory(self) -> None:
        """Release the memory of the topic's reader. Call `rewind_to` before."""
        with suppress(CompactorError):  # the next read does it
            await self._workers.run(self._release_reader_memory)

    # For threads

    def _read_page(self, skip_to: int | None) -> None:
        """Read the next page into `_page`, unless one is there. Raises CompactorError."""
        if not self._lock.acquire(timeout=_TURN_SECONDS):
            raise Unavailable("another thread still reads a page for this subscription", "try again")
        try:
            self._apply_rewind()
            if self._page is None and not self._is_closed:
                if self._reader is None:
                    self._reader = self._open_reader()
                if skip_to is not None and self._reader.next_offset != skip_to:
                    self._reader.advance_to(skip_to)
                entries = self._reader.read()
                self._page = Page(entries, None if entries else self._reader.next_offset)
        finally:
            self._lock.release()
            if self._is_closed:
                self._close_reader()

    def _release_reader_memory(self) -> None:
        """Rewind the reader, which releases its memory, unless another thread reads."""
        if self._lock.acquire(blocking=False):  # else the next read does it
            try:
                self._apply_rewind()
            finally:
                self._lock.release()
                if self._is_closed:
                    self._close_reader()

    def _apply_rewind(self) -> None:
        """Move the reader to the offset that `rewind_to` has set, if any, and drop the page. For the holder of the
        lock."""
        offset, self._rewind_offset = self._rewind_offset, None
        if offset is not None and not self._is_closed:
            self._page = None
            if self._reader is not None:
                self._reader.rewind_to(offset)

    def _close_reader(self) -> None:
        """Close the reader, unless another thread reads; that one closes it then."""
        if self._lock.acquire(blocking=False):  # else the thread that has it calls this again
            try:
                if self._reader is not None:
                    self._reader.close()
            finally:
                self._lock.release()
