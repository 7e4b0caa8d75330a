"""Consumers of tests: of any type, on a channel that notes what it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from api.broker.serving.consumer import Consumer, ConsumerOptions, SubscriptionType
from storage.entries.rebuild import DeliverableEntry


@dataclass
class NotingChannel:
    """Notes the entry ids that a consumer receives; takes no more when `is_writable` is cleared."""

    is_writable: bool = True
    received: list[int] = field(default_factory=list)
    redeliveries: dict[int, int] = field(default_factory=dict)
    active: list[bool] = field(default_factory=list)
    is_closed: bool = False
    address: str = "127.0.0.1:1"
    client_version: str = "test"

    @property
    def connection(self) -> object:
        return self

    def deliver(self, entry: DeliverableEntry, live: int, redeliveries: int) -> None:
        self.received.append(entry.entry_id)
        self.redeliveries[entry.entry_id] = redeliveries

    def set_active(self, is_active: bool) -> None:
        self.active.append(is_active)

    def disconnect(self) -> None:
        self.is_closed = True

    async def is_alive(self) -> bool:
        return True


def consumer(name: str, type_: SubscriptionType = SubscriptionType.SHARED, **options: Any) -> Consumer:
    """Return a consumer that is connected to nothing."""
    return Consumer(NotingChannel(), ConsumerOptions(name, type_, **options), 0)


def entry(offset: int, messages: int = 1, data: bytes = b"") -> DeliverableEntry:
    """Return an entry whose id is its offset."""
    return DeliverableEntry(1, offset, offset, messages, data, (1 << messages) - 1, messages > 1)
