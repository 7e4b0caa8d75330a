"""Schemas of topics: each version is stored, and a new one must be compatible with those before it.

Messages are not checked against a schema: clients encode and decode. A new version follows the topic's
`schema.compatibility-strategy`; `schema_compatibility.py` holds the rules of the types.

A request reads no more definitions than it needs: equal bytes are compared by the database, definitions that differ in
layout alone are recognised among the newest `LAYOUT_BYTES`, and a comparison reads one version at a time. Versions of a
type that has no meaning (earlier releases stored any number) count as absent; new ones are refused.

Blocks: `ensure`, `store_if_first_or_check_readable` and `check_compatible` compare, and need the threads for schemas;
all others read SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from api.broker.avro_resolution import DEFINITION_BYTES, MalformedDefinition, TooComplex
from api.broker.schema_compatibility import AVRO_DEFINED, DEFINED, Comparison, Definition, SchemaType
from api.broker.schema_processes import SchemaCheck, SchemaProcesses
from storage.errors import Conflict, InvalidInput, Unavailable
from storage.metadata.policy_store import namespace_scope
from storage.metadata.schemas import SchemaOutline, SchemaRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName

LAYOUT_BYTES = 1 << 20
"""Bytes of the newest definitions that are searched for one that differs in layout alone."""
TOPIC_BYTES = 8 << 20
"""Bytes of all definitions of a topic: REST returns them in one answer."""
VERSIONS = 10_000
"""Versions of a topic's schema: each request reads their numbers."""
_TRIES = 5


class IncompatibleSchema(Conflict):
    """A schema is incompatible with the existing versions of a topic's schema, or exceeds the topic's limits."""


class InvalidSchema(InvalidInput):
    """The definition of a schema cannot be parsed, or exceeds a limit."""


class SchemaRegistry:
    """The versions of the schemas of all topics: find, compare and store them."""

    def __init__(self, metadata: MetadataStore, processes: SchemaProcesses) -> None:
        self._metadata = metadata
        self._processes = processes

    def outlines(self, topic: TopicName) -> list[SchemaOutline]:
        """Return the versions of a topic's schema without definitions, oldest first; unknown types are left out."""
        return [item for item in self._metadata.schemas.outlines(topic) if is_schema_type(item.type)]

    def load_versions(self, topic: TopicName, only: Sequence[SchemaOutline] | None = None) -> list[SchemaRecord]:
        """Return versions of a topic's schema with their definitions, oldest first.

        `only`: these versions, as far as they still exist; None: all of known types.
        """
        outlines = self.outlines(topic) if only is None else only
        return self._metadata.schemas.versions(topic, [item.version for item in outlines])

    def find(self, topic: TopicName, version: int | None = None) -> SchemaRecord | None:
        """Return a version of a topic's schema, by default the newest; None: it is missing, or of an unknown type."""
        if version is None:
            outlines = self.outlines(topic)
            return self._load(topic, outlines[-1]) if outlines else None
        records = self._metadata.schemas.versions(topic, [version])
        return records[0] if records and is_schema_type(records[0].type) else None

    def find_equal(self, topic: TopicName, schema: SchemaRecord) -> SchemaRecord | None:
        """Return the stored version of a topic's schema that equals a schema; None: no version does.

        The layout (whitespace) of an Avro definition does not count. Raises InvalidSchema.
        """
        kind = _require_known_type(schema)
        if stored := self._metadata.schemas.find_by_data(topic, schema.type, schema.data):
            return stored
        _check_size(schema)
        if kind not in AVRO_DEFINED:
            return None
        content, budget = _content_without_layout(schema.data), LAYOUT_BYTES
        for outline in reversed(self.outlines(topic)):
            budget -= outline.size
            if budget < 0:
                break
            if (
                outline.type == kind
                and (record := self._load(topic, outline))
                and _content_without_layout(record.data) == content
            ):
                return record
        return None

    def compatibility_strategy(self, topic: TopicName) -> str:
        """Return the effective schema compatibility strategy of a topic; the inherited one if the topic is missing."""
        names = (topic, topic.of_partition(0))
        records = self._metadata.topics.by_names(names)
        for name in names:
            if name in records:
                return self._metadata.policies.effective(records[name]).schema_compatibility_strategy
        scope = namespace_scope(f"{topic.tenant}/{topic.namespace}")
        return self._metadata.policies.policies_inherited_from(scope).policies.schema_compatibility_strategy

    def ensure(self, topic: TopicName, schema: SchemaRecord) -> SchemaRecord:
        """Store a schema as the next version of a topic's schema, unless a version equals it; return the version.

        Raises IncompatibleSchema, also for too many versions; InvalidSchema, Unavailable.
        """
        for _ in range(_TRIES):
            if stored := self.find_equal(topic, schema):
                return stored
            outlines = self._metadata.schemas.outlines(topic)
            self.check_compatible(topic, schema)
            if len(outlines) >= VERSIONS or sum(item.size for item in outlines) + len(schema.data) > TOPIC_BYTES:
                raise IncompatibleSchema(
                    f"the schemas of {topic.partitioned_topic or topic} have more than {TOPIC_BYTES >> 20} MiB "
                    f"or {VERSIONS:,} versions together with it",
                    "delete the topic's schemas, and store the newest again",
                    is_public=True,
                )
            version = outlines[-1].version + 1 if outlines else 0
            if self._metadata.schemas.add(topic, schema, version):
                return SchemaRecord(version, schema.type, schema.name, schema.data, schema.properties)
        raise Unavailable(f"the schema of {topic} is changed by many callers at once", "try again", is_public=True)

    def is_newest(self, topic: TopicName, schema: SchemaRecord) -> bool:
        """Return whether a schema equals the newest version of a topic's schema. Raises InvalidSchema."""
        stored = self.find_equal(topic, schema)
        return stored is not None and stored.version == self.outlines(topic)[-1].version

    def store_if_first_or_check_readable(self, topic: TopicName, schema: SchemaRecord) -> None:
        """Store a consumer's schema if the topic has none, as Pulsar does; otherwise check that it can read the newest
        version. Raises IncompatibleSchema, InvalidSchema, Unavailable."""
        outlines = self.outlines(topic)
        if not outlines:
            self.ensure(topic, schema)
            return
        strategy = self.compatibility_strategy(topic)
        newest = self._load(topic, outlines[-1])
        if newest is None or strategy == "ALWAYS_COMPATIBLE" or self.is_newest(topic, schema):
            return
        if strategy == "FORWARD":
            if newest.type != schema.type:
                raise _incompatible_error(
                    topic, f"it is of type {type_name(newest.type)}, not {type_name(schema.type)}"
                )
            return
        with self._processes.check(topic.tenant) as check:
            if problem := _find_incompatibility(check, Comparison(_definition(schema), _definition(newest))):
                raise _incompatible_error(topic, f"a consumer with it cannot read version {newest.version}: {problem}")

    def check_compatible(self, topic: TopicName, schema: SchemaRecord) -> None:
        """Raise IncompatibleSchema or InvalidSchema unless a schema may be the next version of a topic's schema.

        Raises Unavailable if it cannot be compared now.
        """
        kind = _require_known_type(schema)
        _check_size(schema)
        strategy, new = self.compatibility_strategy(topic), _definition(schema)
        outlines = self.outlines(topic)
        with self._processes.check(topic.tenant) as check:
            if kind in DEFINED:
                _find_incompatibility(check, Comparison(new))
            if not outlines or strategy == "ALWAYS_COMPATIBLE":
                return
            if strategy == "ALWAYS_INCOMPATIBLE":
                raise _incompatible_error(topic, "the topic's strategy allows no other than the first")
            direction = strategy.removesuffix("_TRANSITIVE")
            reads_old, is_read = direction != "FORWARD", direction != "BACKWARD"  # FULL and UNDEFINED: both
            for old in self._load_versions_to_compare(topic, outlines, strategy):
                if problem := _find_incompatibility(check, Comparison(new, _definition(old), reads_old, is_read)):
                    raise _incompatible_error(topic, f"compared with version {old.version}: {problem} ({strategy})")

    def _load_versions_to_compare(
        self, topic: TopicName, outlines: list[SchemaOutline], strategy: str
    ) -> Iterator[SchemaRecord]:
        """Yield the versions with which a new schema must be compared under a strategy, newest first.

        Each is loaded when it is needed.
        """
        for outline in reversed(outlines if strategy.endswith("_TRANSITIVE") else outlines[-1:]):
            if record := self._load(topic, outline):
                yield record

    def _load(self, topic: TopicName, outline: SchemaOutline) -> SchemaRecord | None:
        """Load a version of a topic's schema with its definition; None: it was deleted meanwhile."""
        records = self._metadata.schemas.versions(topic, [outline.version])
        return records[0] if records else None


