"""Reading a topic entry by entry, as Pulsar's clients want it: over the same readers that give rows.

Entries of unsealed segments come as they were sent; those of ledgers and compacted parts are rebuilt of their rows
(storage/entries/rebuild.py). A read gives what one table of the source holds, so at most some MiB. At the end it gives
nothing, and what came since when it is asked again. A reader that has seen entries elsewhere, as they were appended,
continues behind them with `pass_to`. A caller that has no room for the entries of the last read drops them, and the
reader continues at the first of them after `return_to`; until then it holds neither tables nor a pin.

May go wrong: what the source may (raw_reader.py, compacted_reader.py); the next read continues where this one was. Not
for two threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

import pyarrow as pa

from storage.entries.rebuild import DeliverableEntry, EntryBuilder
from storage.log.segment_tables import SegmentEntryReader, is_large
from storage.model import EARLIEST
from storage.positions import CompactedProgress, ContinuationToken, StartOffset
from storage.reading.compacted_reader import CompactedReader
from storage.reading.raw_reader import RawReader

Source = RawReader | CompactedReader


class EntryReader:
    """One read. Close it: it may hold a pin."""

    def __init__(
        self,
        open_source: Callable[[ContinuationToken], Source],
        state: ContinuationToken,
        unsealed: SegmentEntryReader,
    ) -> None:
        """`open_source`: makes the source of rows that begins at a state, and reads segments by `unsealed`."""
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
        """The next entries, in order; none at the end of now. Raises what the source does."""
        found: list[DeliverableEntry] = []
        before = self._current
        is_new = False
        while not found:
            if self._tables is None:
                self._tables, is_new = self._source.tables(), True
            try:
                table = next(self._tables, None)
            except BaseException:
                self._tables = None
                raise
            if table is None:
                self._tables = None
                found += self._builder.rest()
                if is_new:
                    break
                continue  # more may have come since that look at the topic began
            if "entry" in table.schema.names:
                found += self._builder.rest()
                found += _stored(table, self._unsealed.data)
                self._unsealed.data.clear()  # the page alone holds them from here on
            else:
                found += self._builder.add(table)
                self._leave_large(table)
        if found:
            self._before, self._first = before, found[0].offset
        return found

    def _leave_large(self, table: pa.Table) -> None:
        """End the tables behind one with a large message, so it is not held while the consumer waits. The next read
        begins them again."""
        if is_large(table) and self._tables is not None:
            self._tables.close()
            self._tables = None

    @property
    def next_offset(self) -> int | None:
        """The offset at which the next read begins; None: it is not known yet. For a reader that came to the end."""
        start = self._current.start
        return start.offset if isinstance(start, StartOffset) else None

    @property
    def _current(self) -> ContinuationToken:
        return self._source.state or self._state

    def pass_to(self, offset: int) -> None:
        """Continue at an offset: what is before it was delivered. Only for a reader that has come to the end."""
        state = self._current
        compacted = state.compacted
        if isinstance(self._source, CompactedReader):
            compacted = (
                CompactedProgress(None, False, True, None)
                if compacted is None
                else replace(compacted, is_raw=True, complete_to=None)
            )
        self._continue(replace(state, start=StartOffset(offset), compacted=compacted))

    def return_to(self, offset: int) -> None:
        """Continue at an entry of the last read, or at its end: what is before it was delivered, the rest was not.

        A compacted read that has delivered some of the last read is where that read ended, but for the offset: it knows
        no more of its keys than up to there (R7). One that has delivered none of it is where it was before.
        """
        is_untouched = offset <= self._first
        state = self._before if is_untouched else self._current
        start = state.start
        if isinstance(start, StartOffset):
            start = StartOffset(min(start.offset, offset))
        elif start != EARLIEST or not is_untouched:
            start = StartOffset(offset)
        self._continue(replace(state, start=start))

    def _continue(self, state: ContinuationToken) -> None:
        try:
            self.close()
        finally:
            self._state = state
            self._source = self._open_source(state)

    def close(self) -> None:
        """Release the pin, if there is one."""
        if self._tables is not None:
            self._tables.close()
            self._tables = None
        self._builder = EntryBuilder()


def _stored(table: pa.Table, entries: list[bytes]) -> list[DeliverableEntry]:
    columns = ("ledger_id", "entry_id", "offset", "messages", "entry", "batch_index")
    return [
        DeliverableEntry(
            ledger, entry, offset - messages + 1, messages, entries[place], (1 << messages) - 1, batch_index >= 0
        )
        for ledger, entry, offset, messages, place, batch_index in zip(
            *(table.column(name).to_pylist() for name in columns), strict=True
        )
    ]
