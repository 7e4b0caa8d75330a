"""The topics that this service serves to Pulsar's clients: each is opened once for all its producers and consumers.

A topic is opened for its first client, which takes the writer's lease, and closed when it was idle for a while, when
its lease is lost, or when the service ends. Once a second `tick` takes rates and begins to close topics.

For one event loop, but for the methods that say so.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from api.broker import names
from api.broker.broker import Broker
from api.broker.refusals import NotTheOwner, TopicNotServed
from api.broker.serving import client_stats
from api.broker.serving.connected_clients import LiveTopicState
from api.broker.serving.cursor_writer import CursorWriter
from api.broker.serving.deduplication import Deduplication
from api.broker.serving.live_subscriptions import ServedSubscription
from api.broker.serving.logs import HeldLog
from api.broker.serving.loop_turns import in_turns
from api.broker.serving.page_budget import PageBudget
from api.broker.serving.sequence_loads import SequenceLoads
from api.broker.serving.tail import Tail, TailBudget
from api.broker.serving.topic import PersistentTopic
from api.broker.threads import WaitsFor
from api.observability.error_text import one_line
from api.observability.logs import LogThrottle
from compactor.maintenance.backlog_limits import ExceededQuota
from storage.errors import CompactorError, LeaseHeld
from storage.log.segment import AppendResult
from storage.metadata.records import TopicRecord
from storage.model import TopicName
from storage.topic import Topic

LOG = logging.getLogger(__name__)
TICK_SECONDS = 1.0
_CLOSED_AT_ONCE = 8
_TICKED_AT_ONCE = 20
Audit = Callable[[str, TopicName], None]
"""Logs a change that a client has made to a topic: the action and the topic."""


class ProducerState(NamedTuple):
    """The stored state of a topic's producers. `deduplicates`: the policy. `epoch`: that of the last exclusive
    producer; None: there was none."""

    deduplicates: bool
    epoch: int | None


class TopicRegistry:
    """The topics that one service has open for Pulsar's clients."""

    def __init__(self, broker: Broker, log_throttle: LogThrottle) -> None:
        self._broker = broker
        self._metadata = broker.environment.metadata
        self._settings = settings = broker.settings
        self._log_throttle = log_throttle
        self._clock = broker.environment.clock
        self._by_name: dict[TopicName, PersistentTopic] = {}
        self._by_id: dict[int, PersistentTopic] = {}
        self._opening: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        """While a topic is opened or closed."""
        self._tails = TailBudget(settings.broker_cache_bytes)
        self._pages = PageBudget(settings.broker_page_bytes)
        self.cursor_writer = CursorWriter(self._metadata, broker.pools[WaitsFor.DATABASE], TICK_SECONDS)
        self._sequence_loads = SequenceLoads(broker.pools[WaitsFor.SEQUENCES].run_without_deadline)
        self._ticked_ms = self._clock.now_ms()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends = False

    def __iter__(self) -> Iterator[PersistentTopic]:
        return iter(list(self._by_name.values()))

    def register_callbacks(self) -> None:
        """Register the registry's functions at the broker: it receives appended entries, and offers statistics and
        subscriptions to other interfaces."""
        loop = asyncio.get_running_loop()
        self._broker.logs.on_appended = partial(self._pass_appended_to_loop, loop)
        clients = self._broker.clients
        clients.of_topic = self._live_topic_state
        clients.counts = lambda: client_stats.client_counts(iter(self))
        clients.subscription = partial(self._live_subscription, loop)
        clients.note_truncated = partial(self._restart_after_truncation, loop)

    def refuse_new_topics(self) -> None:
        """Refuse to open topics from now on, because the service ends."""
        self._ends = True

    async def close(self) -> None:
        """Close all open topics, and wait for that."""
        while topics := list(itertools.islice(self._by_name.values(), _CLOSED_AT_ONCE)):
            await asyncio.gather(*map(self._close_topic, topics))
        self._broker.logs.on_appended = lambda _topic, _entries: None

    async def get_or_open(self, name: TopicName, allow_creation: bool, audit: Audit) -> PersistentTopic:
        """Return the open topic of that name; open it first if it is not open. `allow_creation`: a missing topic may be
        created; `audit` logs that.

        Raise TopicNotServed for a topic of another service, WriterElsewhere, NoLogOwner, Unavailable, and what
        `names.find_or_create` raises.
        """
        async with self._opening.setdefault(name, asyncio.Lock()):
            if self._ends:
                raise TopicNotServed(f"the service that owned {name} ends")
            topic = self._by_name.get(name)
            if topic is not None and (topic.is_lost or await self._has_deduplication_changed(topic)):
                await self._close_topic(topic)
                topic = None
            if topic is None:
                topic = await self._open_topic(name, allow_creation, audit)
                if self._ends:
                    await topic.close()
                self._by_name[name] = topic
                self._by_id[topic.record.id] = topic
            topic.idle_since = None if topic.idle_since is None else self._clock.now_ms()
            return topic

    async def tick(self) -> None:
        """Compute the rates of all open topics, and begin to close those that are lost or idle. It does not wait until
        they are closed."""
        now, last = self._clock.now_ms(), self._ticked_ms
        self._ticked_ms = now
        seconds = max(now - last, 1) / 1000  # the loop may have been late
        async for topic in in_turns(self, _TICKED_AT_ONCE):
            if topic.is_lost:
                self._close_lost_topic(topic)
            elif topic.idle_since is not None and now - topic.idle_since >= self._settings.producers_idle_ms:
                self._spawn(self._close_idle(topic))
            else:
                await topic.tick(seconds)

    # Opening

    async def _has_deduplication_changed(self, topic: PersistentTopic) -> bool:
        """Return whether the deduplication policy has changed since the topic was opened."""
        deduplicates = await self._broker.pools[WaitsFor.DATABASE].run(self._is_deduplication_enabled, topic.record)
        return topic.is_deduplicating != deduplicates

    async def _open_topic(self, name: TopicName, allow_creation: bool, audit: Audit) -> PersistentTopic:
        """Open a topic: find or create its record, open its log, and return the topic."""
        pools = self._broker.pools
        record, is_new = await pools[WaitsFor.DATABASE].run(
            names.find_or_create, self._broker.environment, name, allow_creation
        )
        if is_new:
            audit("create_topic", name)
        storage = Topic(self._broker.environment, record)
        log = await pools[WaitsFor.LOG].run(self._hold_log, storage)
        try:
            deduplicates, epoch = await pools[WaitsFor.DATABASE].run(
                self._load_producer_state_and_delete_unused_sequences, record
            )
        except BaseException:
            await pools[WaitsFor.LOG].run_required(log.release)
            raise
        return PersistentTopic(
            storage,
            log,
            self._metadata,
            self._clock,
            pools,
            self._settings.broker_max_unacked_messages,
            self._settings.broker_max_consumers_per_subscription,
            self._settings.broker_max_producers_per_topic,
            Tail(self._tails),
            self.cursor_writer,
            self._pages,
            self._new_deduplication(storage, deduplicates),
            self._sequence_loads,
            epoch,
            partial(self._exceeded_quota, record),
            self._close_lost_topic,
            self._log_throttle,
        )

    def _hold_log(self, storage: Topic) -> HeldLog:
        """Open the topic's log and return it, which makes this service the topic's owner. Raise TopicNotServed,
        WriterElsewhere, NoLogOwner if another process has it. For threads."""
        check_ownership = self._broker.ownership.check_for_writing
        try:
            check_ownership(storage.record)
            return self._broker.logs.hold(storage)
        except NotTheOwner as error:
            raise TopicNotServed(f"{storage.name} is served by another service") from error
        except LeaseHeld as error:
            with suppress(NotTheOwner):
                check_ownership(storage.record)
            self._log_throttle.warn("%s cannot be served here now: %s", storage.name, one_line(error))
            raise TopicNotServed(
                f"{storage.name} cannot be served here: another process still has its log open"
            ) from error

    def _load_producer_state_and_delete_unused_sequences(self, record: TopicRecord) -> ProducerState:
        """Read from SQL what a topic that is opened needs for its producers. If deduplication is off, end the stored
        sequence ids. For threads."""
        deduplicates = self._is_deduplication_enabled(record)
        if not deduplicates:  # switched on again, it begins at the topic's end
            self._metadata.producer_sequences.delete_sequence_ids(record.id)
        return ProducerState(deduplicates, self._metadata.topics.producer_epoch(record.id))

    def _new_deduplication(self, storage: Topic, of_producers: bool) -> Deduplication:
        """Return the deduplication of a topic, not loaded. `of_producers`: producers' entries are deduplicated."""
        max_producers = self._settings.broker_deduplication_max_producers
        return Deduplication(self._metadata, storage, max_producers, of_producers=of_producers)

    def _is_deduplication_enabled(self, record: TopicRecord) -> bool:
        """Return whether a topic's policies enable deduplication. For threads."""
        return self._metadata.policies.effective(record).deduplication_enabled

    def _exceeded_quota(self, record: TopicRecord) -> ExceededQuota | None:
        """Return the backlog quota of a topic that refuses producers now; None: none does."""
        return self._broker.maintenance.maintenance.over_quota.get(record.id)

    # Closing

    def _close_lost_topic(self, topic: PersistentTopic) -> None:
        """Begin to close a topic whose lease is lost, unless it is closed; do not wait for it."""
        if self._by_name.get(topic.name) is topic:
            self._spawn(self._close_topic(topic))

    async def _close_idle(self, topic: PersistentTopic) -> None:
        """Close a topic, unless a client has connected meanwhile."""
        async with self._opening.setdefault(topic.name, asyncio.Lock()):
            if topic.idle_since is not None:
                await self._close_topic(topic)

    async def _close_topic(self, topic: PersistentTopic) -> None:
        """Remove a topic from the registry and close it. A CompactorError is logged."""
        if self._by_name.get(topic.name) is not topic:
            return
        del self._by_name[topic.name]
        self._by_id.pop(topic.record.id, None)
        try:
            await topic.close()
        except CompactorError as error:
            LOG.warning("%s is closed, but some of its state was not stored: %s", topic.name, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Calls of other doors and threads

    def _pass_appended_to_loop(
        self, loop: asyncio.AbstractEventLoop, record: TopicRecord, entries: Sequence[tuple[bytes, AppendResult]]
    ) -> None:
        """Let the event loop deliver entries that were appended, if the topic is open. For the appending thread."""
        if record.id in self._by_id:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._deliver_appended, record.id, entries)

    def _deliver_appended(self, topic_id: int, entries: Sequence[tuple[bytes, AppendResult]]) -> None:
        """Add appended entries to the topic's entries in memory, count them, and wake its subscriptions."""
        topic = self._by_id.get(topic_id)
        if topic is not None:
            topic.tail.append(entries)
            topic.published.add(sum(result.messages for _, result in entries), sum(len(data) for data, _ in entries))
            topic.wake_subscriptions()

    def _live_topic_state(self, name: TopicName) -> LiveTopicState:
        """Return the live stats of a topic; empty ones if it is not open. For threads."""
        topic = self._by_name.get(name)
        return LiveTopicState() if topic is None else client_stats.live_topic_state(topic)

    def _live_subscription(
        self, loop: asyncio.AbstractEventLoop, record: TopicRecord, name: str
    ) -> ServedSubscription | None:
        """Return the durable subscription of a topic that this service serves; None: it does not. For threads."""
        topic = self._by_id.get(record.id)
        subscription = None if topic is None or topic.is_lost else topic.subscriptions.get(name)
        cursor = None if subscription is None else subscription.position.cursor
        if topic is None or subscription is None or cursor is None:
            return None
        return ServedSubscription(loop, topic, subscription, cursor)

    def _restart_after_truncation(self, loop: asyncio.AbstractEventLoop, record: TopicRecord) -> None:
        """Let the event loop restart the subscriptions of a topic that was truncated, if it is open. For threads."""

        def restart() -> None:
            topic = self._by_id.get(record.id)
            if topic is not None:
                topic.restart_after_truncation()

        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(restart)
