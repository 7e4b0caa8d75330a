"""The schema of a topic, as `pulsar-admin schemas` asks for it: its versions, a new one, whether one may follow.

Clients send their schemas themselves (api/pulsar); the rules are the same (api/broker/schemas.py).
"""

from __future__ import annotations

import json
from typing import Annotated, TypeVar

from fastapi import Body, Path
from pydantic import Field

from api.broker import names
from api.broker.schema_compatibility import SchemaType, join_parts, split_parts
from api.broker.schemas import IncompatibleSchema, type_name
from api.broker.threads import WaitsFor
from api.http.access import ANY_USE, AuthAction
from api.http.dependencies import Broker
from api.http.paths import Topic
from api.http.problems import RestException, reword_errors
from api.http.router import Routes
from api.rest.models import PulsarAnswer, PulsarBody
from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName

router = Routes("schemas")
Stored = TypeVar("Stored")

PATH = "/schemas/{tenant}/{namespace}/{topic}"
Version = Annotated[int, Path(ge=0, le=2**63 - 1, description="The version, from 0.")]


class GetSchemaResponse(PulsarAnswer):
    """One version of a schema. `timestamp`: when it was stored, ms since the Unix epoch; `data`: its definition."""

    version: int
    type: str
    timestamp: int
    data: str
    properties: dict[str, str]


class GetAllVersionsSchemaResponse(PulsarAnswer):
    """All versions of a schema, oldest first."""

    get_schema_responses: list[GetSchemaResponse]


class SchemaMetadataEntry(PulsarAnswer):
    """One version of a schema. The ids of ledger and entry, where a broker stores it, are -1."""

    ledger_id: int = -1
    entry_id: int = -1
    version: int


class SchemaMetadata(PulsarAnswer):
    """The versions of a schema, without their definitions. `info`: the newest."""

    info: SchemaMetadataEntry
    index: list[SchemaMetadataEntry]


class LongSchemaVersion(PulsarAnswer):
    """The number of a version of a schema."""

    version: int


class PostSchemaResponse(PulsarAnswer):
    """The version under which a posted schema is stored."""

    version: LongSchemaVersion


class IsCompatibilityResponse(PulsarAnswer):
    """The result of a compatibility check, and the strategy that decided it."""

    compatibility: bool
    schema_compatibility_strategy: str


class PostSchemaPayload(PulsarBody):
    """A schema to post or to check. `schema`: its definition, for AVRO and JSON an Avro definition."""

    type: str
    definition: str = Field("", alias="schema")
    properties: dict[str, str] | None = None

    @property
    def record(self) -> SchemaRecord:
        """The posted schema as a record that is not yet stored. Raise RestException (400) for an unknown type or a
        definition that cannot be read."""
        try:
            kind = SchemaType[self.type]
        except KeyError:
            names = ", ".join(item.name for item in SchemaType)
            raise RestException(400, f"there is no schema type {self.type[:40]!r}: it is one of {names}") from None
        data = self.definition.encode()
        if kind is SchemaType.KEY_VALUE:
            data = _stored_key_value_definition(data)
        return SchemaRecord(-1, kind, "", data, self.properties or {})


Payload = Annotated[PostSchemaPayload, Body()]


@router.get(PATH + "/schema", *ANY_USE)
def get_schema(broker: Broker, topic: Topic) -> GetSchemaResponse:
    """Return the newest version of a topic's schema; 404 if it has none."""
    return _schema_response(_require_stored(topic, broker.schemas.find(topic)))


@router.get(PATH + "/schema/{version}", *ANY_USE)
def get_schema_version(broker: Broker, topic: Topic, version: Version) -> GetSchemaResponse:
    """Return one version of a topic's schema; 404 if it does not exist."""
    return _schema_response(_require_stored(topic, broker.schemas.find(topic, version)))


@router.get(PATH + "/schemas", *ANY_USE)
def get_schemas(broker: Broker, topic: Topic) -> GetAllVersionsSchemaResponse:
    """Return all versions of a topic's schema, oldest first; 404 if it has none."""
    versions = _require_stored(topic, broker.schemas.load_versions(topic) or None)
    return GetAllVersionsSchemaResponse(get_schema_responses=[_schema_response(item) for item in versions])


