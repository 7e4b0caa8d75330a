"""Manifests and lists: the values that readers find by field id, and what an entry inherits."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from storage.table.manifests import (
    EntryStatus,
    ManifestContent,
    ManifestEntry,
    decode_live_entries,
    decode_manifest_list,
    encode_manifest,
    encode_manifest_list,
    manifest_file,
)


def file(path: str, records: int, **values: Any) -> dict[str, Any]:
    common = {"content": 0, "file_format": "PARQUET", "partition": {}, "file_size_in_bytes": 9, "first_row_id": None}
    return {"file_path": path, "record_count": records, **common, **values}


ENTRIES = [
    ManifestEntry(EntryStatus.ADDED, 8, None, file("new", 3)),
    ManifestEntry(EntryStatus.EXISTING, 6, 1, file("kept", 4, first_row_id=20)),
    ManifestEntry(EntryStatus.ADDED, 8, None, file("newer", 2)),
    ManifestEntry(EntryStatus.DELETED, 8, 1, file("removed", 5)),
]


def field_ids(schema: Any) -> set[int]:
    """All ids of an Avro schema."""
    if isinstance(schema, list):
        return set().union(*map(field_ids, schema))
    if not isinstance(schema, dict):
        return set()
    own = {schema[name] for name in ("field-id", "element-id") if name in schema}
    inner = [schema.get("type"), schema.get("items"), *schema.get("fields", ())]
    return own.union(*map(field_ids, inner))


@pytest.mark.parametrize("version", [2, 3])
def test_an_entry_inherits_from_the_list_what_it_leaves_out(version: int) -> None:
    data = encode_manifest(version, ManifestContent.DATA, ENTRIES)
    listed = manifest_file("m", len(data), ManifestContent.DATA, 8, 3, 100 if version == 3 else None, ENTRIES)
    entries = decode_live_entries(data, listed)
    assert [(each.file["file_path"], each.sequence_number) for each in entries] == [
        ("new", 3),
        ("kept", 1),
        ("newer", 3),
    ]
    assert all(each.status is EntryStatus.EXISTING for each in entries)
    if version == 3:
        assert [each.file["first_row_id"] for each in entries] == [100, 20, 103]
    again = encode_manifest(version, ManifestContent.DATA, entries)
    assert decode_live_entries(again, listed) == entries
    assert encode_manifest(version, ManifestContent.DATA, ENTRIES) == data, "equal values have equal bytes"


def test_the_headers_and_ids_of_a_manifest() -> None:
    reader = fastavro.reader(io.BytesIO(encode_manifest(3, ManifestContent.DELETES, ENTRIES)))
    assert reader.codec == "deflate"
    header = {name: value for name, value in reader.metadata.items() if not name.startswith("avro.")}
    assert header.pop("schema").startswith('{"type": "struct", "schema-id": 0')
    assert header == {
        "schema-id": "0",
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "3",
        "content": "deletes",
    }
    v3 = field_ids(reader.writer_schema)
    assert v3 >= {0, 1, 2, 3, 4, 100, 101, 102, 103, 104, 108, 117, 118, 132, 133, 134, 140, 142, 143, 144, 145}
    v2 = field_ids(fastavro.reader(io.BytesIO(encode_manifest(2, ManifestContent.DATA, ENTRIES))).writer_schema)
    assert v3 - v2 == {142, 144, 145}


def test_a_list_counts_the_files_of_its_manifests() -> None:
    listed = manifest_file("m", 77, ManifestContent.DATA, 8, 3, 100, ENTRIES)
    data = encode_manifest_list(3, 8, None, 3, 100, [listed])
    reader = fastavro.reader(io.BytesIO(data))
    assert {name: value for name, value in reader.metadata.items() if not name.startswith("avro.")} == {
        "snapshot-id": "8",
        "parent-snapshot-id": "null",
        "sequence-number": "3",
        "format-version": "3",
        "first-row-id": "100",
    }
    (record,) = reader
    assert record == {
        "manifest_path": "m",
        "manifest_length": 77,
        "partition_spec_id": 0,
        "content": 0,
        "sequence_number": 3,
        "min_sequence_number": 1,
        "added_snapshot_id": 8,
        "added_files_count": 2,
        "existing_files_count": 1,
        "deleted_files_count": 1,
        "added_rows_count": 5,
        "existing_rows_count": 4,
        "deleted_rows_count": 5,
        "partitions": None,
        "first_row_id": 100,
    }
    assert decode_manifest_list(data) == [listed]
    assert decode_manifest_list(encode_manifest_list(3, 8, 6, 3, 0, [])) == []
    assert 520 not in field_ids(fastavro.reader(io.BytesIO(encode_manifest_list(2, 8, 6, 3, 0, []))).writer_schema)


@pytest.mark.parametrize("data", [b"", b"Obj\x01", b"{}"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"Avro file|header|read"):
        decode_manifest_list(data)
