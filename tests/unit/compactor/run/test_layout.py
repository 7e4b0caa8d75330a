"""The layout of a run: what it keeps, rewrites and cuts; right for any numbers, and logarithmic for steady trickles."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from compactor.run import layout
from compactor.run.layout import Layout, lay_out
from compactor.run.plan import (
    HashRangeStatistics,
    Located,
    RangeTaskResult,
    RowSet,
    Sizing,
    Source,
    SourceTotals,
    expected_totals,
    row_sets_by_source,
)
from storage.ledger import rows
from storage.ledger.manifest import DeletedRows
from storage.model import RowsObject, StoredObject
from tests.unit.compactor.run.plans import plan_of

SPANS = st.tuples(st.integers(1, 50), st.integers(1, 2**32 - 1) | st.integers(1, 200), st.integers(1, 2**34))
"""(gap before it, offsets it spans, stored bytes) of a source."""


def source(first: int, rows_: int, stored: int, dead: int = 0) -> Source:
    """Return a source of `rows_` rows, of which `dead` are deleted."""
    deleted = DeletedRows("bitmaps", 0, 1, dead, 0) if dead else None
    return Source(RowsObject(StoredObject("rows", stored, 0), 1), first, first + rows_ - 1, rows_ - dead, deleted)


def sources_of(spans: list[tuple[int, int, int]]) -> list[Source]:
    sources, offset = [], 0
    for gap, span, stored in spans:
        sources.append(source(offset + gap, span, stored))
        offset += gap + span
    return sources


def one_range(*counts: int) -> dict[int, Located]:
    """One hash range, with that many rows of each source in its row sets."""
    sets = tuple(RowSet(number, 0, count, 0, 0) for number, count in enumerate(counts) if count)
    return row_sets_by_source([RangeTaskResult("range-0", sets, None, HashRangeStatistics())])


def laid_out(
    sources: list[Source], old_parts: int, counts: list[int], sizing: Sizing
) -> tuple[Layout, dict[int, SourceTotals]]:
    """The layout if of old parts that many rows go and of ledgers that many survive."""
    plan, by_source = plan_of(sources, old_parts), one_range(*counts)
    remaining = expected_totals(plan, by_source)
    return lay_out(plan, by_source, remaining, sizing), remaining


def written(layout_: Layout) -> list[list[int]]:
    """The sources of each part, in order."""
    return [[item.source for item in part.slices] for part in layout_.parts]


# --- cutting a stretch into parts


@st.composite
def survivors(draw: st.DrawFn, sources: list[Source]) -> list[RangeTaskResult]:
    """Draw results of phase one: for each hash range some row sets. Some sources have none at all."""
    results = []
    for number in range(draw(st.integers(1, 3))):
        row_sets = []
        for which, item in enumerate(sources):
            count = draw(st.integers(0, max(1, item.messages // 3)))
            if count:
                row_sets.append(RowSet(which, 4 * len(row_sets), count, draw(st.integers(0, 2**64 - 1)), 0))
        results.append(RangeTaskResult(f"range-{number}", tuple(row_sets), None, HashRangeStatistics()))
    return results


@given(st.lists(SPANS, max_size=6).map(sources_of), st.integers(1, 8), st.integers(1, 2**32), st.data())
def test_parts_tile_every_live_source_once_and_in_order(
    sources: list[Source], parallelism: int, part_bytes: int, data: st.DataObject
) -> None:
    results = data.draw(survivors(sources))
    # Not below a 30th of the whole, so that an example has tens of parts and not millions.
    part_bytes = max(part_bytes, sum(item.rows.stored.size for item in sources) // 30)
    sizing = Sizing(parallelism, part_bytes=part_bytes, part_rows=2**40, small_part_bytes=part_bytes)
    plan, by_source = plan_of(sources), row_sets_by_source(results)
    parts = lay_out(plan, by_source, expected_totals(plan, by_source), sizing).parts
    assert [part.number for part in parts] == list(range(len(parts)))

    slices = [item for part in parts for item in part.slices]
    alive = sorted({row_set.source for result in results for row_set in result.row_sets})
    for number in alive:
        tiles = [item for item in slices if item.source == number]
        assert (tiles[0].first_offset, tiles[-1].last_offset) == (
            sources[number].first_offset,
            sources[number].last_offset,
        )
        assert all(before.last_offset + 1 == after.first_offset for before, after in pairwise(tiles))
        assert all(tile.row_sets == by_source[number] for tile in tiles)
    assert {item.source for item in slices} == set(alive)
    assert all(item.first_offset <= item.last_offset for item in slices)
    assert all(before.last_offset < after.first_offset for before, after in pairwise(slices))
    assert all(part.slices and part.slices[-1].last_offset - part.slices[0].first_offset < 2**32 for part in parts)


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 40))
def test_as_many_parts_as_their_size_or_the_cores_ask_for(ledgers: int, parallelism: int, count: int) -> None:
    """Equal ledgers, everything survives, no limit of offsets in the way: the goal is met to a part.

    The goal is whole rounds of tasks: no core is idle while a last part is written.
    """
    stored = 1_000_000
    sources = sources_of([(1, 1000, stored)] * ledgers)
    sizing = Sizing(parallelism, part_bytes=-(-ledgers * stored // count), small_part_bytes=1)
    parts = laid_out(sources, 0, [1000] * ledgers, sizing)[0].parts
    by_size = -(-ledgers * stored // sizing.part_bytes)
    goal = -(-by_size // parallelism) * parallelism
    assert goal - 1 <= len(parts) <= goal + 1
    covered = [sum(item.last_offset - item.first_offset + 1 for item in part.slices) for part in parts]
    assert max(covered) <= 1.1 * 1000 * ledgers / goal + 1


def test_little_is_written_as_one_part() -> None:
    sources = sources_of([(1, 1000, 1000), (1, 1000, 1000)])
    assert written(laid_out(sources, 0, [9, 9], Sizing(parallelism=8))[0]) == [[0, 1]]


@pytest.mark.parametrize("crumbs", [1, 9])
def test_crumbs_at_the_end_are_no_part_of_their_own(crumbs: int) -> None:
    sources = sources_of([(1, 1000, 1_000_000), (1, 1000, 1_000_000)] + [(1, 10, 100)] * crumbs)
    parts = written(laid_out(sources, 0, [1000, 1000] + [10] * crumbs, Sizing(1, part_bytes=1_000_500))[0])
    assert parts == [[0], [1, *range(2, 2 + crumbs)]]


def test_no_part_holds_more_rows_than_it_may() -> None:
    parts = laid_out(sources_of([(1, 1000, 10)]), 0, [1000], Sizing(1, part_rows=300))[0].parts
    assert [item.last_offset - item.first_offset + 1 for part in parts for item in part.slices] == [250] * 4


@pytest.mark.parametrize("old_parts", [0, 2])
def test_a_part_ends_where_its_offsets_would_need_more_than_32_bits(old_parts: int) -> None:
    sources = sources_of([(1, 10, 1000), (rows.MAX_ROWS - 11, 2, 1000)])
    counts = [9, 2] if not old_parts else [0, 0]
    assert written(laid_out(sources, old_parts, counts, Sizing(1, max_garbage_ratio=-1))[0]) == [[0], [1]]
    sources = sources_of([(1, 10, 1000), (rows.MAX_ROWS - 12, 2, 1000)])
    assert written(laid_out(sources, old_parts, counts, Sizing(1, max_garbage_ratio=-1))[0]) == [[0, 1]]


def test_nothing_that_survives_makes_no_parts() -> None:
    assert laid_out(sources_of([(1, 10, 10)]), 0, [0], Sizing(4))[0].parts == ()
    assert laid_out([], 0, [], Sizing(4))[0] == Layout((), (), ())


# --- which old parts stay


BIG = Sizing(1, part_bytes=1000)
"""Parts of 1000 bytes are full."""


@pytest.mark.parametrize(
    ("before", "goes", "kept"),
    [(0, 50, True), (0, 51, False), (20, 30, True), (20, 31, False), (50, 0, True), (0, 0, True)],
)
def test_garbage_of_just_the_ratio_stays_and_more_is_written_anew(before: int, goes: int, kept: bool) -> None:
    result, _ = laid_out([source(0, 100, 1000, dead=before), source(100, 10, 1)], 1, [goes, 1], BIG)
    assert result.kept_parts == ((0,) if kept else ())
    assert written(result) == ([[1]] if kept else [[0, 1]])


@pytest.mark.parametrize("before", [0, 60])
def test_a_part_of_which_nothing_is_left_is_left_out(before: int) -> None:
    sources = [source(0, 100, 1000), source(100, 100, 1000, dead=before), source(200, 100, 1000)]
    result, remaining = laid_out(sources, 3, [0, 100 - before, 0], BIG)
    assert (result.kept_parts, result.parts, result.bitmaps) == ((0, 2), (), ())
    assert remaining[1].count == 0


def test_a_stretch_goes_over_a_dead_part_and_keeps_its_order() -> None:
    sources = [source(0, 100, 1000), source(100, 100, 1000), source(200, 100, 1000), source(300, 100, 1000)]
    result, _ = laid_out(sources, 4, [60, 100, 60, 0], BIG)
    assert (result.kept_parts, written(result)) == ((3,), [[0, 2]])


def test_a_tier_is_merged_when_it_is_full_and_large_parts_are_left_alone() -> None:
    def merged(*sizes: int, dirty: int) -> list[int]:
        """Old parts that are written together with a dirty ledger of that size."""
        sources = [source(100 * number, 100, size) for number, size in enumerate([*sizes, dirty])]
        result, _ = laid_out(sources, len(sizes), [0] * len(sizes) + [100], BIG)
        return [number for number in range(len(sizes)) if number not in result.kept_parts]

    assert merged(400, 200, dirty=100) == []
    assert merged(400, 100, 100, 100, 99, dirty=100) == []
    assert merged(400, 100, 100, 100, 100, dirty=100) == [1, 2, 3, 4]
    assert merged(400, 199, 199, 2, dirty=100) == [1, 2, 3]
    assert merged(400, 200, 199, 199, dirty=100) == []  # 200 ends the tier, which holds too little
    assert merged(499, 499, 499, 499, 100, 100, 100, 100, dirty=100) == [4, 5, 6, 7]
    assert merged(499, 499, 499, 499, 110, 110, 110, 110, dirty=100) == [4, 5, 6, 7]
    assert merged(499, 499, 499, 499, 499, 110, 110, 110, 110, dirty=100) == list(range(9))  # two full tiers
    assert merged(90, 90, 90, 90, 90, 90, 18, 18, 18, 18, dirty=18) == list(range(10))
    assert merged(30, 20, dirty=80) == []
    assert merged(500, 500, 500, 500, dirty=250) == []  # half full is large enough
    assert merged(499, 499, 499, 499, dirty=400) == [0, 1, 2, 3]
    assert merged(10, 1000, dirty=2) == []


def test_a_part_that_is_written_anew_joins_the_dirty_ledgers_and_its_tier_stays() -> None:
    sources = [source(0, 100, 100), source(100, 100, 250), source(200, 100, 100)]
    result, _ = laid_out(sources, 2, [0, 60, 100], BIG)
    assert (result.kept_parts, written(result)) == ((), [[0, 1, 2]])  # smaller than what its neighbour leaves
    sources = [source(0, 100, 300), source(100, 100, 250), source(200, 100, 100)]
    result, _ = laid_out(sources, 2, [0, 60, 100], BIG)
    assert (result.kept_parts, written(result)) == ((0,), [[1, 2]])


def test_two_parts_that_could_stay_are_never_written() -> None:
    sources = [source(100 * number, 100, size) for number, size in enumerate([30, 20, 10])]
    result, _ = laid_out(sources, 3, [1, 1, 1], BIG)
    assert (result.kept_parts, result.parts) == ((0, 1, 2), ())


def test_a_small_part_behind_one_that_is_written_anew_joins_it() -> None:
    sources = [source(0, 100, 1000), source(100, 100, 300), source(200, 100, 300)]
    result, _ = laid_out(sources, 3, [60, 0, 0], BIG)
    assert (result.kept_parts, written(result)) == ((2,), [[0, 1]])


# --- bitmaps


def test_parts_that_lose_rows_and_stay_get_bitmaps() -> None:
    sources = [source(100 * number, 100, 1000) for number in range(5)]
    result, _ = laid_out(sources, 4, [10, 0, 90, 20, 100], BIG)
    assert result.kept_parts == (0, 1, 3)
    (plan,) = result.bitmaps
    assert [number for number, _ in plan.parts] == [0, 3]
    assert [row_set.count for _, located_ in plan.parts for _, row_set in located_] == [10, 20]
    assert plan.number == len(result.parts)
    assert not plan.find_last


def test_bitmaps_are_cut_by_the_rows_that_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BITMAP_ROWS", 50)
    sources = [source(100 * number, 100, 1000) for number in range(6)]
    result, _ = laid_out(sources, 6, [30, 20, 1, 50, 50, 10], Sizing(1, part_bytes=1, max_garbage_ratio=1))
    assert [[number for number, _ in plan.parts] for plan in result.bitmaps] == [[0, 1], [2], [3], [4], [5]]
    assert [plan.number for plan in result.bitmaps] == list(range(5))
    assert [plan.find_last for plan in result.bitmaps] == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("dead", "counts", "parts", "searched"),
    [
        pytest.param([0, 0], [0, 10], 2, 1, id="its last rows may have gone"),
        pytest.param([0, 0], [10, 0], 2, None, id="untouched, it was the last before"),
        pytest.param([0, 9], [10, 0], 2, None, id="untouched since it was checked"),
        pytest.param([0, 0], [0, 100], 2, None, id="its neighbour went, and it never lost a row"),
        pytest.param([9, 0], [0, 100], 2, 0, id="its neighbour went, and it has lost rows before"),
        pytest.param([9, 0], [0, 60], 2, None, id="its neighbour is rewritten"),
        pytest.param([0, 0], [0, 10, 1], 2, None, id="something new is behind it"),
    ],
)
def test_a_task_finds_the_last_message_alive(
    dead: list[int], counts: list[int], parts: int, searched: int | None
) -> None:
    """R6, where a kept part is the end of the compacted ledger and its last row may not count any more."""
    sources = [source(100 * number, 100, 1000, dead=rows_) for number, rows_ in enumerate([*dead, 0])]
    result, _ = laid_out(sources[: len(counts)], parts, counts, BIG)
    found_in = [plan.parts[-1][0] for plan in result.bitmaps if plan.find_last]
    assert found_in == ([] if searched is None else [searched])


# --- any numbers


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 99), st.integers(0, 99), st.integers(1, 4000), st.integers(0, 100)), max_size=12),
    st.integers(0, 12),
    st.floats(0, 1),
    st.integers(1, 5000),
)
def test_every_live_source_is_kept_or_written_once_and_in_order(
    drawn: list[tuple[int, int, int, int]], old_parts: int, ratio: float, part_bytes: int
) -> None:
    """Each source is drawn as its rows, its dead rows, its stored bytes, and the percentage in the row sets."""
    old_parts = min(old_parts, len(drawn))
    sources, counts = [], []
    for number, (count, dead, stored, percent) in enumerate(drawn):
        dead = min(dead, count - 1) if number < old_parts else 0
        sources.append(source(100 * number, count, stored, dead))
        counts.append((count - dead) * percent // 100)
    sizing = Sizing(2, part_bytes=part_bytes, small_part_bytes=1, max_garbage_ratio=ratio)
    result, remaining = laid_out(sources, old_parts, counts, sizing)

    in_parts = [item.source for part in result.parts for item in part.slices]
    assert in_parts == sorted(in_parts)
    assert result.kept_parts == tuple(sorted(result.kept_parts))
    assert sorted({*in_parts, *result.kept_parts}) == sorted(
        number for number, totals in remaining.items() if totals.count
    )
    assert not {*in_parts} & {*result.kept_parts}
    assert all(number < old_parts for number in result.kept_parts)
    spans = [(part.slices[0].first_offset, part.slices[-1].last_offset) for part in result.parts]
    spans += [(sources[number].first_offset, sources[number].last_offset) for number in result.kept_parts]
    assert all(before[1] < after[0] for before, after in pairwise(sorted(spans)))
    assert [part.number for part in result.parts] == list(range(len(result.parts)))
    marked = [number for plan in result.bitmaps for number, located_ in plan.parts if located_]
    assert marked == [number for number in result.kept_parts if counts[number]]
    assert len(result.task_costs(plan_of(sources, old_parts))) == len(result.tasks)


# --- many runs


class Trickle:
    """Runs that each bring some rows of a byte; a part of an equal share of each of its sources is taken for it."""

    def __init__(self, sizing: Sizing) -> None:
        self.sizing = sizing
        self.parts: list[Source] = []
        self.new_parts: list[Source] = []
        self.end = 0
        self.brought = 0
        self.written = 0

    def run(self, size: int, superseded: float = 0.0) -> None:
        """Run once: `size` rows are new, and the share `superseded` of each part's live rows goes."""
        sources = [*self.parts, source(self.end, size, size)]
        counts = [int(superseded * part.messages) for part in self.parts]
        result, remaining = laid_out(sources, len(self.parts), [*counts, size], self.sizing)
        after = []
        for number in result.kept_parts:
            dead = sources[number].rows.stored.size - remaining[number].count
            deleted = DeletedRows("bitmaps", 0, 1, dead, 0) if dead else None
            after.append(replace(sources[number], messages=remaining[number].count, deleted=deleted))
        new = []
        for part in result.parts:
            share = 0.0
            for item in part.slices:
                whole = sources[item.source].last_offset - sources[item.source].first_offset + 1
                share += remaining[item.source].count * (item.last_offset - item.first_offset + 1) / whole
            count = round(share)
            rows_object = RowsObject(StoredObject("rows", count, 0), 1)
            new.append(Source(rows_object, part.slices[0].first_offset, part.slices[-1].last_offset, count))
            self.written += count
        self.new_parts = new
        self.parts = sorted([*after, *new], key=lambda part: part.first_offset)
        assert all(before.last_offset < part.first_offset for before, part in pairwise(self.parts))
        self.end += size
        self.brought += size


