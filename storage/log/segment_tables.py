"""Unsealed segments as rows, as if they were ledgers; or their entries as they were sent.

Entries are read from the file (segment_reader.py), checked, unpacked (decode.py) and returned as tables of
`rows.SCHEMA`, a few MiB at a time; the first ones are small, so a reader of one message unpacks few entries. An open
segment is read up to its visible end, without waiting.

For a reader of entries, a table has a row for each entry instead (`ENTRY_SCHEMA`), undecoded. The row has the entry's
last offset, so a search for a place among rows finds the entry that holds it. The bytes of the entry are not in the
table, which would copy them, but beside it.

Errors: ObjectMissing, ObjectDamaged, with file and position; Misconfigured for a segment in another directory;
Unavailable if other reads hold too many bytes of large entries. Memory: one table, about four times `TABLE_BYTES`, or
one entry's messages if they are larger; for a reader of entries, `ENTRIES_BYTES` and as much of the file. All reads of
a process share a budget for large entries (decode_budget.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

import pyarrow as pa

from storage.advice import Advice, AdviceKind
from storage.ahead import run_ahead
from storage.entries.decode import StoredEntry, unpack, unpack_in_blocks
from storage.errors import DataLoss
from storage.ledger import rows
from storage.ledger.seek import SeekMessageId, SeekOffset, SeekPosition, SeekTime
from storage.log.directory import LogDirectory
from storage.log.frame_reader import CHUNK_BYTES
from storage.log.segment import LocalSegment
from storage.log.segment_reader import SegmentReader
from storage.metadata.records import SegmentRecord, TopicRecord
from storage.model import LogPosition

TABLE_BYTES = 4 << 20
"""Uncompressed bytes of entries that become one table."""
FIRST_TABLE_BYTES = 16 << 10
"""The same of the first table of a read; each further one is `TABLE_GROWTH` times as large, up to `TABLE_BYTES`."""
TABLE_GROWTH = 8
ENTRY_BYTES = 1 << 10
"""An entry counts at least as so many bytes for the size of a table: unpacking a small one takes as long."""
SEALED_BYTES = 24 << 20
"""The same when a whole segment is read: more batches are decoded together, and they fit the cache of a core."""
ENTRIES_BYTES = 2 << 20
"""Stored bytes of undecoded entries that are returned together."""

ENTRY_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("batch_index", pa.int32(), nullable=False),
        pa.field("messages", pa.int32(), nullable=False),
        pa.field("publish_time", pa.int64(), nullable=False),
        pa.field("slot", pa.int8(), nullable=False),
        pa.field("entry", pa.int32(), nullable=False),
    ]
)
"""Rows of undecoded entries. `offset` and `batch_index`: of the last message; `messages`: the number of offsets;
`entry`: the index in `SegmentEntryReader.data`."""


_LARGE = {b"large": b""}


def mark_budgeted(table: pa.Table) -> pa.Table:
    """Mark a table, and the slices and filtered copies of it, as one whose memory is reserved in the budget of large
    entries."""
    return table.replace_schema_metadata(_LARGE)


def is_budgeted(table: pa.Table) -> bool:
    """Return whether a table's memory is reserved in the budget of large entries, until its iterator is closed or read
    further."""
    return bool(table.schema.metadata == _LARGE)


@dataclass(frozen=True)
class SegmentTableReader:
    """A reader of segments as tables of rows, for one log directory."""

    log: LogDirectory
    chunk_bytes: int = CHUNK_BYTES

    def tables(
        self, topic: TopicRecord, segment: SegmentRecord, seek: SeekPosition, after_offset: int = -1
    ) -> Iterator[pa.Table]:
        """Yield the rows of a segment from `seek` on, as tables of which none is empty. Rows up to `after_offset` are
        left out as far as whole entries are before it."""
        reader = self._segment_reader(topic, segment)
        with _adding_loss_advice(topic, segment):
            for entries in self._group_entries(
                reader.entries(_first_needed_offset(reader, segment, seek, after_offset))
            ):
                size = self._large_entry_bytes(entries)
                with self.log.decoding.hold(size):
                    table = self._table_of(entries, segment.ledger_id)
                    if size:
                        table = mark_budgeted(table)
                    entries.clear()  # not held while the table is read
                    if first := seek.first_row(table):
                        table = table.slice(first)
                    if len(table):
                        if isinstance(seek, SeekTime):
                            seek = SeekOffset(0)
                        yield table
                    del table

    def _large_entry_bytes(self, entries: list[StoredEntry]) -> int:
        """Return the decoded bytes of a single large entry, which needs a part of the budget; 0: there is no large
        one."""
        size = _decoded_size(entries[0]) if len(entries) == 1 else 0
        return size if size > TABLE_BYTES else 0

    def _table_of(self, entries: list[StoredEntry], ledger_id: int) -> pa.Table:
        return unpack(entries, ledger_id)

    def all_tables(self, topic: TopicRecord, segment: SegmentRecord, first_offset: int = 0) -> Iterator[pa.Table]:
        """Yield all rows of a segment from an entry on, as tables; a thread reads and decodes the next table while the
        caller uses one.

        `first_offset`: the first offset of the entry with which to begin. `SEALED_BYTES` of entries and two tables are
        held.
        """
        tables = self._all_tables(topic, segment, first_offset)
        for table in run_ahead(repeat(partial(next, tables, None)), ahead=1):
            if table is None:
                return
            yield table

    def _all_tables(self, topic: TopicRecord, segment: SegmentRecord, first_offset: int) -> Iterator[pa.Table]:
        reader = self._segment_reader(topic, segment)
        with _adding_loss_advice(topic, segment):
            for entries in _group_by_size(reader.entries(first_offset), SEALED_BYTES, SEALED_BYTES, _decoded_size):
                yield from unpack_in_blocks(entries, segment.ledger_id)

    def last_position(self, topic: TopicRecord, segment: SegmentRecord) -> LogPosition | None:
        """Return the position of the last visible message of a segment; None: there is none."""
        with _adding_loss_advice(topic, segment):
            return self._segment_reader(topic, segment).last_position()

    def _group_entries(self, entries: Iterator[StoredEntry]) -> Iterator[list[StoredEntry]]:
        return _group_by_size(entries, FIRST_TABLE_BYTES, TABLE_BYTES, _table_size)

    def _segment_reader(self, topic: TopicRecord, segment: SegmentRecord) -> SegmentReader:
        self.log.check_is_local(topic.name, segment)
        return SegmentReader(
            LocalSegment.from_row(self.log, topic, segment),
            segment.content.size if segment.content else None,
            chunk_bytes=self.chunk_bytes,
        )


@dataclass(frozen=True)
class SegmentEntryReader(SegmentTableReader):
    """A `SegmentTableReader` whose tables have a row for each entry (ENTRY_SCHEMA). For one read.

    `data`: the entries of the last table; the reader of the table removes them.
    """

    chunk_bytes: int = CHUNK_BYTES // 2
    data: list[bytes] = field(default_factory=list, compare=False)

    def _group_entries(self, entries: Iterator[StoredEntry]) -> Iterator[list[StoredEntry]]:
        return _group_by_size(entries, ENTRIES_BYTES, ENTRIES_BYTES, lambda entry: len(entry.data))

    def _large_entry_bytes(self, entries: list[StoredEntry]) -> int:
        return 0

    def _table_of(self, entries: list[StoredEntry], ledger_id: int) -> pa.Table:
        self.data[:] = [entry.data for entry in entries]
        headers = [entry.header for entry in entries]
        messages = [header.messages for header in headers]
        columns = [
            [entry.offset + count - 1 for entry, count in zip(entries, messages, strict=True)],
            [ledger_id] * len(entries),
            [entry.entry_id for entry in entries],
            [header.messages - 1 if header.batched else -1 for header in headers],
            messages,
            [header.publish_time for header in headers],
            [int(rows.RowType.MARKER if header.marker else rows.RowType.WHOLE_ENTRY) for header in headers],
            range(len(entries)),
        ]
        return pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, ENTRY_SCHEMA, strict=True)], ENTRY_SCHEMA
        )


@contextmanager
def _adding_loss_advice(topic: TopicRecord, segment: SegmentRecord) -> Iterator[None]:
    """Add the advice how to accept the loss to an error of damage inside the context: it depends on whether the segment
    is open."""
    try:
        yield
    except DataLoss as error:
        kind = AdviceKind.ACCEPT_LOSS_OPEN if segment.content is None else AdviceKind.ACCEPT_LOSS_ROLLED
        advice = Advice(kind, {"ledger_id": segment.ledger_id, "topic": topic.name})
        raise type(error)(error.message, advice) from error


def _first_needed_offset(reader: SegmentReader, segment: SegmentRecord, seek: SeekPosition, after_offset: int) -> int:
    """Return the offset from which on a segment must be read for a seek position; it may be before that position, never
    after it."""
    first = max(segment.first_offset, after_offset + 1)
    if isinstance(seek, SeekOffset):
        return max(first, seek.offset)
    if isinstance(seek, SeekMessageId) and seek.message_id.ledger_id == segment.ledger_id:
        return max(first, reader.offset_of_entry(max(0, seek.message_id.entry_id)))
    if isinstance(seek, SeekTime):
        return max(first, reader.offset_at_time(seek.publish_time))
    return first


def _decoded_size(entry: StoredEntry) -> int:
    return max(len(entry.data), entry.header.payload_bytes)


def _table_size(entry: StoredEntry) -> int:
    return max(ENTRY_BYTES, _decoded_size(entry))


def _group_by_size(
    entries: Iterator[StoredEntry], first_limit: int, limit: int, size_of: Callable[[StoredEntry], int]
) -> Iterator[list[StoredEntry]]:
    """Group neighbouring entries, and yield the groups, of at least one entry: the first has up to `first_limit` bytes,
    the next ones more, up to `limit`."""
    pending: list[StoredEntry] = []
    size, allowed = 0, min(first_limit, limit)
    for entry in entries:
        bytes_of_entry = size_of(entry)
        if pending and size + bytes_of_entry > allowed:
            yield pending
            pending, size, allowed = [], 0, min(TABLE_GROWTH * allowed, limit)
        pending.append(entry)
        size += bytes_of_entry
    if pending:
        yield pending
