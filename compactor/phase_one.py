"""Phase one: the decision which rows survive, from key indexes alone.

A task takes one hash range of each dirty ledger's index, of the records of expired rows, and of the levels of the
previous compacted index. It probes those levels by the dirty keys, or reads a level whole to merge it. `resolve.py`
decides; `chunked_messages.py` finds the complete chunked messages. The task returns row sets (the surviving offsets of
each ledger, the superseded offsets of each old part), and its range of the new index level and of the chunk table. No
key leaves the task and no payload enters it.

Memory: about 80 bytes per record of the range (`plan.RANGE_RECORDS` bounds the records).
Rules: semantics.md P3–P6, P8–P10, T1, T2.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from compactor.engines.engine import current_task
from compactor.run.chunked_messages import ChunkDecision, RangeChunks, merge_winners, read_chunks, write_chunks
from compactor.run.plan import HashRangeStatistics, RangeTaskResult, RowSet, RunPlan, RunPolicies, Source
from compactor.run.resolve import ResolutionRules, mark_expired, mark_removed, resolve, winners_of
from storage.advice import damaged_object_advice
from storage.ahead import run_ahead
from storage.checksums import crc32c
from storage.clock import SystemClock
from storage.errors import ObjectDamaged
from storage.failpoints import Failpoint, failpoint
from storage.ledger import key_index, names
from storage.ledger.deletion_bitmap import read_deletion_bitmaps
from storage.ledger.key_index import OFFSET_MASK, U64, HashRange, IndexRecords
from storage.ledger.manifest import DeletedRows
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store
from storage.objects.throttled import throttled

MARKED_SPAN = 32
"""Maximum span per offset up to which offsets are sorted by marking, which takes at most 32 bytes per offset."""


def run_range(plan: RunPlan, range_number: int) -> RangeTaskResult:
    """Run one phase-one task: hash range `range_number`. Raises ObjectMissing, ObjectDamaged, any store error."""
    with task_store(plan) as store:
        return _compact_range(store, plan, range_number)


@contextmanager
def task_store(plan: RunPlan) -> Iterator[ObjectStore]:
    """Yield the run's store for a task, with the task's share of the run's rates. It is closed at the end of the
    context.

    A task in this process that was cancelled gets an error at its next access.
    """
    task = current_task()
    concurrent, stop = (plan.concurrent_tasks, None) if task is None else (task.concurrent, task.stop)
    with closing(open_store(plan.store)) as store:
        yield throttled(store, plan.rates.shared_by(concurrent), SystemClock(), stop)


def _compact_range(store: ObjectStore, plan: RunPlan, number: int) -> RangeTaskResult:
    hash_range = plan.ranges[number]
    by_event = plan.policies.event_time_order
    reads = [
        partial(key_index.read_records, store, location, hash_range, events=by_event)
        for location in (*plan.indexes, *(location for level in plan.levels[: plan.merged] for location in level))
    ]
    whole = run_ahead(reads, store.concurrent_requests)
    runs = list(islice(whole, len(plan.indexes)))
    winners = winners_of(runs, by_event)
    chunks = read_chunks(store, plan, hash_range)
    if chunks is not None:
        winners = merge_winners(
            winners_of([chunks.old_part_removal_markers(), winners], by_event), chunks.completed_winners(), by_event
        )
    dirty = mark_expired(winners, _winner_offsets_among(store, plan, plan.expired, winners))
    dirty = mark_removed(dirty, _winner_offsets_among(store, plan, plan.removed, winners))
    if chunks is not None:
        dirty = mark_removed(dirty, chunks.completed_but_removed_offsets())
    levels, level_records = _read_levels(store, plan, whole, dirty, chunks)
    failpoint(Failpoint.PHASE_ONE_INDEX_READ)
    resolved = resolve(dirty, levels, plan.merged, ResolutionRules(plan.policies, plan.now, plan.cursor_floor))

    decision = chunks.decide(resolved) if chunks is not None else ChunkDecision()
    new, old = _read_unkeyed(store, plan, number)
    removed = _offsets_removed_by_limits(store, plan) if any(map(any, (new.values(), old.values()))) else BitMap64()
    unkeyed = unkeyed_survivors(new, plan.policies, removed)
    named = np.concatenate(
        [resolved.survivors, resolved.superseded, decision.row_set_offsets, *map(_bitmap_offsets, unkeyed.values())]
    )
    for kind, bitmap in unkeyed_survivors(old, plan.policies, removed).items():
        unkeyed[kind] |= bitmap
        named = np.concatenate([named, _bitmap_offsets(old[kind] - bitmap)])
    name = names.row_sets(plan.topic_uid, plan.attempt_id, number)
    split = split_by_source(sorted_offsets(named), plan.sources)
    writes: list[Callable[[], Any]] = [
        partial(_write_row_sets, store, plan, name, split),
        partial(_write_level, store, plan, number, resolved.level, unkeyed),
        partial(write_chunks, store, plan, number, decision),
    ]
    (row_sets, row_set_bytes), index, table = run_ahead(writes, store.concurrent_requests)
    records = sum(map(len, runs)) + level_records
    statistics = HashRangeStatistics(
        records=records,
        keys=resolved.keys,
        tombstones=resolved.tombstones,
        tombstones_removed=resolved.tombstones_removed,
        tombstones_kept=resolved.tombstones_kept,
        expired=resolved.expired,
        null_keys=len(unkeyed_survivors(new, plan.policies, removed)["null_keys"]) + decision.null_keys,
        dropped_to=resolved.dropped_to,
        chunks=len(decision.table),
        incomplete_chunks=decision.pending,
        chunks_expired=decision.expired,
        bytes_read=records * (key_index.RECORD_BYTES + by_event * key_index.EVENT_BYTES),
        bytes_written=row_set_bytes + (index.length if index else 0) + (table.length if table else 0),
    )
    return RangeTaskResult(name, row_sets, index, statistics, table)


def _read_levels(
    store: ObjectStore,
    plan: RunPlan,
    merged: Iterator[IndexRecords],
    dirty: IndexRecords,
    chunks: RangeChunks | None,
) -> tuple[list[IndexRecords], int]:
    """Return the levels, newest first, and the number of records that were read for them.

    Of a merged level all records, else those of the dirty keys. `merged`: the records of each location of the merged
    levels.
    """
    events = plan.policies.event_time_order
    reads = [
        [key_index.plan_probes(store, location, dirty.hi, events=events) for location in level]
        for level in plan.levels[plan.merged :]
    ]
    probed = run_ahead((read for level in reads for probes in level for read in probes), store.concurrent_requests)
    levels = []
    records_read = sum(read.records_read for level in reads for probes in level for read in probes)
    for number, level in enumerate(plan.levels):
        if number < plan.merged:
            records = list(islice(merged, len(level)))
            records_read += sum(map(len, records))
        else:
            records = list(islice(probed, sum(map(len, reads[number - plan.merged]))))
        if plan.reindexed and chunks is not None:
            records.append(chunks.old_part_records())
        level_records = key_index.concatenate_records(records)
        if np.any(level_records.hi[1:] < level_records.hi[:-1]):  # parts indexed again, one by one
            level_records = level_records.take(key_index.latest_positions(level_records.hi, level_records.lo))
        levels.append(level_records)
    return levels, records_read


def _winner_offsets_among(
    store: ObjectStore, plan: RunPlan, rows: tuple[tuple[int, DeletedRows], ...], winners: IndexRecords
) -> U64:
    """Return the offsets of the winners that are among `rows`, ascending. `rows`: source numbers and bitmaps."""
    if not rows:
        return np.empty(0, dtype=np.uint64)
    offsets = np.sort(winners.offset & OFFSET_MASK)
    bitmaps = read_deletion_bitmaps(store, [location for _, location in rows])
    among = [np.empty(0, dtype=np.uint64)]
    for (number, _), bitmap in zip(rows, bitmaps, strict=True):
        source = plan.sources[number]
        first, last = np.uint64(source.first_offset), np.uint64(source.last_offset)
        inside = offsets[np.searchsorted(offsets, first, "left") : np.searchsorted(offsets, last, "right")]
        dead = bitmap_of(inside - first) & bitmap
        among.append(np.frombuffer(dead.to_array(), dtype=np.uint32).astype(np.uint64) + first)
    return np.concatenate(among)


def _offsets_removed_by_limits(store: ObjectStore, plan: RunPlan) -> BitMap64:
    """Return the offsets of all rows, of any kind, that the topic's limits remove (C2)."""
    offsets = BitMap64()
    bitmaps = read_deletion_bitmaps(store, [location for _, location in plan.removed])
    for (number, _), bitmap in zip(plan.removed, bitmaps, strict=True):
        relative = np.frombuffer(bitmap.to_array(), dtype=np.uint32).astype(np.uint64)
        offsets |= BitMap64((relative + np.uint64(plan.sources[number].first_offset)).tolist())
    return offsets


