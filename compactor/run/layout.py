"""Which parts a run keeps, which it writes again, and how it cuts what it writes.

A run that leaves most rows as they are must not write them: bytes written follow the dirt. An old part is *kept*,
with a bitmap if rows of it went, unless
- nothing of it is alive: then it is left out;
- its share of deleted rows passes `Sizing.max_garbage_ratio`: then it is rewritten;
- it is small beside a newer neighbour that is written: then it is merged into that, as levels of an LSM tree are. So
  a part that is not full has at least twice the bytes of the next one when that is written, a steady trickle leaves a
  number of parts that grows with the logarithm of the number of runs, and a row is copied about as often.
What is rewritten side by side is one *stretch*: a run of sources that becomes one or more parts of equal cost. The
dirty ledgers are the last stretch.

Pure functions over a few numbers a part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from compactor.run.plan import DeletedRowsTask, Located, PartTask, RunPlan, Sizing, Slice, Source, SourceTotals
from storage.ledger import rows

READ_COST = 0.3
"""What a byte that phase two only reads costs, of a byte that it writes (measured: benchmarks/compaction.py)."""
MERGE_RATIO = 2
"""A part is merged with its newer neighbour if it has fewer than that many times its live bytes."""
BITMAP_ROWS = 16_000_000
"""Rows that one task marks as deleted, at most, unless they are of one part: 4 bytes each while they are read."""


@dataclass(frozen=True)
class Layout:
    """What phase two is to do. `kept`: numbers of the old parts that stay; the others are dead or in `parts`."""

    kept: tuple[int, ...]
    parts: tuple[PartTask, ...]
    bitmaps: tuple[DeletedRowsTask, ...]

    @property
    def tasks(self) -> tuple[PartTask | DeletedRowsTask, ...]:
        """The tasks of phase two."""
        return self.parts + self.bitmaps

    def bytes_to_write(self, plan: RunPlan, left: Mapping[int, SourceTotals]) -> float:
        """What the parts will take in the store, about."""
        sources = {item.source for part in self.parts for item in part.slices}
        return sum(_written(plan, number, left[number]) for number in sources)

    def costs(self, plan: RunPlan) -> list[float]:
        """Bytes that each task reads and writes, about."""
        parts = [sum(_span_bytes(plan.sources[item.source], item) for item in part.slices) for part in self.parts]
        marks = [4.0 * sum(row_set.count for _, found in task.parts for _, row_set in found) for task in self.bitmaps]
        return parts + marks


@dataclass(frozen=True)
class _Extent:
    """Neighbouring sources that stay or are written together; `size`: live bytes as stored, about."""

    sources: tuple[int, ...]
    size: float
    rewritten: bool

    def __add__(self, newer: _Extent) -> _Extent:
        return _Extent(self.sources + newer.sources, self.size + newer.size, True)


def lay_out(plan: RunPlan, found: Mapping[int, Located], left: Mapping[int, SourceTotals], sizing: Sizing) -> Layout:
    """The layout of what `left` (plan.expected_totals) leaves, `found` being the row sets of all hash ranges."""
    merged: list[_Extent] = []
    for extent in _extents(plan, left, sizing):
        merged.append(extent)
        while len(merged) > 1 and _belong_together(merged[-2], merged[-1], sizing):
            newer = merged.pop()
            merged.append(merged.pop() + newer)
    parts: list[PartTask] = []
    for extent in merged:
        if extent.rewritten:
            cut = cut_parts(plan, extent.sources, found, left, sizing)
            parts += [replace(part, number=len(parts) + number) for number, part in enumerate(cut)]
    kept = tuple(extent.sources[0] for extent in merged if not extent.rewritten)
    last = kept[-1] if kept and not merged[-1].rewritten else None
    return Layout(kept, tuple(parts), tuple(_bitmaps(plan, kept, found, last, len(parts))))


def _extents(plan: RunPlan, left: Mapping[int, SourceTotals], sizing: Sizing) -> list[_Extent]:
    extents = []
    for number in range(plan.old_parts):
        source = plan.sources[number]
        if left[number].count:
            share = left[number].count / _rows_held(source)
            extents.append(_Extent((number,), source.rows.stored.size * share, 1 - share > sizing.max_garbage_ratio))
    dirty = tuple(number for number in sorted(left) if number >= plan.old_parts and left[number].count)
    if dirty:
        size = sum(_written(plan, number, left[number]) for number in dirty)
        extents.append(_Extent(dirty, size, True))
    return extents


def _belong_together(older: _Extent, newer: _Extent, sizing: Sizing) -> bool:
    """Whether to write two neighbours as one range. Two that both stay are never worth writing."""
    if older.rewritten and newer.rewritten:
        return True
    if not (older.rewritten or newer.rewritten) or older.size >= MERGE_RATIO * newer.size:
        return False
    kept = newer if older.rewritten else older
    return kept.size < sizing.part_bytes / 2


def _bitmaps(
    plan: RunPlan, kept: tuple[int, ...], found: Mapping[int, Located], last: int | None, number: int
) -> list[DeletedRowsTask]:
    """Tasks for the kept parts of which rows go; each takes neighbours, so that their row sets are read together.

    `last`: the part that ends the compacted ledger, if it is a kept one. Its last row may be dead: a task checks.
    """
    touched = [(source, found[source]) for source in kept if source in found]
    if last is not None and last not in found and last != plan.old_parts - 1 and plan.sources[last].deleted:
        touched.append((last, ()))
    plans: list[DeletedRowsTask] = []
    mine: list[tuple[int, Located]] = []
    rows_to_mark = 0
    for source, row_sets in touched:
        count = sum(row_set.count for _, row_set in row_sets)
        if mine and rows_to_mark + count > BITMAP_ROWS:
            plans.append(DeletedRowsTask(number + len(plans), tuple(mine)))
            mine, rows_to_mark = [], 0
        mine.append((source, row_sets))
        rows_to_mark += count
    if mine:
        plans.append(DeletedRowsTask(number + len(plans), tuple(mine), find_last=mine[-1][0] == last))
    return plans


def _span_bytes(source: Source, one: Slice) -> float:
    """Stored bytes of the part of a source that a slice covers, about."""
    return (
        source.rows.stored.size
        * (one.last_offset - one.first_offset + 1)
        / (source.last_offset - source.first_offset + 1)
    )


def _written(plan: RunPlan, number: int, left: SourceTotals) -> float:
    """Bytes that the survivors of a source take, about."""
    source = plan.sources[number]
    return source.rows.stored.size * left.count / _rows_held(source)


def _rows_held(source: Source) -> int:
    """The rows that a source's object holds, those that no longer count among them."""
    return source.messages + (source.deleted.cardinality if source.deleted else 0)


