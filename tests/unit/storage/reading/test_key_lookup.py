"""Point reads: the same answer as a fold over everything, in few ranged reads, whatever the topic's size (T4)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from storage.errors import ObjectDamaged, ObjectMissing
from storage.ledger import key_index, rows
from storage.ledger.hashing import Hashes, KeyHasher, Xxh3KeyHasher
from storage.ledger.key_index import MARKER, NO_EVENT_TIME, TOMBSTONE, HashRange, IndexRecords, encode_index
from storage.ledger.manifest import DeletedRows, Manifest, Part, write_manifest
from storage.log.bulk_append import INPUT_SCHEMA, to_ledger_rows
from storage.metadata.records import CompactedLedgerRecord, TopicRecord, TopicSnapshot
from storage.model import (
    IndexLocation,
    LedgerRecord,
    LogPosition,
    Message,
    MessageId,
    RowsObject,
    StoredObject,
    TopicName,
)
from storage.objects.interface import ObjectStore
from storage.objects.local import LocalStore
from storage.reading.key_lookup import point_read
from tests.budgets import examples
from tests.sealed import NOW, SEED, CollidingHasher, damaged_copy, new_id, seal, seal_history
from tests.segments import NO_LOG
from tests.strategies import contents

HASHER = Xxh3KeyHasher(SEED)
TOPIC = TopicRecord(1, "0" * 32, TopicName.parse("t"), SEED, 1, 1, 10**9, NOW)

Row = dict[str, Any]
Record = tuple[bytes, int, int]
"""Key, offset with flags, event time."""


def level(store: ObjectStore, records: Sequence[Record], bits: int, hasher: KeyHasher, events: bool) -> Any:
    """One index level, cut into 2^bits hash ranges."""
    hi, lo = hasher(pa.array([key for key, _, _ in records], pa.binary()))
    offset = np.array([flagged for _, flagged, _ in records], dtype=np.uint64)
    times = np.array([time for _, _, time in records], dtype=np.int64)
    order = np.lexsort((lo, hi))
    locations = []
    for prefix in range(1 << bits):
        inside = order[HashRange(prefix, bits).slice_of(hi[order])]
        area = (offset[inside], times[inside]) if events else (None, None)
        data, directory = encode_index(
            IndexRecords(hi[inside], lo[inside], offset[inside], *area), HashRange(prefix, bits)
        )
        if len(inside):
            name = f"levels/{new_id()}"
            store.put(name, b"another" + data)
            locations.append(IndexLocation(name, 7, len(data), directory.encode()))
    return tuple(locations)


def part_of(store: ObjectStore, table: pa.Table, deleted: DeletedRows | None = None) -> Part:
    ledger = seal(store, table)
    first, last = (
        LogPosition(row["offset"], MessageId(row["ledger_id"], row["entry_id"]))
        for row in (table.slice(at, 1).to_pylist()[0] for at in (0, len(table) - 1))
    )
    rows_object = ledger.rows_object
    return Part(rows_object, first, last, len(table), 1, NOW, NOW, deleted)


def snapshot_of(
    store: ObjectStore, tail: Sequence[LedgerRecord], parts: Sequence[Part], levels: Any, horizon: int, by_event: bool
) -> TopicSnapshot:
    end = LogPosition(horizon, MessageId(5, horizon))
    manifest = Manifest(
        str(TOPIC.name), TOPIC.uid, 6, 1, 1, NOW, end, tuple(parts), tuple(levels), NOW, {"event_time_order": by_event}
    )
    stored = write_manifest(store, f"manifests/{new_id()}", manifest)
    compacted = CompactedLedgerRecord(6, 1, end, stored, 1, 1, 1, end.message_id, "a" * 32, NOW)
    return TopicSnapshot(TOPIC, tuple(tail), None, compacted, None)


def newest(history: list[Row], by_event: bool) -> dict[bytes, Row]:
    """The winner of each key, tombstones included: the model."""
    winners: dict[bytes, Row] = {}
    for row in history:
        key, time = row["key"], row["event_time"]
        if key is not None and by_event and key in winners:
            before = winners[key]["event_time"]
            if (NO_EVENT_TIME if time is None else time) < (NO_EVENT_TIME if before is None else before):
                continue
        if key is not None:
            winners[key] = row
    return winners


def compact(
    store: ObjectStore, table: pa.Table, hasher: KeyHasher, by_event: bool, markers: bool
) -> tuple[list[Part], Any]:
    """Compact rows as a run does: into one part with the winners, and one level. `markers`: deleted keys are kept."""
    winners = newest(table.to_pylist(), by_event)
    live = sorted(row["offset"] for row in winners.values() if row["payload"])
    records = []
    for key, row in winners.items():
        time = NO_EVENT_TIME if row["event_time"] is None else row["event_time"]
        if row["payload"]:
            records.append((key, row["offset"], time))
        elif markers or by_event:
            records.append((key, row["offset"] | int(TOMBSTONE | MARKER), time))
    parts = [part_of(store, table.filter(pa.array(np.isin(table.column("offset").to_numpy(), live))))] if live else []
    return parts, [level(store, records, 1, hasher, by_event)] if records else []


def offset_and_payload(message: Message | None) -> tuple[int, bytes | None] | None:
    return None if message is None else (message.offset, message.payload)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    st.lists(contents(max_size=12), min_size=1, max_size=5),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.sampled_from([HASHER, CollidingHasher()]),
)
def test_a_point_read_is_a_fold_over_all(
    object_store: ObjectStore,
    history: list[pa.Table],
    compacted: int,
    by_event: bool,
    markers: bool,
    hasher: KeyHasher,
) -> None:
    """Some ledgers compacted, the others the tail; by offset and by event time (P9); hashes that share halves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "FENCE_RECORDS", 2)
        patch.setattr(rows, "GROUP_ROWS", 3)
        table, ledgers = seal_history(object_store, history, hasher)
        old, tail = ledgers[:compacted], ledgers[compacted:]
        if old:
            horizon = old[-1].last_offset
            parts, levels = compact(object_store, table.slice(0, horizon + 1), hasher, by_event, markers)
            snapshot = snapshot_of(object_store, ledgers, parts, levels, horizon, by_event)
        else:
            by_event = False
            snapshot = TopicSnapshot(TOPIC, tuple(tail), None, None, None)
    winners = newest(table.to_pylist(), by_event)
    for key in [*winners, b"a missing key", b""]:
        winner = winners.get(key)
        message = offset_and_payload(point_read(object_store, lambda: snapshot, hasher, key, NOW, NO_LOG))
        if winner is None or winner["payload"] or (winner["offset"] > (horizon if old else -1)):
            assert message == (None if winner is None else (winner["offset"], winner["payload"]))
        else:
            assert message is None, "the tombstone has left the compacted ledger"


