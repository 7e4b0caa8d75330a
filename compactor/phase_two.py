"""Phase two: copy of the survivors into new parts, and bitmaps of the removed rows of kept parts.

A task writes one part: it reads the row groups of each slice that have survivors, and appends the surviving rows. Rows
keep every column (W1) and their order; a tombstone that is kept for the first time gets the run's time (T1). Or a task
writes one object of bitmaps: for each of several kept parts, the rows that were deleted before and the rows that phase
one superseded. A payload passes through one task only; nothing is shuffled.

Memory of a part: two row groups, 12 bytes per survivor (`plan.PART_ROWS`), 4 bytes per row in the row sets of its
sources, and at most 32 bytes per survivor of a slice during the merge of its row sets. Memory of bitmaps: 4 bytes per
removed row (`layout.BITMAP_ROWS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from compactor.phase_one import bitmap_of, earliest, sorted_offsets, task_store
from compactor.run.plan import (
    DeletedRowsTask,
    DeletedRowsTaskResult,
    Located,
    PartTask,
    PartTaskResult,
    RunPlan,
    Source,
    SourceSlice,
    SourceTotals,
)
from storage.advice import damaged_object_advice
from storage.ahead import run_ahead
from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.failpoints import Failpoint, failpoint
from storage.ledger import names, rows
from storage.ledger.chunk_table import Mask
from storage.ledger.deletion_bitmap import encode_bitmaps, live_mask, read_deletion_bitmaps
from storage.ledger.key_index import I64, TOMBSTONE
from storage.ledger.manifest import Part
from storage.ledger.rows_file import RowGroup, RowsReader, RowsWriter
from storage.ledger.sealing import keyed_mask, tombstone_flagged_offsets
from storage.model import LogPosition, MessageId, RowsObject
from storage.objects.interface import ObjectStore
from storage.objects.ranges import ByteRange, read_ranges

Selection = Iterator[tuple[int, I64]]
"""Numbers of row groups, ascending, and the positions of the selected rows in each."""


def run_task(plan: RunPlan, task: PartTask | DeletedRowsTask) -> PartTaskResult | DeletedRowsTaskResult:
    """Run one phase-two task: write a part, or the bitmaps of kept parts.

    Raises ObjectMissing, ObjectDamaged, any store error.
    """
    with task_store(plan) as store:
        return _write_part(store, plan, task) if isinstance(task, PartTask) else _write_bitmaps(store, plan, task)


def _write_part(store: ObjectStore, plan: RunPlan, task: PartTask) -> PartTaskResult:
    part_statistics = _PartStatistics(plan.partition)
    tables = _surviving_rows(store, plan, task, part_statistics)
    first = next(tables, None)
    if first is None:  # slices inside sources may have no survivors; an object without rows is not written
        return PartTaskResult(bytes_read=part_statistics.bytes_read)
    with RowsWriter(store, names.part(plan.topic_uid, plan.attempt_id, task.number)) as writer:
        failpoint(Failpoint.PHASE_TWO_PART_BEGUN)
        for source, table in chain([first], tables):
            keyed = keyed_mask(table).to_numpy()
            tombstone = keyed & (tombstone_flagged_offsets(table) & TOMBSTONE != 0)
            table = _stamp_new_tombstones(table, tombstone, plan.now)
            sizes = rows.logical_sizes(table)
            part_statistics.add_rows(source, table, sizes, keyed & ~tombstone)
            writer.write(table, sizes)
    failpoint(Failpoint.PHASE_TWO_PART_WRITTEN)
    assert writer.result is not None
    return PartTaskResult(part_statistics.build_part(writer.result), part_statistics.kept, part_statistics.bytes_read)


def _surviving_rows(
    store: ObjectStore, plan: RunPlan, task: PartTask, part_statistics: _PartStatistics
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of a part, with the number of their source, about one output row group at a time."""
    reads: list[Callable[[], Any]] = [
        partial(read_row_sets, store, [item.row_sets for item in task.slices]),
        partial(read_deletion_bitmaps, store, [plan.sources[item.source].deleted for item in task.slices]),
    ]
    all_named, all_deleted = run_ahead(reads, store.concurrent_requests)
    openings = (
        partial(_open_slice, store, plan, item, named, deleted)
        for item, named, deleted in zip(task.slices, all_named, all_deleted, strict=True)
    )
    for item, opened in zip(task.slices, run_ahead(openings, store.concurrent_requests), strict=True):
        if opened is not None:
            reader, selection = opened
            for table in reader.take(part_statistics.count_bytes_read(reader, selection)):
                yield item.source, table


