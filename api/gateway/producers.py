"""Producers of a topic, and the queue through which their entries are appended.

Entries of all producers of a topic wait in one queue, in the order in which they came; a thread appends what waits, all
together, and what comes meanwhile is the next group. So a flush of the disk is shared by all, the order is kept, and
the event loop never waits. Receipts go out in order when a group is durable.

After an entry that failed and may be sent again nothing more of its producer is appended: the producer is closed, and
its client, which connects again at once, sends all that has no receipt, in order. Else what waited would overtake it.

Access modes are Pulsar's: shared; exclusive, where a second producer is refused; exclusive with fencing, where it takes
the place of the first; and waiting for exclusive, where it gets its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.broker.serving.rates import Rate
from api.gateway.commands import Refused, id_data, refusal
from api.gateway.pulsar_api_pb2 import BaseCommand, CommandProducer, ProducerAccessMode, ServerError
from api.http.problems import RestException
from api.http.thread_pools import WaitsFor
from api.messaging.topic_logs import may_come_again
from storage.errors import ChecksumMismatch, CompactorError, Fenced, InvalidRecord, TopicNotFound
from storage.log.group_commit import Answer
from storage.model import MessageId

if TYPE_CHECKING:
    from api.gateway.connection import Connection
    from api.gateway.topics import PersistentTopic

LOG = logging.getLogger(__name__)
GROUP_BYTES = 16 << 20
"""Entries that are appended together."""
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
        """Of an exclusive producer: grows with each; the client names it when it reconnects."""
        self.is_encrypted = wish.encrypted
        self.metadata = {item.key: item.value for item in wish.metadata}
        self.connected_at = topic.clock.now_ms()
        self.published = Rate()
        self.duplicates = 0
        self.is_closed = False

    def receipt(self, publish: Publish, message_id: MessageId) -> None:
        """An entry is durable, or was before."""
        self.published.add(publish.messages, len(publish.entry))
        command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        receipt = command.send_receipt
        receipt.producer_id, receipt.sequence_id = self.producer_id, publish.sequence_id
        receipt.message_id.CopyFrom(id_data(message_id, self.topic.name.partition))
        if publish.highest_sequence_id:
            receipt.highest_sequence_id = publish.highest_sequence_id
        self.connection.send(command)

    def failed(self, publish: Publish, error: BaseException) -> None:
        """An entry cannot be taken as it is."""
        found = refusal(error)
        kind = ServerError.ChecksumError if isinstance(error, ChecksumMismatch) else found.error
        command = BaseCommand(type=BaseCommand.SEND_ERROR)
        answer = command.send_error
        answer.producer_id, answer.sequence_id = self.producer_id, publish.sequence_id
        answer.error, answer.message = kind, found.message
        self.connection.send(command)


@dataclass(slots=True)
class Publish:
    """An entry that waits to be appended."""

    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    messages: int
    entry: bytes

    @property
    def producer_name(self) -> str:
        return self.producer.name


class PublishQueue:
    """The entries of a topic that wait, and the task that appends them."""

    def __init__(self, topic: PersistentTopic) -> None:
        self._topic = topic
        self._waiting: list[Publish] = []
        self._task: asyncio.Task[None] | None = None
        self._put = self._answered = 0
        self._settling: list[tuple[int, asyncio.Future[None]]] = []
        self._unsettled: dict[str, int] = {}
        """Entries that are not answered yet, by the name of their producer."""

    def put(self, publish: Publish) -> None:
        """Append an entry behind all that wait, and answer its producer. Of a producer that is closed meanwhile nothing
        more is appended."""
        self._waiting.append(publish)
        self._put += 1
        self._unsettled[publish.producer.name] = self._unsettled.get(publish.producer.name, 0) + 1
        publish.producer.connection.publishing(1, len(publish.entry))
        if self._task is None:
            self._task = asyncio.create_task(self._append_all(), name=f"publish {self._topic.name}")

    async def settled(self) -> None:
        """Returns when all that waits now is answered."""
        if self._answered < self._put:
            settled = asyncio.get_running_loop().create_future()
            self._settling.append((self._put, settled))
            await settled

    def holds(self, producer_name: str) -> bool:
        """Return whether an entry of a producer of that name is not answered yet."""
        return producer_name in self._unsettled

    async def _append_all(self) -> None:
        try:
            while self._waiting:
                group = self._next_group()
                wanted = [publish for publish in group if not publish.producer.is_closed]
                try:
                    self._answer(wanted, await self._append(wanted) if wanted else [])
                    self._topic.store_sequences_if_due()
                finally:
                    self._settle(group)
        finally:
            self._task = None

    async def _append(self, group: Sequence[Publish]) -> Sequence[Answer | MessageId | BaseException]:
        try:
            return await self._topic.pools[WaitsFor.LOG].run_to_end(self._topic.append, group)
        except (CompactorError, RestException) as error:
            return [error] * len(group)
        except Exception as error:
            LOG.exception("%s: %d entries are not appended", self._topic.name, len(group))
            return [error] * len(group)

    def _next_group(self) -> list[Publish]:
        size = count = 0
        for publish in self._waiting:
            size += len(publish.entry)
            if count and size > GROUP_BYTES:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _answer(self, group: Sequence[Publish], answers: Sequence[Answer | MessageId | BaseException]) -> None:
        partition = self._topic.name.partition
        failing: dict[Producer, BaseException] = {}
        for publish, answer in zip(group, answers, strict=True):
            producer = publish.producer
            if producer in failing:  # its client sends this again, in order
                continue
            if isinstance(answer, BaseException):
                if isinstance(answer, InvalidRecord):
                    producer.failed(publish, answer)
                if may_come_again(answer):
                    failing[producer] = answer
            elif isinstance(answer, MessageId):
                producer.duplicates += 1
                producer.receipt(publish, answer)
            else:
                first = answer.first.message_id
                producer.receipt(publish, MessageId(first.ledger_id, first.entry_id, partition))
        for producer, error in failing.items():
            LOG.warning("%s: the producer %s is to send again: %s", self._topic.name, producer.name, error)
            self._topic.remove_producer(producer)
            producer.connection.close_producer(producer)
        lost = next((error for error in failing.values() if isinstance(error, Fenced | TopicNotFound)), None)
        if lost is not None:
            self._topic.lost(lost)

    def _settle(self, group: Sequence[Publish]) -> None:
        """Entries do not wait any more."""
        for publish in group:
            publish.producer.connection.publishing(-1, -len(publish.entry))
            name = publish.producer.name
            self._unsettled[name] -= 1
            if not self._unsettled[name]:
                del self._unsettled[name]
        self._answered += len(group)
        while self._settling and self._settling[0][0] <= self._answered:
            _, settled = self._settling.pop(0)
            if not settled.done():
                settled.set_result(None)


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
        """Of those that were added, also if it is not stored yet."""

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
