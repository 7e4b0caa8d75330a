"""A consumer of a session: what its subscription sends becomes responses."""

from __future__ import annotations

import re

from api.broker.serving.consumer import Consumer, ConsumerOptions
from api.broker.serving.position import SubscribeRequest
from api.broker.serving.subscription import Subscription
from api.broker.serving.topic import PersistentTopic
from api.pulsar.codec import responses
from api.pulsar.session import Session
from storage.entries.rebuild import DeliverableEntry

_JAVA_VERSION = re.compile(r"java[^0-9]*(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)
_GIVES_BACK_ALL = re.compile(r"cpp|c\+\+|python|node|\bgo\b", re.IGNORECASE)
_FIRST_FIXED = {(2, 10): 6, (2, 11): 4, (3, 0): 3, (3, 1): 3, (3, 2): 1}
"""Java clients that give back permits only for what they deliver, by release line (apache/pulsar #22091)."""


class ConnectedConsumer:
    """The channel of one consumer, with the consumer, its topic and its subscription. `subscribe` it first."""

    subscription: Subscription

    def __init__(self, session: Session, topic: PersistentTopic, options: ConsumerOptions, epoch: int | None) -> None:
        self.connection = session
        self.topic = topic
        self.consumer = Consumer(self, options, topic.clock.now_ms())
        self.epoch = epoch
        """A count of the redeliveries that the client asked for; it drops messages of a lower epoch. None: it has
        none."""
        self._channel = session.channel
        self._partition = topic.name.partition

    async def subscribe(self, request: SubscribeRequest) -> None:
        """Join the subscription. Raise CompactorError."""
        self.subscription = await self.topic.subscribe(self.consumer, request)

    @property
    def is_writable(self) -> bool:
        return self._channel.is_writable

    @property
    def address(self) -> str:
        return self._channel.address

    @property
    def client_version(self) -> str:
        return self.connection.client_version

    def deliver(self, entry: DeliverableEntry, live: int, redeliveries: int) -> None:
        options = self.consumer.options
        epoch = None if options.type.is_individual else self.epoch
        self._channel.deliver(options.consumer_id, entry, live, redeliveries, self._partition, epoch)

    def disconnect(self) -> None:
        self.connection.close_consumer(self)

    def set_active(self, is_active: bool) -> None:
        self._channel.send(responses.ActiveConsumerChange(self.consumer.options.consumer_id, is_active))

    async def is_alive(self) -> bool:
        return await self.connection.is_alive()


def returns_dropped_slots(client_version: str) -> bool:
    """Return whether a client gives back permits for the slots of a batch that the acknowledgement set hides."""
    java = _JAVA_VERSION.search(client_version)
    if java is not None:
        line, patch = (int(java[1]), int(java[2])), int(java[3])
        return line < (3, 3) and patch < _FIRST_FIXED.get(line, 1 << 30)
    return _GIVES_BACK_ALL.search(client_version) is not None
