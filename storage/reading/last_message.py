"""The last message that a reader gets, by its id (R6).

Looked for from the end: raw behind the horizon, then the compacted ledger. Rows that no reader gets do not count, and
of a chunked message only the last chunk does, if the message is complete: its other chunks are before it, in order, and
none was trimmed, hidden (C2) or never sent. A reader that waits for a message that can never be whole waits forever.

Whether a message is complete the chunk tables say, by the rule of `storage/ledger/chunk_table.py: assemble`. One walk
goes backwards and takes all last chunks along of which the first chunk was not found yet (`_Unfinished`), so each table
is read once, however many of them there are. It ends when none is left that is behind the last message. A segment has
no table, and is read through in windows that grow. Plain messages cost one row group, or one entry.

Memory: the ids of a row group or window, the chunk table of one ledger or one hash range, and 72 bytes a chunk of the
messages that are taken along. May go wrong: ObjectMissing, ObjectDamaged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from storage.ledger import chunk_table, rows
from storage.ledger.chunk_table import Chunks, Mask, assemble, belonging, chunk_records, offsets, read_ledger_chunks
from storage.ledger.deletion_bitmap import alive, read_deleted
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import HashRange
from storage.ledger.manifest import Manifest
from storage.ledger.rows_file import RowsReader
from storage.metadata.records import CompactedLedgerRecord, SegmentRecord
from storage.model import EARLIEST, LedgerRecord, MessageId
from storage.objects.interface import ObjectStore
from storage.reading.snapshot_reader import SnapshotReader, delivered, naming_compacted

_ID = ["offset", "publish_time", "ledger_id", "entry_id", "batch_index", "slot"]
_CHUNK = ["chunk_uuid", "chunk_index", "chunk_count"]
_WINDOW = 1024
"""The most offsets of a segment that are read together."""


class LastMessageFinder:
    """Looks in one snapshot, through its reader."""

    def __init__(self, store: ObjectStore, reader: SnapshotReader, hasher: KeyHasher) -> None:
        self._store = store
        self._reader = reader
        self._hasher = hasher
        self._manifest: Manifest | None = None

    def message_id(self, read_compacted: bool) -> MessageId:
        """The id of the last message that such a reader gets; EARLIEST (-1:-1) if there is none."""
        compacted = self._reader.snapshot.compacted if read_compacted else None
        first = max(compacted.horizon.offset + 1 if compacted else 0, self._reader.snapshot.topic.start_offset)
        last = self._last_raw(first, compacted)
        if last is None and compacted is not None:
            with naming_compacted(self._reader.snapshot):
                last = self._last_compacted(compacted)
        return last or EARLIEST

    def _last_raw(self, first: int, compacted: CompactedLedgerRecord | None) -> MessageId | None:
        """The last raw message from an offset on."""
        found = _Unfinished()
        for extent in reversed(self._reader.extents):
            if isinstance(extent, LedgerRecord):
                if extent.last_offset < first:
                    break
                if found.best is None and found.is_empty and self._ends_plainly(extent):
                    return extent.last_message_id
                self._search_ledger(extent, first, found)
            else:
                self._search_segment(extent, first, found)
            if found.is_over:
                break
        if compacted is not None and not found.is_over and not found.is_empty:
            with naming_compacted(self._reader.snapshot):
                for table in self._manifest_of(compacted).chunks:
                    if found.may_be_in(table.hash_range):
                        found.add(self._not_hidden(chunk_table.read_tables(self._store, [table], table.hash_range)))
        return None if found.best is None else self._raw_id(found.best)

    def _ends_plainly(self, ledger: LedgerRecord) -> bool:
        """Whether the footer says that all rows at the ledger's end are messages: then no row need be read."""
        reader = RowsReader(self._store, ledger.rows_object)
        return reader.most(len(reader.groups) - 1, "slot") == int(rows.RowType.MESSAGE)

    def _search_ledger(self, ledger: LedgerRecord, first: int, found: _Unfinished) -> None:
        chunks = read_ledger_chunks(self._store, ledger.index)
        found.add(chunks[offsets(chunks) >= np.uint64(first)])
        if found.best is not None:
            if found.best >= ledger.last_offset:  # only chunks are wanted of it
                return
            first = found.best + 1
        reader = RowsReader(self._store, ledger.rows_object)
        for number in reversed(range(len(reader.groups))):
            if reader.groups[number].last_offset < first:
                return
            table = reader.read(number, [*_ID, *_CHUNK])
            if found.note_plain(_from(first, delivered(table))):
                return

    def _search_segment(self, segment: SegmentRecord, first: int, found: _Unfinished) -> None:
        for start, stop in _windows(max(first, segment.first_offset), self._end_of(segment)):
            tables = list(self._window(segment, start, stop))
            records = (chunk_records(table, self._hasher) for table in tables)
            found.add(np.concatenate([chunk_table.none(), *records]))
            for table in reversed(tables):
                if found.note_plain(_from(first, delivered(table))):
                    break
            if found.is_over:
                return

    def _window(self, segment: SegmentRecord, start: int, stop: int) -> Iterator[pa.Table]:
        """The rows of a segment from the offset `start` to before `stop`."""
        for table in self._reader.segment(segment, start):
            found = table.column("offset").to_numpy()
            if found[0] >= stop:
                return
            yield table.slice(0, int(np.searchsorted(found, stop, "left")))

    def _end_of(self, segment: SegmentRecord) -> int:
        """The offset behind what can be read of a segment."""
        last = self._reader.unsealed_of(segment).last(self._reader.snapshot.topic, segment)
        return segment.first_offset if last is None else last.offset + 1

    def _raw_id(self, offset: int) -> MessageId:
        """The id of the row at an offset."""
        extent = next(extent for extent in reversed(self._reader.extents) if extent.first_offset <= offset)
        if isinstance(extent, LedgerRecord):
            reader = RowsReader(self._store, extent.rows_object)
            return self._id_of(reader.read(_group_of(reader, offset), _ID), offset)
        (table,) = self._window(extent, offset, offset + 1)
        return self._id_of(table, offset)

    def _last_compacted(self, compacted: CompactedLedgerRecord) -> MessageId | None:
        """The last live message of the compacted ledger that may be seen."""
        retention = self._reader.retention
        if retention is None and not self._may_hold_incomplete(compacted):
            return compacted.last_message_id
        manifest = self._manifest_of(compacted)
        if retention is None and not any(table.pending for table in manifest.chunks):
            return compacted.last_message_id
        whole: int | None = None  # found when it is needed
        for part in reversed(manifest.parts):
            if retention is not None and retention.hides_all(part):
                continue
            reader, deleted = RowsReader(self._store, part.rows), read_deleted(self._store, part)
            for number in reversed(range(len(reader.groups))):
                newest = reader.most(number, "publish_time")
                if retention is not None and newest is not None and not retention.shows(part.last.offset, newest):
                    continue
                table = reader.read(number, [*_ID, *_CHUNK])
                if deleted:
                    live = alive(deleted, part.first.offset, table.column("offset").to_numpy())
                    table = table.filter(pa.array(live))
                table = table if retention is None else retention.of(table)
                if whole is None and belonging(table).any():
                    whole = self._last_whole(manifest)
                last = _last_plain(table)
                if whole is not None and whole in table.column("offset").to_numpy():
                    last = whole if last is None else max(last, whole)
                if last is not None:
                    return self._id_of(table, last)
        return None

    def _last_whole(self, manifest: Manifest) -> int:
        """The offset of the last chunked message of which all chunks may be seen; -1: there is none."""
        found = -1
        for table in manifest.chunks:
            ends = assemble(self._not_hidden(chunk_table.read_tables(self._store, [table], table.hash_range))).offset
            found = max(found, int(ends.max()) if len(ends) else -1)
        return found

    def _not_hidden(self, chunks: list[Chunks]) -> Chunks:
        """Those that may be seen."""
        found: Chunks = np.concatenate([chunk_table.none(), *chunks])
        retention = self._reader.retention
        if retention is None:
            return found
        visible = offsets(found).astype(np.int64) >= retention.start_offset
        if retention.not_before_ms is not None:
            visible &= found["publish_time"] >= retention.not_before_ms
        return found[visible]

    def _may_hold_incomplete(self, compacted: CompactedLedgerRecord) -> bool:
        """Whether its run says that it holds chunks of an incomplete message, which might be its last row."""
        run = self._reader.snapshot.last_run
        if run is None or run.compacted_ledger_id != compacted.ledger_id:
            return True
        return bool(run.statistics.get("incomplete_chunks"))

    def _manifest_of(self, compacted: CompactedLedgerRecord) -> Manifest:
        self._manifest = self._manifest or self._reader.manifest(compacted)
        return self._manifest

    def _id_of(self, table: pa.Table, offset: int) -> MessageId:
        """The id of one of the rows of a table, by its offset."""
        at = int(np.searchsorted(table.column("offset").to_numpy(), offset, "left"))
        row: dict[str, int] = table.slice(at, 1).select(_ID).to_pylist()[0]
        assert row["offset"] == offset
        return MessageId(
            row["ledger_id"], row["entry_id"], self._reader.snapshot.topic.name.partition, row["batch_index"]
        )


