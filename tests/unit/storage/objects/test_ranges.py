"""Many ranges in few requests: whatever is asked for comes, and only what is apart costs a request."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from storage.errors import ObjectDamaged, ObjectMissing
from storage.objects.interface import ObjectStore
from storage.objects.ranges import ByteRange, read_ranges
from tests.sealed import new_id

CONTENT = bytes(range(256))


def read(store: ObjectStore, ranges: list[ByteRange], preferred: int) -> tuple[list[bytes], list[ByteRange]]:
    """The blocks, and the requests that were made."""
    requests: list[ByteRange] = []
    with pytest.MonkeyPatch.context() as patch:
        get = store.get

        def counted(name: str, start: int = 0, length: int | None = None) -> bytes:
            assert length is not None
            requests.append(ByteRange(name, start, length))
            return get(name, start, length)

        patch.setattr(store, "get", counted)
        patch.setattr(store, "preferred_read_bytes", preferred)
        return [bytes(block) for block in read_ranges(store, ranges)], requests


spans = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 240), st.integers(0, 16)), max_size=12)


@given(spans, st.integers(0, 64))
def test_every_block_is_what_one_request_for_it_gives(
    object_store: ObjectStore, drawn: list[tuple[int, int, int]], preferred: int
) -> None:
    """Also for ranges that overlap, are empty, or come in any order, of two objects."""
    names = [f"ranges/{new_id()}" for _ in range(2)]
    for name in names:
        object_store.put(name, CONTENT)
    ranges = [ByteRange(names[which], start, length) for which, start, length in drawn]
    blocks, requests = read(object_store, ranges, preferred)
    assert blocks == [CONTENT[start : start + length] for _, start, length in drawn]
    assert len(requests) <= len(ranges)


@pytest.mark.parametrize(
    ("preferred", "ranges", "requests"),
    [
        (0, [], []),
        (0, [(0, 4), (4, 4), (8, 1)], [(0, 9)]),
        (0, [(8, 1), (0, 4), (4, 4)], [(0, 9)]),
        (0, [(0, 4), (5, 4)], [(0, 4), (5, 4)]),
        (1, [(0, 4), (5, 4)], [(0, 9)]),
        (10, [(0, 4), (14, 4), (29, 4)], [(0, 18), (29, 4)]),
    ],
)
def test_neighbours_share_a_request_up_to_a_gap(
    object_store: ObjectStore, preferred: int, ranges: list[tuple[int, int]], requests: list[tuple[int, int]]
) -> None:
    name = f"ranges/{new_id()}"
    object_store.put(name, CONTENT)
    blocks, created = read(object_store, [ByteRange(name, *item) for item in ranges], preferred)
    assert blocks == [CONTENT[start : start + length] for start, length in ranges]
    assert created == [ByteRange(name, *request) for request in requests]


def test_a_missing_or_short_object_is_an_error(object_store: ObjectStore) -> None:
    name = f"ranges/{new_id()}"
    with pytest.raises(ObjectMissing, match=name):
        read_ranges(object_store, [ByteRange(name, 0, 1)])
    object_store.put(name, b"short")
    with pytest.raises(ObjectDamaged, match=name):
        read_ranges(object_store, [ByteRange(name, 0, 3), ByteRange(name, 3, 3)])
