"""Sizing: hash ranges by memory and cores, levels that are merged; what phase one promises, added up."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given, strategies as st

from compactor.run.plan import (
    LEVEL_RATIO,
    HashRangeStatistics,
    RangeTaskResult,
    RowSet,
    Sizing,
    Source,
    SourceTotals,
    expected_totals,
    merged_level_count,
    range_bits,
    row_sets_by_source,
)
from storage.ledger.key_index import HashRange
from storage.model import RowsObject, StoredObject
from tests.unit.compactor.run.plans import plan_of

ROWS = RowsObject(StoredObject("rows", 1, 0), 1)


@given(st.integers(0, 2**40), st.integers(1, 64), st.integers(1, 2**24), st.integers(1, 2**24))
def test_ranges_fit_in_memory_and_are_as_many_as_cores_can_use(
    records: int, parallelism: int, range_records: int, small: int
) -> None:
    sizing = Sizing(parallelism, range_records=range_records, small_range_records=small)
    count = 2 ** range_bits(records, sizing)
    assert count * range_records >= records
    assert count >= min(parallelism, records // small)
    assert count == 1 or count / 2 * range_records < records or count / 2 < min(parallelism, records // small)


def test_the_ranges_of_a_plan_are_every_prefix_of_its_bits() -> None:
    assert plan_of(bits=0).ranges == (HashRange(0, 0),)
    assert plan_of(bits=2).ranges == (HashRange(0, 2), HashRange(1, 2), HashRange(2, 2), HashRange(3, 2))


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=300))
def test_levels_stay_few_and_grow_from_front_to_back(runs: list[int]) -> None:
    """After any sequence of runs each level has LEVEL_RATIO times the records of the one in front of it."""
    levels: list[int] = []
    for dirty in runs:
        merged = merged_level_count(dirty, levels)
        levels = [dirty + sum(levels[:merged]), *levels[merged:]]
        if levels[0] == 0:
            levels.pop(0)
        assert all(older >= LEVEL_RATIO * newer for newer, older in pairwise(levels))
        assert len(levels) <= math.log2(max(2, sum(levels))) + 1
    assert sum(levels) == sum(runs)


def test_a_trickle_of_equal_runs_merges_each_record_a_logarithm_of_times() -> None:
    levels: list[int] = []
    copied = 0
    for _ in range(4096):
        merged = merged_level_count(1000, levels)
        copied += sum(levels[:merged])
        levels = [1000 + sum(levels[:merged]), *levels[merged:]]
    assert copied / 4096_000 <= 2 * math.log2(4096)


def test_a_level_of_just_twice_the_records_is_not_merged() -> None:
    assert merged_level_count(100, [200]) == 0
    assert merged_level_count(100, [199]) == 1
    assert merged_level_count(100, [199, 598]) == 1
    assert merged_level_count(100, [199, 597]) == 2
    assert merged_level_count(0, [1, 2]) == 0
    assert merged_level_count(5, []) == 0


def test_promises_of_ledgers_add_up_over_hash_ranges_modulo_64_bits() -> None:
    sources = tuple(Source(ROWS, 10 * number, 10 * number + 9, 10) for number in range(4))
    first = RangeTaskResult("a", (RowSet(0, 0, 2, 2**64 - 1, 0), RowSet(3, 8, 1, 5, 0)), None, HashRangeStatistics())
    second = RangeTaskResult("b", (RowSet(0, 0, 3, 4, 0),), None, HashRangeStatistics())
    by_source = row_sets_by_source([first, second])
    assert by_source == {0: (("a", first.row_sets[0]), ("b", second.row_sets[0])), 3: (("a", first.row_sets[1]),)}
    assert expected_totals(plan_of(sources), by_source) == {0: SourceTotals(5, 3), 3: SourceTotals(1, 5)}


def test_an_old_part_has_left_what_it_had_less_what_goes() -> None:
    sources = (Source(ROWS, 0, 9, 8, None, 30), Source(ROWS, 10, 19, 10, None, 3), Source(ROWS, 20, 29, 10))
    result = RangeTaskResult("a", (RowSet(0, 0, 3, 12, 0), RowSet(1, 12, 4, 5, 0)), None, HashRangeStatistics())
    assert expected_totals(plan_of(sources, old_parts=2), row_sets_by_source([result])) == {
        0: SourceTotals(5, 18),
        1: SourceTotals(6, 2**64 - 2),
    }
    assert expected_totals(plan_of(sources, old_parts=1), {}) == {0: SourceTotals(8, 30)}
