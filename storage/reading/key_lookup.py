"""The newest message of one key, value or tombstone, from the key indexes: a point read (T4).

Order of looking: raw behind the horizon, newest first, then the levels of the compacted index, newest first. An
unsealed segment has no index: it is read through, on this machine's disk. All else is one ranged read of the fence that
the key's hash falls into. The first record decides: a marker names no message; anything else names an offset, and then
the footer and one row group are read. With event-time order (the frozen policy of the compacted ledger) the largest
event time wins, of equal ones the later offset (P9): all of them are read, each in two reads. A topic that was never
compacted has offset order.

So at most 3 + 2 × levels ranged reads, where each ledger behind the horizon counts as a level, whatever the topic's
size, and the manifest is the only object that is read whole; only a ledger that a trim cut in two may be read through,
where event time orders and the record names what is gone. The bitmap of deleted rows is not needed: a record that no
newer level hides and that is no marker names a row that counts (storage/ledger/manifest.py).

Chunked messages (P10) are in no ledger's records: where ledgers of the tail have chunk tables, these are read, and for
chunks of the key the tables of its hash range in the compacted ledger, where the message may have begun. A record of a
compacted index may name the last chunk of one; then these tables name the others. The payloads come joined.

The key is known by its 128-bit hash until its row is there; another key in that row is damage, or a collision of the
hash, and an error either way, never another key's value. On a loss a new snapshot is taken: if another
generation serves, it is read instead (R8).
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
    unsealed: SegmentTableReader | None = None,
    retention: Callable[[TopicSnapshot], RetentionFilter | None] = lambda _: None,
) -> Message | None:
    """The newest message of `key`, which may be a tombstone; None: nothing is left of the key.

    `now`: in event-time order, by which lateness is over (P9). `retention`: hides rows of a compacted ledger (C2).

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
class _Found:
    """A record of the key. `where` None: it is index-only. `chunks`: the offsets of all chunks of a chunked message,
    where they are known."""

    event_time: int
    offset: int
    where: _Place | Message | None
    chunks: tuple[int, ...] = ()


