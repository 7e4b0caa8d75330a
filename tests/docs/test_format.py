"""docs/format.md is enough to read every object: a reader written from that page alone, against what is written.

The reader is format_reader.py. `storage` only makes the objects, and is what the page's tables and examples are
compared with.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from pyroaring import BitMap

from compactor.run.plan import RunPolicies
from storage.ledger import key_index, names, rows
from storage.ledger.chunk_table import ChunkTable
from storage.ledger.deletion_bitmap import encode_bitmaps
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.key_index import HashRange, IndexDirectory, IndexRecords
from storage.ledger.manifest import DeletedRows, Manifest, Part, TableDeletes, TableSnapshot
from storage.ledger.names import ObjectKind
from storage.ledger.sealing import Sealer, ledger_records, placed_ledger
from storage.log.bulk_append import INPUT_SCHEMA, to_ledger_rows
from storage.model import IndexLocation, LedgerRecord, LogPosition, MessageId, RowsObject, StoredObject
from storage.objects.interface import ObjectStore
from tests.budgets import examples
from tests.chunked import append, chunk, message, whole
from tests.docs.format_reader import (
    PAGE,
    PROSE,
    block,
    check,
    dead_offsets,
    hex_block,
    messages_of,
    page_table,
    parse_name,
    read_chunks,
    read_directory,
    read_index,
    read_rows,
)
from tests.sealed import SEED, new_id, seal
from tests.strategies import contents, rows_tables
from tests.workbench import Workbench


def read_ledger(store: ObjectStore, index: IndexLocation) -> tuple[list[dict[str, int]], dict[str, list[int]]]:
    data = store.get(index.name)[index.offset : index.offset + index.length]
    return read_index(data, read_directory(index.directory))


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(rows_tables(ledgers=1))
def test_the_page_reads_the_rows_of_any_ledger(object_store: ObjectStore, table: pa.Table) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 6)
        ledger = seal(object_store, table)
    data = object_store.get(ledger.rows.name)
    assert len(data) == ledger.rows.size
    assert read_rows(data, ledger.footer_size, ledger.rows.crc32c) == table.to_pylist()


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(rows_tables(ledgers=1))
def test_the_page_reads_the_index_of_any_ledger(object_store: ObjectStore, table: pa.Table) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "FENCE_RECORDS", 2)
        ledger = seal(object_store, table)
    records, unkeyed = read_ledger(object_store, ledger.index)
    drawn = table.to_pylist()
    newest = {row["key"]: row for row in drawn if row["slot"] == 0 and row["key"] is not None}
    entries = [(record["offset"] & (1 << 62) - 1, record["offset"] >> 63) for record in records]
    assert sorted(entries) == sorted((row["offset"], 0 if row["payload"] else 1) for row in newest.values())
    assert [(r["high"], r["low"]) for r in records] == sorted({(r["high"], r["low"]) for r in records})
    by_event: dict[bytes, tuple[int, int]] = {}
    for row in drawn:
        if row["slot"] == 0 and row["key"] is not None:
            time = -(2**63) if row["event_time"] is None else row["event_time"]
            by_event[row["key"]] = max(by_event.get(row["key"], (time, -1)), (time, row["offset"]))
    if any(time > -(2**63) for time, _ in by_event.values()):
        winners = [(record["event_time"], record["event_offset"] & (1 << 62) - 1) for record in records]
        assert sorted(winners) == sorted(by_event.values())
    assert unkeyed == {
        "null_keys": [row["offset"] for row in drawn if row["slot"] == 0 and row["key"] is None],
        "whole_entries": [row["offset"] for row in drawn if row["slot"] == 2],
        "chunks": [row["offset"] for row in drawn if row["slot"] == 3 and not may_belong(row)],
    }
    directory = read_directory(ledger.index.directory)
    chunks = read_chunks(object_store.get(ledger.index.name), *directory["chunk_table"])
    hasher = Xxh3KeyHasher(SEED)
    expected = []
    for row in drawn:
        if row["slot"] == 3 and may_belong(row):
            hashes = hasher(pa.array([row["chunk_uuid"].encode(), row["key"] or b""], pa.binary()))
            halves = [int(half[i]) for i in range(2) for half in hashes]
            flags = (not row["payload"]) << 63 | (row["key"] is not None) << 62
            time = -(2**63) if row["event_time"] is None else row["event_time"]
            halves[2:] = halves[2:] if row["key"] is not None else [0, 0]
            times = (time, row["publish_time"], -(2**63))
            expected.append((*halves, row["offset"] | flags, *times, row["chunk_index"], row["chunk_count"]))
    assert [tuple(chunk.values()) for chunk in chunks] == expected


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(contents(max_size=30), st.integers(0, 2**40))
def test_the_page_reads_a_ledger_that_counts_from_zero(
    object_store: ObjectStore, content: pa.Table, first: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 6)
        sealer = Sealer(object_store, new_id(), -1, Xxh3KeyHasher(SEED), new_id())
        ledger = placed_ledger(sealer.seal_unplaced([to_ledger_rows(content, 0, 0, 7)], 3, 8), 5, first, 9)
        placed = seal(object_store, to_ledger_rows(content, 5, first, 7))
    data = object_store.get(ledger.rows.name)
    read = read_rows(data, ledger.footer_size, ledger.rows.crc32c, (ledger.ledger_id, ledger.first_offset))
    assert read == to_ledger_rows(content, 5, first, 7).to_pylist() == read_ledger_rows(object_store, placed)
    records, unkeyed = read_ledger(object_store, ledger.index)
    assert read_directory(ledger.index.directory)["version"] == 3
    expected, expected_unkeyed = read_ledger(object_store, placed.index)
    moved = [
        record | {name: record[name] + first for name in ("offset", "event_offset") if name in record}
        for record in records
    ]
    assert moved == expected
    assert {name: [first + number for number in numbers] for name, numbers in unkeyed.items()} == expected_unkeyed


def may_belong(row: dict[str, Any]) -> bool:
    """Return whether a chunk can be of a message."""
    index, count = row["chunk_index"], row["chunk_count"]
    return row["chunk_uuid"] is not None and index is not None and count is not None and bool(index < count)


@settings(max_examples=examples(30))
@given(rows_tables(ledgers=1), st.integers(0, 3))
def test_the_page_reads_the_index_of_any_hash_range(object_store: ObjectStore, table: pa.Table, bits: int) -> None:
    """A level is cut into hash ranges; together they are the index that one range would have been."""
    whole = ledger_records(table, Xxh3KeyHasher(SEED))
    all_records: list[dict[str, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "FENCE_RECORDS", 2)
        for prefix in range(2**bits):
            inside = HashRange(prefix, bits).slice_of(whole.hi)
            part = IndexRecords(*(column if column is None else column[inside] for column in vars(whole).values()))
            data, created = key_index.encode_index(part, HashRange(prefix, bits))
            directory = read_directory(created.encode())
            assert (directory["bits"], directory["prefix"]) == (bits, prefix)
            records, _ = read_index(data, directory)
            assert all(record["high"] >> (64 - bits) == prefix for record in records)
            all_records += records
    assert [record["high"] for record in all_records] == whole.hi.tolist()
    assert [record["low"] for record in all_records] == whole.lo.tolist()
    assert [record["offset"] for record in all_records] == whole.offset.tolist()


def read_compacted(store: ObjectStore, manifest: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """The rows of a compacted ledger that count, and the offsets that its index says so of, by what they are."""
    live: list[dict[str, Any]] = []
    for part in manifest["parts"]:
        table = read_rows(store.get(part["name"]), part["footer_size"], part["footer_crc32c"])
        dead = set(dead_offsets(store.get(part["deleted"]["name"]), part) if part["deleted"] else ())
        assert dead <= {row["offset"] for row in table}
        counting = [row for row in table if row["offset"] not in dead]
        assert len(table) == part["messages"]
        assert sum(row["offset"] for row in counting) % 2**64 == part["offset_sum"]
        assert (table[0]["offset"], table[-1]["offset"]) == (part["first"]["offset"], part["last"]["offset"])
        kept_since = [row["retained_at"] for row in counting if row["retained_at"] is not None]
        values = [
            row["publish_time"] for row in counting if row["key"] is not None and row["payload"] and not row["slot"]
        ]
        for bound, times in ((part["oldest_tombstone"], kept_since), (part["oldest_value"], values)):
            assert not times or bound <= min(times)
        live += counting
    visible: dict[tuple[int, int], int] = {}
    unkeyed = []
    for level in manifest["index"]["levels"]:
        this: dict[tuple[int, int], int] = {}
        for place in level:
            data = store.get(place["name"])[place["offset"] : place["offset"] + place["length"]]
            records, bitmaps = read_index(data, read_directory(base64.b64decode(place["directory"])))
            this |= {(record["high"], record["low"]): record["offset"] for record in records}
            unkeyed += [offset for offsets in bitmaps.values() for offset in offsets]
        visible = this | visible
    rows_of_keys = [offset for offset in visible.values() if not offset >> 62 & 1]
    return live, {
        "values": sorted(offset for offset in rows_of_keys if not offset >> 63),
        "tombstones": sorted(offset & (1 << 62) - 1 for offset in rows_of_keys if offset >> 63),
        "unkeyed": sorted(unkeyed),
    }


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(st.lists(contents(max_size=30), min_size=1, max_size=4))
def test_the_page_reads_a_compacted_ledger(tmp_path_factory: pytest.TempPathFactory, history: list[pa.Table]) -> None:
    """After each of several runs: parts that were kept or rewritten, their deleted rows, levels of the index."""
    bench = Workbench.embedded(tmp_path_factory.mktemp("page"))
    topic = bench.topic()
    model: dict[bytes, dict[str, Any]] = {}
    for content in history:
        bench.append(topic, [content], ledger_bytes=100)
        bench.compact(topic)
        rows_ = [row for ledger in topic.snapshot().ledgers for row in read_ledger_rows(bench.store, ledger)]
        model = {row["key"]: row for row in rows_ if row["key"] is not None}
        expected = [row for row in rows_ if row["key"] is not None and model[row["key"]] is row and row["payload"]]
        compacted = topic.snapshot().compacted
        if compacted is None:
            assert rows_ == []
            continue
        manifest = json.loads(check(bench.store.get(compacted.manifest.name), compacted.manifest.crc32c))
        assert manifest["format_version"] == 4
        live, indexed = read_compacted(bench.store, manifest)
        assert live == expected
        assert indexed == {"values": [row["offset"] for row in live], "tombstones": [], "unkeyed": []}
        assert (manifest["keys"], manifest["tombstones"]) == (len(live), 0)
    bench.metadata.close()


def test_the_page_reads_a_compacted_ledger_with_chunks(tmp_path: Path) -> None:
    """A value, an incomplete message and a retained tombstone, in chunks of two ledgers; one message is superseded."""
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    first = [*whole("1", b"a", b"A", b"B"), chunk("2", 0, 2, b"b", b"C"), *whole("3", b"c", None, b"")]
    append(bench, topic, [message(b"b", b"old"), *first])
    append(bench, topic, [chunk("2", 1, 2, b"b", b"D"), message(b"a", b"new"), chunk("4", 0, 2, b"b", b"E")])
    bench.compactor().compact(topic.name, RunPolicies(tombstone_retention_ms=1))
    compacted = topic.snapshot().compacted
    assert compacted is not None
    manifest = json.loads(bench.store.get(compacted.manifest.name))
    assert manifest["format_version"] == 4
    live, indexed = read_compacted(bench.store, manifest)
    assert [row["offset"] for row in live] == [3, 4, 5, 6, 7, 8]
    assert indexed == {"values": [6, 7], "tombstones": [5], "unkeyed": []}
    assert (manifest["keys"], manifest["tombstones"]) == (2, 1)
    chunks = []
    for table in manifest["chunks"]:
        read = read_chunks(bench.store.get(table["name"]), table["length"], table["crc32c"])
        assert all(item["key_high"] >> (64 - table["bits"]) == table["prefix"] for item in read)
        chunks += read
    mask = (1 << 62) - 1
    created = [[item["offset"] & mask for item in whole_] for whole_ in messages_of(chunks)]
    assert created == [[4, 5], [3, 6]]
    kept = [item["offset"] & mask for item in chunks if item["retained_at"] > -(2**63)]
    assert kept == [5]
    assert sum(table["pending"] for table in manifest["chunks"]) == 1
    bench.metadata.close()


def read_ledger_rows(store: ObjectStore, ledger: LedgerRecord) -> list[dict[str, Any]]:
    return read_rows(store.get(ledger.rows.name), ledger.footer_size, ledger.rows.crc32c)


def example_ledger(store: ObjectStore) -> LedgerRecord:
    """The ledger of the page's example."""
    drawn = [
        {"key": b"a", "payload": b"1"},
        {"key": b"b", "payload": None, "event_time": 7},
        {"key": None, "payload": b"2"},
        {"key": b"a", "payload": b"3"},
    ]
    content = pa.Table.from_pylist(drawn, schema=INPUT_SCHEMA)
    return seal(store, to_ledger_rows(content, 5, 100, 0), Xxh3KeyHasher(1))


