"""A consumer on a connection: entries that serving delivers become commands of the protocol."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from api.broker.serving.consumer import Consumer, ConsumerOptions
from api.broker.serving.position import SubscribeRequest
from api.broker.serving.subscription import Subscription
from api.broker.serving.topic import PersistentTopic
from api.pulsar.errors import ack_set
from api.pulsar.pulsar_api_pb2 import BaseCommand
from storage.entries.rebuild import DeliverableEntry

if TYPE_CHECKING:
    from api.pulsar.connection import Connection

_JAVA_VERSION = re.compile(r"java[^0-9]*(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)
_GIVES_BACK_ALL = re.compile(r"cpp|c\+\+|python|node|\bgo\b", re.IGNORECASE)
_FIRST_FIXED = {(2, 10): 6, (2, 11): 4, (3, 0): 3, (3, 1): 3, (3, 2): 1}
"""Java clients that give back permits only for what they deliver, by release line (apache/pulsar #22091)."""


class ConnectedConsumer:
    """The channel of one consumer, with the consumer, its topic and its subscription. `subscribe` it first."""

    subscription: Subscription

    def __init__(
        self, connection: Connection, topic: PersistentTopic, options: ConsumerOptions, epoch: int | None
    ) -> None:
        self.connection = connection
        self.topic = topic
        self.consumer = Consumer(self, options, topic.clock.now_ms())
        self.epoch = epoch
        """Counts redeliveries that the client asked for; it drops messages of a lower epoch. None: it sends none."""

    async def subscribe(self, request: SubscribeRequest) -> None:
        """Join the subscription. Raises CompactorError."""
        self.subscription = await self.topic.subscribe(self.consumer, request)

    @property
    def is_writable(self) -> bool:
        return self.connection.is_writable

    @property
    def address(self) -> str:
        return self.connection.address

    @property
    def client_version(self) -> str:
        return self.connection.client_version

    def deliver(self, entry: DeliverableEntry, live: int, redeliveries: int) -> None:
        options = self.consumer.options
        command = BaseCommand(type=BaseCommand.MESSAGE)
        message = command.message
        message.consumer_id = options.consumer_id
        message_id = message.message_id
        message_id.ledger_id, message_id.entry_id = entry.ledger_id, entry.entry_id
        if self.topic.name.partition >= 0:
            message_id.partition = self.topic.name.partition
        if redeliveries:
            message.redelivery_count = redeliveries
        if live.bit_count() != entry.messages:
            message.ack_set.extend(ack_set(live, entry.messages))
        if self.epoch is not None and not options.type.is_individual:
            message.consumer_epoch = self.epoch
        self.connection.send(command, entry.data)

    def disconnect(self) -> None:
        self.connection.close_consumer(self)

    def set_active(self, is_active: bool) -> None:
        self.connection.tell_active(self.consumer, is_active)

    async def is_alive(self) -> bool:
        return await self.connection.is_alive(self.connection.settings.liveness_seconds)


def returns_dropped_slots(client_version: str) -> bool:
    """Return whether a client gives back permits for the slots of a batch that the acknowledgement set hides."""
    java = _JAVA_VERSION.search(client_version)
    if java is not None:
        line, patch = (int(java[1]), int(java[2])), int(java[3])
        return line < (3, 3) and patch < _FIRST_FIXED.get(line, 1 << 30)
    return _GIVES_BACK_ALL.search(client_version) is not None
