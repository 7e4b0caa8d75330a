"""Rows objects: what is written is read, column by column; what was changed since is an error, never other rows."""

from __future__ import annotations

import gc
import io
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from storage.errors import ObjectDamaged, ObjectExists, ObjectMissing, StorageFull
from storage.ledger import rows
from storage.ledger.rows_file import RowsReader, RowsWriter
from storage.model import RowsObject
from storage.objects.interface import ObjectStore, ObjectWriter
from tests.sealed import damaged_copy, new_id
from tests.strategies import rows_tables


def write(store: ObjectStore, *tables: pa.Table) -> RowsObject:
    with RowsWriter(store, f"rows/{new_id()}") as writer:
        for table in tables:
            writer.write(table, rows.logical_sizes(table))
    assert writer.result is not None
    return writer.result


def read(store: ObjectStore, written: RowsObject) -> pa.Table:
    return pa.concat_tables([rows.SCHEMA.empty_table(), *RowsReader(store, written)])


def small_rows(count: int, **columns: object) -> pa.Table:
    """Rows 0 … count-1 of ledger 1; `columns` gives the value of a column in every row."""
    values = {"ledger_id": 1, "batch_index": -1, "batch_size": 0, "key": b"k", "key_base64": False, "payload": b"v"}
    values |= {"publish_time": 5, "codec": 0, "slot": 0, **columns}
    numbered = {"offset": pa.array(range(count), pa.int64()), "entry_id": pa.array(range(count), pa.int64())}
    created = [
        numbered[name] if name in numbered else rows.constant_column(values.get(name), name, count)
        for name in rows.SCHEMA.names
    ]
    return pa.table(created, schema=rows.SCHEMA)


