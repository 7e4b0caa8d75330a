"""Producers of a topic: their rates and access modes, and which of them may be connected at the same time.

Their entries are appended through the topic's queue (publishing.py).

Access modes are Pulsar's: shared; exclusive, where a second producer is refused; exclusive with fencing, where it takes
the place of the first; and waiting for exclusive, where it gets its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

from api.broker.refusals import InvalidTopicEpoch, ProducerBusy, ProducerFenced
from api.broker.serving.channel import ProducerChannel
from api.broker.serving.loop_turns import call_in_turns
from api.broker.serving.rates import Rate
from api.broker.threads import Workers
from storage.clock import Clock
from storage.errors import CompactorError
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore

MAX_TOPIC_EPOCH = (1 << 62) - 1
"""The highest topic epoch that a client may name: epochs above it still fit into the database."""
PRODUCERS_AT_ONCE = 100
"""Producers that are informed in one step of the event loop: 4,000 take 0.5 s."""
_CREATE_AGAIN = "create the producer again"


class AccessMode(IntEnum):
    """Pulsar's access modes of producers, by the numbers of its protocol."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


@dataclass(frozen=True)
class ProducerOptions:
    """The options of a producer.

    `epoch`: a number of the client that grows with each connection of the same producer. `topic_epoch`: the epoch that
    an exclusive producer got from a service before it reconnected; None: it has none yet. `stops_on_error`: after an
    entry that failed, for whatever reason, no later one of the producer is appended.
    """

    name: str
    producer_id: int = 0
    epoch: int = 0
    access_mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    stops_on_error: bool = False


class Producer:
    """One connected producer of a topic, or one that waits for its turn. For the event loop alone."""

    def __init__(
        self,
        channel: ProducerChannel,
        options: ProducerOptions,
        now_ms: int,
        on_disconnect: Callable[[Producer], object],
    ) -> None:
        """Make a producer, which is not connected yet. `on_disconnect` removes it from its topic."""
        self.channel = channel
        self.options = options
        self.topic_epoch = options.topic_epoch
        """The epoch of an exclusive producer: it grows with each, and a client that reconnects names it."""
        self.connected_at = now_ms
        self.published = Rate()
        self.is_closed = False
        self._on_disconnect = on_disconnect

    @property
    def name(self) -> str:
        return self.options.name

    def replaces(self, other: Producer) -> bool:
        """Return whether this producer takes the place of `other`, which has the same name: the client has created it
        again on the same connection."""
        return (
            other.channel.connection is self.channel.connection
            and other.options.producer_id == self.options.producer_id
            and other.options.epoch < self.options.epoch
        )

    def disconnect(self) -> None:
        """Remove the producer from its topic and ask its client to connect again."""
        self._on_disconnect(self)
        self.channel.disconnect()