class CountingStore(LocalStore):
    """Counts ranged reads, and those of a whole object apart."""

    def __init__(self, store: ObjectStore) -> None:
        assert isinstance(store, LocalStore)
        super().__init__(store.root)
        self.reset()

    def reset(self) -> None:
        self.reads: list[tuple[str, int]] = []
        self.whole: list[str] = []

    def _count(self, name: str, length: int | None) -> None:
        size = super().size(name)
        self.reads.append((name, size if length is None else length))
        if length in (None, size):
            self.whole.append(name)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self._count(name, length)
        return super().get(name, start, length)

    def read_into(self, name: str, start: int, target: memoryview) -> None:
        self._count(name, len(target))
        super().read_into(name, start, target)

    def size(self, name: str) -> int:
        self.reads.append((name, 0))
        return super().size(name)

    def list(self, prefix: str = "") -> Any:
        raise AssertionError("a point read lists nothing")


PARTS, ROWS = 1024, 4


def key_of(number: int) -> bytes:
    return b"key-%06d" % number


def row_of(number: int) -> int:
    """The offset of the number-th row: four rows a part, with gaps between parts."""
    return number // ROWS * 10 + number % ROWS


def table_at(numbers: Sequence[int], tombstones: Collection[int]) -> pa.Table:
    """The rows of those numbers, each with its own key and a value that names it, but for tombstones."""
    drawn = [{"key": key_of(n), "payload": None if n in tombstones else b"value-%d" % n} for n in numbers]
    content = to_ledger_rows(pa.Table.from_pylist(drawn, schema=INPUT_SCHEMA), 5, 0, NOW)
    offsets = pa.array([row_of(number) for number in numbers], pa.int64())
    return content.set_column(0, rows.SCHEMA.field("offset"), offsets).cast(rows.SCHEMA)


