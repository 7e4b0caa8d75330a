"""The scan: of the row groups that may hold something due it finds all that is, and it reads no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyroaring import BitMap

from compactor.run.expiry_scan import run_scan
from compactor.run.plan import RemovalScanResult, RemovalScanTask, RunPlan, RunPolicies, Source
from storage.ledger import key_index, names, rows
from storage.ledger.deletion_bitmap import encode_bitmaps, read_deletion_bitmaps
from storage.ledger.hashing import KeyHasher, Xxh3KeyHasher
from storage.ledger.key_index import MARKER, NO_EVENT_TIME, TOMBSTONE, HashRange
from storage.ledger.rows_file import RowsReader
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore
from tests.budgets import examples
from tests.sealed import NOW, SEED, CollidingHasher, damaged_copy, new_id, seal

BASE = 1000
"""The offset of the first row: bitmaps are relative to it."""


@dataclass(frozen=True)
class Row:
    """A row of an old part. `retained`: of a tombstone, when it was first kept."""

    key: bytes | None
    published: int
    retained: int | None = None
    event: int | None = None
    slot: rows.RowType = rows.RowType.MESSAGE

    @property
    def keyed(self) -> bool:
        return self.key is not None and self.slot is rows.RowType.MESSAGE

    @property
    def tombstone(self) -> bool:
        return self.keyed and self.retained is not None


def part_of(store: ObjectStore, content: Sequence[Row], dead: Sequence[int] = ()) -> Source:
    """An old part with these rows at ascending offsets, `dead` of them deleted."""
    drawn: list[dict[str, Any]] = [
        {
            "offset": BASE + number,
            "ledger_id": 5,
            "entry_id": number,
            "batch_index": -1,
            "batch_size": 0,
            "key": row.key,
            "key_base64": False,
            "payload": b"" if row.retained is not None else b"v",
            "publish_time": row.published,
            "event_time": row.event,
            "codec": 0,
            "slot": int(row.slot),
            "retained_at": row.retained,
        }
        for number, row in enumerate(content)
    ]
    ledger = seal(store, pa.Table.from_pylist(drawn, schema=rows.SCHEMA))
    deleted = None
    if dead:
        name = f"bitmaps/{new_id()}"
        data, (deleted,) = encode_bitmaps(name, [BitMap(dead)])
        store.put(name, data)
    rows_object = ledger.rows_object
    return Source(rows_object, BASE, BASE + len(drawn) - 1, len(drawn) - len(dead), deleted)


def plan_of(
    store: ObjectStore, source: Source, *, old: bool = True, floor: int | None = None, hasher: KeyHasher | None = None
) -> RunPlan:
    hasher = hasher or Xxh3KeyHasher(SEED)
    policies = RunPolicies()
    return RunPlan(
        store.location, new_id(), -1, new_id(), policies, NOW, hasher, (source,), int(old), cursor_floor=floor
    )


def scanned(store: ObjectStore, source: Source, scan: RemovalScanTask, floor: int | None = None) -> RemovalScanResult:
    plan = plan_of(store, source, floor=floor)
    # a part is indexed again only for event-time order (P9)
    return run_scan(replace(plan, policies=RunPolicies(event_time_order=scan.reindex)), scan)


def offsets(store: ObjectStore, location: IndexLocation | None, flag: int) -> list[int]:
    """Offsets in an index, relative to BASE; each has the flag."""
    if location is None:
        return []
    records = key_index.read_records(store, location, HashRange(), events=True)
    assert all(offset & flag == flag for offset in records.offset.tolist())
    assert records.event_offset is not None
    assert records.event_offset.tolist() == records.offset.tolist()
    return sorted((offset & int(key_index.OFFSET_MASK)) - BASE for offset in records.offset.tolist())


MARK = int(MARKER)


def due(store: ObjectStore, result: RemovalScanResult) -> list[int]:
    return offsets(store, result.removal_markers, MARK)


MIXED = [
    Row(b"a", 10),
    Row(b"b", 20),
    Row(b"c", 5, retained=100),
    Row(b"d", 6, retained=200),
    Row(None, 1),
    Row(b"e", 2, slot=rows.RowType.CHUNK),
    Row(b"f", 11),
]


@pytest.mark.parametrize(
    ("scan", "expected", "oldest_value", "oldest_tombstone"),
    [
        (RemovalScanTask(0, values_to=9), [], 10, 100),
        (RemovalScanTask(0, values_to=10), [0], 11, 100),
        (RemovalScanTask(0, values_to=11), [0, 6], 20, 100),
        (RemovalScanTask(0, values_to=99), [0, 1, 6], None, 100),
        (RemovalScanTask(0, tombstones_to=100), [2], 10, 200),
        (RemovalScanTask(0, tombstones_to=200), [2, 3], 10, None),
        (RemovalScanTask(0, values_to=20, tombstones_to=150), [0, 1, 2, 6], None, 200),
    ],
)
def test_values_go_by_publish_time_and_tombstones_by_when_they_were_kept(
    object_store: ObjectStore,
    scan: RemovalScanTask,
    expected: list[int],
    oldest_value: int | None,
    oldest_tombstone: int | None,
) -> None:
    """To the millisecond; rows without a key and chunks have no time to live, and count for no oldest value."""
    result = scanned(object_store, part_of(object_store, MIXED), scan)
    assert due(object_store, result) == expected
    assert (result.oldest_value, result.oldest_tombstone) == (oldest_value, oldest_tombstone)
    assert (result.source, result.index, result.expired) == (0, None, None)


def test_markers_know_a_tombstone_and_the_event_time(object_store: ObjectStore) -> None:
    content = [Row(b"a", 10, event=77), Row(b"b", 10, retained=5, event=88), Row(b"c", 10)]
    result = scanned(object_store, part_of(object_store, content), RemovalScanTask(0, values_to=10, tombstones_to=5))
    assert result.removal_markers is not None
    records = key_index.read_records(object_store, result.removal_markers, HashRange(), events=True)
    assert records.event_time is not None
    assert sorted(zip(records.offset.tolist(), records.event_time.tolist(), strict=True)) == [
        (BASE | MARK, 77),
        (BASE + 2 | MARK, NO_EVENT_TIME),
        (BASE + 1 | MARK | int(TOMBSTONE), 88),
    ]
    hi, lo = Xxh3KeyHasher(SEED)(pa.array([b"a", b"b", b"c"], pa.binary()))
    assert sorted(zip(hi.tolist(), lo.tolist(), strict=True)) == list(
        zip(records.hi.tolist(), records.lo.tolist(), strict=True)
    )


@pytest.mark.parametrize(("floor", "expected"), [(None, [0, 1, 2]), (BASE + 1, [0, 1]), (BASE, [0]), (BASE - 1, [])])
def test_tombstones_above_the_slowest_cursor_wait(
    object_store: ObjectStore, floor: int | None, expected: list[int]
) -> None:
    content = [Row(b"a", 1, retained=1), Row(b"b", 1, retained=2), Row(b"c", 1, retained=3)]
    result = scanned(object_store, part_of(object_store, content), RemovalScanTask(0, tombstones_to=9), floor)
    assert due(object_store, result) == expected
    assert result.oldest_tombstone == (None if len(expected) == 3 else 1 + len(expected))
    assert result.first_tombstone == (None if len(expected) == 3 else BASE + len(expected))


def test_values_do_not_wait_for_cursors(object_store: ObjectStore) -> None:
    result = scanned(object_store, part_of(object_store, [Row(b"a", 1)]), RemovalScanTask(0, values_to=1), BASE - 1)
    assert due(object_store, result) == [0]


def test_deleted_rows_are_neither_due_nor_the_oldest(object_store: ObjectStore) -> None:
    source = part_of(object_store, MIXED, dead=[0, 2])
    result = scanned(object_store, source, RemovalScanTask(0, values_to=11, tombstones_to=150))
    assert due(object_store, result) == [6]
    assert (result.oldest_value, result.oldest_tombstone) == (20, 200)


def test_row_groups_in_which_nothing_can_be_due_are_not_read(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three groups has a value that is due, and the third a tombstone; the first is damaged."""
    monkeypatch.setattr(rows, "GROUP_ROWS", 2)
    content = [
        Row(b"a", 50),
        Row(b"b", 60, retained=70),
        Row(b"c", 10),
        Row(b"d", 50),
        Row(b"e", 50, retained=20),
        Row(b"f", 90),
    ]
    source = part_of(object_store, content)
    groups = RowsReader(object_store, source.rows).groups
    assert len(groups) == 3

    def damaged(number: int) -> Source:
        name = damaged_copy(object_store, source.rows.stored.name, groups[number].start)
        return replace(source, rows=replace(source.rows, stored=replace(source.rows.stored, name=name)))

    scan = RemovalScanTask(0, values_to=10, tombstones_to=20)
    result = scanned(object_store, damaged(0), scan)
    assert due(object_store, result) == [2, 4]
    assert (result.oldest_value, result.oldest_tombstone) == (50, 70)
    assert due(object_store, scanned(object_store, damaged(2), RemovalScanTask(0, values_to=10))) == [2]
    assert due(object_store, scanned(object_store, damaged(1), RemovalScanTask(0, tombstones_to=20))) == [4]
    for number in range(3):
        with pytest.raises(Exception, match="checksum"):
            scanned(object_store, damaged(number), RemovalScanTask(0, reindex=True))


