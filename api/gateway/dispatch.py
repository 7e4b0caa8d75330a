"""Dispatching: which consumer of a subscription gets which entry, and when.

    SingleActiveDispatcher   exclusive, failover: one consumer gets all, in order
    SharedDispatcher         shared: whoever has permits, in turn
    KeySharedDispatcher      key-shared: all messages of a key go to one consumer, in order

One task a subscription. It takes a page of entries, from the topic's tail in memory if they are there, else read by a
thread (entry_pages.py), and hands them out while consumers take them; it takes no more before that page is gone. So
what a subscription holds is one page, and a slow consumer slows only its own subscription. When
nothing can be done it waits until it is woken: by permits, a socket that takes bytes again, new entries, a change of
consumers.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, insort
from collections import Counter, deque
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from api.gateway.commands import Refused
from api.gateway.consumers import Consumer
from api.gateway.entry_pages import EntryPages
from api.gateway.pulsar_api_pb2 import CommandSubscribe, KeySharedMeta, ServerError
from api.http.problems import RestException
from api.http.thread_pools import WaitsFor
from api.messaging.key_routing import murmur3_32
from storage.entries.entry import parse
from storage.entries.rebuild import DeliverableEntry
from storage.errors import CompactorError, InvalidRecord, StateMayBeStale
from storage.ledger.seek import StartOffset
from storage.model import EARLIEST

if TYPE_CHECKING:
    from api.gateway.subscriptions import PendingEntry, Subscription

LOG = logging.getLogger(__name__)
RETRY_SECONDS = 1.0
"""How long to wait after a read that failed."""
ROUND_ENTRIES = 64
"""Entries that are handed out before other tasks have a turn."""
HASH_SLOTS = 65_536
"""Key hashes of a key-shared subscription, as in Pulsar."""
RING_POINTS = 100
"""Of each consumer in the ring of consistent hashing (Pulsar's subscriptionKeySharedConsistentHashingReplicaPoints)."""
MOST_HELD_BACK = 1_000
"""Entries of a key-shared subscription that may wait for their consumer while others continue."""


class Dispatcher:
    """Hands entries of one subscription to its consumers; see the subclasses for which gets which."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.consumers: list[Consumer] = []
        self._woken = asyncio.Event()
        self._page: deque[DeliverableEntry] = deque()
        self._pages: EntryPages | None = None
        self._next: int | None = None
        """The offset that is read next, once the reader has come to the end; None: not known."""
        self._at_end = False
        self._gap_from = -1
        """Offsets from here on, up to the next entry, are acknowledged with it; -1: none."""
        self._generation = 0
        self._paused = False
        self._task: asyncio.Task[None] | None = None

    # Consumers

    def check(self, consumer: Consumer) -> None:
        """Raises Refused for a consumer that does not fit those that are there."""

    def add(self, consumer: Consumer) -> None:
        """Take a consumer in."""
        self.consumers.append(consumer)
        self._paused = False
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"dispatch {self.subscription.name}")
        self.wake()

    def remove(self, consumer: Consumer) -> None:
        """A consumer is gone: what it has not acknowledged is delivered again."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        self.redeliver_all(consumer)
        self.wake()

    def wake(self) -> None:
        """Something may be done now."""
        self._woken.set()

    def pause(self) -> None:
        """Deliver nothing until a consumer comes: the position is being changed."""
        self._paused = True
        self._generation += 1

    def rewind(self) -> None:
        """Begin again at the first message that is not acknowledged."""
        self._generation += 1
        self._page.clear()
        self._close_pages()
        self._next, self._at_end, self._gap_from = None, False, -1
        self.wake()

    async def close(self) -> None:
        """End the task."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        pages, self._pages = self._pages, None
        if pages is not None:
            await pages.close()

    def _close_pages(self) -> None:
        pages, self._pages = self._pages, None
        if pages is not None:
            self.topic.spawn(pages.close())

    # What subclasses decide

    def redeliver(self, consumer: Consumer, pending: list[PendingEntry]) -> None:
        """Deliver entries again that a consumer asks for."""
        raise NotImplementedError

    def redeliver_all(self, consumer: Consumer) -> None:
        """Deliver again all that a consumer has not acknowledged."""
        raise NotImplementedError

    def settled(self, pending: PendingEntry) -> None:
        """An entry is acknowledged."""

    def _wants_more(self) -> bool:
        """Whether any consumer takes messages now."""
        raise NotImplementedError

    def _has_room(self) -> bool:
        """Whether one more entry can be remembered until it is acknowledged."""
        return True

    def _consumer_for(self, entry: DeliverableEntry) -> Consumer | None:
        """Who gets an entry now; None: nobody can take it yet."""
        raise NotImplementedError

    # The task

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                did_something = not self._paused and self._wants_more() and await self._step()
            except StateMayBeStale as error:
                # Pulsar's protocol cannot tell a client so; it continues with what is there, as a broker's would.
                self.topic.stale_readers += 1
                LOG.warning("the compacted reader %s continues: %s", self.subscription.name, error)
                self._restart_at_position()
                did_something = True
            except (CompactorError, RestException) as error:
                LOG.warning("%s of %s cannot be read now: %s", self.subscription.name, self.topic.name, error)
                await asyncio.sleep(RETRY_SECONDS)
                did_something = True
            except Exception:
                LOG.exception("dispatching %s of %s failed", self.subscription.name, self.topic.name)
                await asyncio.sleep(RETRY_SECONDS)
                did_something = True
            if did_something:
                await asyncio.sleep(0)
            else:
                await self._woken.wait()

    async def _step(self) -> bool:
        """Hand out some entries, or read some; whether anything was done."""
        if not self._page and not await self._read():
            return False
        done = 0
        while self._page and done < ROUND_ENTRIES and self._has_room():
            entry = self._page[0]
            live = self.subscription.live_slots(entry)
            if live:
                consumer = self._consumer_for(entry)
                if consumer is None:
                    break
                self._page.popleft()
                self._deliver(consumer, entry, live, entry.offset if self._gap_from < 0 else self._gap_from)
            else:
                self._page.popleft()
            self._gap_from = entry.end
            done += 1
        return done > 0

    def _deliver(self, consumer: Consumer, entry: DeliverableEntry, live: int, first: int) -> PendingEntry:
        pending = self.subscription.delivered(entry, min(first, entry.offset), live, consumer)
        consumer.send(entry, live, pending.redeliveries, self.topic.clock.now_ms())
        return pending

    async def _read(self) -> bool:
        """Fill the page; whether there is anything in it. What was read before a rewind is dropped."""
        generation = self._generation
        if self._at_end and self._next is not None:
            found = self.topic.tail.read(self._next)
            if found is not None and not found and self.topic.tail_is_whole:
                return False
            if found:
                self._page.extend(found)
                self._next = found[-1].end
                return True
        if self._pages is None:
            start = self.subscription.next_unacked if self._next is None else StartOffset(self._next)
            if self._gap_from < 0 and isinstance(start, StartOffset):
                self._gap_from = start.offset
            elif self._gap_from < 0 and start == EARLIEST:
                self._gap_from = 0
            open_reader = partial(self.topic.storage.entry_reader, start, self.subscription.read_compacted)
            self._pages = EntryPages(self.topic.pools[WaitsFor.STORE], open_reader)
        entries, following = await self._pages.next(self._next)
        if generation != self._generation:
            return True
        self._at_end = not entries
        self._next = following if self._at_end else None
        if self._at_end and following is not None and self._gap_from < 0:
            self._gap_from = following
        self._page.extend(entries)
        return bool(entries)

    def _restart_at_position(self) -> None:
        self._close_pages()
        position = self._page[-1].end if self._page else self._gap_from
        self._next, self._at_end = (position if position >= 0 else None), False


class SingleActiveDispatcher(Dispatcher):
    """One consumer gets all messages, in order: the only one; of a failover subscription one of those of the first
    priority, by name, which the number of the partition chooses, so that partitions spread over consumers."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._active: Consumer | None = None

    @property
    def active(self) -> Consumer | None:
        return self._active

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        self._elect()

    def remove(self, consumer: Consumer) -> None:
        super().remove(consumer)
        self._elect()

    def redeliver(self, consumer: Consumer, pending: list[PendingEntry]) -> None:
        self.redeliver_all(consumer)

    def redeliver_all(self, consumer: Consumer) -> None:
        if consumer is not self._active:
            return
        for item in self.subscription.pending.values():
            item.redeliveries += 1
        consumer.unacked = 0
        self.rewind()

    def _elect(self) -> None:
        before = self._active
        best = min((item.priority for item in self.consumers), default=0)
        equal = sorted((item for item in self.consumers if item.priority == best), key=lambda item: item.name)
        self._active = equal[max(self.topic.name.partition, 0) % len(equal)] if equal else None
        if self._active is before:
            changed = [consumer for consumer in self.consumers[-1:] if consumer is not before]
        else:
            if self._active is not None:
                self.subscription.read_compacted = self._active.read_compacted
            self.rewind()
            changed = list(self.consumers)
        for consumer in changed:
            if consumer.sub_type == CommandSubscribe.Failover:
                consumer.connection.tell_active(consumer, consumer is self._active)

    def _wants_more(self) -> bool:
        return self._active is not None and self._active.takes

    def _consumer_for(self, entry: DeliverableEntry) -> Consumer | None:
        return self._active if self._active is not None and self._active.takes else None


class SharedDispatcher(Dispatcher):
    """Each entry goes to any consumer that takes it, in turn; what comes back goes to whoever takes it then."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._again: dict[int, PendingEntry] = {}
        """What is to be delivered again, by offset."""
        self._turn = 0

    def redeliver(self, consumer: Consumer, pending: list[PendingEntry]) -> None:
        for item in pending:
            if item.consumer is consumer:
                consumer.unacked -= item.live.bit_count()
                item.consumer = None
                item.redeliveries += 1
                self._again[item.offset] = item
        self.wake()

    def redeliver_all(self, consumer: Consumer) -> None:
        self.redeliver(consumer, [item for item in self.subscription.pending.values() if item.consumer is consumer])

    def settled(self, pending: PendingEntry) -> None:
        self._again.pop(pending.offset, None)
        self.wake()  # there may be room now

    def rewind(self) -> None:
        self._again.clear()
        super().rewind()

    async def _step(self) -> bool:
        return await self._deliver_again() or (self._has_room() and await super()._step())

    def _has_room(self) -> bool:
        return not self.subscription.is_full

    def _first_again(self) -> int | None:
        """The offset of what is to be delivered again first; None: there is nothing."""
        return min(self._again, default=None)

    async def _deliver_again(self) -> bool:
        """Deliver what is to be delivered again, from the lowest offset on; whether any was."""
        generation, first = self._generation, self._first_again()
        if first is None:
            return False
        found = self.topic.tail.read(first)
        if not found:
            found = await self.topic.pools[WaitsFor.STORE].run(self._read_from, first)
        if generation != self._generation:
            return True
        if not found or found[0].end <= first or found[0].offset > first:
            gone = self._again.pop(first, None)
            if gone is not None:  # compaction or a trim took it
                self.subscription.pending.pop(gone.entry_key, None)
            return True
        done = False
        for entry in found:
            pending = self._again.get(entry.offset)
            if pending is None:
                continue
            live = pending.live & entry.live
            consumer = self._consumer_for(entry)
            if consumer is None:
                continue
            del self._again[entry.offset]
            done = True
            if live:
                self._deliver(consumer, entry, live, pending.first)
            else:
                self.subscription.pending.pop(pending.entry_key, None)
        return done

    def _read_from(self, offset: int) -> list[DeliverableEntry]:
        reader = self.topic.storage.entry_reader(StartOffset(offset) if offset else EARLIEST)
        try:
            return reader.read()
        finally:
            reader.close()

    def _takes(self, consumer: Consumer) -> bool:
        """Whether a consumer takes messages, and may have more without acknowledging them."""
        most = self.topic.settings.max_unacked_messages
        return consumer.takes and (not most or consumer.unacked < most)

    def _taking(self) -> list[Consumer]:
        taking = [item for item in self.consumers if self._takes(item)]
        best = min((item.priority for item in taking), default=0)
        return [item for item in taking if item.priority == best]

    def _wants_more(self) -> bool:
        return bool(self._taking())

    def _consumer_for(self, entry: DeliverableEntry) -> Consumer | None:
        taking = self._taking()
        if not taking:
            return None
        self._turn += 1
        return taking[self._turn % len(taking)]


class KeySharedDispatcher(SharedDispatcher):
    """The hash of a key names its consumer: by consistent hashing, so that few keys move when consumers change, or in
    the ranges that consumers ask for (sticky).

    When consumers change, a hash stays with whom it was for as long as that one has messages of it that are not
    acknowledged; what comes for it meanwhile is held back. So is what comes behind a message that is to be delivered
    again.
    """

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._assigned: dict[int, Consumer] = {}
        """By key hash, the consumer that has messages of it."""
        self._held: Counter[int] = Counter()
        """By key hash, entries that are not acknowledged."""
        self._back: deque[tuple[int, DeliverableEntry, int]] = deque()
        """What is held back: key hash, entry, and where its acknowledgement begins."""
        self._ring: list[tuple[int, int, Consumer]] = []
        """Points of the consumers among the key hashes, in order; a consumer has those before each, up to another's."""
        self._joined = 0

    def add(self, consumer: Consumer) -> None:
        self._joined += 1
        for number in range(RING_POINTS):
            point = murmur3_32(f"{consumer.name} {self._joined} {number}".encode()) % HASH_SLOTS
            insort(self._ring, (point, self._joined, consumer), key=itemgetter(0, 1))
        super().add(consumer)

    def remove(self, consumer: Consumer) -> None:
        self._ring = [item for item in self._ring if item[2] is not consumer]
        super().remove(consumer)

    def settled(self, pending: PendingEntry) -> None:
        super().settled(pending)
        if pending.key_hash is not None and pending.consumer is not None:
            self._let_go(pending.key_hash)

    def redeliver(self, consumer: Consumer, pending: list[PendingEntry]) -> None:
        for item in pending:
            if item.consumer is consumer and item.key_hash is not None:
                self._let_go(item.key_hash)
        super().redeliver(consumer, pending)

    def rewind(self) -> None:
        self._assigned.clear()
        self._held.clear()
        self._back.clear()
        super().rewind()

    def _let_go(self, key_hash: int) -> None:
        self._held[key_hash] -= 1
        if self._held[key_hash] <= 0:
            del self._held[key_hash]
            self._assigned.pop(key_hash, None)

    def _deliver(self, consumer: Consumer, entry: DeliverableEntry, live: int, first: int) -> PendingEntry:
        pending = super()._deliver(consumer, entry, live, first)
        pending.key_hash = hash_of(entry)
        self._assigned[pending.key_hash] = consumer
        self._held[pending.key_hash] += 1
        return pending

    async def _step(self) -> bool:
        """As of the others, but what has to wait for its consumer is put aside, so that the others continue."""
        if await self._deliver_again() or self._deliver_back():
            return True
        has_room = self._has_room() and len(self._back) < MOST_HELD_BACK
        if not has_room or not (self._page or await self._read()):
            return False
        blocked = self._hashes_again() | {key_hash for key_hash, _, _ in self._back}
        done = 0
        while self._page and done < ROUND_ENTRIES and self._has_room() and len(self._back) < MOST_HELD_BACK:
            entry = self._page.popleft()
            first, self._gap_from = (entry.offset if self._gap_from < 0 else self._gap_from), entry.end
            done += 1
            live = self.subscription.live_slots(entry)
            if not live:
                continue
            key_hash = hash_of(entry)
            consumer = None if key_hash in blocked else self._taker_of(key_hash)
            if consumer is None:
                blocked.add(key_hash)
                self._back.append((key_hash, entry, first))
            else:
                self._deliver(consumer, entry, live, first)
        return done > 0

    def _deliver_back(self) -> bool:
        """Deliver what was held back and can go now, keys in their order; whether any did."""
        blocked = self._hashes_again()
        kept: deque[tuple[int, DeliverableEntry, int]] = deque()
        done = False
        for key_hash, entry, first in self._back:
            consumer = None if key_hash in blocked or not self._has_room() else self._taker_of(key_hash)
            if consumer is None:
                blocked.add(key_hash)
                kept.append((key_hash, entry, first))
                continue
            done = True
            if live := self.subscription.live_slots(entry):
                self._deliver(consumer, entry, live, first)
        self._back = kept
        return done

    def _first_again(self) -> int | None:
        return min(
            (
                offset
                for offset, item in self._again.items()
                if item.key_hash is None or self._taker_of(item.key_hash) is not None
            ),
            default=None,
        )

    def _hashes_again(self) -> set[int]:
        return {item.key_hash for item in self._again.values() if item.key_hash is not None}

    def _consumer_for(self, entry: DeliverableEntry) -> Consumer | None:
        return self._taker_of(hash_of(entry))

    def _taker_of(self, key_hash: int) -> Consumer | None:
        """The consumer that takes a message with that key hash now; None: there is none."""
        wanted = self._owner_of(key_hash)
        assigned = self._assigned.get(key_hash)
        if wanted is None or (assigned is not None and assigned is not wanted):
            return None
        return wanted if self._takes(wanted) else None

    def _owner_of(self, key_hash: int) -> Consumer | None:
        if not self.consumers:
            return None
        if _is_sticky(self.consumers[0]):
            return next(
                (
                    consumer
                    for consumer in self.consumers
                    if consumer.key_shared is not None
                    and any(item.start <= key_hash <= item.end for item in consumer.key_shared.hash_ranges)
                ),
                None,
            )
        return self._ring[bisect_left(self._ring, key_hash, key=itemgetter(0)) % len(self._ring)][2]

    def check(self, consumer: Consumer) -> None:
        """Raises Refused for ranges that another consumer has, and for another mode than the others'."""
        if self.consumers and _is_sticky(self.consumers[0]) != _is_sticky(consumer):
            raise Refused(ServerError.ConsumerAssignError, "the subscription's consumers have another key-shared mode")
        if not _is_sticky(consumer):
            return
        assert consumer.key_shared is not None
        for wanted in consumer.key_shared.hash_ranges:
            for other in self.consumers:
                assert other.key_shared is not None
                for taken in other.key_shared.hash_ranges:
                    if wanted.start <= taken.end and taken.start <= wanted.end:
                        raise Refused(
                            ServerError.ConsumerAssignError,
                            f"the range {wanted.start}-{wanted.end} overlaps {taken.start}-{taken.end} of {other.name}",
                        )


def _is_sticky(consumer: Consumer) -> bool:
    return consumer.key_shared is not None and consumer.key_shared.mode == KeySharedMeta.Sticky


def hash_of(entry: DeliverableEntry) -> int:
    """The slot of an entry's key: of its ordering key, else of its key; of a batch those of its first message."""
    try:
        metadata, _ = parse(entry.data, checked=True)
    except InvalidRecord:
        return 0
    key = metadata.ordering_key if metadata.HasField("ordering_key") else metadata.partition_key
    return (murmur3_32(key) & 0x7FFFFFFF) % HASH_SLOTS


def dispatcher_of(subscription: Subscription, sub_type: CommandSubscribe.SubType) -> Dispatcher:
    """The dispatcher for consumers of that type."""
    if sub_type == CommandSubscribe.Shared:
        return SharedDispatcher(subscription)
    if sub_type == CommandSubscribe.KeyShared:
        return KeySharedDispatcher(subscription)
    return SingleActiveDispatcher(subscription)
