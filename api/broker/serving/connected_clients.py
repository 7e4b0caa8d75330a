"""Pulsar's clients of this service: the live part of stats and metrics, and the subscriptions that operations move.

The server of Pulsar's protocol fills it in. Threads read the stats of a topic while clients connect and disconnect, so
the numbers of one answer are of about one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from api.broker.refusals import ClientsConnected
from api.broker.stats_tree import SubscriptionStats, TopicStats
from compactor.maintenance.backlog_limits import ServedCursor
from storage.metadata.records import TopicRecord
from storage.model import LogPosition, TopicName


@dataclass(frozen=True)
class LiveSubscriptionState:
    """A subscription as this service serves it. `stats`: the fields that are known without its cursor.

    `delivered_end`: the offset after the last delivered message. `backlog(end, first)`: returns the number of
    unacknowledged messages between the topic's first offset and its end; None: it is not known here.
    """

    stats: SubscriptionStats = field(default_factory=SubscriptionStats)
    delivered_end: int = 0
    backlog: Callable[[int, int], int | None] = lambda _end, _first: None


@dataclass(frozen=True)
class LiveTopicState:
    """The clients of a topic. `stats`: the fields that are known without the database, except the subscriptions.
    `subscriptions`: by name, durable ones and readers."""

    stats: TopicStats = field(default_factory=TopicStats)
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
    stale_reader_count: int = 0


class LiveSubscription(ServedCursor, Protocol):
    """A durable subscription that this service serves: its state is in this process, and every interface moves it
    here.

    Calls come from any thread but that of the event loop, and block. They raise CompactorError.
    """

    def reset(self, mark_delete: LogPosition | None) -> None:
        """Move the subscription to a new mark-delete position, `mark_delete`; None: before the first message.

        Its consumers are disconnected, and subscribe again.
        """

    def prepare_deletion(self, force: bool) -> None:
        """Disconnect the consumers and stop serving the subscription; the caller deletes its cursor next.

        Raises SubscriptionHasConsumers if it has consumers, unless `force`.
        """


@dataclass
class ConnectedClientsView:
    """The view of Pulsar's connected clients for other interfaces: functions that the server of Pulsar's protocol sets.
    Without a server, no client is connected."""

    subscription: Callable[[TopicRecord, str], LiveSubscription | None] = lambda _topic, _name: None
    """The subscription of a topic, if its state is in this service."""
    note_truncated: Callable[[TopicRecord], None] = lambda _: None
    """Drops the entries of a truncated topic from memory. The caller need not wait."""

    of_topic: Callable[[TopicName], LiveTopicState] = lambda _: LiveTopicState()
    counts: Callable[[], Iterable[tuple[TopicName, ClientCounts]]] = tuple
    connections: Callable[[], int] = int

    def check_no_clients(self, *names: TopicName) -> None:
        """Raise ClientsConnected if producers or consumers are connected to one of the topics in this service."""
        for name in names:
            live = self.of_topic(name)
            if live.stats.publishers or any(item.stats.consumers for item in live.subscriptions.values()):
                raise ClientsConnected(name)
