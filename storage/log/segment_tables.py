"""Reading unsealed segments as rows, as if they were ledgers; or their entries as they were sent.

Entries are read from the file (segment_reader.py), checked, unpacked (decode.py) and handed on as tables of
`rows.SCHEMA`, a few MiB at a time. Of an open segment what its writer lets be seen is read, and not waited for.

For a reader that wants entries, a table has a row an entry instead (`ENTRY_SCHEMA`), undecoded. That row stands at the
entry's last offset, so whatever finds a place among rows finds the entry that holds it.

May go wrong: ObjectMissing, ObjectDamaged, with file and position; Misconfigured for a segment that is elsewhere.
Memory: one table, about four times `TABLE_BYTES`, or one entry's messages if they are more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from storage.entries.decode import StoredEntry, unpack
from storage.errors import DataLoss
from storage.ledger import rows
from storage.ledger.seek import IdBound, OffsetBound, SeekPosition, TimeBound
from storage.log.directory import LogDirectory
from storage.log.segment import LocalSegment
from storage.log.segment_reader import SegmentReader
from storage.metadata.records import SegmentRecord, TopicRecord
from storage.model import LogPosition

TABLE_BYTES = 4 << 20
"""Uncompressed bytes of entries that become one table."""


ENTRY_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("batch_index", pa.int32(), nullable=False),
        pa.field("messages", pa.int32(), nullable=False),
        pa.field("publish_time", pa.int64(), nullable=False),
        pa.field("slot", pa.int8(), nullable=False),
        pa.field("entry", pa.binary(), nullable=False),
    ]
)
"""An undecoded entry a row. `offset` and `batch_index`: of its last message; `messages`: the offsets that it takes."""


@dataclass(frozen=True)
class SegmentTableReader:
    """Reads segments that are in one log directory."""

    log: LogDirectory

    def tables(
        self, topic: TopicRecord, segment: SegmentRecord, bound: SeekPosition, after_offset: int = -1
    ) -> Iterator[pa.Table]:
        """The rows of a segment from `bound` on, and not much of what is up to an offset; no table is empty."""
        reader = self._reader(topic, segment)
        with _naming_the_way_out(topic, segment):
            for entries in _gathered(reader.entries(_first_wanted(reader, segment, bound, after_offset))):
                table = self._unpacked(entries, segment.ledger_id)
                if first := bound.first_row(table):
                    table = table.slice(first)
                if len(table):
                    if isinstance(bound, TimeBound):
                        bound = OffsetBound(0)
                    yield table

    def _unpacked(self, entries: list[StoredEntry], ledger_id: int) -> pa.Table:
        return unpack(entries, ledger_id)

    def table(self, topic: TopicRecord, segment: SegmentRecord) -> pa.Table:
        """All rows of a segment, in memory."""
        reader = self._reader(topic, segment)
        with _naming_the_way_out(topic, segment):
            tables = [unpack(entries, segment.ledger_id) for entries in _gathered(reader.entries())]
        return pa.concat_tables(tables) if tables else rows.SCHEMA.empty_table()

    def last(self, topic: TopicRecord, segment: SegmentRecord) -> LogPosition | None:
        """The last message of a segment that can be seen; None: there is none."""
        with _naming_the_way_out(topic, segment):
            return self._reader(topic, segment).last()

    def _reader(self, topic: TopicRecord, segment: SegmentRecord) -> SegmentReader:
        self.log.check(topic.name, segment)
        return SegmentReader(
            LocalSegment.of(self.log, topic, segment), segment.content.size if segment.content else None
        )


class SegmentEntryReader(SegmentTableReader):
    """As `SegmentTableReader`, but its tables have a row an entry (ENTRY_SCHEMA)."""

    def _unpacked(self, entries: list[StoredEntry], ledger_id: int) -> pa.Table:
        headers = [entry.header for entry in entries]
        messages = [1 if header is None else header.messages for header in headers]
        columns = [
            [entry.offset + count - 1 for entry, count in zip(entries, messages, strict=True)],
            [ledger_id] * len(entries),
            [entry.entry_id for entry in entries],
            [
                count - 1 if header is not None and header.batched else -1
                for header, count in zip(headers, messages, strict=True)
            ],
            messages,
            [0 if header is None else header.publish_time for header in headers],
            [
                int(rows.RowType.MARKER if header is not None and header.marker else rows.RowType.WHOLE_ENTRY)
                for header in headers
            ],
            [entry.data for entry in entries],
        ]
        return pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, ENTRY_SCHEMA, strict=True)], ENTRY_SCHEMA
        )


@contextmanager
def _naming_the_way_out(topic: TopicRecord, segment: SegmentRecord) -> Iterator[None]:
    """Say of damage which command accepts it: that depends on whether the segment is still open."""
    try:
        yield
    except DataLoss as error:
        command = "topics roll" if segment.content is None else "log seal"
        raise type(error)(
            error.message,
            f"restore the file from a backup; or check what is left of it with `compactor log dump "
            f"{segment.ledger_id}`, and accept the loss of the rest with `compactor {command} {topic.name} "
            "--accept-loss`",
        ) from error


def _first_wanted(reader: SegmentReader, segment: SegmentRecord, bound: SeekPosition, after_offset: int) -> int:
    """The offset from which on a segment must be read; it may be before the bound, never behind it."""
    first = max(segment.first_offset, after_offset + 1)
    if isinstance(bound, OffsetBound):
        return max(first, bound.offset)
    if isinstance(bound, IdBound) and bound.message_id.ledger_id == segment.ledger_id:
        return max(first, reader.offset_of_entry(max(0, bound.message_id.entry_id)))
    if isinstance(bound, TimeBound):
        return max(first, reader.offset_at_time(bound.publish_time))
    return first


def _gathered(entries: Iterator[StoredEntry]) -> Iterator[list[StoredEntry]]:
    """Neighbours together, up to `TABLE_BYTES` uncompressed, at least one."""
    pending: list[StoredEntry] = []
    size = 0
    for entry in entries:
        logical = len(entry.data) if entry.header is None else max(len(entry.data), entry.header.logical_bytes)
        if pending and size + logical > TABLE_BYTES:
            yield pending
            pending, size = [], 0
        pending.append(entry)
        size += logical
    if pending:
        yield pending
