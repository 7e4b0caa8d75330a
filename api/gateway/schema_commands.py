"""Commands of clients that read schemas, or store them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.gateway.commands import Refused, refusal
from api.gateway.lookup import parse_name
from api.gateway.pulsar_api_pb2 import BaseCommand, ServerError
from api.gateway.schema_data import schema_data, schema_record, version_bytes, version_of
from api.http.access import AuthAction
from api.http.thread_pools import WaitsFor

if TYPE_CHECKING:
    from api.gateway.connection import Connection


def get_schema(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.get_schema

    async def found() -> BaseCommand:
        answer = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
        response = answer.get_schema_response
        response.request_id = wish.request_id
        try:
            name = parse_name(wish.topic)
            await connection.allow(name, AuthAction.PRODUCE, AuthAction.CONSUME)
            version = version_of(wish.schema_version)
            schema = await connection.pools[WaitsFor.DATABASE].run(connection.gateway.schemas.find, name, version)
            if schema is None:
                raise Refused(ServerError.TopicNotFound, f"Topic {name} has no schema")
            response.schema.CopyFrom(schema_data(schema))
            response.schema_version = version_bytes(schema)
        except Exception as error:
            refused = refusal(error)
            response.error_code, response.error_message = refused.error, refused.message
        return answer

    connection.begin(wish.request_id, found())


def ensure_schema(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.get_or_create_schema

    async def ensured() -> BaseCommand:
        answer = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
        response = answer.get_or_create_schema_response
        response.request_id = wish.request_id
        try:
            name = parse_name(wish.topic)
            await connection.allow(name, AuthAction.PRODUCE)
            wanted = schema_record(wish.schema)
            found = await connection.pools[WaitsFor.DATABASE].run(connection.gateway.schemas.ensure, name, wanted)
            response.schema_version = version_bytes(found)
        except Exception as error:
            refused = refusal(error)
            response.error_code, response.error_message = refused.error, refused.message
        return answer

    connection.begin(wish.request_id, ensured())
