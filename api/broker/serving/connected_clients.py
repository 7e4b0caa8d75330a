"""Pulsar's clients of this service: the live part of stats and metrics, and the subscriptions that operations move.

The server of Pulsar's protocol fills it in. Threads read the stats of a topic while clients connect and disconnect, so
the numbers of one answer are of about one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from api.broker.refusals import ClientsConnected
from storage.cursor import Cursor
from storage.metadata.records import TopicRecord
from storage.model import LogPosition, TopicName

NO_CONSUMER = "None"
"""The type of a subscription without consumers."""


@dataclass(frozen=True)
class ProducerStats:
    """One producer: its fields are those of Pulsar's `PublisherStats`, in snake case."""

    access_mode: str = "Shared"
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    average_msg_size: float = 0.0
    chunked_message_rate: float = 0.0
    producer_id: int = 0
    supports_partial_producer: bool = True
    producer_name: str = ""
    address: str = ""
    connected_since: str = ""
    client_version: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsumerStats:
    """A consumer or reader: its fields are those of Pulsar's `ConsumerStats`, in snake case; times are milliseconds."""

    last_consumed_flow_timestamp: int = 0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    chunked_message_rate: float = 0.0
    consumer_name: str = ""
    available_permits: int = 0
    unacked_messages: int = 0
    avg_messages_per_entry: int = 0
    blocked_consumer_on_unacked_msgs: bool = False
    address: str = ""
    connected_since: str = ""
    client_version: str = ""
    last_acked_timestamp: int = 0
    last_consumed_timestamp: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SubscriptionClients:
    """The live part of a subscription's stats, by the names of Pulsar's `SubscriptionStats` in snake case.

    `durable`: it has a cursor; otherwise it is a reader's.
    """

    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    msg_out_counter: int = 0
    bytes_out_counter: int = 0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    unacked_messages: int = 0
    msg_delayed: int = 0
    type: str = NO_CONSUMER
    active_consumer_name: str | None = None
    last_consumed_timestamp: int = 0
    last_acked_timestamp: int = 0
    last_mark_delete_advanced_timestamp: int = 0
    is_durable: bool = True
    durable: bool = True
    consumers: tuple[ConsumerStats, ...] = ()


@dataclass(frozen=True)
class LiveSubscriptionState:
    """A subscription as this service serves it, besides its stats.

    `delivered_end`: the offset after the last delivered message. `backlog`: the number of unacknowledged messages, by
    the topic's end and first offset; None: the subscription has no cursor here.
    """

    clients: SubscriptionClients = field(default_factory=SubscriptionClients)
    delivered_end: int = 0
    backlog: Callable[[int, int], int | None] = lambda _end, _first: None


@dataclass(frozen=True)
class TopicClients:
    """The live part of a topic's stats, by the names of Pulsar's `TopicStats` in snake case."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    average_msg_size: float = 0.0
    deduplication_status: str | None = "Disabled"
    publishers: tuple[ProducerStats, ...] = ()


@dataclass(frozen=True)
class LiveTopicState:
    """The clients of a topic: stats, and subscriptions by name, with and without cursors."""

    clients: TopicClients = field(default_factory=TopicClients)
    subscriptions: Mapping[str, LiveSubscriptionState] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientCounts:
    """Counts of one topic's clients, for metrics. Counters are since the topic was opened."""

    producers: int = 0
    consumers: int = 0
    subscriptions: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    unacked: int = 0
    stale_readers: int = 0


class LiveSubscription(Protocol):
    """A durable subscription of a topic that this service serves: its state is here, and every door moves it here.

    Calls come from any thread but that of the event loop, and block. They raise CompactorError.
    """

    @property
    def cursor(self) -> Cursor:
        """The cursor that its consumers acknowledge on."""

    def acknowledged(self) -> None:
        """Messages were acknowledged on `cursor` by this caller: write them, and deliver none of them."""

    def extend(self, end: int) -> None:
        """Messages exist before that offset: they may be acknowledged."""

    def reset(self, mark: LogPosition | None) -> None:
        """Begin again after a message; consumers are disconnected, and subscribe again."""

    def end(self, force: bool) -> None:
        """Disconnect its consumers, for its cursor is deleted next. Raises Conflict if there are any, unless forced."""


@dataclass
class ConnectedClients:
    """Functions of the server of Pulsar's protocol; without a server, no client is connected."""

    subscription: Callable[[TopicRecord, str], LiveSubscription | None] = lambda _topic, _name: None
    """The subscription of a topic, if its state is in this service."""
    truncated: Callable[[TopicRecord], None] = lambda _: None
    """A topic was truncated: what was read of it is dropped."""

    of_topic: Callable[[TopicName], LiveTopicState] = lambda _: LiveTopicState()
    counts: Callable[[], Iterable[tuple[TopicName, ClientCounts]]] = tuple
    connections: Callable[[], int] = int

    def check_none(self, *names: TopicName) -> None:
        """Raise ClientsConnected if producers or consumers are connected to one of the topics in this service."""
        for name in names:
            live = self.of_topic(name)
            if live.clients.publishers or any(item.clients.consumers for item in live.subscriptions.values()):
                raise ClientsConnected(name)