def most_parts(runs: float) -> float:
    """The most parts of equal small runs: a tier holds four at most, and each is five times as large as the next."""
    return layout.TIER_RATIO * (math.log(runs, layout.TIER_RATIO + 1) + 1)


@pytest.mark.parametrize("runs", [100, 1000])
def test_a_steady_trickle_leaves_a_logarithm_of_parts_and_copies_a_row_a_logarithm_of_times(runs: int) -> None:
    trickle = Trickle(Sizing(1, part_bytes=2**60, part_rows=2**60))
    for number in range(1, runs + 1):
        trickle.run(100)
        assert len(trickle.parts) <= most_parts(number)
    assert sum(part.messages for part in trickle.parts) == trickle.brought
    assert trickle.written <= trickle.brought * (math.log(runs, layout.TIER_RATIO + 1) + 1)


def test_a_trickle_into_full_parts_leaves_no_more_parts_than_the_data_needs() -> None:
    trickle = Trickle(Sizing(1, part_bytes=10_000))
    for _ in range(600):
        trickle.run(100)
    needed = trickle.brought / 10_000
    assert len(trickle.parts) <= 2 * needed + most_parts(100)
    assert trickle.written <= trickle.brought * (math.log(100, layout.TIER_RATIO + 1) + 1)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=30))