def test_the_example_is_what_is_written(object_store: ObjectStore) -> None:
    ledger = example_ledger(object_store)
    assert object_store.get(ledger.index.name) == hex_block("hex-index")
    assert ledger.index.directory == hex_block("hex-directory")


def test_the_example_says_what_its_text_says() -> None:
    records, unkeyed = read_index(hex_block("hex-index"), read_directory(hex_block("hex-directory")))
    digests = re.findall(r"`([0-9a-f]{32})`", PAGE)
    assert sorted(f"{record['high']:016x}{record['low']:016x}" for record in records) == sorted(digests)
    entries = [(r["offset"] & (1 << 62) - 1, r["offset"] >> 63, r["event_time"]) for r in records]
    assert entries == [(101, 1, 7), (103, 0, -(2**63))]
    assert unkeyed == {"null_keys": [102], "whole_entries": [], "chunks": []}


def example_manifest() -> Manifest:
    """The manifest of the page's example."""
    first, last = (LogPosition(offset, MessageId(5, offset - 100)) for offset in (100, 103))
    rows_object = RowsObject(StoredObject("part", 4000, 11), 3000)
    part = Part(rows_object, first, last, 2, 4, 8, 9, DeletedRows("bitmaps", 40, 18, 1, 7), 103, 9)
    index = ((IndexLocation("index", 0, 24, IndexDirectory(HashRange(), (1,), (0,)).encode()),),)
    return Manifest(
        topic="persistent://public/default/t",
        topic_uid="0" * 32,
        ledger_id=6,
        generation=1,
        run_id=2,
        created_at=1_700_000_000_000,
        horizon=last,
        parts=(part,),
        index=index,
        frozen_at=1_699_999_999_000,
        policies={"event_time_order": False},
        dropped_to=102,
        keys=1,
    )


