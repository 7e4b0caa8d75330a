"""The last message that a reader gets, by its id (R6).

The search goes from the end: raw after the horizon, then the compacted ledger. Rows that no reader gets do not count.
Of a chunked message only the last chunk counts, and only if the message is complete: its other chunks are before it, in
order, and none was trimmed, hidden (C2) or never sent. A reader that waits for an incomplete message would wait
forever.

The chunk tables tell whether a message is complete, by the rule of `storage/ledger/chunk_table.py: assemble`. One
backward walk carries all last chunks whose first chunk was not reached yet (`_UnfinishedMessages`), so each table is
read once, whatever their number. It ends when no carried chunk is after the last known message. A segment has no table,
and is read in windows that grow. Plain messages cost one row group, or one entry.

Memory: the ids of a row group or window, the chunk table of one ledger or one hash range, and 72 bytes for each carried
chunk. Errors: ObjectMissing, ObjectDamaged.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage.ledger import chunk_table, rows
from storage.ledger.chunk_table import (
    Chunks,
    Mask,
    assemble_chunk_records,
    chunk_mask,
    chunk_offsets,
    chunk_records,
    read_ledger_chunks,
)
from storage.ledger.deletion_bitmap import live_mask, read_deleted_rows
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import HashRange
from storage.ledger.manifest import Manifest
from storage.ledger.rows_file import RowsReader
from storage.metadata.records import CompactedLedgerRecord, SegmentRecord
from storage.model import EARLIEST, LedgerRecord, MessageId
from storage.objects.interface import ObjectStore
from storage.reading.compacted_loss import naming_compacted_ledger
from storage.reading.snapshot_reader import SnapshotReader, deliverable_rows

_ID = ["offset", "publish_time", "ledger_id", "entry_id", "batch_index", "slot"]
_CHUNK = ["chunk_uuid", "chunk_index", "chunk_count"]
_EVERY = 2**63 - 1
"""An offset after all others."""


class LastMessageFinder:
    """A search for the id of the last message that a reader of one snapshot gets."""

    def __init__(self, store: ObjectStore, reader: SnapshotReader, hasher: KeyHasher) -> None:
        self._store = store
        self._reader = reader
        self._hasher = hasher
        self._manifest: Manifest | None = None

    def message_id(self, read_compacted: bool) -> MessageId:
        """Return the id of the last message that a reader with this flag gets; EARLIEST (-1:-1) if there is none.

        Raises ObjectMissing, ObjectDamaged.
        """
        compacted = self._reader.snapshot.compacted if read_compacted else None
        first = max(compacted.horizon.offset + 1 if compacted else 0, self._reader.snapshot.topic.start_offset)
        last = self._last_raw_id(first, compacted)
        if last is None and compacted is not None:
            with naming_compacted_ledger(self._reader.snapshot):
                last = self._last_compacted_id(compacted)
        return last or EARLIEST

    def compacted_message_id(self, compacted: CompactedLedgerRecord) -> MessageId:
        """Return the id of the last message in a compacted ledger that a reader gets; EARLIEST if there is none."""
        with naming_compacted_ledger(self._reader.snapshot):
            return self._last_compacted_id(compacted) or EARLIEST

    def _last_raw_id(self, first: int, compacted: CompactedLedgerRecord | None) -> MessageId | None:
        """Return the id of the last complete raw message at `first` or a later offset; None: there is none.

        `compacted`: the compacted ledger before that offset, which may hold the first chunks of such a message.
        """
        unfinished = _UnfinishedMessages()
        for extent in reversed(self._reader.extents):
            if isinstance(extent, LedgerRecord):
                if extent.last_offset < first:
                    break
                if unfinished.best is None and unfinished.is_empty and self._ends_with_plain_message(extent):
                    return extent.last_message_id
                self._search_ledger(extent, first, unfinished)
            else:
                self._search_segment(extent, first, unfinished)
            if unfinished.is_last_known:
                break
        if compacted is not None and not unfinished.is_last_known and not unfinished.is_empty:
            with naming_compacted_ledger(self._reader.snapshot):
                for table in self._manifest_of(compacted).chunks:
                    if unfinished.may_be_in(table.hash_range):
                        unfinished.add(
                            self._visible_chunks(chunk_table.read_chunk_tables(self._store, [table], table.hash_range))
                        )
        return None if unfinished.best is None else self._raw_message_id(unfinished.best)

    def _ends_with_plain_message(self, ledger: LedgerRecord) -> bool:
        """Return whether a ledger's last row group holds only unchunked messages, by its footer: then no row need be
        read."""
        reader = RowsReader(self._store, ledger.rows_object)
        return reader.greatest(len(reader.groups) - 1, "slot") == int(rows.RowType.MESSAGE)

    def _search_ledger(self, ledger: LedgerRecord, first: int, unfinished: _UnfinishedMessages) -> None:
        chunks = read_ledger_chunks(self._store, ledger.index)
        unfinished.add(chunks[chunk_offsets(chunks) >= np.uint64(first)])
        if unfinished.best is not None:
            if unfinished.best >= ledger.last_offset:  # only its chunks were needed
                return
            first = unfinished.best + 1
        reader = RowsReader(self._store, ledger.rows_object)
        for number in reversed(range(len(reader.groups))):
            if reader.groups[number].last_offset < first:
                return
            table = reader.read(number, [*_ID, *_CHUNK])
            if unfinished.note_last_plain(_rows_from(first, deliverable_rows(table))):
                return

    def _search_segment(self, segment: SegmentRecord, first: int, unfinished: _UnfinishedMessages) -> None:
        for tables in self._reader.segment_windows_backwards(segment, first, _EVERY):
            records = (chunk_records(table, self._hasher) for table in tables)
            unfinished.add(np.concatenate([chunk_table.empty_chunks(), *records]))
            for table in reversed(tables):
                if unfinished.note_last_plain(_rows_from(first, deliverable_rows(table))):
                    break
            if unfinished.is_last_known:
                return

    def _raw_message_id(self, offset: int) -> MessageId:
        """Return the id of the raw message whose row is at an offset."""
        extent = next(extent for extent in reversed(self._reader.extents) if extent.first_offset <= offset)
        if isinstance(extent, LedgerRecord):
            reader = RowsReader(self._store, extent.rows_object)
            return self._message_id_at(reader.read(_row_group_number(reader, offset), _ID), offset)
        (table,) = self._reader.segment_window(extent, offset, offset + 1)
        return self._message_id_at(table, offset)

    def _last_compacted_id(self, compacted: CompactedLedgerRecord) -> MessageId | None:
        """Return the id of the last live, visible and complete message of the compacted ledger; None: there is none."""
        retention = self._reader.retention
        if retention is None and not self._may_hold_incomplete_message(compacted):
            return compacted.last_message_id
        manifest = self._manifest_of(compacted)
        if retention is None and not any(table.pending for table in manifest.chunks):
            return compacted.last_message_id
        whole: int | None = None  # searched on first use
        for part in reversed(manifest.parts):
            if retention is not None and retention.hides_all(part):
                continue
            reader, deleted = RowsReader(self._store, part.rows), read_deleted_rows(self._store, part)
            for number in reversed(range(len(reader.groups))):
                newest = reader.greatest(number, "publish_time")
                if retention is not None and newest is not None and not retention.shows(part.last.offset, newest):
                    continue
                table = reader.read(number, [*_ID, *_CHUNK])
                if deleted:
                    live = live_mask(deleted, part.first.offset, table.column("offset").to_numpy())
                    table = table.filter(pa.array(live))
                table = table if retention is None else retention.visible_rows(table)
                if whole is None and chunk_mask(table).any():
                    whole = self._last_complete_chunked_offset(manifest)
                last = _last_plain_offset(table)
                if whole is not None and whole in table.column("offset").to_numpy():
                    last = whole if last is None else max(last, whole)
                if last is not None:
                    return self._message_id_at(table, last)
        return None

    def _last_complete_chunked_offset(self, manifest: Manifest) -> int:
        """Return the offset of the last chunked message of a compacted ledger whose chunks are all visible; -1: there
        is none."""
        last = -1
        for table in manifest.chunks:
            ends = assemble_chunk_records(
                self._visible_chunks(chunk_table.read_chunk_tables(self._store, [table], table.hash_range))
            ).message_offsets
            last = max(last, int(ends.max()) if len(ends) else -1)
        return last

    def _visible_chunks(self, chunks: list[Chunks]) -> Chunks:
        """Return the chunks that retention does not hide, in one array."""
        candidates: Chunks = np.concatenate([chunk_table.empty_chunks(), *chunks])
        retention = self._reader.retention
        if retention is None:
            return candidates
        visible = chunk_offsets(candidates).astype(np.int64) >= retention.start_offset
        if retention.not_before_ms is not None:
            visible &= candidates["publish_time"] >= retention.not_before_ms
        return candidates[visible]

    def _may_hold_incomplete_message(self, compacted: CompactedLedgerRecord) -> bool:
        """Return whether the compacted ledger may hold chunks of an incomplete message, which might be its last row."""
        run = self._reader.snapshot.last_run
        if run is None or run.compacted_ledger_id != compacted.ledger_id:
            return True
        return bool(run.statistics.get("incomplete_chunks"))

    def _manifest_of(self, compacted: CompactedLedgerRecord) -> Manifest:
        self._manifest = self._manifest or self._reader.manifest(compacted)
        return self._manifest

    def _message_id_at(self, table: pa.Table, offset: int) -> MessageId:
        """Return the message id of the row with an offset in a table, which must have it."""
        at = int(np.searchsorted(table.column("offset").to_numpy(), offset, "left"))
        row: dict[str, int] = table.slice(at, 1).select(_ID).to_pylist()[0]
        assert row["offset"] == offset
        return MessageId(
            row["ledger_id"], row["entry_id"], self._reader.snapshot.topic.name.partition, row["batch_index"]
        )


class _UnfinishedMessages:
    """The chunks of messages of which a backward walk has passed the last chunk, but not yet the first.

    `best`: the offset of the last message that is known to be complete; None: none is known yet.
    """

    def __init__(self) -> None:
        self.best: int | None = None
        self._chunks = chunk_table.empty_chunks()

    @property
    def is_empty(self) -> bool:
        """True if no message is unfinished."""
        return not len(self._chunks)

    @property
    def is_last_known(self) -> bool:
        """True if the topic's last complete message is known: no unfinished message ends after it."""
        return self.best is not None and not _after_mask(_last_chunks(self._chunks), self.best).any()

    def may_be_in(self, hash_range: HashRange) -> bool:
        """Return whether a hash range may hold chunks of unfinished messages."""
        return len(chunk_table.chunks_in_range(self._chunks, hash_range)) > 0

    def note_last_plain(self, table: pa.Table) -> bool:
        """Record the last unchunked message of a table of delivered rows as complete; return whether the table has
        one."""
        last = _last_plain_offset(table)
        if last is not None:
            self.best = last if self.best is None else max(last, self.best)
        return last is not None

    def add(self, chunks: Chunks) -> None:
        """Add chunks that precede the present ones, in any order: they complete some messages and begin others."""
        ends = _last_chunks(chunks)
        begun = ends if self.best is None else ends[_after_mask(ends, self.best)]
        messages = np.concatenate([self._chunks["uuid_hi"], begun["uuid_hi"]])  # chunks of other messages are skipped
        chunks = chunks[np.isin(chunks["uuid_hi"], messages)]
        if not len(chunks):
            return
        touched = np.isin(self._chunks["uuid_hi"], chunks["uuid_hi"])
        unfinished = self._remove_complete(np.concatenate([chunks, self._chunks[touched]]))
        self._chunks = np.concatenate([unfinished, self._chunks[~touched]])

    def _remove_complete(self, chunks: Chunks) -> Chunks:
        """Record the messages that are complete; return the chunks of those that may still become complete.

        A row before a message's first chunk plays no part in it.
        """
        assembled = assemble_chunk_records(chunks)
        if len(assembled.message_offsets):
            last = int(assembled.message_offsets.max())
            self.best = last if self.best is None else max(last, self.best)
        chunks, group, offset = assembled.chunks, assembled.group_numbers, chunk_offsets(assembled.chunks)
        first = np.full(int(group[-1]) + 1, np.iinfo(np.uint64).max)
        begins = chunks["index"] == 0
        np.minimum.at(first, group[begins], offset[begins])
        ends = (chunks["index"] + 1 == chunks["count"]) & (offset < first[group])
        if self.best is not None:
            ends &= offset > np.uint64(self.best)
        is_pending = np.zeros(len(first), dtype=np.bool_)
        is_pending[group[ends]] = True
        unfinished: Chunks = chunks[is_pending[group] & (offset < first[group])]
        return unfinished


def _rows_from(first: int, table: pa.Table) -> pa.Table:
    """Return the rows of a table from an offset on."""
    return table.slice(int(np.searchsorted(table.column("offset").to_numpy(), first, "left")))


def _last_plain_offset(table: pa.Table) -> int | None:
    """Return the offset of the last row that is not a chunk of a message; None: every row is a chunk."""
    plain = np.flatnonzero(~chunk_mask(table))
    return table.column("offset")[int(plain[-1])].as_py() if len(plain) else None


def _row_group_number(reader: RowsReader, offset: int) -> int:
    """Return the number of the row group in an object that holds an offset."""
    return next(number for number, group in enumerate(reader.groups) if offset <= group.last_offset)


def _last_chunks(chunks: Chunks) -> Chunks:
    """Return those chunks that are the last of their message."""
    last_chunks: Chunks = chunks[chunks["index"] + 1 == chunks["count"]]
    return last_chunks


def _after_mask(chunks: Chunks, offset: int) -> Mask:
    """Return a mask of the chunks after an offset."""
    mask: Mask = chunk_offsets(chunks) > np.uint64(offset)
    return mask
