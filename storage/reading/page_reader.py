"""Reading a topic page by page: within one process as messages arrive, or each page in another process.

The source below decides whether a page is raw or compacted (raw_reader.py, compacted_reader.py). A page names the
`ContinuationToken` after it, which is all that a reader in another process needs. A reader that continues keeps its
source open between two pages, and with it the pin of a compacted ledger; `close` releases the pin. Each poll at the end
takes a new snapshot, so a reader sees one sequence of messages while segments are rolled and ledgers are created and
trimmed.

A page holds at most the requested number of messages and bytes, and at least one message if there is one: a message
larger than the page makes the page grow (R10, L3). An error after the first messages of a page is left to the next
page. Waiting polls, since the writer may be another process. Not thread-safe. Must not know: HTTP, formats.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.clock import Clock
from storage.entries.chunk_assembler import ChunkAssembler, row_messages
from storage.errors import CompactorError
from storage.ledger import rows
from storage.log.segment_tables import is_budgeted
from storage.model import Message
from storage.positions import ContinuationToken, StartOffset
from storage.reading.compacted_reader import CompactedReader
from storage.reading.raw_reader import RawReader, last_offset
from storage.reading.snapshot_reader import SnapshotReader

POLL_SECONDS = 0.1
CHUNK_EXPIRY_MS = 600_000
"""The age, by publish times, from which an incomplete chunked message no longer makes pages begin at it."""


@dataclass(frozen=True)
class ReadLimits:
    """The most messages of a read, and the most logical bytes; None: no limit."""

    messages: int | None = None
    bytes: int | None = None


class PageBudget:
    """The number of messages and bytes that still fit into a page. `is_full`: no more rows fit."""

    def __init__(self, limits: ReadLimits) -> None:
        self.is_full = limits.messages == 0
        self._messages, self._bytes = limits.messages, limits.bytes
        self._is_empty = True

    def take_rows(self, table: pa.Table) -> int:
        """Return the number of first rows of `table` (not empty) that fit into the page, and reduce the budget by them.

        The first row of a page fits, however large it is, unless the limit of messages is 0.
        """
        taken = len(table) if self._messages is None else min(len(table), self._messages)
        if self._bytes is not None:
            filled = np.cumsum(rows.logical_sizes(table))
            fits = int(np.searchsorted(filled, self._bytes, "right"))
            if self._is_empty:  # not by the used bytes: messages may be empty
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
    """A page of rows (rows.SCHEMA), and the continuation token of the next page."""

    batches: list[pa.RecordBatch]
    next: ContinuationToken


@dataclass(frozen=True)
class MessagesPage:
    """A page of messages, with chunked messages assembled (P10), and the continuation token of the next page."""

    messages: list[Message]
    next: ContinuationToken


class PageReader:
    """A reader of a topic page by page, by `poll` or `rows`, or once by `messages`, `stream` or `stream_rows`.

    Close it, or read it to its end, so that its pin is released.
    """

    def __init__(
        self, clock: Clock, source: RawReader | CompactedReader, state: ContinuationToken, partition: int
    ) -> None:
        """Create a reader. `state`: the state at which `source` begins; `partition`: of the topic, for message ids."""
        self._clock = clock
        self._source = source
        self._state = state
        self._partition = partition
        self._tables: Generator[pa.Table, None, None] | None = None
        self._rest: pa.Table | None = None
        """The rows of the last table that did not fit into the page."""
        self._chunks = ChunkAssembler()
        self.next = state
        """The token after the last message that `stream` or `stream_rows` yielded."""
        self._seen: list[tuple[int, ContinuationToken]] = []
        """The tables with chunks of incomplete messages: first offset, and the state after the table."""

    def poll(self, limits: ReadLimits = ReadLimits(), wait_ms: int = 0) -> list[pa.RecordBatch]:
        """Return the rows of the next page; an empty list if no message arrives within `wait_ms`.

        Raises as `rows`.
        """
        deadline = self._clock.now_ms() + wait_ms
        was_begun = self._tables is not None
        page = self.rows(limits).batches
        if not page and was_begun:  # that poll is over, and messages may have been appended since
            page = self.rows(limits).batches
        while not page and self._clock.now_ms() < deadline:
            self._clock.wait(POLL_SECONDS)
            page = self.rows(limits).batches
        return page

    def rows(self, limits: ReadLimits) -> RowsPage:
        """Return the next page as rows; at the topic's end its list is empty.

        Raises DataLoss (R8), StateMayBeStale (R7), OffsetOutOfRange. An error after the first rows is left to the next
        page.
        """
        budget = PageBudget(limits)
        batches: list[pa.RecordBatch] = []
        token: ContinuationToken | None = None
        while not budget.is_full:
            try:
                table = self._next_table()
            except CompactorError:
                self._tables = None  # the next poll continues where this one was
                if token is None:
                    raise
                return RowsPage(batches, token)  # the next page raises the error again
            if table is None:
                return RowsPage(batches, self._source_state())
            taken = budget.take_rows(table)
            self._rest = table.slice(taken) if taken < len(table) else None
            if taken:
                delivered = table.slice(0, taken)
                batches += delivered.combine_chunks().to_batches()
                token = self._token_after_offset(last_offset(delivered))
        return RowsPage(batches, token or self._source_state())

    def messages(self, limits: ReadLimits) -> MessagesPage:
        """Return one page of messages, with chunked ones assembled. Call it again only if the page was empty.

        Raises as `rows`, if there is no message before the error.
        """
        page: list[Message] = []
        try:
            page.extend(self.stream(limits))  # messages before an error stay in the page
        except CompactorError:
            if not page:
                raise
        return MessagesPage(page, self.next)

    def stream(self, limits: ReadLimits = ReadLimits()) -> Generator[Message, None, None]:
        """Yield messages up to the limits or the topic's present end. Call it once.

        `next` is the token after the last message that was yielded. Raises as `rows`.
        """
        yielded = 0
        remaining_bytes = limits.bytes
        token = None
        with closing(self._source.tables()) as tables:
            for table in tables:
                self._remember_table_state(table)
                for row in row_messages(iter(table.to_batches()), self._partition):
                    before = self._chunks.oldest_incomplete
                    whole = self._chunks.add(row) if row.is_chunk else row
                    if whole is not None and whole.offset > self._state.delivered:
                        size = _logical_size(whole)
                        if yielded and remaining_bytes is not None and size > remaining_bytes:
                            self.next = self._token_before(before, row)
                            return
                        yielded += 1
                        remaining_bytes = None if remaining_bytes is None else remaining_bytes - size
                        self.next = token = self._token_after(row)
                        yield whole
                        if yielded == limits.messages:
                            return
                    else:
                        self.next = token = self._token_after(row)
        self.next = self._source_state() if token is None or self._chunks.oldest_incomplete is None else token

    def stream_rows(self, limits: ReadLimits = ReadLimits()) -> Generator[pa.RecordBatch, None, None]:
        """Yield rows up to the limits or the topic's present end; each chunk of a message is a row of its own. Call it
        once.

        `next` is the token after the last row that was yielded. Raises as `rows`.
        """
        budget = PageBudget(limits)
        for batch in limit_tables(self._source.tables(), budget):
            self.next = self._token_after_offset(last_offset(batch))
            yield batch
        if not budget.is_full:
            self.next = self._source_state()

    def close(self) -> None:
        """Release the pin of the compacted ledger, if there is one. Idempotent."""
        if self._tables is not None:
            self._tables.close()
            self._tables = None

    def _next_table(self) -> pa.Table | None:
        """Return the next table of the source, or the rest of the last one; None: the topic's present end."""
        if self._rest is not None:
            table, self._rest = self._rest, None
            return table
        if self._tables is None:
            self._tables = self._source.tables()
        table = next(self._tables, None)
        if table is None:
            self._tables = None
        elif is_budgeted(table):  # other reads of large entries do not wait until this page is taken
            self._tables.close()
            self._tables = None
            table = table.replace_schema_metadata(None)
        return table

    def _remember_table_state(self, table: pa.Table) -> None:
        """Remember the first offset of a table, and the source's state after it, for tokens at messages that are still
        incomplete."""
        if self._chunks.oldest_incomplete is None:
            self._seen.clear()
        self._seen.append((table.column("offset")[0].as_py(), self._source_state()))

    def _token_before(self, oldest: Message | None, row: Message) -> ContinuationToken:
        """Return the token at which a reader begins with `row`, which is not in a page yet. `oldest`: the message that
        was incomplete before it."""
        first = row if oldest is None else min((oldest, row), key=lambda message: message.offset)
        delivered = row.offset - 1 if first is not row else -1
        return replace(self._state_after_table_with(first.offset), start=StartOffset(first.offset), delivered=delivered)

    def _token_after(self, row: Message) -> ContinuationToken:
        """Return the token after a delivered row; it begins at the oldest incomplete message that has not expired, if
        there is one."""
        oldest = self._chunks.oldest_incomplete_since(row.publish_time - CHUNK_EXPIRY_MS)
        if oldest is None:
            return self._token_after_offset(row.offset)
        return replace(
            self._state_after_table_with(oldest.offset), start=StartOffset(oldest.offset), delivered=row.offset
        )

    def _token_after_offset(self, offset: int) -> ContinuationToken:
        return replace(self._source_state(), start=StartOffset(offset + 1))

    def _state_after_table_with(self, offset: int) -> ContinuationToken:
        """Return the source's state after the remembered table that holds an offset."""
        return next((state for first, state in reversed(self._seen) if first <= offset), self._seen[0][1])

    def _source_state(self) -> ContinuationToken:
        """Return the state of the source after its last table; before the first one, the state at which the reader
        began."""
        return self._source.state or self._state


