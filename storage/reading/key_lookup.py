"""The newest message of one key, value or tombstone, from the key indexes: a point read (T4).

Search order: raw after the horizon, newest first, then the levels of the compacted index, newest first. An unsealed
segment has no index: it is read to its end, on this machine's disk. Every other read is one ranged read of the fence of
the key's hash. The first record decides: a marker names no message; any other record names an offset, and then the
footer and one row group are read. With event-time order (the frozen policy of the compacted ledger) the message with
the largest event time wins, among equal ones the later offset (P9): all of them are read, each in two reads. A topic
that was never compacted has offset order.

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
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.entries.chunk_assembler import joined, row_messages
from storage.errors import DataLoss, ObjectDamaged
from storage.ledger import chunk_table, key_index, rows
from storage.ledger.chunk_table import ChunkAssembly, Chunks, assemble, chunk_records, offsets, read_ledger_chunks
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import MAX_RANGE_BITS, HashRange, read_records
from storage.ledger.manifest import Manifest
from storage.ledger.rows_file import RowsReader
from storage.log.segment_tables import SegmentTableReader
from storage.metadata.records import SegmentRecord, TopicSnapshot
from storage.model import IndexLocation, LedgerRecord, Message, RowsObject
from storage.objects.interface import ObjectStore
from storage.reading.snapshot_reader import RetentionFilter, SnapshotReader, naming_compacted

_OFFSET = int(key_index.OFFSET_MASK)
_MARKER = int(key_index.MARKER)
_OF_A_KEY = (int(rows.RowType.MESSAGE), int(rows.RowType.CHUNK))
_Place = RowsObject | SegmentRecord
_REMEDY = "restore the object from a backup, or see docs/operations.md on damaged ledgers"


def point_read(
    store: ObjectStore,
    snapshot: Callable[[], TopicSnapshot],
    hasher: KeyHasher,
    key: bytes,
    now: int,
    unsealed: SegmentTableReader,
    retention: Callable[[TopicSnapshot], RetentionFilter | None] = lambda _: None,
) -> Message | None:
    """Return the newest message of `key`, which may be a tombstone; None: the topic has no message of the key.

    `now`: the time against which lateness is checked in event-time order (P9). `retention`: hides rows of a compacted
    ledger (C2).

    Raises ObjectMissing, ObjectDamaged; SegmentNotLocal where a newer value may be in another machine's log.
    """
    view = snapshot()
    while True:
        try:
            reader = SnapshotReader(store, view, unsealed, retention(view))
            return _PointRead(store, reader, hasher, key, now).newest()
        except DataLoss:
            newer = snapshot()
            if (newer.compacted, newer.extents) == (view.compacted, view.extents):
                raise
            view = newer


@dataclass(frozen=True)
class _KeyRecord:
    """A record of the key. `where` None: it is index-only.

    `chunks`: the offsets of all chunks of a chunked message, where they are known.
    """

    event_time: int
    offset: int
    where: _Place | Message | None
    chunks: tuple[int, ...] = ()


class _PointRead:
    """A search for one key in one snapshot."""

    def __init__(self, store: ObjectStore, reader: SnapshotReader, hasher: KeyHasher, key: bytes, now: int) -> None:
        self._reader = reader
        self._now = now
        self._store = store
        self._snapshot = reader.snapshot
        self._key = key
        self._hasher = hasher
        self._segments: dict[int, tuple[Message | None, Chunks]] = {}
        compacted = reader.snapshot.compacted
        self._manifest = None if compacted is None else reader.manifest(compacted)
        self._horizon = -1 if self._manifest is None else self._manifest.horizon.offset
        """The offset after which raw counts; the compacted ledger has the rest."""
        self._by_event = self._manifest is not None and bool(self._manifest.policies.get("event_time_order"))
        hi, lo = hasher(pa.array([key], pa.binary()))
        self._hi, self._lo = hi[0], lo[0]
        self._range = HashRange(int(self._hi) >> (64 - MAX_RANGE_BITS), MAX_RANGE_BITS)

    def newest(self) -> Message | None:
        records = chain(self._in_raw(), self._in_compacted())
        winner = max(records, key=_event_order, default=None) if self._by_event else next(records, None)
        winner = self._later(winner)
        if winner is None or winner.offset > self._horizon:
            return self._message(winner)
        with naming_compacted(self._snapshot):
            message = self._message(winner)
        retention = self._reader.retention
        hidden = (
            message is not None and retention is not None and not retention.shows(message.offset, message.publish_time)
        )
        return None if hidden else message

    def _later(self, winner: _KeyRecord | None) -> _KeyRecord | None:
        """Return `winner`, or a chunked message after it that the tail completes."""
        chunks = [chunk_table.none()]
        # A message after the winner ends after it: the extents before need not be read if these hold no chunk.
        after = [
            extent for extent in self._reader.extents if self._by_event or winner is None or _ends_after(extent, winner)
        ]
        chunks += [self._chunks(extent) for extent in after]
        if not any(map(len, chunks)):
            return winner
        before = self._reader.extents[: len(self._reader.extents) - len(after)]
        chunks += [self._chunks(extent) for extent in before]
        if self._manifest is not None:
            with naming_compacted(self._snapshot):
                chunks += map(
                    self._own_chunks, chunk_table.read_tables(self._store, self._manifest.chunks, self._range)
                )
        assembled = assemble(np.concatenate(chunks))
        for number, offset in enumerate(assembled.offset.tolist()):
            first = assembled.first[number]
            event_time = int(assembled.chunks["event_time"][first] if self._by_event else key_index.NO_EVENT_TIME)
            candidate = _KeyRecord(event_time, offset, self._place(offset), _chunks_of(assembled, number))
            if offset > self._horizon and (winner is None or _event_order(candidate) > _event_order(winner)):
                winner = candidate
        return winner

    def _chunks(self, extent: LedgerRecord | SegmentRecord) -> Chunks:
        """Return the key's chunks in a ledger or segment after the horizon."""
        if isinstance(extent, SegmentRecord):
            return self._segment(extent)[1]
        first = max(self._horizon + 1, self._snapshot.topic.start_offset)
        if extent.last_offset < first:
            return chunk_table.none()
        chunks = self._own_chunks(read_ledger_chunks(self._store, extent.index))
        visible: Chunks = chunks[offsets(chunks).astype(np.int64) >= first]
        return visible

    def _own_chunks(self, chunks: Chunks) -> Chunks:
        """Return those of the chunks that belong to the key."""
        belongs = chunk_table.keyed(chunks) & (chunks["key_hi"] == self._hi) & (chunks["key_lo"] == self._lo)
        own: Chunks = chunks[belongs]
        return own

    def _in_raw(self) -> Iterator[_KeyRecord]:
        """Yield the key's record of each ledger and segment after the horizon, the newest first."""
        first = max(self._horizon + 1, self._snapshot.topic.start_offset)
        for ledger in reversed(self._reader.extents):
            if isinstance(ledger, SegmentRecord):  # never compacted, so it is after the horizon
                yield from self._as_key_record(self._segment(ledger)[0])
                continue
            if ledger.last_offset < first:
                return
            record = self._record(ledger.index)
            # A ledger may straddle the horizon: its rows below are represented in the compacted ledger. It may straddle
            # the topic's start: its rows below that are trimmed, and hide nothing.
            if record is not None and record[1] & _OFFSET >= first:
                yield _key_record(record, ledger.rows_object)
            elif record is not None and self._by_event and record[1] & _OFFSET < self._snapshot.topic.start_offset:
                yield from self._as_key_record(self._scanned(self._reader.ledger(ledger, first))[0])

    def _segment(self, segment: SegmentRecord) -> tuple[Message | None, Chunks]:
        """Return the key's message that counts in a segment, and the key's chunks. The whole segment is read, once."""
        if segment.ledger_id not in self._segments:
            self._segments[segment.ledger_id] = self._scanned(self._reader.segment(segment))
        return self._segments[segment.ledger_id]

    def _scanned(self, tables: Iterator[pa.Table]) -> tuple[Message | None, Chunks]:
        winner: Message | None = None
        chunks = [chunk_table.none()]
        for table in tables:
            kinds = pc.is_in(table.column("slot"), value_set=pa.array(_OF_A_KEY, pa.int8()))
            own = table.filter(pc.and_kleene(pc.equal(table.column("key"), self._key), kinds))
            chunks.append(chunk_records(own, self._hasher))
            for message in row_messages(iter(own.to_batches()), self._snapshot.topic.name.partition):
                later = winner is None or not self._by_event or _event_time(message) >= _event_time(winner)
                winner = message if later and not message.is_chunk else winner
        return winner, np.concatenate(chunks)

    def _as_key_record(self, message: Message | None) -> Iterator[_KeyRecord]:
        if message is not None:
            event_time = _event_time(message) if self._by_event else int(key_index.NO_EVENT_TIME)
            yield _KeyRecord(event_time, message.offset, message)

    def _in_compacted(self) -> Iterator[_KeyRecord]:
        """Yield the key's record of the newest level that has one: it hides those of older levels."""
        manifest = self._manifest
        if manifest is None:
            return
        with naming_compacted(self._snapshot):
            for location in chain.from_iterable(manifest.index):
                record = self._record(location)
                if record is not None:
                    if not (self._by_event and self._has_expired(record, manifest)):
                        part = None if record[1] & _MARKER else _part_at(manifest, record[1] & _OFFSET)
                        yield _key_record(record, part)
                    return

    def _has_expired(self, record: tuple[int, int], manifest: Manifest) -> bool:
        """Return whether a record is a marker whose lateness is over (P9).

        Such a marker still hides older levels, but wins against nothing newer.
        """
        event_time, flagged = record
        lateness = manifest.policies.get("event_time_max_lateness_ms")
        over = lateness is not None and event_time <= self._now - lateness
        return over and bool(flagged & int(key_index.MARKER))

    def _record(self, location: IndexLocation) -> tuple[int, int] | None:
        """Return the key's event time and flagged offset in one index: at most one ranged read, two by event time."""
        records = read_records(self._store, location, self._range, events=self._by_event)
        matches = np.flatnonzero((records.hi == self._hi) & (records.lo == self._lo))
        if not len(matches):
            return None
        if records.event_offset is None or records.event_time is None:
            return int(key_index.NO_EVENT_TIME), int(records.offset[matches[0]])
        return int(records.event_time[matches[0]]), int(records.event_offset[matches[0]])

    def _message(self, record: _KeyRecord | None) -> Message | None:
        """Return the message of a record, if it names one: for each row the footer and one row group are read."""
        if record is None or record.where is None:
            return None
        if isinstance(record.where, Message):
            return record.where
        last = self._row(record.where, record.offset)
        if not last.is_chunk:
            return last
        others = (record.chunks or self._compacted_chunks(record))[:-1]
        chunks = [*(self._row(self._place(offset), offset) for offset in others), last]
        if (retention := self._reader.retention) is not None:
            compacted = (chunk for chunk in chunks if chunk.offset <= self._horizon)
            if not all(retention.shows(chunk.offset, chunk.publish_time) for chunk in compacted):
                return None
        return joined(chunks)

    def _compacted_chunks(self, record: _KeyRecord) -> tuple[int, ...]:
        """Return the offsets of all chunks of a message of the compacted ledger."""
        tables = self._manifest.chunks if self._manifest is not None else ()
        chunks = map(self._own_chunks, chunk_table.read_tables(self._store, tables, self._range))
        assembled = assemble(np.concatenate([chunk_table.none(), *chunks]))
        for number in np.flatnonzero(assembled.offset == np.uint64(record.offset)):
            return _chunks_of(assembled, int(number))
        raise ObjectDamaged(
            f"no chunk table has the chunked message of offset {record.offset}, which the index names",
            _REMEDY,
            is_public=True,
        )

    def _place(self, offset: int) -> _Place:
        """Return the extent that holds the row of an offset: a part, or a ledger or segment after the horizon."""
        if self._manifest is not None and offset <= self._horizon:
            return _part_at(self._manifest, offset)
        number = bisect_right(self._reader.extents, offset, key=lambda extent: extent.first_offset) - 1
        extent = self._reader.extents[number]
        return extent if isinstance(extent, SegmentRecord) else extent.rows_object

    def _row(self, place: _Place, offset: int) -> Message:
        where = f"segment {place.ledger_id}" if isinstance(place, SegmentRecord) else place.stored.name
        for table in self._tables_with(place, offset):
            row = table.filter(pc.equal(table.column("offset"), offset))
            if len(row) == 1:
                (message,) = row_messages(iter(row.to_batches()), self._snapshot.topic.name.partition)
                return self._checked(message, where)
        raise ObjectDamaged(f"{where} has no row of offset {offset}, which its index names", _REMEDY, is_public=True)

    def _tables_with(self, place: _Place, offset: int) -> Iterator[pa.Table]:
        """Yield the tables that may hold the row of an offset."""
        if isinstance(place, SegmentRecord):
            yield from self._reader.segment(place)
            return
        reader = RowsReader(self._store, place)
        for number, group in enumerate(reader.groups):
            if group.first_offset <= offset <= group.last_offset:
                yield reader.read(number)

    def _checked(self, message: Message, where: str) -> Message:
        if message.key == self._key:
            return message
        raise ObjectDamaged(
            f"the row of offset {message.offset} in {where} has another key than the one whose hash "
            f"led there ({self._hi:016x}{self._lo:016x}): the index is damaged, or two keys share a 128-bit hash",
            "restore the index from a backup; if both keys exist, one of them must be renamed",
        )


