"""Reading a topic page by page, where each page may be asked for in another process: a `ReaderState` is all it needs.

A page holds at most the messages and bytes that were asked for, and at least one message if there is one (R10, L3). An
error behind messages that were found is left to the next page. Must not know: HTTP, formats.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from storage.entries.chunk_assembler import ChunkAssembler
from storage.errors import CompactorError
from storage.ledger.seek import AtOffset, start_of
from storage.model import Message
from storage.reading.compacted_reader import CompactedReader
from storage.reading.raw_reader import RawReader, last_offset
from storage.reading.reader_state import ReaderState
from storage.reading.snapshot_reader import Limits, Page, row_messages

CHUNK_EXPIRY_MS = 600_000
"""A chunked message that is incomplete for so long, by publish times, does not make pages begin at it any more."""


@dataclass(frozen=True)
class RowsPage:
    """A page of rows (rows.SCHEMA), and where the next one begins."""

    batches: list[pa.RecordBatch]
    next: ReaderState


@dataclass(frozen=True)
class MessagesPage:
    """A page of messages, each chunked one as one (P10), and where the next one begins."""

    messages: list[Message]
    next: ReaderState


class PageReader:
    """One page of a read; asked again while nothing came, it looks again. Not for use by two threads."""

    def __init__(self, read: RawReader | CompactedReader, state: ReaderState, partition: int) -> None:
        """`read` begins at `state.start`, and goes on as the compacted read before if it is one."""
        self._read = read
        self._state = state
        self._partition = partition
        self._chunks = ChunkAssembler()
        self._seen: list[tuple[int, ReaderState]] = []
        """The tables that chunks of incomplete messages are in: first offset, and the state behind it."""
        if isinstance(read, CompactedReader):
            read.go_on(state)

    def rows(self, limits: Limits) -> RowsPage:
        """The page as rows. Raises DataLoss (R8), StateMayBeStale (R7), OffsetOutOfRange."""
        page = Page(limits)
        batches: list[pa.RecordBatch] = []
        behind: ReaderState | None = None
        try:
            with closing(self._read.tables()) as tables:
                while not page.is_full and (table := next(tables, None)) is not None:
                    if taken := page.take(table):
                        given = table.slice(0, taken)
                        batches += given.combine_chunks().to_batches()
                        behind = self._behind_row(last_offset(given))
        except CompactorError:
            if behind is None:
                raise
            return RowsPage(batches, behind)
        return RowsPage(batches, behind if page.is_full and behind is not None else self._here())

    def messages(self, limits: Limits) -> MessagesPage:
        """The page as messages. Raises as `rows`."""
        found: list[Message] = []
        left = limits.bytes
        behind = None
        try:
            with closing(self._read.tables()) as tables:
                for table in tables:
                    self._note(table)
                    for row in row_messages(iter(table.to_batches()), self._partition):
                        before = self._chunks.oldest
                        whole = self._chunks.add(row) if row.is_chunk else row
                        if whole is not None and whole.offset > self._state.delivered:
                            size = _size_of(whole)
                            if found and left is not None and size > left:
                                return MessagesPage(found, self._restart(before, row))
                            found.append(whole)
                            left = None if left is None else left - size
                        behind = self._behind(row)
                        if len(found) == limits.messages:
                            return MessagesPage(found, behind)
        except CompactorError:
            if not found or behind is None:
                raise
            return MessagesPage(found, behind)
        return MessagesPage(found, self._here() if behind is None or self._chunks.oldest is None else behind)

    def _note(self, table: pa.Table) -> None:
        if self._chunks.oldest is None:
            self._seen.clear()
        self._seen.append((table.column("offset")[0].as_py(), self._here()))

    def _restart(self, oldest: Message | None, row: Message) -> ReaderState:
        """The state before `row`, which no page holds yet; `oldest`: what was incomplete before it."""
        first = row if oldest is None else min((oldest, row), key=lambda one: one.offset)
        delivered = row.offset - 1 if first is not row else -1
        return replace(self._state_of(first.offset), start=AtOffset(first.offset), delivered=delivered)

    def _behind(self, row: Message) -> ReaderState:
        oldest = self._chunks.oldest
        if oldest is None or row.publish_time - oldest.publish_time > CHUNK_EXPIRY_MS:
            return self._behind_row(row.offset)
        return replace(self._state_of(oldest.offset), start=AtOffset(oldest.offset), delivered=row.offset)

    def _behind_row(self, offset: int) -> ReaderState:
        return replace(self._here(), start=AtOffset(offset + 1))

    def _state_of(self, offset: int) -> ReaderState:
        """The state behind the table in which an offset is."""
        return next((state for first, state in reversed(self._seen) if first <= offset), self._seen[0][1])

    def _here(self) -> ReaderState:
        """Where the read is, behind the last table."""
        if isinstance(self._read, CompactedReader):
            return self._read.state or self._state
        return self._state if self._read.next is None else ReaderState(start_of(self._read.next))


def _size_of(message: Message) -> int:
    """As storage.ledger.rows.logical_sizes has it."""
    properties = sum(len(text.encode()) for item in message.properties.items() for text in item)
    return len(message.key or b"") + len(message.payload or b"") + properties
