"""The promises of storage/objects/interface.py, which every object store keeps, one after the other."""

from __future__ import annotations

import hashlib
import pickle
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import InvalidInput, ObjectDamaged, ObjectExists, ObjectMissing
from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store

RACERS = 8
LARGE_BYTES = 12 << 20


def names(store: ObjectStore, prefix: str = "") -> list[str]:
    return [info.name for info in store.list(prefix)]


def race(store: ObjectStore, name: str, bodies: list[bytes], *, streamed: bool) -> list[int]:
    """Let one thread for each body create the object. Return the threads whose call succeeded."""
    together = threading.Barrier(len(bodies))

    def write(body: bytes) -> bool:
        try:
            if streamed:
                with store.create(name) as writer:
                    writer.write(body)
                    together.wait()
            else:
                together.wait()
                store.put(name, body)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(len(bodies)) as pool:
        return [racer for racer, won in enumerate(pool.map(write, bodies)) if won]


def test_what_was_put_is_got_sized_and_listed(store: ObjectStore) -> None:
    store.put("ledgers/1/data", b"0123456789")
    assert store.get("ledgers/1/data") == b"0123456789"
    assert store.size("ledgers/1/data") == 10
    (info,) = store.list()
    assert (info.name, info.size) == ("ledgers/1/data", 10)
    assert 1_600_000_000_000 < info.modified_ms < 4_000_000_000_000


@pytest.mark.parametrize("data", [b"", bytearray(b"abc"), memoryview(b"abcdef")[1:4], pa.py_buffer(b"xyz")])
def test_put_takes_any_buffer(store: ObjectStore, data: bytes) -> None:
    store.put("an object", data)
    assert store.get("an object") == bytes(memoryview(data))


def test_put_never_replaces(store: ObjectStore) -> None:
    store.put("a", b"first")
    with pytest.raises(ObjectExists, match="object a exists already") as caught:
        store.put("a", b"second")
    assert store.url in caught.value.message
    assert caught.value.remedy
    assert store.get("a") == b"first"


def test_a_writer_never_replaces(store: ObjectStore) -> None:
    store.put("a", b"first")
    with pytest.raises(ObjectExists, match="object a exists already"), store.create("a") as writer:
        writer.write(b"second")
    assert store.get("a") == b"first"


def test_the_same_bytes_are_still_somebody_elses_object(store: ObjectStore) -> None:
    store.put("a", b"same")
    with pytest.raises(ObjectExists):
        store.put("a", b"same")


@pytest.mark.parametrize("streamed", [False, True])
def test_one_of_many_racing_writers_wins(store: ObjectStore, streamed: bool) -> None:
    bodies = [bytes([racer]) * 100_000 for racer in range(RACERS)]
    for turn in range(5):
        name = f"races/{turn}"
        winners = race(store, name, bodies, streamed=streamed)
        assert len(winners) == 1
        assert store.get(name) == bodies[winners[0]]


def test_one_of_many_racing_large_writers_wins(store: ObjectStore) -> None:
    bodies = [bytes([racer]) * (7 << 20) for racer in range(4)]
    winners = race(store, "large", bodies, streamed=True)
    assert len(winners) == 1
    assert store.get("large", 0, 1) == bodies[winners[0]][:1]
    assert store.get("large") == bodies[winners[0]]


