"""The key index against plain dicts: what is written is read, from any hash range, or an error names the object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, example, given, strategies as st
from pyroaring import BitMap64

from storage.errors import ObjectDamaged, ObjectMissing
from storage.ledger import key_index
from storage.ledger.key_index import U64, HashRange, IndexDirectory, IndexRecords
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore
from tests.sealed import damaged_copy, new_id

U64_MAX = 2**64 - 1
FEW = st.integers(0, 3)
HIGH = st.integers(0, U64_MAX) | FEW | FEW.map(lambda top: top << 62)
"""High halves that often agree."""
FLAGS = st.sampled_from([0, int(key_index.TOMBSTONE), int(key_index.MARKER)])
EVENT_TIMES = st.integers(-5, 5) | st.just(key_index.NO_EVENT_TIME) | st.just(2**63 - 1)


class Record(NamedTuple):
    """One record as Python numbers."""

    hi: int
    lo: int
    offset: int
    event_offset: int
    event_time: int


RECORD = st.builds(
    Record, HIGH, HIGH, st.builds(int.__or__, st.integers(0, 2**62 - 1), FLAGS), st.integers(0, U64_MAX), EVENT_TIMES
)
RECORDS = st.lists(RECORD, max_size=40, unique_by=lambda record: record[:2]).map(sorted)
RANGES = st.integers(0, 6).flatmap(lambda bits: st.builds(HashRange, st.integers(0, 2**bits - 1), st.just(bits)))
BITMAPS = st.fixed_dictionaries(
    {name: st.sets(st.integers(0, 2**62 - 1), max_size=5).map(BitMap64) for name in key_index.UNKEYED_CLASSES}
)


@pytest.fixture(autouse=True, scope="module")
def small_fences() -> Iterator[None]:
    """Fences of three records, so that few records already make many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "FENCE_RECORDS", 3)
        yield


def u64(values: list[int]) -> U64:
    return np.array(values, dtype=np.uint64)


def columns(records: list[Record], events: bool) -> IndexRecords:
    hi, lo, offset, event_offset = (u64([record[i] for record in records]) for i in range(4))
    event_time = np.array([record.event_time for record in records], dtype=np.int64)
    return IndexRecords(hi, lo, offset, event_offset, event_time) if events else IndexRecords(hi, lo, offset)


def plain(records: IndexRecords) -> list[tuple[int, ...]]:
    arrays = [records.hi, records.lo, records.offset]
    if records.event_offset is not None and records.event_time is not None:
        arrays += [records.event_offset, records.event_time]
    return list(zip(*(array.tolist() for array in arrays), strict=True))


def holds(hash_range: HashRange, hi: int) -> bool:
    return hi >> (64 - hash_range.bits) == hash_range.prefix


def write(
    store: ObjectStore, records: IndexRecords, hash_range: HashRange, unkeyed: dict[str, BitMap64] | None = None
) -> IndexLocation:
    data, directory = key_index.encode_index(records, hash_range, unkeyed)
    name = f"indexes/{new_id()}"
    store.put(name, data)
    return IndexLocation(name, 0, len(data), directory.encode())


@pytest.mark.slow
@given(RECORDS, RANGES, st.lists(RANGES, min_size=1, max_size=4), st.booleans())
def test_any_hash_range_reads_as_a_filter_of_the_whole(
    object_store: ObjectStore, drawn: list[Record], own_range: HashRange, ranges: list[HashRange], events: bool
) -> None:
    inside = [record for record in drawn if holds(own_range, record.hi)]
    location = write(object_store, columns(inside, events), own_range)
    for hash_range in [HashRange(), own_range, *ranges]:
        expected = [record for record in inside if holds(hash_range, record.hi)]
        assert plain(key_index.read_records(object_store, location, hash_range)) == [record[:3] for record in expected]
        with_events = key_index.read_records(object_store, location, hash_range, events=True)
        width = 5 if events and with_events.event_time is not None else 3
        assert plain(with_events) == [record[:width] for record in expected]
        assert width == (5 if events and expected else width)


@pytest.mark.slow
@given(RECORDS, st.integers(1, 6))
def test_the_ranges_of_a_run_share_the_records_out(object_store: ObjectStore, drawn: list[Record], bits: int) -> None:
    location = write(object_store, columns(drawn, events=False), HashRange())
    read = [key_index.read_records(object_store, location, HashRange(prefix, bits)) for prefix in range(2**bits)]
    assert [row for records in read for row in plain(records)] == [record[:3] for record in drawn]


