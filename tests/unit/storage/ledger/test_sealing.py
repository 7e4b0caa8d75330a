"""Sealing against plain Python: the ledger's row tells what its rows are, the index names the newest of each key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from storage.ledger import key_index, names, rows
from storage.ledger.chunk_table import chunk_offsets, read_ledger_chunks
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.key_index import HashRange
from storage.ledger.names import ObjectKind
from storage.ledger.rows_file import RowsReader
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore
from tests.budgets import examples
from tests.sealed import NOW, SEED, CollidingHasher, seal
from tests.strategies import rows_tables


def hash_of(key: bytes) -> tuple[int, int]:
    hi, lo = Xxh3KeyHasher(SEED)(pa.array([key], pa.binary()))
    return int(hi[0]), int(lo[0])


def newest_records(table: pa.Table) -> list[tuple[int, int, int]]:
    """(high, low, offset with its tombstone flag) of the newest message of each key, in hash order."""
    newest: dict[bytes, int] = {}
    for row in table.to_pylist():
        if row["key"] is not None and row["slot"] == rows.RowType.MESSAGE:
            newest[row["key"]] = row["offset"] | (0 if row["payload"] else int(key_index.TOMBSTONE))
    return sorted((*hash_of(key), offset) for key, offset in newest.items())


def event_records(table: pa.Table) -> list[tuple[int, int, int, int]]:
    """(high, low, offset with its flag, event time) of the event-time winner of each key, in hash order."""
    winners: dict[bytes, tuple[int, int]] = {}
    for row in table.to_pylist():
        if row["key"] is not None and row["slot"] == rows.RowType.MESSAGE:
            time = key_index.NO_EVENT_TIME if row["event_time"] is None else row["event_time"]
            if row["key"] not in winners or time >= winners[row["key"]][1]:
                winners[row["key"]] = (row["offset"] | (0 if row["payload"] else int(key_index.TOMBSTONE)), time)
    return sorted((*hash_of(key), *winner) for key, winner in winners.items())


def unkeyed(store: ObjectStore, index: IndexLocation) -> dict[str, list[int]]:
    return {name: list(key_index.read_unkeyed(store, index, name)) for name in key_index.UNKEYED_CLASSES}


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(rows_tables(ledgers=1))
def test_a_sealed_ledger_is_what_its_row_says(object_store: ObjectStore, table: pa.Table) -> None:
    ledger_id = table.column("ledger_id")[0].as_py()
    ledger = seal(object_store, table, partition=3)
    drawn = table.to_pylist()

    read = list(RowsReader(object_store, ledger.rows_object))
    assert pa.concat_tables(read).to_pylist() == drawn
    assert (ledger.ledger_id, ledger.created_at, ledger.messages) == (ledger_id, NOW, len(drawn))
    assert (ledger.first_offset, ledger.last_offset) == (drawn[0]["offset"], drawn[-1]["offset"])
    assert str(ledger.last_message_id).startswith(f"{ledger_id}:{drawn[-1]['entry_id']}:3")
    assert ledger.last_message_id.batch_index == drawn[-1]["batch_index"]
    assert ledger.entries == len({row["entry_id"] for row in drawn})
    assert ledger.min_publish_time == min(row["publish_time"] for row in drawn)
    assert ledger.max_publish_time == max(row["publish_time"] for row in drawn)
    assert ledger.logical_bytes == sum(
        len(row["key"] or b"")
        + len(row["payload"] or b"")
        + sum(len(text.encode()) for pair in row["properties"] or () for text in pair)
        for row in drawn
    )

    index = key_index.read_records(object_store, ledger.index, HashRange(), events=True)
    newest = list(zip(index.hi.tolist(), index.lo.tolist(), index.offset.tolist(), strict=True))
    assert newest == newest_records(table)
    if index.event_offset is not None and index.event_time is not None:
        winners = zip(
            index.hi.tolist(), index.lo.tolist(), index.event_offset.tolist(), index.event_time.tolist(), strict=True
        )
        assert list(winners) == event_records(table)
    else:
        keyed = [row for row in drawn if row["key"] is not None and row["slot"] == rows.RowType.MESSAGE]
        assert all(row["event_time"] is None for row in keyed)

    assert unkeyed(object_store, ledger.index) == {
        "null_keys": [r["offset"] for r in drawn if r["slot"] == rows.RowType.MESSAGE and r["key"] is None],
        "whole_entries": [r["offset"] for r in drawn if r["slot"] == rows.RowType.WHOLE_ENTRY],
        "chunks": [r["offset"] for r in drawn if r["slot"] == rows.RowType.CHUNK and not belongs(r)],
    }
    chunks = read_ledger_chunks(object_store, ledger.index)
    chunk_rows = zip(chunk_offsets(chunks).tolist(), chunks["index"].tolist(), chunks["count"].tolist(), strict=True)
    expected = [r for r in drawn if r["slot"] == rows.RowType.CHUNK and belongs(r)]
    assert list(chunk_rows) == [(r["offset"], r["chunk_index"], r["chunk_count"]) for r in expected]


def belongs(row: dict[str, Any]) -> bool:
    """Return whether a chunk can be of a message."""
    index, count = row["chunk_index"], row["chunk_count"]
    return row["chunk_uuid"] is not None and index is not None and count is not None and index < count


def simple_rows(count: int, **columns: list[object]) -> pa.Table:
    """Rows 0 … count-1 of ledger 1 without keys, but for what `columns` gives."""
    defaults: dict[str, list[object]] = {name: [None] * count for name in rows.SCHEMA.names}
    for name in ("publish_time", "batch_size", "codec", "slot"):
        defaults[name] = [0] * count
    defaults |= {"offset": list(range(count)), "entry_id": list(range(count)), "ledger_id": [1] * count}
    defaults |= {"batch_index": [-1] * count, "key_base64": [False] * count}
    return pa.table(defaults | columns, schema=rows.SCHEMA)


def test_names_carry_the_ledger_and_the_attempt(object_store: ObjectStore) -> None:
    ledger = seal(object_store, simple_rows(1))
    parsed = [names.parse(ledger.rows.name), names.parse(ledger.index.name)]
    assert [(item.kind, item.number, item.attempt_id) for item in parsed if item] == [
        (ObjectKind.LEDGER_ROWS, 1, ledger.attempt_id),
        (ObjectKind.LEDGER_INDEX, 1, ledger.attempt_id),
    ]


@pytest.mark.parametrize(("payload", "tombstone"), [(None, True), (b"", True), (b"\x00", False)])
def test_an_empty_or_null_payload_is_a_tombstone(
    object_store: ObjectStore, payload: bytes | None, tombstone: bool
) -> None:
    ledger = seal(object_store, simple_rows(2, key=[b"k", b"k"], payload=[b"v", payload]))
    records = key_index.read_records(object_store, ledger.index, HashRange())
    assert records.offset.tolist() == [1 | (1 << 63 if tombstone else 0)]


def test_a_late_tombstone_loses_by_event_time_and_wins_by_offset(object_store: ObjectStore) -> None:
    ledger = seal(object_store, simple_rows(2, key=[b"k", b"k"], payload=[b"v", None], event_time=[9, 8]))
    records = key_index.read_records(object_store, ledger.index, HashRange(), events=True)
    assert records.offset.tolist() == [1 | 1 << 63]
    assert records.event_offset is not None
    assert records.event_time is not None
    assert (records.event_offset.tolist(), records.event_time.tolist()) == ([0], [9])


def test_a_message_without_event_time_is_older_than_any_with_one(object_store: ObjectStore) -> None:
    ledger = seal(object_store, simple_rows(2, key=[b"k", b"k"], payload=[b"v", b"w"], event_time=[-(2**62), None]))
    records = key_index.read_records(object_store, ledger.index, HashRange(), events=True)
    assert records.event_offset is not None
    assert (records.offset.tolist(), records.event_offset.tolist()) == ([1], [0])


def test_keys_that_share_half_their_hash_are_different_keys(object_store: ObjectStore) -> None:
    keys: list[object] = [b"%d" % (number % 40) for number in range(100)]
    table = simple_rows(100, key=keys, payload=[b"v"] * 100)
    ledger = seal(object_store, table, CollidingHasher())
    records = key_index.read_records(object_store, ledger.index, HashRange())
    assert len(set(records.hi.tolist())) <= 4
    assert sorted(records.offset.tolist()) == list(range(60, 100))
