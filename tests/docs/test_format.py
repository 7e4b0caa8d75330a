"""docs/format.md is enough to read every object: a reader written from that page alone, against what is written.

The reader (the functions up to the line of dashes) uses struct, json, pyarrow and pyroaring, nothing of ours; it may be
copied out. `storage` only makes the objects, and is what the page's tables and examples are compared with.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import google_crc32c
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from pyroaring import BitMap, BitMap64
from pyspark.sql import SparkSession

from compactor.engines.engine import Engine
from compactor.run.plan import RunPolicies
from storage.ledger import key_index, names, rows
from storage.ledger.chunk_table import ChunkTable
from storage.ledger.deletion_bitmap import encode_deleted
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.key_index import HashRange, IndexDirectory, IndexRecords
from storage.ledger.manifest import DeletedRows, Manifest, Part
from storage.ledger.names import ObjectKind
from storage.ledger.rows_file import RowsObject, RowsWriter
from storage.ledger.sealing import ledger_records
from storage.log.bulk_append import INPUT_SCHEMA, to_rows
from storage.model import IndexLocation, LedgerRecord, LogPosition, MessageId, StoredObject
from storage.objects.interface import ObjectStore
from tests.chunked import append, chunk, message, whole
from tests.sealed import SEED, new_id, seal
from tests.strategies import contents, rows_tables
from tests.workbench import Workbench

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
PROSE = " ".join(PAGE.split())


def check(data: bytes, checksum: int) -> bytes:
    assert google_crc32c.value(data) == checksum
    return data


def read_directory(data: bytes) -> dict[str, Any]:
    version, bits, has_events, prefix = struct.unpack_from("<HBBI", data, 0)
    assert version in (1, 2)
    start = 40 if version == 2 else 32
    width = 3 if has_events else 2
    fences = (len(data) - start) // (4 * width)
    assert len(data) == start + 4 * width * fences
    assert fences.bit_count() == 1
    tables = [struct.unpack_from(f"<{fences}I", data, start + 4 * fences * number) for number in range(width)]
    return {
        "bits": bits,
        "prefix": prefix,
        "sizes": struct.unpack_from("<3I", data, 8),
        "bitmap_checksums": struct.unpack_from("<3I", data, 20),
        "counts": tables[0],
        "checksums": tables[1],
        "event_checksums": tables[2] if has_events else None,
        "chunk_table": struct.unpack_from("<2I", data, 32) if version == 2 else (0, 0),
    }


def fence_of(directory: dict[str, Any], high: int) -> int:
    fences = len(directory["counts"])
    if fences == 1:
        return 0
    return (high >> (64 - directory["bits"] - (fences.bit_length() - 1))) & (fences - 1)


def read_index(data: bytes, directory: dict[str, Any]) -> tuple[list[dict[str, int]], dict[str, list[int]]]:
    """Records in hash order, and offsets by class."""
    records: list[dict[str, int]] = []
    total = sum(directory["counts"])
    before = 0
    for fence, count in enumerate(directory["counts"]):
        block = check(data[24 * before : 24 * (before + count)], directory["checksums"][fence])
        numbers = struct.unpack(f"<{3 * count}Q", block)
        found = [dict(zip(("high", "low", "offset"), numbers[i::count], strict=True)) for i in range(count)]
        if directory["event_checksums"] is not None:
            start = 24 * total + 16 * before
            block = check(data[start : start + 16 * count], directory["event_checksums"][fence])
            events = struct.unpack(f"<{count}Q{count}q", block)
            for i, record in enumerate(found):
                record |= {"event_offset": events[i], "event_time": events[count + i]}
        assert all(fence_of(directory, record["high"]) == fence for record in found)
        records += found
        before += count
    start = total * (24 if directory["event_checksums"] is None else 40)
    unkeyed = {}
    for number, name in enumerate(("null_keys", "whole_entries", "chunks")):
        block = check(data[start : start + directory["sizes"][number]], directory["bitmap_checksums"][number])
        unkeyed[name] = list(BitMap64.deserialize(block)) if block else []
        start += len(block)
    assert start + directory["chunk_table"][0] == len(data)
    return records, unkeyed


def read_chunks(data: bytes, length: int, checksum: int) -> list[dict[str, int]]:
    """A chunk table at the end of an index, or the whole of an object."""
    names_ = ("uuid_high", "uuid_low", "key_high", "key_low", "offset", "event_time", "publish_time", "retained_at")
    block = check(data[len(data) - length :], checksum) if length else b""
    found = struct.iter_unpack("<5Q3q2I", block)
    return [dict(zip((*names_, "index", "count"), numbers, strict=True)) for numbers in found]


def messages_of(chunks: list[dict[str, int]]) -> list[list[dict[str, int]]]:
    """The complete messages that chunks make, in the order of their last chunks."""
    begun: dict[tuple[int, ...], list[dict[str, int]]] = {}
    complete = []
    for one in sorted(chunks, key=lambda item: item["offset"] & (1 << 62) - 1):
        same = ("uuid_high", "uuid_low", "key_high", "key_low", "count")
        identity = (*(one[name] for name in same), one["offset"] >> 62 & 1)
        if one["index"] == 0:
            begun[identity] = []
        if identity in begun and one["index"] == len(begun[identity]):
            begun[identity].append(one)
            if len(begun[identity]) == one["count"]:
                complete.append(begun.pop(identity))
    return complete


def read_rows(data: bytes, footer_size: int, footer_checksum: int) -> list[dict[str, Any]]:
    """Every row, after every byte but Parquet's magic was checked."""
    check(data[len(data) - footer_size :], footer_checksum)
    file = pq.ParquetFile(pa.BufferReader(data))
    named = file.metadata.metadata
    assert named[b"compactor.format_version"] == b"1"
    checksums = struct.unpack(
        f"<{file.metadata.num_row_groups}I", bytes.fromhex(named[b"compactor.row_group_crc32c"].decode())
    )
    starts = []
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = [group.column(i) for i in range(group.num_columns)]
        starts.append(min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks))
    assert starts[:1] in ([4], [])
    for start, end, checksum in zip(starts, [*starts[1:], len(data) - footer_size], checksums, strict=bool(starts)):
        check(data[start:end], checksum)
    found: list[dict[str, Any]] = file.read().to_pylist()
    return found