def _open_slice(
    store: ObjectStore, plan: RunPlan, item: SourceSlice, named: npt.NDArray[np.uint32], deleted: BitMap
) -> tuple[RowsReader, Selection] | None:
    """Return a reader of a slice's source, and the selection of its survivors; None: it has none.

    `named`: the offsets in the row sets of the source, as `read_row_sets` yields them. `deleted`: its deleted rows.
    """
    source = plan.sources[item.source]
    if item.source < plan.old_parts:
        reader = RowsReader(store, source.rows)
        return reader, _select_live_rows(reader, source, item, deleted | bitmap_of(named))
    offsets = _offsets_in_slice(named, source, item)
    if not len(offsets):
        return None
    reader = RowsReader(store, source.rows)
    return reader, _select_offsets(reader, offsets)


def read_row_sets(store: ObjectStore, row_sets_by_source: Sequence[Located]) -> Iterator[npt.NDArray[np.uint32]]:
    """Read the row sets of sources. Yield the offsets of each, relative to its first offset, ascending. Shape (n,).

    `row_sets_by_source`: the row sets of each source. Raises ObjectDamaged for a wrong checksum.

    Row sets of neighbouring sources are neighbours in their objects, so one ranged read gets them.
    """
    located = [item for row_sets in row_sets_by_source for item in row_sets]
    ranges = [ByteRange(name, row_set.start, row_set.count * 4) for name, row_set in located]
    return _decode_row_sets(row_sets_by_source, iter(read_ranges(store, ranges)))


def _decode_row_sets(
    row_sets_by_source: Sequence[Located], blocks: Iterator[memoryview]
) -> Iterator[npt.NDArray[np.uint32]]:
    for row_sets in row_sets_by_source:
        relative = [np.empty(0, dtype=np.uint32)]
        for name, row_set in row_sets:
            block = next(blocks)
            if crc32c(block) != row_set.crc32c:
                raise ObjectDamaged(
                    f"the row sets {name} do not match their checksum", "run the compaction again", is_public=True
                )
            relative.append(np.frombuffer(block, dtype="<u4"))
        yield sorted_offsets(np.concatenate(relative))


def _offsets_in_slice(relative: npt.NDArray[np.uint32], source: Source, item: SourceSlice) -> I64:
    """Return the offsets inside the slice, as absolute offsets."""
    first, last = (np.uint32(bound - source.first_offset) for bound in (item.first_offset, item.last_offset))
    inside = relative[np.searchsorted(relative, first, "left") : np.searchsorted(relative, last, "right")]
    return inside.astype(np.int64) + source.first_offset


def _select_offsets(reader: RowsReader, offsets: I64) -> Selection:
    """Yield the positions of the rows with these offsets (ascending), by row group. Other row groups are not read."""
    firsts = np.searchsorted(offsets, [group.first_offset for group in reader.groups], "left").tolist()
    ends = np.searchsorted(offsets, [group.last_offset for group in reader.groups], "right").tolist()
    spans = [(number, *span) for number, span in enumerate(zip(firsts, ends, strict=True)) if span[0] < span[1]]
    reader.announce_row_groups([number for number, _, _ in spans], ahead=True)
    for number, first, end in spans:
        yield number, _positions_in_group(reader, number, reader.groups[number], offsets[first:end])


def _positions_in_group(reader: RowsReader, number: int, group: RowGroup, offsets: I64) -> I64:
    """Return the positions of `offsets` in a row group. Only a group with gaps needs its offsets read."""
    if group.last_offset - group.first_offset + 1 == group.rows:
        return offsets - group.first_offset
    present = reader.offsets(number)
    positions = np.searchsorted(present, offsets)
    if np.any(positions >= len(present)) or np.any(present[np.minimum(positions, len(present) - 1)] != offsets):
        raise ObjectDamaged(
            f"the key index names rows between offsets {group.first_offset} and {group.last_offset} that do not exist",
            damaged_object_advice(),
            is_public=True,
        )
    return positions.astype(np.int64)


def _select_live_rows(reader: RowsReader, source: Source, item: SourceSlice, deleted: BitMap) -> Selection:
    """Yield the positions of the live rows of a slice of an old part, by row group. Groups without any are not read."""
    spans = []
    for number, group in enumerate(reader.groups):
        first, last = max(group.first_offset, item.first_offset), min(group.last_offset, item.last_offset)
        if first > last:
            continue
        dead = deleted.range_cardinality(first - source.first_offset, last - source.first_offset + 1)
        if dead < group.rows:
            spans.append(number)
    reader.announce_row_groups(spans, ahead=True)
    for number in spans:
        present = reader.offsets(number)
        mask = live_mask(deleted, source.first_offset, present)
        mask &= (present >= item.first_offset) & (present <= item.last_offset)
        if mask.any():
            yield number, np.flatnonzero(mask)


def _stamp_new_tombstones(table: pa.Table, tombstone: Mask, now: int) -> pa.Table:
    """Return the table with the run's time on tombstones that no earlier run has kept (T1)."""
    if not tombstone.any():
        return table
    column = table.schema.get_field_index("retained_at")
    times = pc.if_else(pa.array(tombstone), table.column(column).fill_null(now), pa.scalar(None, pa.int64()))
    return table.set_column(column, rows.SCHEMA.field("retained_at"), times)


