"""Table metadata: the document of a first and a later snapshot, and which snapshots stay."""

from __future__ import annotations

import json

import pytest

from storage.ledger import rows
from storage.table.metadata import Snapshot, TableMetadata, initial_metadata, next_metadata
from storage.table.schema import NAME_MAPPING, SCHEMA, SHOWN

UID = "0a" * 16
DAY = 86_400_000


def empty(version: int = 3) -> TableMetadata:
    return initial_metadata(version, "persistent://public/default/t", UID, "s3://bucket/topics/" + UID)


def snapshot(ledger_id: int, created_at: int = 1000, added: int = 5, first: int = 0) -> Snapshot:
    return Snapshot(
        ledger_id, ledger_id - 5, created_at, f"s3://list-{ledger_id}", "overwrite", {"a": "1"}, first, added
    )


def test_the_document_of_a_first_snapshot() -> None:
    document = json.loads(next_metadata(empty(), None, snapshot(6), DAY, 10).encode())
    mapping = json.loads(document["properties"].pop("schema.name-mapping.default"))
    assert mapping == NAME_MAPPING
    assert document.pop("schemas") == [SCHEMA]
    assert document == {
        "format-version": 3,
        "table-uuid": "0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a",
        "location": "s3://bucket/topics/" + UID,
        "last-sequence-number": 1,
        "last-updated-ms": 1000,
        "last-column-id": 24,
        "current-schema-id": 0,
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"gc.enabled": "false", "compactor.topic": "persistent://public/default/t"},
        "current-snapshot-id": 6,
        "snapshots": [
            {
                "snapshot-id": 6,
                "sequence-number": 1,
                "timestamp-ms": 1000,
                "manifest-list": "s3://list-6",
                "summary": {"operation": "overwrite", "a": "1"},
                "schema-id": 0,
                "first-row-id": 0,
                "added-rows": 5,
            }
        ],
        "snapshot-log": [{"snapshot-id": 6, "timestamp-ms": 1000}],
        "metadata-log": [],
        "refs": {"main": {"snapshot-id": 6, "type": "branch"}},
        "next-row-id": 5,
    }


def test_a_later_snapshot_continues_the_table_and_no_time_goes_back() -> None:
    first = next_metadata(empty(), None, snapshot(6), DAY, 10)
    second = next_metadata(first, "s3://first", snapshot(8, created_at=700, added=2, first=5), DAY, 10)
    assert [each["snapshot-id"] for each in second.snapshots] == [6, 8]
    assert second.current_snapshot["parent-snapshot-id"] == 6
    assert second.current_snapshot["timestamp-ms"] == second.document["last-updated-ms"] == 1000
    assert second.document["metadata-log"] == [{"timestamp-ms": 1000, "metadata-file": "s3://first"}]
    assert second.next_row_id == 7
    assert TableMetadata.decode(second.encode()) == second


def test_version_2_has_no_row_ids() -> None:
    document = next_metadata(empty(2), None, snapshot(6), DAY, 10).document
    assert document["format-version"] == 2
    assert "next-row-id" not in document
    assert not {"first-row-id", "added-rows"} & document["snapshots"][0].keys()


def test_a_snapshot_expires_by_the_time_since_the_next_one_and_by_number() -> None:
    table = next_metadata(empty(), None, snapshot(6, 0), 100, 3)
    for ledger_id, created_at in ((7, 50), (8, 140), (9, 151), (10, 152), (11, 153), (12, 252)):
        table = next_metadata(table, f"m{ledger_id}", snapshot(ledger_id, created_at), 100, 3)
        listed = [each["snapshot-id"] for each in table.snapshots]
        expected = {7: [6, 7], 8: [6, 7, 8], 9: [7, 8, 9], 10: [8, 9, 10], 11: [9, 10, 11], 12: [10, 11, 12]}
        assert listed == expected[ledger_id]
        assert len(table.document["metadata-log"]) == len(listed) - 1
    assert [each["snapshot-id"] for each in next_metadata(table, "m", snapshot(13, 253), 100, 10).snapshots] == [
        11,
        12,
        13,
    ]
    assert [each["snapshot-id"] for each in next_metadata(table, "m", snapshot(13, 253), 0, 10).snapshots] == [13]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no table metadata|Expecting value|decode"):
        TableMetadata.decode(data)


def test_the_name_mapping_has_every_column_of_a_part_under_its_own_name() -> None:
    """I2, I3: some readers read nulls otherwise, silently."""
    assert {each["names"][0]: each["field-id"] for each in NAME_MAPPING} == {
        name: rows.FIELD_IDS[name] for name in rows.SCHEMA.names
    }
    assert all(len(each["names"]) == 1 for each in NAME_MAPPING)
    assert {field["name"] for field in SCHEMA["fields"]} == SHOWN.keys() <= set(rows.SCHEMA.names)


def test_keys_and_payloads_are_binary_and_times_are_numbers() -> None:
    """I5, I8: parts do not mark them as texts or times."""
    types = {field["name"]: field["type"] for field in SCHEMA["fields"]}
    assert (types["key"], types["payload"]) == ("binary", "binary")
    assert (types["publish_time"], types["event_time"]) == ("long", "long")


def test_no_other_program_may_remove_files_of_the_table() -> None:
    """I6."""
    assert empty().document["properties"]["gc.enabled"] == "false"
