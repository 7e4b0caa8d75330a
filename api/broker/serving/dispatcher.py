"""Dispatching: entries of one subscription go to its consumers, by one loop for all types of subscriptions.

    deliver waiting    entries that were read before and wait (waiting.py): the lowest offset first, in order within a
                       key and within a chunked message
    deliver new        the next page of the topic (read_ahead.py): from its newest entries in memory, else by threads

Types differ by their assignment (assignment.py) and by one property. A *single active* consumer receives all entries in
order, so those that it does not acknowledge are delivered again by reading from the cursor. *Individual* types
redeliver entry by entry, and keep delayed entries until they are due.

The loop reads no more before its page is delivered, so a slow consumer slows only its own subscription. It sleeps until
it is woken: by permits, a socket that accepts bytes again, new entries, a due time, a change of consumers, memory for a
read. The entries that it keeps in memory count in a budget of all subscriptions (page_budget.py), which may take them
between two steps: then they are read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Protocol

from api.broker.serving.assignment import Assignment
from api.broker.serving.consumer import Consumer, SubscriptionType
from api.broker.serving.key_routing import DeliveryHeader, delivery_header
from api.broker.serving.loop_turns import repeat_while
from api.broker.serving.pending_acks import EntryKey, Group, PendingAck, PendingAcks
from api.broker.serving.position import SubscriptionPosition
from api.broker.serving.read_ahead import ReadAhead
from api.broker.serving.served_topic import ServedTopic
from api.broker.serving.waiting import WaitingEntries
from storage.entries.rebuild import DeliverableEntry
from storage.errors import CompactorError, StateMayBeStale
from storage.model import EARLIEST
from storage.positions import StartOffset

LOG = logging.getLogger(__name__)
RETRY_SECONDS = 1.0
"""The time to wait after a read that failed."""
ROUND_ENTRIES = 64
"""Entries that are delivered before other tasks have a turn."""
RETURNED_ENTRIES = 1_000
"""Entries of leaving consumers that are returned before other tasks have a turn."""


class DispatcherOwner(Protocol):
    """A subscription, as its dispatcher calls it."""

    name: str
    pending: PendingAcks

    @property
    def is_full(self) -> bool:
        """True if no more entries may be delivered until some of the delivered ones are acknowledged."""

    def live_mask(self, entry: DeliverableEntry) -> int:
        """Return the slots of an entry that exist and are not acknowledged, as bits."""

    def deliver(
        self, consumer: Consumer, entry: DeliverableEntry, live_mask: int, ack_start: int, group: Group
    ) -> None:
        """Send an entry to a consumer, of which it delivers the slots in `live_mask`, and keep the entry until it is
        acknowledged. Its acknowledgement covers the offsets from `ack_start` on."""

    def release_all_pending(self) -> None:
        """Remove all pending entries from their consumers: they are read and delivered again."""


class Dispatcher:
    """The dispatcher of one subscription: it delivers entries to the consumers. For the event loop alone."""

    def __init__(
        self, deliveries: DispatcherOwner, position: SubscriptionPosition, topic: ServedTopic, first: Consumer
    ) -> None:
        """Make a dispatcher without consumers. `first`: the first consumer, whose type and key-shared mode later ones
        share. The caller adds it by `add`."""
        self.type = first.type
        self._deliveries = deliveries
        self._position = position
        self._topic = topic
        self.is_individual = first.type.is_individual
        self._by_key = first.type is SubscriptionType.KEY_SHARED
        self._waiting = WaitingEntries()
        self._assignment = Assignment(first, topic.name.partition, self._can_receive)
        self._ahead = ReadAhead(topic, position)
        self._generation = 0
        """The number of rewinds and pauses: a read that began before one is dropped."""
        self.is_delivering = False
        """True while the loop continues as soon as it has its turn."""
        self._is_paused = False
        self._returning = 0
        """The number of returns of entries in progress. Nothing is delivered meanwhile, for the order."""
        self._wake_event = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # Consumers

    def check_compatible(self, consumer: Consumer) -> None:
        """Raise IncompatibleKeySharedConsumer for a consumer that does not fit the others."""
        self._assignment.check_compatible(consumer)

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self._assignment.consumers

    @property
    def active(self) -> Consumer | None:
        """The consumer that receives all messages; None: there is none, or the type is not a single active one."""
        return self._assignment.active

    @property
    def delayed_count(self) -> int:
        """The number of entries that wait for their delivery time."""
        return len(self._waiting.delayed)

    def add(self, consumer: Consumer) -> None:
        """Add a consumer, and start to deliver entries to it."""
        before = self.active
        self._assignment.add(consumer)
        self._is_paused = False
        self._apply_active_change(before, consumer)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"dispatch {self._deliveries.name}")
        self.wake()

    def remove(self, *consumers: Consumer) -> None:
        """Remove several consumers in one step. Others receive the entries that they have not acknowledged; this is not
        counted as a redelivery."""
        before = self.active
        self._assignment.remove(*consumers)
        if self.is_individual:
            self._requeue_entries(chain.from_iterable(consumer.pending.values() for consumer in consumers))
        self._apply_active_change(before, None)
        self.wake()

    def redeliver(self, consumer: Consumer, keys: Iterable[EntryKey] | None) -> None:
        """Deliver entries of a consumer again, and count the redelivery. `keys` None: all that it has not acknowledged.

        For a single active consumer: all, whatever the keys, without a count; an inactive one is ignored.
        """
        if not self.is_individual:
            if consumer is self.active:
                self._deliveries.release_all_pending()
                self.rewind()
            return
        held = consumer.pending
        entries = held.values() if keys is None else [held[key] for key in keys if key in held]
        returned = []
        for pending in entries:
            if not pending.is_returned:  # a request before this one may still return it
                pending.is_returned = True
                pending.redeliveries += 1
                returned.append(pending)
        self._requeue_entries(returned)
        self.wake()

    def note_entry_left_consumer(self, pending: PendingAck) -> None:
        """Note that a consumer has lost an entry: it was acknowledged, returned or dropped. After the last one of a key
        another consumer may receive the key."""
        self._assignment.note_entry_left_consumer(pending.group)

    def cancel_redelivery(self, pending: PendingAck) -> None:
        """Remove an entry that is wholly acknowledged from those that wait for their redelivery."""
        self._waiting.cancel_redelivery(pending.offset)

    def wake(self) -> None:
        """Wake the delivery loop, because some entry may be deliverable now. Cheap and idempotent."""
        self._waiting.queue.recheck_groups()
        self._assignment.recheck_consumers()
        self._wake_event.set()

    def pause(self) -> None:
        """Stop the delivery until a consumer is added, because the subscription's position is about to move."""
        self._is_paused = True
        self._generation += 1
        self._ahead.discard_read_result()

    def rewind(self) -> None:
        """Deliver again from the first message that is not acknowledged. Entries that wait are read again."""
        self._generation += 1
        self._ahead.rewind()
        self._waiting.clear()
        self._assignment.clear_partial_chunks()
        self._note_memory()
        self.wake()

    def release_memory(self) -> None:
        """Drop the content of all entries that are not delivered yet from memory; it is read again when it is
        needed."""
        self._ahead.release_memory()
        self._waiting.release_memory()

    async def close(self) -> None:
        """End the delivery loop and its reads."""
        if self._alarm is not None:
            self._alarm.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._topic.page_budget.remove_holder(self)
        await self._ahead.close()

    def _note_memory(self) -> None:
        """Report the bytes of the entries in memory to the budget of all subscriptions."""
        self._topic.page_budget.set_held_bytes(self, self._ahead.bytes + self._waiting.bytes)

    def _apply_active_change(self, before: Consumer | None, joined: Consumer | None) -> None:
        """Deliver again from the cursor if the active consumer is not `before` any more. Report to failover consumers
        as a broker does: a change to all of them, the present state to `joined`, which was just added."""
        if self.is_individual:
            return
        active = self.active
        if active is not before:
            if active is not None:
                self._position.read_compacted = active.options.read_compacted
            self._deliveries.release_all_pending()
            self.rewind()
        if self.type is SubscriptionType.FAILOVER:
            present = () if joined is None else (joined,)
            for consumer in present if active is before else self.consumers:
                consumer.channel.set_active(consumer is active)

    def _requeue_entries(self, entries: Iterable[PendingAck]) -> None:
        """Queue entries that consumers return for their next delivery: some now, the others in later turns of the event
        loop."""
        remaining = iter(list(entries))
        if self._requeue_some(remaining):
            self._returning += 1
            self._topic.spawn(repeat_while(partial(self._requeue_some, remaining), self._finish_requeue))

    def _requeue_some(self, remaining: Iterator[PendingAck]) -> bool:
        """Take up to `RETURNED_ENTRIES` entries from their consumers, and queue them for their next delivery. Return
        whether more may remain."""
        count = 0
        for pending in islice(remaining, RETURNED_ENTRIES):
            count += 1
            if pending.consumer is not None:
                self._deliveries.pending.release_from_consumer(pending)
                self._waiting.add_returned(pending)
        return count == RETURNED_ENTRIES

    def _finish_requeue(self) -> None:
        self._returning -= 1
        self.wake()

    # The loop

    async def _run(self) -> None:
        """Run the delivery loop until its task is cancelled. An error is logged, and the loop continues."""
        while True:
            self._wake_event.clear()
            try:
                is_ready = not self._is_paused and not self._returning and self._assignment.any_can_receive()
                has_progress = is_ready and await self._step()
            except StateMayBeStale as error:
                # Pulsar's protocol has no error for this: the client continues with the messages that exist (R7).
                self._topic.stale_reader_count += 1
                LOG.warning("the compacted reader %s continues: %s", self._deliveries.name, error)
                self._ahead.reopen_reader()
                has_progress = True
            except Exception as error:
                self._log_failure(error)
                self._topic.page_budget.wake_refused()
                await asyncio.sleep(RETRY_SECONDS)
                has_progress = True
            if has_progress:
                self.is_delivering = True
                await asyncio.sleep(0)
                self.is_delivering = False
            else:
                self._topic.page_budget.wake_refused()
                await self._wake_event.wait()

    def _log_failure(self, error: Exception) -> None:
        if isinstance(error, CompactorError):
            LOG.warning("%s of %s cannot be read now: %s", self._deliveries.name, self._topic.name, error)
        else:
            LOG.error("dispatching %s of %s failed", self._deliveries.name, self._topic.name, exc_info=error)

    async def _step(self) -> bool:
        """Deliver some entries, waiting ones before new ones, or read some. Return False if neither is possible now."""
        if self.is_individual:
            self._waiting.queue_due(self._topic.clock.now_ms())
            self._set_alarm()
            if await self._deliver_waiting():
                return True
        has_unchecked_groups = self._waiting.queue.has_unchecked_groups
        return (self._has_room() and await self._deliver_new()) or has_unchecked_groups

    def _can_receive(self, consumer: Consumer) -> bool:
        """Return whether a consumer may be sent a message: it can receive, and has not too many unacknowledged ones."""
        limit = self._topic.max_unacked_messages if self.is_individual else 0
        return consumer.can_receive and (not limit or consumer.unacked < limit)

    def _has_room(self) -> bool:
        """Return whether the subscription may keep another new entry, as pending or as waiting."""
        if not self.is_individual:
            return True
        return not self._returning and not self._deliveries.is_full and not self._waiting.is_full

    # New entries

    async def _deliver_new(self) -> bool:
        """Deliver entries of the page that was read, and read a page if it is empty. Return False if no entry was
        processed."""
        ahead = self._ahead
        if ahead.first is None and not await self._fill_page():
            return False
        count = 0
        while ahead.first is not None and count < ROUND_ENTRIES and self._has_room():
            entry = ahead.first
            ack_start = entry.offset if ahead.gap_from < 0 else min(ahead.gap_from, entry.offset)
            live_mask = self._deliveries.live_mask(entry)
            if live_mask and not self._deliver_or_queue(entry, live_mask, ack_start):
                break
            ahead.remove_first()
            count += 1
        if count:
            self._note_memory()
        return count > 0

    def _deliver_or_queue(self, entry: DeliverableEntry, live_mask: int, ack_start: int) -> bool:
        """Deliver a new entry, or queue it until it is due or a consumer can receive it. Return False if it stays in
        the page: no consumer can receive it, and it belongs to no group whose other entries could overtake it."""
        header = delivery_header(entry.data, self._by_key) if self.is_individual else _PLAIN
        if header.deliver_at and header.deliver_at > self._topic.clock.now_ms():
            self._waiting.add_delayed(entry.offset, header.deliver_at, ack_start)
            self._set_alarm()
            return True
        consumer = None if self._waiting.queue.blocks(header.group) else self._assignment.choose(header)
        if consumer is None:
            if header.group is None:
                return False
            self._waiting.add_held(entry, header.group, ack_start)
            return True
        self._deliver(consumer, entry, live_mask, ack_start, header)
        return True

    def _deliver(
        self, consumer: Consumer, entry: DeliverableEntry, live_mask: int, ack_start: int, header: DeliveryHeader
    ) -> None:
        self._assignment.note_delivered(header, consumer)
        self._deliveries.deliver(consumer, entry, live_mask, ack_start, header.group)

    async def _fill_page(self) -> bool:
        """Read a page of new entries. Return False if the topic has no more entries, or memory admits no read, now."""
        try:
            return await self._ahead.fill(self._try_admit_read)
        finally:
            self._note_memory()

    def _try_admit_read(self) -> bool:
        """Return whether memory admits a read. If not, the delivery loop is woken when it may."""
        return self._topic.page_budget.try_admit(self)

    # Waiting entries

    def _set_alarm(self) -> None:
        """Set the timer that wakes the delivery loop when the next delayed entry is due."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = self._waiting.next_due_ms
        if due is not None:
            seconds = max(0, due - self._topic.clock.now_ms()) / 1000
            self._alarm = asyncio.get_running_loop().call_later(seconds, self.wake)

    async def _deliver_waiting(self) -> bool:
        """Deliver waiting entries, from the lowest deliverable offset on. Return whether another step may make
        progress: an entry was delivered or dropped, or the state changed during the read."""
        offset = self._waiting.queue.next(self._assignment.is_deliverable)
        if offset is None:
            return False
        generation = self._generation
        entries = self._waiting.entries_in_memory(offset) or self._topic.tail.read(offset)
        if not entries:
            if not self._try_admit_read():
                return False
            entries = await self._topic.store.run(self._read_entries, offset)
            if generation != self._generation or self._returning:
                return True
            self._waiting.set_replay_page(entries)
            self._note_memory()
        if not entries or entries[0].offset != offset:  # compaction or a trim has removed it
            pending = self._waiting.drop(offset)
            if pending is not None:
                self._deliveries.pending.remove(pending.entry_key)
            return True
        count = 0
        for entry in entries:
            if count == ROUND_ENTRIES:
                break
            if self._waiting.queue.is_next(entry.offset):
                count += self._deliver_waiting_entry(entry)
        self._note_memory()
        return count > 0

    def _deliver_waiting_entry(self, entry: DeliverableEntry) -> bool:
        """Deliver a waiting entry, or drop it if it is acknowledged. Return False if it stays as it is."""
        live_mask = self._deliveries.live_mask(entry)
        if not live_mask:
            self._waiting.drop(entry.offset)
            return True
        header = delivery_header(entry.data, self._by_key)
        consumer = self._assignment.choose(header)
        if consumer is None:  # its own consumer cannot receive now; other groups go on
            return self._waiting.queue.set_group_if_missing(entry.offset, header.group)
        ack_start = self._waiting.ack_start(entry.offset)
        self._waiting.drop(entry.offset)
        self._deliver(consumer, entry, live_mask, ack_start, header)
        return True

    def _read_entries(self, offset: int) -> list[DeliverableEntry]:
        """Return a page of the topic's entries from an offset on. For threads."""
        reader = self._topic.storage.entry_reader(StartOffset(offset) if offset else EARLIEST)
        try:
            return reader.read()
        finally:
            reader.close()


_PLAIN = DeliveryHeader()
