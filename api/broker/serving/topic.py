"""An open topic: its producers, its subscriptions, and the log that they share.

A topic is opened for its first producer or consumer, which acquires the writer's lease, and closed some time after the
last one. When the lease or the topic is lost, all clients are disconnected: they look the topic up and find its owner.

For the event loop alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from weakref import WeakValueDictionary

from api.broker.refusals import BacklogQuotaExceeded, ProducerBusy, SubscriptionHasConsumers, TopicNotServed
from api.broker.serving.channel import ProducerChannel
from api.broker.serving.consumer import Consumer
from api.broker.serving.cursor_writer import CursorWriter
from api.broker.serving.deduplication import Deduplication
from api.broker.serving.logs import HeldLog
from api.broker.serving.loop_turns import in_turns
from api.broker.serving.page_budget import PageBudget
from api.broker.serving.position import SubscribeRequest
from api.broker.serving.producer import Producer, ProducerOptions, ProducerRegistry
from api.broker.serving.publishing import PublishOutcome, PublishQueue, QueuedEntry
from api.broker.serving.rates import Rate
from api.broker.serving.sequence_loads import SequenceLoads
from api.broker.serving.subscription import Subscription
from api.broker.serving.tail import Tail
from api.broker.threads import LimitedWorkers, LoopResult, Pools, WaitsFor, Workers
from api.observability.error_text import text_if_error
from api.observability.logs import LogThrottle
from compactor.maintenance.backlog_limits import ExceededQuota
from storage.clock import Clock
from storage.entries.entry import EntryHeader
from storage.errors import CompactorError, InvalidInput, InvalidRecord, NotFound
from storage.log.group_commit import AppendOutcome
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import EARLIEST, TopicName
from storage.topic import Topic

LOG = logging.getLogger(__name__)
_STORE_CALLS = 4
"""Concurrent reads of one topic's messages: an object that hangs leaves threads for other topics."""
_STORE_SECONDS = 30.0
LOOP_ENTRIES, LOOP_BYTES = 16, 16 << 10
"""A group that the event loop passes to the log by itself: a thread takes longer to wake. For larger ones, two threads
share the work."""
CLIENTS_AT_ONCE = 100
"""Producers, consumers or subscriptions that are visited before other tasks have a turn."""
_REFUSED_MS = 10_000
"""The time for which a replicator that sent an entry that cannot be stored is refused: it sends the entry again."""
_READER_TICKS = 60
"""Ticks that a reader's position is kept without a consumer: after a seek the reader connects again."""