@router.get(PATH + "/metadata", *ANY_USE)
def get_schema_metadata(broker: Broker, topic: Topic) -> SchemaMetadata:
    """Return the versions of a topic's schema, without their definitions, oldest first; 404 if it has none."""
    entries = [SchemaMetadataEntry(version=item.version) for item in broker.schemas.outlines(topic)]
    return SchemaMetadata(info=_require_stored(topic, entries or None)[-1], index=entries)


@router.post(PATH + "/schema", AuthAction.PRODUCE, refuses=(409,), waits_for=WaitsFor.SCHEMAS)
def post_schema(broker: Broker, topic: Topic, schema: Payload) -> PostSchemaResponse:
    """Store a schema as the topic's next version, unless it is a version already; the topic need not exist.

    Return the version. 409 for a schema that the compatibility strategy refuses.
    """
    with reword_errors("Namespace not found"):
        names.namespace(broker.environment, names.namespace_of(topic))
    stored = broker.schemas.ensure(topic, schema.record)
    return PostSchemaResponse(version=LongSchemaVersion(version=stored.version))


@router.delete(PATH + "/schema", AuthAction.ADMIN)
def delete_schema(broker: Broker, topic: Topic, force: bool = False) -> LongSchemaVersion:
    """Delete all versions of a topic's schema, and return the newest. `force` changes nothing, because nothing depends
    on them."""
    return LongSchemaVersion(version=_require_stored(topic, broker.environment.metadata.schemas.delete(topic)))


@router.post(PATH + "/compatibility", *ANY_USE, waits_for=WaitsFor.SCHEMAS)
def check_schema(broker: Broker, topic: Topic, schema: Payload) -> IsCompatibilityResponse:
    """Check whether a schema may be the topic's next version. Nothing is stored."""
    registry, fits = broker.schemas, True
    try:
        registry.check_compatible(topic, schema.record)
    except IncompatibleSchema:
        fits = False
    return IsCompatibilityResponse(
        compatibility=fits, schema_compatibility_strategy=registry.compatibility_strategy(topic)
    )


@router.post(PATH + "/version", *ANY_USE, refuses=(404,))
def get_version_of_schema(broker: Broker, topic: Topic, schema: Payload) -> LongSchemaVersion:
    """Return the version of a topic's schema that is equal to this one; 404 if none is."""
    return LongSchemaVersion(version=_require_stored(topic, broker.schemas.find_equal(topic, schema.record)).version)


def _require_stored(topic: TopicName, stored: Stored | None) -> Stored:
    """Return `stored`. Raise RestException (404) if it is None, because the topic has no such schema."""
    if stored is None:
        raise RestException(404, f"Schema not found: {topic.partitioned_topic or topic} has no such schema")
    return stored


def _schema_response(schema: SchemaRecord) -> GetSchemaResponse:
    is_pair = schema.type == SchemaType.KEY_VALUE
    return GetSchemaResponse(
        version=schema.version,
        type=type_name(schema.type),
        timestamp=schema.created_at,
        data=_key_value_definition_text(schema.data) if is_pair else schema.data.decode(errors="replace"),
        properties=dict(schema.properties),
    )


def _stored_key_value_definition(text: bytes) -> bytes:
    """Return the definition of a KEY_VALUE schema as it is stored, from `{"key": …, "value": …}`. Raise RestException
    (400) for another text."""
    try:
        pair = json.loads(text)
        parts = [b"" if pair[name] == "" else json.dumps(pair[name]).encode() for name in ("key", "value")]
    except (ValueError, TypeError, KeyError, RecursionError):
        message = 'the definition of a KEY_VALUE schema is {"key": …, "value": …}, each a definition or ""'
        raise RestException(400, message) from None
    return join_parts(*parts)


def _key_value_definition_text(data: bytes) -> str:
    """Return the stored definition of a KEY_VALUE schema as `{"key": …, "value": …}`; unchanged if it has another
    form."""
    try:
        key, value = (json.loads(part) if part else "" for part in split_parts(data))
    except (ValueError, RecursionError):
        return data.decode(errors="replace")
    return json.dumps({"key": key, "value": value})