def test_a_large_object_is_streamed_whole(store: ObjectStore) -> None:
    pieces = [bytes([piece]) * 1_000_003 for piece in range(LARGE_BYTES // 1_000_003 + 1)]
    with store.create("large/one") as writer:
        for number, piece in enumerate(pieces):
            assert writer.tell() == number * 1_000_003
            assert writer.write(piece) == len(piece)
            writer.flush()
        assert names(store) == []
    assert writer.closed
    assert store.size("large/one") == len(pieces) * 1_000_003
    assert hashlib.sha256(store.get("large/one")).digest() == hashlib.sha256(b"".join(pieces)).digest()
    assert store.get("large/one", 1_000_001, 4) == b"\0\0\1\1"


def test_a_large_put_is_whole(store: ObjectStore) -> None:
    data = bytes(range(256)) * (LARGE_BYTES // 256)
    store.put("large", data)
    assert store.get("large") == data
    with pytest.raises(ObjectExists, match="object large exists"):
        store.put("large", data)


@pytest.mark.parametrize("store", ["local", "versitygw"], indirect=True)  # moto keeps objects in this very process
def test_writing_70_mib_takes_memory_that_does_not_grow_with_it(store: ObjectStore) -> None:
    chunk = bytes(1 << 20)
    tracemalloc.start()
    try:
        with store.create("big") as writer:
            for _ in range(70):
                writer.write(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert store.size("big") == 70 << 20
    assert peak < 40 << 20


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    with store.create("empty"):
        pass
    assert store.size("empty") == 0
    assert store.get("empty") == b""
    assert names(store) == ["empty"]


@pytest.mark.parametrize("size", [10, LARGE_BYTES])
def test_an_abandoned_writer_leaves_nothing(store: ObjectStore, size: int) -> None:
    with pytest.raises(KeyError, match="stop"), store.create("half") as writer:  # noqa: PT012
        writer.write(bytes(size))
        writer.close()
        raise KeyError("stop")
    assert names(store) == []
    with pytest.raises(ObjectMissing):
        store.get("half")
    store.put("half", b"whole")
    assert store.get("half") == b"whole"


def test_nothing_is_written_after_close_or_outside_of_with(store: ObjectStore) -> None:
    writer = store.create("a")
    with pytest.raises(ValueError, match="object a: write outside"):
        writer.write(b"early")
    with writer:
        writer.write(b"kept")
        writer.close()
        with pytest.raises(ValueError, match="object a: write outside"):
            writer.write(b"late")
    assert store.get("a") == b"kept"


def test_parquet_goes_through_a_writer(store: ObjectStore) -> None:
    table = pa.table({"offset": list(range(10_000)), "key": [f"key {number}" for number in range(10_000)]})
    with store.create("table.parquet") as writer, pq.ParquetWriter(writer, table.schema, compression="zstd") as out:
        out.write_table(table, row_group_size=1000)
    assert pq.read_table(pa.BufferReader(store.get("table.parquet"))).equals(table)


def test_parquet_that_fails_leaves_nothing(store: ObjectStore) -> None:
    table = pa.table({"offset": [1, 2, 3]})
    with (  # noqa: PT012
        pytest.raises(KeyError, match="stop"),
        store.create("table.parquet") as writer,
        pa.PythonFile(writer, mode="w") as sink,
        pq.ParquetWriter(sink, table.schema) as out,
    ):
        out.write_table(table)
        raise KeyError("stop")
    assert names(store) == []


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [(0, 3, b"012"), (4, 2, b"45"), (9, 1, b"9"), (7, None, b"789"), (10, None, b""), (10, 0, b""), (3, 0, b"")],
)
def test_ranges(store: ObjectStore, start: int, length: int | None, expected: bytes) -> None:
    store.put("digits", b"0123456789")
    assert store.get("digits", start, length) == expected


@pytest.mark.parametrize(("start", "length"), [(8, 3), (10, 1), (11, None), (11, 0), (0, 11), (500, 2)])
def test_a_range_past_the_end_is_damage(store: ObjectStore, start: int, length: int | None) -> None:
    store.put("digits", b"0123456789")
    with pytest.raises(ObjectDamaged, match="object digits in") as caught:
        store.get("digits", start, length)
    assert f"start={start} length={length}" in caught.value.message
    assert caught.value.remedy


def test_what_is_not_there_is_missing(store: ObjectStore) -> None:
    store.put("folder/there", b"x")
    for name in ("gone", "folder", "folder/there/below"):
        for ask in (store.get, store.size, lambda name: store.get(name, 5, 5), lambda name: store.get(name, 0, 0)):
            with pytest.raises(ObjectMissing, match=f"object {name} does not exist in") as caught:
                ask(name)
            assert caught.value.remedy


def test_delete_is_idempotent(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    store.delete("a/b")
    store.delete("a/b")
    store.delete("never/was")
    assert names(store) == []
    store.put("a/b", b"again")
    assert store.get("a/b") == b"again"


def test_list_ascends_by_whole_names_and_honours_any_prefix(store: ObjectStore) -> None:
    created = ["a/b/c", "a-b", "a.b", "a/b-c", "a/b.c", "a0", "b", "B", "a/é", "a/z", "a/b/a b+c=d%20", "日本/語"]
    for name in created:
        store.put(name, b"x")
    assert names(store) == sorted(created)
    for prefix in ("a", "a/", "a/b", "a/b/", "a/b/c", "b", "nothing", "a/é"):
        assert names(store, prefix) == sorted(name for name in created if name.startswith(prefix))


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", ".tmp/a", "a\nb", "x" * 256, "a/" * 460 + "b"]
)
def test_names_that_are_refused(store: ObjectStore, name: str) -> None:
    for call in (
        lambda: store.put(name, b""),
        lambda: store.create(name),
        lambda: store.get(name),
        lambda: store.size(name),
        lambda: store.delete(name),
    ):
        with pytest.raises(InvalidInput, match="is not allowed") as caught:
            call()
        assert caught.value.remedy


def test_negative_ranges_are_refused(store: ObjectStore) -> None:
    for start, length in ((-1, None), (0, -1)):
        with pytest.raises(InvalidInput, match="object a is negative"):
            store.get("a", start, length)


def test_a_location_travels_and_opens_the_same_store(store: ObjectStore) -> None:
    store.put("a", b"x")
    again = open_store(pickle.loads(pickle.dumps(store.location)))
    try:
        assert again.url == store.url
        assert again.get("a") == b"x"
    finally:
        again.close()


def test_every_store_passes_its_own_check_and_is_clean_after_it(store: ObjectStore) -> None:
    report = store.check_capabilities()
    assert [capability.name for capability in report.capabilities] == [
        "conditional put",
        "conditional put of large objects",
        "ranged get",
        "list after write",
        "delete",
    ]
    assert all(capability.held and capability.finding for capability in report.capabilities)
    assert report.url == store.url
    assert names(store) == []