def test_nothing_due_writes_nothing(object_store: ObjectStore) -> None:
    plan = plan_of(object_store, part_of(object_store, MIXED))
    result = run_scan(plan, RemovalScanTask(0, values_to=1, tombstones_to=1))
    assert result.removal_markers is None
    assert list(object_store.list(names.run_prefix(plan.topic_uid, plan.attempt_id))) == []


@pytest.mark.parametrize("hasher", [Xxh3KeyHasher(SEED), CollidingHasher()], ids=["xxh3", "colliding"])
def test_a_part_is_indexed_anew_with_event_times(object_store: ObjectStore, hasher: KeyHasher) -> None:
    """P9: every live row, tombstones flagged; what has no key in the bitmaps."""
    content = [
        *MIXED,
        Row(b"g", 3, event=9),
        Row(b"h", 4, retained=8, event=7),
        Row(None, 5, slot=rows.RowType.WHOLE_ENTRY),
    ]
    plan = plan_of(object_store, part_of(object_store, content, dead=[1]), hasher=hasher)
    result = run_scan(plan, RemovalScanTask(0, reindex=True))
    assert (result.removal_markers, result.oldest_value, result.oldest_tombstone) == (None, 3, 8)
    assert result.index is not None
    records = key_index.read_records(object_store, result.index, HashRange(), events=True)
    assert records.event_time is not None
    by_offset = dict(zip(records.offset.tolist(), records.event_time.tolist(), strict=True))
    live = [number for number, row in enumerate(content) if row.keyed and number != 1]
    assert by_offset == {
        BASE + n | (int(TOMBSTONE) if content[n].tombstone else 0): NO_EVENT_TIME
        if content[n].event is None
        else content[n].event
        for n in live
    }
    hashes = list(zip(records.hi.tolist(), records.lo.tolist(), strict=True))
    assert hashes == sorted(set(hashes))
    unkeyed = {
        kind: list(key_index.read_unkeyed(object_store, result.index, kind)) for kind in key_index.UNKEYED_CLASSES
    }
    assert unkeyed == {"null_keys": [BASE + 4], "chunks": [BASE + 5], "whole_entries": [BASE + 9]}


