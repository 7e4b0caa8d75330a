"""A consumer: permits, unacknowledged messages, rates; and the channel to its client.

Permits count messages, as Pulsar's do. Clients differ for an entry of which some slots are hidden by its
acknowledgement set. Java's from 3.0.3, 3.1.3 and 3.2.1 on return permits for the slots that they deliver; older ones,
C++, Python, Node.js and Go also for the hidden slots (apache/pulsar #22091). An entry must cost as many permits as its
client returns: if it cost fewer, a client with a queue of 10 would be sent the whole topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from api.broker.serving.channel import ConsumerChannel
from api.broker.serving.pending_acks import EntryKey, PendingAck
from api.broker.serving.rates import Rate
from storage.entries.rebuild import DeliverableEntry


class SubscriptionType(IntEnum):
    """Pulsar's types of subscriptions, by the numbers of its protocol."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def is_individual(self) -> bool:
        """True if each consumer receives a part of the messages and acknowledges them one by one."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)

    @property
    def pulsar_name(self) -> str:
        """The name in Pulsar's protocol: Exclusive, Shared, Failover, Key_Shared."""
        return "_".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True)
class ConsumerOptions:
    """The options of a consumer.

    `sticky_ranges`: the ranges of key hashes that it requests, each by its first and last; None: any.
    `returns_permits_for_hidden_slots`: its client returns permits for hidden slots, too.
    """

    name: str
    type: SubscriptionType
    consumer_id: int = 0
    priority: int = 0
    read_compacted: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    sticky_ranges: tuple[tuple[int, int], ...] | None = None
    returns_permits_for_hidden_slots: bool = False


class Consumer:
    """One connected consumer or reader: its permits, its pending entries, its rates. For the event loop alone."""

    def __init__(self, channel: ConsumerChannel, options: ConsumerOptions, now_ms: int) -> None:
        self.channel = channel
        self.options = options
        self.permits = 0
        self.unacked = 0
        self.pending: dict[EntryKey, PendingAck] = {}
        """The entries that it has received and not acknowledged."""
        self.delivered = Rate()
        self.redelivered = Rate()
        self.acknowledged = Rate()
        self.connected_at = now_ms
        self.last_acked_at = 0
        self.last_consumed_at = 0
        self.last_flow_at = 0

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def type(self) -> SubscriptionType:
        return self.options.type

    def add_permits(self, permits: int, now_ms: int) -> None:
        """Add permits: the client accepts `permits` more messages."""
        self.permits += permits
        self.last_flow_at = now_ms

    @property
    def can_receive(self) -> bool:
        """True if the consumer has permits and its client accepts more bytes."""
        return self.permits > 0 and self.channel.is_writable

    def send(self, entry: DeliverableEntry, pending: PendingAck, now_ms: int) -> None:
        """Send an entry to the client, of which it delivers the slots in `pending.live_mask`. Take the permits, and
        keep the entry as pending."""
        count = pending.live_mask.bit_count()
        self.permits -= entry.messages if self.options.returns_permits_for_hidden_slots else count
        self.unacked += count
        self.pending[pending.entry_key] = pending
        self.delivered.add(count, len(entry.data))
        if pending.redeliveries:
            self.redelivered.add(count)
        self.last_consumed_at = now_ms
        self.channel.deliver(entry, pending.live_mask, pending.redeliveries)