@given(RECORDS, RANGES)
def test_fences_are_equal_ranges_of_the_hash(drawn: list[Record], own_range: HashRange) -> None:
    inside = [record for record in drawn if holds(own_range, record.hi)]
    _, directory = key_index.encode_index(columns(inside, events=False), own_range)
    count = len(directory.counts)
    assert count == 1 or count * key_index.FENCE_RECORDS // 2 < len(inside) <= count * key_index.FENCE_RECORDS
    narrower = [
        HashRange((own_range.prefix * count) + i, own_range.bits + count.bit_length() - 1) for i in range(count)
    ]
    assert [sum(holds(fence, record.hi) for record in inside) for fence in narrower] == list(directory.counts)


def test_a_large_index_has_fences_of_bounded_size(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "FENCE_RECORDS", 16_384)
    random = np.random.default_rng(1)
    hi = np.unique(random.integers(0, U64_MAX, 100_000, dtype=np.uint64))
    records = IndexRecords(hi, hi ^ np.uint64(7), np.arange(len(hi), dtype=np.uint64))
    location = write(object_store, records, HashRange())
    assert len(IndexDirectory.decode(location.directory).counts) == 8
    got = key_index.read_records(object_store, location, HashRange(0b101, 3))
    assert np.array_equal(got.hi, hi[hi >> np.uint64(61) == 0b101])


@pytest.mark.slow
@given(BITMAPS, RECORDS, st.booleans())
def test_unkeyed_offsets_are_read_back(
    object_store: ObjectStore, unkeyed: dict[str, BitMap64], drawn: list[Record], events: bool
) -> None:
    expected = {name: set(bitmap) for name, bitmap in unkeyed.items()}
    location = write(object_store, columns(drawn, events), HashRange(), unkeyed)
    assert {name: set(key_index.read_unkeyed(object_store, location, name)) for name in expected} == expected


def test_an_index_without_unkeyed_rows_has_empty_bitmaps(object_store: ObjectStore) -> None:
    location = write(object_store, columns([], events=False), HashRange())
    assert location.length == 0
    assert not any(key_index.read_unkeyed(object_store, location, name) for name in key_index.UNKEYED_CLASSES)


@pytest.mark.slow
@given(RECORDS, RANGES, BITMAPS, st.booleans())
def test_a_directory_is_read_back_whole(
    drawn: list[Record], own_range: HashRange, unkeyed: dict[str, BitMap64], events: bool
) -> None:
    inside = [record for record in drawn if holds(own_range, record.hi)]
    data, directory = key_index.encode_index(columns(inside, events), own_range, unkeyed)
    again = IndexDirectory.decode(directory.encode())
    assert again == directory
    assert again.record_count == len(inside)
    assert again.has_events == events
    assert len(data) == len(inside) * (40 if events else 24) + sum(again.unkeyed_sizes.values())


def test_indexes_may_share_an_object(object_store: ObjectStore) -> None:
    drawn = [Record(top << 60, 1, top, top, top) for top in range(16)]
    first, second = columns(drawn[:9], events=True), columns(drawn[9:], events=True)
    data, directory = key_index.encode_index(first, HashRange(), {"chunks": BitMap64([4])})
    more, following = key_index.encode_index(second, HashRange(), {"chunks": BitMap64([5])})
    name = f"indexes/{new_id()}"
    object_store.put(name, data + more)
    locations = [
        IndexLocation(name, 0, len(data), directory.encode()),
        IndexLocation(name, len(data), len(more), following.encode()),
    ]
    read = [key_index.read_records(object_store, location, HashRange(), events=True) for location in locations]
    assert [plain(records) for records in read] == [plain(first), plain(second)]
    assert [list(key_index.read_unkeyed(object_store, location, "chunks")) for location in locations] == [[4], [5]]


