"""Scan before phase one: a search of the rows themselves for removals that no index shows.

Most runs have no scan. Policies by time (T1, T2), and the limits of `compact,delete` (C2), need the rows of old parts
that are due for removal, and their hashes. A topic that changes to event-time order (P9) needs event times for its old
parts. A dirty ledger with a trim inside needs a key index of its remaining rows: its own index has one message of a key
by offset and one by event time, and those may be trimmed. A task scans one source, and reads only row groups whose
statistics allow a row that is due.

The result for an old part is markers of the due rows, in hash order. Phase one reads them as the oldest dirty index: a
newer message of the key wins over a marker; otherwise the marker removes the row. The result for a dirty ledger is a
bitmap, because only the newest row of a key counts, and phase one knows which row that is.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from compactor.phase_one import bitmap_of, earliest, task_store, write_index
from compactor.run.plan import RemovalScanResult, RemovalScanTask, RunPlan
from storage.ledger import key_index, names
from storage.ledger.chunk_table import Mask
from storage.ledger.deletion_bitmap import encode_bitmaps, live_mask, read_deletion_bitmaps
from storage.ledger.key_index import I64, MARKER, TOMBSTONE, HashRange, IndexRecords, concatenate_records
from storage.ledger.manifest import DeletedRows
from storage.ledger.rows_file import RowsReader
from storage.ledger.sealing import IndexBuilder, keyed_mask, ledger_records, tombstone_flagged_offsets
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore


def run_scan(plan: RunPlan, scan: RemovalScanTask) -> RemovalScanResult:
    """Scan the rows of one source for removals by policy, and return them.

    Raises ObjectMissing, ObjectDamaged, any store error.
    """
    with task_store(plan) as store:
        return (_scan_dirty_ledger if scan.source >= plan.old_parts else _scan_part)(store, plan, scan)


def _scan_part(store: ObjectStore, plan: RunPlan, scan: RemovalScanTask) -> RemovalScanResult:
    source = plan.sources[scan.source]
    (deleted,) = read_deletion_bitmaps(store, [source.deleted])
    reader = RowsReader(store, source.rows)
    result = _PartScan(plan, scan)
    for number in range(len(reader.groups)):
        least_value, least_tombstone = reader.least(number, "publish_time"), reader.least(number, "retained_at")
        if (
            scan.reindex
            or _is_due(least_value, scan.values_to)
            or _is_due(least_tombstone, scan.tombstones_to)
            or _is_due(least_value, scan.rows_to)
            or reader.groups[number].first_offset < scan.rows_below
        ):
            table = reader.read(number)
            result.add(
                table.filter(pa.array(live_mask(deleted, source.first_offset, table.column("offset").to_numpy())))
            )
        else:
            result.values.append(least_value)
            result.remaining.append(least_value)
            result.tombstones.append(least_tombstone)
            result.first_tombstones.append(None if least_tombstone is None else reader.groups[number].first_offset)
    return RemovalScanResult(
        scan.source,
        index=_write_rebuilt_index(store, plan, scan.source, result.index) if scan.reindex else None,
        removal_markers=_write_removal_markers(store, plan, scan.source, result.markers) if result.markers else None,
        oldest_value=earliest(result.values),
        oldest_tombstone=earliest(result.tombstones),
        first_tombstone=earliest(result.first_tombstones),
        removed=_write_bitmaps(store, plan, scan, [result.unkeyed_removed])[0] if result.unkeyed_removed else None,
        oldest_row=earliest(result.remaining),
    )


class _PartScan:
    """Result of the scan of an old part. `values`, `tombstones`, `remaining`: per row group, least time of its rows
    that stay: values, tombstones, all."""

    def __init__(self, plan: RunPlan, scan: RemovalScanTask) -> None:
        self._plan = plan
        self._scan = scan
        self.markers: list[IndexRecords] = []
        self.index = _index_builder(plan)
        self.values: list[int | None] = []
        self.tombstones: list[int | None] = []
        self.first_tombstones: list[int | None] = []
        self.remaining: list[int | None] = []
        self.unkeyed_removed = BitMap()

    def add(self, table: pa.Table) -> None:
        """Add the live rows of one row group."""
        if self._scan.reindex:
            self.index.add(table)
        unkeyed = self._note_removed_unkeyed_rows(table)
        keyed = table.filter(keyed_mask(table))
        removed = _mask_of_rows_removed_by_limits(keyed, self._scan)
        tombstone = tombstone_flagged_offsets(keyed) & TOMBSTONE != 0
        published, retained = _int_column(keyed, "publish_time"), _int_column(keyed, "retained_at")
        due_value = ~tombstone & _mask_up_to(published, self._scan.values_to)
        due_tombstone = tombstone & _mask_up_to(retained, self._scan.tombstones_to)
        if self._plan.cursor_floor is not None:
            due_tombstone &= _int_column(keyed, "offset") <= self._plan.cursor_floor
        due = due_value | due_tombstone | removed
        if due.any():
            self.markers.append(_removal_markers(keyed.filter(pa.array(due)), self._plan))
        self.values.append(earliest(published[~tombstone & ~due].tolist()))
        self.tombstones.append(earliest(retained[tombstone & ~due].tolist()))
        self.first_tombstones.append(earliest(_int_column(keyed, "offset")[tombstone & ~due].tolist()))
        self.remaining.append(earliest([*published[~due].tolist(), *_int_column(unkeyed, "publish_time").tolist()]))

    def _note_removed_unkeyed_rows(self, table: pa.Table) -> pa.Table:
        """Return the rows outside the key map that stay, and note those that the topic's limits remove (C2)."""
        unkeyed = table.filter(pc.invert(keyed_mask(table)))
        removed = _mask_of_rows_removed_by_limits(unkeyed, self._scan)
        if removed.any():
            first = self._plan.sources[self._scan.source].first_offset
            self.unkeyed_removed |= bitmap_of(_int_column(unkeyed, "offset")[removed] - first)
        return unkeyed.filter(pa.array(~removed))