def _ends_after(extent: LedgerRecord | SegmentRecord, winner: _KeyRecord) -> bool:
    """Return whether a ledger or segment has messages after the winner, or may still get some."""
    if isinstance(extent, LedgerRecord):
        return extent.last_offset > winner.offset
    return extent.content is None or extent.content.last_offset > winner.offset


def _key_record(record: tuple[int, int], rows_object: RowsObject | None) -> _KeyRecord:
    event_time, flagged = record
    return _KeyRecord(event_time, flagged & _OFFSET, None if flagged & _MARKER else rows_object)


def _event_time(message: Message) -> int:
    return int(key_index.NO_EVENT_TIME) if message.event_time is None else message.event_time


def _event_order(record: _KeyRecord) -> tuple[int, int]:
    return record.event_time, record.offset


def _chunks_of(assembled: ChunkAssembly, number: int) -> tuple[int, ...]:
    return tuple(offsets(assembled.chunks[assembled.message == number]).tolist())


def _part_at(manifest: Manifest, offset: int) -> RowsObject:
    """Return the part that holds the row of an offset."""
    number = bisect_right(manifest.parts, offset, key=lambda part: part.first.offset) - 1
    if number < 0 or manifest.parts[number].last.offset < offset:
        raise ObjectDamaged(
            f"the key index names offset {offset}, which no part of the compacted ledger has", _REMEDY, is_public=True
        )
    return manifest.parts[number].rows
