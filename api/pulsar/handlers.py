"""The commands that a client may send, and the function that handles each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from api.pulsar import consumer_commands, lookup_commands, producer_commands, schema_commands
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
    BaseCommand.LOOKUP: lookup_commands.look_up,
    BaseCommand.PARTITIONED_METADATA: lookup_commands.partitioned_metadata,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: lookup_commands.list_topics,
    BaseCommand.WATCH_TOPIC_LIST: lookup_commands.watch,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: lookup_commands.unwatch,
    BaseCommand.PRODUCER: producer_commands.producer,
    BaseCommand.SEND: producer_commands.send,
    BaseCommand.CLOSE_PRODUCER: producer_commands.close_producer,
    BaseCommand.SUBSCRIBE: consumer_commands.subscribe,
    BaseCommand.FLOW: consumer_commands.flow,
    BaseCommand.ACK: consumer_commands.ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: consumer_commands.redeliver,
    BaseCommand.UNSUBSCRIBE: consumer_commands.unsubscribe,
    BaseCommand.SEEK: consumer_commands.seek,
    BaseCommand.CLOSE_CONSUMER: consumer_commands.close_consumer,
    BaseCommand.GET_LAST_MESSAGE_ID: consumer_commands.last_message_id,
    BaseCommand.CONSUMER_STATS: consumer_commands.consumer_stats,
    BaseCommand.GET_SCHEMA: schema_commands.get_schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: schema_commands.ensure_schema,
    BaseCommand.AUTH_RESPONSE: _auth_response,
    BaseCommand.NEW_TXN: _transaction,
    BaseCommand.ADD_PARTITION_TO_TXN: _transaction,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: _transaction,
    BaseCommand.END_TXN: _transaction,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: _transaction,
}
