"""A consumer of a connection: its permits, what it has not acknowledged, and messages on their way to it.

Permits count messages, as Pulsar's do: those of a slot that is not delivered are not taken, and the clients do not give
them back. A consumer whose socket takes no more gets nothing until it does; others do not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.gateway.commands import ack_set
from api.gateway.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from api.gateway.rates import Rate
from storage.entries.rebuild import DeliverableEntry

if TYPE_CHECKING:
    from api.gateway.connection import Connection
    from api.gateway.subscriptions import Subscription


class Consumer:
    """One consumer or reader."""

    def __init__(self, connection: Connection, wish: CommandSubscribe, partition: int, now_ms: int) -> None:
        self.connection = connection
        self.consumer_id = wish.consumer_id
        self.name = wish.consumer_name
        self.priority = wish.priority_level
        self.sub_type = wish.sub_type
        self.read_compacted = wish.read_compacted
        self.metadata = {item.key: item.value for item in wish.metadata}
        self.epoch = wish.consumer_epoch if wish.HasField("consumer_epoch") else None
        self.key_shared = wish.key_shared_meta if wish.HasField("key_shared_meta") else None
        self.subscription: Subscription | None = None
        self.permits = 0
        self.unacked = 0
        self.delivered = Rate()
        self.redelivered = Rate()
        self.acknowledged = Rate()
        self.connected_at = now_ms
        self.last_acked_at = 0
        self.last_consumed_at = 0
        self._partition = partition

    def wake(self) -> None:
        """Something may be done for it now."""
        if self.subscription is not None and self.subscription.dispatcher is not None:
            self.subscription.dispatcher.wake()

    def leave(self) -> None:
        """Get nothing more of its subscription: what it has not acknowledged is delivered to others."""
        if self.subscription is not None and self.subscription.dispatcher is not None:
            self.subscription.dispatcher.remove(self)

    @property
    def takes(self) -> bool:
        """Whether a message can be sent to it now."""
        return self.permits > 0 and self.connection.is_writable

    def send(self, entry: DeliverableEntry, live: int, redeliveries: int, now_ms: int) -> None:
        """Send an entry, of which the slots `live` are to be delivered."""
        command = BaseCommand(type=BaseCommand.MESSAGE)
        message = command.message
        message.consumer_id = self.consumer_id
        place = message.message_id
        place.ledger_id, place.entry_id = entry.ledger_id, entry.entry_id
        if self._partition >= 0:
            place.partition = self._partition
        if redeliveries:
            message.redelivery_count = redeliveries
        count = live.bit_count()
        if count != entry.messages:
            message.ack_set.extend(ack_set(live, entry.messages))
        if self.epoch is not None:
            message.consumer_epoch = self.epoch
        self.permits -= count
        self.unacked += count
        self.delivered.add(count, len(entry.data))
        if redeliveries:
            self.redelivered.add(count)
        self.last_consumed_at = now_ms
        self.connection.send(command, entry.data)
