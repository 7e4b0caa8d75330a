"""Pulsar's clients that are connected to this service, as stats and metrics show them; whoever serves them fills it in.

The stats of a topic are read by threads while clients come and go: what they get is of about one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.model import TopicName


@dataclass(frozen=True)
class SubscriptionClients:
    """The consumers of a subscription: by fields of Pulsar's stats, the subscription's own and each consumer's.

    `delivered_end`: the offset behind the last message that was delivered; `durable`: it has a cursor, else it is a
    reader's."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    consumers: tuple[Mapping[str, Any], ...] = ()
    delivered_end: int = 0
    durable: bool = True


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


@dataclass
class ConnectedClients:
    """Asks who serves Pulsar's clients; without anybody there are none."""

    of_topic: Callable[[TopicName], TopicClients] = lambda _: TopicClients()
    counts: Callable[[], Iterable[tuple[TopicName, ClientCounts]]] = tuple
    connections: Callable[[], int] = int