def is_schema_type(number: int) -> bool:
    """Return whether a number is one of Pulsar's schema types."""
    return number in SchemaType._value2member_map_


def type_name(number: int) -> str:
    """Return the name of a schema type by its number; `number N` for an unknown number."""
    return SchemaType(number).name if is_schema_type(number) else f"number {number}"


def _require_known_type(schema: SchemaRecord) -> SchemaType:
    """Return the type of a schema. Raises InvalidSchema for an unknown type."""
    if not is_schema_type(schema.type):
        raise InvalidSchema(
            f"a schema of type {schema.type} cannot be stored",
            f"use a type from 0 to {max(SchemaType)}; AUTO_CONSUME describes no messages",
            is_public=True,
        )
    return SchemaType(schema.type)


def _check_size(schema: SchemaRecord) -> None:
    """Raise InvalidSchema if a definition has more than `DEFINITION_BYTES`."""
    if len(schema.data) > DEFINITION_BYTES:
        raise _too_large_error(schema, f"it has {len(schema.data)} bytes, and {DEFINITION_BYTES} are allowed")


def _find_incompatibility(check: SchemaCheck, comparison: Comparison) -> str:
    """Return the reason why a new schema is incompatible with an old one; empty: it is compatible.

    Raises InvalidSchema, Unavailable.
    """
    try:
        return check.incompatibility(comparison)
    except MalformedDefinition as error:
        raise InvalidSchema(
            f"the definition of the schema cannot be read as {comparison.new.type}: {error}",
            "correct it",
            is_public=True,
        ) from error
    except TooComplex as error:
        raise InvalidSchema(f"the schema is too complex: {error}", "make it simpler", is_public=True) from error


def _definition(schema: SchemaRecord) -> Definition:
    return Definition(type_name(schema.type), schema.data, dict(schema.properties))


def _content_without_layout(data: bytes) -> object:
    """Return an Avro definition as parsed JSON, for a comparison without layout; as bytes if it is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data


def _too_large_error(schema: SchemaRecord, reason: str) -> InvalidSchema:
    return InvalidSchema(f"the schema {schema.name[:100]!r} is too large: {reason}", "make it smaller", is_public=True)


def _incompatible_error(topic: TopicName, reason: str) -> IncompatibleSchema:
    return IncompatibleSchema(
        f"the schema of {topic.partitioned_topic or topic} cannot change so: {reason}",
        "change it so that it fits, or set another schema.compatibility-strategy",
        is_public=True,
    )
