"""Schemas of topics: stored with a version, given to who asks, and a new one refused that does not fit the others.

The service does not look into messages: a schema is kept for the clients, which encode and decode. Whether a new
version may follow those that are there is Pulsar's rule of the topic's `schema.compatibility-strategy`: for Avro and
JSON (whose definitions are Avro's) by Avro's own rules of resolution; any other type must stay as it is.

For threads: it reads SQL, and compares definitions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException

from api.gateway.commands import Refused
from api.gateway.pulsar_api_pb2 import Schema, ServerError
from storage.metadata.schemas import SchemaRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName

_AVRO = frozenset((int(Schema.Avro), int(Schema.Json)))
_TRIES = 5


class SchemaRegistry:
    """The schemas of all topics."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    def find(self, topic: TopicName, version: bytes | None = None) -> SchemaRecord | None:
        """A version of a topic's schema, the newest if none is named; None: there is none."""
        versions = self._metadata.schemas.of_topic(topic)
        if version:
            return next((item for item in versions if version_bytes(item) == version), None)
        return versions[-1] if versions else None

    def ensure(self, topic: TopicName, schema: Schema, strategy: str) -> SchemaRecord:
        """The version that holds a schema, stored if it is new. Raises Refused where it does not fit."""
        wanted = SchemaRecord(
            -1,
            int(schema.type),
            schema.name,
            schema.schema_data,
            {item.key: item.value for item in schema.properties},
        )
        for _ in range(_TRIES):
            versions = self._metadata.schemas.of_topic(topic)
            for found in versions:
                if _is_same(found, wanted):
                    return found
            check_follows(topic, wanted, versions, strategy)
            version = versions[-1].version + 1 if versions else 0
            if self._metadata.schemas.add(topic, wanted, version):
                return SchemaRecord(version, wanted.type, wanted.name, wanted.data, wanted.properties)
        raise Refused(ServerError.ServiceNotReady, f"the schema of {topic} is changed by many at once: try again")

    def check_consumer(self, topic: TopicName, schema: Schema, strategy: str) -> None:
        """Raises Refused unless a consumer with that schema can read what the newest one describes."""
        versions = self._metadata.schemas.of_topic(topic)
        if versions and strategy != "ALWAYS_COMPATIBLE":
            wanted = SchemaRecord(-1, int(schema.type), schema.name, schema.schema_data)
            if not _is_same(versions[-1], wanted):
                check_type(topic, wanted, versions[-1])
                if wanted.type in _AVRO and strategy != "FORWARD" and not reads(wanted, versions[-1]):
                    raise _incompatible(topic, "a consumer with it cannot read what the newest one describes")


def check_follows(topic: TopicName, new: SchemaRecord, versions: Sequence[SchemaRecord], strategy: str) -> None:
    """Raises Refused unless a schema may be the next version."""
    if new.type in _AVRO:
        _definition(new)
    if not versions or strategy == "ALWAYS_COMPATIBLE":
        return
    if strategy == "ALWAYS_INCOMPATIBLE":
        raise _incompatible(topic, "the topic's strategy allows no other than the first")
    check_type(topic, new, versions[-1])
    if new.type not in _AVRO:
        raise _incompatible(topic, "only Avro and JSON schemas can change")
    before = versions if strategy.endswith("TRANSITIVE") else versions[-1:]
    kind = strategy.removesuffix("_TRANSITIVE")
    for old in before:
        if kind in ("BACKWARD", "FULL", "UNDEFINED") and not reads(new, old):
            raise _incompatible(topic, f"it cannot read what version {old.version} describes")
        if kind in ("FORWARD", "FULL", "UNDEFINED") and not reads(old, new):
            raise _incompatible(topic, f"version {old.version} cannot read what it describes")


def check_type(topic: TopicName, new: SchemaRecord, old: SchemaRecord) -> None:
    """Raises Refused for another type."""
    if new.type != old.type:
        names = [Schema.Type.Name(item.type) for item in (old, new)]
        raise _incompatible(topic, f"it is of type {names[0]}, the new one of type {names[1]}")


def reads(reader: SchemaRecord, writer: SchemaRecord) -> bool:
    """Whether one schema reads what is written by another, by Avro's rules."""
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    found = checker.get_compatibility(_definition(reader), _definition(writer))
    return bool(found.compatibility == SchemaCompatibilityType.compatible)


def version_bytes(schema: SchemaRecord) -> bytes:
    """A version as the protocol has it."""
    return schema.version.to_bytes(8, "big")


def has_schema(schema: Schema) -> bool:
    """Whether a client states one: bytes and `auto` are none."""
    return bool(schema.type) and schema.type != Schema.AutoConsume


def _definition(schema: SchemaRecord) -> avro.schema.Schema:
    try:
        return avro.schema.parse(schema.data.decode(), validate_names=False)
    except (AvroException, UnicodeDecodeError, ValueError) as error:
        raise Refused(
            ServerError.IncompatibleSchema, f"the schema {schema.name!r} is no Avro definition: {error}"
        ) from error


def _is_same(one: SchemaRecord, other: SchemaRecord) -> bool:
    if one.type != other.type:
        return False
    return one.data == other.data or (one.type in _AVRO and _canonical(one.data) == _canonical(other.data))


def _canonical(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return data


def _incompatible(topic: TopicName, why: str) -> Refused:
    return Refused(ServerError.IncompatibleSchema, f"the schema of {topic.whole or topic} cannot change so: {why}")