class PersistentTopic:
    """One topic that this service has open: its producers, its subscriptions and its log."""

    def __init__(
        self,
        storage: Topic,
        log: HeldLog,
        metadata: MetadataStore,
        clock: Clock,
        pools: Pools,
        max_unacked_messages: int,
        max_consumers: int,
        max_producers: int,
        tail: Tail,
        cursor_writer: CursorWriter,
        page_budget: PageBudget,
        deduplication: Deduplication,
        sequence_loads: SequenceLoads,
        producer_epoch: int | None,
        over_quota: Callable[[], ExceededQuota | None],
        on_lost: Callable[[PersistentTopic], object],
        log_throttle: LogThrottle,
    ) -> None:
        """Make an open topic, without clients. `max_unacked_messages`: of one consumer; `max_consumers`: of one
        subscription; `max_producers`: of the topic; 0: any number. `producer_epoch`: the stored epoch of the last
        exclusive producer. `over_quota` returns the backlog quota that refuses producers now. `on_lost` is called when
        this service does not serve the topic any more."""
        self.storage = storage
        self.metadata = metadata
        self.clock = clock
        self.max_unacked_messages = max_unacked_messages
        self.max_consumers = max_consumers
        self._max_producers = max_producers
        self.tail = tail
        self.cursor_writer = cursor_writer
        self.page_budget = page_budget
        self.store: Workers = LimitedWorkers(
            pools[WaitsFor.STORE], _STORE_CALLS, _STORE_SECONDS, "other reads of the topic"
        )
        self.database: Workers = pools[WaitsFor.DATABASE]
        self.over_quota = over_quota
        self.producers = ProducerRegistry(storage.record, metadata, self.database, clock, producer_epoch)
        self.subscriptions: dict[str, Subscription] = {}
        self.publishing = PublishQueue(
            self.name,
            self.append,
            self._store_sequences_if_due,
            self.report_topic_lost,
            self.refuse_replicator,
            log_throttle,
        )
        self.published = Rate()
        self.stale_reader_count = 0
        """The number of compacted reads that continued without deletions that compaction has dropped (R7)."""
        self.idle_since: int | None = clock.now_ms()
        self._is_closed = False
        self._held = log
        self._pools = pools
        self._deduplication = deduplication
        self._sequence_loads = sequence_loads
        self._is_storing_sequences = False
        self._on_lost = on_lost
        self._log_throttle = log_throttle
        self._refusals: dict[str, tuple[InvalidRecord, int]] = {}
        """The replicators that are refused: the reason, and until when."""
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def record(self) -> TopicRecord:
        return self.storage.record

    @property
    def name(self) -> TopicName:
        return self.storage.name

    @property
    def is_lost(self) -> bool:
        """True if another process may write the topic, or it was deleted."""
        return self._held.is_lost

    @property
    def is_deduplicating(self) -> bool:
        """True if entries that a producer repeats are dropped."""
        return self._deduplication.of_producers

    def check_open(self) -> None:
        """Raise TopicNotServed if the topic was closed after the caller got it: its client has to look it up again."""
        if self._is_closed:
            raise self._not_served_error()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the background; its error is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish_task)

    def _finish_task(self, task: asyncio.Task[Any]) -> None:
        """Remove a background task that has ended, and log its error."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, CompactorError):
            LOG.warning("%s: %s", self.name, error)
        elif error is not None:
            LOG.error("%s: a background task failed", self.name, exc_info=error)

    # Publishing

    async def append(self, group: Sequence[QueuedEntry]) -> Sequence[PublishOutcome]:
        """Append entries of producers that are not duplicates to the log. Return for each entry, in order, an
        AppendResult, an error, or EARLIEST for a duplicate.

        Raises Fenced if the topic is lost.
        """
        is_small = len(group) <= LOOP_ENTRIES and sum(len(item.entry) for item in group) <= LOOP_BYTES
        deduplication = self._deduplication
        if not (deduplication.of_producers or deduplication.is_loaded):
            return await self._append_to_log(group, is_small)
        if is_small:
            new = deduplication.new_entries(group)
        else:
            new = await self._pools[WaitsFor.LOG].run_without_deadline_or_queue_limit(deduplication.new_entries, group)
        appended = await self._append_to_log(new.entries, is_small) if new.entries else []
        return deduplication.record_outcomes(new, appended)

    async def _append_to_log(self, group: Sequence[QueuedEntry], is_small: bool) -> list[AppendOutcome]:
        """Append entries to the log. Return for each an AppendResult or an error.

        `is_small`: the event loop submits the group itself, and does not wait for a thread. Raises Fenced.
        """
        result = LoopResult[list[AppendOutcome]]()
        entries: list[bytes | CompactorError] = []
        headers: list[EntryHeader | None] = []
        for item in group:
            header = item.header
            if isinstance(header, InvalidRecord):
                entries.append(header)
                headers.append(None)
            else:
                entries.append(item.entry)
                headers.append(header)
        senders = [item.producer.name for item in group]
        stop_on_error = {item.producer.name for item in group if item.stops_on_error}
        append = self._held.new_append(entries, senders, result.deliver, stop_on_error, headers)
        if not (is_small and append.submit_without_waiting()):
            await self._pools[WaitsFor.LOG].run_without_deadline_or_queue_limit(append.submit_remaining)
        return await result.future

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the highest sequence id that a producer of that name has stored; -1: none is known."""
        return self._deduplication.last_sequence_id(producer_name)

    async def store_sequence_id(self, producer_name: str, sequence_id: int) -> None:
        """Store in SQL a producer's sequence id that the log has, and that was not known. Raises CompactorError."""
        self._deduplication.note_sequence_id(producer_name, sequence_id)
        await self.database.run_without_deadline(self._deduplication.store)

    async def load_sequences(self, is_for_replicator: bool = False) -> None:
        """Load the sequence ids of producers and the positions of source clusters, unless they are loaded, if entries
        of a new producer are deduplicated. `is_for_replicator`: the producer is a replicator.

        Raises CompactorError.
        """
        if self._deduplication.of_producers or is_for_replicator:
            await self._sequence_loads.load(self.record.id, self._deduplication)
        if is_for_replicator:
            await self.database.run(self._deduplication.mark_replicated_and_end_accepted_gaps)

    def _store_sequences_if_due(self) -> None:
        """Begin to store the sequence ids of producers in SQL, if that is due; do not wait for it."""
        deduplication = self._deduplication
        if not self._is_storing_sequences and deduplication.claim_due_store():
            self._is_storing_sequences = True
            self.spawn(self._store_sequences(deduplication))

    async def _store_sequences(self, deduplication: Deduplication) -> None:
        """Store the sequence ids of producers in SQL."""
        try:
            await self.database.run_without_deadline(deduplication.store)
        finally:
            self._is_storing_sequences = False

    def wake_subscriptions(self) -> None:
        """Wake all subscriptions, so that they deliver entries that were just appended."""
        for subscription in self.subscriptions.values():
            subscription.wake()

    # Consumers

    async def find_or_create_subscription(self, consumer: Consumer, request: SubscribeRequest) -> Subscription:
        """Find or create the subscription that a consumer joins, and return it. The consumer is not added yet:
        `Dispatcher.add` adds it and starts the delivery.

        Raises CompactorError, such as InvalidInput, ConsumerBusy, IncompatibleKeySharedConsumer, TopicNotServed.
        """
        name = request.name
        if name == COMPACTION_CURSOR:
            raise InvalidInput(f"{name} is the compactor's own subscription", "use another name", is_public=True)
        if request.read_compacted and consumer.type.is_individual:
            raise InvalidInput(
                "readCompacted only allowed on failover or exclusive subscriptions",
                "use such a subscription, or read without it",
                is_public=True,
            )
        async with self._opening.setdefault(name, asyncio.Lock()):
            subscription = self.subscriptions.get(name)
            if subscription is not None and subscription.durable != request.durable:
                raise InvalidInput(
                    f"Durable subscription with the same name already exists: {name}", "use another name",
                    is_public=True,
                )  # fmt: skip
            if subscription is None:
                subscription = Subscription(self, request, self.close_subscription)
                await subscription.open(request)
                self.subscriptions[name] = subscription
            else:
                await subscription.prepare_for_consumer(request)
            self.check_open()
            subscription.prepare_dispatcher(consumer)
        self.idle_since = None
        return subscription

    async def ensure_subscription(self, name: str) -> None:
        """Create a durable subscription that begins at the topic's first message, unless it exists. Raises
        CompactorError."""
        if name not in self.subscriptions:
            request = SubscribeRequest(name, start=EARLIEST)
            await Subscription(self, request, self.close_subscription).open(request)

    async def remove_consumer(self, subscription: Subscription, consumer: Consumer) -> None:
        """Remove a consumer from its subscription, and close the subscription after the last one. The position of a
        reader ends with its last consumer."""
        subscription.remove_consumers(consumer)
        await self.close_unused_subscription(subscription)

    async def close_unused_subscription(self, subscription: Subscription) -> None:
        """Close a subscription if its last consumer has left; remove it if it is not durable.

        `tick` later notes whether the topic is idle: a search through all subscriptions at each call would be
        quadratic.
        """
        if subscription.dispatcher is None:
            return
        if not subscription.consumers and not subscription.durable:
            await self.close_subscription(subscription)
        elif not subscription.consumers:
            async with self._opening.setdefault(subscription.name, asyncio.Lock()):
                if not subscription.consumers:
                    await subscription.close()

    async def close_subscription(self, subscription: Subscription) -> None:
        """Close a subscription and disconnect its consumers. Its cursor stays."""
        self._detach(subscription)
        await subscription.close()

    def _detach(self, subscription: Subscription) -> None:
        """Remove a subscription from the topic, and disconnect its consumers."""
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        subscription.disconnect()

    async def prepare_subscription_deletion(self, subscription: Subscription, force: bool) -> None:
        """Stop serving a subscription whose cursor the caller deletes next. Its acknowledgements are not written.

        Raises SubscriptionHasConsumers if it has consumers; `force` disconnects them.
        """
        if subscription.consumers and not force:
            raise SubscriptionHasConsumers(
                f"Subscription {subscription.name} has active connected consumers",
                "end them, or delete it with force",
                is_public=True,
            )
        subscription.is_deleted = True
        self._detach(subscription)
        # A thread of the database may wait for this, and closing waits for threads of the store.
        self.spawn(subscription.close())

    async def unsubscribe(self, subscription: Subscription, force: bool) -> None:
        """Delete a subscription and its cursor. Raises SubscriptionHasConsumers if it has consumers, unless `force`,
        which disconnects them, and CompactorError."""
        async with self._opening.setdefault(subscription.name, asyncio.Lock()):
            await self.prepare_subscription_deletion(subscription, force)
            if subscription.durable:
                with contextlib.suppress(NotFound):
                    await self.database.run(self.metadata.cursors.delete, self.record.id, subscription.name)

    def restart_after_truncation(self) -> None:
        """Drop the topic's entries from memory and restart its subscriptions, because the topic was truncated."""
        self.tail.clear()
        for subscription in self.subscriptions.values():
            subscription.restart()

    # Producers

    def check_backlog_quota(self) -> None:
        """Raise BacklogQuotaExceeded while the topic's backlog exceeds a quota that refuses producers."""
        over = self.over_quota()
        if over is not None:
            raise BacklogQuotaExceeded(over)

    def new_producer(self, channel: ProducerChannel, options: ProducerOptions) -> Producer:
        """Return a producer that is not connected yet: `add_producer` connects it."""
        return Producer(channel, options, self.clock.now_ms(), self.remove_producer)

    def add_producer(self, producer: Producer) -> asyncio.Future[None] | None:
        """Connect a producer to the topic. Return None if it may write now, else a future that ends when it is its
        turn.

        Raises what `ProducerRegistry.add` raises, ProducerBusy also for too many producers, and TopicNotServed.
        """
        self.check_open()
        if 0 < self._max_producers <= len(self.producers) and self.producers.get(producer.name) is None:
            raise ProducerBusy(
                f"Topic {self.name} reached max producers limit: it has {self._max_producers}",
                "end some, or raise broker.max-producers-per-topic",
            )
        turn = self.producers.add(producer)
        self.idle_since = None
        return turn

    def admit_replicator(self, name: str) -> None:
        """Admit a replicator that connects. Raise InvalidRecord if it is still refused, because it has just sent an
        entry that cannot be stored."""
        error, until_ms = self._refusals.get(name, (None, 0))
        if error is not None and self.clock.now_ms() < until_ms:
            raise error.copy()
        self._refusals.pop(name, None)
        self._deduplication.note_replicator_connected(name)

    def refuse_replicator(self, producer: Producer, error: InvalidRecord) -> None:
        """Disconnect a replicator whose entry cannot be stored, and refuse its connections for some seconds.

        It keeps the entry and sends it again, before all later ones: none is lost, and the reason is in its log, too.
        """
        now = self.clock.now_ms()
        self._refusals = {name: refused for name, refused in self._refusals.items() if refused[1] > now}
        self._refusals[producer.name] = error, now + _REFUSED_MS
        self._log_throttle.warn(
            "%s: the replicator %s stops, and sends the entry again: %s",
            self.name,
            producer.name,
            text_if_error(error),
            condition=f"replicators stop: {error.message}",
        )
        producer.disconnect()

    def remove_producer(self, producer: Producer) -> None:
        """Remove a producer from the topic. Its client is not informed."""
        self.producers.remove(producer)
        self._update_idle_since()

    def _update_idle_since(self) -> None:
        """Set `idle_since` to now if the topic has neither producers nor consumers."""
        if not len(self.producers) and not any(item.consumers for item in self.subscriptions.values()):
            self.idle_since = self.clock.now_ms()

    # Time and the end

    async def tick(self, seconds: float) -> None:
        """Do the work of each second: compute the rates of the topic's clients, disconnect producers while the backlog
        exceeds its quota, and close subscriptions of readers that are gone.

        `seconds`: the time since the last call.
        """
        is_over = self.over_quota() is not None
        async for producer in in_turns(self.producers.active, CLIENTS_AT_ONCE):
            producer.published.tick(seconds)
            if is_over:
                producer.disconnect()  # its client connects again and is refused with the reason
        self.published.tick(seconds)
        async for subscription in in_turns(list(self.subscriptions.values()), CLIENTS_AT_ONCE):
            subscription.dispatched.tick(seconds)
            async for consumer in in_turns(subscription.consumers, CLIENTS_AT_ONCE):
                consumer.delivered.tick(seconds)
                consumer.redelivered.tick(seconds)
                consumer.acknowledged.tick(seconds)
            if subscription.count_idle_tick(_READER_TICKS):
                self.spawn(self.close_subscription(subscription))
        if self.idle_since is None:
            self._update_idle_since()

    def report_topic_lost(self, error: BaseException) -> None:
        """Log that this service does not serve the topic any more, and call `on_lost`."""
        LOG.info("%s is not served here any more: %s", self.name, error)
        self._on_lost(self)

    def _not_served_error(self) -> TopicNotServed:
        return TopicNotServed(f"{self.name} is not served here any more")

    async def close(self) -> None:
        """Disconnect clients, write cursors and sequence ids, and release the log. Idempotent. Raises CompactorError;
        then the log is released all the same."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.producers.fail_waiting(self._not_served_error())
            await self.publishing.drain_and_close()  # a producer that is disconnected before its receipts sends twice
            async for producer in in_turns(self.producers.active, CLIENTS_AT_ONCE):
                producer.disconnect()
            for subscription in list(self.subscriptions.values()):
                subscription.disconnect()
                try:
                    await subscription.close()
                except CompactorError as error:
                    LOG.warning("the subscription %s of %s: %s", subscription.name, self.name, error)
            self._deduplication.advance_load_start(self.tail.end)
        finally:  # a lease without a served topic would keep all other processes from serving it
            self.tail.clear()
            await self._pools[WaitsFor.LOG].run_required(self._store_sequences_and_release_log)

    def _store_sequences_and_release_log(self) -> None:
        """Store the sequence ids in SQL, and release the topic's log also if that fails. For threads."""
        try:
            self._deduplication.store()
        finally:
            self._held.release()
