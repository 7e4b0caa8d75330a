"""Sizing: hash ranges by memory and cores, parts that tile what survives and cost about the same."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from compactor.plan import (
    Policies,
    RangeResult,
    RangeStatistics,
    RowSet,
    RunPlan,
    Sizing,
    Source,
    SourceTotals,
    cut_parts,
    promised,
    range_bits,
)
from storage.ledger.key_index import HashRange
from storage.ledger.rows_file import RowsObject
from storage.metadata.records import StoredObject
from storage.objects.interface import StoreLocation

SPANS = st.tuples(st.integers(1, 50), st.integers(1, 2**32 - 1) | st.integers(1, 200), st.integers(1, 2**34))
"""(gap before it, offsets it spans, stored bytes) of a source."""


def plan_of(sources: list[Source], bits: int = 0) -> RunPlan:
    return RunPlan(StoreLocation("file:///nowhere"), "u", -1, "a", Policies(), tuple(sources), (), bits)


def sources_of(spans: list[tuple[int, int, int]]) -> list[Source]:
    sources, offset = [], 0
    for gap, span, stored in spans:
        first = offset + gap
        rows_object = RowsObject(StoredObject("rows", stored, 0), 1)
        sources.append(Source(rows_object, first, first + span - 1, span))
        offset = first + span
    return sources


@st.composite
def survivors(draw: st.DrawFn, sources: list[Source]) -> list[RangeResult]:
    """What phase one may answer: for each hash range some row sets; some sources have none at all."""
    results = []
    for number in range(draw(st.integers(1, 3))):
        row_sets = []
        for source in range(len(sources)):
            count = draw(st.integers(0, max(1, sources[source].messages // 3)))
            if count:
                row_sets.append(RowSet(source, 4 * len(row_sets), count, draw(st.integers(0, 2**64 - 1)), 0))
        results.append(RangeResult(f"range-{number}", tuple(row_sets), None, RangeStatistics()))
    return results


@given(st.lists(SPANS, max_size=6).map(sources_of), st.integers(1, 8), st.integers(1, 2**32), st.data())
def test_parts_tile_every_live_source_once_and_in_order(
    sources: list[Source], parallelism: int, part_bytes: int, data: st.DataObject
) -> None:
    results = data.draw(survivors(sources))
    # Not below a 30th of the whole, so that an example has tens of parts and not millions.
    part_bytes = max(part_bytes, sum(source.rows.stored.size for source in sources) // 30)
    sizing = Sizing(parallelism, part_bytes=part_bytes, small_part_bytes=part_bytes)
    parts = cut_parts(plan_of(sources), results, sizing)
    assert [part.number for part in parts] == list(range(len(parts)))

    slices = [one for part in parts for one in part.slices]
    alive = sorted({row_set.source for result in results for row_set in result.row_sets})
    for number in alive:
        tiles = [one for one in slices if one.source == number]
        assert (tiles[0].first_offset, tiles[-1].last_offset) == (
            sources[number].first_offset,
            sources[number].last_offset,
        )
        assert all(before.last_offset + 1 == after.first_offset for before, after in pairwise(tiles))
        promised_here = [(r.name, row_set) for r in results for row_set in r.row_sets if row_set.source == number]
        assert all(list(tile.row_sets) == promised_here for tile in tiles)
    assert {one.source for one in slices} == set(alive)
    assert all(one.first_offset <= one.last_offset for one in slices)
    assert all(before.last_offset < after.first_offset for before, after in pairwise(slices))
    assert all(part.slices and part.slices[-1].last_offset - part.slices[0].first_offset < 2**32 for part in parts)


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 40))
def test_as_many_parts_as_their_size_or_the_cores_ask_for(ledgers: int, parallelism: int, wanted: int) -> None:
    """Equal ledgers, everything survives, no limit of offsets in the way: the goal is met to a part.

    The goal is whole rounds of tasks: no core is idle while a last part is written.
    """
    stored = 1_000_000
    sources = sources_of([(1, 1000, stored)] * ledgers)
    row_sets = tuple(RowSet(number, 0, 1000, 0, 0) for number in range(ledgers))
    results = [RangeResult("range-0", row_sets, None, RangeStatistics())]
    sizing = Sizing(parallelism, part_bytes=-(-ledgers * stored // wanted), small_part_bytes=1)
    parts = cut_parts(plan_of(sources), results, sizing)
    by_size = -(-ledgers * stored // sizing.part_bytes)
    goal = -(-by_size // parallelism) * parallelism
    assert goal - 1 <= len(parts) <= goal + 1
    covered = [sum(one.last_offset - one.first_offset + 1 for one in part.slices) for part in parts]
    assert max(covered) <= 1.1 * 1000 * ledgers / goal + 1


def test_little_is_written_as_one_part() -> None:
    sources = sources_of([(1, 1000, 1000), (1, 1000, 1000)])
    results = [RangeResult("r", (RowSet(0, 0, 9, 0, 0), RowSet(1, 36, 9, 0, 0)), None, RangeStatistics())]
    (part,) = cut_parts(plan_of(sources), results, Sizing(parallelism=8))
    assert [one.source for one in part.slices] == [0, 1]


def test_a_part_ends_where_its_offsets_would_need_more_than_32_bits() -> None:
    sources = sources_of([(1, 10, 1000), (2**32 - 11, 2, 1000)])
    results = [RangeResult("r", (RowSet(0, 0, 9, 0, 0), RowSet(1, 36, 2, 0, 0)), None, RangeStatistics())]
    spans = [[one.source for one in part.slices] for part in cut_parts(plan_of(sources), results, Sizing(1))]
    assert spans == [[0], [1]]


def test_nothing_that_survives_makes_no_parts() -> None:
    results = [RangeResult("r", (), None, RangeStatistics())]
    assert cut_parts(plan_of(sources_of([(1, 10, 10)])), results, Sizing(4)) == []
    assert cut_parts(plan_of([]), [], Sizing(4)) == []


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
    assert plan_of([], bits=0).ranges == (HashRange(0, 0),)
    assert plan_of([], bits=2).ranges == (HashRange(0, 2), HashRange(1, 2), HashRange(2, 2), HashRange(3, 2))


def test_promises_add_up_over_hash_ranges_modulo_64_bits() -> None:
    first = RangeResult("a", (RowSet(0, 0, 2, 2**64 - 1, 0), RowSet(3, 8, 1, 5, 0)), None, RangeStatistics())
    second = RangeResult("b", (RowSet(0, 0, 3, 4, 0),), None, RangeStatistics())
    assert promised([first, second]) == {0: SourceTotals(5, 3), 3: SourceTotals(1, 5)}
