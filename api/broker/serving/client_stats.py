"""Live stats of a topic: its producers, subscriptions and consumers as this process serves them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from api.broker.serving.connected_clients import ClientCounts, LiveSubscriptionState, LiveTopicState
from api.broker.serving.consumer import Consumer
from api.broker.serving.producer import Producer
from api.broker.serving.subscription import Subscription
from api.broker.serving.topic import PersistentTopic
from api.broker.stats_tree import NO_CONSUMER, ConsumerStats, ProducerStats, SubscriptionStats, TopicStats
from storage.model import TopicName


def live_topic_state(topic: PersistentTopic) -> LiveTopicState:
    """Return the live stats of one topic, with its producers, subscriptions and consumers."""
    delivered = [item.dispatched for item in list(topic.subscriptions.values())]
    received = topic.published
    stats = TopicStats(
        msg_rate_in=received.per_second,
        msg_throughput_in=received.bytes_per_second,
        msg_rate_out=sum(item.per_second for item in delivered),
        msg_throughput_out=sum(item.bytes_per_second for item in delivered),
        msg_out_counter=sum(item.messages for item in delivered),
        bytes_out_counter=sum(item.bytes for item in delivered),
        average_msg_size=received.bytes / received.messages if received.messages else 0.0,
        deduplication_status="Enabled" if topic.is_deduplicating else "Disabled",
        publishers=tuple(_producer_stats(item) for item in topic.producers.active),
    )
    return LiveTopicState(stats, {name: _subscription_state(item) for name, item in list(topic.subscriptions.items())})


def _subscription_state(subscription: Subscription) -> LiveSubscriptionState:
    """Return the live stats of one subscription, with its consumers."""
    consumers = list(subscription.consumers)
    dispatched, dispatcher = subscription.dispatched, subscription.dispatcher
    type_name = subscription.type.pulsar_name if subscription.type is not None else NO_CONSUMER
    active = dispatcher.active if dispatcher is not None else None
    stats = SubscriptionStats(
        msg_rate_out=dispatched.per_second,
        msg_throughput_out=dispatched.bytes_per_second,
        msg_out_counter=dispatched.messages,
        bytes_out_counter=dispatched.bytes,
        msg_rate_redeliver=sum(item.redelivered.per_second for item in consumers),
        message_ack_rate=sum(item.acknowledged.per_second for item in consumers),
        unacked_messages=sum(max(0, item.unacked) for item in consumers),
        msg_delayed=dispatcher.delayed_count if dispatcher is not None else 0,
        type=type_name,
        active_consumer_name=active.name if active is not None else None,
        last_consumed_timestamp=max((item.last_consumed_at for item in consumers), default=0),
        last_acked_timestamp=max((item.last_acked_at for item in consumers), default=0),
        last_mark_delete_advanced_timestamp=subscription.acks.mark_advanced_at,
        is_durable=subscription.durable,
        durable=subscription.durable,
        consumers=tuple(_consumer_stats(item) for item in consumers),
    )
    return LiveSubscriptionState(stats, subscription.position.delivered_end, subscription.position.backlog)


def client_counts(topics: Iterator[PersistentTopic]) -> Iterator[tuple[TopicName, ClientCounts]]:
    """Yield the name and the client counts of each topic, for metrics."""
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
                stale_reader_count=topic.stale_reader_count,
            ),
        )


def _producer_stats(producer: Producer) -> ProducerStats:
    rate, options = producer.published, producer.options
    return ProducerStats(
        access_mode="".join(word.capitalize() for word in options.access_mode.name.split("_")),
        msg_rate_in=rate.per_second,
        msg_throughput_in=rate.bytes_per_second,
        average_msg_size=rate.bytes / rate.messages if rate.messages else 0.0,
        producer_id=options.producer_id,
        producer_name=producer.name,
        address=f"/{producer.channel.connection.address}",
        connected_since=_iso_time(producer.connected_at),
        client_version=producer.channel.connection.client_version,
        metadata=dict(options.metadata),
    )


def _consumer_stats(consumer: Consumer) -> ConsumerStats:
    return ConsumerStats(
        msg_rate_out=consumer.delivered.per_second,
        msg_throughput_out=consumer.delivered.bytes_per_second,
        bytes_out_counter=consumer.delivered.bytes,
        msg_out_counter=consumer.delivered.messages,
        msg_rate_redeliver=consumer.redelivered.per_second,
        message_ack_rate=consumer.acknowledged.per_second,
        consumer_name=consumer.name,
        available_permits=consumer.permits,
        unacked_messages=max(0, consumer.unacked),
        address=f"/{consumer.channel.connection.address}",
        connected_since=_iso_time(consumer.connected_at),
        client_version=consumer.channel.connection.client_version,
        last_acked_timestamp=consumer.last_acked_at,
        last_consumed_timestamp=consumer.last_consumed_at,
        last_consumed_flow_timestamp=consumer.last_flow_at,
        metadata=dict(consumer.options.metadata),
    )


def _iso_time(ms: int) -> str:
    """Return a time in epoch milliseconds as Pulsar writes it: ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
