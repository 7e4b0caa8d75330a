"""Layout of a run: which old parts stay, which are rewritten, and the division of the survivors into new parts.

The bytes that a run writes must be proportional to its changes. So an old part is *kept*, with a bitmap of its removed
rows, unless
- it has no live row: then it is dropped;
- its share of deleted rows exceeds `Sizing.max_garbage_ratio`: then it is rewritten;
- it belongs to a full *tier*: the parts before the dirty ledgers, each smaller than twice their survivors, are merged
  with them when together they have four times those bytes. What is written then has a tier of its own. So the number
  of parts, and of copies per row, grows with the logarithm of the number of small regular runs;
- it is smaller than twice its newer neighbour, which is rewritten because of its garbage.
Neighbouring rewritten sources form one *group*, which becomes one or more parts of equal cost. The dirty ledgers are
the last group. The ratios are chosen by a model (benchmarks/merging.py): merging earlier writes twice the bytes,
merging later keeps more garbage and more parts for readers.

Pure functions over a few numbers per part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from compactor.run.plan import DeletedRowsTask, Located, PartTask, RunPlan, Sizing, Source, SourceSlice, SourceTotals
from storage.ledger import rows

READ_COST = 0.3
"""Cost of a byte that phase two only reads, relative to a written byte (measured: benchmarks/compaction.py)."""
MERGE_RATIO = 2
"""A part may be merged with what is written after it if it has fewer than this many times the live bytes of that."""
TIER_RATIO = 4
"""A tier is merged with the dirty ledgers when it has at least this many times the live bytes of their survivors."""
BITMAP_ROWS = 16_000_000
"""Maximum number of rows that one task marks as deleted, unless one part has more: 4 bytes of memory per row."""


@dataclass(frozen=True)
class Layout:
    """The layout of phase two. `kept_parts`: numbers of the old parts that stay; the others are dead, or rewritten in
    `parts`.

    `parts`: tasks that write new parts. `bitmaps`: tasks that write the deleted rows of kept parts.
    """

    kept_parts: tuple[int, ...]
    parts: tuple[PartTask, ...]
    bitmaps: tuple[DeletedRowsTask, ...]

    @property
    def tasks(self) -> tuple[PartTask | DeletedRowsTask, ...]:
        """The tasks of phase two: those of `parts`, then those of `bitmaps`."""
        return self.parts + self.bitmaps

    def bytes_to_write(self, plan: RunPlan, expected: Mapping[int, SourceTotals]) -> float:
        """Return the approximate size of the new parts in the store."""
        sources = {item.source for part in self.parts for item in part.slices}
        return sum(_survivor_bytes(plan, number, expected[number]) for number in sources)

    def task_costs(self, plan: RunPlan) -> list[float]:
        """Return the approximate number of bytes that each of `tasks` reads and writes."""
        parts = [sum(_slice_bytes(plan.sources[item.source], item) for item in part.slices) for part in self.parts]
        marks = [4.0 * sum(row_set.count for _, sets in task.parts for _, row_set in sets) for task in self.bitmaps]
        return parts + marks


@dataclass(frozen=True)
class _SourceGroup:
    """Neighbouring sources that are rewritten together, or one kept part. `size`: approximate live bytes as stored."""

    sources: tuple[int, ...]
    size: float
    rewritten: bool

    def __add__(self, newer: _SourceGroup) -> _SourceGroup:
        return _SourceGroup(self.sources + newer.sources, self.size + newer.size, True)


def lay_out(
    plan: RunPlan, row_sets: Mapping[int, Located], expected: Mapping[int, SourceTotals], sizing: Sizing
) -> Layout:
    """Return the layout of the survivors. `row_sets`: by source (plan.row_sets_by_source). `expected`:
    plan.expected_totals."""
    groups = _merged_by_garbage(_old_groups(plan, expected, sizing), sizing)
    dirty = tuple(number for number in sorted(expected) if number >= plan.old_parts and expected[number].count)
    if dirty:
        size = sum(_survivor_bytes(plan, number, expected[number]) for number in dirty)
        groups = _merged_by_tier(groups, _SourceGroup(dirty, size, True), sizing)
    parts: list[PartTask] = []
    for group in groups:
        if group.rewritten:
            cut = cut_parts(plan, group.sources, row_sets, expected, sizing)
            parts += [replace(part, number=len(parts) + number) for number, part in enumerate(cut)]
    kept = tuple(group.sources[0] for group in groups if not group.rewritten)
    last = kept[-1] if kept and not groups[-1].rewritten else None
    return Layout(kept, tuple(parts), tuple(_deleted_rows_tasks(plan, kept, row_sets, last, len(parts))))


def _old_groups(plan: RunPlan, expected: Mapping[int, SourceTotals], sizing: Sizing) -> list[_SourceGroup]:
    """Return a group of each old part with live rows; those with much garbage are rewritten."""
    groups = []
    for number in range(plan.old_parts):
        source = plan.sources[number]
        if expected[number].count:
            share = expected[number].count / _stored_row_count(source)
            groups.append(
                _SourceGroup((number,), source.rows.stored.size * share, 1 - share > sizing.max_garbage_ratio)
            )
    return groups


def _merged_by_garbage(groups: list[_SourceGroup], sizing: Sizing) -> list[_SourceGroup]:
    """Return the groups; those that are rewritten are merged with rewritten and with smaller neighbours."""
    merged: list[_SourceGroup] = []
    for group in groups:
        merged.append(group)
        while len(merged) > 1 and _belong_together(merged[-2], merged[-1], sizing):
            newer = merged.pop()
            merged.append(merged.pop() + newer)
    return merged


def _belong_together(older: _SourceGroup, newer: _SourceGroup, sizing: Sizing) -> bool:
    """Return whether to write two neighbours as one group. Two kept neighbours always stay."""
    if older.rewritten and newer.rewritten:
        return True
    if not (older.rewritten or newer.rewritten):
        return False
    return _is_small_enough_to_merge(older, newer) and not _is_too_large_to_merge(
        newer if older.rewritten else older, sizing
    )


def _merged_by_tier(groups: list[_SourceGroup], dirty: _SourceGroup, sizing: Sizing) -> list[_SourceGroup]:
    """Return the groups and that of the dirty ledgers, which is merged with a rewritten neighbour and full tiers."""
    while tier := _merge_candidates_before_dirty(groups, dirty, sizing):
        if sum(group.size for group in tier) < TIER_RATIO * dirty.size:
            if not tier[0].rewritten:
                break
            tier = tier[:1]
        for older in tier:
            dirty = older + dirty
        groups = groups[: -len(tier)]
    return [*groups, dirty]


def _merge_candidates_before_dirty(
    groups: list[_SourceGroup], dirty: _SourceGroup, sizing: Sizing
) -> list[_SourceGroup]:
    """Return the groups before the dirty one, newest first, that are smaller than it, or rewritten anyway."""
    return list(
        takewhile(
            lambda older: (
                older.rewritten
                or (_is_small_enough_to_merge(older, dirty) and not _is_too_large_to_merge(older, sizing))
            ),
            reversed(groups),
        )
    )


def _is_small_enough_to_merge(older: _SourceGroup, newer: _SourceGroup) -> bool:
    return older.size < MERGE_RATIO * newer.size


def _is_too_large_to_merge(group: _SourceGroup, sizing: Sizing) -> bool:
    return group.size >= sizing.part_bytes / 2


def _deleted_rows_tasks(
    plan: RunPlan, kept: tuple[int, ...], row_sets: Mapping[int, Located], last_part: int | None, first_number: int
) -> list[DeletedRowsTask]:
    """Return the tasks for the kept parts with removed rows. Each takes neighbours, whose row sets are read together.

    `last_part`: that of the compacted ledger, if it is kept. Its last row may be dead, so a task finds the last
    live row. `first_number`: number of the first task.
    """
    touched = [(source, row_sets[source]) for source in kept if source in row_sets]
    if (
        last_part is not None
        and last_part not in row_sets
        and last_part != plan.old_parts - 1
        and plan.sources[last_part].deleted
    ):
        touched.append((last_part, ()))
    tasks: list[DeletedRowsTask] = []
    parts: list[tuple[int, Located]] = []
    rows_to_mark = 0
    for source, removed in touched:
        count = sum(row_set.count for _, row_set in removed)
        if parts and rows_to_mark + count > BITMAP_ROWS:
            tasks.append(DeletedRowsTask(first_number + len(tasks), tuple(parts)))
            parts, rows_to_mark = [], 0
        parts.append((source, removed))
        rows_to_mark += count
    if parts:
        tasks.append(DeletedRowsTask(first_number + len(tasks), tuple(parts), find_last=parts[-1][0] == last_part))
    return tasks


def _slice_bytes(source: Source, part: SourceSlice) -> float:
    """Return the approximate number of stored bytes of a slice of a source."""
    span = part.last_offset - part.first_offset + 1
    return source.rows.stored.size * span / (source.last_offset - source.first_offset + 1)


def _survivor_bytes(plan: RunPlan, number: int, survivors: SourceTotals) -> float:
    """Return the approximate number of bytes of the survivors of a source."""
    source = plan.sources[number]
    return source.rows.stored.size * survivors.count / _stored_row_count(source)


def _stored_row_count(source: Source) -> int:
    """Return the number of rows in a source's object, including deleted rows."""
    return source.messages + (source.deleted.cardinality if source.deleted else 0)


