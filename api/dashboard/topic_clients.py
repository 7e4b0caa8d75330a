"""Clients of a topic for its page: producers, and subscriptions with their consumers, from the statistics tree.

Another service may have a topic's clients; then the page names it, since this process knows none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from api.broker.broker import Broker
from api.broker.refusals import NotTheOwner
from api.broker.serving.connected_clients import LiveTopicState
from api.broker.stats import StatsSnapshot, topic_stats
from api.broker.stats_tree import NO_CONSUMER, ConsumerStats, ProducerStats, TopicStats

SHOWN = 100
"""The number of producers, and of one subscription's consumers, that a page lists."""


@dataclass(frozen=True)
class Client:
    """A producer or a consumer. Rates are per second; `since`: milliseconds, 0: unknown. A producer has neither permits
    nor unacknowledged messages."""

    name: str
    address: str
    version: str
    since: int
    messages: float
    bytes: float
    permits: int = 0
    unacked: int = 0


@dataclass(frozen=True)
class Subscription:
    """A subscription. `type`: empty without consumers. `next_offset`: of its cursor; None: it has no cursor here."""

    name: str
    type: str
    durable: bool
    next_offset: int | None
    backlog: int
    unacked: int
    messages: float
    bytes: float
    consumers: Sequence[Client]
    number_of_consumers: int


@dataclass(frozen=True)
class TopicClients:
    """The clients of a topic. `elsewhere`: the URL of the service to which they are connected; empty: this one."""

    producers: Sequence[Client]
    number_of_producers: int
    subscriptions: Sequence[Subscription]
    messages_in: float
    bytes_in: float
    messages_out: float
    bytes_out: float
    elsewhere: str = ""


def topic_clients(broker: Broker, snapshot: StatsSnapshot, live: LiveTopicState) -> TopicClients:
    """Return the clients of a topic. `live`: those of this process. Reads the database."""
    elsewhere = ""
    try:
        broker.ownership.check_for_clients(snapshot.stats.topic)
    except NotTheOwner as error:
        elsewhere = error.service.url or error.service.name
    next_offsets = {cursor.record.name: cursor.record.mark + 1 for cursor in snapshot.stats.cursors}
    return clients_of(topic_stats(snapshot, live, sizes=False), next_offsets, elsewhere)


def clients_of(stats: TopicStats, next_offsets: Mapping[str, int], elsewhere: str = "") -> TopicClients:
    """Return the clients in the stats of a topic. `next_offsets`: of the cursors, by the names of subscriptions."""
    return TopicClients(
        [_producer(item) for item in stats.publishers[:SHOWN]],
        len(stats.publishers),
        [
            Subscription(
                name,
                "" if item.type == NO_CONSUMER else item.type,
                item.durable,
                next_offsets.get(name),
                item.msg_backlog,
                item.unacked_messages,
                item.msg_rate_out,
                item.msg_throughput_out,
                [_consumer(consumer) for consumer in item.consumers[:SHOWN]],
                len(item.consumers),
            )
            for name, item in stats.subscriptions.items()
        ],
        stats.msg_rate_in,
        stats.msg_throughput_in,
        stats.msg_rate_out,
        stats.msg_throughput_out,
        elsewhere,
    )


def _producer(stats: ProducerStats) -> Client:
    return Client(
        stats.producer_name,
        stats.address.removeprefix("/"),
        stats.client_version,
        _milliseconds(stats.connected_since),
        stats.msg_rate_in,
        stats.msg_throughput_in,
    )


def _consumer(stats: ConsumerStats) -> Client:
    return Client(
        stats.consumer_name,
        stats.address.removeprefix("/"),
        stats.client_version,
        _milliseconds(stats.connected_since),
        stats.msg_rate_out,
        stats.msg_throughput_out,
        stats.available_permits,
        stats.unacked_messages,
    )


def _milliseconds(time: str) -> int:
    """Return the milliseconds since 1970 of a time as Pulsar writes it; 0: there is none."""
    return round(datetime.fromisoformat(time).timestamp() * 1000) if time else 0
