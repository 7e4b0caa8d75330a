"""The schema of a topic, as `pulsar-admin schemas` asks for it: its versions, a new one, whether one may follow.

Clients bring their schemas themselves (api/gateway); the rules are the same (api/messaging/schemas.py).
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Path
from pydantic import Field

from api.admin import resolve
from api.admin.models import PulsarAnswer, PulsarBody
from api.http.access import ANY_USE, AuthAction
from api.http.paths import Topic
from api.http.problems import RestException
from api.http.router import Routes
from api.messaging.schemas import IncompatibleSchema, SchemaRegistry, SchemaType
from api.service import Parts, Service
from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName

router = Routes("schemas")

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
    """One version. A broker keeps it in an entry of a ledger; here there is none."""

    ledger_id: int = -1
    entry_id: int = -1
    version: int


class SchemaMetadata(PulsarAnswer):
    """The versions of a schema, without their definitions. `info`: the newest."""

    info: SchemaMetadataEntry
    index: list[SchemaMetadataEntry]


class LongSchemaVersion(PulsarAnswer):
    """A version."""

    version: int


class PostSchemaResponse(PulsarAnswer):
    """The version that holds a schema which was posted."""

    version: LongSchemaVersion


class IsCompatibilityResponse(PulsarAnswer):
    """Whether a schema may be a topic's next, and the strategy that decides it."""

    compatibility: bool
    schema_compatibility_strategy: str


class PostSchemaPayload(PulsarBody):
    """A schema. `schema`: its definition, for AVRO and JSON an Avro definition."""

    type: str
    definition: str = Field("", alias="schema")
    properties: dict[str, str] = Field(default_factory=dict)

    @property
    def record(self) -> SchemaRecord:
        """Raises RestException (400)."""
        try:
            kind = SchemaType[self.type]
        except KeyError:
            names = ", ".join(item.name for item in SchemaType)
            raise RestException(400, f"there is no schema type {self.type[:40]!r}: it is one of {names}") from None
        return SchemaRecord(-1, kind, "", self.definition.encode(), self.properties)


Payload = Annotated[PostSchemaPayload, Body()]


@router.get(PATH + "/schema", *ANY_USE)
def get_schema(parts: Parts, topic: Topic) -> GetSchemaResponse:
    """The newest version of a topic's schema."""
    return _shown(_found(parts, topic))


@router.get(PATH + "/schema/{version}", *ANY_USE)
def get_schema_version(parts: Parts, topic: Topic, version: Version) -> GetSchemaResponse:
    """One version of a topic's schema."""
    return _shown(_found(parts, topic, version))


@router.get(PATH + "/schemas", *ANY_USE)
def get_schemas(parts: Parts, topic: Topic) -> GetAllVersionsSchemaResponse:
    """All versions of a topic's schema."""
    versions = _versions(parts, topic)
    return GetAllVersionsSchemaResponse(get_schema_responses=[_shown(item) for item in versions])


@router.get(PATH + "/metadata", *ANY_USE)
def get_schema_metadata(parts: Parts, topic: Topic) -> SchemaMetadata:
    """The versions of a topic's schema, without their definitions."""
    entries = [SchemaMetadataEntry(version=item.version) for item in _versions(parts, topic)]
    return SchemaMetadata(info=entries[-1], index=entries)


@router.post(PATH + "/schema", AuthAction.PRODUCE, refuses=(409,), response_model=PostSchemaResponse)
def post_schema(parts: Parts, topic: Topic, schema: Payload) -> Any:
    """Store a schema as the topic's next version, unless a version is the same; the topic need not exist."""
    resolve.namespace(parts, resolve.namespace_of(topic), "Namespace not found")
    stored = _registry(parts).ensure(topic, schema.record)
    return PostSchemaResponse(version=LongSchemaVersion(version=stored.version))


@router.delete(PATH + "/schema", AuthAction.ADMIN, response_model=LongSchemaVersion)
def delete_schema(parts: Parts, topic: Topic, force: bool = False) -> Any:
    """Delete all versions of a topic's schema. `force` changes nothing: they are rows that nothing else needs."""
    newest = parts.environment.metadata.schemas.delete(topic)
    if newest is None:
        raise _missing(topic)
    return LongSchemaVersion(version=newest)


@router.post(PATH + "/compatibility", *ANY_USE, response_model=IsCompatibilityResponse)
def check_schema(parts: Parts, topic: Topic, schema: Payload) -> Any:
    """Whether a schema may be the topic's next version. Nothing is stored."""
    registry, fits = _registry(parts), True
    try:
        registry.check(topic, schema.record)
    except IncompatibleSchema:
        fits = False
    return IsCompatibilityResponse(compatibility=fits, schema_compatibility_strategy=registry.strategy(topic))


@router.post(PATH + "/version", *ANY_USE, refuses=(404,), response_model=LongSchemaVersion)
def get_version_of_schema(parts: Parts, topic: Topic, schema: Payload) -> Any:
    """The version of a topic's schema that is the same."""
    found = _registry(parts).same(topic, schema.record)
    if found is None:
        raise _missing(topic)
    return LongSchemaVersion(version=found.version)


def _registry(parts: Service) -> SchemaRegistry:
    return SchemaRegistry(parts.environment.metadata)


def _found(parts: Service, topic: TopicName, version: int | None = None) -> SchemaRecord:
    """Raises RestException (404)."""
    found = _registry(parts).find(topic, version)
    if found is None:
        raise _missing(topic)
    return found


def _versions(parts: Service, topic: TopicName) -> list[SchemaRecord]:
    """Raises RestException (404) if there is none."""
    found = _registry(parts).versions(topic)
    if not found:
        raise _missing(topic)
    return found


def _missing(topic: TopicName) -> RestException:
    return RestException(404, f"Schema not found: {topic.whole or topic} has no such schema")


def _shown(schema: SchemaRecord) -> GetSchemaResponse:
    return GetSchemaResponse(
        version=schema.version,
        type=SchemaType(schema.type).name,
        timestamp=schema.created_at,
        data=schema.data.decode(errors="replace"),
        properties=dict(schema.properties),
    )