def test_the_example_manifest_is_what_is_written() -> None:
    assert example_manifest().encode() == block("json-manifest").strip().encode()


def test_every_member_of_a_manifest_is_on_the_page() -> None:
    stored = StoredObject("o", 1, 2)
    table = TableSnapshot(6, 3, (6,), stored, stored, (stored,), (TableDeletes("part", stored, 1, 1),))
    document = json.loads(replace(example_manifest(), chunks=(ChunkTable("c", 72, 0),), table=table).encode())
    members = {cell.strip("`") for row in page_table("| member | meaning |") for cell in row[0].split(", ")}
    assert members == set(document)
    _, _, after = PAGE.partition("A **part** is a rows object:")
    part_members = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in after.split("\n\n")[1].splitlines()[2:]))
    )
    assert part_members == set(document["parts"][0])
    for text, member in (
        ("A **position** is", document["horizon"]),
        ("`deleted` has", document["parts"][0]["deleted"]),
        ("A **location** in", document["index"]["levels"][0][0]),
        ("`table` has", document["table"]),
        ("Each of `deletes` has", document["table"]["deletes"][0]),
    ):
        sentence = PROSE.split(text)[1].split(". ")[0]
        assert set(member) <= set(re.findall(r"`(\w+)`", sentence))


def test_the_deleted_rows_of_a_part_are_read_as_the_page_says(object_store: ObjectStore) -> None:
    name = names.bitmaps(new_id(), new_id(), 0)
    data, places = encode_bitmaps(name, [BitMap([9]), BitMap([1, 70_000])])
    object_store.put(name, data)
    example = example_manifest()
    document = json.loads(replace(example, parts=(replace(example.parts[0], deleted=places[1], messages=3),)).encode())
    (part,) = document["parts"]
    assert dead_offsets(object_store.get(name), part) == [101, 70_100]