def part_count(written: float, cost: float, survivors: int, sizing: Sizing) -> int:
    """Into how many parts to cut: as many as their limits ask for, in whole rounds of tasks unless parts get small.

    A last round with one task would leave the other cores idle.
    """
    least = max(1, -(-int(written) // sizing.part_bytes), -(-survivors // sizing.part_rows))
    rounds = -(-least // sizing.parallelism) * sizing.parallelism
    return max(least, min(rounds, int(cost) // sizing.small_part_bytes))


def cut_parts(
    plan: RunPlan,
    sources: tuple[int, ...],
    found: Mapping[int, Located],
    left: Mapping[int, SourceTotals],
    sizing: Sizing,
) -> list[PartTask]:
    """Cut the survivors of neighbouring sources into parts of about equal cost, in offset order.

    The cost of a source counts what is written and, for less, the row groups that must be read to find it, as if its
    survivors were thrown at random. A cut may fall inside a source: then by offset, as if its survivors were spread
    evenly. Every part spans fewer than 2³² offsets.
    """
    written = {number: _written(plan, number, left[number]) for number in sources}
    cost = {}
    for number in sources:
        stored = plan.sources[number].rows.stored.size
        groups = max(1, stored // rows.GROUP_BYTES)
        cost[number] = written[number] + READ_COST * stored * (1 - math.exp(-left[number].count / groups))
    survivors = sum(left[number].count for number in sources)
    to_come = sum(cost.values())
    goal = to_come / part_count(sum(written.values()), to_come, survivors, sizing)

    parts: list[PartTask] = []
    slices: list[Slice] = []
    room = goal
    for number in sources:
        source = plan.sources[number]
        first, rest = source.first_offset, cost[number]
        while first <= source.last_offset:
            span = source.last_offset - first + 1
            whole = rest <= room * 1.01 or to_come <= goal * 0.01
            last = source.last_offset if whole else first + max(1, int(span * room / rest)) - 1
            if slices and last - slices[0].first_offset >= rows.MAX_ROWS:
                parts.append(PartTask(len(parts), tuple(slices)))
                slices, room = [], goal
                continue
            slices.append(Slice(number, first, last, found.get(number, ())))
            used = rest * (last - first + 1) / span
            rest, room, to_come, first = rest - used, room - used, to_come - used, last + 1
            if room <= goal * 0.01 < to_come:  # crumbs at the end are no part of their own
                parts.append(PartTask(len(parts), tuple(slices)))
                slices, room = [], goal
    if slices:
        parts.append(PartTask(len(parts), tuple(slices)))
    return parts
