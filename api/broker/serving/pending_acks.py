"""Entries of a subscription that were delivered and are not acknowledged, by id and in the order of their offsets.

    add             an entry is delivered, for the first time or again
    remove          the topic does not have it any more

An entry that is wholly acknowledged is removed by `remove_acknowledged`. A cumulative acknowledgement removes all up to
an offset by `remove_acknowledged_through`, which visits each once, as many as a step may take.

An entry whose consumer has left, or has returned it, stays until its next delivery: a late acknowledgement finds it.
Ids of acknowledged entries are kept as Roaring bitmaps: a repeated acknowledgement costs a look-up in memory, and never
a read of the topic.

Must not know: cursors, connections, the topic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple, Protocol

from pyroaring import BitMap

from storage.model import LogPosition, MessageId

EntryKey = tuple[int, int]
"""Ledger id and entry id."""
Group = int | str | None
"""The name of entries that keep their order: the hash of a key, or the uuid of a chunked message. None: no group."""
MAX_LEDGERS = 64
"""Ledgers whose acknowledged entry ids are kept."""
MAX_LATE = 100_000
"""Entries that are kept for a late acknowledgement, after their consumer has left."""
STEP_ENTRIES = 1_000
"""Acknowledged entries that one step of the event loop removes: 100,000 take 0.4 s."""
STEP_SLOTS = 1_000_000
"""Slots of entries that one step of the event loop acknowledges or removes, besides those of its last entry: an entry
has up to 262,144, which take 0.4 ms, and 2 ms if every other one is acknowledged."""
_MAX_ENTRY_ID = 1 << 32


class PendingAckOwner(Protocol):
    """The consumer of pending entries: the attributes that they change."""

    pending: dict[EntryKey, PendingAck]
    unacked: int


@dataclass(slots=True, eq=False)
class PendingAck:
    """An entry that was delivered and is not wholly acknowledged.

    `ack_start`: the offset at which its acknowledgement begins, at or before `offset`. `live_mask`: the slots that are
    not acknowledged, as bits. `consumer`: the one that has it; None: it waits for its next delivery. `redeliveries`:
    the number of times that a consumer asked for it again. `is_returned`: its consumer has asked, and loses it now.
    """

    entry_key: EntryKey
    ack_start: int
    offset: int
    messages: int
    batched: bool
    live_mask: int
    consumer: PendingAckOwner | None
    redeliveries: int = 0
    group: Group = None
    is_returned: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.messages

    def position(self, slot: int) -> LogPosition:
        """Return the position of the message in a slot, counted from 0."""
        ledger_id, entry_id = self.entry_key
        return LogPosition(self.offset + slot, MessageId(ledger_id, entry_id, -1, slot if self.batched else -1))


class RemovedEntries(NamedTuple):
    """Acknowledged entries that one step of the event loop has removed. `has_more`: others may remain."""

    entries: list[PendingAck]
    has_more: bool


class PendingAcks:
    """The entries of one subscription that were delivered and are not wholly acknowledged."""

    def __init__(self) -> None:
        self.on_entry_left_consumer: Callable[[PendingAck], object] | None = None
        """Called with each entry that leaves its consumer."""
        self._by_key: dict[EntryKey, PendingAck] = {}
        self._late: dict[EntryKey, PendingAck] = {}
        """Entries that will be read and delivered again, and may be acknowledged before that."""
        self._order: list[tuple[int, EntryKey]] = []
        """A heap by offset. A removed entry stays in it until it comes to the top."""
        self._acknowledged_ids: dict[int, BitMap] = {}

    def __len__(self) -> int:
        """Return the number of entries that wait for an acknowledgement or for their next delivery."""
        return len(self._by_key)

    def get(self, key: EntryKey) -> PendingAck | None:
        """Return the entry with this id, also while it waits for its next delivery; None: it is not pending."""
        return self._by_key.get(key) or self._late.get(key)

    def add(self, pending: PendingAck) -> None:
        """Add an entry that is delivered, or replace its earlier delivery."""
        key = pending.entry_key
        self._late.pop(key, None)
        if key not in self._by_key:
            heapq.heappush(self._order, (pending.offset, key))
        self._by_key[key] = pending

    def remove(self, key: EntryKey) -> PendingAck | None:
        """Remove a pending entry, also from its consumer, and return it; None: it is not pending."""
        pending = self._by_key.pop(key, None) or self._late.pop(key, None)
        if pending is not None:
            self.release_from_consumer(pending)
        if len(self._order) > 2 * len(self._by_key) + 1_000:
            self._order = [(item.offset, item.entry_key) for item in self._by_key.values()]
            heapq.heapify(self._order)
        return pending

    def release_from_consumer(self, pending: PendingAck) -> None:
        """Remove an entry from its consumer, if it has one; it stays pending and waits for its next delivery."""
        consumer = pending.consumer
        if consumer is None:
            return
        if consumer.pending.pop(pending.entry_key, None) is not None:
            consumer.unacked -= pending.live_mask.bit_count()
        if self.on_entry_left_consumer is not None:
            self.on_entry_left_consumer(pending)
        pending.consumer = None

    def remove_acknowledged(self, pending: PendingAck) -> None:
        """Remove a pending entry that is wholly acknowledged, and keep its id for `is_acknowledged`."""
        ledger_id, entry_id = pending.entry_key
        if 0 <= entry_id < _MAX_ENTRY_ID:
            entries = self._acknowledged_ids.get(ledger_id)
            if entries is None:
                entries = self._add_ledger(ledger_id)
            entries.add(entry_id)
        self.remove(pending.entry_key)

    def _add_ledger(self, ledger_id: int) -> BitMap:
        """Add an empty bitmap for the acknowledged entry ids of a ledger, and return it. Beyond `MAX_LEDGERS` that of
        the oldest ledger is dropped."""
        if len(self._acknowledged_ids) >= MAX_LEDGERS:
            del self._acknowledged_ids[next(iter(self._acknowledged_ids))]
        entries = self._acknowledged_ids[ledger_id] = BitMap()
        return entries

    def is_acknowledged(self, key: EntryKey) -> bool:
        """Return whether the entry is known to be wholly acknowledged. False: unknown, or not acknowledged."""
        entries = self._acknowledged_ids.get(key[0])
        return entries is not None and 0 <= key[1] < _MAX_ENTRY_ID and key[1] in entries

    def oldest(self) -> PendingAck | None:
        """Return the entry with the lowest offset, except late ones; None: there is none."""
        while self._order:
            pending = self._by_key.get(self._order[0][1])
            if pending is not None:
                return pending
            heapq.heappop(self._order)
        return None

    def remove_acknowledged_through(self, offset: int) -> RemovedEntries:
        """Remove entries that end at or before `offset`, because a cumulative acknowledgement covers them: in their
        order, as many as one step of the event loop may take. Return them, and whether more may remain."""
        removed: list[PendingAck] = []
        slots = 0
        for count, pending in enumerate(self._pop_through(offset), 1):
            if pending is not None:
                self.remove_acknowledged(pending)
                removed.append(pending)
                slots += pending.messages
            if count >= STEP_ENTRIES or slots >= STEP_SLOTS:
                return RemovedEntries(removed, True)
        return RemovedEntries(removed, False)

    def _pop_through(self, offset: int) -> Iterator[PendingAck | None]:
        """Yield entries that end at or before `offset`: those in order, and up to `STEP_ENTRIES` late ones. None stands
        for an entry that was removed before. The caller removes each before it asks for the next."""
        while self._order:
            pending = self._by_key.get(self._order[0][1])
            if pending is not None and pending.end > offset:
                break
            heapq.heappop(self._order)
            yield pending
        # A list, because a search for the first item of a dictionary passes those that were removed before it.
        yield from list(islice(takewhile(lambda late: late.end <= offset, self._late.values()), STEP_ENTRIES))

    def release_all(self) -> None:
        """Remove all entries from their consumers: they are read and delivered again, from the cursor on.

        Their counts of redeliveries begin again. A late acknowledgement still finds an entry.
        """
        holders: dict[int, PendingAckOwner] = {}
        for pending in self._by_key.values():
            if pending.consumer is not None:
                holders[id(pending.consumer)] = pending.consumer
                if self.on_entry_left_consumer is not None:
                    self.on_entry_left_consumer(pending)
                pending.consumer = None
            pending.redeliveries = 0
        for holder in holders.values():
            holder.pending.clear()
            holder.unacked = 0
        self._late = {**self._by_key, **self._late} if self._late else self._by_key
        while len(self._late) > MAX_LATE:
            self._late.popitem()
        self._by_key, self._order = {}, []

    def clear(self) -> None:
        """Remove all entries and the ids of acknowledged ones, because the subscription's position has moved."""
        self.release_all()
        self._late, self._acknowledged_ids = {}, {}