@pytest.mark.slow
@given(RECORDS, BITMAPS, st.booleans(), st.data())
def test_a_flipped_byte_is_damage_for_the_read_that_covers_it(
    object_store: ObjectStore, drawn: list[Record], unkeyed: dict[str, BitMap64], events: bool, data: st.DataObject
) -> None:
    location = write(object_store, columns(drawn, events), HashRange(), unkeyed)
    assume(location.length)
    position = data.draw(st.integers(0, location.length - 1))
    name = damaged_copy(object_store, location.name, position, data.draw(st.integers(1, 255)))
    damaged = replace(location, name=name)

    ends = [24 * len(drawn), (40 if events else 24) * len(drawn)]
    sizes = IndexDirectory.decode(location.directory).unkeyed_sizes
    for class_ in key_index.UNKEYED_CLASSES:
        ends.append(ends[-1] + sizes[class_])
    area = next(number for number, end in enumerate(ends) if position < end)

    for number, read_events in ((0, False), (1, True)):
        if area <= number:
            with pytest.raises(ObjectDamaged, match=name):
                key_index.read_records(object_store, damaged, HashRange(), events=read_events)
        else:
            read = key_index.read_records(object_store, damaged, HashRange(), events=read_events)
            assert [row[:3] for row in plain(read)] == [record[:3] for record in drawn]
    for number, class_ in enumerate(key_index.UNKEYED_CLASSES, start=2):
        if area == number:
            with pytest.raises(ObjectDamaged, match=name):
                key_index.read_unkeyed(object_store, damaged, class_)
        else:
            assert key_index.read_unkeyed(object_store, damaged, class_) == unkeyed[class_]


def test_damage_of_one_fence_leaves_the_others_readable(object_store: ObjectStore) -> None:
    drawn = [Record(top << 60, 1, top, 0, 0) for top in range(16)]
    location = write(object_store, columns(drawn, events=False), HashRange())
    damaged = replace(location, name=damaged_copy(object_store, location.name, 0))
    with pytest.raises(ObjectDamaged, match="fence 0"):
        key_index.read_records(object_store, damaged, HashRange(0, 1))
    assert plain(key_index.read_records(object_store, damaged, HashRange(1, 1))) == [item[:3] for item in drawn[8:]]


def test_a_cut_or_missing_object_is_an_error(object_store: ObjectStore) -> None:
    location = write(object_store, columns([Record(1, 1, 1, 0, 0)], events=False), HashRange())
    with pytest.raises(ObjectMissing):
        key_index.read_records(object_store, replace(location, name=f"indexes/{new_id()}"), HashRange())
    cut = f"indexes/{new_id()}"
    object_store.put(cut, object_store.get(location.name)[:-1])
    with pytest.raises(ObjectDamaged, match=cut):
        key_index.read_records(object_store, replace(location, name=cut), HashRange())


GOOD = IndexDirectory(HashRange(), (3, 2), (11, 12)).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(GOOD[:31], id="cut in the header"),
        pytest.param(GOOD[:32], id="no fences"),
        pytest.param(GOOD[:-1], id="cut in a number"),
        pytest.param(GOOD[:-4], id="cut between numbers"),
        pytest.param(GOOD + bytes(8), id="three fences"),
        pytest.param(b"\x04\x00" + GOOD[2:], id="a later version"),
        pytest.param(b"\x02\x00" + GOOD[2:32] + bytes(8), id="a chunk table and no fences"),
        pytest.param(b"\x02\x00" + GOOD[2:32], id="cut before the chunk table"),
        pytest.param(GOOD[:2] + b"\x21" + GOOD[3:], id="more bits than a prefix has"),
        pytest.param(GOOD[:3] + b"\x02" + GOOD[4:], id="an unknown flag"),
        pytest.param(GOOD[:4] + b"\x01" + GOOD[5:], id="a prefix outside its bits"),
    ],
)
def test_a_directory_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(ObjectDamaged, match="key index directory"):
        IndexDirectory.decode(data)


def test_an_unreadable_directory_names_its_object() -> None:
    for data in (GOOD[:-1], b""):
        with pytest.raises(ObjectDamaged, match="the key index directory of runs/a has") as raised:
            IndexDirectory.decode(data, "runs/a")
        assert raised.value.advice is not None
        assert raised.value.advice.arguments["object"] == "runs/a"


def test_a_directory_that_is_not_damaged_is_not_refused() -> None:
    assert IndexDirectory.decode(GOOD).counts == (3, 2)


HASHES = st.lists(st.tuples(HIGH, HIGH), max_size=60)
COLLIDING = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=60)
"""Hashes of which many share the high half and not the low one."""


