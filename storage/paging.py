"""Reading a topic page by page, where each page may be asked for in another process: all that is needed is a `Place`.

A place says where the next page begins and, for a read with the flag, which compacted ledger the read was in, so that
the next page keeps R7: no id twice, no deletion missed in silence (StateMayBeStale). It travels as text:

    17              from offset 17 on, raw; any start (`earliest`, a message id, `@` and a time) is a place, too
    17~5            the read is in compacted ledger 5; `17~5e`: which is in event-time order
    17~5r, 17~r     it has left compacted ledger 5, or was raw from the beginning, and goes on raw
    17.29, 17.29~r  a chunked message that began at 17 was not complete; what lies up to 29 was given already

A page holds at most the messages and bytes that were asked for, and at least one message if there is one (R10, L3). An
error behind messages that were found is left to the next page. Must not know: HTTP, formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from storage.chunks import ChunkAssembler
from storage.errors import CompactorError
from storage.model import EARLIEST, LATEST, Message, MessageId
from storage.pinned_read import PinnedRead, Standing
from storage.raw_read import RawRead, last_offset
from storage.reader import Limits, Page, row_messages
from storage.start import AtOffset, AtTime, Bound, FromId, FromOffset, Start

CHUNK_EXPIRY_MS = 600_000
"""A chunked message that is incomplete for so long, by publish times, does not make pages begin at it any more."""
_PLACE = re.compile(r"(\d{1,18})(?:\.(\d{1,18}))?(?:~(\d{0,18})(e?)(r?))?", re.ASCII)


@dataclass(frozen=True)
class Place:
    """Where a page begins. `given`: messages up to this offset were given; `standing`: it is one of a read with the
    flag that was in compacted ledger `entered`, or has left it (`is_raw`)."""

    start: Start
    given: int = -1
    standing: bool = False
    entered: int | None = None
    by_event: bool = False
    is_raw: bool = False

    @classmethod
    def parse(cls, text: str, parse_start: Callable[[str], Start]) -> Place:
        """From its text; what is no place of a page before is left to `parse_start`."""
        match = _PLACE.fullmatch(text)
        if match is None:
            return cls(parse_start(text))
        start, given, entered, by_event, raw = match.groups()
        return cls(
            AtOffset(int(start)),
            -1 if given is None else int(given),
            entered is not None,
            int(entered) if entered else None,
            bool(by_event),
            bool(raw),
        )

    def __str__(self) -> str:
        text = _start_text(self.start) + (f".{self.given}" if self.given >= 0 else "")
        if not self.standing:
            return text
        return f"{text}~{'' if self.entered is None else self.entered}{'e' * self.by_event}{'r' * self.is_raw}"


@dataclass(frozen=True)
class RowsPage:
    """A page of rows (rows.SCHEMA), and where the next one begins."""

    batches: list[pa.RecordBatch]
    next: Place


@dataclass(frozen=True)
class MessagesPage:
    """A page of messages, each chunked one as one (P10), and where the next one begins."""

    messages: list[Message]
    next: Place


class PageReader:
    """One page of a read; asked again while nothing came, it looks again. Not for use by two threads."""

    def __init__(self, read: RawRead | PinnedRead, place: Place, partition: int) -> None:
        """`read` begins at `place.start`; a place of a read with the flag goes on in one."""
        self._read = read
        self._place = place
        self._partition = partition
        self._chunks = ChunkAssembler()
        self._seen: list[tuple[int, Place]] = []
        """The tables that chunks of incomplete messages lie in: first offset, and the place behind it."""
        if isinstance(read, PinnedRead) and place.standing and isinstance(place.start, AtOffset):
            first = place.start.offset
            read.go_on(Standing(FromOffset(first), first - 1, place.entered, place.by_event, place.is_raw))

    def rows(self, limits: Limits) -> RowsPage:
        """The page as rows. Raises DataLoss (R8), StateMayBeStale (R7), OffsetOutOfRange."""
        page = Page(limits)
        batches: list[pa.RecordBatch] = []
        behind: Place | None = None
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
                        if whole is not None and whole.offset > self._place.given:
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

    def _restart(self, oldest: Message | None, row: Message) -> Place:
        """The place before `row`, which no page holds yet; `oldest`: what was incomplete before it."""
        first = row if oldest is None else min((oldest, row), key=lambda one: one.offset)
        given = row.offset - 1 if first is not row else -1
        return replace(self._place_of(first.offset), start=AtOffset(first.offset), given=given)

    def _behind(self, row: Message) -> Place:
        oldest = self._chunks.oldest
        if oldest is None or row.publish_time - oldest.publish_time > CHUNK_EXPIRY_MS:
            return self._behind_row(row.offset)
        return replace(self._place_of(oldest.offset), start=AtOffset(oldest.offset), given=row.offset)

    def _behind_row(self, offset: int) -> Place:
        return replace(self._here(), start=AtOffset(offset + 1))

    def _place_of(self, offset: int) -> Place:
        """The place behind the table in which an offset lies."""
        return next((place for first, place in reversed(self._seen) if first <= offset), self._seen[0][1])

    def _here(self) -> Place:
        """Where the read stands, behind the last table."""
        if isinstance(self._read, RawRead):
            return self._place if self._read.next is None else Place(_start_of(self._read.next))
        standing = self._read.standing
        if standing is None:
            return self._place
        return Place(_start_of(standing.next), -1, True, standing.entered, bool(standing.by_event), standing.is_raw)


def _size_of(message: Message) -> int:
    """As storage.ledger.rows.logical_sizes has it."""
    properties = sum(len(text.encode()) for item in message.properties.items() for text in item)
    return len(message.key or b"") + len(message.payload or b"") + properties


def _start_of(bound: Bound) -> Start:
    if isinstance(bound, FromOffset):
        return AtOffset(bound.offset)
    assert isinstance(bound, FromId), "a time is looked up before anything is read"
    return bound.message_id


def _start_text(start: Start) -> str:
    if isinstance(start, AtOffset):
        return str(start.offset)
    if isinstance(start, AtTime):
        return f"@{start.publish_time}"
    return {EARLIEST: "earliest", LATEST: "latest"}.get(start) or _id_text(start)


def _id_text(message_id: MessageId) -> str:
    return str(message_id)