def part_count(written_bytes: float, cost_bytes: float, survivors: int, sizing: Sizing) -> int:
    """Return the number of parts to write: enough for the limits, in whole rounds of tasks unless parts get small.

    `written_bytes`: bytes of the parts. `cost_bytes`: bytes to write and, at READ_COST, to read. `survivors`: rows. A
    last round with one task would leave the other cores idle.
    """
    least = max(1, -(-int(written_bytes) // sizing.part_bytes), -(-survivors // sizing.part_rows))
    rounds = -(-least // sizing.parallelism) * sizing.parallelism
    return max(least, min(rounds, int(cost_bytes) // sizing.small_part_bytes))


def cut_parts(
    plan: RunPlan,
    sources: tuple[int, ...],
    row_sets: Mapping[int, Located],
    expected: Mapping[int, SourceTotals],
    sizing: Sizing,
) -> list[PartTask]:
    """Divide the survivors of neighbouring sources into parts of about equal cost, in offset order.

    The cost of a source is the written bytes and, at READ_COST, the row groups that must be read. The estimate of those
    assumes randomly spread survivors. A division inside a source is by offset, as if survivors were spread evenly. A
    part spans fewer than 2³² offsets.
    """
    written = {number: _survivor_bytes(plan, number, expected[number]) for number in sources}
    cost = {}
    for number in sources:
        stored = plan.sources[number].rows.stored.size
        groups = max(1, stored // rows.GROUP_BYTES)
        cost[number] = written[number] + READ_COST * stored * (1 - math.exp(-expected[number].count / groups))
    survivors = sum(expected[number].count for number in sources)
    remaining = sum(cost.values())
    goal = remaining / part_count(sum(written.values()), remaining, survivors, sizing)

    parts: list[PartTask] = []
    slices: list[SourceSlice] = []
    room = goal
    for number in sources:
        source = plan.sources[number]
        first, rest = source.first_offset, cost[number]
        while first <= source.last_offset:
            span = source.last_offset - first + 1
            whole = rest <= room * 1.01 or remaining <= goal * 0.01
            last = source.last_offset if whole else first + max(1, int(span * room / rest)) - 1
            if slices and last - slices[0].first_offset >= rows.MAX_ROWS:
                parts.append(PartTask(len(parts), tuple(slices)))
                slices, room = [], goal
                continue
            slices.append(SourceSlice(number, first, last, row_sets.get(number, ())))
            used = rest * (last - first + 1) / span
            rest, room, remaining, first = rest - used, room - used, remaining - used, last + 1
            if room <= goal * 0.01 < remaining:  # a small rest at the end goes into this part
                parts.append(PartTask(len(parts), tuple(slices)))
                slices, room = [], goal
    if slices:
        parts.append(PartTask(len(parts), tuple(slices)))
    return parts
