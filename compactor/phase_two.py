"""Phase two: copy the survivors into parts, and mark what goes in the parts that are kept.

A task writes one part: slice by slice it walks a source's row groups, skips those without survivors, takes the
surviving rows of the others and appends them. Rows keep every column (W1) and their order; a tombstone that is kept
for the first time gets the run's time (T1). Or it writes one object of bitmaps: for each of some kept parts, the rows
that were deleted before and those that phase one superseded. Payloads go from the store to the store through one
task; nothing is shuffled.

Memory: one row group read, one being gathered, 12 bytes a survivor of the part (`plan.PART_ROWS`), 4 bytes a row that
the row sets of its sources name, and while those of a slice are merged at most 32 a survivor; of bitmaps 4 bytes a
row that goes (`layout.BITMAP_ROWS`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from compactor.phase_one import ascending, task_store
from compactor.run.plan import (
    DeletedRowsTask,
    DeletedRowsTaskResult,
    Located,
    PartStatistics,
    PartTask,
    PartTaskResult,
    RunPlan,
    Slice,
    Source,
    SourceTotals,
)
from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.failpoints import Failpoint, failpoint
from storage.ledger import names, rows
from storage.ledger.deletion_bitmap import alive, encode_deleted, read_all_deleted
from storage.ledger.key_index import TOMBSTONE
from storage.ledger.manifest import Part
from storage.ledger.rows_file import RowGroup, RowsReader, RowsWriter
from storage.ledger.sealing import flagged_offsets, keyed_rows
from storage.model import LogPosition, MessageId, RowsObject
from storage.objects.interface import ObjectStore
from storage.objects.ranges import ByteRange, read_ranges

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Wanted = Iterator[tuple[int, I64]]
"""Row groups by number, ascending, and the positions of the wanted rows in each."""


def run_task(plan: RunPlan, task: PartTask | DeletedRowsTask) -> PartTaskResult | DeletedRowsTaskResult:
    """One phase-two task. Raises ObjectMissing, ObjectDamaged, any store error."""
    with task_store(plan) as store:
        return _write_part(store, plan, task) if isinstance(task, PartTask) else _write_bitmaps(store, plan, task)


def _write_part(store: ObjectStore, plan: RunPlan, task: PartTask) -> PartTaskResult:
    seen = _Seen(plan.partition)
    tables = _surviving_rows(store, plan, task, seen)
    first = next(tables, None)
    if first is None:  # nothing of a slice that was cut inside a source: no object of no rows
        return PartTaskResult(task.number, statistics=seen.statistics)
    with RowsWriter(store, names.part(plan.topic_uid, plan.attempt_id, task.number)) as writer:
        failpoint(Failpoint.PHASE_TWO_PART_BEGUN)
        for source, table in chain([first], tables):
            keyed = keyed_rows(table).to_numpy()
            tombstone = keyed & (flagged_offsets(table) & TOMBSTONE != 0)
            table = _first_kept(table, tombstone, plan.now)
            sizes = rows.logical_sizes(table)
            seen.add(source, table, sizes, keyed & ~tombstone)
            writer.write(table, sizes)
    failpoint(Failpoint.PHASE_TWO_PART_WRITTEN)
    assert writer.result is not None
    return PartTaskResult(task.number, seen.part(writer.result), seen.kept, seen.statistics)


def _surviving_rows(store: ObjectStore, plan: RunPlan, task: PartTask, seen: _Seen) -> Iterator[tuple[int, pa.Table]]:
    """The rows of a part, by source, about an output row group at a time."""
    all_named = read_offsets(store, [item.row_sets for item in task.slices])
    all_deleted = read_all_deleted(store, [plan.sources[item.source].deleted for item in task.slices])
    for one, named, deleted in zip(task.slices, all_named, all_deleted, strict=True):
        source = plan.sources[one.source]
        if one.source < plan.old_parts:
            deleted |= _bitmap(named)
            reader = RowsReader(store, source.rows)
            wanted = _all_but(reader, source, one, deleted)
        else:
            offsets = _inside(named, source, one)
            if not len(offsets):
                continue
            reader = RowsReader(store, source.rows)
            wanted = _named(reader, offsets)
        for table in reader.take(seen.counted(reader, wanted)):
            yield one.source, table


def read_offsets(store: ObjectStore, of_sources: Sequence[Located]) -> Iterator[npt.NDArray[np.uint32]]:
    """Of each source the offsets in the row sets of all hash ranges, relative to its first, ascending. Shape (n,).

    Row sets of neighbouring sources are neighbours in their objects, and come in one ranged read.
    """
    ranges = [ByteRange(name, one.start, one.count * 4) for row_sets in of_sources for name, one in row_sets]
    blocks = iter(read_ranges(store, ranges))
    for row_sets in of_sources:
        relative = [np.empty(0, dtype=np.uint32)]
        for name, row_set in row_sets:
            block = next(blocks)
            if crc32c(block) != row_set.crc32c:
                raise ObjectDamaged(
                    f"the row sets {name} do not match their checksum", "run the compaction again", is_public=True
                )
            relative.append(np.frombuffer(block, dtype="<u4"))
        yield ascending(np.concatenate(relative))


def _inside(relative: npt.NDArray[np.uint32], source: Source, one: Slice) -> I64:
    """Those in the slice, as whole offsets."""
    first, last = (np.uint32(bound - source.first_offset) for bound in (one.first_offset, one.last_offset))
    inside = relative[np.searchsorted(relative, first, "left") : np.searchsorted(relative, last, "right")]
    return inside.astype(np.int64) + source.first_offset


def _named(reader: RowsReader, offsets: I64) -> Wanted:
    """The rows of `offsets`, ascending; row groups without any are not read."""
    firsts = np.searchsorted(offsets, [group.first_offset for group in reader.groups], "left").tolist()
    ends = np.searchsorted(offsets, [group.last_offset for group in reader.groups], "right").tolist()
    spans = [(number, *span) for number, span in enumerate(zip(firsts, ends, strict=True)) if span[0] < span[1]]
    reader.expect([number for number, _, _ in spans])
    for number, first, end in spans:
        yield number, _positions(reader, number, reader.groups[number], offsets[first:end])


def _positions(reader: RowsReader, number: int, group: RowGroup, offsets: I64) -> I64:
    """Where in a row group the rows of `offsets` are. The offsets of a group without gaps need not be read."""
    if group.last_offset - group.first_offset + 1 == group.rows:
        return offsets - group.first_offset
    present = reader.offsets(number)
    positions = np.searchsorted(present, offsets)
    if np.any(positions >= len(present)) or np.any(present[np.minimum(positions, len(present) - 1)] != offsets):
        raise ObjectDamaged(
            f"the key index names rows between offsets {group.first_offset} and {group.last_offset} that are not there",
            "restore the ledger or its index from a backup, or delete the cursor __compaction and compact from raw",
            is_public=True,
        )
    return positions.astype(np.int64)


def _all_but(reader: RowsReader, source: Source, one: Slice, deleted: BitMap) -> Wanted:
    """The live rows of a slice of an old part; row groups of which nothing is alive are not read."""
    spans = []
    for number, group in enumerate(reader.groups):
        first, last = max(group.first_offset, one.first_offset), min(group.last_offset, one.last_offset)
        if first > last:
            continue
        dead = deleted.range_cardinality(first - source.first_offset, last - source.first_offset + 1)
        if dead < group.rows:
            spans.append(number)
    reader.expect(spans)
    for number in spans:
        present = reader.offsets(number)
        mask = alive(deleted, source.first_offset, present)
        mask &= (present >= one.first_offset) & (present <= one.last_offset)
        if mask.any():
            yield number, np.flatnonzero(mask)


def _first_kept(table: pa.Table, tombstone: Mask, now: int) -> pa.Table:
    """Tombstones that no run has kept before get the time of this one (T1)."""
    if not tombstone.any():
        return table
    column = table.schema.get_field_index("retained_at")
    times = pc.if_else(pa.array(tombstone), table.column(column).fill_null(now), pa.scalar(None, pa.int64()))
    return table.set_column(column, rows.SCHEMA.field("retained_at"), times)


def _write_bitmaps(store: ObjectStore, plan: RunPlan, task: DeletedRowsTask) -> DeletedRowsTaskResult:
    sources = [number for number, _ in task.parts]
    bitmaps = read_all_deleted(store, [plan.sources[number].deleted for number in sources])
    kept: dict[int, SourceTotals] = {}
    all_named = read_offsets(store, [row_sets for _, row_sets in task.parts])
    for number, bitmap, named in zip(sources, bitmaps, all_named, strict=True):
        source = plan.sources[number]
        more = _bitmap(named)
        going = np.frombuffer((more - bitmap).to_array(), dtype=np.uint32).astype(np.uint64)
        gone = SourceTotals(len(going), int(going.sum()) + len(going) * source.first_offset)
        kept[number] = SourceTotals(source.messages, source.offset_sum) - gone
        bitmap |= more
    name = names.bitmaps(plan.topic_uid, plan.attempt_id, task.number)
    data, places = encode_deleted(name, bitmaps)
    store.put(name, data)
    failpoint(Failpoint.PHASE_TWO_BITMAPS_WRITTEN)
    last = _last_alive(store, plan, plan.sources[sources[-1]], bitmaps[-1]) if task.find_last else None
    return DeletedRowsTaskResult(task.number, dict(zip(sources, places, strict=True)), kept, last)


def _last_alive(store: ObjectStore, plan: RunPlan, source: Source, deleted: BitMap) -> MessageId | None:
    """The id of the last live message of a part (R6), or None if all are dead."""
    reader = RowsReader(store, source.rows)
    for number in reversed(range(len(reader.groups))):
        table = reader.read(number, ["offset", "ledger_id", "entry_id", "batch_index"])
        mask = alive(deleted, source.first_offset, table.column("offset").to_numpy())
        if mask.any():
            return rows.message_id(table, int(np.flatnonzero(mask)[-1]), plan.partition)
    return None


def _bitmap(relative: npt.NDArray[np.uint32]) -> BitMap:
    return BitMap(array("I", relative.astype(np.uint32).tobytes()))


class _Seen:
    """What was written of a part so far. Asserts W1 on the way: offsets ascend and are unique."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._first: LogPosition | None = None
        self._last: LogPosition | None = None
        self._logical_bytes = 0
        self._publish = (2**63 - 1, -(2**63))
        self._oldest_value: int | None = None
        self._oldest_tombstone: int | None = None
        self._first_tombstone: int | None = None
        self._groups_read = self._bytes_read = 0
        self.kept: dict[int, SourceTotals] = {}

    @property
    def statistics(self) -> PartStatistics:
        return PartStatistics(self._groups_read, self._bytes_read)

    def counted(self, reader: RowsReader, wanted: Wanted) -> Wanted:
        """`wanted`, with the row groups that are read counted on the way."""
        for number, positions in wanted:
            group = reader.groups[number]
            self._groups_read += 1
            self._bytes_read += group.end - group.start
            yield number, positions

    def add(self, source: int, table: pa.Table, sizes: I64, values: Mask) -> None:
        """Rows that are about to be written; `values`: which of them are values of a key."""
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
        self._oldest_value = _least(self._oldest_value, int(published.min()) if len(published) else None)
        retained = table.column("retained_at")
        if retained.null_count < len(table):
            self._oldest_tombstone = _least(self._oldest_tombstone, pc.min(retained).as_py())
            if self._first_tombstone is None:
                self._first_tombstone = int(offsets[int(np.argmax(retained.is_valid().to_numpy()))])
        total = SourceTotals(len(offsets), int(offsets.astype(np.uint64).sum(dtype=np.uint64)))
        self.kept[source] = self.kept.get(source, SourceTotals()) + total

    def part(self, written: RowsObject) -> Part:
        """The part, once all its rows are written."""
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


def _least(one: int | None, other: int | None) -> int | None:
    return min((time for time in (one, other) if time is not None), default=None)