@pytest.fixture(scope="module", params=[False, True], ids=["offset order", "event-time order"])
def large(request: pytest.FixtureRequest, object_store: ObjectStore) -> tuple[TopicSnapshot, dict[bytes, bytes | None]]:
    """1,024 parts with 4,096 keys, four levels of several fences a hash range, three ledgers behind; expected values.

    Key number n is in row n. Newer levels moved some keys to other rows (which replace those rows' own keys), deleted
    some and let some expire. Only parts that are read are there, the others have names alone.
    """
    by_event, random, everything = request.param, np.random.default_rng(4), PARTS * ROWS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "FENCE_RECORDS", 8)
        oldest = {number: number for number in range(everything)}
        newer: list[dict[int, int]] = []
        keys = random.choice(everything, 12, replace=False).tolist()
        for size in (1000, 250, 64):
            others = random.choice(everything, size, replace=False).tolist()
            newer.insert(0, dict.fromkeys(others, -1))
        for level_, number in zip([0, 1, 2, 0, 1, 2], keys, strict=False):
            newer[level_][number] = -1
        newest_, second, third = newer
        flags = {number: int(MARKER) if number % 2 else int(TOMBSTONE | MARKER) for number in third}
        flags |= {number: int(TOMBSTONE) for number in second}
        records = [
            [(key_of(n), row_of(n), 9) for n in newest_],
            [(key_of(n), row_of(n) | int(TOMBSTONE), 8) for n in second],
            [(key_of(n), row_of(n) | flags[n], 7) for n in third],
            [(key_of(n), row_of(n), 6) for n in oldest],
        ]
        levels = [
            level(object_store, part, bits, HASHER, by_event) for part, bits in zip(records, (3, 0, 2, 5), strict=True)
        ]
        expected: dict[bytes, bytes | None] = {}
        for number in keys:
            is_deleted = number not in newest_ and (number in second or number in third)
            expected[key_of(number)] = None if is_deleted else b"value-%d" % number
        tail = [
            [(keys[-1], b"new")],
            [(keys[-2], None), (keys[-3], b"old")],
            [(keys[-3], b"newest"), (10**6, b"x")],
        ]
        first_offset = row_of(everything)
        ledgers = []
        for number, messages in enumerate(tail):
            drawn = [{"key": key_of(n), "payload": payload, "event_time": 10} for n, payload in messages]
            content = pa.Table.from_pylist(drawn, schema=INPUT_SCHEMA)
            ledgers.append(seal(object_store, to_ledger_rows(content, 7 + number, first_offset, NOW)))
            first_offset += len(messages)
            expected |= {key_of(n): payload for n, payload in messages}
        expected[b"a missing key"] = None
        needed = {number // ROWS for number in keys}
        parts = []
        for number in range(PARTS):
            numbers = range(number * ROWS, (number + 1) * ROWS)
            deleted = DeletedRows("bitmaps that are not there", 20 * number, 20, 1, 0)
            if number in needed:
                parts.append(part_of(object_store, table_at(numbers, second.keys() - newest_.keys()), deleted))
            else:
                first, last = (LogPosition(row_of(n), MessageId(5, row_of(n))) for n in (numbers[0], numbers[-1]))
                rows_object = RowsObject(StoredObject(f"not there/{number}", 9000, 1), 900)
                parts.append(Part(rows_object, first, last, ROWS, 1, NOW, NOW, deleted))
    return snapshot_of(object_store, ledgers, parts, levels, row_of(everything) - 1, by_event), expected


@pytest.mark.slow
def test_a_point_read_takes_few_ranged_reads_whatever_the_size(
    object_store: ObjectStore, large: tuple[TopicSnapshot, dict[bytes, bytes | None]]
) -> None:
    snapshot, expected = large
    assert snapshot.compacted is not None
    store, seen = CountingStore(object_store), set()
    largest = max(location.length for level_ in manifest_of(object_store, snapshot).index for location in level_)
    for key, value in expected.items():
        store.reset()
        message = point_read(store, lambda: snapshot, HASHER, key, NOW, NO_LOG)
        assert (None if message is None else message.payload) == value
        assert len(store.reads) <= 3 + 2 * (4 + len(snapshot.ledgers))
        assert [name for name in store.whole if not name.startswith("topics/")] == [snapshot.compacted.manifest.name]
        assert all(length < largest / 5 for name, length in store.reads if name.startswith("levels/")), "one fence each"
        seen.add(len(store.reads))
    assert None in expected.values()
    assert len(seen) > 3, "keys of all levels were asked for"


def one_key(store: ObjectStore, hasher: KeyHasher = HASHER) -> TopicSnapshot:
    """A topic with one key, `k`, in its compacted ledger and nothing behind."""
    content = pa.Table.from_pylist([{"key": b"k", "payload": b"v"}], schema=INPUT_SCHEMA)
    table = to_ledger_rows(content, 5, 0, NOW)
    return snapshot_of(store, [], [part_of(store, table)], [level(store, [(b"k", 0, 0)], 0, hasher, False)], 0, False)


class OneHash:
    """A hash by which all keys are one."""

    def __call__(self, keys: pa.BinaryArray) -> tuple[Hashes, Hashes]:
        return np.full(len(keys), 7, dtype=np.uint64), np.full(len(keys), 8, dtype=np.uint64)


def test_the_row_of_another_key_is_never_given_for_it(object_store: ObjectStore) -> None:
    snapshot = one_key(object_store, OneHash())
    assert offset_and_payload(point_read(object_store, lambda: snapshot, OneHash(), b"k", NOW, NO_LOG)) == (0, b"v")
    with pytest.raises(ObjectDamaged, match=r"offset 0 in .*00000000000000070000000000000008.*share a 128-bit hash"):
        point_read(object_store, lambda: snapshot, OneHash(), b"another", NOW, NO_LOG)


def manifest_of(store: ObjectStore, snapshot: TopicSnapshot) -> Manifest:
    assert snapshot.compacted is not None
    return Manifest.decode(store.get(snapshot.compacted.manifest.name), "m")


def with_manifest(store: ObjectStore, snapshot: TopicSnapshot, manifest: Manifest) -> TopicSnapshot:
    assert snapshot.compacted is not None
    stored = write_manifest(store, f"manifests/{new_id()}", manifest)
    return replace(snapshot, compacted=replace(snapshot.compacted, manifest=stored))


@pytest.mark.parametrize("kind", ["manifest", "index", "footer", "row group"])
def test_damage_is_an_error_that_names_the_object_and_the_compacted_ledger(
    object_store: ObjectStore, kind: str
) -> None:
    snapshot = one_key(object_store)
    assert snapshot.compacted is not None
    manifest = manifest_of(object_store, snapshot)
    (part,), ((index,),) = manifest.parts, manifest.index
    if kind == "manifest":
        name = damaged_copy(object_store, snapshot.compacted.manifest.name, 3)
        stored = replace(snapshot.compacted.manifest, name=name)
        damaged = replace(snapshot, compacted=replace(snapshot.compacted, manifest=stored))
    elif kind == "index":
        name = damaged_copy(object_store, index.name, index.offset)
        damaged = with_manifest(object_store, snapshot, replace(manifest, index=((replace(index, name=name),),)))
    else:
        position = part.rows.stored.size - 9 if kind == "footer" else 5
        name = damaged_copy(object_store, part.rows.stored.name, position)
        rows_object = replace(part.rows, stored=replace(part.rows.stored, name=name))
        damaged = with_manifest(object_store, snapshot, replace(manifest, parts=(replace(part, rows=rows_object),)))
    with pytest.raises(ObjectDamaged, match=f"compacted ledger 6 of {TOPIC.name} cannot be read: .*{name}") as raised:
        point_read(object_store, lambda: damaged, HASHER, b"k", NOW, NO_LOG)
    assert "__compaction" in raised.value.remedy


def test_an_index_that_names_what_is_not_there_is_damage(object_store: ObjectStore) -> None:
    snapshot = one_key(object_store)
    manifest = manifest_of(object_store, snapshot)
    no_part = with_manifest(object_store, snapshot, replace(manifest, parts=()))
    with pytest.raises(ObjectDamaged, match="names offset 0, which no part"):
        point_read(object_store, lambda: no_part, HASHER, b"k", NOW, NO_LOG)
    wrong = replace(manifest, index=(level(object_store, [(b"k", 1, 0)], 0, HASHER, False),))
    wrong = replace(wrong, horizon=replace(wrong.horizon, offset=9), parts=(long(manifest.parts[0]),))
    no_row = with_manifest(object_store, snapshot, wrong)
    with pytest.raises(ObjectDamaged, match="has no row of offset 1"):
        point_read(object_store, lambda: no_row, HASHER, b"k", NOW, NO_LOG)


def long(part: Part) -> Part:
    return replace(part, last=replace(part.last, offset=5))


def test_a_generation_that_is_gone_is_looked_up_again(object_store: ObjectStore) -> None:
    """R8: on a missing object the generation is read again before damage is reported."""
    serving = one_key(object_store)
    assert serving.compacted is not None
    gone_manifest = StoredObject("manifests/gone", 9, 9)
    without_manifest = replace(serving, compacted=replace(serving.compacted, ledger_id=3, manifest=gone_manifest))
    seen = iter([without_manifest, serving])
    assert offset_and_payload(point_read(object_store, lambda: next(seen), HASHER, b"k", NOW, NO_LOG)) == (0, b"v")
    with pytest.raises(ObjectMissing, match=r"compacted ledger 3 .*manifests/gone"):
        point_read(object_store, lambda: without_manifest, HASHER, b"k", NOW, NO_LOG)