@given(HASHES | COLLIDING, st.sampled_from([0, 1000]))
@example([(7, 0), (7, 1), (7, 0), (9, 1), (7, 1), (7, 0)], 0)
def test_the_last_record_of_each_hash_wins(hashes: list[tuple[int, int]], merged_runs: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "MERGED_RUNS", merged_runs)
        winners = key_index.latest_positions(u64([hi for hi, _ in hashes]), u64([lo for _, lo in hashes]))
    expected = {pair: position for position, pair in enumerate(hashes)}
    assert winners.tolist() == [expected[pair] for pair in sorted(expected)]


@given(st.lists(RECORDS, max_size=4), st.integers(1, 50))
def test_blocks_have_the_records_of_each_run_in_order_and_a_hash_in_one_block(
    drawn: list[list[Record]], block_records: int
) -> None:
    runs = [columns(run, events=True) for run in drawn]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "BLOCK_RECORDS", block_records)
        blocks = list(key_index.split_by_hash(runs))
    assert len(blocks) == sum(map(len, runs)) // block_records + 1
    for number, run in enumerate(runs):
        assert [record for block in blocks for record in plain(block[number])] == plain(run)
    highs = [{hi for run in block for hi in run.hi.tolist()} for block in blocks]
    filled = [hashes for hashes in highs if hashes]
    assert all(max(before) < min(after) for before, after in pairwise(filled))


@given(st.lists(st.tuples(FEW, FEW, EVENT_TIMES), max_size=60))
def test_the_largest_event_time_of_each_hash_wins_and_of_equal_ones_the_last(drawn: list[tuple[int, int, int]]) -> None:
    hi, lo = (u64([record[i] for record in drawn]) for i in range(2))
    winners = key_index.latest_positions_by_event(hi, lo, np.array([record[2] for record in drawn], dtype=np.int64))
    expected: dict[tuple[int, int], int] = {}
    for position, (high, low, time) in enumerate(drawn):
        best = expected.get((high, low))
        if best is None or time >= drawn[best][2]:
            expected[high, low] = position
    assert winners.tolist() == [expected[pair] for pair in sorted(expected)]


@pytest.mark.slow
@given(RECORDS, st.lists(st.tuples(HIGH, HIGH), max_size=30))
def test_hashes_are_found_as_in_a_dict(drawn: list[Record], others: list[tuple[int, int]]) -> None:
    """Half of what is asked for is there; keys share high halves."""
    keys = sorted({*others, *(record[:2] for record in drawn[::2])})
    records = key_index.positions_of_hashes(
        columns(drawn, events=False), u64([hi for hi, _ in keys]), u64([lo for _, lo in keys])
    )
    where = {record[:2]: position for position, record in enumerate(drawn)}
    assert records.tolist() == [where.get(pair, -1) for pair in keys]


class Counting:
    """Wraps a store's `get`; `reads`: start and length of each."""

    def __init__(self, store: ObjectStore, patch: pytest.MonkeyPatch, preferred: int) -> None:
        self.reads: list[tuple[int, int | None]] = []
        get = store.get

        def counted(name: str, start: int = 0, length: int | None = None) -> bytes:
            self.reads.append((start, length))
            return get(name, start, length)

        patch.setattr(store, "get", counted)
        patch.setattr(store, "preferred_read_bytes", preferred)


@pytest.mark.slow
@given(RECORDS, st.lists(RANGES, min_size=1, max_size=3), st.lists(HIGH, max_size=6), st.booleans(), st.integers(0, 4))
def test_a_probe_has_the_records_of_the_hashes_it_is_asked_for(
    object_store: ObjectStore,
    drawn: list[Record],
    ranges: list[HashRange],
    others: list[int],
    events: bool,
    gap: int,
) -> None:
    """The index may have any hash range."""
    hashes = sorted({*others, *(record.hi for record in drawn[::3])})
    with pytest.MonkeyPatch.context() as patch:
        Counting(object_store, patch, gap * key_index.RECORD_BYTES * key_index.FENCE_RECORDS)
        for own_range in ranges:
            inside = [record for record in drawn if holds(own_range, record.hi)]
            location = write(object_store, columns(inside, events), own_range)
            probed = plain(key_index.probe_records(object_store, location, u64(hashes), events=events))
            width = 5 if events else 3
            assert probed == [record[:width] for record in inside if record.hi in hashes]


