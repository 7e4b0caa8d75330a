"""Phase one: which rows survive, from key indexes alone.

One task takes one hash range: of each dirty ledger's index, of the records of expired rows, and of the levels of the
previous compacted index, which it probes by the dirty keys or, if they are to be merged, reads whole. `resolve.py`
decides; of chunked messages `chunked_messages.py` says which are complete. The task hands on: row sets (of each ledger
the offsets that survive, of each old part those that are superseded), its range of the new index level, and of the
chunk table if there are chunks. No key leaves the task and no payload enters it.

Memory: about 80 bytes a record of the range (`plan.RANGE_RECORDS` bounds it).
Rules: semantics.md P3–P6, P8–P10, T1, T2.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from compactor.engines.engine import stop_of_this_task
from compactor.run.chunked_messages import ChunkDecision, RangeChunks, read_chunks, with_complete, write_chunks
from compactor.run.plan import HashRangeStatistics, RangeTaskResult, RowSet, RunPlan, RunPolicies, Source
from compactor.run.resolve import ResolutionRules, newest_of, resolve, without_expired, without_gone
from storage.checksums import crc32c
from storage.clock import SystemClock
from storage.errors import ObjectDamaged
from storage.failpoints import Failpoint, failpoint
from storage.ledger import key_index, names
from storage.ledger.deletion_bitmap import read_all_deleted
from storage.ledger.key_index import OFFSET_MASK, U64, HashRange, IndexRecords
from storage.ledger.manifest import DeletedRows
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store
from storage.objects.throttled import throttled

MARKED_SPAN = 32
"""Offsets that are at most so much further apart than one are sorted by marking: 32 bytes an offset at most."""


def run_range(plan: RunPlan, number: int) -> RangeTaskResult:
    """One phase-one task: hash range `number` of `plan`. Raises ObjectMissing, ObjectDamaged, any store error."""
    with task_store(plan) as store:
        return _compact_range(store, plan, number)


@contextmanager
def task_store(plan: RunPlan) -> Iterator[ObjectStore]:
    """The run's store as a task sees it: opened by the task, within the run's rates, until the task is to end."""
    with closing(open_store(plan.store)) as store:
        yield throttled(store, plan.rates, SystemClock(), stop_of_this_task())


def _compact_range(store: ObjectStore, plan: RunPlan, number: int) -> RangeTaskResult:
    wanted = plan.ranges[number]
    by_event = plan.policies.event_time_order
    runs = [key_index.read_records(store, location, wanted, events=by_event) for location in plan.indexes]
    winners = newest_of(runs, by_event)
    chunks = read_chunks(store, plan, wanted)
    if chunks is not None:
        winners = with_complete(newest_of([chunks.due(), winners], by_event), chunks.complete(), by_event)
    dirty = without_expired(winners, _among(store, plan, plan.expired, winners))
    dirty = without_gone(dirty, _among(store, plan, plan.gone, winners))
    if chunks is not None:
        dirty = without_gone(dirty, chunks.gone())
    levels = _read_levels(store, plan, wanted, dirty, chunks)
    failpoint(Failpoint.PHASE_ONE_INDEX_READ)
    resolved = resolve(dirty, levels, plan.merged, ResolutionRules(plan.policies, plan.now, plan.cursor_floor))

    decided = chunks.decide(resolved) if chunks is not None else ChunkDecision()
    new, old = _read_unkeyed(store, plan, number)
    gone = _gone_offsets(store, plan) if any(map(any, (new.values(), old.values()))) else BitMap64()
    unkeyed = unkeyed_survivors(new, plan.policies, gone)
    named = np.concatenate([resolved.survivors, resolved.superseded, decided.named, *map(_offsets, unkeyed.values())])
    for kind, bitmap in unkeyed_survivors(old, plan.policies, gone).items():
        unkeyed[kind] |= bitmap
        named = np.concatenate([named, _offsets(old[kind] - bitmap)])
    name, row_sets, row_set_bytes = _write_row_sets(
        store, plan, number, split_by_source(ascending(named), plan.sources)
    )
    index = _write_index(store, plan, number, resolved.level, wanted, unkeyed)
    table = write_chunks(store, plan, number, decided)
    records = sum(map(len, runs)) + sum(map(len, levels))
    statistics = HashRangeStatistics(
        records=records,
        keys=resolved.keys,
        tombstones=resolved.tombstones,
        tombstones_removed=resolved.tombstones_removed,
        tombstones_kept=resolved.tombstones_kept,
        expired=resolved.expired,
        null_keys=len(unkeyed_survivors(new, plan.policies, gone)["null_keys"]) + decided.null_keys,
        dropped_to=resolved.dropped_to,
        chunks=len(decided.table),
        incomplete_chunks=decided.pending,
        chunks_expired=decided.expired,
        bytes_read=records * (key_index.RECORD_BYTES + by_event * key_index.EVENT_BYTES),
        bytes_written=row_set_bytes + (index.length if index else 0) + (table.length if table else 0),
    )
    return RangeTaskResult(name, row_sets, index, statistics, table)


def _read_levels(
    store: ObjectStore, plan: RunPlan, wanted: HashRange, dirty: IndexRecords, chunks: RangeChunks | None
) -> list[IndexRecords]:
    """The levels, newest first: those that are merged whole, of the others the fences of dirty keys."""
    events = plan.policies.event_time_order
    levels = []
    for number, level in enumerate(plan.levels):
        if number < plan.merged:
            found = [key_index.read_records(store, location, wanted, events=events) for location in level]
        else:
            found = [key_index.probe_records(store, location, dirty.hi, events=events) for location in level]
        if plan.reindexed and chunks is not None:
            found.append(chunks.indexed())
        level_records = key_index.concatenated(found)
        if np.any(level_records.hi[1:] < level_records.hi[:-1]):  # parts that were indexed again, each alone
            level_records = level_records.take(key_index.latest(level_records.hi, level_records.lo))
        levels.append(level_records)
    return levels


def _among(store: ObjectStore, plan: RunPlan, rows: tuple[tuple[int, DeletedRows], ...], winners: IndexRecords) -> U64:
    """The offsets of those winners that are among some rows of sources, ascending."""
    if not rows:
        return np.empty(0, dtype=np.uint64)
    offsets = np.sort(winners.offset & OFFSET_MASK)
    bitmaps = read_all_deleted(store, [place for _, place in rows])
    found = [np.empty(0, dtype=np.uint64)]
    for (number, _), bitmap in zip(rows, bitmaps, strict=True):
        source = plan.sources[number]
        first, last = np.uint64(source.first_offset), np.uint64(source.last_offset)
        mine = offsets[np.searchsorted(offsets, first, "left") : np.searchsorted(offsets, last, "right")]
        dead = BitMap(array("I", (mine - first).astype(np.uint32).tobytes())) & bitmap
        found.append(np.frombuffer(dead.to_array(), dtype=np.uint32).astype(np.uint64) + first)
    return np.concatenate(found)


def _gone_offsets(store: ObjectStore, plan: RunPlan) -> BitMap64:
    """All rows that expire, of whatever kind (C2)."""
    offsets = BitMap64()
    bitmaps = read_all_deleted(store, [place for _, place in plan.gone])
    for (number, _), bitmap in zip(plan.gone, bitmaps, strict=True):
        relative = np.frombuffer(bitmap.to_array(), dtype=np.uint32).astype(np.uint64)
        offsets |= BitMap64((relative + np.uint64(plan.sources[number].first_offset)).tolist())
    return offsets


def unkeyed_survivors(
    unkeyed: dict[str, BitMap64],
    policies: RunPolicies,
    gone: BitMap64 = BitMap64(),  # noqa: B008
) -> dict[str, BitMap64]:
    """Rows outside the key map that stay: whole entries (P8), null keys by policy (P6); but those that are `gone` by
    the topic's limits (C2)."""
    kept = {kind: bitmap - gone for kind, bitmap in unkeyed.items()}
    if not policies.retain_null_key:
        kept["null_keys"] = BitMap64()
    return kept


