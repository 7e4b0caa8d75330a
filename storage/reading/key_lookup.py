"""The newest message of one key, value or tombstone, from the key indexes: a point read (T4).

Search order (newest_offsets.py): raw after the horizon, newest first, then the levels of the compacted index, newest
first. An unsealed segment has no index: it is read to its end, on this machine's disk. Every other read is one ranged
read of the fence of the key's hash. The first record decides: a marker names no message; any other record names an
offset, and then the footer and one row group are read. With event-time order (the frozen policy of the compacted
ledger) the message with the largest event time wins, among equal ones the later offset (P9): all of them are read, each
in two reads. A topic that was never compacted has offset order.

So a point read is at most 3 + 2 × levels ranged reads, where each ledger after the horizon counts as a level, whatever
the topic's size, and the manifest is the only object that is read whole. Only a ledger that a trim cut in two may be
read to its end: where event time orders, and the record names a trimmed message. The bitmap of deleted rows is not
needed: a record that no newer level hides and that is no marker names a row that counts (storage/ledger/manifest.py).

Chunked messages (P10) are in no ledger's records. Where ledgers of the tail have chunk tables, these are read, and for
chunks of the key the tables of its hash range in the compacted ledger, where the message may have begun. A record of a
compacted index may name the last chunk of a message; then these tables name the others. The payloads are joined.

The key is known by its 128-bit hash until its row is read. Another key in that row is damage, or a collision of the
hash, and an error either way, never another key's value. On a loss a new snapshot is taken: if another generation
serves, it is read instead (R8).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.advice import damaged_object_advice
from storage.entries.chunk_assembler import join_chunks, row_messages
from storage.errors import DataLoss, ObjectDamaged, Unavailable
from storage.ledger import chunk_table
from storage.ledger.chunk_table import assemble_chunk_records, chunk_offsets
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import MAX_RANGE_BITS, HashRange
from storage.ledger.manifest import Manifest
from storage.ledger.rows_file import RowsReader
from storage.log.segment_tables import SegmentTableReader
from storage.metadata.records import SegmentRecord, TopicSnapshot
from storage.model import Message, RowsObject
from storage.objects.interface import ObjectStore
from storage.reading.compacted_loss import naming_compacted_ledger
from storage.reading.newest_offsets import KeySearch
from storage.reading.snapshot_reader import RetentionFilter, SnapshotReader, read_snapshot

_Place = RowsObject | SegmentRecord


class SearchStopped(Unavailable):
    """The search for the newest message of a key was stopped before it was known.

    `is_repeated`: an object that an earlier search needed was lost, or replaced.
    """

    def __init__(self, *, is_repeated: bool = False) -> None:
        repeated = "; before, it met an object that is lost or was replaced" if is_repeated else ""
        super().__init__(
            f"the newest message of the key was not found within the time that its search may take{repeated}",
            "try again when the store and the service are less busy; a compaction leaves less to search",
            is_public=True,
        )


def point_read(
    store: ObjectStore,
    snapshot: Callable[[], TopicSnapshot],
    hasher: KeyHasher,
    key: bytes,
    now: int,
    unsealed: SegmentTableReader,
    retention: Callable[[TopicSnapshot], RetentionFilter | None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Message | None:
    """Return the newest message of `key` by the key indexes, which may be a tombstone; None: the topic has no message
    of the key.

    `snapshot`: returns the topic as it is now. `now`: the time (ms) against which lateness is checked in event-time
    order (P9). `unsealed`: reads segments. `retention`: returns the filter of a compacted ledger's rows (C2); None: all
    are visible. `should_stop`: called before each read of the search.

    Raises ObjectMissing, ObjectDamaged; SegmentNotLocal where a newer value may be in another machine's log;
    SearchStopped once `should_stop` returned True, unless the message is known then; its cause is the loss of an object
    that made the search begin again, if any.
    """
    loss: DataLoss | None = None

    def read(reader: SnapshotReader) -> Message | None:
        nonlocal loss
        try:
            return _PointRead(store, reader, hasher, key, now, should_stop).newest()
        except DataLoss as error:
            loss = error
            raise
        except SearchStopped:
            if loss is None:
                raise
            raise SearchStopped(is_repeated=True) from loss

    return read_snapshot(store, snapshot, unsealed, retention, read)


class _PointRead:
    """A search for the newest message of one key in one snapshot."""

    def __init__(
        self,
        store: ObjectStore,
        reader: SnapshotReader,
        hasher: KeyHasher,
        key: bytes,
        now: int,
        should_stop: Callable[[], bool],
    ) -> None:
        self._reader = reader
        self._store = store
        self._snapshot = reader.snapshot
        self._key = key
        self._search = KeySearch(store, reader, hasher, [key], 0, now, should_stop)
        self._manifest, self._horizon = self._search.manifest, self._search.horizon
        hi, lo = hasher(pa.array([key], pa.binary()))
        self._hi, self._lo = hi[0], lo[0]

    def newest(self) -> Message | None:
        """Return the newest message of the key; None: there is none, or retention hides it. Raises SearchStopped."""
        if self._key not in self._search.newest():
            raise SearchStopped
        offset = self._search.row_offset(self._key)
        if offset is None:
            return None
        if offset > self._horizon:
            return self._read_message(offset)
        with naming_compacted_ledger(self._snapshot):
            message = self._read_message(offset)
        retention = self._reader.retention
        hidden = (
            message is not None and retention is not None and not retention.shows(message.offset, message.publish_time)
        )
        return None if hidden else message

    def _read_message(self, offset: int) -> Message | None:
        """Read the message whose last row is at `offset`, and join its chunks; None: retention hides one of its
        chunks."""
        last = self._read_row(offset)
        if not last.is_chunk:
            return last
        chunks = [*(self._read_row(chunk) for chunk in self._earlier_chunk_offsets(offset)), last]
        if (retention := self._reader.retention) is not None:
            compacted = (chunk for chunk in chunks if chunk.offset <= self._horizon)
            if not all(retention.shows(chunk.offset, chunk.publish_time) for chunk in compacted):
                return None
        return join_chunks(chunks)

    def _earlier_chunk_offsets(self, last: int) -> list[int]:
        """Return the offsets of the chunks of a chunked message without the last one. `last`: the offset of its last
        chunk."""
        assembled = self._search.tail_messages
        if last <= self._horizon:
            tables = self._manifest.chunks if self._manifest is not None else ()
            hash_range = HashRange(int(self._hi) >> (64 - MAX_RANGE_BITS), MAX_RANGE_BITS)
            chunks = chunk_table.read_chunk_tables(self._store, tables, hash_range)
            assembled = assemble_chunk_records(np.concatenate([chunk_table.empty_chunks(), *chunks]))
        for number in np.flatnonzero(assembled.message_offsets == np.uint64(last)):
            before: list[int] = chunk_offsets(assembled.chunks[assembled.message_numbers == number]).tolist()[:-1]
            return before
        raise ObjectDamaged(
            f"no chunk table has the chunked message of offset {last}, which the index names",
            damaged_object_advice(),
            is_public=True,
        )

    def _extent_of(self, offset: int) -> _Place:
        """Return the extent that holds the row of an offset: a part of the compacted ledger, or a ledger or segment
        after the horizon."""
        if self._manifest is not None and offset <= self._horizon:
            return _part_rows_at(self._manifest, offset)
        number = bisect_right(self._reader.extents, offset, key=lambda extent: extent.first_offset) - 1
        extent = self._reader.extents[number]
        return extent if isinstance(extent, SegmentRecord) else extent.rows_object

    def _read_row(self, offset: int) -> Message:
        """Read the row of an offset as a message. Raises ObjectDamaged if there is none, or if it has another key."""
        place = self._extent_of(offset)
        where = f"segment {place.ledger_id}" if isinstance(place, SegmentRecord) else place.stored.name
        for table in self._tables_with(place, offset):
            row = table.filter(pc.equal(table.column("offset"), offset))
            if len(row) == 1:
                (message,) = row_messages(iter(row.to_batches()), self._snapshot.topic.name.partition)
                self._check_key(message, where)
                return message
        raise ObjectDamaged(
            f"{where} has no row of offset {offset}, which its index names", damaged_object_advice(), is_public=True
        )

    def _tables_with(self, place: _Place, offset: int) -> Iterator[pa.Table]:
        """Yield the tables that may hold the row of an offset."""
        if isinstance(place, SegmentRecord):
            yield from self._reader.segment(place, offset)
            return
        reader = RowsReader(self._store, place)
        for number, group in enumerate(reader.groups):
            if group.first_offset <= offset <= group.last_offset:
                yield reader.read(number)

    def _check_key(self, message: Message, where: str) -> None:
        """Raise ObjectDamaged if a row of `where` has another key than the one that is searched."""
        if message.key == self._key:
            return
        raise ObjectDamaged(
            f"the row of offset {message.offset} in {where} has another key than the one whose hash "
            f"led there ({self._hi:016x}{self._lo:016x}): the index is damaged, or two keys share a 128-bit hash",
            "restore the index from a backup; if both keys exist, one of them must be renamed",
        )


def _part_rows_at(manifest: Manifest, offset: int) -> RowsObject:
    """Return the rows object of the part that holds the row of an offset. Raises ObjectDamaged if no part does."""
    number = bisect_right(manifest.parts, offset, key=lambda part: part.first.offset) - 1
    if number < 0 or manifest.parts[number].last.offset < offset:
        raise ObjectDamaged(
            f"the key index names offset {offset}, which no part of the compacted ledger has",
            damaged_object_advice(),
            is_public=True,
        )
    return manifest.parts[number].rows
