"""Reading a topic page by page: in one process, on and on as messages come, or each page in another process.

Where a page reads, raw or compacted, is the business of the source below it (raw_reader.py, compacted_reader.py). A
page names the `ContinuationToken` behind it, which is all that a reader in another process needs. A reader that
continues keeps its source open between two pages, and with it the pin of a compacted ledger; `close` releases the pin.
Each poll at the end takes a new snapshot, so a reader sees segments roll, ledgers come and go, and still one sequence
of messages.

A page holds at most the messages and bytes that were asked for, and at least one message if there is one: a message
larger than the page makes the page grow (R10, L3). An
error behind messages that were found is left to the next page. Waiting polls: the writer may be another process. Not
for use by two threads. Must not know: HTTP, formats.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from storage.clock import Clock
from storage.entries.chunk_assembler import ChunkAssembler, row_messages
from storage.errors import CompactorError
from storage.ledger import rows
from storage.log.segment_tables import is_large
from storage.model import Message
from storage.positions import ContinuationToken, StartOffset
from storage.reading.compacted_reader import CompactedReader
from storage.reading.raw_reader import RawReader, last_offset

POLL_SECONDS = 0.1
CHUNK_EXPIRY_MS = 600_000
"""A chunked message that is incomplete for that long, by publish times, does not make pages begin at it any more."""


@dataclass(frozen=True)
class ReadLimits:
    """At most this many messages, and that many logical bytes; None: no limit."""

    messages: int | None = None
    bytes: int | None = None


class PageBudget:
    """Counts rows of a page until a limit is reached."""

    def __init__(self, limits: ReadLimits) -> None:
        self.is_full = limits.messages == 0
        self._messages, self._bytes = limits.messages, limits.bytes
        self._is_empty = True

    def take(self, table: pa.Table) -> int:
        """How many of the first rows of `table` (not empty) fit; they count as delivered."""
        taken = len(table) if self._messages is None else min(len(table), self._messages)
        if self._bytes is not None:
            filled = np.cumsum(rows.logical_sizes(table))
            fits = int(np.searchsorted(filled, self._bytes, "right"))
            if self._is_empty:  # not "nothing was used of the limit": messages may be empty
                fits = max(fits, 1)
            taken = min(taken, fits)
            self._bytes -= int(filled[taken - 1]) if taken else 0
        if self._messages is not None:
            self._messages -= taken
        self._is_empty = self._is_empty and not taken
        self.is_full = taken < len(table) or self._messages == 0
        return taken


@dataclass(frozen=True)
class RowsPage:
    """A page of rows (rows.SCHEMA), and where the next one begins."""

    batches: list[pa.RecordBatch]
    next: ContinuationToken


@dataclass(frozen=True)
class MessagesPage:
    """A page of messages, each chunked one as one (P10), and where the next one begins."""

    messages: list[Message]
    next: ContinuationToken


class PageReader:
    """Pages of one read. Close it, or read it to its end, so that its pin is released."""

    def __init__(
        self, clock: Clock, source: RawReader | CompactedReader, state: ContinuationToken, partition: int
    ) -> None:
        """`source` begins at `state`."""
        self._clock = clock
        self._source = source
        self._state = state
        self._partition = partition
        self._tables: Generator[pa.Table, None, None] | None = None
        self._rest: pa.Table | None = None
        """The rows of the last table that did not fit into the page."""
        self._chunks = ChunkAssembler()
        self.next = state
        """Where a read continues behind what `stream` or `stream_rows` has yielded."""
        self._seen: list[tuple[int, ContinuationToken]] = []
        """The tables that chunks of incomplete messages are in: first offset, and the state behind it."""

    def poll(self, limits: ReadLimits = ReadLimits(), wait_ms: int = 0) -> list[pa.RecordBatch]:
        """The rows of the next page; empty if nothing came within `wait_ms`. Raises as `rows`."""
        deadline = self._clock.now_ms() + wait_ms
        was_begun = self._tables is not None
        page = self.rows(limits).batches
        if not page and was_begun:  # that poll is over, and more may have come since
            page = self.rows(limits).batches
        while not page and self._clock.now_ms() < deadline:
            self._clock.wait(POLL_SECONDS)
            page = self.rows(limits).batches
        return page

    def rows(self, limits: ReadLimits) -> RowsPage:
        """The next page as rows. Raises DataLoss (R8), StateMayBeStale (R7), OffsetOutOfRange."""
        budget = PageBudget(limits)
        batches: list[pa.RecordBatch] = []
        behind: ContinuationToken | None = None
        while not budget.is_full:
            try:
                table = self._next_table()
            except CompactorError:
                self._tables = None  # the next poll continues where this one was
                if behind is None:
                    raise
                return RowsPage(batches, behind)  # what is wrong is still wrong when the next page is asked for
            if table is None:
                return RowsPage(batches, self._here())
            taken = budget.take(table)
            self._rest = table.slice(taken) if taken < len(table) else None
            if taken:
                delivered = table.slice(0, taken)
                batches += delivered.combine_chunks().to_batches()
                behind = self._behind_offset(last_offset(delivered))
        return RowsPage(batches, behind or self._here())

    def messages(self, limits: ReadLimits) -> MessagesPage:
        """One page as messages; a reader gives one such page that is not empty. Raises as `rows`."""
        page: list[Message] = []
        try:
            page.extend(self.stream(limits))  # what came before an error stays in the page
        except CompactorError:
            if not page:
                raise
        return MessagesPage(page, self.next)

    def stream(self, limits: ReadLimits = ReadLimits()) -> Generator[Message, None, None]:
        """Yield the messages up to the topic's end of now; `next` continues behind what was yielded. Once.

        Raises as `rows`.
        """
        yielded = 0
        bytes_left = limits.bytes
        behind = None
        with closing(self._source.tables()) as tables:
            for table in tables:
                self._note(table)
                for row in row_messages(iter(table.to_batches()), self._partition):
                    before = self._chunks.oldest
                    whole = self._chunks.add(row) if row.is_chunk else row
                    if whole is not None and whole.offset > self._state.delivered:
                        size = _size_of(whole)
                        if yielded and bytes_left is not None and size > bytes_left:
                            self.next = self._restart(before, row)
                            return
                        yielded += 1
                        bytes_left = None if bytes_left is None else bytes_left - size
                        self.next = behind = self._behind(row)
                        yield whole
                        if yielded == limits.messages:
                            return
                    else:
                        self.next = behind = self._behind(row)
        self.next = self._here() if behind is None or self._chunks.oldest is None else behind

    def stream_rows(self, limits: ReadLimits = ReadLimits()) -> Generator[pa.RecordBatch, None, None]:
        """As `stream`, but rows, chunks by themselves."""
        budget = PageBudget(limits)
        with closing(self._source.tables()) as tables:
            while not budget.is_full and (table := next(tables, None)) is not None:
                taken = table.slice(0, budget.take(table))
                self.next = self._behind_offset(last_offset(taken))
                yield from taken.combine_chunks().to_batches()
        if not budget.is_full:
            self.next = self._here()

    def close(self) -> None:
        """Release the pin, if there is one."""
        if self._tables is not None:
            self._tables.close()
            self._tables = None

    def _next_table(self) -> pa.Table | None:
        """What comes next, as much as is there at once; None: the end, for now."""
        if self._rest is not None:
            table, self._rest = self._rest, None
            return table
        if self._tables is None:
            self._tables = self._source.tables()
        table = next(self._tables, None)
        if table is None:
            self._tables = None
        elif is_large(table):  # other reads of large entries do not wait until this page is taken
            self._tables.close()
            self._tables = None
            table = table.replace_schema_metadata(None)
        return table

    def _note(self, table: pa.Table) -> None:
        if self._chunks.oldest is None:
            self._seen.clear()
        self._seen.append((table.column("offset")[0].as_py(), self._here()))

    def _restart(self, oldest: Message | None, row: Message) -> ContinuationToken:
        """The state before `row`, which no page holds yet; `oldest`: what was incomplete before it."""
        first = row if oldest is None else min((oldest, row), key=lambda message: message.offset)
        delivered = row.offset - 1 if first is not row else -1
        return replace(self._state_of(first.offset), start=StartOffset(first.offset), delivered=delivered)

    def _behind(self, row: Message) -> ContinuationToken:
        oldest = self._chunks.oldest
        if oldest is None or row.publish_time - oldest.publish_time > CHUNK_EXPIRY_MS:
            return self._behind_offset(row.offset)
        return replace(self._state_of(oldest.offset), start=StartOffset(oldest.offset), delivered=row.offset)

    def _behind_offset(self, offset: int) -> ContinuationToken:
        return replace(self._here(), start=StartOffset(offset + 1))

    def _state_of(self, offset: int) -> ContinuationToken:
        """The state behind the table in which an offset is."""
        return next((state for first, state in reversed(self._seen) if first <= offset), self._seen[0][1])

    def _here(self) -> ContinuationToken:
        """Where the source is, behind the last table."""
        return self._source.state or self._state


def limited(tables: Generator[pa.Table, None, None], limits: ReadLimits) -> Generator[pa.RecordBatch, None, None]:
    """Tables as record batches, none empty, until a limit is reached; then `tables` is closed."""
    budget = PageBudget(limits)
    with closing(tables):
        while not budget.is_full and (table := next(tables, None)) is not None:
            yield from table.slice(0, budget.take(table)).combine_chunks().to_batches()


def _size_of(message: Message) -> int:
    """As storage.ledger.rows.logical_sizes has it."""
    properties = sum(len(text.encode()) for item in message.properties.items() for text in item)
    return len(message.key or b"") + len(message.payload or b"") + properties