def _removal_markers(due: pa.Table, plan: RunPlan) -> IndexRecords:
    records = ledger_records(due, plan.hasher).event_winners()
    assert records.event_time is not None
    marked = records.offset | MARKER
    return IndexRecords(records.hi, records.lo, marked, marked, records.event_time)


def _write_removal_markers(store: ObjectStore, plan: RunPlan, source: int, groups: list[IndexRecords]) -> IndexLocation:
    """Write the removal markers of a source as one key index. The records of all groups have different keys."""
    together = concatenate_records(groups)
    return write_index(
        store, plan, source, together.take(key_index.latest_positions(together.hi, together.lo)), HashRange()
    )


def _scan_dirty_ledger(store: ObjectStore, plan: RunPlan, scan: RemovalScanTask) -> RemovalScanResult:
    """Find the expired and the removed rows of a dirty ledger. Phase one looks up only keyed values in `expired`.

    Rows below the source's first offset are ignored.
    """
    source = plan.sources[scan.source]
    reader = RowsReader(store, source.rows)
    expired, removed = BitMap(), BitMap()
    remaining = _index_builder(plan)
    for number, group in enumerate(reader.groups):
        if group.last_offset < source.first_offset:
            continue
        least = reader.least(number, "publish_time")
        below = group.first_offset < scan.rows_below
        if scan.reindex or _is_due(least, scan.values_to) or _is_due(least, scan.rows_to) or below:
            table = reader.read(number, None if scan.reindex else ["offset", "publish_time"])
            table = table.filter(pa.array(_int_column(table, "offset") >= source.first_offset))
            if scan.reindex:
                remaining.add(table)
            offsets, published = _int_column(table, "offset"), _int_column(table, "publish_time")
            expired |= bitmap_of(offsets[_mask_up_to(published, scan.values_to)] - source.first_offset)
            removed |= bitmap_of(offsets[_mask_of_rows_removed_by_limits(table, scan)] - source.first_offset)
    locations = _write_bitmaps(store, plan, scan, [expired, removed])
    return RemovalScanResult(
        scan.source,
        index=_write_rebuilt_index(store, plan, scan.source, remaining, remaining.encoded_chunks())
        if scan.reindex
        else None,
        expired=locations[0] if scan.values_to is not None else None,
        removed=locations[1] if removed else None,
    )


def _index_builder(plan: RunPlan) -> IndexBuilder:
    """Return a builder of an index, which has event times if any row has one or the run needs them."""
    return IndexBuilder(plan.hasher, with_event_times=plan.policies.event_time_order)


def _write_rebuilt_index(
    store: ObjectStore, plan: RunPlan, source: int, index: IndexBuilder, chunks: bytes = b""
) -> IndexLocation:
    """Write the index of the live rows of an old part, or of the remaining rows of a dirty ledger."""
    return write_index(store, plan, source, index.records(), HashRange(), index.unkeyed, chunks)


def _write_bitmaps(
    store: ObjectStore, plan: RunPlan, scan: RemovalScanTask, bitmaps: list[BitMap]
) -> list[DeletedRows]:
    name = names.bitmaps(plan.topic_uid, plan.attempt_id, scan.source)
    data, locations = encode_bitmaps(name, bitmaps)
    store.put(name, data)
    return locations


def _mask_of_rows_removed_by_limits(table: pa.Table, scan: RemovalScanTask) -> Mask:
    """Return a mask of the rows that the topic's limits remove (C2)."""
    below: Mask = _int_column(table, "offset") < scan.rows_below
    return below | _mask_up_to(_int_column(table, "publish_time"), scan.rows_to)


def _int_column(table: pa.Table, column: str) -> I64:
    return np.asarray(table.column(column).fill_null(0).to_numpy(), dtype=np.int64)


def _mask_up_to(times: I64, limit: int | None) -> Mask:
    return np.zeros(len(times), dtype=np.bool_) if limit is None else times <= limit


def _is_due(least: int | None, limit: int | None) -> bool:
    return limit is not None and least is not None and least <= limit
