"""The sparse index: which frames get a record, and that a search never ends too late."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.log.sparse_index import NO_TIME, RECORD_BYTES, FramePosition, IndexFile, SparseIndexBuilder

SEED, FIRST = 99, 1000


def written(path: Path, count: int = 10) -> list[FramePosition]:
    """An index of entries of 60 bytes and 2 offsets, times up and down, a record for every second one."""
    pointers, data = SparseIndexBuilder(FIRST, SEED, spacing_bytes=120), b""
    for n in range(2 * count + 1):
        data += pointers.record(n, FIRST + 2 * n, 64 + 60 * n, publish_time=100 * n if n % 2 else 50 * n)
    path.write_bytes(data)
    return [FramePosition(n, FIRST + 2 * n, 64 + 60 * n, 100 * (n - 1)) for n in range(2, 2 * count + 1, 2)]


def test_records_byte_by_byte(tmp_path: Path) -> None:
    places = written(tmp_path / "index")
    data = (tmp_path / "index").read_bytes()
    assert len(data) == len(places) * RECORD_BYTES == 280
    assert data[:24] == bytes([0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 184, 0, 0, 0, 0, 0, 0, 0, 100])


def test_each_record_is_found_by_what_lies_at_it_and_behind(tmp_path: Path) -> None:
    places = written(tmp_path / "index")
    with IndexFile(tmp_path / "index", FIRST, SEED) as index:
        assert list(index) == places
        for number, place in enumerate(places):
            before = places[number - 1] if number else None
            for offset, expected in [(place.offset - 1, before), (place.offset, place), (place.offset + 3, place)]:
                assert index.last_where(lambda candidate, at=offset: candidate.offset <= at) == expected  # type: ignore[misc]


def test_the_time_is_the_largest_of_all_before(tmp_path: Path) -> None:
    pointers = SparseIndexBuilder(FIRST, SEED, spacing_bytes=1)
    times = [5, 9, 3, 9, 12, 1]
    path = tmp_path / "index"
    path.write_bytes(b"".join(pointers.record(n, FIRST + n, 64 + n, time) for n, time in enumerate(times)))
    with IndexFile(path, FIRST, SEED) as index:
        assert [place.max_time_before for place in index] == [5, 9, 9, 9, 12]
        assert FramePosition.first(FIRST).max_time_before == NO_TIME


@pytest.mark.parametrize("damaged", range(10))
def test_a_damaged_record_makes_a_search_end_earlier_at_most(tmp_path: Path, damaged: int) -> None:
    path = tmp_path / "index"
    places = written(path)
    data = bytearray(path.read_bytes())
    data[damaged * RECORD_BYTES + 5] ^= 4
    path.write_bytes(data)
    with IndexFile(path, FIRST, SEED) as index:
        assert list(index) == [place for number, place in enumerate(places) if number != damaged]
        for number, expected in enumerate(places):
            result = index.last_where(lambda place, at=expected: place.offset <= at.offset)  # type: ignore[misc]
            assert result is None or result in places[: number + 1]
            assert number == damaged or damaged < number or result == expected


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_the_index_of_another_segment_says_nothing(tmp_path: Path, seed: int) -> None:
    places = written(tmp_path / "index")
    with IndexFile(tmp_path / "index", FIRST, seed) as index:
        assert list(index) == (places if seed == SEED else [])


@pytest.mark.parametrize("length", [0, 1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1])
def test_a_torn_index_has_its_whole_records(tmp_path: Path, length: int) -> None:
    places = written(tmp_path / "index")
    (tmp_path / "index").write_bytes((tmp_path / "index").read_bytes()[:length])
    with IndexFile(tmp_path / "index", FIRST, SEED) as index:
        assert index.last_where(lambda _: True) == (places[0] if length >= RECORD_BYTES else None)


def test_no_index_is_an_empty_one(tmp_path: Path) -> None:
    with IndexFile(tmp_path / "none", FIRST, SEED) as index:
        assert index.last_where(lambda _: True) is None
        assert list(index) == []
