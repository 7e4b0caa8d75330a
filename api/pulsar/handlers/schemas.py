"""Requests that read the schemas of a topic, or store one."""

from __future__ import annotations

from typing import TypeGuard

from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.pulsar.codec import requests, responses
from api.pulsar.errors import Refused, ServerError
from api.pulsar.session import Session
from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName

_VERSION_BYTES = 8
_NO_SCHEMA, _AUTO_CONSUME = 0, 21


async def get(session: Session, request: requests.GetSchema) -> responses.GetSchemaResponse:
    """Return a version of a topic's schema. Raise Refused (TopicNotFound) if there is none."""
    name = await session.identity.permitted_topic(request.topic, AuthAction.PRODUCE, AuthAction.CONSUME)
    find = session.context.broker.schemas.find
    schema = await session.identity.threads[WaitsFor.DATABASE].run(find, name, request.schema_version)
    if schema is None:
        raise Refused(ServerError.TopicNotFound, f"Topic {name} has no schema")
    return responses.GetSchemaResponse(request.request_id, schema, version_bytes(schema))


async def get_or_create(session: Session, request: requests.GetOrCreateSchema) -> responses.GetOrCreateSchemaResponse:
    """Store a client's schema if the topic does not have it, and return its version."""
    name = await session.identity.permitted_topic(request.topic, AuthAction.PRODUCE)
    schema = await ensure_stored(session, name, request.schema)
    return responses.GetOrCreateSchemaResponse(request.request_id, version_bytes(schema))


def is_storable_schema(schema: SchemaRecord | None) -> TypeGuard[SchemaRecord]:
    """Return whether a client sent a schema that is stored, or compared with stored ones: one that is neither BYTES nor
    AUTO_CONSUME."""
    return schema is not None and schema.type not in (_NO_SCHEMA, _AUTO_CONSUME)


async def ensure_stored(session: Session, name: TopicName, schema: SchemaRecord) -> SchemaRecord:
    """Store a client's schema if it is new, and return its record with the version. Raise CompactorError.

    Only a new schema is compared with those of the topic, in the threads for schemas.
    """
    schemas, threads = session.context.broker.schemas, session.identity.threads
    version = await threads[WaitsFor.DATABASE].run(schemas.find_equal, name, schema)
    if version is not None:
        return version
    return await threads[WaitsFor.SCHEMAS].run(schemas.ensure, name, schema)


async def store_if_first_or_check_readable(session: Session, name: TopicName, schema: SchemaRecord) -> None:
    """Store a consumer's schema if the topic has none; else raise CompactorError unless it can read the newest one.

    Only a schema that is not the newest is compared with it, in the threads for schemas.
    """
    schemas, threads = session.context.broker.schemas, session.identity.threads
    if not await threads[WaitsFor.DATABASE].run(schemas.is_newest, name, schema):
        await threads[WaitsFor.SCHEMAS].run(schemas.store_if_first_or_check_readable, name, schema)


def version_bytes(schema: SchemaRecord) -> bytes:
    """Return a schema's version as the protocol has it: 64 bits, the highest byte first."""
    return schema.version.to_bytes(_VERSION_BYTES, "big")