class ProducerRegistry:
    """The connected producers of a topic, and those that wait, under the rules of Pulsar's access modes.

    Each exclusive producer has an epoch, above those before it, and one that reconnects keeps its own: if a later
    producer came meanwhile, it is fenced. An exclusive producer is `add`ed, and is one once its epoch is stored
    (`store_epoch`): the epoch outlives the process that serves the topic.
    """

    def __init__(
        self, topic: TopicRecord, metadata: MetadataStore, database: Workers, clock: Clock, epoch: int | None
    ) -> None:
        """Make a registry without producers. `epoch`: the stored epoch of the topic's last exclusive producer; None:
        the topic has had none."""
        self._topic = topic
        self._metadata = metadata
        self._database = database
        self._clock = clock
        self._by_name: dict[str, Producer] = {}
        self._waiting: dict[Producer, asyncio.Future[None]] = {}
        """Producers that wait to be the only one, in the order of their arrival, each with its turn."""
        self._exclusive: Producer | None = None
        self._epoch = epoch
        self._highest_epoch = epoch or 0
        """The highest of all producers that were added, stored or not."""

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def active(self) -> list[Producer]:
        """The producers that may write now, without those that wait for their turn."""
        return list(self._by_name.values())

    def get(self, name: str) -> Producer | None:
        """Return the producer of that name; None: none is connected."""
        return self._by_name.get(name)

    def add(self, producer: Producer) -> asyncio.Future[None] | None:
        """Add a producer. Return None if it may write now, else a future that ends when it is its turn.

        The epoch of an exclusive producer must be stored before it writes. Raises ProducerBusy, ProducerFenced,
        InvalidTopicEpoch. The future raises ProducerFenced, or is cancelled by `remove`.
        """
        other = self._by_name.get(producer.name)
        if other is not None:
            if not producer.replaces(other):
                raise ProducerBusy(
                    f"Producer with name '{producer.name}' is already connected to topic {self._topic.name}",
                    "use another name",
                )
            self.remove(other)
        if producer.topic_epoch is not None:
            self._check_epoch(producer.topic_epoch)
        mode = producer.options.access_mode
        if mode == AccessMode.SHARED:
            if self._exclusive is not None or self._waiting:
                raise ProducerBusy(f"{self._topic.name} has an exclusive producer", "wait until it ends")
        elif mode == AccessMode.EXCLUSIVE:
            if self._by_name or self._waiting:
                raise ProducerFenced(f"{self._topic.name} has other producers", "wait until they end")
            self._become_exclusive(producer)
        elif mode == AccessMode.EXCLUSIVE_WITH_FENCING:
            self.fail_waiting(ProducerFenced("another producer took the topic", _CREATE_AGAIN))
            others = self.active
            for other in others:
                self.remove(other)
            call_in_turns((other.channel.disconnect for other in others), PRODUCERS_AT_ONCE)
            self._become_exclusive(producer)
        elif self._by_name:
            self._waiting[producer] = turn = asyncio.get_running_loop().create_future()
            return turn
        else:
            self._become_exclusive(producer)
        self._by_name[producer.name] = producer
        return None

    async def store_epoch(self, producer: Producer) -> None:
        """Store the topic epoch of an exclusive producer in SQL; do nothing for a shared one. Raises ProducerFenced if
        a later producer has the topic, and other CompactorErrors; then the caller removes the producer."""
        epoch = producer.topic_epoch
        if not producer.options.access_mode or epoch is None:
            return
        if self._epoch is None or epoch > self._epoch:
            await self._database.run(self._metadata.topics.raise_producer_epoch, self._topic.id, epoch)
            self._epoch = max(self._epoch or 0, epoch)
        if epoch < self._epoch:
            raise self._fenced_error()

    def remove(self, producer: Producer) -> None:
        """Remove a producer, also one that waits; if none is left, the next that waits becomes exclusive.
        Idempotent."""
        producer.is_closed = True
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        if producer in self._waiting:
            self._waiting.pop(producer).cancel()  # its request ends
        if not self._by_name and self._waiting:
            following = next(iter(self._waiting))
            self._by_name[following.name] = following
            self._become_exclusive(following)
            self._waiting.pop(following).set_result(None)

    def fail_waiting(self, error: CompactorError) -> None:
        """Fail the producers that wait for their turn with `error`: some now, the others in later turns of the event
        loop."""
        turns = list(self._waiting.values())
        self._waiting.clear()
        call_in_turns((partial(_fail_turn, turn, error) for turn in turns), PRODUCERS_AT_ONCE)

    def _check_epoch(self, epoch: int) -> None:
        """Check the topic epoch that a producer names when it reconnects. Raise ProducerFenced if a later producer has
        had the topic, InvalidTopicEpoch if no producer has this epoch."""
        if epoch < (self._epoch or 0):
            raise self._fenced_error()
        if epoch > MAX_TOPIC_EPOCH:
            raise InvalidTopicEpoch(f"{self._topic.name} has given no producer the topic epoch {epoch}", _CREATE_AGAIN)

    def _fenced_error(self) -> ProducerFenced:
        return ProducerFenced(f"another producer of {self._topic.name} has taken its place", _CREATE_AGAIN)

    def _become_exclusive(self, producer: Producer) -> None:
        """Note that a producer is the exclusive one, and give it a topic epoch above all earlier ones if it has
        none."""
        self._exclusive = producer
        if producer.topic_epoch is None:
            # Above those that a service of an older schema gave by its clock and did not store.
            producer.topic_epoch = max(self._highest_epoch + 1, self._clock.now_ms())
        self._highest_epoch = max(self._highest_epoch, producer.topic_epoch)


def _fail_turn(turn: asyncio.Future[None], error: CompactorError) -> None:
    """Fail the future of a producer that waits for its turn with `error`."""
    if not turn.done():  # its client may have left meanwhile
        turn.set_exception(error)