@pytest.mark.parametrize(
    ("gap", "buckets", "requests"),
    [
        pytest.param(0, [], [], id="nothing"),
        pytest.param(0, [3], [(3, 1)], id="one fence"),
        pytest.param(1, [0, 1, 2, 3], [(0, 4)], id="neighbours"),
        pytest.param(1, [0, 2, 3, 15], [(0, 1), (2, 2), (15, 1)], id="gaps that are dear"),
        pytest.param(2, [0, 2, 5, 15], [(0, 3), (5, 1), (15, 1)], id="a gap that is cheap"),
        pytest.param(16, [0, 15], [(0, 16)], id="everything is cheap"),
    ],
)
def test_a_probe_reads_the_fences_it_needs_in_as_few_requests_as_pay(
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    gap: int,
    buckets: list[int],
    requests: list[tuple[int, int]],
) -> None:
    """Sixteen fences of three records; a gap of that many fences is cheaper to read than another request."""
    drawn = [Record((top << 60) + n, 1, top, top, top) for top in range(16) for n in range(3)]
    location = write(object_store, columns(drawn, events=True), HashRange())
    assert len(IndexDirectory.decode(location.directory).counts) == 16
    counting = Counting(object_store, monkeypatch, gap * key_index.RECORD_BYTES * key_index.FENCE_RECORDS)
    hashes = u64([(top << 60) + 1 for top in buckets])
    records = key_index.probe_records(object_store, location, hashes)
    assert counting.reads == [(72 * first, 72 * count) for first, count in requests]
    assert records.offset.tolist() == buckets
    assert sum(probe.records_read for probe in key_index.plan_probes(object_store, location, hashes)) == 3 * sum(
        count for _, count in requests
    )
    counting.reads.clear()
    key_index.probe_records(object_store, location, hashes, events=True)
    assert len(counting.reads) == 2 * len(requests)


def test_a_level_of_several_hash_ranges_costs_a_request_for_each_that_holds_what_is_asked_for(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels may be cut into other ranges than the run that probes them."""
    drawn = [Record((top << 60) + 1, 1, top, top, top) for top in range(16)]
    level = [write(object_store, columns(drawn[4 * n : 4 * n + 4], events=False), HashRange(n, 2)) for n in range(4)]
    counting, hashes = Counting(object_store, monkeypatch, 0), u64([(top << 60) + 1 for top in (0, 8, 9)])
    records = key_index.concatenate_records([key_index.probe_records(object_store, item, hashes) for item in level])
    assert set(records.offset.tolist()) >= {0, 8, 9}
    assert len(counting.reads) == 2


def test_an_empty_fence_is_not_read(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [Record((15 << 60) + n, 1, n, 0, 0) for n in range(6)]
    location = write(object_store, columns(drawn, events=False), HashRange())
    reads = Counting(object_store, monkeypatch, 0).reads
    assert (len(key_index.probe_records(object_store, location, u64([1]))), reads) == (0, [])


def test_damage_of_a_fence_that_is_probed_is_found(object_store: ObjectStore) -> None:
    drawn = [Record(top << 60, 1, top, 0, 0) for top in range(16)]
    location = write(object_store, columns(drawn, events=False), HashRange())
    damaged = replace(location, name=damaged_copy(object_store, location.name, 0))
    with pytest.raises(ObjectDamaged, match="fence 0"):
        key_index.probe_records(object_store, damaged, u64([0]))


@pytest.mark.slow
@given(st.lists(st.tuples(RECORDS, st.booleans()), max_size=4))
def test_runs_are_put_one_behind_the_other(drawn: list[tuple[list[Record], bool]]) -> None:
    runs = [columns(rows, events) for rows, events in drawn]
    together = key_index.concatenate_records(runs)
    have_events = all(events for rows, events in drawn if rows) and any(rows for rows, _ in drawn)
    width = 5 if have_events else 3
    assert plain(together) == [record[:width] for rows, _ in drawn for record in rows]
    assert (together.event_time is not None) == have_events


@pytest.mark.slow
@given(RECORDS, st.booleans(), st.data())
def test_records_are_taken_by_position_mask_or_slice(drawn: list[Record], events: bool, data: st.DataObject) -> None:
    records = columns(drawn, events)
    mask = data.draw(st.lists(st.booleans(), min_size=len(drawn), max_size=len(drawn)))
    expected = [record[: 5 if events else 3] for record, is_kept in zip(drawn, mask, strict=True) if is_kept]
    assert plain(records.take(np.array(mask, dtype=np.bool_))) == expected
    assert plain(records.take(np.flatnonzero(np.array(mask, dtype=np.bool_)))) == expected
    assert plain(records.take(slice(1, None))) == plain(records)[1:]
