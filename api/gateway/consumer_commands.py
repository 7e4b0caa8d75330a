"""Commands of consumers: SUBSCRIBE, FLOW, ACK, SEEK and what else they ask of their subscription."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from api.gateway.commands import Refused, failure, id_data, message_id, refusal, success
from api.gateway.consumers import Consumer
from api.gateway.lookup import parse_name
from api.gateway.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandConsumerStatsResponse,
    CommandSubscribe,
    MessageIdData,
    ServerError,
)
from api.gateway.schema_commands import ensure_readable
from api.gateway.schema_data import has_schema
from api.gateway.subscriptions import entry_of
from api.http.access import AuthAction
from api.http.problems import RestException
from api.http.thread_pools import WaitsFor
from storage.errors import CompactorError, Fenced
from storage.model import LATEST

if TYPE_CHECKING:
    from api.gateway.connection import Connection

LOG = logging.getLogger(__name__)


def subscribe(connection: Connection, command: BaseCommand, _: bytes) -> None:
    connection.begin(command.subscribe.request_id, _add_consumer(connection, command.subscribe))


async def _add_consumer(connection: Connection, wish: CommandSubscribe) -> BaseCommand | None:
    if wish.consumer_id in connection.consumers:
        return success(wish.request_id)
    with connection.creating("consumer", wish.consumer_id, wish.request_id) as is_wanted:
        await _create(connection, wish, is_wanted)
    return None


async def _create(connection: Connection, wish: CommandSubscribe, is_wanted: Callable[[], bool]) -> None:
    name = parse_name(wish.topic)
    await connection.allow(name, AuthAction.CONSUME)
    if wish.HasField("schema") and has_schema(wish.schema):
        await ensure_readable(connection, name, wish.schema)
    topic = await connection.gateway.topic(
        name, wish.force_topic_creation and connection.settings.auto_create, connection.audit
    )
    consumer = Consumer(connection, wish, name.partition, connection.gateway.clock.now_ms())
    if not consumer.name:
        consumer.name = connection.gateway.new_consumer_name()
    there = topic.subscriptions.get(wish.subscription)
    if there is not None and wish.sub_type == CommandSubscribe.Exclusive:
        for other in list(there.consumers):
            if other.connection is not connection:
                await other.connection.is_alive(connection.settings.liveness_seconds)
    subscription = await topic.subscribe(consumer, wish)
    if subscription.is_new:
        subscription.is_new = False
        connection.audit("create_subscription", topic.name, subscription.name)
    if not is_wanted():
        await topic.remove_consumer(consumer)
        return
    # The answer goes first: a client takes no message of a consumer that it does not know yet.
    connection.consumers[wish.consumer_id] = consumer
    connection.send(success(wish.request_id))
    assert subscription.dispatcher is not None
    subscription.dispatcher.add(consumer)


def flow(connection: Connection, command: BaseCommand, _: bytes) -> None:
    consumer = connection.consumers.get(command.flow.consumer_id)
    if consumer is not None:
        consumer.permits += command.flow.message_permits
        consumer.wake()


def ack(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.ack
    consumer = connection.consumers.get(wish.consumer_id)
    if consumer is None or consumer.subscription is None:
        return
    subscription = consumer.subscription

    refused = _refused_ack(connection, consumer, wish)
    rest: list[MessageIdData] = []
    is_cumulative = wish.ack_type == CommandAck.Cumulative
    try:
        if refused is not None:
            pass
        elif is_cumulative:
            rest = [data for data in wish.message_id[:1] if not subscription.acknowledge_to(consumer, data)]
        else:
            rest = subscription.acknowledge(consumer, wish.message_id)
    except Fenced as error:  # another one has moved or deleted the cursor
        refused = refusal(error)
        if subscription.cursor is not None:
            subscription.topic.spawn(subscription.reopen(subscription.cursor))
    if not rest and not wish.HasField("request_id"):
        return

    async def acknowledged() -> BaseCommand | None:
        error = refused
        try:
            if is_cumulative:
                for data in rest:
                    await subscription.acknowledge_found_to(consumer, data)
            else:
                await subscription.acknowledge_found(rest)
            if wish.HasField("request_id") and error is None:
                await subscription.flush(for_receipt=True)
        except (CompactorError, RestException) as failed:
            error = refusal(failed)
            LOG.warning("an acknowledgement of %s failed: %s", subscription.name, error.message)
        if not wish.HasField("request_id"):
            return None
        answer = BaseCommand(type=BaseCommand.ACK_RESPONSE)
        answer.ack_response.consumer_id, answer.ack_response.request_id = wish.consumer_id, wish.request_id
        if error is not None:
            answer.ack_response.error, answer.ack_response.message = error.error, error.message
        return answer

    connection.begin(wish.request_id, acknowledged())


def _refused_ack(connection: Connection, consumer: Consumer, wish: CommandAck) -> Refused | None:
    if wish.txnid_most_bits or wish.txnid_least_bits:
        return Refused(ServerError.NotAllowedError, "transactions are not offered")
    shared = consumer.sub_type in (CommandSubscribe.Shared, CommandSubscribe.KeyShared)
    if shared and wish.ack_type == CommandAck.Cumulative:
        return Refused(ServerError.NotAllowedError, "shared consumers acknowledge one by one")
    return None


def redeliver(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.redeliver_unacknowledged_messages
    consumer = connection.consumers.get(wish.consumer_id)
    if consumer is None or consumer.subscription is None or consumer.subscription.dispatcher is None:
        return
    if wish.HasField("consumer_epoch"):
        consumer.epoch = wish.consumer_epoch
    dispatcher = consumer.subscription.dispatcher
    if wish.message_ids:
        found = (consumer.subscription.pending.get((item.ledger_id, item.entry_id)) for item in wish.message_ids)
        dispatcher.redeliver(consumer, [item for item in found if item is not None])
    else:
        dispatcher.redeliver_all(consumer)


def unsubscribe(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.unsubscribe
    consumer = _consumer(connection, wish.consumer_id, wish.request_id)
    if consumer is None or consumer.subscription is None:
        return
    subscription = consumer.subscription
    if len(subscription.consumers) > 1 and not wish.force:
        connection.send(
            failure(
                wish.request_id,
                Refused(ServerError.MetadataError, f"{subscription.name} has other consumers: it stays"),
            )
        )
        return

    async def unsubscribed() -> BaseCommand:
        connection.consumers.pop(wish.consumer_id, None)
        await subscription.topic.unsubscribe(subscription)
        connection.audit("delete_subscription", subscription.topic.name, subscription.name)
        return success(wish.request_id)

    connection.begin(wish.request_id, unsubscribed())


def seek(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.seek
    consumer = _consumer(connection, wish.consumer_id, wish.request_id)
    if consumer is None or consumer.subscription is None:
        return
    subscription = consumer.subscription

    async def sought() -> BaseCommand:
        if wish.HasField("message_id"):
            place = message_id(wish.message_id)
            await subscription.seek(place if wish.message_id.ledger_id < LATEST.ledger_id else entry_of(place))
        else:
            await subscription.seek(wish.message_publish_time)
        if subscription.durable:
            connection.audit("reset_cursor", subscription.topic.name, subscription.name)
        return success(wish.request_id)

    connection.begin(wish.request_id, sought())


def close_consumer(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.close_consumer
    consumer = connection.consumers.pop(wish.consumer_id, None)
    connection.not_wanted("consumer", wish.consumer_id)

    async def closed() -> BaseCommand:
        if consumer is not None and consumer.subscription is not None:
            await consumer.subscription.topic.remove_consumer(consumer)
        return success(wish.request_id)

    connection.begin(wish.request_id, closed())


def last_message_id(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.get_last_message_id
    consumer = _consumer(connection, wish.consumer_id, wish.request_id)
    if consumer is None or consumer.subscription is None:
        return
    subscription = consumer.subscription

    async def found() -> BaseCommand:
        topic = subscription.topic
        last = await connection.pools[WaitsFor.STORE].run(topic.storage.last_message_id, subscription.read_compacted)
        answer = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        response = answer.get_last_message_id_response
        response.request_id = wish.request_id
        response.last_message_id.CopyFrom(id_data(last, topic.name.partition))
        before = subscription.delivered_before
        if before is not None:
            response.consumer_mark_delete_position.CopyFrom(id_data(before))
            response.consumer_mark_delete_position.ClearField("batch_index")
        return answer

    connection.begin(wish.request_id, found())


def consumer_stats(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.consumer_stats
    answer = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
    response: CommandConsumerStatsResponse = answer.consumer_stats_response
    response.request_id = wish.request_id
    consumer = connection.consumers.get(wish.consumer_id)
    if consumer is None:
        response.error_code, response.error_message = ServerError.ConsumerNotFound, "there is no such consumer"
    else:
        response.msg_rate_out = consumer.delivered.per_second
        response.msg_throughput_out = consumer.delivered.bytes_per_second
        response.msg_rate_redeliver = consumer.redelivered.per_second
        response.message_ack_rate = consumer.acknowledged.per_second
        response.consumer_name = consumer.name
        response.available_permits = max(0, consumer.permits)
        response.unacked_messages = max(0, consumer.unacked)
        response.address = connection.address
        response.type = CommandSubscribe.SubType.Name(consumer.sub_type)
    connection.send(answer)


def _consumer(connection: Connection, consumer_id: int, request_id: int) -> Consumer | None:
    """The consumer; where there is none, the request is refused."""
    consumer = connection.consumers.get(consumer_id)
    if consumer is None:
        missing = Refused(ServerError.ConsumerNotFound, f"this connection has no consumer {consumer_id}")
        connection.send(failure(request_id, missing))
    return consumer
