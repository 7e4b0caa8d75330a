"""The newest message of one key, from the key indexes: a point read (T4).

Order of looking: the tail (ledgers behind the horizon), newest first, then the levels of the compacted index, newest
first; each is one ranged read of the fence that the key's hash falls into. The first record decides: a tombstone or a
marker is no value; anything else names an offset, and then the footer and one row group are read. With event-time
order (the frozen policy of the compacted ledger) the largest event time wins, of equal ones the later offset (P9): all
of them are looked at, each in two reads. A topic that was never compacted has offset order.

So at most 3 + 2 × levels ranged reads, where each ledger of the tail counts as a level, whatever the topic's size, and
the manifest is the only object that is read whole. The bitmap of deleted rows is not needed: a record that no newer
level hides and that is no marker names a row that counts (storage/ledger/manifest.py).

The key is known by its 128-bit hash until its row is there; another key in that row is damage, or a collision of the
hash, and an error either way, never another key's value. On a loss the topic is looked at again: if another generation
serves, it is asked instead (R8).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import DataLoss, ObjectDamaged
from storage.ledger import key_index
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import MAX_RANGE_BITS, HashRange, read_records
from storage.ledger.manifest import Manifest
from storage.ledger.rows_file import RowsObject, RowsReader
from storage.metadata.records import IndexLocation, TopicSnapshot
from storage.model import Message
from storage.objects.interface import ObjectStore
from storage.reader import SnapshotReader, messages, naming_compacted

_OFFSET = int(key_index.OFFSET_MASK)
_NO_VALUE = int(key_index.TOMBSTONE | key_index.MARKER)
_REMEDY = "restore the object from a backup, or see docs/operations.md on damaged ledgers"


def point_read(
    store: ObjectStore, snapshot: Callable[[], TopicSnapshot], hasher: KeyHasher, key: bytes, now: int
) -> Message | None:
    """The newest value of `key`; None if it has none. `now`: in event-time order, by which lateness is over (P9).

    Raises ObjectMissing, ObjectDamaged.
    """
    seen = snapshot()
    while True:
        try:
            return _PointRead(store, seen, hasher, key, now).newest()
        except DataLoss:
            newer = snapshot()
            if newer.compacted == seen.compacted:
                raise
            seen = newer


@dataclass(frozen=True)
class _Found:
    """A record of the key. `rows` None: it is no value, but a tombstone or index-only."""

    event_time: int
    offset: int
    rows: RowsObject | None


class _PointRead:
    """One key in one snapshot."""

    def __init__(self, store: ObjectStore, snapshot: TopicSnapshot, hasher: KeyHasher, key: bytes, now: int) -> None:
        self._now = now
        self._store = store
        self._snapshot = snapshot
        self._key = key
        hi, lo = hasher(pa.array([key], pa.binary()))
        self._hi, self._lo = hi[0], lo[0]
        self._range = HashRange(int(self._hi) >> (64 - MAX_RANGE_BITS), MAX_RANGE_BITS)

    def newest(self) -> Message | None:
        compacted = self._snapshot.compacted
        if compacted is None:
            return self._value(next(self._in_tail(-1, False), None))
        manifest = SnapshotReader(self._store, self._snapshot).manifest(compacted)
        by_event = bool(manifest.policies.get("event_time_order"))
        horizon = manifest.horizon.offset
        found = chain(self._in_tail(horizon, by_event), self._in_compacted(manifest, by_event))
        winner = max(found, key=_by_event, default=None) if by_event else next(found, None)
        if winner is not None and winner.offset <= horizon:
            with naming_compacted(self._snapshot):
                return self._value(winner)
        return self._value(winner)

    def _in_tail(self, horizon: int, by_event: bool) -> Iterator[_Found]:
        """The key's record of each ledger behind the horizon, the newest ledger first."""
        for ledger in reversed(self._snapshot.ledgers):
            if ledger.last_offset <= horizon:
                return
            record = self._record(ledger.index, by_event)
            # A ledger may straddle the horizon: what of it lies below is represented in the compacted ledger.
            if record is not None and record[1] & _OFFSET > horizon:
                yield _found(record, RowsObject(ledger.rows, ledger.footer_size))

    def _in_compacted(self, manifest: Manifest, by_event: bool) -> Iterator[_Found]:
        """The key's record of the newest level that has one: it hides those of older levels."""
        with naming_compacted(self._snapshot):
            for location in chain.from_iterable(manifest.index):
                record = self._record(location, by_event)
                if record is not None:
                    if not (by_event and self._forgotten(record, manifest)):
                        yield _found(record, _part_of(manifest, record[1]))
                    return

    def _forgotten(self, record: tuple[int, int], manifest: Manifest) -> bool:
        """Whether a record is a marker whose lateness is over (P9): it hides older levels, and beats nothing newer."""
        event_time, flagged = record
        lateness = manifest.policies.get("event_time_max_lateness_ms")
        over = lateness is not None and event_time <= self._now - lateness
        return over and bool(flagged & int(key_index.MARKER))

    def _record(self, location: IndexLocation, by_event: bool) -> tuple[int, int] | None:
        """The key's event time and flagged offset in one index: one ranged read, two by event time, at most."""
        records = read_records(self._store, location, self._range, events=by_event)
        here = np.flatnonzero((records.hi == self._hi) & (records.lo == self._lo))
        if not len(here):
            return None
        if records.event_offset is None or records.event_time is None:
            return int(key_index.NO_EVENT_TIME), int(records.offset[here[0]])
        return int(records.event_time[here[0]]), int(records.event_offset[here[0]])

    def _value(self, found: _Found | None) -> Message | None:
        """The row that a record names, if it names one: the footer and one row group are read."""
        if found is None or found.rows is None:
            return None
        reader = RowsReader(self._store, found.rows)
        for number, group in enumerate(reader.groups):
            if group.first_offset <= found.offset <= group.last_offset:
                table = reader.read(number)
                row = table.filter(pc.equal(table.column("offset"), found.offset))
                if len(row) == 1:
                    (message,) = messages(iter(row.to_batches()), self._snapshot.topic.name.partition)
                    return self._checked(message, found.rows)
        raise ObjectDamaged(
            f"{found.rows.stored.name} has no row of offset {found.offset}, which its index names", _REMEDY
        )

    def _checked(self, message: Message, rows_object: RowsObject) -> Message:
        if message.key == self._key:
            return message
        raise ObjectDamaged(
            f"the row of offset {message.offset} in {rows_object.stored.name} has another key than the one whose hash "
            f"led there ({self._hi:016x}{self._lo:016x}): the index is damaged, or two keys share a 128-bit hash",
            "restore the index from a backup; if both keys exist, one of them must be renamed",
        )


def _found(record: tuple[int, int], rows_object: RowsObject | None) -> _Found:
    event_time, flagged = record
    return _Found(event_time, flagged & _OFFSET, None if flagged & _NO_VALUE else rows_object)


def _by_event(found: _Found) -> tuple[int, int]:
    return found.event_time, found.offset


def _part_of(manifest: Manifest, flagged: int) -> RowsObject | None:
    """The part that holds a record's row; None if the record is no value."""
    if flagged & _NO_VALUE:
        return None
    offset = flagged & _OFFSET
    number = bisect_right(manifest.parts, offset, key=lambda part: part.first.offset) - 1
    if number < 0 or manifest.parts[number].last.offset < offset:
        raise ObjectDamaged(f"the key index names offset {offset}, which no part of the compacted ledger has", _REMEDY)
    return manifest.parts[number].rows
