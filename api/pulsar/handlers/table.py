"""The commands that a client may send, and the function that handles each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from api.pulsar.handlers import consumers, lookup, producers, schemas
from api.pulsar.pulsar_api_pb2 import BaseCommand, ServerError

if TYPE_CHECKING:
    from api.pulsar.connection import Connection

Handler = Callable[["Connection", BaseCommand, bytes], None]
_NAMES = {number: name for name, number in BaseCommand.Type.items()}
_FIELDS = {
    BaseCommand.Type.Value(name): field
    for name, field in {
        **{name: name.lower() for name in _NAMES.values()},
        "PARTITIONED_METADATA": "partition_metadata",
        "LOOKUP": "lookup_topic",
    }.items()
}
"""Where a command of each type has its message."""
_ANSWERS = {kind: _FIELDS[kind + 1] for kind in _FIELDS if kind + 1 in _FIELDS}


def _transaction(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = getattr(command, _FIELDS[command.type])
    answer = BaseCommand(type=_NAMES[command.type + 1])
    response = getattr(answer, _ANSWERS[command.type])
    response.request_id = request.request_id
    response.error, response.message = ServerError.NotAllowedError, "transactions are not offered"
    connection.send(answer)


def _auth_response(_connection: Connection, _command: BaseCommand, _: bytes) -> None:
    """Nothing was asked: connections end with their token, and clients connect again with a new one."""


HANDLERS: Mapping[int, Handler] = {
    BaseCommand.CONNECT: lambda connection, command, _: connection.connect(command),
    BaseCommand.PING: lambda connection, _, __: connection.ping(),
    BaseCommand.PONG: lambda connection, _, __: connection.pong(),
    BaseCommand.LOOKUP: lookup.look_up,
    BaseCommand.PARTITIONED_METADATA: lookup.partitioned_metadata,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: lookup.list_topics,
    BaseCommand.WATCH_TOPIC_LIST: lookup.watch,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: lookup.unwatch,
    BaseCommand.PRODUCER: producers.producer,
    BaseCommand.SEND: producers.send,
    BaseCommand.CLOSE_PRODUCER: producers.close_producer,
    BaseCommand.SUBSCRIBE: consumers.subscribe,
    BaseCommand.FLOW: consumers.flow,
    BaseCommand.ACK: consumers.ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: consumers.redeliver,
    BaseCommand.UNSUBSCRIBE: consumers.unsubscribe,
    BaseCommand.SEEK: consumers.seek,
    BaseCommand.CLOSE_CONSUMER: consumers.close_consumer,
    BaseCommand.GET_LAST_MESSAGE_ID: consumers.last_message_id,
    BaseCommand.CONSUMER_STATS: consumers.consumer_stats,
    BaseCommand.GET_SCHEMA: schemas.get_schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: schemas.ensure_schema,
    BaseCommand.AUTH_RESPONSE: _auth_response,
    BaseCommand.NEW_TXN: _transaction,
    BaseCommand.ADD_PARTITION_TO_TXN: _transaction,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: _transaction,
    BaseCommand.END_TXN: _transaction,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: _transaction,
}
