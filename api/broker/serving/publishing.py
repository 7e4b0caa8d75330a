"""The queue through which the entries of a topic's producers are appended.

Entries of all producers wait in one queue, in the order of their arrival. All waiting entries are appended as one
group; entries that arrive meanwhile are the next group. So producers share the flushes of the disk, and the order is
kept. Neither the event loop nor a thread waits for the disk. Receipts are sent in order when a group is durable.

After an entry that failed and may be sent again, no entry of its producer is appended or answered: the producer is
disconnected. Its client connects again at once and sends every entry without a receipt, in order. Otherwise later
entries would overtake the failed one. Of a replicator, and of a producer that stops on errors, this holds for any entry
that failed.

For one event loop. Must not know: connections, commands of a protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from api.broker.serving.channel import Receipt
from api.broker.serving.logs import is_retryable
from api.broker.serving.producer import Producer
from api.observability.error_text import text_if_error
from api.observability.logs import LogThrottle
from storage.entries.entry import EntryHeader, claimed_metadata_bytes, inspect
from storage.entries.replicated import Source
from storage.errors import CompactorError, Fenced, InvalidRecord, TopicNotFound
from storage.log.group_commit import AppendOutcome
from storage.model import MessageId, TopicName

LOG = logging.getLogger(__name__)
METADATA_BYTES = 16 << 10
"""The most metadata that the event loop reads. Larger ones may have a million properties: the log reads them."""
GROUP_BYTES = 16 << 20
"""Maximum bytes of a group, unless one entry is larger."""

PublishOutcome = AppendOutcome | MessageId | BaseException
"""The result for an entry: its position, the id that stands for a duplicate, or its error."""


@dataclass(slots=True)
class QueuedEntry:
    """An entry that waits to be appended. Its sequence ids are those of its receipt; `messages`: their number.

    `source`: the origin of an entry of a replicator. `header`: that of the entry, or the error of an entry that cannot
    be appended; None: it is not known yet.
    """

    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    messages: int
    entry: bytes
    source: Source | None = None
    header: EntryHeader | InvalidRecord | None = None

    @property
    def stops_on_error(self) -> bool:
        """True if no later entry of its producer may be appended when it fails."""
        return self.source is not None or self.producer.options.stops_on_error


class PublishQueue:
    """The queue of entries that a topic's producers have sent, and the task that appends and answers them in groups."""

    def __init__(
        self,
        topic: TopicName,
        append: Callable[[Sequence[QueuedEntry]], Awaitable[Sequence[PublishOutcome]]],
        on_appended: Callable[[], object],
        on_lost: Callable[[BaseException], object],
        on_refused: Callable[[Producer, InvalidRecord], object],
        log_throttle: LogThrottle,
    ) -> None:
        """Make an empty queue. `append` appends a group, and is called for one group at a time. `on_appended` is called
        when a group was appended and answered, `on_lost` when another process writes the topic or has deleted it,
        `on_refused` when an entry of a replicator can never be appended. `log_throttle` bounds warnings: while a disk
        is full, each client reconnects and fails ten times a second."""
        self._topic = topic
        self._partition = topic.partition
        self._append = append
        self._on_appended = on_appended
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._log_throttle = log_throttle
        self._is_closed = False
        self._waiting: list[QueuedEntry] = []
        self._task: asyncio.Task[None] | None = None
        self._put = self._answered = 0
        self._drains: list[tuple[int, asyncio.Future[None]]] = []
        self._counts: dict[str, int] = {}
        """The number of entries without an answer, by the name of their producer."""

    def put(self, entry: QueuedEntry) -> None:
        """Queue an entry. It is appended after all waiting ones, and its producer gets a receipt or an error, unless
        the producer is closed.

        A closed queue ignores it: the producers are about to be disconnected, and their clients send the entry again.
        """
        if self._is_closed:
            return
        if len(entry.entry) <= METADATA_BYTES or claimed_metadata_bytes(entry.entry) <= METADATA_BYTES:
            try:  # now, while its bytes are in the processor's cache
                entry.header = inspect(entry.entry)
            except InvalidRecord as error:
                entry.header = error
        self._waiting.append(entry)
        self._put += 1
        self._counts[entry.producer.name] = self._counts.get(entry.producer.name, 0) + 1
        entry.producer.channel.add_queued(1, len(entry.entry))
        if self._task is None:
            self._task = asyncio.create_task(self._append_all(), name=f"publish {self._topic}")

    async def drain(self) -> None:
        """Wait until every entry that is in the queue now is answered."""
        if self._answered < self._put:
            future = asyncio.get_running_loop().create_future()
            self._drains.append((self._put, future))
            await future

    async def drain_and_close(self) -> None:
        """Ignore new entries, and wait until those in the queue are answered."""
        self._is_closed = True
        await self.drain()

    def has_entries_of(self, producer_name: str) -> bool:
        """Return whether the queue has an entry of a producer of that name."""
        return producer_name in self._counts

    async def _append_all(self) -> None:
        """Append and answer the waiting entries, group by group, until the queue is empty."""
        try:
            while self._waiting:
                group = self._next_group()
                remaining = [entry for entry in group if not entry.producer.is_closed]
                try:
                    if remaining:
                        self._answer_producers(remaining, await self._try_append(remaining))
                        self._on_appended()
                finally:
                    self._mark_answered(group)
        finally:
            self._task = None

    async def _try_append(self, group: Sequence[QueuedEntry]) -> Sequence[PublishOutcome]:
        """Append a group of entries. Return an outcome for each; if the append raises, its error for all."""
        try:
            return await self._append(group)
        except Exception as error:
            if not isinstance(error, CompactorError):
                LOG.exception("%s: %d entries are not appended", self._topic, len(group))
            return [error] * len(group)

    def _next_group(self) -> list[QueuedEntry]:
        """Remove the first entries from the queue, `GROUP_BYTES` at most but at least one, and return them."""
        size = count = 0
        for entry in self._waiting:
            size += len(entry.entry)
            if count and size > GROUP_BYTES:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _answer_producers(self, group: Sequence[QueuedEntry], outcomes: Sequence[PublishOutcome]) -> None:
        """Send receipts and errors for a group to its producers, by the outcomes of its entries. Disconnect producers
        that must send again, and call `on_lost` if the topic is lost."""
        failures: dict[Producer, BaseException] = {}
        receipts: dict[Producer, list[Receipt]] = {}
        for entry, outcome in zip(group, outcomes, strict=True):
            producer = entry.producer
            if producer in failures:  # its client sends this again, in order
                continue
            if isinstance(outcome, BaseException):
                _send_receipts(receipts, producer)
                if entry.stops_on_error:
                    failures[producer] = outcome
                    if entry.source is None and isinstance(outcome, InvalidRecord) and not is_retryable(outcome):
                        producer.channel.send_error(entry.sequence_id, outcome)
                    continue
                if isinstance(outcome, InvalidRecord):
                    producer.channel.send_error(entry.sequence_id, outcome)
                if is_retryable(outcome):
                    failures[producer] = outcome
            else:
                stored = outcome if isinstance(outcome, MessageId) else outcome.first.message_id
                message_id = MessageId(stored.ledger_id, stored.entry_id, self._partition)
                producer.published.add(entry.messages, len(entry.entry))
                receipt = Receipt(entry.sequence_id, entry.highest_sequence_id, message_id)
                receipts.setdefault(producer, []).append(receipt)
        for producer in list(receipts):
            _send_receipts(receipts, producer)
        for producer, error in failures.items():
            if isinstance(error, InvalidRecord) and not is_retryable(error) and not producer.options.stops_on_error:
                self._on_refused(producer, error)
                continue
            condition = f"producers are disconnected: {type(error).__name__}"
            text = "%s: the producer %s is disconnected, to send again: %s"
            self._log_throttle.warn(text, self._topic, producer.name, text_if_error(error), condition=condition)
            producer.disconnect()
        loss = next((error for error in failures.values() if isinstance(error, Fenced | TopicNotFound)), None)
        if loss is not None:
            self._on_lost(loss)

    def _mark_answered(self, group: Sequence[QueuedEntry]) -> None:
        """Subtract the entries of a group, which are answered, from the counts of their producers, and wake callers of
        `drain`."""
        ended: dict[Producer, list[int]] = {}
        for entry in group:
            ended.setdefault(entry.producer, []).append(len(entry.entry))
        for producer, sizes in ended.items():
            producer.channel.add_queued(-len(sizes), -sum(sizes))
            self._counts[producer.name] -= len(sizes)
            if not self._counts[producer.name]:
                del self._counts[producer.name]
        self._answered += len(group)
        while self._drains and self._drains[0][0] <= self._answered:
            _, future = self._drains.pop(0)
            if not future.done():
                future.set_result(None)


def _send_receipts(receipts: dict[Producer, list[Receipt]], producer: Producer) -> None:
    """Send the receipts of one producer to its client, if it has any, and remove them from `receipts`."""
    if (of_producer := receipts.pop(producer, None)) is not None:
        producer.channel.send_receipts(of_producer)
