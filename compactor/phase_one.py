"""Phase one: which rows survive, from key indexes alone.

One task takes one hash range of every index: the previous compacted ledger's and each dirty ledger's. It keeps the
newest record of each key, applies the rules for tombstones and null keys, and hands on two things: row sets (the
offsets that survive, by source) and its range of the new compacted ledger's key index. No key leaves the task and no
payload enters it. Pure functions over arrays, apart from `run_range`, which reads and writes.

Memory: about 80 bytes a record of the range (`plan.RANGE_RECORDS` bounds it).
Rules: semantics.md P3–P6, P8, P10.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from compactor.plan import Policies, RangeResult, RangeStatistics, RowSet, RunPlan, Source
from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.ledger import key_index, names
from storage.ledger.key_index import OFFSET_MASK, TOMBSTONE, U64, HashRange, Records
from storage.metadata.records import IndexLocation
from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store

MARKED_SPAN = 32
"""Offsets that are at most so much further apart than one are sorted by marking: 32 bytes an offset at most."""


@dataclass(frozen=True)
class Winners:
    """The live records of a hash range, in hash order, and how many tombstones won and were dropped."""

    live: Records
    tombstones: int


def newest_live(runs: list[Records]) -> Winners:
    """The newest record of each key, without the keys whose newest record is a tombstone (P4, P5).

    `runs`: records of each index, oldest index first; in each, hash order and one record a key.
    """
    hi = np.concatenate([run.hi for run in runs]) if runs else np.empty(0, dtype=np.uint64)
    lo = np.concatenate([run.lo for run in runs]) if runs else hi
    offset = np.concatenate([run.offset for run in runs]) if runs else hi
    winners = key_index.latest(hi, lo)
    won = offset[winners]
    live = winners[won & TOMBSTONE == 0]
    return Winners(Records(hi[live], lo[live], offset[live]), len(winners) - len(live))


def unkeyed_survivors(unkeyed: dict[str, BitMap64], policies: Policies) -> dict[str, BitMap64]:
    """Rows outside the key map that stay: whole entries and chunks always (P8, P10), null keys by policy (P6)."""
    kept = dict(unkeyed)
    if not policies.retain_null_key:
        kept["null_keys"] = BitMap64()
    return kept


def ascending(offsets: U64) -> U64:
    """Distinct offsets, sorted. Dense ones are put in order by marking, which is 4 times as fast as sorting."""
    if len(offsets) == 0:
        return offsets
    first, last = offsets.min(), offsets.max()
    span = int(last - first) + 1
    if span > MARKED_SPAN * len(offsets):
        return np.sort(offsets)
    marks = np.zeros(span, dtype=np.bool_)
    marks[offsets - first] = True
    ordered: U64 = np.flatnonzero(marks).astype(offsets.dtype) + first
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


def run_range(plan: RunPlan, number: int) -> RangeResult:
    """One phase-one task: hash range `number` of `plan`. Raises ObjectMissing, ObjectDamaged, any store error."""
    with closing(open_store(plan.store)) as store:
        return _compact_range(store, plan, number)


def _compact_range(store: ObjectStore, plan: RunPlan, number: int) -> RangeResult:
    wanted = plan.ranges[number]
    runs = [key_index.read_records(store, location, wanted) for location in plan.indexes]
    won = newest_live(runs)
    # Rows outside the key map have no hash: the indexes are dealt out to the ranges.
    mine = plan.indexes[number :: len(plan.ranges)]
    unkeyed = unkeyed_survivors(_read_unkeyed(store, mine), plan.policies)
    offsets = ascending(np.concatenate([won.live.offset & OFFSET_MASK, *map(_offsets, unkeyed.values())]))
    name, row_sets, row_set_bytes = _write_row_sets(store, plan, number, split_by_source(offsets, plan.sources))
    index = _write_index(store, plan, number, won.live, wanted, unkeyed)
    records = sum(map(len, runs))
    statistics = RangeStatistics(
        records=records,
        keys=len(won.live),
        tombstones=won.tombstones,
        null_keys=len(unkeyed["null_keys"]),
        bytes_read=records * key_index.RECORD_BYTES,
        bytes_written=row_set_bytes + (index.length if index else 0),
    )
    return RangeResult(name, row_sets, index, statistics)


def _read_unkeyed(store: ObjectStore, locations: tuple[IndexLocation, ...]) -> dict[str, BitMap64]:
    found = {name: BitMap64() for name in key_index.UNKEYED_CLASSES}
    for location in locations:
        for name, bitmap in found.items():
            bitmap |= key_index.read_unkeyed(store, location, name)
    return found


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
    return name, tuple(row_sets), start


def _write_index(
    store: ObjectStore, plan: RunPlan, number: int, live: Records, wanted: HashRange, unkeyed: dict[str, BitMap64]
) -> IndexLocation | None:
    if not len(live) and not any(unkeyed.values()):
        return None
    data, directory = key_index.encode_index(live, wanted, unkeyed)
    name = names.compacted_index(plan.topic_uid, plan.attempt_id, number)
    store.put(name, data)
    return IndexLocation(name, 0, len(data), directory.encode())


def _not_in_a_source(offset: npt.NDArray[np.uint64] | np.uint64) -> ObjectDamaged:
    return ObjectDamaged(
        f"a key index names offset {int(offset)}, which no ledger or part holds",
        "restore the index from a backup, or delete the cursor __compaction and compact again from raw",
    )
