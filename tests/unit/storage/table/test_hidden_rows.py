"""Hidden rows of a part: the positions of offsets and of rows that are no messages, and statistics of the footer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from storage.errors import ObjectDamaged
from storage.ledger import rows
from storage.ledger.rows_file import RowsReader, RowsWriter
from storage.model import RowsObject
from storage.objects.interface import ObjectStore
from storage.table import hidden_rows
from tests.sealed import new_id

RANDOM = np.random.default_rng(4)
SPARSE = np.sort(RANDOM.choice(4000, 300, replace=False)).astype(np.int64)


def write(store: ObjectStore, offsets: np.ndarray, **columns: list[Any]) -> RowsObject:
    """Rows of a part in groups of 100."""
    count = len(offsets)
    values = {"ledger_id": 1, "batch_index": -1, "batch_size": 0, "key": b"k", "key_base64": False, "payload": b"v"}
    values |= {"publish_time": 5, "codec": 0, "slot": 0}
    drawn = {"offset": offsets, "entry_id": offsets, **columns}
    table = pa.table(
        [
            pa.array(drawn[field.name], field.type)
            if field.name in drawn
            else rows.constant_column(values.get(field.name), field.name, count)
            for field in rows.SCHEMA
        ],
        schema=rows.SCHEMA,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 100)
        with RowsWriter(store, f"rows/{new_id()}") as writer:
            writer.write(table, rows.logical_sizes(table))
    assert writer.result is not None
    return writer.result


@pytest.mark.parametrize(
    "offsets", [SPARSE, np.arange(700, 1000), np.r_[10:100, 500:650, 651:711]], ids=["sparse", "dense", "both"]
)
def test_positions_are_those_of_the_offsets(object_store: ObjectStore, offsets: np.ndarray) -> None:
    reader = RowsReader(object_store, write(object_store, offsets.astype(np.int64)))
    for count in (0, 1, 40, 300):
        positions = np.sort(RANDOM.choice(300, count, replace=False))
        assert hidden_rows.positions_of_offsets(object_store, reader, offsets[positions]) == BitMap(positions.tolist())


def test_an_offset_without_a_row_is_damage(object_store: ObjectStore) -> None:
    reader = RowsReader(object_store, write(object_store, SPARSE))
    missing = np.setdiff1d(np.arange(SPARSE[0], SPARSE[-1]), SPARSE)
    for offset in (*missing[::500], SPARSE[-1] + 1):
        with pytest.raises(ObjectDamaged, match="the column offset"):
            hidden_rows.positions_of_offsets(object_store, reader, np.array([offset]))


def test_a_changed_byte_in_the_times_of_tombstones_never_hides_other_rows(object_store: ObjectStore) -> None:
    """Nor is that column read with the checksum of its row group."""
    kept = [int(number) if RANDOM.random() < 0.4 else None for number in range(300)]
    written = write(object_store, SPARSE, retained_at=kept)
    expected = hidden_rows.positions_of_unshown_rows(object_store, RowsReader(object_store, written))
    assert expected == BitMap([number for number, time in enumerate(kept) if time is not None])
    data, refused = object_store.get(written.stored.name), 0
    group = RowsReader(object_store, written).metadata.row_group(1)
    columns = [group.column(number) for number in range(group.num_columns)]
    (column,) = (each for each in columns if each.path_in_schema == "retained_at")
    start = column.data_page_offset
    for at in range(start, start + column.total_compressed_size):
        changed = bytearray(data)
        changed[at] ^= 0x10
        name = f"rows/{new_id()}"
        object_store.put(name, bytes(changed))
        reader = RowsReader(object_store, replace(written, stored=replace(written.stored, name=name)))
        try:
            assert hidden_rows.positions_of_unshown_rows(object_store, reader) == expected
        except ObjectDamaged:
            refused += 1
    assert refused > 30


def test_a_changed_byte_in_the_column_of_offsets_never_gives_other_positions(object_store: ObjectStore) -> None:
    """The column is read without the checksum of its row group."""
    written = write(object_store, SPARSE)
    data = object_store.get(written.stored.name)
    column = RowsReader(object_store, written).metadata.row_group(1).column(0)
    start = column.data_page_offset
    expected, refused = BitMap(range(100, 200)), 0
    for at in range(start, start + column.total_compressed_size, 3):
        changed = bytearray(data)
        changed[at] ^= 0x55
        name = f"rows/{new_id()}"
        object_store.put(name, bytes(changed))
        reader = RowsReader(object_store, replace(written, stored=replace(written.stored, name=name)))
        try:
            assert hidden_rows.positions_of_offsets(object_store, reader, SPARSE[100:200]) == expected
        except ObjectDamaged:
            refused += 1
    assert refused > 30


def test_rows_that_are_no_messages_and_retained_tombstones_are_hidden(object_store: ObjectStore) -> None:
    slots, kept = [0] * 300, [None] * 300
    slots[150], slots[151], kept[7], kept[299] = 2, 3, 1, 1  # type: ignore[call-overload]
    reader = RowsReader(object_store, write(object_store, SPARSE, slot=slots, retained_at=kept))
    assert hidden_rows.positions_of_unshown_rows(object_store, reader) == BitMap([7, 150, 151, 299])
    plain = RowsReader(object_store, write(object_store, SPARSE))
    assert hidden_rows.positions_of_unshown_rows(object_store, plain) == BitMap()
    entries = RowsReader(object_store, write(object_store, SPARSE, slot=[2] * 100 + [0] * 200))
    assert hidden_rows.positions_of_unshown_rows(object_store, entries) == BitMap(range(100))


def test_retained_tombstones_are_found_without_the_other_columns(object_store: ObjectStore) -> None:
    kept = [None if number % 3 else number for number in range(300)]
    payloads = [RANDOM.bytes(2000) for _ in range(300)]
    reader = RowsReader(object_store, write(object_store, SPARSE, retained_at=kept, payload=payloads))
    with mock.patch.object(object_store, "get", wraps=object_store.get) as get:
        assert hidden_rows.positions_of_unshown_rows(object_store, reader) == BitMap(range(0, 300, 3))
    assert sum(call.args[2] for call in get.call_args_list) < reader.stored.size / 100


def test_statistics_of_the_footer(object_store: ObjectStore) -> None:
    times = [None, *range(-5, 294)]
    reader = RowsReader(object_store, write(object_store, SPARSE, event_time=times))
    known = hidden_rows.part_statistics(reader)
    ids = {
        rows.FIELD_IDS[name]
        for name in ("offset", "ledger_id", "entry_id", "batch_index", "publish_time", "event_time")
    }
    lower, upper = ({pair["key"]: pair["value"] for pair in known[name]} for name in ("lower_bounds", "upper_bounds"))
    assert lower.keys() == upper.keys() == ids
    offset, event_time, batch_index = (rows.FIELD_IDS[name] for name in ("offset", "event_time", "batch_index"))
    assert lower[offset] == int(SPARSE[0]).to_bytes(8, "little")
    assert upper[offset] == int(SPARSE[-1]).to_bytes(8, "little")
    assert (lower[event_time], upper[event_time]) == (
        (-5).to_bytes(8, "little", signed=True),
        (293).to_bytes(8, "little"),
    )
    assert lower[batch_index] == b"\xff\xff\xff\xff"
    counts = {pair["key"]: pair["value"] for pair in known["null_value_counts"]}
    assert (counts[offset], counts[event_time], counts[rows.FIELD_IDS["sequence_id"]]) == (0, 1, 300)
    assert known["split_offsets"] == [group.start for group in reader.groups]
    assert {pair["key"] for pair in known["value_counts"]} == {1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 14, 15}