def ascending(offsets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Distinct offsets, sorted. Dense ones are put in order by marking, which is 4 times as fast as sorting."""
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
    """Ascending offsets by the number of the source that holds them.

    Raises ObjectDamaged for an offset that no source holds: the index and the ledgers disagree.
    """
    firsts = np.array([source.first_offset for source in sources], dtype=np.uint64)
    cuts = [*np.searchsorted(offsets, firsts, "left").tolist(), len(offsets)]
    if cuts[0] > 0:
        raise _not_in_a_source(offsets[0])
    split: dict[int, U64] = {}
    for number, (first, end) in enumerate(pairwise(cuts)):
        if end > first:
            if offsets[end - 1] > sources[number].last_offset:
                raise _not_in_a_source(offsets[end - 1])
            split[number] = offsets[first:end]
    return split


def _read_unkeyed(store: ObjectStore, plan: RunPlan, number: int) -> tuple[dict[str, BitMap64], dict[str, BitMap64]]:
    """Rows outside the key map, of the dirty ledgers and of the levels that are merged.

    They have no hash: the indexes are dealt out to the ranges.
    """
    merged = [location for level in plan.levels[: plan.merged] for location in level]
    both = []
    for locations in (plan.indexes, merged):
        found = {kind: BitMap64() for kind in key_index.UNKEYED_CLASSES}
        for location in locations[number :: len(plan.ranges)]:
            for kind, bitmap in found.items():
                bitmap |= key_index.read_unkeyed(store, location, kind)
        both.append(found)
    return both[0], both[1]


def _offsets(bitmap: BitMap64) -> U64:
    return np.frombuffer(bitmap.to_array(), dtype=np.uint64) if bitmap else np.empty(0, dtype=np.uint64)


def _write_row_sets(
    store: ObjectStore, plan: RunPlan, number: int, split: dict[int, U64]
) -> tuple[str, tuple[RowSet, ...], int]:
    name = names.row_sets(plan.topic_uid, plan.attempt_id, number)
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
    return name, tuple(row_sets), start


def _write_index(
    store: ObjectStore, plan: RunPlan, number: int, level: IndexRecords, wanted: HashRange, unkeyed: dict[str, BitMap64]
) -> IndexLocation | None:
    if not len(level) and not any(unkeyed.values()):
        return None
    data, directory = key_index.encode_index(level, wanted, unkeyed)
    name = names.compacted_index(plan.topic_uid, plan.attempt_id, number)
    store.put(name, data)
    failpoint(Failpoint.PHASE_ONE_INDEX_WRITTEN)
    return IndexLocation(name, 0, len(data), directory.encode())


def _not_in_a_source(offset: npt.NDArray[np.uint64] | np.uint64) -> ObjectDamaged:
    return ObjectDamaged(
        f"a key index names offset {int(offset)}, which no ledger or part holds",
        "restore the index from a backup, or delete the cursor __compaction and compact again from raw",
        is_public=True,
    )
