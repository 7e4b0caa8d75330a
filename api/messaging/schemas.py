"""Schemas of topics: stored with a version, given to who asks, and a new one refused that does not fit the others.

The service does not look into messages: a schema is kept for the clients, which encode and decode. Whether a new
version may follow those that are there is Pulsar's rule of the topic's `schema.compatibility-strategy`: for Avro and
JSON (whose definitions are Avro's) by Avro's own rules of resolution; any other type must stay as it is.

For threads: it reads SQL, and compares definitions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import IntEnum

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException

from storage.errors import Conflict, InvalidInput, Unavailable
from storage.metadata.policy_store import namespace_scope
from storage.metadata.schemas import SchemaRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName

_TRIES = 5


class SchemaType(IntEnum):
    """Pulsar's types, by their numbers in its protocol and their names in its admin REST API."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20


_DEFINED = frozenset((SchemaType.AVRO, SchemaType.JSON))
"""Types whose definition is Avro's."""


class IncompatibleSchema(Conflict):
    """A schema that may not follow those of a topic."""


class InvalidSchema(InvalidInput):
    """A schema whose definition cannot be read."""


class SchemaRegistry:
    """The schemas of all topics."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    def versions(self, topic: TopicName) -> list[SchemaRecord]:
        """All versions of a topic's schema, oldest first."""
        return self._metadata.schemas.of_topic(topic)

    def find(self, topic: TopicName, version: int | None = None) -> SchemaRecord | None:
        """A version of a topic's schema, the newest if none is named; None: there is none."""
        found = [item for item in self.versions(topic) if version in (None, item.version)]
        return found[-1] if found else None

    def same(self, topic: TopicName, wanted: SchemaRecord) -> SchemaRecord | None:
        """The version that is the same schema; None: there is none."""
        return next((item for item in self.versions(topic) if _is_same(item, wanted)), None)

    def strategy(self, topic: TopicName) -> str:
        """The strategy that holds for a topic, or would if it existed."""
        names = (topic, topic.of_partition(0))
        found = self._metadata.topics.named(names)
        for name in names:
            if name in found:
                return self._metadata.policies.effective(found[name]).schema_compatibility_strategy
        scope = namespace_scope(f"{topic.tenant}/{topic.namespace}")
        return self._metadata.policies.resolved_around(scope).policies.schema_compatibility_strategy

    def ensure(self, topic: TopicName, wanted: SchemaRecord) -> SchemaRecord:
        """The version that holds a schema, stored if it is new. Raises IncompatibleSchema, InvalidSchema."""
        for _ in range(_TRIES):
            versions = self.versions(topic)
            for found in versions:
                if _is_same(found, wanted):
                    return found
            check_follows(topic, wanted, versions, self.strategy(topic))
            version = versions[-1].version + 1 if versions else 0
            if self._metadata.schemas.add(topic, wanted, version):
                return SchemaRecord(version, wanted.type, wanted.name, wanted.data, wanted.properties)
        raise Unavailable(f"the schema of {topic} is changed by many at once", "try again", is_public=True)

    def ensure_read(self, topic: TopicName, wanted: SchemaRecord) -> None:
        """A consumer's schema is stored if the topic has none, as in Pulsar; else it must read the newest. Raises
        IncompatibleSchema, InvalidSchema."""
        versions, strategy = self.versions(topic), self.strategy(topic)
        if not versions:
            self.ensure(topic, wanted)
        elif strategy != "ALWAYS_COMPATIBLE" and not _is_same(versions[-1], wanted):
            _check_type(topic, wanted, versions[-1])
            if wanted.type in _DEFINED and strategy != "FORWARD" and (misfit := _misfit(wanted, versions[-1])):
                raise _incompatible(topic, f"a consumer with it cannot read what the newest one describes: {misfit}")

    def check(self, topic: TopicName, wanted: SchemaRecord) -> None:
        """Raises IncompatibleSchema, InvalidSchema unless a schema may be the next version."""
        check_follows(topic, wanted, self.versions(topic), self.strategy(topic))


def check_follows(topic: TopicName, new: SchemaRecord, versions: Sequence[SchemaRecord], strategy: str) -> None:
    """Raises IncompatibleSchema, InvalidSchema unless a schema may be the next version."""
    if new.type in _DEFINED:
        _definition(new)
    if not versions or strategy == "ALWAYS_COMPATIBLE":
        return
    if strategy == "ALWAYS_INCOMPATIBLE":
        raise _incompatible(topic, "the topic's strategy allows no other than the first")
    _check_type(topic, new, versions[-1])
    if new.type not in _DEFINED:
        raise _incompatible(topic, "only Avro and JSON schemas can change")
    before = versions if strategy.endswith("TRANSITIVE") else versions[-1:]
    kind = strategy.removesuffix("_TRANSITIVE")
    for old in before:
        if kind in ("BACKWARD", "FULL", "UNDEFINED") and (misfit := _misfit(new, old)):
            raise _incompatible(topic, f"it cannot read what version {old.version} describes: {misfit} ({strategy})")
        if kind in ("FORWARD", "FULL", "UNDEFINED") and (misfit := _misfit(old, new)):
            raise _incompatible(topic, f"version {old.version} cannot read what it describes: {misfit} ({strategy})")


def _check_type(topic: TopicName, new: SchemaRecord, old: SchemaRecord) -> None:
    if new.type != old.type:
        names = [SchemaType(item.type).name for item in (old, new)]
        raise _incompatible(topic, f"it is of type {names[0]}, the new one of type {names[1]}")


def _misfit(reader: SchemaRecord, writer: SchemaRecord) -> str:
    """Why one schema does not read what is written by another, by Avro's rules; empty: it does."""
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    found = checker.get_compatibility(_definition(reader), _definition(writer))
    if found.compatibility == SchemaCompatibilityType.compatible:
        return ""
    kinds = ", ".join(sorted(str(kind.value).replace("_", " ") for kind in found.incompatibilities))
    return f"{kinds}: {', '.join(sorted(found.messages))} at {', '.join(sorted(found.locations))}"[:500]


def _definition(schema: SchemaRecord) -> avro.schema.Schema:
    try:
        return avro.schema.parse(schema.data.decode(), validate_names=False)
    except (AvroException, UnicodeDecodeError, ValueError) as error:
        raise InvalidSchema(
            f"the schema {schema.name!r} is no Avro definition: {error}", "correct it", is_public=True
        ) from error


def _is_same(one: SchemaRecord, other: SchemaRecord) -> bool:
    if one.type != other.type:
        return False
    return one.data == other.data or (one.type in _DEFINED and _canonical(one.data) == _canonical(other.data))


def _canonical(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return data


def _incompatible(topic: TopicName, why: str) -> IncompatibleSchema:
    return IncompatibleSchema(
        f"the schema of {topic.whole or topic} cannot change so: {why}",
        "change it so that it fits, or set another schema.compatibility-strategy",
        is_public=True,
    )
