"""Producers of a topic: what their clients are answered, and which may be connected at once.

Their entries are appended through the topic's queue (api/broker/serving/publishing.py).

Access modes are Pulsar's: shared; exclusive, where a second producer is refused; exclusive with fencing, where it takes
the place of the first; and waiting for exclusive, where it gets its turn.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.broker.serving.publishing import QueuedEntry
from api.broker.serving.rates import Rate
from api.broker.threads import WaitsFor
from api.pulsar.errors import Refused, id_data, refusal
from api.pulsar.pulsar_api_pb2 import BaseCommand, CommandProducer, ProducerAccessMode, ServerError
from storage.errors import ChecksumMismatch
from storage.model import MessageId

if TYPE_CHECKING:
    from api.pulsar.connection import Connection
    from api.pulsar.topics import PersistentTopic

_MOST_EPOCH = (1 << 62) - 1
"""The highest topic epoch that a client may name: epochs above it still fit into the database."""


class Producer:
    """One producer of a connection."""

    def __init__(self, connection: Connection, topic: PersistentTopic, wish: CommandProducer, name: str) -> None:
        self.connection = connection
        self.topic = topic
        self.producer_id = wish.producer_id
        self.name = name
        self.epoch = wish.epoch
        self.access_mode = wish.producer_access_mode
        self.topic_epoch = wish.topic_epoch if wish.HasField("topic_epoch") else None
        """An exclusive producer's epoch: grows with each; the client names it when it reconnects."""
        self.is_encrypted = wish.encrypted
        self.metadata = {item.key: item.value for item in wish.metadata}
        self.connected_at = topic.clock.now_ms()
        self.published = Rate()
        self.duplicates = 0
        self.is_closed = False

    def queued(self, entries: int, size: int) -> None:
        """Note that so many more entries wait to be appended."""
        self.connection.publishing(entries, size)

    def stored(self, entry: QueuedEntry, message_id: MessageId, is_duplicate: bool) -> None:
        """Send the receipt of an entry."""
        self.duplicates += is_duplicate
        self.published.add(entry.messages, len(entry.entry))
        command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        receipt = command.send_receipt
        receipt.producer_id, receipt.sequence_id = self.producer_id, entry.sequence_id
        receipt.message_id.CopyFrom(id_data(message_id, self.topic.name.partition))
        if entry.highest_sequence_id:
            receipt.highest_sequence_id = entry.highest_sequence_id
        self.connection.send(command)

    def refused(self, entry: QueuedEntry, error: BaseException) -> None:
        """Answer an entry that cannot be taken as it is."""
        reason = refusal(error)
        command = BaseCommand(type=BaseCommand.SEND_ERROR)
        answer = command.send_error
        answer.producer_id, answer.sequence_id = self.producer_id, entry.sequence_id
        answer.error = ServerError.ChecksumError if isinstance(error, ChecksumMismatch) else reason.error
        answer.message = reason.message
        self.connection.send(command)

    def disconnect(self) -> None:
        """Remove the producer from its topic, and tell its client to connect again."""
        self.topic.remove_producer(self)
        self.connection.close_producer(self)


@dataclass
class _Waiting:
    """A producer that waits for its turn to be the only one."""

    producer: Producer
    turn: asyncio.Future[None]


