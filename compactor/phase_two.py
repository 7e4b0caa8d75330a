"""Phase two: copy the survivors into parts.

One task writes one part: for each of its slices it merges the row sets of all hash ranges, walks the source's row
groups, skips those without survivors, takes the surviving rows of the others and appends them. Rows keep every
column (W1) and their order. Payloads go from the store to the store through one task; nothing is shuffled.

Memory: one row group read, one being gathered, 12 bytes a survivor of the part (`plan.PART_ROWS`), and while a slice's
row sets are merged 4 bytes a survivor of its source and at most 32 a survivor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.phase_one import ascending
from compactor.plan import PartPlan, PartResult, PartStatistics, RunPlan, Slice, Source, SourceTotals
from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.ledger import names, rows
from storage.ledger.rows_file import RowGroup, RowsReader, RowsWriter
from storage.model import MessageId
from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store

I64 = npt.NDArray[np.int64]


def run_part(plan: RunPlan, parts: tuple[PartPlan, ...], number: int) -> PartResult:
    """One phase-two task: write part `number` of `parts`. Raises ObjectMissing, ObjectDamaged, any store error."""
    with closing(open_store(plan.store)) as store:
        return _write_part(store, plan, parts[number], number)


def _write_part(store: ObjectStore, plan: RunPlan, part: PartPlan, number: int) -> PartResult:
    survivors = [read_survivors(store, plan.sources[one.source], one) for one in part.slices]
    if not any(map(len, survivors)):
        return PartResult(number)
    seen = _Seen(plan.partition)
    with RowsWriter(store, names.part(plan.topic_uid, plan.attempt_id, number)) as writer:
        for one, offsets in zip(part.slices, survivors, strict=True):
            for table in _surviving_rows(store, plan.sources[one.source], offsets, seen):
                sizes = rows.logical_sizes(table)
                seen.add(one.source, table, sizes)
                writer.write(table, sizes)
    assert writer.result is not None
    return PartResult(
        number=number,
        rows=writer.result,
        first_offset=seen.first_offset,
        last_offset=seen.last_offset,
        first_message_id=seen.first_message_id,
        last_message_id=seen.last_message_id,
        messages=sum(totals.count for totals in seen.kept.values()),
        logical_bytes=seen.logical_bytes,
        min_publish_time=seen.min_publish_time,
        max_publish_time=seen.max_publish_time,
        kept=seen.kept,
        statistics=PartStatistics(seen.groups_read, seen.bytes_read),
    )


def read_survivors(store: ObjectStore, source: Source, one: Slice) -> I64:
    """The offsets of a slice's survivors, ascending: the row sets of all hash ranges, merged. Shape (n,)."""
    relative = []
    for name, row_set in one.row_sets:
        block = store.get(name, row_set.start, row_set.count * 4)
        if crc32c(block) != row_set.crc32c:
            raise ObjectDamaged(f"the row sets {name} do not match their checksum", "run the compaction again")
        relative.append(np.frombuffer(block, dtype="<u4"))
    merged = ascending(np.concatenate(relative) if relative else np.empty(0, dtype=np.uint32))
    first, last = (np.uint32(bound - source.first_offset) for bound in (one.first_offset, one.last_offset))
    inside = merged[np.searchsorted(merged, first, "left") : np.searchsorted(merged, last, "right")]
    return inside.astype(np.int64) + source.first_offset


def _surviving_rows(store: ObjectStore, source: Source, offsets: I64, seen: _Seen) -> Iterator[pa.Table]:
    """The rows of `offsets`, ascending, about an output row group at a time; groups without any are not read."""
    if not len(offsets):
        return
    reader = RowsReader(store, source.rows)
    firsts = np.searchsorted(offsets, [group.first_offset for group in reader.groups], "left").tolist()
    ends = np.searchsorted(offsets, [group.last_offset for group in reader.groups], "right").tolist()
    spans = [(number, *span) for number, span in enumerate(zip(firsts, ends, strict=True)) if span[0] < span[1]]
    reader.expect([number for number, _, _ in spans])

    def wanted() -> Iterator[tuple[int, I64]]:
        for number, first, end in spans:
            group = reader.groups[number]
            seen.groups_read += 1
            seen.bytes_read += group.end - group.start
            yield number, _positions(reader, number, group, offsets[first:end])

    yield from reader.take(wanted())


def _positions(reader: RowsReader, number: int, group: RowGroup, offsets: I64) -> I64:
    """Where in a row group the rows of `offsets` are. A group without gaps needs no look at its offsets."""
    if group.last_offset - group.first_offset + 1 == group.rows:
        return offsets - group.first_offset
    present = reader.offsets(number)
    positions = np.searchsorted(present, offsets)
    if np.any(positions >= len(present)) or np.any(present[np.minimum(positions, len(present) - 1)] != offsets):
        raise ObjectDamaged(
            f"the key index names rows between offsets {group.first_offset} and {group.last_offset} that are not there",
            "restore the ledger or its index from a backup, or delete the cursor __compaction and compact from raw",
        )
    return positions.astype(np.int64)


class _Seen:
    """What was written of a part so far. Asserts W1 on the way: offsets ascend and are unique."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self.first_offset = self.last_offset = -1
        self.first_message_id: MessageId | None = None
        self.last_message_id: MessageId | None = None
        self.logical_bytes = 0
        self.min_publish_time = 2**63 - 1
        self.max_publish_time = -(2**63)
        self.kept: dict[int, SourceTotals] = {}
        self.groups_read = self.bytes_read = 0

    def add(self, source: int, table: pa.Table, sizes: I64) -> None:
        offsets = table.column("offset").to_numpy()
        if offsets[0] <= self.last_offset or np.any(offsets[1:] <= offsets[:-1]):
            raise ObjectDamaged(
                f"rows near offset {int(offsets[0])} do not ascend", "restore the ledger from a backup, then run again"
            )
        if self.first_message_id is None:
            self.first_offset = int(offsets[0])
            self.first_message_id = self._message_id(table, 0)
        self.last_offset = int(offsets[-1])
        self.last_message_id = self._message_id(table, len(table) - 1)
        self.logical_bytes += int(sizes.sum())
        publish = pc.min_max(table.column("publish_time")).as_py()
        self.min_publish_time = min(self.min_publish_time, publish["min"])
        self.max_publish_time = max(self.max_publish_time, publish["max"])
        total = SourceTotals(len(offsets), int(offsets.astype(np.uint64).sum(dtype=np.uint64)))
        self.kept[source] = self.kept.get(source, SourceTotals()) + total

    def _message_id(self, table: pa.Table, row: int) -> MessageId:
        ledger, entry, index = (table.column(name)[row].as_py() for name in ("ledger_id", "entry_id", "batch_index"))
        return MessageId(ledger, entry, self._partition, index)
