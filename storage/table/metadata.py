"""Table metadata: the JSON file that a catalog hands out, one for each snapshot, never changed.

A snapshot is a compacted ledger: its id is the ledger's, its sequence number the generation. The file lists the newest
snapshots; a snapshot that a later file leaves out has expired. Times and sequence numbers never go back.

`gc.enabled` is false, so that Spark refuses to expire snapshots and to remove files: objects belong to the topic, whose
garbage collection knows more readers than this table.

Pure. Specification: https://iceberg.apache.org/spec/#table-metadata.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.table.schema import LAST_COLUMN_ID, NAME_MAPPING, SCHEMA, SCHEMA_ID


@dataclass(frozen=True)
class Snapshot:
    """A new snapshot of a table. `summary`: Iceberg's, without `operation`.

    `first_row_id`, `added_rows`: ids of the rows of added files; version 2 has none.
    """

    snapshot_id: int
    sequence_number: int
    created_at: int
    manifest_list: str
    operation: str
    summary: Mapping[str, str]
    first_row_id: int
    added_rows: int


@dataclass(frozen=True)
class TableMetadata:
    """The content of a metadata file. Raises ValueError for bytes that are none."""

    document: Mapping[str, Any]

    @classmethod
    def decode(cls, data: bytes) -> TableMetadata:
        """Return the content of a metadata file."""
        document = json.loads(data)
        if not isinstance(document, dict) or "current-snapshot-id" not in document:
            raise ValueError("it is no table metadata")
        return cls(document)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return json.dumps(self.document).encode()

    @property
    def format_version(self) -> int:
        """Iceberg's format version."""
        return int(self.document["format-version"])

    @property
    def snapshot_id(self) -> int:
        """The id of the current snapshot, a compacted ledger."""
        return int(self.document["current-snapshot-id"])

    @property
    def snapshots(self) -> Sequence[Mapping[str, Any]]:
        """The listed snapshots, oldest first."""
        snapshots: Sequence[Mapping[str, Any]] = self.document["snapshots"]
        return snapshots

    @property
    def current_snapshot(self) -> Mapping[str, Any]:
        """The current snapshot."""
        return next(each for each in self.snapshots if each["snapshot-id"] == self.snapshot_id)

    @property
    def next_row_id(self) -> int:
        """The id of the next added row; 0 in version 2."""
        return int(self.document.get("next-row-id", 0))


def initial_metadata(format_version: int, topic: str, topic_uid: str, location: str) -> TableMetadata:
    """Return the metadata of a table without snapshots, which no catalog hands out. `location`: the URI of all objects.

    The table's uuid is the topic's uid, so a topic that is created again under its name is another table.
    """
    document: dict[str, Any] = {
        "format-version": format_version,
        "table-uuid": str(uuid.UUID(topic_uid)),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": LAST_COLUMN_ID,
        "current-schema-id": SCHEMA_ID,
        "schemas": [dict(SCHEMA)],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {
            "schema.name-mapping.default": json.dumps(NAME_MAPPING),
            "gc.enabled": "false",
            "compactor.topic": topic,
        },
        "current-snapshot-id": -1,
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "refs": {},
    }
    if format_version >= 3:
        document["next-row-id"] = 0
    return TableMetadata(document)


def next_metadata(
    before: TableMetadata, before_uri: str | None, new: Snapshot, max_age_ms: int, max_snapshots: int
) -> TableMetadata:
    """Return the metadata with a new current snapshot. `before_uri`: of the file of `before`; None: it has none.

    An older snapshot stays if a newer one replaced it less than `max_age_ms` ago. At most `max_snapshots` are listed,
    the new one among them.
    """
    document = dict(before.document)
    now = max(new.created_at, document["last-updated-ms"])
    parent = before.snapshot_id if before.snapshots else None
    snapshot: dict[str, Any] = {
        "snapshot-id": new.snapshot_id,
        **({} if parent is None else {"parent-snapshot-id": parent}),
        "sequence-number": new.sequence_number,
        "timestamp-ms": now,
        "manifest-list": new.manifest_list,
        "summary": {"operation": new.operation, **new.summary},
        "schema-id": SCHEMA_ID,
    }
    if before.format_version >= 3:
        snapshot |= {"first-row-id": new.first_row_id, "added-rows": new.added_rows}
        document["next-row-id"] = new.first_row_id + new.added_rows
    listed = [*before.snapshots, snapshot]
    replaced_at = [following["timestamp-ms"] for following in listed[1:]]
    young = [each for each, since in zip(listed, replaced_at, strict=False) if now - since < max_age_ms]
    kept = [*young, snapshot][-max_snapshots:]
    times = [{"snapshot-id": each["snapshot-id"], "timestamp-ms": each["timestamp-ms"]} for each in kept]
    # Files of listed snapshots exist, those of expired ones may be deleted.
    log = list(document["metadata-log"])
    if before_uri is not None:
        log.append({"timestamp-ms": document["last-updated-ms"], "metadata-file": before_uri})
    document |= {
        "last-sequence-number": new.sequence_number,
        "last-updated-ms": now,
        "current-snapshot-id": new.snapshot_id,
        "snapshots": kept,
        "snapshot-log": times,
        "metadata-log": log[len(log) - min(len(log), len(kept) - 1) :],
        "refs": {"main": {"snapshot-id": new.snapshot_id, "type": "branch"}},
    }
    return TableMetadata(document)