def test_the_directory_of_a_level_is_read_as_the_page_says() -> None:
    directory = json.loads(example_manifest().encode())["index"]["levels"][0][0]["directory"]
    assert read_directory(base64.b64decode(directory))["counts"] == (1,)


def test_the_column_table_is_the_schema(object_store: ObjectStore) -> None:
    table = {
        cells[0]: cells[1:] for cells in page_table("| column | id | type | Parquet | null | encoding | meaning |")
    }
    assert list(table) == rows.SCHEMA.names
    ledger = example_ledger(object_store)
    written = pq.ParquetFile(pa.BufferReader(object_store.get(ledger.rows.name))).metadata.row_group(0)
    chunks: dict[str, list[Any]] = {}
    for i in range(written.num_columns):
        chunk = written.column(i)
        chunks.setdefault(chunk.path_in_schema.split(".")[0], []).append(chunk)
    for field in rows.SCHEMA:
        id_, type_, physical, null, encoding, meaning = table[field.name]
        assert int(id_) == rows.FIELD_IDS[field.name]
        assert type_ == str(field.type)
        assert null == ("yes" if field.nullable else "no")
        assert meaning
        for chunk in chunks[field.name]:
            assert chunk.physical_type == physical
            assert chunk.compression == ("UNCOMPRESSED" if encoding == "DELTA_BINARY_PACKED" else "ZSTD"), field.name
            assert chunk.dictionary_page_offset is None
            assert not encoding or encoding in chunk.encodings
            unmeasured = field.name in ("key", "payload", "metadata", "properties")
            assert chunk.is_stats_set is not unmeasured


