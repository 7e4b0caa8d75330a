"""Consumers of tests: of any type, on a channel that notes what it is sent; alone, or subscribed to a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from api.broker.serving.acknowledging import AckedEntry
from api.broker.serving.consumer import Consumer, ConsumerOptions, SubscriptionType
from api.broker.serving.position import SubscribeRequest
from api.broker.serving.subscription import Subscription
from api.broker.serving.topic import PersistentTopic
from storage.entries.rebuild import DeliverableEntry
from storage.model import EARLIEST
from storage.positions import StartPosition

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
FAILOVER, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED
ALL = 1_000
"""Permits for more than any test sends."""


@dataclass
class NotingChannel:
    """Notes the entry ids that a consumer receives; takes no more when `is_writable` is cleared."""

    is_writable: bool = True
    received: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    redeliveries: dict[int, int] = field(default_factory=dict)
    active: list[bool] = field(default_factory=list)
    is_closed: bool = False
    address: str = "127.0.0.1:1"
    client_version: str = "test"

    @property
    def connection(self) -> NotingChannel:
        return self

    def deliver(self, entry: DeliverableEntry, live_mask: int, redeliveries: int) -> None:
        self.received.append(entry.entry_id)
        self.offsets.append(entry.offset)
        self.redeliveries[entry.entry_id] = redeliveries

    def set_active(self, is_active: bool) -> None:
        self.active.append(is_active)

    def disconnect(self) -> None:
        self.is_closed = True

    async def close_unless_alive(self) -> bool:
        return True


def consumer(name: str, type_: SubscriptionType = SubscriptionType.SHARED, **options: Any) -> Consumer:
    """Return a consumer that is connected to nothing."""
    return Consumer(NotingChannel(), ConsumerOptions(name, type_, **options), 0)


def entry(offset: int, messages: int = 1, data: bytes = b"") -> DeliverableEntry:
    """Return an entry whose id is its offset."""
    return DeliverableEntry(1, offset, offset, messages, data, (1 << messages) - 1, messages > 1)


class Reader:
    """A consumer that subscribes to a topic, and the entries that it receives."""

    subscription: Subscription

    def __init__(
        self,
        topic: PersistentTopic,
        name: str,
        type_: SubscriptionType,
        *,
        durable: bool = True,
        start: StartPosition = EARLIEST,
        **options: Any,
    ) -> None:
        self.channel = NotingChannel()
        self.consumer = Consumer(self.channel, ConsumerOptions(name, type_, **options), 0)
        self.request = SubscribeRequest("s", durable, self.consumer.options.read_compacted, start)
        self._topic = topic

    async def join(self, permits: int = ALL) -> Reader:
        self.consumer.permits = permits
        self.subscription = await self._topic.find_or_create_subscription(self.consumer, self.request)
        assert self.subscription.dispatcher is not None
        self.subscription.dispatcher.add(self.consumer)
        await quiet()
        return self

    async def leave(self) -> None:
        await self._topic.remove_consumer(self.subscription, self.consumer)
        await quiet()

    async def flow(self, permits: int) -> None:
        self.subscription.add_permits(self.consumer, permits)
        await quiet()

    async def acknowledge(self, *entry_ids: int) -> None:
        assert not self.subscription.acknowledge(
            self.consumer, [AckedEntry(self.ledger_id, item) for item in entry_ids]
        )
        await quiet()

    async def nack(self, *entry_ids: int) -> None:
        """Acknowledge entries negatively."""
        self.subscription.redeliver(self.consumer, [(self.ledger_id, item) for item in entry_ids])
        await quiet()

    @property
    def ledger_id(self) -> int:
        return self._topic.storage.snapshot().segments[0].ledger_id

    @property
    def received(self) -> list[int]:
        """Entry ids, in order."""
        return self.channel.received


async def quiet(turns: int = 400) -> None:
    """Return when no task can continue: there are no threads, so every step is one of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)
