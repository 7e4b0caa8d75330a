"""The producer of a mirrored partition, in the topic that this service serves: the same queue, log and deduplication as
a producer of Pulsar's protocol, without a connection.

Its sequence ids are the position in Kafka (position.py).

It is strict: after an entry that failed, none is appended (`ProducerOptions.is_strict`), because a later offset would
make the failed one count as stored.

For the service's event loop, but for `AppendedEntries.future`. Must not know: Kafka's protocol.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from api.broker.mirroring.position import PositionLost, position_in_log, producer_names
from api.broker.refusals import TopicNotServed
from api.broker.serving.channel import Receipt
from api.broker.serving.producer import Producer, ProducerOptions
from api.broker.serving.publishing import QueuedEntry
from api.broker.serving.topic import PersistentTopic
from api.broker.serving.topic_registry import TopicRegistry
from api.broker.threads import Pools, WaitsFor
from storage.errors import CompactorError, InvalidRecord
from storage.kafka.record_entries import RecordEntry
from storage.model import TopicName

LOG = logging.getLogger(__name__)


@dataclass
class _Source:
    """The connection of the producer, as statistics show it."""

    address: str
    client_version: str = "compactor mirror"

    async def check_liveness(self) -> bool:
        return True


@dataclass
class AppendedEntries:
    """Entries on their way. `future` ends when all are durable, or with the error of the first that is not."""

    remaining: int
    future: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)

    def __post_init__(self) -> None:
        """Keep the thread that waits from cancelling the future: the service's event loop ends it."""
        self.future.set_running_or_notify_cancel()


class PartitionTarget:
    """The producer of one partition. `open` it first, and `close` it at the end."""

    def __init__(
        self, registry: TopicRegistry, pools: Pools, topic: TopicName, cluster_id: str, source_topic: str, url: str
    ) -> None:
        """`topic`: the partition here; `url`: of the source, for statistics."""
        self.connection = _Source(url)
        self._registry = registry
        self._pools = pools
        self._name = topic
        self._producer_names = producer_names(cluster_id, source_topic, topic.partition)
        self._producer_name = self._producer_names[0]
        self._topic: PersistentTopic | None = None
        self._producer: Producer | None = None
        self._waiting: deque[AppendedEntries] = deque()
        self._lost: CompactorError | None = None

    @property
    def is_lost(self) -> bool:
        """True if the topic takes no more entries of this producer."""
        return self._lost is not None

    async def open(self, start: int | None) -> int | None:
        """Take the topic, and return the last offset that it has; None: it has had none. `start`: the offset at which
        the mirror began, if it has.

        Raises TopicNotServed, WriterElsewhere, NoLogOwner for a topic of another process, TopicNotFound, ProducerBusy,
        BacklogQuotaExceeded, PositionLost, Unavailable.
        """
        topic = await self._registry.get_or_open(self._name, False, lambda _action, _name: None)
        topic.check_backlog_quota()
        if not topic.is_deduplicating:
            raise PositionLost(
                f"deduplication.enabled is off for {self._name}, and a mirror keeps its position by it",
                f"switch it on for {self._name.partitioned_topic}, and resume the mirror",
            )
        producer = topic.new_producer(self, ProducerOptions(self._producer_name, is_strict=True))
        topic.add_producer(producer)
        try:
            await topic.load_sequences()
            while topic.publishing.holds(self._producer_name):  # entries of the session before may be stored later
                await topic.publishing.drain()
            last: int | None = topic.last_sequence_id(self._producer_name)
            if last is not None and last < 0:
                last = await self._pools[WaitsFor.SEQUENCES].run_without_deadline(
                    position_in_log, topic.storage, self._producer_names, start
                )
                if last is not None:  # so that the next start need not search the log
                    await topic.note_sequence_id(self._producer_name, last)
        except BaseException:
            topic.remove_producer(producer)
            raise
        self._topic, self._producer = topic, producer
        return last

    def submit(self, entries: Sequence[RecordEntry], appended: AppendedEntries) -> None:
        """Append entries in order. `appended`: of as many; its future ends when they are durable. Raises nothing."""
        topic, producer = self._topic, self._producer
        if topic is None or producer is None or self._lost is not None:
            _fail(appended, self._lost or TopicNotServed(f"{self._name} is not served here any more"))
            return
        self._waiting.append(appended)
        for entry in entries:
            topic.publishing.put(
                QueuedEntry(producer, entry.first_offset, entry.last_offset, entry.messages, entry.data)
            )
        if producer.is_closed:
            self.disconnect()

    async def close(self) -> None:
        """Leave the topic; it stays open for others, or until it is idle. Idempotent."""
        topic, producer, self._topic, self._producer = self._topic, self._producer, None, None
        if topic is not None and producer is not None:
            try:
                await topic.publishing.drain()
            finally:
                if not producer.is_closed:
                    topic.remove_producer(producer)

    # The channel of the producer

    def note_queued(self, entries: int, size: int) -> None:
        """Do nothing: the mirror bounds what it submits."""

    def send_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Count durable entries."""
        count = len(receipts)
        while count and self._waiting:
            first = self._waiting[0]
            of_first = min(count, first.remaining)
            count -= of_first
            first.remaining -= of_first
            if not first.remaining:
                self._waiting.popleft()
                if not first.future.done():
                    first.future.set_result(None)

    def send_error(self, sequence_id: int, error: InvalidRecord) -> None:
        """Fail all entries that wait: one can never be appended."""
        self._lost = InvalidRecord(f"the records from offset {sequence_id} on cannot be appended: {error.message}",
                                   error.remedy)  # fmt: skip
        self._fail_waiting()

    def disconnect(self) -> None:
        """Fail all entries that wait: the topic was lost, or an append failed."""
        if self._lost is None:
            self._lost = TopicNotServed(f"{self._name} takes no entries of the mirror here now")
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        assert self._lost is not None
        waiting, self._waiting = list(self._waiting), deque()
        for appended in waiting:
            _fail(appended, self._lost)


def _fail(appended: AppendedEntries, error: CompactorError) -> None:
    if not appended.future.done():
        appended.future.set_exception(error.copy())
