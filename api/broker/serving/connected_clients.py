"""Pulsar's clients that are connected to this service, as stats and metrics show them; whoever serves them fills it in.

The stats of a topic are read by threads while clients come and go: what they get is of about one moment.
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
    """The consumers of a subscription: by fields of Pulsar's stats, the subscription's own and each consumer's.

    `backlog`: messages that are not acknowledged, by the topic's end and first offset; None: it has no cursor here.
    `delivered_end`: the offset behind the last message that was delivered; `durable`: it has a cursor, else it is a
    reader's."""

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
    """What metrics show of one topic's clients. Counters are since the topic was opened."""

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
    """Asks the server of Pulsar's clients; without one there are none."""

    subscription: Callable[[TopicRecord, str], LiveSubscription | None] = lambda _topic, _name: None
    """The subscription of a topic, if its state is in this service."""
    truncated: Callable[[TopicRecord], None] = lambda _: None
    """A topic was truncated: what was read of it is dropped."""

    of_topic: Callable[[TopicName], TopicClients] = lambda _: TopicClients()
    counts: Callable[[], Iterable[tuple[TopicName, ClientCounts]]] = tuple
    connections: Callable[[], int] = int
