"""The scan before phase one: what only the rows themselves can tell.

Most runs have none. Policies that go by time (T1, T2), and the limits of a topic with `compact,delete` (C2), need to
know which rows of an old part are due to go, and under which hash the index has them; a topic that changes to
event-time order (P9) needs event times for its old parts; a dirty ledger that a trim cut needs a key index of what is
left of it, since its own knows of each key one message by offset and one by event time, and these may be gone. One task
looks through one source, and of it only through the row groups whose statistics allow for a row that is due.

The rows of an old part that are due come out as markers in hash order, which phase one takes for the oldest dirty
index: a newer message of the key wins over them, else they hide the row and it goes. Rows of a dirty ledger come out
as a bitmap, because only the newest of a key counts, and phase one knows which that is.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap, BitMap64

from compactor.phase_one import task_store
from compactor.run.plan import RunPlan, ScanTask, ScanTaskResult
from storage.ledger import chunk_table, key_index, names
from storage.ledger.deletion_bitmap import alive, encode_deleted, read_all_deleted
from storage.ledger.key_index import MARKER, TOMBSTONE, HashRange, IndexRecords, concatenated
from storage.ledger.manifest import DeletedRows
from storage.ledger.rows_file import RowsReader
from storage.ledger.sealing import flagged_offsets, keyed_rows, ledger_records, unkeyed_rows
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore

Mask = npt.NDArray[np.bool_]


def run_scan(plan: RunPlan, scan: ScanTask) -> ScanTaskResult:
    """One task. Raises ObjectMissing, ObjectDamaged, any store error."""
    with task_store(plan) as store:
        return (_scan_ledger if scan.source >= plan.old_parts else _scan_part)(store, plan, scan)


def _scan_part(store: ObjectStore, plan: RunPlan, scan: ScanTask) -> ScanTaskResult:
    source = plan.sources[scan.source]
    (deleted,) = read_all_deleted(store, [source.deleted])
    reader = RowsReader(store, source.rows)
    seen = _Seen(plan, scan)
    for number in range(len(reader.groups)):
        least_value, least_tombstone = reader.least(number, "publish_time"), reader.least(number, "retained_at")
        if (
            scan.reindex
            or _due(least_value, scan.values_to)
            or _due(least_tombstone, scan.tombstones_to)
            or _due(least_value, scan.rows_to)
            or reader.groups[number].first_offset < scan.rows_below
        ):
            table = reader.read(number)
            seen.rows(table.filter(pa.array(alive(deleted, source.first_offset, table.column("offset").to_numpy()))))
        else:
            seen.values.append(least_value)
            seen.rows_left.append(least_value)
            seen.tombstones.append(least_tombstone)
            seen.first_tombstones.append(None if least_tombstone is None else reader.groups[number].first_offset)
    return ScanTaskResult(
        scan.source,
        index=_write(store, plan, scan.source, seen.indexed, seen.kept) if scan.reindex else None,
        due=_write(store, plan, scan.source, seen.markers) if seen.markers else None,
        oldest_value=_least(seen.values),
        oldest_tombstone=_least(seen.tombstones),
        first_tombstone=_least(seen.first_tombstones),
        gone=_write_bitmaps(store, plan, scan, [seen.unkeyed_gone])[0] if seen.unkeyed_gone else None,
        oldest_row=_least(seen.rows_left),
    )


class _Seen:
    """What a scan of an old part has found; `values`, `tombstones`: by row group the least times of rows that stay."""

    def __init__(self, plan: RunPlan, scan: ScanTask) -> None:
        self._plan = plan
        self._scan = scan
        self.markers: list[IndexRecords] = []
        self.indexed: list[IndexRecords] = []
        self.kept = {kind: BitMap64() for kind in key_index.UNKEYED_CLASSES}
        self.values: list[int | None] = []
        self.tombstones: list[int | None] = []
        self.first_tombstones: list[int | None] = []
        self.rows_left: list[int | None] = []
        self.unkeyed_gone = BitMap()

    def rows(self, table: pa.Table) -> None:
        """Take in live rows of one row group."""
        if self._scan.reindex:
            self.indexed.append(ledger_records(table, self._plan.hasher))
            for kind, bitmap in unkeyed_rows(table).items():
                self.kept[kind] |= bitmap
        unkeyed = self._unkeyed(table)
        keyed = table.filter(keyed_rows(table))
        gone = _gone(keyed, self._scan)
        tombstone = flagged_offsets(keyed) & TOMBSTONE != 0
        published, retained = _numbers(keyed, "publish_time"), _numbers(keyed, "retained_at")
        value_goes = ~tombstone & _up_to(published, self._scan.values_to)
        tombstone_goes = tombstone & _up_to(retained, self._scan.tombstones_to)
        if self._plan.cursor_floor is not None:
            tombstone_goes &= _numbers(keyed, "offset") <= self._plan.cursor_floor
        goes = value_goes | tombstone_goes | gone
        if goes.any():
            self.markers.append(_markers(keyed.filter(pa.array(goes)), self._plan))
        self.values.append(_least(published[~tombstone & ~goes].tolist()))
        self.tombstones.append(_least(retained[tombstone & ~goes].tolist()))
        self.first_tombstones.append(_least(_numbers(keyed, "offset")[tombstone & ~goes].tolist()))
        self.rows_left.append(_least([*published[~goes].tolist(), *_numbers(unkeyed, "publish_time").tolist()]))

    def _unkeyed(self, table: pa.Table) -> pa.Table:
        """The rows outside the key map that stay; those that go are noted (C2)."""
        unkeyed = table.filter(pc.invert(keyed_rows(table)))
        gone = _gone(unkeyed, self._scan)
        if gone.any():
            first = self._plan.sources[self._scan.source].first_offset
            self.unkeyed_gone |= _relative(_numbers(unkeyed, "offset")[gone], first)
        return unkeyed.filter(pa.array(~gone))


def _markers(due: pa.Table, plan: RunPlan) -> IndexRecords:
    found = ledger_records(due, plan.hasher).by_event()
    assert found.event_time is not None
    return IndexRecords(found.hi, found.lo, found.offset | MARKER, found.offset | MARKER, found.event_time)


def _write(
    store: ObjectStore,
    plan: RunPlan,
    source: int,
    pieces: list[IndexRecords],
    unkeyed: dict[str, BitMap64] | None = None,
) -> IndexLocation:
    """A key index over all hashes, of records whose keys differ."""
    together = concatenated([piece.by_event() for piece in pieces])
    sorted_records = together.take(key_index.latest(together.hi, together.lo))
    data, directory = key_index.encode_index(sorted_records, HashRange(), unkeyed)
    name = names.compacted_index(plan.topic_uid, plan.attempt_id, source)
    store.put(name, data)
    return IndexLocation(name, 0, len(data), directory.encode())


def _scan_ledger(store: ObjectStore, plan: RunPlan, scan: ScanTask) -> ScanTaskResult:
    """Every row of a dirty ledger that was published so early; of `expired` phase one asks for keyed values only.

    Rows below the source's first are left out of everything.
    """
    source = plan.sources[scan.source]
    reader = RowsReader(store, source.rows)
    expired, gone = BitMap(), BitMap()
    remaining = _Left(plan)
    for number, group in enumerate(reader.groups):
        if group.last_offset < source.first_offset:
            continue
        least = reader.least(number, "publish_time")
        below = group.first_offset < scan.rows_below
        if scan.reindex or _due(least, scan.values_to) or _due(least, scan.rows_to) or below:
            table = reader.read(number, None if scan.reindex else ["offset", "publish_time"])
            table = table.filter(pa.array(_numbers(table, "offset") >= source.first_offset))
            if scan.reindex:
                remaining.add(table)
            offsets, published = _numbers(table, "offset"), _numbers(table, "publish_time")
            expired |= _relative(offsets[_up_to(published, scan.values_to)], source.first_offset)
            gone |= _relative(offsets[_gone(table, scan)], source.first_offset)
    places = _write_bitmaps(store, plan, scan, [expired, gone])
    return ScanTaskResult(
        scan.source,
        index=remaining.write(store, scan.source) if scan.reindex else None,
        expired=places[0] if scan.values_to is not None else None,
        gone=places[1] if gone else None,
    )


class _Left:
    """The key index of what is left of a dirty ledger, as sealing would make it (storage/ledger/sealing.py)."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._records: list[IndexRecords] = []
        self._unkeyed = {kind: BitMap64() for kind in key_index.UNKEYED_CLASSES}
        self._chunks = [chunk_table.none()]

    def add(self, table: pa.Table) -> None:
        """Take in rows; they ascend from call to call."""
        self._records.append(ledger_records(table, self._plan.hasher))
        for kind, bitmap in unkeyed_rows(table).items():
            self._unkeyed[kind] |= bitmap
        self._chunks.append(chunk_table.chunk_records(table, self._plan.hasher))

    def write(self, store: ObjectStore, source: int) -> IndexLocation:
        together = concatenated([IndexRecords(record.hi, record.lo, record.offset) for record in self._records])
        records = together.take(key_index.latest(together.hi, together.lo))
        if any(record.event_time is not None for record in self._records):
            events = concatenated([record.by_event() for record in self._records])
            assert events.event_time is not None
            events = events.take(key_index.latest_by_event(events.hi, events.lo, events.event_time))
            records = IndexRecords(records.hi, records.lo, records.offset, events.event_offset, events.event_time)
        chunks = np.concatenate(self._chunks).tobytes()
        data, directory = key_index.encode_index(records, HashRange(), self._unkeyed, chunks)
        name = names.compacted_index(self._plan.topic_uid, self._plan.attempt_id, source)
        store.put(name, data)
        return IndexLocation(name, 0, len(data), directory.encode())


def _write_bitmaps(store: ObjectStore, plan: RunPlan, scan: ScanTask, bitmaps: list[BitMap]) -> list[DeletedRows]:
    name = names.bitmaps(plan.topic_uid, plan.attempt_id, scan.source)
    data, places = encode_deleted(name, bitmaps)
    store.put(name, data)
    return places


def _relative(offsets: npt.NDArray[np.int64], first: int) -> BitMap:
    return BitMap(array("I", (offsets - first).astype(np.uint32).tobytes()))


def _gone(table: pa.Table, scan: ScanTask) -> Mask:
    """Which rows go whatever they are (C2)."""
    below: Mask = _numbers(table, "offset") < scan.rows_below
    return below | _up_to(_numbers(table, "publish_time"), scan.rows_to)


def _numbers(table: pa.Table, column: str) -> npt.NDArray[np.int64]:
    return np.asarray(table.column(column).fill_null(0).to_numpy(), dtype=np.int64)


def _up_to(times: npt.NDArray[np.int64], limit: int | None) -> Mask:
    return np.zeros(len(times), dtype=np.bool_) if limit is None else times <= limit


def _due(least: int | None, limit: int | None) -> bool:
    return limit is not None and least is not None and least <= limit


def _least(times: list[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)
