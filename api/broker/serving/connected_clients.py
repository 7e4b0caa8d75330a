"""The clients that are connected to this service, as stats, metrics and other doors see them.

The server of Pulsar's protocol fills in the functions. Threads read the stats of a topic while clients come and go: the
values of one answer are of about one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from storage.cursor import Cursor
from storage.metadata.records import TopicRecord
from storage.model import LogPosition, TopicName


@dataclass(frozen=True)
class SubscriptionClients:
    """The consumers of a subscription: fields of Pulsar's stats, of the subscription and of each consumer.

    `backlog` returns the number of unacknowledged messages for the topic's end and first offset; None: it has no cursor
    in this process. `delivered_end`: the offset after the last delivered message. `durable`: it has a cursor; otherwise
    it is a reader's.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    consumers: tuple[Mapping[str, Any], ...] = ()
    delivered_end: int = 0
    durable: bool = True
    backlog: Callable[[int, int], int | None] = lambda _end, _first: None


@dataclass(frozen=True)
class TopicClients:
    """The clients of a topic: fields of its stats, producers, and subscriptions by name, cursors or not."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    publishers: tuple[Mapping[str, Any], ...] = ()
    subscriptions: Mapping[str, SubscriptionClients] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientCounts:
    """Counts of one topic's clients for metrics. Counters begin when the topic is opened."""

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
    """A durable subscription whose state is in this process: every door moves it here.

    Calls come from threads other than that of the event loop, and block. They raise CompactorError.
    """

    @property
    def cursor(self) -> Cursor:
        """The cursor on which its consumers acknowledge."""

    def acknowledged(self) -> None:
        """Write the acknowledgements that the caller has made on `cursor`; their messages are not delivered."""

    def extend(self, end: int) -> None:
        """Note that messages exist before the offset `end`: they may be acknowledged."""

    def reset(self, mark: LogPosition | None) -> None:
        """Begin again after the message at `mark`; None: at the first one. Consumers are disconnected, and their
        clients subscribe again."""

    def end(self, force: bool) -> None:
        """Disconnect its consumers before its cursor is deleted. Raises Conflict if it has any, unless forced."""


@dataclass
class ConnectedClients:
    """Access to the connected clients; without a server for them there are none."""

    subscription: Callable[[TopicRecord, str], LiveSubscription | None] = lambda _topic, _name: None
    """Return a subscription whose state is in this process; None: it is not."""
    truncated: Callable[[TopicRecord], None] = lambda _: None
    """Note that a topic was truncated: its entries in memory are dropped."""

    of_topic: Callable[[TopicName], TopicClients] = lambda _: TopicClients()
    counts: Callable[[], Iterable[tuple[TopicName, ClientCounts]]] = tuple
    connections: Callable[[], int] = int