class ProducerRegistry:
    """The producers of a topic, by their access modes.

    Each exclusive producer has an epoch, above those before it, and one that reconnects keeps its own: if a later
    producer came meanwhile, it is fenced. An exclusive producer is `add`ed, and is one once its epoch is stored
    (`confirm`): the epoch outlives the process that serves the topic.
    """

    def __init__(self, topic: PersistentTopic, epoch: int | None) -> None:
        """`epoch`: of the exclusive producer that came last, as it is stored; None: there was none."""
        self._topic = topic
        self._by_name: dict[str, Producer] = {}
        self._waiting: list[_Waiting] = []
        self._exclusive: Producer | None = None
        self._epoch = epoch
        self._highest_epoch = epoch or 0
        """The highest of all producers that were added, stored or not."""

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def all(self) -> list[Producer]:
        return list(self._by_name.values())

    def named(self, name: str) -> Producer | None:
        return self._by_name.get(name)

    def add(self, producer: Producer) -> asyncio.Future[None] | None:
        """Add a producer; return a future if it has to wait for its turn. Raises Refused."""
        self._topic.check_open()
        other = self._by_name.get(producer.name)
        if other is not None:
            if other.connection is not producer.connection or other.epoch >= producer.epoch:
                raise Refused(
                    ServerError.ProducerBusy,
                    f"Producer with name '{producer.name}' is already connected to topic {self._topic.name}",
                )
            self.remove(other)
        if producer.topic_epoch is not None:
            self._check_epoch(producer.topic_epoch)
        mode = producer.access_mode
        if mode == ProducerAccessMode.SharedAccess:
            if self._exclusive is not None or self._waiting:
                raise Refused(ServerError.ProducerBusy, f"{self._topic.name} has an exclusive producer")
        elif mode == ProducerAccessMode.ExclusiveAccess:
            if self._by_name or self._waiting:
                raise Refused(ServerError.ProducerFenced, f"{self._topic.name} has other producers")
            self._become_exclusive(producer)
        elif mode == ProducerAccessMode.ExclusiveWithFencing:
            for waiting in self._waiting:
                waiting.turn.set_exception(Refused(ServerError.ProducerFenced, "another producer took the topic"))
            self._waiting.clear()  # before others go: it would be their turn
            for other in self.all:
                self.remove(other)
                other.connection.close_producer(other)
            self._become_exclusive(producer)
        elif self._by_name:
            waiting = _Waiting(producer, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            return waiting.turn
        else:
            self._become_exclusive(producer)
        self._by_name[producer.name] = producer
        return None

    async def confirm(self, producer: Producer) -> None:
        """Store the epoch of an exclusive producer. Raises Refused, CompactorError, RestException; then it is to be
        removed."""
        epoch = producer.topic_epoch
        if not producer.access_mode or epoch is None:
            return
        if self._epoch is None or epoch > self._epoch:
            topics = self._topic.metadata.topics
            await self._topic.pools[WaitsFor.DATABASE].run(topics.raise_producer_epoch, self._topic.record.id, epoch)
            self._epoch = max(self._epoch or 0, epoch)
        if epoch < self._epoch:
            raise Refused(ServerError.ProducerFenced, f"another producer of {self._topic.name} has taken its place")

    def remove(self, producer: Producer) -> None:
        """Remove a producer; the next that waits has its turn."""
        producer.is_closed = True
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        for item in [item for item in self._waiting if item.producer is producer]:
            self._waiting.remove(item)
            item.turn.cancel()  # its request ends
        if not self._by_name and self._waiting:
            waiting = self._waiting.pop(0)
            self._by_name[waiting.producer.name] = waiting.producer
            self._become_exclusive(waiting.producer)
            waiting.turn.set_result(None)

    def _check_epoch(self, epoch: int) -> None:
        """Raise Refused for the epoch of a producer that reconnects if a later producer has had the topic."""
        if epoch < (self._epoch or 0):
            raise Refused(ServerError.ProducerFenced, f"another producer of {self._topic.name} has taken its place")
        if epoch > _MOST_EPOCH:
            raise Refused(ServerError.NotAllowedError, f"the topic epoch {epoch} is none of {self._topic.name}")

    def _become_exclusive(self, producer: Producer) -> None:
        self._exclusive = producer
        if producer.topic_epoch is None:
            # Above those that a service of an older schema gave by its clock and did not store.
            producer.topic_epoch = max(self._highest_epoch + 1, self._topic.clock.now_ms())
        self._highest_epoch = max(self._highest_epoch, producer.topic_epoch)


def check_quota(topic: PersistentTopic) -> None:
    """Raises Refused while the topic's backlog is over a quota that keeps producers from it."""
    from storage.options.policies import HOLD

    over = topic.over_quota()
    if over is not None:
        held = over.action == HOLD
        raise Refused(
            ServerError.ProducerBlockedQuotaExceededError
            if held
            else ServerError.ProducerBlockedQuotaExceededException,
            str(over.error),
        )
