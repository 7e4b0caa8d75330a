"""Versions of a schema on a topic's page: the newest, each with its difference to the version before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.broker.schema_compatibility import SchemaType, join_parts
from api.broker.schema_processes import SchemaProcesses
from api.broker.schemas import SchemaRegistry
from api.dashboard.schema_versions import (
    MOST_BYTES,
    MOST_LINES,
    SHOWN,
    DiffLine,
    SchemaVersion,
    definition_lines,
    diff_lines,
    schema_history,
)
from storage.metadata.schemas import SchemaRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock

TOPIC = TopicName.parse("t")


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[MetadataStore]:
    store = MetadataStore(f"sqlite:///{tmp_path / 'metadata.db'}", ManualClock())
    store.upgrade()
    yield store
    store.close()


def record(*fields: str, indent: int | None = None, kind: int = SchemaType.AVRO) -> SchemaRecord:
    content = {"type": "record", "name": "User", "fields": [{"name": name, "type": "string"} for name in fields]}
    return SchemaRecord(-1, kind, "User", json.dumps(content, indent=indent).encode())


def history(metadata: MetadataStore, *schemas: SchemaRecord) -> list[SchemaVersion]:
    """Store versions of the topic's schema, and return those of its page."""
    for version, schema in enumerate(schemas):
        metadata.schemas.add(TOPIC, schema, version)
    listed = schema_history(SchemaRegistry(metadata, SchemaProcesses()), TOPIC)
    assert listed.total == len(schemas)
    return list(listed.versions)


def changed(version: SchemaVersion) -> list[str]:
    """Return the lines that a version adds and removes."""
    assert version.lines is not None
    return [line.text for line in version.lines if line.kind in ("added", "removed")]


def test_a_version_is_compared_with_the_one_before(metadata: MetadataStore) -> None:
    newest, oldest = history(metadata, record("name"), record("name", "town"))
    assert (newest.version, newest.type, newest.previous, newest.created_at) == (1, "AVRO", 0, oldest.created_at)
    assert '+      "name": "town",' in changed(newest)
    assert not [line for line in changed(newest) if line.startswith("-") and "town" in line]
    assert oldest.previous is None
    assert oldest.lines is not None
    assert DiffLine("same", '      "name": "name",') in oldest.lines


def test_layout_alone_makes_no_difference_and_a_type_does(metadata: MetadataStore) -> None:
    other_type, other_layout, _ = history(
        metadata, record("a"), record("a", indent=4), record("a", kind=SchemaType.JSON)
    )
    assert other_layout.lines == []
    assert changed(other_type) == ["-type: AVRO", "+type: JSON"]


def test_the_newest_versions_are_listed(metadata: MetadataStore) -> None:
    versions = history(metadata, *(record(f"field{number}") for number in range(SHOWN + 5)))
    assert [item.version for item in versions] == list(range(SHOWN + 4, 4, -1))
    assert versions[-1].previous == 4
    assert '-      "name": "field4",' in changed(versions[-1])


def test_a_long_definition_is_listed_without_its_lines(metadata: MetadataStore) -> None:
    long = SchemaRecord(-1, SchemaType.AVRO, "", json.dumps({"doc": "x" * MOST_BYTES}).encode())
    after, itself, before = history(metadata, record("a"), long, record("b"))
    assert after.lines is None
    assert itself.lines is None
    assert before.lines
    assert diff_lines(["a"], ["a"] * (MOST_LINES + 1)) is None


def test_no_schema(metadata: MetadataStore) -> None:
    assert history(metadata) == []


@pytest.mark.parametrize(
    ("schema", "lines"),
    [
        (SchemaRecord(0, SchemaType.STRING, "", b""), ["type: STRING"]),
        (SchemaRecord(0, SchemaType.AVRO, "", b"no json", {"a": "1"}), ["type: AVRO", "property a: 1", "no json"]),
        (SchemaRecord(0, SchemaType.JSON, "", b"[" * 100_000), ["type: JSON", "[" * 100_000]),
        (
            SchemaRecord(0, SchemaType.KEY_VALUE, "", join_parts(b'"string"', b'{"a":1}')),
            ["type: KEY_VALUE", "key:", '"string"', "value:", "{", '  "a": 1', "}"],
        ),
        (SchemaRecord(0, SchemaType.KEY_VALUE, "", b"x"), ["type: KEY_VALUE", "x"]),
    ],
)
def test_the_lines_of_a_definition(schema: SchemaRecord, lines: list[str]) -> None:
    assert definition_lines(schema) == lines
