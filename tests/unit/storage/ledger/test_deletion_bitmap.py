"""Bitmaps of deleted rows: read back as written, several in one object, never fewer than were written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from pyroaring import BitMap

from storage.errors import ObjectDamaged, ObjectMissing
from storage.ledger import names
from storage.ledger.deletion_bitmap import encode_bitmaps, live_mask, read_deleted_rows, read_deletion_bitmaps
from storage.ledger.manifest import DeletedRows, Part
from storage.model import LogPosition, MessageId, RowsObject, StoredObject
from storage.objects.interface import ObjectStore
from storage.objects.local import LocalStore
from tests.budgets import examples
from tests.sealed import damaged_copy, new_id

RELATIVE = st.integers(0, 2**32 - 2)
BITMAPS = st.lists(st.sets(RELATIVE, min_size=1, max_size=9).map(BitMap), min_size=1, max_size=5)


def written(store: ObjectStore, bitmaps: list[BitMap]) -> list[DeletedRows]:
    name = names.bitmaps(new_id(), new_id(), 0)
    data, places = encode_bitmaps(name, bitmaps)
    store.put(name, data)
    return places


def part(deleted: DeletedRows | None) -> Part:
    first, last = (LogPosition(offset, MessageId(1, offset)) for offset in (7, 7 + 2**32 - 2))
    rows_object = RowsObject(StoredObject("rows", 1, 0), 1)
    return Part(rows_object, first, last, 2**32 - 2, 0, 0, 0, deleted)


class Counting(LocalStore):
    """Counts reads."""

    reads = 0

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads += 1
        return super().get(name, start, length)


@settings(max_examples=examples(50))
@given(BITMAPS)
def test_bitmaps_that_share_an_object_are_read_back_each_by_itself(
    object_store: ObjectStore, bitmaps: list[BitMap]
) -> None:
    places = written(object_store, bitmaps)
    assert [place.cardinality for place in places] == [len(bitmap) for bitmap in bitmaps]
    assert sum(place.length for place in places) == object_store.size(places[0].name)
    assert [read_deleted_rows(object_store, part(place)) for place in places] == bitmaps


def test_a_part_without_deleted_rows_has_an_empty_bitmap_and_costs_no_read(object_store: ObjectStore) -> None:
    assert isinstance(object_store, LocalStore)
    store = Counting(object_store.root)
    assert read_deleted_rows(store, part(None)) == BitMap()
    assert store.reads == 0


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(st.lists(BITMAPS, min_size=1, max_size=3), st.randoms(use_true_random=False), st.data())
def test_neighbours_come_in_one_read_whatever_their_order(
    object_store: ObjectStore, objects: list[list[BitMap]], shuffled: object, data: st.DataObject
) -> None:
    """All bitmaps of an object are neighbours, so it takes as many reads as there are objects."""
    assert isinstance(object_store, LocalStore)
    store = Counting(object_store.root)
    expected: list[tuple[DeletedRows | None, BitMap]] = [(None, BitMap())]
    for bitmaps in objects:
        expected += zip(written(object_store, bitmaps), bitmaps, strict=True)
    expected = data.draw(st.permutations(expected))
    assert read_deletion_bitmaps(store, [place for place, _ in expected]) == [bitmap for _, bitmap in expected]
    assert store.reads == len(objects)


@pytest.mark.slow
@given(BITMAPS, st.data())
def test_a_flipped_byte_is_damage_of_that_bitmap_alone(
    object_store: ObjectStore, bitmaps: list[BitMap], data: st.DataObject
) -> None:
    places = written(object_store, bitmaps)
    hit = data.draw(st.integers(0, len(places) - 1))
    position = places[hit].offset + data.draw(st.integers(0, places[hit].length - 1))
    name = damaged_copy(object_store, places[hit].name, position, data.draw(st.integers(1, 255)))
    for number, place in enumerate(places):
        moved = part(replace(place, name=name))
        if number == hit:
            with pytest.raises(ObjectDamaged, match=f"bitmaps {name} do not match"):
                read_deleted_rows(object_store, moved)
        else:
            assert read_deleted_rows(object_store, moved) == bitmaps[number]


def test_a_bitmap_that_is_gone_or_cut_off_is_never_an_empty_one(object_store: ObjectStore) -> None:
    (place,) = written(object_store, [BitMap([1, 2, 3])])
    with pytest.raises(ObjectMissing):
        read_deleted_rows(object_store, part(replace(place, name="bitmaps/gone")))
    with pytest.raises(ObjectDamaged):
        read_deleted_rows(object_store, part(replace(place, length=place.length + 1)))
    with pytest.raises(ObjectDamaged):
        read_deleted_rows(object_store, part(replace(place, length=place.length - 1)))


@given(st.sets(RELATIVE, max_size=30), st.sets(RELATIVE, max_size=30), st.integers(0, 2**61))
def test_alive_is_what_the_bitmap_does_not_name(dead: set[int], rows: set[int], first: int) -> None:
    relative = sorted(dead | rows)
    offsets = np.array(relative, dtype=np.int64) + first
    assert live_mask(BitMap(dead), first, offsets).tolist() == [number not in dead for number in relative]


@given(st.integers(0, 3000), st.integers(1, 200), st.sets(st.integers(0, 3000), min_size=1))
def test_alive_of_a_narrow_range_in_a_large_bitmap(start: int, length: int, dead: set[int]) -> None:
    """Offsets far fewer than deleted rows: only the range is checked."""
    offsets = np.arange(start, start + length, dtype=np.int64) + 50
    assert live_mask(BitMap(dead), 50, offsets).tolist() == [n not in dead for n in range(start, start + length)]
