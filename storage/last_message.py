"""The last message that a reader gets, by its id (R6).

Looked for from the end: raw behind the horizon, then the compacted ledger. Rows that no reader gets do not count, and
of a chunked message only the last chunk does, if the message is complete: its other chunks lie before it, in order, and
none was trimmed, hidden (C2) or never sent. A reader that waits for a message that can never be whole waits for ever.

Whether a message is complete the chunk tables say, by the rule of `storage/ledger/chunk_table.py: assemble`. They are
read from the last chunk backwards, up to the message's first chunk, and only where the last message is a chunked one;
a segment has none, and is read through in windows that grow. Plain messages cost one row group, or one entry.

Memory: the ids of a row group or window, and the chunk table of one ledger or one hash range. May go wrong:
ObjectMissing, ObjectDamaged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from storage.ledger import chunk_table, rows
from storage.ledger.chunk_table import (
    IDENTITY,
    Chunks,
    assemble,
    belonging,
    chunk_records,
    keyed,
    offsets,
    read_ledger_chunks,
)
from storage.ledger.deleted import alive, read_deleted
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import MAX_RANGE_BITS, HashRange
from storage.ledger.manifest import Manifest
from storage.ledger.rows_file import RowsObject, RowsReader
from storage.metadata.records import CompactedLedgerRecord, LedgerRecord, SegmentRecord
from storage.model import EARLIEST, MessageId
from storage.objects.interface import ObjectStore
from storage.reader import SnapshotReader, delivered, naming_compacted

_ID = ["offset", "publish_time", "ledger_id", "entry_id", "batch_index", "slot"]
_CHUNK = ["chunk_uuid", "chunk_index", "chunk_count"]
_WINDOW = 1024
"""The most offsets of a segment that are looked at together."""


class LastMessage:
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
        pieces = self._reader.pieces
        for number in reversed(range(len(pieces))):
            piece = pieces[number]
            if isinstance(piece, LedgerRecord):
                if piece.last_offset < first:
                    return None
                reader = RowsReader(self._store, RowsObject(piece.rows, piece.footer_size))
                groups = range(len(reader.groups))
                if reader.most(groups[-1], "slot") == int(rows.Slot.MESSAGE):
                    return piece.last_message_id  # as the footer says, nothing there is hidden: no row need be read
                tables: Iterator[pa.Table] = (reader.read(group, [*_ID, *_CHUNK]) for group in reversed(groups))
            else:
                tables = self._segment_backwards(piece, first)
            for table in tables:
                for last in _endings(_from(first, delivered(table))):
                    if not last["is_chunk"] or self._is_whole(last["offset"], number, first, compacted):
                        return self._id_of(last)
        return None

    def _segment_backwards(self, segment: SegmentRecord, first: int) -> Iterator[pa.Table]:
        """Ids of a segment's rows from an offset on, in windows, the newest first."""
        last = self._reader.tail_of(segment).last(self._reader.snapshot.topic, segment)
        end = -1 if last is None else last.offset + 1
        for start, stop in _windows(max(first, segment.first_offset), end):
            window = [table.select([*_ID, *_CHUNK]) for table in self._window(segment, start, stop)]
            yield from reversed(window)

    def _window(self, segment: SegmentRecord, start: int, stop: int) -> Iterator[pa.Table]:
        """The rows of a segment from the offset `start` to before `stop`."""
        for table in self._reader.segment(segment, start):
            found = table.column("offset").to_numpy()
            if found[0] >= stop:
                return
            yield table.slice(0, int(np.searchsorted(found, stop, "left")))

    def _is_whole(self, offset: int, number: int, first: int, compacted: CompactedLedgerRecord | None) -> bool:
        """Whether the last chunk at an offset, in raw piece `number`, completes a message that begins at `first` or
        behind it, or in the compacted ledger."""
        found: Chunks | None = None
        for chunks in self._chunks_backwards(offset, number, first):
            if found is None:
                found = chunks[offsets(chunks) == np.uint64(offset)][:1]
            mine = _of_message(chunks[offsets(chunks) < np.uint64(offset)], found)
            found = np.concatenate([mine, found])
            if _is_decided(found):
                break
        if found is None or not len(found):
            return False
        if compacted is not None and not _is_decided(found):
            with naming_compacted(self._reader.snapshot):
                wanted = HashRange(int(_range_hash(found)) >> (64 - MAX_RANGE_BITS), MAX_RANGE_BITS)
                tables = chunk_table.read_tables(self._store, self._manifest_of(compacted).chunks, wanted)
            found = np.concatenate([_of_message(self._shown(tables), found), found])
        return offset in assemble(found).offset

    def _chunks_backwards(self, offset: int, number: int, first: int) -> Iterator[Chunks]:
        """The chunks of raw pieces from `number` back to the offset `first`, that at `offset` among the first."""
        for at in reversed(range(number + 1)):
            piece = self._reader.pieces[at]
            if isinstance(piece, LedgerRecord):
                if piece.last_offset < first:
                    return
                found = read_ledger_chunks(self._store, piece.index)
                yield found[offsets(found) >= np.uint64(first)]
                continue
            end = offset + 1 if at == number else self._end_of(piece)
            for start, stop in _windows(max(first, piece.first_offset), end):
                tables = (chunk_records(table, self._hasher) for table in self._window(piece, start, stop))
                yield np.concatenate([chunk_table.none(), *tables])

    def _end_of(self, segment: SegmentRecord) -> int:
        return segment.content.last_offset + 1 if segment.content else segment.first_offset

    def _last_compacted(self, compacted: CompactedLedgerRecord) -> MessageId | None:
        """The last live message of the compacted ledger that may be seen."""
        shown = self._reader.shown
        if shown is None and not self._may_hold_incomplete(compacted):
            return compacted.last_message_id
        manifest = self._manifest_of(compacted)
        if shown is None and not any(table.pending for table in manifest.chunks):
            return compacted.last_message_id
        for part in reversed(manifest.parts):
            if shown is not None and shown.hides_all(part):
                continue
            reader, deleted = RowsReader(self._store, part.rows), read_deleted(self._store, part)
            for number in reversed(range(len(reader.groups))):
                newest = reader.most(number, "publish_time")
                if shown is not None and newest is not None and not shown.shows(part.last.offset, newest):
                    continue
                table = reader.read(number, [*_ID, *_CHUNK])
                if deleted:
                    live = alive(deleted, part.first.offset, table.column("offset").to_numpy())
                    table = table.filter(pa.array(live))
                for last in _endings(table if shown is None else shown.of(table)):
                    if not last["is_chunk"] or self._is_whole_compacted(manifest, last["offset"]):
                        return self._id_of(last)
        return None

    def _is_whole_compacted(self, manifest: Manifest, offset: int) -> bool:
        """Whether the last chunk at an offset completes a message of which all chunks may be seen."""
        for table in manifest.chunks:
            found = chunk_table.read_tables(self._store, [table], HashRange())
            if any(offset in offsets(one) for one in found):
                return offset in assemble(self._shown(found)).offset
        return False

    def _shown(self, chunks: list[Chunks]) -> Chunks:
        """Those that may be seen."""
        found: Chunks = np.concatenate([chunk_table.none(), *chunks])
        shown = self._reader.shown
        if shown is None:
            return found
        seen = offsets(found).astype(np.int64) >= shown.start_offset
        if shown.not_before_ms is not None:
            seen &= found["publish_time"] >= shown.not_before_ms
        return found[seen]

    def _may_hold_incomplete(self, compacted: CompactedLedgerRecord) -> bool:
        """Whether its run says that it holds chunks of an incomplete message, which might be its last row."""
        run = self._reader.snapshot.last_run
        if run is None or run.compacted_ledger_id != compacted.ledger_id:
            return True
        return bool(run.statistics.get("incomplete_chunks"))

    def _manifest_of(self, compacted: CompactedLedgerRecord) -> Manifest:
        self._manifest = self._manifest or self._reader.manifest(compacted)
        return self._manifest

    def _id_of(self, row: dict[str, int]) -> MessageId:
        partition = self._reader.snapshot.topic.name.partition
        return MessageId(row["ledger_id"], row["entry_id"], partition, row["batch_index"])


