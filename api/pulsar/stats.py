"""What topic stats and metrics show of producers, subscriptions and consumers, by the names of Pulsar's stats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from api.broker.serving.connected_clients import ClientCounts, SubscriptionClients, TopicClients
from api.broker.serving.consumer import Consumer
from api.broker.serving.producer import Producer
from api.broker.serving.subscription import Subscription
from api.broker.serving.topic import PersistentTopic
from storage.model import TopicName


def topic_clients(topic: PersistentTopic) -> TopicClients:
    """The clients of one topic."""
    subscriptions = {name: subscription_clients(item) for name, item in list(topic.subscriptions.items())}
    delivered = [item.dispatched for item in list(topic.subscriptions.values())]
    received = topic.published
    return TopicClients(
        {
            "msg_rate_in": received.per_second,
            "msg_throughput_in": received.bytes_per_second,
            "msg_rate_out": sum(item.per_second for item in delivered),
            "msg_throughput_out": sum(item.bytes_per_second for item in delivered),
            "msg_out_counter": sum(item.messages for item in delivered),
            "bytes_out_counter": sum(item.bytes for item in delivered),
            "average_msg_size": received.bytes / received.messages if received.messages else 0.0,
            "deduplication_status": "Enabled" if topic.is_deduplicating else "Disabled",
        },
        tuple(_publisher(item) for item in topic.producers.all),
        subscriptions,
    )


def subscription_clients(subscription: Subscription) -> SubscriptionClients:
    """A subscription and its consumers."""
    consumers = list(subscription.consumers)
    dispatched = subscription.dispatched
    subscription_type = subscription.type
    fields: dict[str, Any] = {
        "msg_rate_out": dispatched.per_second,
        "msg_throughput_out": dispatched.bytes_per_second,
        "msg_out_counter": dispatched.messages,
        "bytes_out_counter": dispatched.bytes,
        "msg_rate_redeliver": sum(item.redelivered.per_second for item in consumers),
        "message_ack_rate": sum(item.acknowledged.per_second for item in consumers),
        "unacked_messages": sum(max(0, item.unacked) for item in consumers),
        "last_consumed_timestamp": max((item.last_consumed_at for item in consumers), default=0),
        "last_mark_delete_advanced_timestamp": subscription.mark_advanced_at,
        "last_acked_timestamp": max((item.last_acked_at for item in consumers), default=0),
        "is_durable": subscription.durable,
        "durable": subscription.durable,
    }
    if subscription_type is not None:
        fields["type"] = subscription_type.pulsar_name
    dispatcher = subscription.dispatcher
    if dispatcher is not None:
        fields["msg_delayed"] = dispatcher.delayed
        if dispatcher.active is not None:
            fields["active_consumer_name"] = dispatcher.active.name
    return SubscriptionClients(
        fields,
        tuple(_consumer(item) for item in consumers),
        subscription.position.delivered_end,
        subscription.durable,
        subscription.position.backlog,
    )


def counts(topics: Iterator[PersistentTopic]) -> Iterator[tuple[TopicName, ClientCounts]]:
    """What metrics show, topic by topic."""
    for topic in topics:
        consumers = [item for subscription in list(topic.subscriptions.values()) for item in subscription.consumers]
        yield (
            topic.name,
            ClientCounts(
                producers=len(topic.producers),
                consumers=len(consumers),
                subscriptions=len(topic.subscriptions),
                messages_in=topic.published.messages,
                bytes_in=topic.published.bytes,
                messages_out=sum(item.dispatched.messages for item in list(topic.subscriptions.values())),
                bytes_out=sum(item.dispatched.bytes for item in list(topic.subscriptions.values())),
                unacked=sum(max(0, item.unacked) for item in consumers),
                stale_readers=topic.stale_readers,
            ),
        )


def _publisher(producer: Producer) -> Mapping[str, Any]:
    rate = producer.published
    return {
        "accessMode": producer.options.access_mode.name.title().replace("_", ""),
        "msgRateIn": rate.per_second,
        "msgThroughputIn": rate.bytes_per_second,
        "averageMsgSize": rate.bytes / rate.messages if rate.messages else 0.0,
        "chunkedMessageRate": 0.0,
        "producerId": producer.options.producer_id,
        "supportsPartialProducer": True,
        "producerName": producer.name,
        "address": f"/{producer.channel.address}",
        "connectedSince": _time(producer.connected_at),
        "clientVersion": producer.channel.client_version,
        "metadata": dict(producer.options.metadata),
    }


def _consumer(consumer: Consumer) -> Mapping[str, Any]:
    return {
        "msgRateOut": consumer.delivered.per_second,
        "msgThroughputOut": consumer.delivered.bytes_per_second,
        "bytesOutCounter": consumer.delivered.bytes,
        "msgOutCounter": consumer.delivered.messages,
        "msgRateRedeliver": consumer.redelivered.per_second,
        "messageAckRate": consumer.acknowledged.per_second,
        "chunkedMessageRate": 0.0,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": max(0, consumer.unacked),
        "avgMessagesPerEntry": 0,
        "blockedConsumerOnUnackedMsgs": False,
        "address": f"/{consumer.channel.address}",
        "connectedSince": _time(consumer.connected_at),
        "clientVersion": consumer.channel.client_version,
        "lastAckedTimestamp": consumer.last_acked_at,
        "lastConsumedTimestamp": consumer.last_consumed_at,
        "lastConsumedFlowTimestamp": consumer.last_flow_at,
        "metadata": dict(consumer.options.metadata),
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
