"""Manifests and manifest lists of a table: Avro, written once and never changed.

A manifest lists files, with a status in the snapshot that wrote the manifest; a manifest list has the manifests of one
snapshot. Readers find fields by Avro's `field-id`. Each snapshot has at most two manifests, of all data files and of
all delete files, and writes both again.

An entry leaves its sequence numbers, and the id of its first row, to the manifest list until a later snapshot copies
it: `decode_live_entries` fills them in.

Pure. Errors: ValueError for bytes that are no manifest. Specification: https://iceberg.apache.org/spec/#manifests.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from storage.table.schema import SCHEMA, SCHEMA_ID


class ManifestContent(IntEnum):
    """The content of a manifest, and of the files in it."""

    DATA = 0
    DELETES = 1


class EntryStatus(IntEnum):
    """The status of a file in the snapshot of its manifest."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True)
class ManifestEntry:
    """A file in a manifest. `snapshot_id`: of the snapshot that added or deleted it.

    `sequence_number`: of the snapshot that added it; None: the one that writes the manifest. `file`: Iceberg's record
    `data_file`.
    """

    status: EntryStatus
    snapshot_id: int
    sequence_number: int | None
    file: Mapping[str, Any]

    @property
    def record_count(self) -> int:
        """The number of rows of the data file, or of hidden rows of the delete file."""
        return int(self.file["record_count"])


@dataclass(frozen=True)
class ManifestFile:
    """A manifest in a manifest list: Iceberg's record `manifest_file`."""

    record: Mapping[str, Any]

    @property
    def uri(self) -> str:
        """The manifest's URI."""
        return str(self.record["manifest_path"])

    @property
    def content(self) -> ManifestContent:
        """The content of the manifest."""
        return ManifestContent(self.record["content"])


def _avro_field(name: str, kind: Any, field_id: int, *, optional: bool = False) -> dict[str, Any]:
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}
    return {"name": name, "type": kind, "field-id": field_id}


