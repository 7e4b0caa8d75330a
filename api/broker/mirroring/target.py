"""The producer of a mirrored partition, in the topic that this service serves: it has the same queue, log and
deduplication as a producer of Pulsar's protocol, and no connection.

Its sequence ids are the position in Kafka (position.py).

It stops on errors: after an entry that failed, none is appended (`ProducerOptions.stops_on_error`), because a later
offset would make the failed one count as stored.

For the service's event loop, but for `PendingEntries.future`. Must not know: Kafka's protocol.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from api.broker.mirroring.position import PositionLost, last_mirrored_offset, mirror_and_import_producer_names
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
class _MirrorConnection:
    """The mirror in place of the connection of a Pulsar producer: statistics show its address. It is always alive."""

    address: str
    client_version: str = "compactor mirror"

    async def close_unless_alive(self) -> bool:
        return True


@dataclass
class PendingEntries:
    """Entries that were submitted together. `remaining`: those that are not durable yet. `future`: it ends when all
    entries are durable, or with the error of the append."""

    remaining: int
    future: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)

    def __post_init__(self) -> None:
        """Mark the future as running, so that a waiting thread cannot cancel it."""
        self.future.set_running_or_notify_cancel()


class PartitionTarget:
    """A producer that appends the entries of a mirror to one local partition, with deduplication.

    `open_and_return_last_offset` comes first, `close` last.
    """

    def __init__(
        self, registry: TopicRegistry, pools: Pools, topic: TopicName, cluster_id: str, source_topic: str, url: str
    ) -> None:
        """`topic`: the partition to append to; `url`: of the source, for statistics."""
        self.connection = _MirrorConnection(url)
        self._registry = registry
        self._pools = pools
        self._name = topic
        self._producer_names = mirror_and_import_producer_names(cluster_id, source_topic, topic.partition)
        self._producer_name = self._producer_names[0]
        self._topic: PersistentTopic | None = None
        self._producer: Producer | None = None
        self._waiting: deque[PendingEntries] = deque()
        self._lost: CompactorError | None = None

    @property
    def is_lost(self) -> bool:
        """Return whether the topic accepts no more entries of this producer."""
        return self._lost is not None

    async def open_and_return_last_offset(self, start: int | None) -> int | None:
        """Open the partition for writing, and return the last offset of Kafka that it has; None: it has none.

        `start`: the offset at which the mirror began; None: it has not begun.

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
        producer = topic.new_producer(self, ProducerOptions(self._producer_name, stops_on_error=True))
        topic.add_producer(producer)
        try:
            await topic.load_sequences()
            # Entries of the session before may be stored later.
            while topic.publishing.has_entries_of(self._producer_name):
                await topic.publishing.drain()
            last: int | None = topic.last_sequence_id(self._producer_name)
            if last is not None and last < 0:
                last = await self._pools[WaitsFor.SEQUENCES].run_without_deadline(
                    last_mirrored_offset, topic.storage, self._producer_names, start
                )
                if last is not None:  # so that the next start need not search the log
                    await topic.store_sequence_id(self._producer_name, last)
        except BaseException:
            topic.remove_producer(producer)
            raise
        self._topic, self._producer = topic, producer
        return last

    def submit(self, entries: Sequence[RecordEntry], appended: PendingEntries) -> None:
        """Queue entries for the log, in order. `appended`: gets the result when they are durable. Raises nothing."""
        topic, producer = self._topic, self._producer
        if topic is None or producer is None or self._lost is not None:
            _fail_append(appended, self._lost or TopicNotServed(f"{self._name} is not served here any more"))
            return
        self._waiting.append(appended)
        for entry in entries:
            topic.publishing.put(
                QueuedEntry(producer, entry.first_offset, entry.last_offset, entry.messages, entry.data)
            )
        if producer.is_closed:
            self.disconnect()

    async def close(self) -> None:
        """Wait for the queued entries, and remove the producer from the topic, which stays open. Idempotent."""
        topic, producer, self._topic, self._producer = self._topic, self._producer, None, None
        if topic is not None and producer is not None:
            try:
                await topic.publishing.drain()
            finally:
                if not producer.is_closed:
                    topic.remove_producer(producer)

    # The channel of the producer

    def add_queued(self, entries: int, size: int) -> None:
        """Do nothing: the mirror itself limits the entries that it submits."""

    def send_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Count durable entries, and complete the futures of those that are complete."""
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
        """Fail all pending entries, because an entry can never be appended. The producer is lost from then on."""
        self._lost = InvalidRecord(f"the records from offset {sequence_id} on cannot be appended: {error.message}",
                                   error.remedy)  # fmt: skip
        self._fail_pending_entries()

    def disconnect(self) -> None:
        """Fail all pending entries, because this service lost the topic or an append failed."""
        if self._lost is None:
            self._lost = TopicNotServed(f"{self._name} takes no entries of the mirror here now")
        self._fail_pending_entries()

    def _fail_pending_entries(self) -> None:
        assert self._lost is not None
        waiting, self._waiting = list(self._waiting), deque()
        for appended in waiting:
            _fail_append(appended, self._lost)


def _fail_append(appended: PendingEntries, error: CompactorError) -> None:
    if not appended.future.done():
        appended.future.set_exception(error.copy())