@pytest.mark.slow
@given(rows_tables(), st.integers(1, 7), st.integers(1, 90), st.sampled_from([0, 4_000, 1 << 20]))
def test_every_column_of_every_row_is_read_back(
    object_store: ObjectStore, table: pa.Table, group_rows: int, group_bytes: int, read_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", group_rows)
        patch.setattr(rows, "GROUP_BYTES", group_bytes)
        patch.setattr(object_store, "preferred_read_bytes", read_bytes)
        written = write(object_store, table.slice(0, 3), table.slice(3))
        assert read(object_store, written).to_pylist() == table.to_pylist()
        assert read(object_store, written).schema == rows.SCHEMA

    sizes = rows.logical_sizes(table)
    first_row = 0
    for group in RowsReader(object_store, written).groups:
        inside = slice(first_row, first_row + group.rows)
        ids = table.slice(first_row, group.rows).select(["offset", "ledger_id", "entry_id"]).to_pylist()
        assert (group.first_offset, group.last_offset) == (ids[0]["offset"], ids[-1]["offset"])
        assert group.last_ledger_id == ids[-1]["ledger_id"]
        spans = ids[0]["ledger_id"] != ids[-1]["ledger_id"]
        assert group.last_entry_id == (None if spans else ids[-1]["entry_id"])
        assert group.rows <= group_rows
        assert group.rows == 1 or sizes[inside].sum() <= group_bytes
        first_row += group.rows
    assert first_row == len(table)


@pytest.mark.slow
@given(rows_tables(), st.data())
def test_some_rows_and_some_columns_read_as_those_of_the_whole(
    object_store: ObjectStore, table: pa.Table, data: st.DataObject
) -> None:
    reader = RowsReader(object_store, write(object_store, table))
    numbers = data.draw(st.sets(st.integers(0, len(table) - 1), min_size=1).map(sorted))
    names = data.draw(st.lists(st.sampled_from(rows.SCHEMA.names), min_size=1, unique=True))
    assert next(reader.take([(0, np.array(numbers))])).to_pylist() == table.take(numbers).to_pylist()
    assert reader.read(0, names).to_pylist() == table.select(names).to_pylist()
    assert reader.offsets(0).tolist() == table.column("offset").to_pylist()


def test_row_groups_are_gathered_by_what_they_are_in_memory(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads that compress to nearly nothing: many row groups are little in the store, and much when read."""
    monkeypatch.setattr(rows, "GROUP_BYTES", 100_000)
    table = small_rows(200, payload=bytes(10_000))
    reader = RowsReader(object_store, write(object_store, table))
    assert len(reader.groups) > 20
    everything = [(number, np.arange(group.rows)) for number, group in enumerate(reader.groups)]
    taken = list(reader.take(everything))
    assert max(int(rows.logical_sizes(item).sum()) for item in taken) <= 2 * rows.GROUP_BYTES
    assert pa.concat_tables(taken).equals(table)

    few = [(number, np.array([0])) for number in range(len(reader.groups))]
    gathered = list(reader.take(few))
    assert len(gathered) < len(few) / 4, "a little of many row groups comes in one table"
    firsts = [group.first_offset for group in reader.groups]
    assert pa.concat_tables(gathered).column("offset").to_pylist() == firsts


@pytest.mark.slow
@given(rows_tables())
def test_any_parquet_reader_sees_the_same_rows(object_store: ObjectStore, table: pa.Table) -> None:
    written = write(object_store, table)
    plain = pq.read_table(io.BytesIO(object_store.get(written.stored.name)))
    assert plain.to_pylist() == table.to_pylist()
    assert plain.schema.equals(rows.SCHEMA)


CONSTANTS = {
    "none at all": {"key": None, "payload": None, "properties": None, "event_time": None},
    "maps that are empty and not null": {"properties": []},
    "texts of one value": {"producer": "p" * 200, "chunk_uuid": "", "properties": [("a", "b")]},
    "short texts of one value": {"producer": "é" * 60, "chunk_uuid": "u"},
    "numbers at their ends": {
        "event_time": -(2**63),
        "publish_time": 2**63 - 1,
        "batch_size": 2**31 - 1,
        "codec": -128,
    },
    "true": {"key_base64": True, "sequence_id": 0, "chunk_index": 0, "chunk_count": 1},
}


@pytest.mark.parametrize("columns", CONSTANTS.values(), ids=CONSTANTS.keys())
def test_a_column_of_one_value_is_read_as_it_was_written(object_store: ObjectStore, columns: dict[str, object]) -> None:
    table = small_rows(50, **columns)
    assert read(object_store, write(object_store, table)).to_pylist() == table.to_pylist()


def test_row_groups_with_the_same_value_of_a_column_share_its_memory(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "GROUP_ROWS", 2)
    values = ["p", "p", None, None, "q", "q", "q", "q", "q"]
    table = small_rows(len(values))
    table = table.set_column(rows.SCHEMA.get_field_index("producer"), "producer", pa.array(values, pa.string()))
    groups = [group.column("producer") for group in RowsReader(object_store, write(object_store, table))]
    assert [group.to_pylist() for group in groups] == [["p", "p"], [None, None], ["q", "q"], ["q", "q"], ["q"]]
    characters = [group.chunk(0).buffers()[2].address for group in groups[2:]]
    assert len(set(characters)) == 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("event_time", [7, None, 7, None]),
        ("producer", ["p", None, "p", None]),
        ("producer", ["p", "p", "p", "q"]),
        ("producer", ["p" * 5000 + "q", *["p" * 5000] * 3]),
    ],
)
def test_a_column_of_several_values_is_not_taken_for_constant(
    object_store: ObjectStore, name: str, values: list[object]
) -> None:
    field = rows.SCHEMA.field(name)
    table = small_rows(4)
    table = table.set_column(rows.SCHEMA.get_field_index(name), field, pa.array(values, field.type))
    assert read(object_store, write(object_store, table)).column(name).to_pylist() == values


def test_huge_payloads_get_row_groups_of_their_own(object_store: ObjectStore) -> None:
    payloads = [bytes([number]) * (5 << 20) for number in range(3)]
    table = small_rows(3)
    position = rows.SCHEMA.get_field_index("payload")
    table = table.set_column(position, rows.SCHEMA.field("payload"), pa.array(payloads, pa.binary()))
    written = write(object_store, table)
    assert [group.rows for group in RowsReader(object_store, written).groups] == [1, 1, 1]
    assert read(object_store, written).column("payload").to_pylist() == payloads


def test_a_row_group_has_at_most_65536_rows(object_store: ObjectStore) -> None:
    written = write(object_store, small_rows(2 * 65_536 + 1))
    groups = RowsReader(object_store, written).groups
    assert [group.rows for group in groups] == [65_536, 65_536, 1]
    assert [(group.first_offset, group.last_offset) for group in groups] == [
        (0, 65_535),
        (65_536, 131_071),
        (131_072,) * 2,
    ]


def test_a_rows_object_without_rows_is_readable(object_store: ObjectStore) -> None:
    written = write(object_store)
    assert RowsReader(object_store, written).groups == ()
    assert read(object_store, written) == rows.SCHEMA.empty_table()


@pytest.fixture(scope="module")
def three_groups(object_store: ObjectStore) -> tuple[RowsObject, pa.Table]:
    table = small_rows(30, properties=[("a", "b")], producer="p")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 10)
        return write(object_store, table), table


@pytest.mark.slow
@given(data=st.data())
def test_a_flipped_byte_is_damage_of_its_group_or_of_the_footer(
    object_store: ObjectStore, three_groups: tuple[RowsObject, pa.Table], data: st.DataObject
) -> None:
    written, table = three_groups
    position = data.draw(st.integers(4, written.stored.size - 1))  # the first four are Parquet's magic, never read
    name = damaged_copy(object_store, written.stored.name, position, data.draw(st.integers(1, 255)))
    damaged = replace(written, stored=replace(written.stored, name=name))
    groups = RowsReader(object_store, written).groups
    if position >= written.stored.size - written.footer_size:
        with pytest.raises(ObjectDamaged, match=f"footer of {name}"):
            RowsReader(object_store, damaged)
        return
    reader = RowsReader(object_store, damaged)
    first_rows = accumulate((group.rows for group in groups), initial=0)
    for number, (group, first_row) in enumerate(zip(groups, first_rows, strict=False)):
        if group.start <= position < group.end:
            with pytest.raises(ObjectDamaged, match=f"row group {number} .* of {name}"):
                reader.read(number)
            with pytest.raises(ObjectDamaged, match=f"row group {number} .* of {name}"):
                next(reader.take([(number, np.array([1]))]))
        else:
            assert reader.read(number).to_pylist() == table.slice(first_row, group.rows).to_pylist()


@pytest.mark.parametrize("read_bytes", [0, 1 << 20])
def test_row_groups_that_are_read_ahead_are_the_announced_ones(
    object_store: ObjectStore,
    three_groups: tuple[RowsObject, pa.Table],
    monkeypatch: pytest.MonkeyPatch,
    read_bytes: int,
) -> None:
    monkeypatch.setattr(object_store, "preferred_read_bytes", read_bytes)
    monkeypatch.setattr(object_store, "concurrent_requests", 4)
    written, table = three_groups
    for numbers in ([0, 1, 2], [0, 2], [1], []):
        reader = RowsReader(object_store, written)
        reader.announce_row_groups(numbers, ahead=True)
        for number in (*numbers, 1):
            assert reader.read(number).to_pylist() == table.slice(10 * number, 10).to_pylist()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("read_bytes", [0, 1 << 20])
def test_damage_is_found_however_the_groups_are_read(
    object_store: ObjectStore,
    three_groups: tuple[RowsObject, pa.Table],
    monkeypatch: pytest.MonkeyPatch,
    read_bytes: int,
    ahead: bool,
) -> None:
    monkeypatch.setattr(object_store, "preferred_read_bytes", read_bytes)
    monkeypatch.setattr(object_store, "concurrent_requests", 4 * ahead)
    written, table = three_groups
    last = RowsReader(object_store, written).groups[-1]
    name = damaged_copy(object_store, written.stored.name, last.start + 1)
    damaged = replace(written, stored=replace(written.stored, name=name))
    with pytest.raises(ObjectDamaged, match=name):
        list(RowsReader(object_store, damaged))
    reader = RowsReader(object_store, damaged)
    reader.announce_row_groups([0, 1], ahead=ahead)
    assert pa.concat_tables([reader.read(0), reader.read(1)]).to_pylist() == table.slice(0, 20).to_pylist()
    with pytest.raises(ObjectDamaged, match=name):
        reader.read(2)


def test_row_groups_and_footer_leave_no_byte_unvouched_but_the_magic(
    object_store: ObjectStore, three_groups: tuple[RowsObject, pa.Table]
) -> None:
    written, _ = three_groups
    groups = RowsReader(object_store, written).groups
    edges = [4, *(group.end for group in groups)]
    assert [group.start for group in groups] == edges[:-1]
    assert edges[-1] == written.stored.size - written.footer_size
    assert object_store.get(written.stored.name, 0, 4) == b"PAR1"
    assert object_store.size(written.stored.name) == written.stored.size


def test_a_footer_that_its_row_does_not_vouch_for_is_damage(
    object_store: ObjectStore, three_groups: tuple[RowsObject, pa.Table]
) -> None:
    written, _ = three_groups
    other = replace(written, stored=replace(written.stored, crc32c=written.stored.crc32c ^ 1))
    with pytest.raises(ObjectDamaged, match=written.stored.name):
        RowsReader(object_store, other)


def test_a_cut_or_missing_object_is_an_error(
    object_store: ObjectStore, three_groups: tuple[RowsObject, pa.Table]
) -> None:
    written, _ = three_groups
    cut = f"rows/{new_id()}"
    object_store.put(cut, object_store.get(written.stored.name)[:-1])
    with pytest.raises(ObjectDamaged, match=cut):
        RowsReader(object_store, replace(written, stored=replace(written.stored, name=cut)))
    with pytest.raises(ObjectMissing):
        RowsReader(object_store, replace(written, stored=replace(written.stored, name=f"rows/{new_id()}")))


def test_a_later_format_version_is_refused(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rows, "FORMAT_VERSION", 3)
        written = write(object_store, small_rows(3))
    with pytest.raises(ObjectDamaged, match=f"{written.stored.name} is of format version b'3'"):
        list(RowsReader(object_store, written))


@pytest.mark.slow
def test_an_exception_inside_leaves_no_object(object_store: ObjectStore) -> None:
    name = f"rows/{new_id()}"
    writer = RowsWriter(object_store, name)
    table = small_rows(3)

    def fail_inside() -> None:
        with writer:
            writer.write(table, rows.logical_sizes(table))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    gc.collect()  # whatever pyarrow's destructors do, they do it now
    assert writer.result is None
    assert list(object_store.list(name)) == []


def test_a_store_that_fails_in_the_middle_leaves_no_object(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"rows/{new_id()}"
    table = small_rows(40)
    real = ObjectWriter.write

    def full_disk(writer: ObjectWriter, data: bytes) -> int:
        if writer.tell() > 500:
            raise StorageFull("the disk is full", "free space")
        return real(writer, data)

    monkeypatch.setattr(rows, "GROUP_ROWS", 10)
    monkeypatch.setattr(ObjectWriter, "write", full_disk)
    writer = RowsWriter(object_store, name)
    with pytest.raises(StorageFull), writer:
        writer.write(table, rows.logical_sizes(table))
    gc.collect()
    assert writer.result is None
    assert list(object_store.list(name)) == []


def test_rows_that_do_not_fit_the_schema_leave_no_object(object_store: ObjectStore) -> None:
    name = f"rows/{new_id()}"
    table = small_rows(3).drop_columns(["metadata"])
    with pytest.raises(KeyError, match="metadata"), RowsWriter(object_store, name) as writer:
        writer.write(table, np.ones(3, dtype=np.int64))
    assert list(object_store.list(name)) == []


@pytest.mark.parametrize(
    ("payloads", "codec"),
    [
        ([np.random.default_rng(number).bytes(100) for number in range(200)], "UNCOMPRESSED"),
        ([np.random.default_rng(number).bytes(100).hex().encode() for number in range(200)], "ZSTD"),
        ([np.random.default_rng(number).bytes(16) for number in range(200)], "ZSTD"),
        ([None] * 200, "ZSTD"),
    ],
    ids=["random", "hexadecimal", "short", "none"],
)
def test_only_values_that_shrink_are_compressed(
    object_store: ObjectStore, payloads: list[bytes | None], codec: str
) -> None:
    table = small_rows(200)
    column = table.schema.get_field_index("payload")
    table = table.set_column(column, rows.SCHEMA.field("payload"), pa.array(payloads, pa.binary()))
    written = write(object_store, table.slice(0, 190), table.slice(190))
    chunk = pq.read_metadata(pa.BufferReader(object_store.get(written.stored.name))).row_group(0).column(column)
    assert (chunk.path_in_schema, chunk.compression) == ("payload", codec)
    assert read(object_store, written).column("payload").to_pylist() == payloads


def test_a_name_that_is_taken_keeps_its_object(object_store: ObjectStore) -> None:
    written = write(object_store, small_rows(3))
    table = small_rows(4)
    with pytest.raises(ObjectExists), RowsWriter(object_store, written.stored.name) as writer:
        writer.write(table, rows.logical_sizes(table))
    assert len(read(object_store, written)) == 3