def test_field_ids_of_columns_and_leaves_are_those_of_the_page(object_store: ObjectStore) -> None:
    """Tables of Arrow are the same with and without."""
    ledger = example_ledger(object_store)
    data = object_store.get(ledger.rows.name)
    schema = pq.read_schema(pa.BufferReader(data))
    leaves = (schema.field("properties").type.key_field, schema.field("properties").type.item_field)
    stored = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in (*schema, *leaves)}
    columns = page_table("| column | id | type | Parquet | null | encoding | meaning |")
    assert stored == {cells[0]: int(cells[1]) for cells in columns} | {leaves[0].name: 14, leaves[1].name: 15}
    assert "the map's key and value have 14 and 15" in PROSE
    assert sorted(rows.FIELD_IDS.values()) == list(range(1, 25))
    assert schema.equals(rows.SCHEMA)
    assert pq.read_table(pa.BufferReader(data)).schema.equals(rows.SCHEMA)


def test_the_page_names_the_limits_that_are_kept() -> None:
    assert f"at most {rows.GROUP_ROWS:,} rows, and at most {rows.GROUP_BYTES >> 20} MiB" in PROSE
    assert f"*n* · {key_index.FENCE_RECORDS:,} records" in PROSE
    assert f"`bits` of the hash range, at most {key_index.MAX_RANGE_BITS}" in PROSE


