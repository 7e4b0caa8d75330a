"""Commands of producers: PRODUCER, SEND, CLOSE_PRODUCER."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from api.broker.serving.publishing import QueuedEntry
from api.http.access import AuthAction
from api.pulsar.errors import Refused, success
from api.pulsar.frames import MalformedFrame
from api.pulsar.handlers.schemas import ensure_stored
from api.pulsar.lookup import parse_name
from api.pulsar.producer_channel import ConnectedProducer
from api.pulsar.pulsar_api_pb2 import BaseCommand, CommandProducer, Schema, ServerError
from api.pulsar.schema_data import has_schema, version_bytes
from storage.errors import Fenced
from storage.model import TopicName

if TYPE_CHECKING:
    from api.pulsar.connection import Connection

REPLICATOR_PREFIX = "pulsar.repl"
"""The names of a broker's replicators begin so (Pulsar's replicatorPrefix)."""


def producer(connection: Connection, command: BaseCommand, _: bytes) -> None:
    connection.begin(command.producer.request_id, _add_producer(connection, command.producer))


async def _add_producer(connection: Connection, wish: CommandProducer) -> BaseCommand | None:
    with connection.creating("producer", wish.producer_id, wish.request_id) as is_wanted:
        return await _created(connection, wish, is_wanted)


async def _created(connection: Connection, wish: CommandProducer, is_wanted: Callable[[], bool]) -> BaseCommand | None:
    name = parse_name(wish.topic)
    await connection.allow(name, AuthAction.PRODUCE)
    if wish.txn_enabled:
        raise Refused(ServerError.NotAllowedError, "transactions are not offered")
    if wish.producer_name.startswith(REPLICATOR_PREFIX):
        raise Refused(
            ServerError.NotAllowedError,
            f"{wish.producer_name!r} is the name of a geo-replicator, and replication is not offered: remove this "
            f"cluster from the replication clusters of {name.tenant}/{name.namespace} or of the topic at its source; "
            f"any other producer takes a name that does not begin with {REPLICATOR_PREFIX!r}",
        )
    there = connection.producers.get(wish.producer_id)
    if there is not None and there.producer.options.epoch >= wish.epoch:
        return _producer_success(wish.request_id, there, None)
    topic = await connection.gateway.topic(name, connection.settings.auto_create, connection.audit)
    topic.check_quota()
    await topic.load_sequences()
    version = await _schema_version(connection, name, wish.schema if wish.HasField("schema") else None)
    if wish.initial_subscription_name:
        await connection.allow(name, AuthAction.CONSUME)
        await topic.ensure_subscription(wish.initial_subscription_name)
    name_of_producer = wish.producer_name or connection.gateway.new_producer_name()
    connected = ConnectedProducer(connection, topic, wish, name_of_producer)
    producer = connected.producer
    other = topic.producers.named(producer.name)
    if other is not None and other.channel.connection is not connection:
        # Its client may have lost the connection without our knowing; else it answers, and this one is refused.
        await other.channel.is_alive()
    await _settle_predecessor(connected)
    if not is_wanted():
        return None
    turn = topic.add_producer(producer)
    connection.producers[wish.producer_id] = connected
    try:
        if turn is not None:
            connection.send(_producer_success(wish.request_id, connected, version, is_ready=False))
            await turn  # Refused: another producer took the topic
            await _settle_predecessor(connected)
        await topic.producers.confirm(producer)
    except BaseException as error:
        connection.remove_producer(connected)
        topic.remove_producer(producer)
        if isinstance(error, Fenced):
            topic.lost(error)
        raise
    if producer.is_closed:
        raise Refused(ServerError.ServiceNotReady, f"the producer {producer.name!r} was closed while it was created")
    return _producer_success(wish.request_id, connected, version)


async def _settle_predecessor(connected: ConnectedProducer) -> None:
    """Wait until no entry of an earlier producer of the same name is in the queue of a topic that deduplicates.

    PRODUCER_SUCCESS names the last sequence id that is stored. An entry in the queue may be stored later, and the new
    producer would give its id to another message, which then counts as a duplicate and is lost. An earlier producer
    that is connected elsewhere still sends: this one is refused.
    """
    topic, producer = connected.topic, connected.producer
    while topic.is_deduplicating and topic.publishing.holds(producer.name):
        other = topic.producers.named(producer.name)
        if other is not None and other.channel.connection is not connected.connection:
            return
        await topic.publishing.settled()


def _producer_success(
    request_id: int, connected: ConnectedProducer, version: bytes | None, is_ready: bool = True
) -> BaseCommand:
    producer = connected.producer
    answer = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    response = answer.producer_success
    response.request_id, response.producer_name = request_id, producer.name
    response.last_sequence_id = connected.topic.last_sequence_id(producer.name)
    response.schema_version = version or b""
    if producer.topic_epoch is not None and producer.options.access_mode and is_ready:
        response.topic_epoch = producer.topic_epoch
    response.producer_ready = is_ready
    return answer


async def _schema_version(connection: Connection, name: TopicName, schema: Schema | None) -> bytes | None:
    """The version of a producer's schema, which is stored if it is new. Raises CompactorError where it does not
    fit."""
    if schema is None or not has_schema(schema):
        return None
    return version_bytes(await ensure_stored(connection, name, schema))


def send(connection: Connection, command: BaseCommand, entry: bytes) -> None:
    wish = command.send
    connected = connection.producers.get(wish.producer_id)
    if connected is None or connected.topic.producers.named(connected.producer.name) is not connected.producer:
        return  # it was told to come again, and will send this once more, or its turn has not come
    queued = QueuedEntry(connected.producer, wish.sequence_id, wish.highest_sequence_id, wish.num_messages, entry)
    if wish.txnid_most_bits or wish.txnid_least_bits or wish.marker:
        connected.send_error(
            wish.sequence_id, Refused(ServerError.NotAllowedError, "transactions and markers are not offered")
        )
    elif not entry:
        raise MalformedFrame("SEND without an entry")
    else:
        connected.topic.publishing.put(queued)


def close_producer(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.close_producer
    connected = connection.producers.pop(wish.producer_id, None)
    connection.not_wanted("producer", wish.producer_id)
    if connected is None:
        connection.send(success(wish.request_id))
        return

    async def closed() -> BaseCommand:
        await connected.topic.publishing.settled()
        connected.topic.remove_producer(connected.producer)
        return success(wish.request_id)

    connection.begin(wish.request_id, closed())
