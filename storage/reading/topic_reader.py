"""A reader of one topic that goes on as messages come: pages of a size, and waiting for what is not there yet.

Where it reads, raw or compacted, is the business of the read below it (raw_reader.py, compacted_reader.py). Each look
at the end takes a new snapshot, so a reader sees segments roll, ledgers come and go, and one sequence of messages all
the same; while it is in a compacted ledger it holds the pin.

One page holds at most the messages and bytes that were asked for, and at least one message if there is one: a message
larger than the page makes it grow (L3). Waiting polls: the writer may be another process. Not for use by two threads.
"""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa

from storage.clock import Clock
from storage.errors import CompactorError
from storage.reading.compacted_reader import CompactedReader
from storage.reading.raw_reader import RawReader
from storage.reading.snapshot_reader import Limits, Page

POLL_SECONDS = 0.1


class TopicReader:
    """Pages of one read. Close it, or let it end, so that its pin is given back."""

    def __init__(self, clock: Clock, read: RawReader | CompactedReader) -> None:
        self._clock = clock
        self._read = read
        self._look: Generator[pa.Table, None, None] | None = None
        self._left: pa.Table | None = None

    def poll(self, limits: Limits = Limits(), wait_ms: int = 0) -> list[pa.RecordBatch]:  # noqa: B008
        """The next page; empty if nothing came within `wait_ms`.

        Raises DataLoss (R8), StateMayBeStale (R7), OffsetOutOfRange.
        """
        deadline = self._clock.now_ms() + wait_ms
        looked_before = self._look is not None
        page = self._page(limits)
        if not page and looked_before:  # that look is over, and more may have come since
            page = self._page(limits)
        while not page and self._clock.now_ms() < deadline:
            self._clock.wait(POLL_SECONDS)
            page = self._page(limits)
        return page

    def close(self) -> None:
        """Give the pin back, if there is one."""
        if self._look is not None:
            self._look.close()
            self._look = None

    def _page(self, limits: Limits) -> list[pa.RecordBatch]:
        page = Page(limits)
        batches: list[pa.RecordBatch] = []
        while not page.is_full:
            try:
                table = self._table()
            except CompactorError:
                self._look = None  # the next one goes on where this one was
                if batches:
                    break  # what is wrong is still wrong when the next page is asked for
                raise
            if table is None:
                break
            taken = page.take(table)
            self._left = table.slice(taken) if taken < len(table) else None
            batches += table.slice(0, taken).combine_chunks().to_batches()
        return batches

    def _table(self) -> pa.Table | None:
        """What comes next, as much as is at hand; None: the end, for now."""
        if self._left is not None:
            table, self._left = self._left, None
            return table
        if self._look is None:
            self._look = self._read.tables()
        table = next(self._look, None)
        if table is None:
            self._look = None
        return table
