"""Commands of clients that read schemas, or store them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.pulsar.errors import Refused
from api.pulsar.lookup import parse_name
from api.pulsar.pulsar_api_pb2 import BaseCommand, Schema, ServerError
from api.pulsar.schema_data import schema_data, schema_record, version_bytes, version_of
from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName

if TYPE_CHECKING:
    from api.pulsar.connection import Connection


def get_schema(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.get_schema

    async def found() -> BaseCommand:
        answer = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
        response = answer.get_schema_response
        response.request_id = wish.request_id
        name = parse_name(wish.topic)
        await connection.allow(name, AuthAction.PRODUCE, AuthAction.CONSUME)
        version = version_of(wish.schema_version)
        schema = await connection.pools[WaitsFor.DATABASE].run(connection.gateway.broker.schemas.find, name, version)
        if schema is None:
            raise Refused(ServerError.TopicNotFound, f"Topic {name} has no schema")
        response.schema.CopyFrom(schema_data(schema))
        response.schema_version = version_bytes(schema)
        return answer

    connection.begin(wish.request_id, found(), command.type)


def ensure_schema(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.get_or_create_schema

    async def ensured() -> BaseCommand:
        answer = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
        response = answer.get_or_create_schema_response
        response.request_id = wish.request_id
        name = parse_name(wish.topic)
        await connection.allow(name, AuthAction.PRODUCE)
        response.schema_version = version_bytes(await ensure_stored(connection, name, wish.schema))
        return answer

    connection.begin(wish.request_id, ensured(), command.type)


async def ensure_stored(connection: Connection, name: TopicName, schema: Schema) -> SchemaRecord:
    """Return the version that holds a client's schema, stored if it is new. Only a new one waits for a comparison.
    Raises CompactorError, RestException."""
    schemas, record = connection.gateway.broker.schemas, schema_record(schema)
    stored = await connection.pools[WaitsFor.DATABASE].run(schemas.same, name, record)
    if stored is not None:
        return stored
    return await connection.pools[WaitsFor.SCHEMAS].run(schemas.ensure, name, record)


async def ensure_readable(connection: Connection, name: TopicName, schema: Schema) -> None:
    """Check that a consumer's schema reads the topic's newest. Only another one waits for a comparison. Raises
    CompactorError, RestException."""
    schemas, record = connection.gateway.broker.schemas, schema_record(schema)
    if not await connection.pools[WaitsFor.DATABASE].run(schemas.is_newest, name, record):
        await connection.pools[WaitsFor.SCHEMAS].run(schemas.ensure_readable, name, record)