def _write_bitmaps(store: ObjectStore, plan: RunPlan, task: DeletedRowsTask) -> DeletedRowsTaskResult:
    sources = [number for number, _ in task.parts]
    bitmaps = read_deletion_bitmaps(store, [plan.sources[number].deleted for number in sources])
    kept: dict[int, SourceTotals] = {}
    all_named = read_row_sets(store, [row_sets for _, row_sets in task.parts])
    for number, bitmap, named in zip(sources, bitmaps, all_named, strict=True):
        source = plan.sources[number]
        more = bitmap_of(named)
        new = np.frombuffer((more - bitmap).to_array(), dtype=np.uint32).astype(np.uint64)
        removed = SourceTotals(len(new), int(new.sum()) + len(new) * source.first_offset)
        kept[number] = SourceTotals(source.messages, source.offset_sum) - removed
        bitmap |= more
    name = names.bitmaps(plan.topic_uid, plan.attempt_id, task.number)
    data, locations = encode_bitmaps(name, bitmaps)
    store.put(name, data)
    failpoint(Failpoint.PHASE_TWO_BITMAPS_WRITTEN)
    last = _last_live_message_id(store, plan, plan.sources[sources[-1]], bitmaps[-1]) if task.find_last else None
    return DeletedRowsTaskResult(dict(zip(sources, locations, strict=True)), kept, last)


def _last_live_message_id(store: ObjectStore, plan: RunPlan, source: Source, deleted: BitMap) -> MessageId | None:
    """Return the id of the last live message of a part (R6), None if all are dead."""
    reader = RowsReader(store, source.rows)
    for number in reversed(range(len(reader.groups))):
        table = reader.read(number, ["offset", "ledger_id", "entry_id", "batch_index"])
        mask = live_mask(deleted, source.first_offset, table.column("offset").to_numpy())
        if mask.any():
            return rows.message_id(table, int(np.flatnonzero(mask)[-1]), plan.partition)
    return None


class _PartStatistics:
    """Statistics of the rows written to a part. It checks that offsets ascend and are unique (W1)."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._first: LogPosition | None = None
        self._last: LogPosition | None = None
        self._logical_bytes = 0
        self._publish = (2**63 - 1, -(2**63))
        self._oldest_value: int | None = None
        self._oldest_tombstone: int | None = None
        self._first_tombstone: int | None = None
        self.bytes_read = 0
        self.kept: dict[int, SourceTotals] = {}

    def count_bytes_read(self, reader: RowsReader, selection: Selection) -> Selection:
        """Yield from `selection`, and add the sizes of its row groups to `bytes_read`."""
        for number, positions in selection:
            group = reader.groups[number]
            self.bytes_read += group.end - group.start
            yield number, positions

    def add_rows(self, source: int, table: pa.Table, sizes: I64, values: Mask) -> None:
        """Add the rows of a table before it is written. `values`: mask of the values with a key."""
        offsets = table.column("offset").to_numpy()
        if (self._last and offsets[0] <= self._last.offset) or np.any(offsets[1:] <= offsets[:-1]):
            raise ObjectDamaged(
                f"rows near offset {int(offsets[0])} do not ascend",
                "restore the ledger from a backup, then run again",
                is_public=True,
            )
        if self._first is None:
            self._first = LogPosition(int(offsets[0]), rows.message_id(table, 0, self._partition))
        self._last = LogPosition(int(offsets[-1]), rows.message_id(table, len(table) - 1, self._partition))
        self._logical_bytes += int(sizes.sum())
        publish = pc.min_max(table.column("publish_time")).as_py()
        self._publish = (min(self._publish[0], publish["min"]), max(self._publish[1], publish["max"]))
        published = table.column("publish_time").to_numpy()[values]
        self._oldest_value = earliest((self._oldest_value, int(published.min()) if len(published) else None))
        retained = table.column("retained_at")
        if retained.null_count < len(table):
            self._oldest_tombstone = earliest((self._oldest_tombstone, pc.min(retained).as_py()))
            if self._first_tombstone is None:
                self._first_tombstone = int(offsets[int(np.argmax(retained.is_valid().to_numpy()))])
        total = SourceTotals(len(offsets), int(offsets.astype(np.uint64).sum(dtype=np.uint64)))
        self.kept[source] = self.kept.get(source, SourceTotals()) + total

    def build_part(self, written: RowsObject) -> Part:
        """Return the manifest's entry of the part, after all its rows are written."""
        assert self._first is not None
        assert self._last is not None
        total = sum(self.kept.values(), SourceTotals())
        return Part(
            rows=written,
            first=self._first,
            last=self._last,
            messages=total.count,
            logical_bytes=self._logical_bytes,
            min_publish_time=self._publish[0],
            max_publish_time=self._publish[1],
            offset_sum=total.offset_sum,
            oldest_value=self._oldest_value,
            oldest_tombstone=self._oldest_tombstone,
            first_tombstone=self._first_tombstone,
        )
