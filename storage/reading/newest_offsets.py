"""The newest messages of several keys, by their offsets, without reading a row; `key_lookup.py` reads the row of one.

The search goes through the extents after the horizon, newest first, then through the levels of the compacted index.
Each index is probed once for all keys that are still open, so 25 keys cost as many ranged reads as one, or a few more
where an index has many fences. An unsealed segment is read once, from the offset `first_offset` on. A ledger that a
trim cut in two is read where event time orders, and its record of a key names a trimmed message.

`first_offset` is the offset of the first message in question: no extent before it is searched, since a later message of
its key would have been met. In event-time order (P9) it is not used, as any message may be the winner. A chunked
message (P10) counts at its last chunk.

A caller that must answer soon ends the search with `should_stop`; keys whose newest message is not known then are
missing from the answer, and no answer is ever wrong.

Errors: ObjectMissing, ObjectDamaged; SegmentNotLocal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.ledger import chunk_table, key_index, rows
from storage.ledger.chunk_table import Chunks, assemble_chunk_records, chunk_offsets, chunk_records, read_ledger_chunks
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import MARKER, MAX_RANGE_BITS, NO_EVENT_TIME, OFFSET_MASK, TOMBSTONE, HashRange
from storage.ledger.manifest import Manifest
from storage.metadata.records import SegmentRecord
from storage.model import IndexLocation, LedgerRecord
from storage.objects.interface import ObjectStore
from storage.reading.compacted_loss import naming_compacted_ledger
from storage.reading.snapshot_reader import SnapshotReader

_OF_A_KEY = pa.array((int(rows.RowType.MESSAGE), int(rows.RowType.CHUNK)), pa.int8())
_COLUMNS = ["key", "offset", "event_time"]


@dataclass(frozen=True)
class NewestOffset:
    """The offset of the newest message of a key; compaction may have removed its row. `is_tombstone`: the message
    deletes the key."""

    offset: int
    is_tombstone: bool


def newest_offsets(
    store: ObjectStore,
    reader: SnapshotReader,
    hasher: KeyHasher,
    keys: Sequence[bytes],
    first_offset: int,
    now: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Mapping[bytes, NewestOffset | None]:
    """Search the key indexes for the newest message of each of `keys`, which are distinct; return their offsets by key.

    None: the topic has no message of the key, from the offset `first_offset` on. `now`: the time (ms) against which
    lateness is checked in event-time order. `should_stop`: called before each read; once it returns True the search
    ends, and keys whose newest message is not known then are missing. Raises ObjectMissing, ObjectDamaged,
    SegmentNotLocal.
    """
    return KeySearch(store, reader, hasher, keys, first_offset, now, should_stop).newest() if keys else {}


_NO_PLACES = np.empty(0, dtype=np.int64)


class _StopSearch(Exception):
    """The signal that ends a search before its last read."""


class KeySearch:
    """A search for the newest messages of some keys in one snapshot.

    `newest` searches, once; `row_offset` then returns rows. For the other arguments see `newest_offsets`.
    """

    def __init__(
        self,
        store: ObjectStore,
        reader: SnapshotReader,
        hasher: KeyHasher,
        keys: Sequence[bytes],
        first: int,
        now: int,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store, self._reader, self._hasher, self._now, self._is_over = store, reader, hasher, now, is_over
        compacted = reader.snapshot.compacted
        self.manifest: Manifest | None = None if compacted is None else reader.manifest(compacted)
        self.horizon = -1 if self.manifest is None else self.manifest.horizon.offset
        """The offset after which raw counts; the compacted ledger has the rest."""
        self._by_event = self.manifest is not None and bool(self.manifest.policies.get("event_time_order"))
        self._first = 0 if self._by_event else first
        hi, lo = hasher(pa.array(keys, pa.binary()))
        order = np.lexsort((lo, hi))
        self._keys, self._hi, self._lo = [keys[place] for place in order], hi[order], lo[order]
        self._place = {key: place for place, key in enumerate(self._keys)}
        self._time = np.full(len(keys), NO_EVENT_TIME, dtype=np.int64)
        self._offset = np.full(len(keys), -1, dtype=np.int64)
        self._deletes = np.zeros(len(keys), dtype=np.bool_)
        self._removed = np.zeros(len(keys), dtype=np.bool_)
        self._unfinished = _NO_PLACES
        """Places of the keys that are searched in a segment: its rows ascend, so a later one may be newer."""
        self._chunks: list[Chunks] = []
        self._searched: set[int] = set()
        """Ids of the extents whose chunks are all in `_chunks`."""
        self.tail_messages = assemble_chunk_records(chunk_table.empty_chunks())
        """The chunked messages that end after the horizon, for keys that have chunks there."""

    def newest(self) -> Mapping[bytes, NewestOffset | None]:
        """Run the search; return the newest message of each key, None for a key without one. Keys whose newest message
        is not known are missing."""
        unknown = np.zeros(len(self._keys), dtype=np.bool_)
        try:
            self._search_raw()
            with naming_compacted_ledger(self._reader.snapshot):
                self._search_compacted()
            self._add_chunked_messages()
        except _StopSearch:
            unknown |= True if self._by_event else self._offset < 0
            unknown[self._unfinished] = True
            for chunks in self._chunks:
                unknown |= np.isin(self._hi, chunks["key_hi"])
        return {key: self._newest_at(place) for key, place in self._place.items() if not unknown[place]}

    def row_offset(self, key: bytes) -> int | None:
        """Return the offset of the last row of a key's newest message, after `newest`; None: there is no such row."""
        place = self._place[key]
        return int(self._offset[place]) if self._offset[place] >= 0 and not self._removed[place] else None

    def _newest_at(self, place: int) -> NewestOffset | None:
        """Return the newest message of the key at a place in the sorted keys; None: no message of the key is known."""
        offset = int(self._offset[place])
        return NewestOffset(offset, bool(self._deletes[place])) if offset >= 0 else None

    def _unresolved_places(self) -> npt.NDArray[np.int64]:
        """Return the places of the keys that need a further search; in event-time order, of all keys."""
        return np.flatnonzero(self._by_event | (self._offset < 0))

    def _raise_if_stopped(self) -> None:
        if self._is_over():
            raise _StopSearch

    def _note_candidate(self, place: int, time: int, offset: int, deletes: bool, removed: bool = False) -> None:
        """Record a message of a key if it is newer than the one that is recorded. `removed`: compaction has removed its
        row."""
        time = time if self._by_event else int(NO_EVENT_TIME)
        if (time, offset) > (int(self._time[place]), int(self._offset[place])):
            self._time[place], self._offset[place] = time, offset
            self._deletes[place], self._removed[place] = deletes, removed

    def _search_raw(self) -> None:
        for extent in self._tail_extents():
            if not len(self._unresolved_places()):
                return
            self._raise_if_stopped()
            if isinstance(extent, SegmentRecord):
                self._unfinished = self._unresolved_places()
                self._scan_tables(self._reader.segment(extent, self._first))
                self._unfinished = _NO_PLACES
                if self._first <= extent.first_offset:
                    self._searched.add(extent.ledger_id)
            else:
                self._search_ledger(extent)

    def _tail_extents(self) -> Iterator[LedgerRecord | SegmentRecord]:
        """Yield the ledgers and segments after the horizon that end at the first searched offset or after it, the
        newest first."""
        start = max(self.horizon + 1, self._reader.snapshot.topic.start_offset, self._first)
        for extent in reversed(self._reader.extents):
            if extent.content is not None and extent.content.last_offset < start:
                return
            yield extent

    def _search_ledger(self, ledger: LedgerRecord) -> None:
        start = self._reader.snapshot.topic.start_offset
        first, is_cut = max(self.horizon + 1, start), False
        for place, time, flagged in self._index_records(ledger.index, self._unresolved_places()):
            offset = flagged & int(OFFSET_MASK)
            if offset >= first:
                self._note_candidate(place, time, offset, bool(flagged & int(TOMBSTONE)))
            is_cut |= self._by_event and offset < start  # the trimmed winner hides nothing
        if is_cut:
            self._scan_tables(self._reader.ledger(ledger, first))
        self._collect_chunks(read_ledger_chunks(self._store, ledger.index))
        self._searched.add(ledger.ledger_id)

    def _index_records(self, location: IndexLocation, places: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
        """Look up keys in a key index; yield place, event time and flagged offset of each key that it has."""
        records = key_index.probe_records(self._store, location, self._hi[places], events=self._by_event)
        if self._by_event:
            records = records.event_winners()
        positions = key_index.positions_of_hashes(records, self._hi[places], self._lo[places])
        for place, position in zip(places.tolist(), positions.tolist(), strict=True):
            if position >= 0:
                time = NO_EVENT_TIME if records.event_time is None else records.event_time[position]
                flagged = records.offset if records.event_offset is None else records.event_offset
                yield place, int(time), int(flagged[position])

    def _scan_tables(self, tables: Iterator[pa.Table]) -> None:
        """Search rows for messages and chunks of the keys, and record them."""
        names = pa.array(self._keys, pa.binary())
        for table in tables:
            self._raise_if_stopped()
            kinds = pc.is_in(table.column("slot"), value_set=_OF_A_KEY)
            own = table.filter(pc.and_kleene(pc.is_in(table.column("key"), value_set=names), kinds))
            self._collect_chunks(chunk_records(own, self._hasher))
            plain = own.filter(pc.equal(own.column("slot"), int(rows.RowType.MESSAGE)))
            empty = pc.equal(pc.fill_null(pc.binary_length(plain.column("payload")), 0), 0)
            columns = (plain.column(name).to_pylist() for name in _COLUMNS)
            for key, offset, time, deletes in zip(*columns, empty.to_pylist(), strict=True):
                self._note_candidate(self._place[key], NO_EVENT_TIME if time is None else time, offset, deletes)

    def _search_compacted(self) -> None:
        if self.manifest is None or self.horizon < self._first:
            return
        pending = self._unresolved_places()
        lateness = self.manifest.policies.get("event_time_max_lateness_ms")
        for location in chain.from_iterable(self.manifest.index):
            if not len(pending):
                return
            self._raise_if_stopped()
            hidden = []
            for place, time, flagged in self._index_records(location, pending):
                hidden.append(place)  # by the newest level that has the key, even if its marker counts no more
                is_late = lateness is not None and time <= self._now - lateness
                if not (self._by_event and is_late and flagged & int(MARKER)):
                    deletes, removed = bool(flagged & int(TOMBSTONE)), bool(flagged & int(MARKER))
                    self._note_candidate(place, time, flagged & int(OFFSET_MASK), deletes, removed)
            pending = np.setdiff1d(pending, hidden)

    def _collect_chunks(self, chunks: Chunks) -> None:
        """Keep those chunks that belong to the searched keys and are after the horizon."""
        start = max(self.horizon + 1, self._reader.snapshot.topic.start_offset)
        own = chunk_table.keyed_chunk_mask(chunks) & np.isin(chunks["key_hi"], self._hi)
        own &= chunk_offsets(chunks).astype(np.int64) >= start
        if own.any():
            self._chunks.append(chunks[own])

    def _add_chunked_messages(self) -> None:
        """Assemble the chunked messages that end after the horizon, and record them; they may have begun anywhere."""
        if not self._chunks:
            return
        searched = np.concatenate(self._chunks)
        oldest = int(chunk_offsets(searched).min())
        self._first = 0
        for extent in self._tail_extents():
            if extent.first_offset < oldest and extent.ledger_id not in self._searched:
                self._raise_if_stopped()
                if isinstance(extent, LedgerRecord):
                    self._collect_chunks(read_ledger_chunks(self._store, extent.index))
                else:
                    for table in self._reader.segment(extent):
                        self._raise_if_stopped()
                        self._collect_chunks(chunk_records(table, self._hasher))
        if self.manifest is not None:
            with naming_compacted_ledger(self._reader.snapshot):
                for prefix in np.unique(searched["key_hi"] >> np.uint64(64 - MAX_RANGE_BITS)).tolist():
                    self._raise_if_stopped()
                    hash_range = HashRange(prefix, MAX_RANGE_BITS)
                    self._chunks += chunk_table.read_chunk_tables(self._store, self.manifest.chunks, hash_range)
        self.tail_messages = assemble_chunk_records(np.unique(np.concatenate(self._chunks)))
        records = self.tail_messages.index_records(self.tail_messages.keyed_mask)
        for hi, lo, flagged, time in zip(
            records.hi.tolist(), records.lo.tolist(), records.offset.tolist(), _event_times(records), strict=True
        ):
            offset = flagged & int(OFFSET_MASK)
            for place in np.flatnonzero((self._hi == np.uint64(hi)) & (self._lo == np.uint64(lo))).tolist():
                if offset > self.horizon:
                    self._note_candidate(place, time, offset, bool(flagged & int(TOMBSTONE)))


def _event_times(records: key_index.IndexRecords) -> list[int]:
    assert records.event_time is not None, "records of chunked messages have event times"
    times: list[int] = records.event_time.tolist()
    return times