def test_a_part_that_is_indexed_anew_may_have_rows_that_are_due(object_store: ObjectStore) -> None:
    """The index has them still: it is what was; the markers go in front of it."""
    result = scanned(object_store, part_of(object_store, MIXED), RemovalScanTask(0, reindex=True, values_to=10))
    assert offsets(object_store, result.index, 0) == [0, 1, 2, 3, 6]
    assert due(object_store, result) == [0]


def test_of_a_dirty_ledger_every_row_that_is_too_old_is_named(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phase one decides whether such a value wins. Younger groups are not read."""
    monkeypatch.setattr(rows, "GROUP_ROWS", 3)
    source = part_of(object_store, MIXED)
    plan = plan_of(object_store, source, old=False)
    result = run_scan(plan, RemovalScanTask(0, values_to=10))
    assert (result.index, result.removal_markers, result.oldest_value, result.oldest_tombstone) == (
        None,
        None,
        None,
        None,
    )
    assert result.expired is not None
    assert [list(item) for item in read_deletion_bitmaps(object_store, [result.expired])] == [[0, 2, 3, 4, 5]]
    assert result.expired.name.startswith(names.run_prefix(plan.topic_uid, plan.attempt_id))
    groups = RowsReader(object_store, source.rows).groups
    stored = replace(source.rows.stored, name=damaged_copy(object_store, source.rows.stored.name, groups[2].start))
    moved = plan_of(object_store, replace(source, rows=replace(source.rows, stored=stored)), old=False)
    again = run_scan(moved, RemovalScanTask(0, values_to=10)).expired
    assert again is not None
    assert again.cardinality == 5


keys = st.none() | st.integers(0, 10**6).map(lambda number: b"%d" % number)
drawn_rows = st.builds(
    Row,
    keys,
    st.integers(0, 9),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 9),
    st.sampled_from([rows.RowType.MESSAGE] * 3 + [rows.RowType.CHUNK]),
)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    st.lists(drawn_rows, min_size=1, max_size=20, unique_by=lambda row: row.key or object()),
    st.sets(st.integers(0, 19), max_size=8),
    st.none() | st.integers(-1, 10),
    st.none() | st.integers(-1, 10),
    st.none() | st.integers(BASE - 1, BASE + 20),
)
def test_any_part_gives_what_a_look_at_every_row_gives(
    object_store: ObjectStore,
    content: list[Row],
    dead: set[int],
    values_to: int | None,
    tombstones_to: int | None,
    floor: int | None,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 3)
        source = part_of(object_store, content, sorted(number for number in dead if number < len(content)))
        result = scanned(object_store, source, RemovalScanTask(0, False, values_to, tombstones_to), floor)
    live = {number: row for number, row in enumerate(content) if number not in dead and row.keyed}
    goes = set()
    for number, row in live.items():
        if row.retained is not None:
            passed = floor is None or BASE + number <= floor
            if tombstones_to is not None and row.retained <= tombstones_to and passed:
                goes.add(number)
        elif values_to is not None and row.published <= values_to:
            goes.add(number)
    assert due(object_store, result) == sorted(goes)
    remaining = [row for number, row in live.items() if number not in goes]
    values = [row.published for row in remaining if row.retained is None]
    kept = [row.retained for row in remaining if row.retained is not None]
    first = [BASE + n for n, row in live.items() if n not in goes and row.retained is not None]
    assert not first or (result.first_tombstone is not None and result.first_tombstone <= min(first))
    # never younger than what is there, and exact where rows were checked: so that what is due is found again
    assert result.oldest_value is None or not values or result.oldest_value <= min(values)
    assert not values or result.oldest_value is not None
    assert not kept or (result.oldest_tombstone is not None and result.oldest_tombstone <= min(kept))
    if result.oldest_value is not None and values_to is not None:
        assert result.oldest_value > values_to
