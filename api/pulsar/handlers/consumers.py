"""Commands of consumers: SUBSCRIBE, FLOW, ACK, SEEK and what else they ask of their subscription."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from api.broker.serving.acknowledging import AckedEntry
from api.broker.serving.consumer import Consumer, ConsumerOptions, SubscriptionType
from api.broker.serving.position import SubscribeRequest, entry_of
from api.http.access import AuthAction
from api.pulsar.consumer_channel import ConnectedConsumer, returns_dropped_slots
from api.pulsar.errors import Refused, failure, id_data, message_id, refusal, success
from api.pulsar.handlers.schemas import ensure_readable
from api.pulsar.lookup import parse_name
from api.pulsar.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandConsumerStatsResponse,
    CommandSubscribe,
    KeySharedMeta,
    MessageIdData,
    ServerError,
)
from api.pulsar.schema_data import has_schema
from storage.errors import CompactorError, Fenced
from storage.model import EARLIEST, LATEST, MessageId
from storage.positions import StartPosition, StartTime
from storage.topic import Topic

if TYPE_CHECKING:
    from api.pulsar.connection import Connection

LOG = logging.getLogger(__name__)
ACKS_AT_ONCE = 500
"""Messages of one command that are acknowledged in one step of the event loop: 50,000 take 0.6 s."""


def subscribe(connection: Connection, command: BaseCommand, _: bytes) -> None:
    connection.begin(command.subscribe.request_id, _add_consumer(connection, command.subscribe))


async def _add_consumer(connection: Connection, command: CommandSubscribe) -> BaseCommand | None:
    if command.consumer_id in connection.consumers:
        return success(command.request_id)
    with connection.creating("consumer", command.consumer_id, command.request_id) as is_wanted:
        await _create(connection, command, is_wanted)
    return None


async def _create(connection: Connection, command: CommandSubscribe, is_wanted: Callable[[], bool]) -> None:
    name = parse_name(command.topic)
    await connection.allow(name, AuthAction.CONSUME)
    if command.HasField("schema") and has_schema(command.schema):
        await ensure_readable(connection, name, command.schema)
    topic = await connection.gateway.topic(
        name, command.force_topic_creation and connection.settings.auto_create, connection.audit
    )
    request = _request(command, connection.gateway.clock.now_ms())
    epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
    connected = ConnectedConsumer(connection, topic, _options(connection, command), epoch)
    consumer = connected.consumer
    present = topic.subscriptions.get(request.name)
    if present is not None and consumer.type is SubscriptionType.EXCLUSIVE:
        for other in list(present.consumers):  # its client may have lost the connection without our knowing
            if other.channel.connection is not connection:
                await other.channel.is_alive()
    await connected.subscribe(request)
    subscription = connected.subscription
    if subscription.position.is_new:
        subscription.position.is_new = False
        connection.audit("create_subscription", topic.name, subscription.name)
    if not is_wanted():
        await topic.remove_consumer(subscription, consumer)
        return
    # The answer goes first: a client takes no message of a consumer that it does not know yet.
    connection.consumers[command.consumer_id] = connected
    connection.send(success(command.request_id))
    assert subscription.dispatcher is not None
    subscription.dispatcher.add(consumer)


def _options(connection: Connection, command: CommandSubscribe) -> ConsumerOptions:
    sticky = command.key_shared_meta if command.HasField("key_shared_meta") else None
    return ConsumerOptions(
        name=command.consumer_name or connection.gateway.new_consumer_name(),
        type=SubscriptionType(command.sub_type),
        consumer_id=command.consumer_id,
        priority=command.priority_level,
        read_compacted=command.read_compacted,
        metadata={item.key: item.value for item in command.metadata},
        sticky_ranges=tuple((item.start, item.end) for item in sticky.hash_ranges)
        if sticky is not None and sticky.mode == KeySharedMeta.Sticky
        else None,
        returns_dropped_slots=returns_dropped_slots(connection.client_version),
    )


def _request(command: CommandSubscribe, now_ms: int) -> SubscribeRequest:
    start: StartPosition = EARLIEST if command.initial_position == CommandSubscribe.Earliest else LATEST
    resumes = False
    if command.start_message_rollback_duration_sec:
        start = StartTime(now_ms - 1000 * command.start_message_rollback_duration_sec)
    elif not command.durable and command.HasField("start_message_id"):
        start = entry_of(message_id(command.start_message_id))
        resumes = start not in (EARLIEST, LATEST)
    properties = {item.key: item.value for item in command.subscription_properties}
    return SubscribeRequest(command.subscription, command.durable, command.read_compacted, start, resumes, properties)


def flow(connection: Connection, command: BaseCommand, _: bytes) -> None:
    connected = connection.consumers.get(command.flow.consumer_id)
    if connected is not None:
        connected.subscription.flow(connected.consumer, command.flow.message_permits)


def ack(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.ack
    connected = connection.consumers.get(request.consumer_id)
    if connected is None:
        return
    consumer, subscription = connected.consumer, connected.subscription
    is_cumulative = request.ack_type == CommandAck.Cumulative
    ids, unknown = request.message_id[:1] if is_cumulative else request.message_id, list[AckedEntry]()

    def acknowledge(some: Sequence[MessageIdData]) -> Refused | None:
        try:
            acks = _acked(some)
            if is_cumulative:
                unknown.extend(item for item in acks if not subscription.acknowledge_to(consumer, item))
            else:
                unknown.extend(subscription.acknowledge(consumer, acks))
        except Fenced as error:  # another process has moved or deleted the cursor
            return refusal(error)
        return None

    refused = _refused_ack(connection, consumer, request) or acknowledge(ids[:ACKS_AT_ONCE])
    in_pieces = refused is None and len(ids) > ACKS_AT_ONCE
    if not in_pieces and not unknown and not request.HasField("request_id"):
        return

    async def acknowledged() -> BaseCommand | None:
        error = refused
        if in_pieces:
            try:
                for start in range(ACKS_AT_ONCE, len(ids), ACKS_AT_ONCE):
                    await asyncio.sleep(0)
                    if error is None and connection.consumers.get(request.consumer_id) is connected:
                        error = acknowledge(ids[start : start + ACKS_AT_ONCE])
            finally:
                connection.go_on("acknowledging")
        try:
            if unknown:
                await subscription.look_up(consumer, unknown, cumulative=is_cumulative)
            if request.HasField("request_id") and error is None:
                await subscription.flush()
        except CompactorError as failed:
            error = refusal(failed)
            connection.gateway.log_throttle.warn(
                f"an acknowledgement of {subscription.name} failed: {error.message}", f"ack {connected.topic.name}"
            )
        if not request.HasField("request_id"):
            return None
        answer = BaseCommand(type=BaseCommand.ACK_RESPONSE)
        answer.ack_response.consumer_id, answer.ack_response.request_id = request.consumer_id, request.request_id
        if error is not None:
            answer.ack_response.error, answer.ack_response.message = error.error, error.message
        return answer

    if in_pieces:
        connection.hold("acknowledging")  # what follows must not overtake the rest
    if not connection.begin(request.request_id, acknowledged()) and in_pieces:
        connection.go_on("acknowledging")


def _acked(ids: Iterable[MessageIdData]) -> list[AckedEntry]:
    return [
        AckedEntry(
            item.ledger_id, item.entry_id, item.batch_index if item.HasField("batch_index") else -1, item.ack_set
        )
        for item in ids
    ]


def _refused_ack(connection: Connection, consumer: Consumer, request: CommandAck) -> Refused | None:
    if request.txnid_most_bits or request.txnid_least_bits:
        return Refused(ServerError.NotAllowedError, "transactions are not offered")
    if consumer.type.is_individual and request.ack_type == CommandAck.Cumulative:
        return Refused(ServerError.NotAllowedError, "shared consumers acknowledge one by one")
    return None


def redeliver(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.redeliver_unacknowledged_messages
    connected = connection.consumers.get(request.consumer_id)
    if connected is None:
        return
    if request.HasField("consumer_epoch"):
        connected.epoch = max(request.consumer_epoch, connected.epoch or 0)
    keys = [(item.ledger_id, item.entry_id) for item in request.message_ids]
    connected.subscription.redeliver(connected.consumer, keys)


def unsubscribe(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.unsubscribe
    connected = _connected(connection, request.consumer_id, request.request_id)
    if connected is None:
        return
    topic, subscription = connected.topic, connected.subscription
    if len(subscription.consumers) > 1 and not request.force:
        connection.send(
            failure(
                request.request_id,
                Refused(ServerError.MetadataError, f"{subscription.name} has other consumers: it stays"),
            )
        )
        return

    async def unsubscribed() -> BaseCommand:
        connection.consumers.pop(request.consumer_id, None)
        await topic.unsubscribe(subscription, force=True)
        connection.audit("delete_subscription", topic.name, subscription.name)
        return success(request.request_id)

    connection.begin(request.request_id, unsubscribed())


def seek(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.seek
    connected = _connected(connection, request.consumer_id, request.request_id)
    if connected is None:
        return
    topic, subscription = connected.topic, connected.subscription

    async def sought() -> BaseCommand:
        if request.HasField("message_id"):
            place = message_id(request.message_id)
            await subscription.seek(place if request.message_id.ledger_id < LATEST.ledger_id else entry_of(place))
        else:
            await subscription.seek(request.message_publish_time)
        if subscription.durable:
            connection.audit("reset_cursor", topic.name, subscription.name)
        return success(request.request_id)

    connection.begin(request.request_id, sought())


def close_consumer(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.close_consumer
    connected = connection.consumers.pop(request.consumer_id, None)
    connection.not_wanted("consumer", request.consumer_id)

    async def closed() -> BaseCommand:
        if connected is not None:
            await connected.topic.remove_consumer(connected.subscription, connected.consumer)
        return success(request.request_id)

    connection.begin(request.request_id, closed())


def last_message_id(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.get_last_message_id
    connected = _connected(connection, request.consumer_id, request.request_id)
    if connected is None:
        return
    topic, subscription = connected.topic, connected.subscription

    async def found() -> BaseCommand:
        last, before_first = await topic.store.run(_ends, topic.storage, subscription.position.read_compacted)
        answer = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        response = answer.get_last_message_id_response
        response.request_id = request.request_id
        response.last_message_id.CopyFrom(id_data(last, topic.name.partition))
        before = subscription.position.delivered_before
        response.consumer_mark_delete_position.CopyFrom(id_data(before_first if before == EARLIEST else before))
        response.consumer_mark_delete_position.ClearField("batch_index")
        return answer

    connection.begin(request.request_id, found())


def _ends(topic: Topic, read_compacted: bool) -> tuple[MessageId, MessageId]:
    """Return the id of the last message, and the place before the first entry."""
    extents = topic.snapshot().extents
    return topic.last_message_id(read_compacted), MessageId(extents[0].ledger_id if extents else -1, -1)


def consumer_stats(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.consumer_stats
    answer = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
    response: CommandConsumerStatsResponse = answer.consumer_stats_response
    response.request_id = request.request_id
    connected = connection.consumers.get(request.consumer_id)
    if connected is None:
        response.error_code, response.error_message = ServerError.ConsumerNotFound, "there is no such consumer"
    else:
        consumer = connected.consumer
        response.msg_rate_out = consumer.delivered.per_second
        response.msg_throughput_out = consumer.delivered.bytes_per_second
        response.msg_rate_redeliver = consumer.redelivered.per_second
        response.message_ack_rate = consumer.acknowledged.per_second
        response.consumer_name = consumer.name
        response.available_permits = max(0, consumer.permits)  # the field has no sign
        response.unacked_messages = max(0, consumer.unacked)
        response.address = connection.address
        response.type = CommandSubscribe.SubType.Name(int(consumer.type))
    connection.send(answer)


def _connected(connection: Connection, consumer_id: int, request_id: int) -> ConnectedConsumer | None:
    """Return a consumer of the connection. Without one, refuse the request and return None."""
    connected = connection.consumers.get(consumer_id)
    if connected is None:
        missing = Refused(ServerError.ConsumerNotFound, f"this connection has no consumer {consumer_id}")
        connection.send(failure(request_id, missing))
    return connected