class _Unfinished:
    """What a walk backwards takes along: the chunks of messages of which the last chunk was found, and the first not.

    `best`: the offset of the last message that is known to be whole; None: there is none yet.
    """

    def __init__(self) -> None:
        self.best: int | None = None
        self._chunks = chunk_table.none()

    @property
    def is_empty(self) -> bool:
        """Whether no message is unfinished."""
        return not len(self._chunks)

    @property
    def is_over(self) -> bool:
        """Whether the last message is known: none that is unfinished is behind it."""
        return self.best is not None and not _behind(_ends(self._chunks), self.best).any()

    def may_be_in(self, hash_range: HashRange) -> bool:
        """Whether a hash range may have chunks of what is unfinished."""
        return len(chunk_table.inside(self._chunks, hash_range)) > 0

    def note_plain(self, table: pa.Table) -> bool:
        """Whether a table, of rows that a reader gets, has a plain message, which is whole by itself."""
        last = _last_plain(table)
        if last is not None:
            self.best = last if self.best is None else max(last, self.best)
        return last is not None

    def add(self, chunks: Chunks) -> None:
        """The chunks before those that were added, in any order: some messages are whole with them, others begin."""
        ends = _ends(chunks)
        begun = ends if self.best is None else ends[_behind(ends, self.best)]
        wanted = np.concatenate([self._chunks["uuid_hi"], begun["uuid_hi"]])  # of another message, it is passed over
        chunks = chunks[np.isin(chunks["uuid_hi"], wanted)]
        if not len(chunks):
            return
        touched = np.isin(self._chunks["uuid_hi"], chunks["uuid_hi"])
        unfinished = self._settled(np.concatenate([chunks, self._chunks[touched]]))
        self._chunks = np.concatenate([unfinished, self._chunks[~touched]])

    def _settled(self, chunks: Chunks) -> Chunks:
        """Note the messages that are whole; the chunks of those that are neither whole nor known never to be.

        What is before a message's first chunk plays no part in it.
        """
        found = assemble(chunks)
        if len(found.offset):
            last = int(found.offset.max())
            self.best = last if self.best is None else max(last, self.best)
        chunks, group, offset = found.chunks, found.group, offsets(found.chunks)
        first = np.full(int(group[-1]) + 1, np.iinfo(np.uint64).max)
        begins = chunks["index"] == 0
        np.minimum.at(first, group[begins], offset[begins])
        ends = (chunks["index"] + 1 == chunks["count"]) & (offset < first[group])
        if self.best is not None:
            ends &= offset > np.uint64(self.best)
        is_wanted = np.zeros(len(first), dtype=np.bool_)
        is_wanted[group[ends]] = True
        unfinished: Chunks = chunks[is_wanted[group] & (offset < first[group])]
        return unfinished


def _from(first: int, table: pa.Table) -> pa.Table:
    """The rows from an offset on."""
    return table.slice(int(np.searchsorted(table.column("offset").to_numpy(), first, "left")))


def _last_plain(table: pa.Table) -> int | None:
    """The offset of the last row that is no chunk of a message; None: all are."""
    found = np.flatnonzero(~belonging(table))
    return table.column("offset")[int(found[-1])].as_py() if len(found) else None


def _group_of(reader: RowsReader, offset: int) -> int:
    """The row group that holds an offset."""
    return next(number for number, group in enumerate(reader.groups) if offset <= group.last_offset)


def _ends(chunks: Chunks) -> Chunks:
    """Those with which a message may be whole."""
    found: Chunks = chunks[chunks["index"] + 1 == chunks["count"]]
    return found


def _behind(chunks: Chunks, offset: int) -> Mask:
    """Which are behind an offset."""
    found: Mask = offsets(chunks) > np.uint64(offset)
    return found


def _windows(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of offsets from `end` down to `first`, of growing length."""
    length = 1
    while end > first:
        start = max(first, end - length)
        yield start, end
        end, length = start, min(8 * length, _WINDOW)