def _from(first: int, table: pa.Table) -> pa.Table:
    """The rows from an offset on."""
    return table.slice(int(np.searchsorted(table.column("offset").to_numpy(), first, "left")))


def _endings(table: pa.Table) -> Iterator[dict[str, int]]:
    """The rows with which a message may be whole, the last first: of a chunked one the last chunk (`is_chunk`)."""
    chunk = belonging(table)
    index, count = (table.column(name).fill_null(-2).to_numpy() for name in ("chunk_index", "chunk_count"))
    for row in np.flatnonzero(~chunk | (index + 1 == count))[::-1].tolist():
        found: dict[str, int] = table.slice(row, 1).select(_ID).to_pylist()[0]
        yield found | {"is_chunk": int(chunk[row])}


def _windows(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of offsets from `end` down to `first`, of growing length."""
    length = 1
    while end > first:
        start = max(first, end - length)
        yield start, end
        end, length = start, min(8 * length, _WINDOW)


def _of_message(chunks: Chunks, known: Chunks) -> Chunks:
    """Those of the message of which some are `known`; none if none is."""
    if not len(known):
        return chunk_table.none()
    mine = keyed(chunks) == keyed(known)[0]
    for name in IDENTITY:
        mine &= chunks[name] == known[name][0]
    found: Chunks = chunks[mine]
    return found


def _is_decided(chunks: Chunks) -> bool:
    """Whether the first chunk is among them: what came before it plays no part."""
    return bool((chunks["index"] == 0).any())


def _range_hash(chunks: Chunks) -> np.uint64:
    """What decides in which hash range a message lies (chunk_table.inside)."""
    found: np.uint64 = chunks["key_hi" if keyed(chunks)[0] else "uuid_hi"][0]
    return found
