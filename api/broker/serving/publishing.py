"""The queue through which the entries of a topic's producers are appended.

Entries of all producers wait in one queue, in the order in which they came. A thread appends what waits, all together;
what comes meanwhile is the next group. So producers share the flushes of the disk, the order is kept, and the event
loop never waits. Receipts go out in order when a group is durable.

After an entry that failed and may be sent again nothing more of its producer is appended or answered: the producer is
disconnected, and its client, which connects again at once, sends all that has no receipt, in order. Otherwise what
waited would overtake the entry.

For one event loop. Must not know: connections, commands of a protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from api.broker.serving.logs import may_come_again
from api.broker.threads import Workers
from storage.errors import CompactorError, Fenced, InvalidRecord, TopicNotFound
from storage.log.group_commit import Answer
from storage.model import MessageId, TopicName

LOG = logging.getLogger(__name__)
GROUP_BYTES = 16 << 20
"""Entries that are appended together."""

Outcome = Answer | MessageId | BaseException
"""The result for an entry: its place, the id that stands for a duplicate, or why it was not appended."""


class Publisher(Protocol):
    """A producer, as the queue needs it. Calls return at once and never fail."""

    @property
    def name(self) -> str: ...

    @property
    def is_closed(self) -> bool: ...

    def queued(self, entries: int, size: int) -> None:
        """Note that so many more entries, of so many bytes together, wait in the queue; negative: fewer."""

    def stored(self, entry: QueuedEntry, message_id: MessageId, is_duplicate: bool) -> None:
        """Send the receipt of an entry, which is durable."""

    def refused(self, entry: QueuedEntry, error: InvalidRecord) -> None:
        """Answer an entry that can never be appended as it is."""

    def disconnect(self) -> None:
        """Remove the producer from its topic, and tell its client to connect again."""


@dataclass(slots=True)
class QueuedEntry:
    """An entry that waits to be appended. The sequence ids are those of the command that carried it."""

    producer: Publisher
    sequence_id: int
    highest_sequence_id: int
    messages: int
    entry: bytes

    @property
    def producer_name(self) -> str:
        return self.producer.name


class PublishQueue:
    """The entries of one topic that wait, and the task that appends them."""

    def __init__(
        self,
        topic: TopicName,
        workers: Workers,
        append: Callable[[Sequence[QueuedEntry]], Sequence[Outcome]],
        on_appended: Callable[[], object],
        on_lost: Callable[[BaseException], object],
        warn: Callable[[str, str], object],
    ) -> None:
        """`append`: called by a worker. `on_appended`: a group was appended and answered; `on_lost`: the topic is
        written elsewhere, or was deleted. `warn`: log a text, seldom for each condition (`LogThrottle.warn`): while a
        disk is full each client connects again and fails ten times a second."""
        self._topic = topic
        self._workers = workers
        self._append = append
        self._on_appended = on_appended
        self._on_lost = on_lost
        self._warn = warn
        self._waiting: list[QueuedEntry] = []
        self._task: asyncio.Task[None] | None = None
        self._put = self._answered = 0
        self._settling: list[tuple[int, asyncio.Future[None]]] = []
        self._unsettled: dict[str, int] = {}
        """Entries that are not answered yet, by the name of their producer."""

    def put(self, entry: QueuedEntry) -> None:
        """Append an entry after all that wait, and answer its producer, unless that is closed meanwhile."""
        self._waiting.append(entry)
        self._put += 1
        self._unsettled[entry.producer_name] = self._unsettled.get(entry.producer_name, 0) + 1
        entry.producer.queued(1, len(entry.entry))
        if self._task is None:
            self._task = asyncio.create_task(self._append_all(), name=f"publish {self._topic}")

    async def settled(self) -> None:
        """Return when all that waits now is answered."""
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
                remaining = [entry for entry in group if not entry.producer.is_closed]
                try:
                    if remaining:
                        self._answer(remaining, await self._appended(remaining))
                        self._on_appended()
                finally:
                    self._settle(group)
        finally:
            self._task = None

    async def _appended(self, group: Sequence[QueuedEntry]) -> Sequence[Outcome]:
        try:
            return await self._workers.run_to_end(self._append, group)
        except CompactorError as error:
            return [error] * len(group)
        except Exception as error:
            LOG.exception("%s: %d entries are not appended", self._topic, len(group))
            return [error] * len(group)

    def _next_group(self) -> list[QueuedEntry]:
        size = count = 0
        for entry in self._waiting:
            size += len(entry.entry)
            if count and size > GROUP_BYTES:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _answer(self, group: Sequence[QueuedEntry], outcomes: Sequence[Outcome]) -> None:
        failing: dict[Publisher, BaseException] = {}
        for entry, outcome in zip(group, outcomes, strict=True):
            producer = entry.producer
            if producer in failing:  # its client sends this again, in order
                continue
            if isinstance(outcome, BaseException):
                if isinstance(outcome, InvalidRecord):
                    producer.refused(entry, outcome)
                if may_come_again(outcome):
                    failing[producer] = outcome
            elif isinstance(outcome, MessageId):
                producer.stored(entry, self._entry_id(outcome), is_duplicate=True)
            else:
                producer.stored(entry, self._entry_id(outcome.first.message_id), is_duplicate=False)
        for producer, error in failing.items():
            text = f"{self._topic}: the producer {producer.name} is disconnected, to send again: {error}"
            self._warn(text, f"producers are disconnected: {type(error).__name__}")
            producer.disconnect()
        lost = next((error for error in failing.values() if isinstance(error, Fenced | TopicNotFound)), None)
        if lost is not None:
            self._on_lost(lost)

    def _entry_id(self, message_id: MessageId) -> MessageId:
        return MessageId(message_id.ledger_id, message_id.entry_id, self._topic.partition)

    def _settle(self, group: Sequence[QueuedEntry]) -> None:
        """Note that these entries wait no more."""
        for entry in group:
            entry.producer.queued(-1, -len(entry.entry))
            name = entry.producer_name
            self._unsettled[name] -= 1
            if not self._unsettled[name]:
                del self._unsettled[name]
        self._answered += len(group)
        while self._settling and self._settling[0][0] <= self._answered:
            _, settled = self._settling.pop(0)
            if not settled.done():
                settled.set_result(None)