def test_no_run_leaves_a_full_tier_before_what_it_wrote(sizes: list[int]) -> None:
    trickle = Trickle(Sizing(1, part_bytes=10_000))
    for size in sizes:
        trickle.run(size)
        written_rows, tier = sum(part.messages for part in trickle.new_parts), 0
        older = [part.messages for part in trickle.parts if part not in trickle.new_parts]
        for messages in reversed(older):
            if messages >= min(layout.MERGE_RATIO * written_rows, 5000):
                break
            tier += messages
        assert tier < layout.TIER_RATIO * written_rows


def test_what_is_superseded_is_written_anew_a_bounded_number_of_times() -> None:
    """Uniform updates of a fixed set of keys: as many rows come as go, and the garbage stays below its ratio."""
    trickle = Trickle(Sizing(1, part_bytes=10_000))
    trickle.run(100_000)
    base = trickle.written
    for _ in range(200):
        live = sum(part.messages for part in trickle.parts)
        trickle.run(1000, superseded=1000 / live)
    stored = sum(part.rows.stored.size for part in trickle.parts)
    live = sum(part.messages for part in trickle.parts)
    assert live <= 1.1 * 100_000
    assert stored <= 2 * live
    assert len(trickle.parts) <= 3 * live / 10_000 + most_parts(100)
    assert (trickle.written - base) / 200_000 <= math.log2(100) + 2
