"""The registry of schemas: which may follow which, by Pulsar's strategies, and what a request loads."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from api.broker import schemas
from api.broker.avro_resolution import DEFINITION_BYTES
from api.broker.schema_compatibility import SchemaType
from api.broker.schema_processes import SchemaProcesses
from api.broker.schemas import IncompatibleSchema, InvalidSchema, SchemaRegistry
from storage.metadata.schemas import SchemaRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock

TOPIC = TopicName.parse("t")


def avro(*fields: dict[str, Any], name: str = "User", indent: int | None = None) -> SchemaRecord:
    data = {"type": "record", "name": name, "fields": [{"name": "id", "type": "int"}, *fields]}
    return SchemaRecord(-1, SchemaType.AVRO, "User", json.dumps(data, indent=indent).encode())


FIRST = avro()
OPTIONAL = avro({"name": "town", "type": ["null", "string"], "default": None})
REQUIRED = avro({"name": "town", "type": "string"})
TEXT = SchemaRecord(-1, SchemaType.STRING, "text", b"")
AUTO_CONSUME = 21


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[MetadataStore]:
    store = MetadataStore(f"sqlite:///{tmp_path / 'metadata.db'}", ManualClock())
    store.upgrade()
    yield store
    store.close()


class Registry(SchemaRegistry):
    """A registry, and the metadata that it reads."""

    def __init__(self, metadata: MetadataStore) -> None:
        super().__init__(metadata, SchemaProcesses())
        self.metadata = metadata


@pytest.fixture
def registry(metadata: MetadataStore) -> Registry:
    return Registry(metadata)


def use(monkeypatch: pytest.MonkeyPatch, registry: Registry, strategy: str) -> None:
    monkeypatch.setattr(registry, "compatibility_strategy", lambda topic: strategy)


def may_follow(registry: Registry, new: SchemaRecord, *before: SchemaRecord) -> bool:
    registry.metadata.schemas.delete(TOPIC)
    for version, schema in enumerate(before):
        registry.metadata.schemas.add(TOPIC, schema, version)
    try:
        registry.check_compatible(TOPIC, new)
    except (IncompatibleSchema, InvalidSchema):
        return False
    return True


@pytest.mark.parametrize(
    ("strategy", "optional", "required", "back", "text"),
    [
        ("ALWAYS_COMPATIBLE", True, True, True, True),
        ("ALWAYS_INCOMPATIBLE", False, False, False, False),
        ("FULL", True, False, False, False),
        ("UNDEFINED", True, False, False, False),
        ("FULL_TRANSITIVE", True, False, False, False),
        ("BACKWARD", True, False, True, False),
        ("BACKWARD_TRANSITIVE", True, False, True, False),
        ("FORWARD", True, True, False, False),
        ("FORWARD_TRANSITIVE", True, True, False, False),
    ],
)
def test_each_strategy(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    optional: bool,
    required: bool,
    back: bool,
    text: bool,
) -> None:
    use(monkeypatch, registry, strategy)
    assert may_follow(registry, OPTIONAL, FIRST) is optional
    assert may_follow(registry, REQUIRED, FIRST) is required
    assert may_follow(registry, FIRST, REQUIRED) is back
    assert may_follow(registry, TEXT, FIRST) is text
    assert may_follow(registry, REQUIRED)


@pytest.mark.parametrize("strategy", ["FULL", "FORWARD", "BACKWARD"])
def test_a_record_of_another_name_may_follow(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    use(monkeypatch, registry, strategy)
    assert may_follow(registry, avro(name="Customer"), FIRST)


@pytest.mark.parametrize("data", [b"{", b'{"type":"array","items":' * 20_000 + b'"int"' + b"}" * 20_000])
def test_a_malformed_or_deep_definition_is_refused(registry: Registry, data: bytes) -> None:
    with pytest.raises(InvalidSchema):
        registry.ensure(TOPIC, SchemaRecord(-1, SchemaType.AVRO, "x", data))


def test_transitive_strategies_compare_all_versions(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = avro({"name": "town", "type": "string", "default": ""})
    oldest = avro({"name": "town", "type": "int"})
    use(monkeypatch, registry, "BACKWARD")
    assert may_follow(registry, newest, oldest, FIRST)
    use(monkeypatch, registry, "BACKWARD_TRANSITIVE")
    assert not may_follow(registry, newest, oldest, FIRST)


def test_a_request_loads_no_more_definitions_than_it_needs(
    registry: Registry, metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in range(5):
        field = {"name": f"f{version}", "type": ["null", "int"], "default": None}
        metadata.schemas.add(TOPIC, avro(field), version)
    loaded: list[int] = []
    load = metadata.schemas.versions

    def versions(topic: TopicName, numbers: Collection[int]) -> list[SchemaRecord]:
        loaded.extend(numbers)
        return load(topic, numbers)

    monkeypatch.setattr(metadata.schemas, "versions", versions)
    monkeypatch.setattr(schemas, "LAYOUT_BYTES", 0)
    assert registry.ensure(TOPIC, avro({"name": "f2", "type": ["null", "int"], "default": None})).version == 2
    assert loaded == []
    assert registry.ensure(TOPIC, OPTIONAL).version == 5
    assert loaded == [4]
    assert registry.find(TOPIC) == load(TOPIC, [5])[0]
    assert loaded == [4, 5]


def test_a_definition_of_another_layout_is_the_same(registry: Registry) -> None:
    registry.ensure(TOPIC, FIRST)
    registry.ensure(TOPIC, OPTIONAL)
    assert registry.ensure(TOPIC, avro(indent=2)).version == 0


def test_bounds_of_a_definition_and_of_a_topic(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    large = SchemaRecord(-1, SchemaType.STRING, "x", b"x" * (DEFINITION_BYTES + 1))
    with pytest.raises(InvalidSchema, match=f"and {DEFINITION_BYTES} are allowed"):
        registry.ensure(TOPIC, large)
    registry.ensure(TOPIC, FIRST)
    monkeypatch.setattr(schemas, "TOPIC_BYTES", len(FIRST.data) + 1)
    with pytest.raises(IncompatibleSchema, match="together with it"):
        registry.ensure(TOPIC, OPTIONAL)


def test_a_type_without_meaning_is_refused_and_counts_as_absent(registry: Registry, metadata: MetadataStore) -> None:
    unknown = SchemaRecord(-1, AUTO_CONSUME, "x", b"")
    with pytest.raises(InvalidSchema, match="type 21 cannot be stored"):
        registry.ensure(TOPIC, unknown)
    metadata.schemas.add(TOPIC, unknown, 0)  # as earlier releases did
    assert (registry.find(TOPIC), registry.find(TOPIC, 0), registry.load_versions(TOPIC)) == (None, None, [])
    assert registry.ensure(TOPIC, TEXT).version == 1
    registry.store_if_first_or_check_readable(TOPIC, TEXT)
    with pytest.raises(IncompatibleSchema, match="it is of type STRING, the new one of type AVRO"):
        registry.ensure(TOPIC, FIRST)


def test_a_consumer_reads_the_newest_version(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.store_if_first_or_check_readable(TOPIC, FIRST)
    registry.store_if_first_or_check_readable(TOPIC, OPTIONAL)
    assert len(registry.outlines(TOPIC)) == 1
    with pytest.raises(IncompatibleSchema, match=r"a consumer with it cannot read version 0: .*town"):
        registry.store_if_first_or_check_readable(TOPIC, REQUIRED)
    use(monkeypatch, registry, "FORWARD")
    registry.store_if_first_or_check_readable(TOPIC, REQUIRED)
    with pytest.raises(IncompatibleSchema):
        registry.store_if_first_or_check_readable(TOPIC, TEXT)