def unkeyed_survivors(
    unkeyed: dict[str, BitMap64],
    policies: RunPolicies,
    removed: BitMap64 = BitMap64(),  # noqa: B008
) -> dict[str, BitMap64]:
    """Return the offsets of the rows outside the key map that stay, by class, from those of `unkeyed`.

    Null keys stay only if the policies retain them (P6). Rows that the topic's limits remove (C2), `removed`, do not
    stay.
    """
    kept = {kind: bitmap - removed for kind, bitmap in unkeyed.items()}
    if not policies.retain_null_key:
        kept["null_keys"] = BitMap64()
    return kept


def sorted_offsets(offsets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return distinct offsets in ascending order. Dense ones are sorted by marking, which is four times as fast."""
    if len(offsets) == 0:
        return offsets
    first, last = offsets.min(), offsets.max()
    span = int(last - first) + 1
    if span > MARKED_SPAN * len(offsets):
        return np.sort(offsets)
    marks = np.zeros(span, dtype=np.bool_)
    marks[offsets - first] = True
    ordered: npt.NDArray[Any] = np.flatnonzero(marks).astype(offsets.dtype) + first
    return ordered


def split_by_source(offsets: U64, sources: tuple[Source, ...]) -> dict[int, U64]:
    """Return ascending offsets by the number of the source that holds them; a source without offsets is absent.

    Raises ObjectDamaged for an offset that no source holds: index and ledgers disagree.
    """
    firsts = np.array([source.first_offset for source in sources], dtype=np.uint64)
    cuts = [*np.searchsorted(offsets, firsts, "left").tolist(), len(offsets)]
    if cuts[0] > 0:
        raise _offset_without_source_error(offsets[0])
    split: dict[int, U64] = {}
    for number, (first, end) in enumerate(pairwise(cuts)):
        if end > first:
            if offsets[end - 1] > sources[number].last_offset:
                raise _offset_without_source_error(offsets[end - 1])
            split[number] = offsets[first:end]
    return split


def _read_unkeyed(store: ObjectStore, plan: RunPlan, number: int) -> tuple[dict[str, BitMap64], dict[str, BitMap64]]:
    """Return the rows outside the key map, of the dirty ledgers and of the merged levels, by class.

    These rows have no hash. So each hash range reads its share of the indexes.
    """
    merged = [location for level in plan.levels[: plan.merged] for location in level]
    both = []
    for locations in (plan.indexes, merged):
        classes = {kind: BitMap64() for kind in key_index.UNKEYED_CLASSES}
        for location in locations[number :: len(plan.ranges)]:
            for kind, bitmap in classes.items():
                bitmap |= key_index.read_unkeyed(store, location, kind)
        both.append(classes)
    return both[0], both[1]


def _bitmap_offsets(bitmap: BitMap64) -> U64:
    return np.frombuffer(bitmap.to_array(), dtype=np.uint64) if bitmap else np.empty(0, dtype=np.uint64)


def _write_row_sets(
    store: ObjectStore, plan: RunPlan, name: str, split: dict[int, U64]
) -> tuple[tuple[RowSet, ...], int]:
    """Write the row sets of each source, and return them and their size in bytes."""
    row_sets: list[RowSet] = []
    blocks: list[bytes] = []
    start = 0
    for source, offsets in split.items():
        block = (offsets - np.uint64(plan.sources[source].first_offset)).astype("<u4").tobytes()
        row_sets.append(RowSet(source, start, len(offsets), int(offsets.sum(dtype=np.uint64)), crc32c(block)))
        blocks.append(block)
        start += len(block)
    if blocks:
        store.put(name, b"".join(blocks))
        failpoint(Failpoint.PHASE_ONE_ROW_SETS_WRITTEN)
    return tuple(row_sets), start


def _write_level(
    store: ObjectStore, plan: RunPlan, number: int, level: IndexRecords, unkeyed: dict[str, BitMap64]
) -> IndexLocation | None:
    """Write a hash range of the new index level, and return its location; None: it has no records and no rows."""
    if not len(level) and not any(unkeyed.values()):
        return None
    index = write_index(store, plan, number, level, plan.ranges[number], unkeyed)
    failpoint(Failpoint.PHASE_ONE_INDEX_WRITTEN)
    return index


def write_index(
    store: ObjectStore,
    plan: RunPlan,
    index_number: int,
    records: IndexRecords,
    hash_range: HashRange,
    unkeyed: dict[str, BitMap64] | None = None,
    chunks: bytes = b"",
) -> IndexLocation:
    """Write a key index as the index object `index_number` of the run, and return its location.

    `unkeyed`: offsets of the rows outside the key map, by class. `chunks`: an encoded chunk table.
    """
    data, directory = key_index.encode_index(records, hash_range, unkeyed, chunks)
    name = names.compacted_index(plan.topic_uid, plan.attempt_id, index_number)
    store.put(name, data)
    return IndexLocation(name, 0, len(data), directory.encode())


def bitmap_of(relative: npt.NDArray[Any]) -> BitMap:
    """Return a bitmap of offsets below 2³²."""
    return BitMap(array("I", relative.astype(np.uint32).tobytes()))


def earliest(times: Iterable[int | None]) -> int | None:
    """Return the least of the times that are not None; None: all are."""
    return min((time for time in times if time is not None), default=None)


def _offset_without_source_error(offset: npt.NDArray[np.uint64] | np.uint64) -> ObjectDamaged:
    return ObjectDamaged(
        f"a key index names offset {int(offset)}, which no ledger or part holds",
        damaged_object_advice(),
        is_public=True,
    )