def test_names_are_built_as_the_page_says(object_store: ObjectStore) -> None:
    uid, attempt = "0a" * 16, "f9" * 16
    built = {
        ObjectKind.LEDGER_ROWS: names.ledger_rows(uid, 7, attempt),
        ObjectKind.LEDGER_INDEX: names.ledger_index(uid, 7, attempt),
        ObjectKind.PART: names.part(uid, attempt, 7),
        ObjectKind.INDEX: names.compacted_index(uid, attempt, 7),
        ObjectKind.ROW_SETS: names.row_sets(uid, attempt, 7),
        ObjectKind.BITMAPS: names.bitmaps(uid, attempt, 7),
        ObjectKind.CHUNKS: names.chunks(uid, attempt, 7),
        ObjectKind.MANIFEST: names.manifest(uid, 7, attempt),
        ObjectKind.TABLE_DELETES: names.table_deletes(uid, attempt, 7, "puffin"),
        ObjectKind.TABLE_MANIFEST: names.table_manifest(uid, attempt, "data", 7),
        ObjectKind.TABLE_SNAPSHOT: names.table_snapshot(uid, attempt, 7),
        ObjectKind.TABLE_METADATA: names.table_metadata(uid, attempt, 7),
    }
    assert set(built) == set(ObjectKind)
    assert {kind: parse_name(name) for kind, name in built.items()} == {
        ObjectKind.LEDGER_ROWS: (".parquet", 7),
        ObjectKind.LEDGER_INDEX: (".index", 7),
        ObjectKind.PART: (".parquet", 7),
        ObjectKind.INDEX: (".index", 7),
        ObjectKind.ROW_SETS: (".bin", 7),
        ObjectKind.BITMAPS: (".bin", 7),
        ObjectKind.CHUNKS: (".bin", 7),
        ObjectKind.MANIFEST: (".json", 7),
        ObjectKind.TABLE_DELETES: (".puffin", 7),
        ObjectKind.TABLE_MANIFEST: (".avro", 7),
        ObjectKind.TABLE_SNAPSHOT: (".avro", 7),
        ObjectKind.TABLE_METADATA: (".metadata.json", 7),
    }
    nonce = names.new_nonce()
    for kind, name in (
        (ObjectKind.LEDGER_ROWS, names.task_ledger_rows(uid, attempt, 7, nonce)),
        (ObjectKind.LEDGER_INDEX, names.task_ledger_index(uid, attempt, 7, nonce)),
    ):
        assert parse_name(name) == parse_name(built[kind])
        assert names.parse(name) == names.ParsedName(uid, kind, 7, attempt, is_of_task=True)


def test_a_point_in_every_hash_range_is_in_the_fence_that_the_page_computes() -> None:
    random = np.random.default_rng(3)
    hi = np.unique(random.integers(0, 2**64 - 1, 70_000, dtype=np.uint64))
    hi = hi[hi >> np.uint64(62) == 2]
    records = key_index.IndexRecords(hi, hi, np.arange(len(hi), dtype=np.uint64))
    data, directory = key_index.encode_index(records, HashRange(2, 2))
    read, _ = read_index(data, read_directory(directory.encode()))
    assert [record["high"] for record in read] == hi.tolist()
    assert len(directory.counts) == 2
