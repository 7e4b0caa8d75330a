"""Seek positions: the first message of a read, and the extents, row groups and rows before it.

A start position (storage/positions.py) that names a message becomes a seek position, which decides whether extents, row
groups and rows are before it. Seek positions by offset and by id agree on the same messages, because ids and offsets
agree in order. A publish time is first turned into the offset of the first message that was published then or later. A
seek position in the source cluster serves replicated topics (storage/reading/source_reader.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from storage.ledger import rows
from storage.ledger.rows_file import RowsReader
from storage.model import LogPosition, MessageId, SourcePosition
from storage.positions import StartOffset, StartPosition


class SeekPosition(Protocol):
    """The first message of a read, which need not exist."""

    def surely_begins_after(self, last: LogPosition) -> bool:
        """Return whether the read is known to begin after the message at `last`."""

    def skips_row_group(self, reader: RowsReader, group: int) -> bool:
        """Return whether a row group is known to hold no row of the read."""

    def first_row(self, table: pa.Table) -> int:
        """Return the first row of `table` (rows.SCHEMA, ascending) to read; its length if there is none."""


@dataclass(frozen=True)
class SeekOffset:
    """A seek position by offset."""

    offset: int

    def __str__(self) -> str:
        return f"offset {self.offset}"

    def surely_begins_after(self, last: LogPosition) -> bool:
        return last.offset < self.offset

    def skips_row_group(self, reader: RowsReader, group: int) -> bool:
        return reader.groups[group].last_offset < self.offset

    def first_row(self, table: pa.Table) -> int:
        return int(table.column("offset").to_numpy().searchsorted(self.offset, "left"))


NOWHERE = SeekOffset(2**63 - 1)
"""A seek position after every message."""


@dataclass(frozen=True)
class SeekMessageId:
    """A seek position by message id."""

    message_id: MessageId

    def __str__(self) -> str:
        return f"the message {self.message_id}"

    def surely_begins_after(self, last: LogPosition) -> bool:
        return last.message_id < self.message_id

    def skips_row_group(self, reader: RowsReader, group: int) -> bool:
        row_group, start = reader.groups[group], self.message_id
        if row_group.last_ledger_id != start.ledger_id:
            return row_group.last_ledger_id < start.ledger_id
        return row_group.last_entry_id is not None and row_group.last_entry_id < start.entry_id

    def first_row(self, table: pa.Table) -> int:
        if not len(table) or rows.message_id(table, 0) >= self.message_id:
            return 0
        start = self.message_id
        ledger, entry, index = (table.column(name) for name in ("ledger_id", "entry_id", "batch_index"))
        same_ledger = pc.equal(ledger, start.ledger_id)
        same_entry = pc.and_(same_ledger, pc.equal(entry, start.entry_id))
        before = pc.or_(
            pc.or_(pc.less(ledger, start.ledger_id), pc.and_(same_ledger, pc.less(entry, start.entry_id))),
            pc.and_(same_entry, pc.less(index, start.batch_index)),
        )
        return int(pc.sum(before).as_py())


@dataclass(frozen=True)
class SeekTime:
    """The first message that was published at `publish_time` or later: for a search, not to continue a read.

    Messages after it may be older: producers' clocks differ.
    """

    publish_time: int

    def surely_begins_after(self, last: LogPosition) -> bool:
        """Return False: a position has no publish time, so no extent is ruled out by it."""
        return False

    def skips_row_group(self, reader: RowsReader, group: int) -> bool:
        newest = reader.greatest(group, "publish_time")
        return newest is not None and newest < self.publish_time

    def first_row(self, table: pa.Table) -> int:
        at_or_after = pc.greater_equal(table.column("publish_time"), self.publish_time)
        first = pc.index(at_or_after, True).as_py()
        return len(table) if first < 0 else int(first)


@dataclass(frozen=True)
class SeekSource:
    """The first message of the entry at a position of the source cluster, or after it: for rows of one source.

    A row without a source position counts as after every position.
    """

    position: SourcePosition

    def __str__(self) -> str:
        return f"the source's entry {self.position}"

    def surely_begins_after(self, last: LogPosition) -> bool:
        """Return False: a position here has none of the source, so no extent is ruled out by it."""
        return False

    def skips_row_group(self, reader: RowsReader, group: int) -> bool:
        ledger_column, entry_column = rows.SOURCE_COLUMNS
        ledger, entry = reader.greatest(group, ledger_column), reader.greatest(group, entry_column)
        if ledger is None or entry is None:
            return False
        if ledger != self.position.ledger_id:
            return ledger < self.position.ledger_id
        return reader.least(group, ledger_column) == ledger and entry < self.position.entry_id

    def first_row(self, table: pa.Table) -> int:
        ledger, entry = (table.column(name) for name in rows.SOURCE_COLUMNS)
        start = self.position
        same_ledger = pc.equal(ledger, start.ledger_id)
        before = pc.or_(pc.less(ledger, start.ledger_id), pc.and_(same_ledger, pc.less(entry, start.entry_id)))
        first = pc.index(pc.fill_null(before, False), False).as_py()
        return len(table) if first < 0 else int(first)


def seek_position_of(start: MessageId | StartOffset) -> SeekPosition:
    """Return the seek position of a start that is an offset or a message id."""
    return SeekOffset(start.offset) if isinstance(start, StartOffset) else SeekMessageId(start)


def start_position_of(seek: SeekPosition) -> StartPosition:
    """Return the start position of a seek position, the inverse of `seek_position_of`; a `SeekTime` is not allowed."""
    if isinstance(seek, SeekOffset):
        return StartOffset(seek.offset)
    assert isinstance(seek, SeekMessageId), "a time is looked up before anything is read"
    return seek.message_id