class _PointRead:
    """One key in one snapshot."""

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
        """Raw behind it counts; the compacted ledger has the rest."""
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
            found = self._message(winner)
        retention = self._reader.retention
        hidden = found is not None and retention is not None and not retention.shows(found.offset, found.publish_time)
        return None if hidden else found

    def _later(self, winner: _Found | None) -> _Found | None:
        """`winner`, unless a chunked message that the tail completes comes after it."""
        chunks = [chunk_table.none()]
        # One that comes after the winner ends after it: what is before need not be read where no chunk is there.
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
                chunks += map(self._mine, chunk_table.read_tables(self._store, self._manifest.chunks, self._range))
        assembled = assemble(np.concatenate(chunks))
        for number, offset in enumerate(assembled.offset.tolist()):
            first = assembled.first[number]
            event_time = int(assembled.chunks["event_time"][first] if self._by_event else key_index.NO_EVENT_TIME)
            candidate = _Found(event_time, offset, self._place(offset), _chunks_of(assembled, number))
            if offset > self._horizon and (winner is None or _event_order(candidate) > _event_order(winner)):
                winner = candidate
        return winner

    def _chunks(self, extent: LedgerRecord | SegmentRecord) -> Chunks:
        """The key's chunks in a ledger or segment behind the horizon."""
        if isinstance(extent, SegmentRecord):
            return self._segment(extent)[1]
        first = max(self._horizon + 1, self._snapshot.topic.start_offset)
        if extent.last_offset < first:
            return chunk_table.none()
        found = self._mine(read_ledger_chunks(self._store, extent.index))
        mine: Chunks = found[offsets(found).astype(np.int64) >= first]
        return mine

    def _mine(self, chunks: Chunks) -> Chunks:
        """Those of the key."""
        mine = chunk_table.keyed(chunks) & (chunks["key_hi"] == self._hi) & (chunks["key_lo"] == self._lo)
        found: Chunks = chunks[mine]
        return found

    def _in_raw(self) -> Iterator[_Found]:
        """The key's record of each ledger and segment behind the horizon, the newest first."""
        first = max(self._horizon + 1, self._snapshot.topic.start_offset)
        for ledger in reversed(self._reader.extents):
            if isinstance(ledger, SegmentRecord):  # never compacted, so it is behind the horizon
                yield from self._in_segment(ledger)
                continue
            if ledger.last_offset < first:
                return
            record = self._record(ledger.index)
            # A ledger may straddle the horizon: what of it is below is represented in the compacted ledger. It may
            # straddle the topic's start: what is below that is gone, and hides nothing.
            if record is not None and record[1] & _OFFSET >= first:
                yield _found(record, ledger.rows_object)
            elif record is not None and self._by_event and record[1] & _OFFSET < self._snapshot.topic.start_offset:
                yield from self._as_found(self._scanned(self._reader.ledger(ledger, first))[0])

    def _in_segment(self, segment: SegmentRecord) -> Iterator[_Found]:
        """The key's message that counts in a segment, chunked ones left out."""
        yield from self._as_found(self._segment(segment)[0])

    def _segment(self, segment: SegmentRecord) -> tuple[Message | None, Chunks]:
        """The key's message that counts in a segment, and the key's chunks; all of it is read, once."""
        if segment.ledger_id not in self._segments:
            self._segments[segment.ledger_id] = self._scanned(self._reader.segment(segment))
        return self._segments[segment.ledger_id]

    def _scanned(self, tables: Iterator[pa.Table]) -> tuple[Message | None, Chunks]:
        winner: Message | None = None
        chunks = [chunk_table.none()]
        for table in tables:
            kinds = pc.is_in(table.column("slot"), value_set=pa.array(_OF_A_KEY, pa.int8()))
            mine = table.filter(pc.and_kleene(pc.equal(table.column("key"), self._key), kinds))
            chunks.append(chunk_records(mine, self._hasher))
            for message in row_messages(iter(mine.to_batches()), self._snapshot.topic.name.partition):
                later = winner is None or not self._by_event or _event_time(message) >= _event_time(winner)
                winner = message if later and not message.is_chunk else winner
        return winner, np.concatenate(chunks)

    def _as_found(self, message: Message | None) -> Iterator[_Found]:
        if message is not None:
            event_time = _event_time(message) if self._by_event else int(key_index.NO_EVENT_TIME)
            yield _Found(event_time, message.offset, message)

    def _in_compacted(self) -> Iterator[_Found]:
        """The key's record of the newest level that has one: it hides those of older levels."""
        manifest = self._manifest
        if manifest is None:
            return
        with naming_compacted(self._snapshot):
            for location in chain.from_iterable(manifest.index):
                record = self._record(location)
                if record is not None:
                    if not (self._by_event and self._has_expired(record, manifest)):
                        yield _found(record, _part_of(manifest, record[1]))
                    return

    def _has_expired(self, record: tuple[int, int], manifest: Manifest) -> bool:
        """Whether a record is a marker whose lateness is over (P9): it hides older levels, and beats nothing newer."""
        event_time, flagged = record
        lateness = manifest.policies.get("event_time_max_lateness_ms")
        over = lateness is not None and event_time <= self._now - lateness
        return over and bool(flagged & int(key_index.MARKER))

    def _record(self, location: IndexLocation) -> tuple[int, int] | None:
        """The key's event time and flagged offset in one index: one ranged read, two by event time, at most."""
        records = read_records(self._store, location, self._range, events=self._by_event)
        here = np.flatnonzero((records.hi == self._hi) & (records.lo == self._lo))
        if not len(here):
            return None
        if records.event_offset is None or records.event_time is None:
            return int(key_index.NO_EVENT_TIME), int(records.offset[here[0]])
        return int(records.event_time[here[0]]), int(records.event_offset[here[0]])

    def _message(self, found: _Found | None) -> Message | None:
        """The message that a record names, if it names one: of each row the footer and one row group are read."""
        if found is None or found.where is None:
            return None
        if isinstance(found.where, Message):
            return found.where
        last = self._row(found.where, found.offset)
        if not last.is_chunk:
            return last
        others = (found.chunks or self._compacted_chunks(found))[:-1]
        chunks = [*(self._row(self._place(offset), offset) for offset in others), last]
        if (retention := self._reader.retention) is not None:
            compacted = (chunk for chunk in chunks if chunk.offset <= self._horizon)
            if not all(retention.shows(chunk.offset, chunk.publish_time) for chunk in compacted):
                return None
        return joined(chunks)

    def _compacted_chunks(self, found: _Found) -> tuple[int, ...]:
        """The offsets of all chunks of a message of the compacted ledger."""
        tables = self._manifest.chunks if self._manifest is not None else ()
        chunks = map(self._mine, chunk_table.read_tables(self._store, tables, self._range))
        assembled = assemble(np.concatenate([chunk_table.none(), *chunks]))
        for number in np.flatnonzero(assembled.offset == np.uint64(found.offset)):
            return _chunks_of(assembled, int(number))
        raise ObjectDamaged(
            f"no chunk table has the chunked message of offset {found.offset}, which the index names",
            _REMEDY,
            is_public=True,
        )

    def _place(self, offset: int) -> _Place:
        """What holds the row of an offset: a part, or a ledger or segment behind the horizon."""
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
        """Tables of which one has the row of an offset, if any has."""
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


def _ends_after(extent: LedgerRecord | SegmentRecord, winner: _Found) -> bool:
    """Whether a ledger or segment has messages after the winner, or may get some."""
    if isinstance(extent, LedgerRecord):
        return extent.last_offset > winner.offset
    return extent.content is None or extent.content.last_offset > winner.offset


def _found(record: tuple[int, int], rows_object: RowsObject | None) -> _Found:
    event_time, flagged = record
    return _Found(event_time, flagged & _OFFSET, None if flagged & _MARKER else rows_object)


def _event_time(message: Message) -> int:
    return int(key_index.NO_EVENT_TIME) if message.event_time is None else message.event_time


def _event_order(found: _Found) -> tuple[int, int]:
    return found.event_time, found.offset


def _part_of(manifest: Manifest, flagged: int) -> RowsObject | None:
    """The part that holds a record's row; None if the record is a marker."""
    return None if flagged & _MARKER else _part_at(manifest, flagged & _OFFSET)


def _chunks_of(assembled: ChunkAssembly, number: int) -> tuple[int, ...]:
    return tuple(offsets(assembled.chunks[assembled.message == number]).tolist())


def _part_at(manifest: Manifest, offset: int) -> RowsObject:
    """The part that holds the row of an offset."""
    number = bisect_right(manifest.parts, offset, key=lambda part: part.first.offset) - 1
    if number < 0 or manifest.parts[number].last.offset < offset:
        raise ObjectDamaged(
            f"the key index names offset {offset}, which no part of the compacted ledger has", _REMEDY, is_public=True
        )
    return manifest.parts[number].rows