def _avro_map(key_id: int, value_id: int, value: str) -> dict[str, Any]:
    """Return the type of a map with integer keys: Avro's own maps have texts as keys."""
    fields = [_avro_field("key", "int", key_id), _avro_field("value", value, value_id)]
    pair = {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": fields}
    return {"type": "array", "logicalType": "map", "items": pair}


def _manifest_entry_schema(format_version: int) -> dict[str, Any]:
    is_v3 = format_version >= 3
    file = [
        _avro_field("content", "int", 134),
        _avro_field("file_path", "string", 100),
        _avro_field("file_format", "string", 101),
        _avro_field("partition", {"type": "record", "name": "r102", "fields": []}, 102),
        _avro_field("record_count", "long", 103),
        _avro_field("file_size_in_bytes", "long", 104),
        _avro_field("column_sizes", _avro_map(117, 118, "long"), 108, optional=True),
        _avro_field("value_counts", _avro_map(119, 120, "long"), 109, optional=True),
        _avro_field("null_value_counts", _avro_map(121, 122, "long"), 110, optional=True),
        _avro_field("lower_bounds", _avro_map(126, 127, "bytes"), 125, optional=True),
        _avro_field("upper_bounds", _avro_map(129, 130, "bytes"), 128, optional=True),
        _avro_field("split_offsets", {"type": "array", "items": "long", "element-id": 133}, 132, optional=True),
        _avro_field("sort_order_id", "int", 140, optional=True),
        *([_avro_field("first_row_id", "long", 142, optional=True)] if is_v3 else []),
        _avro_field("referenced_data_file", "string", 143, optional=True),
        *([_avro_field("content_offset", "long", 144, optional=True)] if is_v3 else []),
        *([_avro_field("content_size_in_bytes", "long", 145, optional=True)] if is_v3 else []),
    ]
    entry = [
        _avro_field("status", "int", 0),
        _avro_field("snapshot_id", "long", 1, optional=True),
        _avro_field("sequence_number", "long", 3, optional=True),
        _avro_field("file_sequence_number", "long", 4, optional=True),
        _avro_field("data_file", {"type": "record", "name": "r2", "fields": file}, 2),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": entry}


def _manifest_list_schema(format_version: int) -> dict[str, Any]:
    summary = [
        _avro_field("contains_null", "boolean", 509),
        _avro_field("contains_nan", "boolean", 518, optional=True),
        _avro_field("lower_bound", "bytes", 510, optional=True),
        _avro_field("upper_bound", "bytes", 511, optional=True),
    ]
    partitions = {
        "type": "array",
        "element-id": 508,
        "items": {"type": "record", "name": "r508", "fields": summary},
    }
    fields = [
        _avro_field("manifest_path", "string", 500),
        _avro_field("manifest_length", "long", 501),
        _avro_field("partition_spec_id", "int", 502),
        _avro_field("content", "int", 517),
        _avro_field("sequence_number", "long", 515),
        _avro_field("min_sequence_number", "long", 516),
        _avro_field("added_snapshot_id", "long", 503),
        _avro_field("added_files_count", "int", 504),
        _avro_field("existing_files_count", "int", 505),
        _avro_field("deleted_files_count", "int", 506),
        _avro_field("added_rows_count", "long", 512),
        _avro_field("existing_rows_count", "long", 513),
        _avro_field("deleted_rows_count", "long", 514),
        _avro_field("partitions", partitions, 507, optional=True),
        *([_avro_field("first_row_id", "long", 520, optional=True)] if format_version >= 3 else []),
    ]
    return {"type": "record", "name": "manifest_file", "fields": fields}


def encode_manifest(format_version: int, content: ManifestContent, entries: Sequence[ManifestEntry]) -> bytes:
    """Return the bytes of a manifest."""
    header = {
        "schema": json.dumps(dict(SCHEMA)),
        "schema-id": SCHEMA_ID,
        "partition-spec": "[]",
        "partition-spec-id": 0,
        "format-version": format_version,
        "content": content.name.lower(),
    }
    records = [
        {
            "status": int(entry.status),
            "snapshot_id": entry.snapshot_id,
            "sequence_number": entry.sequence_number,
            "file_sequence_number": entry.sequence_number,
            "data_file": entry.file,
        }
        for entry in entries
    ]
    return _encode_avro(_manifest_entry_schema(format_version), records, header)


def encode_manifest_list(
    format_version: int,
    snapshot_id: int,
    parent_id: int | None,
    sequence_number: int,
    first_row_id: int,
    manifests: Sequence[ManifestFile],
) -> bytes:
    """Return the bytes of the manifest list of a snapshot. `parent_id`: the snapshot before; None: there is none."""
    header: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": "null" if parent_id is None else parent_id,
        "sequence-number": sequence_number,
        "format-version": format_version,
    }
    if format_version >= 3:
        header["first-row-id"] = first_row_id
    return _encode_avro(_manifest_list_schema(format_version), [manifest.record for manifest in manifests], header)


def manifest_file(
    uri: str,
    size: int,
    content: ManifestContent,
    snapshot_id: int,
    sequence_number: int,
    first_row_id: int | None,
    entries: Sequence[ManifestEntry],
) -> ManifestFile:
    """Return the entry of a new manifest in the list of the snapshot that writes it.

    `first_row_id`: of the first row of the added files; None: the manifest has none.
    """
    by_status = {status: [entry for entry in entries if entry.status is status] for status in EntryStatus}
    files = {status: len(each) for status, each in by_status.items()}
    records = {status: sum(entry.record_count for entry in each) for status, each in by_status.items()}
    live = [entry for entry in entries if entry.status is not EntryStatus.DELETED]
    sequences = [sequence_number if entry.sequence_number is None else entry.sequence_number for entry in live]
    return ManifestFile(
        {
            "manifest_path": uri,
            "manifest_length": size,
            "partition_spec_id": 0,
            "content": int(content),
            "sequence_number": sequence_number,
            "min_sequence_number": min(sequences, default=sequence_number),
            "added_snapshot_id": snapshot_id,
            "added_files_count": files[EntryStatus.ADDED],
            "existing_files_count": files[EntryStatus.EXISTING],
            "deleted_files_count": files[EntryStatus.DELETED],
            "added_rows_count": records[EntryStatus.ADDED],
            "existing_rows_count": records[EntryStatus.EXISTING],
            "deleted_rows_count": records[EntryStatus.DELETED],
            "partitions": None,
            "first_row_id": first_row_id,
        }
    )


def decode_manifest_list(data: bytes) -> list[ManifestFile]:
    """Return the manifests of a snapshot. Raises ValueError."""
    return [ManifestFile(record) for record in _decode_avro(data)]


def decode_live_entries(data: bytes, listed: ManifestFile) -> list[ManifestEntry]:
    """Return the live files of a manifest, as EXISTING. `listed`: its record in its list. Raises ValueError."""
    entries = []
    next_row_id = listed.record.get("first_row_id")
    for record in _decode_avro(data):
        entry = ManifestEntry(
            EntryStatus(record["status"]), record["snapshot_id"], record["sequence_number"], record["data_file"]
        )
        if entry.status is EntryStatus.DELETED:
            continue
        if entry.sequence_number is None:
            entry = replace(entry, sequence_number=int(listed.record["sequence_number"]))
        if listed.content is ManifestContent.DATA and next_row_id is not None and entry.file["first_row_id"] is None:
            entry = replace(entry, file={**entry.file, "first_row_id": next_row_id})
            next_row_id += entry.record_count
        entries.append(replace(entry, status=EntryStatus.EXISTING))
    return entries


def _encode_avro(schema: dict[str, Any], records: Sequence[Mapping[str, Any]], header: Mapping[str, Any]) -> bytes:
    import fastavro  # it takes 0.2 s, which only processes with tables spend

    metadata = {name: str(value) for name, value in header.items()}
    # The marker between blocks is any 16 bytes that the blocks do not have; this one makes equal bytes of equal values.
    marker = hashlib.blake2b(repr((metadata, records)).encode(), digest_size=16).digest()
    sink = io.BytesIO()
    fastavro.writer(
        sink, fastavro.parse_schema(schema), records, codec="deflate", metadata=metadata, sync_marker=marker
    )
    return sink.getvalue()


def _decode_avro(data: bytes) -> list[dict[str, Any]]:
    import fastavro

    try:
        records: list[Any] = list(fastavro.reader(io.BytesIO(data)))
    except (EOFError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"it is no Avro file ({error})") from error
    return records