def dead_offsets(data: bytes, part: dict[str, Any]) -> list[int]:
    """The offsets of a part's rows that do not count; `data`: the object of bitmaps that it names."""
    place = part["deleted"]
    block = check(data[place["offset"] : place["offset"] + place["length"]], place["crc32c"])
    relative = list(BitMap.deserialize(block))
    assert len(relative) == place["cardinality"]
    return [part["first"]["offset"] + number for number in relative]


def parse_name(name: str) -> tuple[str, int] | None:
    """(last part of the name's pattern, number) by the page's list of names."""
    hexadecimal, number = "[0-9a-f]{32}", r"(\d{20})"
    for pattern in re.findall(r"^(topics/.+?) {2,}", PAGE, re.MULTILINE):
        expression = (
            re.escape(pattern)
            .replace("<topic\\ uid>", hexadecimal)
            .replace("<attempt>", hexadecimal)
            .replace("<nonce>", "[0-9a-f]{8}")
            .replace("<ledger\\ id>", number)
            .replace("<number>", number)
        )
        if found := re.fullmatch(expression, name):
            return pattern.rsplit(">", 1)[-1], int(found[1])
    return None


# ------------------------------------------------------------------------------------------ what it is tried on


def block(kind: str) -> str:
    """The fenced block of that kind on the page."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def hex_block(kind: str) -> bytes:
    """A hex block without its right-hand explanations."""
    return bytes.fromhex(" ".join(line.split("   ")[0] for line in block(kind).splitlines()))


def page_table(header: str) -> list[list[str]]:
    """The cells of the table with that header."""
    _, _, after = PAGE.partition(f"{header}\n")
    assert after
    body = after.split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in body]


def read_ledger(store: ObjectStore, index: IndexLocation) -> tuple[list[dict[str, int]], dict[str, list[int]]]:
    data = store.get(index.name)[index.offset : index.offset + index.length]
    return read_index(data, read_directory(index.directory))


@settings(max_examples=40)
@given(rows_tables(ledgers=1))
def test_the_page_reads_the_rows_of_any_ledger(object_store: ObjectStore, table: pa.Table) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 6)
        ledger = seal(object_store, table)
    data = object_store.get(ledger.rows.name)
    assert len(data) == ledger.rows.size
    assert read_rows(data, ledger.footer_size, ledger.rows.crc32c) == table.to_pylist()


@settings(max_examples=40)
@given(rows_tables(ledgers=1))
def test_the_page_reads_the_index_of_any_ledger(object_store: ObjectStore, table: pa.Table) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "FENCE_RECORDS", 2)
        ledger = seal(object_store, table)
    records, unkeyed = read_ledger(object_store, ledger.index)
    drawn = table.to_pylist()
    newest = {row["key"]: row for row in drawn if row["slot"] == 0 and row["key"] is not None}
    found = [(record["offset"] & (1 << 62) - 1, record["offset"] >> 63) for record in records]
    assert sorted(found) == sorted((row["offset"], 0 if row["payload"] else 1) for row in newest.values())
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
    wanted = []
    for row in drawn:
        if row["slot"] == 3 and may_belong(row):
            hashes = hasher(pa.array([row["chunk_uuid"].encode(), row["key"] or b""], pa.binary()))
            halves = [int(half[i]) for i in range(2) for half in hashes]
            flags = (not row["payload"]) << 63 | (row["key"] is not None) << 62
            time = -(2**63) if row["event_time"] is None else row["event_time"]
            halves[2:] = halves[2:] if row["key"] is not None else [0, 0]
            times = (time, row["publish_time"], -(2**63))
            wanted.append((*halves, row["offset"] | flags, *times, row["chunk_index"], row["chunk_count"]))
    assert [tuple(chunk.values()) for chunk in chunks] == wanted


def may_belong(row: dict[str, Any]) -> bool:
    """Whether a chunk can be of a message."""
    index, count = row["chunk_index"], row["chunk_count"]
    return row["chunk_uuid"] is not None and index is not None and count is not None and bool(index < count)


@settings(max_examples=30)
@given(rows_tables(ledgers=1), st.integers(0, 3))
def test_the_page_reads_the_index_of_any_hash_range(object_store: ObjectStore, table: pa.Table, bits: int) -> None:
    """A level is cut into hash ranges; together they are the index that one range would have been."""
    whole = ledger_records(table, Xxh3KeyHasher(SEED))
    found: list[dict[str, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "FENCE_RECORDS", 2)
        for prefix in range(2**bits):
            inside = HashRange(prefix, bits).narrow(whole.hi)
            part = IndexRecords(*(column if column is None else column[inside] for column in vars(whole).values()))
            data, created = key_index.encode_index(part, HashRange(prefix, bits))
            directory = read_directory(created.encode())
            assert (directory["bits"], directory["prefix"]) == (bits, prefix)
            records, _ = read_index(data, directory)
            assert all(record["high"] >> (64 - bits) == prefix for record in records)
            found += records
    assert [record["high"] for record in found] == whole.hi.tolist()
    assert [record["low"] for record in found] == whole.lo.tolist()
    assert [record["offset"] for record in found] == whole.offset.tolist()


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


@settings(max_examples=25)
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
        found = read_chunks(bench.store.get(table["name"]), table["length"], table["crc32c"])
        assert all(item["key_high"] >> (64 - table["bits"]) == table["prefix"] for item in found)
        chunks += found
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
    return seal(store, to_rows(content, 5, 100, 0), Xxh3KeyHasher(1))


def test_the_example_is_what_is_written(object_store: ObjectStore) -> None:
    ledger = example_ledger(object_store)
    assert object_store.get(ledger.index.name) == hex_block("hex index")
    assert ledger.index.directory == hex_block("hex directory")


def test_the_example_says_what_its_text_says() -> None:
    records, unkeyed = read_index(hex_block("hex index"), read_directory(hex_block("hex directory")))
    digests = re.findall(r"`([0-9a-f]{32})`", PAGE)
    assert sorted(f"{record['high']:016x}{record['low']:016x}" for record in records) == sorted(digests)
    found = [(r["offset"] & (1 << 62) - 1, r["offset"] >> 63, r["event_time"]) for r in records]
    assert found == [(101, 1, 7), (103, 0, -(2**63))]
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
    assert example_manifest().encode() == block("json manifest").strip().encode()


def test_every_member_of_a_manifest_is_on_the_page() -> None:
    document = json.loads(replace(example_manifest(), chunks=(ChunkTable("c", 72, 0),)).encode())
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
    ):
        sentence = PROSE.split(text)[1].split(". ")[0]
        assert set(member) <= set(re.findall(r"`(\w+)`", sentence))


def test_the_deleted_rows_of_a_part_are_read_as_the_page_says(object_store: ObjectStore) -> None:
    name = names.bitmaps(new_id(), new_id(), 0)
    data, places = encode_deleted(name, [BitMap([9]), BitMap([1, 70_000])])
    object_store.put(name, data)
    example = example_manifest()
    document = json.loads(replace(example, parts=(replace(example.parts[0], deleted=places[1], messages=3),)).encode())
    (part,) = document["parts"]
    assert dead_offsets(object_store.get(name), part) == [101, 70_100]


def test_the_directory_of_a_level_is_read_as_the_page_says() -> None:
    directory = json.loads(example_manifest().encode())["index"]["levels"][0][0]["directory"]
    assert read_directory(base64.b64decode(directory))["counts"] == (1,)


def test_the_column_table_is_the_schema(object_store: ObjectStore) -> None:
    table = {cells[0]: cells[1:] for cells in page_table("| column | type | Parquet | null | encoding | meaning |")}
    assert list(table) == rows.SCHEMA.names == list(rows.COLUMN_DOCS)
    ledger = example_ledger(object_store)
    written = pq.ParquetFile(pa.BufferReader(object_store.get(ledger.rows.name))).metadata.row_group(0)
    chunks: dict[str, list[Any]] = {}
    for i in range(written.num_columns):
        chunk = written.column(i)
        chunks.setdefault(chunk.path_in_schema.split(".")[0], []).append(chunk)
    for field in rows.SCHEMA:
        type_, physical, null, encoding, meaning = table[field.name]
        assert type_ == str(field.type)
        assert null == ("yes" if field.nullable else "no")
        assert meaning == rows.COLUMN_DOCS[field.name]
        for chunk in chunks[field.name]:
            assert chunk.physical_type == physical
            assert chunk.compression == "ZSTD"
            assert chunk.dictionary_page_offset is None
            assert not encoding or encoding in chunk.encodings
            unmeasured = field.name in ("key", "payload", "metadata", "properties")
            assert chunk.is_stats_set is not unmeasured


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
    }


def some_of_everything() -> list[dict[str, Any]]:
    """Rows with nulls, ends of ranges, several row groups and payloads of both encodings."""
    plain = {
        "ledger_id": 9,
        "batch_index": -1,
        "batch_size": 0,
        "publish_time": 1_700_000_000_000,
        "codec": 0,
        "slot": 0,
    }
    drawn = []
    for number in range(25):
        row = dict.fromkeys(rows.SCHEMA.names) | plain | {"offset": 2**40 + 3 * number, "entry_id": number}
        row |= {"key": b"\x00\xff%d" % (number % 20), "payload": b"\xfe" * number, "key_base64": number % 2 == 0}
        if number % 3 == 0:
            row |= {"event_time": -number, "sequence_id": 2**62, "producer": "p\u00fc", "metadata": b"\x08\x01"}
            row |= {"properties": [("a", "1"), ("\U0001f600", "")], "codec": 4}
        if number % 3 == 1:
            row |= {"key": None, "payload": None, "properties": [], "slot": 3}
            row |= {
                "chunk_uuid": "u",
                "chunk_index": number,
                "chunk_count": 2**31 - 1,
                "batch_index": 2,
                "batch_size": 3,
            }
        drawn.append(row)
    return drawn


@pytest.fixture(scope="module", params=["small payloads", "large payloads"])
def plain_file(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, object_store: ObjectStore
) -> Any:
    """A rows object as a file, and its rows with properties as a dict."""
    drawn = some_of_everything()
    if request.param == "large payloads":
        for row in drawn:
            row["payload"] = None if row["payload"] is None else row["payload"] * 4_000
    name = f"rows/{new_id()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 10)
        table = pa.Table.from_pylist(drawn, schema=rows.SCHEMA)
        with RowsWriter(object_store, name) as writer:
            writer.write(table, rows.logical_sizes(table))
    path = tmp_path_factory.mktemp("plain") / "ledger.parquet"
    path.write_bytes(object_store.get(name))
    for row in drawn:
        row["properties"] = None if row["properties"] is None else dict(row["properties"])
    return path, drawn


def test_duckdb_reads_rows_as_they_are(plain_file: tuple[Path, list[dict[str, Any]]]) -> None:
    path, drawn = plain_file
    with duckdb.connect() as connection:
        result = connection.execute('SELECT * FROM read_parquet(?) ORDER BY "offset"', [str(path)])
        columns = [column[0] for column in result.description]
        found = [dict(zip(columns, row, strict=True)) for row in result.fetchall()]
    assert found == drawn


def test_the_query_for_duckdb_gives_the_newest_of_each_key(plain_file: tuple[Path, list[dict[str, Any]]]) -> None:
    path, drawn = plain_file
    with duckdb.connect() as connection:
        found = connection.execute(block("sql").replace("ledger.parquet", str(path))).fetchall()
    newest = {row["key"]: row["offset"] for row in drawn if row["slot"] == 0 and row["key"] is not None}
    assert {(row[5], row[0]) for row in found} == set(newest.items())
    assert len(newest) < sum(row["slot"] == 0 for row in drawn)


def test_pandas_reads_rows_as_they_are(plain_file: tuple[Path, list[dict[str, Any]]]) -> None:
    path, drawn = plain_file
    frame = pandas.read_parquet(path, engine="pyarrow", dtype_backend="pyarrow")
    assert list(frame.columns) == rows.SCHEMA.names
    for name in rows.SCHEMA.names:
        found = [None if value is None or value is pandas.NA else value for value in frame[name].tolist()]
        if name == "properties":
            found = [None if value is None else dict(value) for value in found]
        assert found == [row[name] for row in drawn], name


@pytest.mark.slow
def test_spark_reads_rows_as_they_are(plain_file: tuple[Path, list[dict[str, Any]]], spark_engine: Engine) -> None:
    path, drawn = plain_file
    session = SparkSession.builder.getOrCreate()  # the one that spark_engine started
    frame = session.read.parquet(str(path))
    types = dict(frame.dtypes)
    assert (types["codec"], types["slot"], types["properties"]) == ("tinyint", "tinyint", "map<string,string>")
    found = [row.asDict() for row in frame.orderBy("offset").collect()]
    for row in found:
        row |= {name: None if row[name] is None else bytes(row[name]) for name in ("key", "payload", "metadata")}
    assert found == drawn


def test_a_point_in_every_hash_range_is_in_the_fence_that_the_page_computes() -> None:
    random = np.random.default_rng(3)
    hi = np.unique(random.integers(0, 2**64 - 1, 70_000, dtype=np.uint64))
    hi = hi[hi >> np.uint64(62) == 2]
    records = key_index.IndexRecords(hi, hi, np.arange(len(hi), dtype=np.uint64))
    data, directory = key_index.encode_index(records, HashRange(2, 2))
    found, _ = read_index(data, read_directory(directory.encode()))
    assert [record["high"] for record in found] == hi.tolist()
    assert len(directory.counts) == 2
