"""Reading a topic entry by entry, as Pulsar's clients receive it, over the same readers that give rows.

Entries of unsealed segments are delivered as they were sent; those of ledgers and compacted parts are rebuilt from
their rows (storage/entries/rebuild.py). A read returns the entries of one table of the source, so at most some MiB. At
the topic's end it returns no entries; a later read returns those that were appended since. A reader whose caller
received entries from the tail cache continues after them with `advance_to`. A caller without room for the entries of
the last read drops them, and `rewind_to` lets the reader continue at the first of them; until then it holds neither
tables nor a pin.

Errors are those of the source (raw_reader.py, compacted_reader.py); the next read continues where this one was. Not
thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

import pyarrow as pa

from storage.entries.rebuild import DeliverableEntry, EntryBuilder
from storage.log.segment_tables import SegmentEntryReader, is_budgeted
from storage.model import EARLIEST
from storage.positions import CompactedProgress, ContinuationToken, StartOffset
from storage.reading.compacted_reader import CompactedReader
from storage.reading.raw_reader import RawReader

Source = RawReader | CompactedReader


class EntryReader:
    """A reader of a topic's entries, which may continue as they arrive. Close it: it may hold a pin."""

    def __init__(
        self,
        open_source: Callable[[ContinuationToken], Source],
        state: ContinuationToken,
        unsealed: SegmentEntryReader,
    ) -> None:
        """Create a reader that begins at `state`.

        `open_source`: returns a reader of rows that begins at a state and reads segments by `unsealed`.
        """
        self._open_source = open_source
        self._unsealed = unsealed
        self._state = state
        self._source = open_source(state)
        self._tables: Generator[pa.Table, None, None] | None = None
        self._builder = EntryBuilder()
        self._before = state
        """The state before the last read, which began at the offset `_first`."""
        self._first = -1

    def read(self) -> list[DeliverableEntry]:
        """Return the next entries, in order, of one table of the source; an empty list at the topic's present end.

        Raises as the source does.
        """
        entries: list[DeliverableEntry] = []
        before = self._current_state
        is_new = False
        while not entries:
            if self._tables is None:
                self._tables, is_new = self._source.tables(), True
            try:
                table = next(self._tables, None)
            except BaseException:
                self._tables = None
                raise
            if table is None:
                self._tables = None
                entries += self._builder.remaining()
                if is_new:
                    break
                continue  # entries may have been appended since that poll began
            if "entry" in table.schema.names:
                entries += self._builder.remaining()
                entries += _deliverable_entries(table, self._unsealed.data)
                self._unsealed.data.clear()  # the page alone holds them from here on
            else:
                entries += self._builder.add(table)
                self._close_after_large(table)
        if entries:
            self._before, self._first = before, entries[0].offset
        return entries

    def _close_after_large(self, table: pa.Table) -> None:
        """Close the source's tables after one with a large message, so that its memory is not held while the consumer
        waits.

        The next read opens them again.
        """
        if is_budgeted(table) and self._tables is not None:
            self._tables.close()
            self._tables = None

    @property
    def next_offset(self) -> int | None:
        """The offset at which the next read begins, for a reader at the topic's end; None: it is not known yet."""
        start = self._current_state.start
        return start.offset if isinstance(start, StartOffset) else None

    @property
    def _current_state(self) -> ContinuationToken:
        return self._source.state or self._state

    def advance_to(self, offset: int) -> None:
        """Skip to `offset` in a reader at the topic's end, whose caller has delivered all entries before that offset
        from elsewhere."""
        state = self._current_state
        compacted = state.compacted
        if isinstance(self._source, CompactedReader):
            compacted = replace(compacted or CompactedProgress(), is_raw=True, complete_to=None)
        self._reopen_at(replace(state, start=StartOffset(offset), compacted=compacted))

    def rewind_to(self, offset: int) -> None:
        """Go back to an entry of the last read, or to its end, so that the entries from `offset` on are read again.

        Entries before `offset` were delivered, the others were not. If a compacted read delivered some entries of the
        last read, its state is that after the last read, except for the offset: its knowledge of its keys ends there
        (R7). If it delivered none of them, its state is that before the last read.
        """
        is_untouched = offset <= self._first
        state = self._before if is_untouched else self._current_state
        start = state.start
        if isinstance(start, StartOffset):
            start = StartOffset(min(start.offset, offset))
        elif start != EARLIEST or not is_untouched:
            start = StartOffset(offset)
        self._reopen_at(replace(state, start=start))

    def _reopen_at(self, state: ContinuationToken) -> None:
        """Close the source, and open another that begins at `state`."""
        try:
            self.close()
        finally:
            self._state = state
            self._source = self._open_source(state)

    def close(self) -> None:
        """Release the source's pin, if there is one, and drop what was read ahead. Idempotent."""
        if self._tables is not None:
            self._tables.close()
            self._tables = None
        self._builder = EntryBuilder()


def _deliverable_entries(table: pa.Table, entries: list[bytes]) -> list[DeliverableEntry]:
    """Return the undecoded entries of a table (segment_tables.ENTRY_SCHEMA) for delivery. `entries`: their bytes."""
    columns = ("ledger_id", "entry_id", "offset", "messages", "entry", "batch_index")
    return [
        DeliverableEntry(
            ledger, entry, offset - messages + 1, messages, entries[place], (1 << messages) - 1, batch_index >= 0
        )
        for ledger, entry, offset, messages, place, batch_index in zip(
            *(table.column(name).to_pylist() for name in columns), strict=True
        )
    ]