def limit_tables(tables: Generator[pa.Table, None, None], budget: PageBudget) -> Generator[pa.RecordBatch, None, None]:
    """Yield tables as record batches, none empty, until the page's budget is used up; then close `tables`."""
    with closing(tables):
        while not budget.is_full and (table := next(tables, None)) is not None:
            yield from table.slice(0, budget.take_rows(table)).combine_chunks().to_batches()


class RowsBefore(NamedTuple):
    """The last rows before an offset, in ascending order. `has_earlier`: the limits left out earlier rows."""

    batches: list[pa.RecordBatch]
    has_earlier: bool


def rows_before(reader: SnapshotReader, end: int, read_compacted: bool, limits: ReadLimits) -> RowsBefore:
    """Return the last rows before the offset `end`, in ascending order, and whether the limits left out earlier ones.

    Tables come newest first, and no more are read than the page needs. Raises ObjectMissing, ObjectDamaged,
    SegmentNotLocal.
    """
    budget, batches = PageBudget(limits), list[pa.RecordBatch]()
    for table in _tables_before(reader, end, read_compacted):
        if budget.is_full:
            return RowsBefore(batches, True)
        last = table if limits.messages is None else table.slice(max(0, len(table) - limits.messages))
        taken = budget.take_rows(last.take(pa.array(range(len(last) - 1, -1, -1))))  # which begins at the newest row
        batches[:0] = last.slice(len(last) - taken).combine_chunks().to_batches()
        if taken < len(table):
            return RowsBefore(batches, True)
    return RowsBefore(batches, False)


def _tables_before(reader: SnapshotReader, end: int, read_compacted: bool) -> Iterator[pa.Table]:
    compacted = reader.snapshot.compacted if read_compacted else None
    if compacted is None:
        yield from reader.raw_before(end)
        return
    yield from reader.raw_before(end, compacted.horizon.offset)
    yield from reader.compacted_before(min(end, compacted.horizon.offset + 1), reader.manifest(compacted))


def _logical_size(message: Message) -> int:
    """Return the logical size of a message in bytes, as storage.ledger.rows.logical_sizes computes it."""
    properties = sum(len(text.encode()) for item in message.properties.items() for text in item)
    return len(message.key or b"") + len(message.payload or b"") + properties
