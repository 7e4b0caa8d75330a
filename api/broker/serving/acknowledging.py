"""Acknowledgements of one subscription, applied to its position and to the entries that its consumers have.

Delivered entries are kept with their offsets until they are acknowledged (pending_acks.py). With an entry the offsets
before it that no consumer receives are acknowledged, too: messages that compaction removed, markers. An acknowledgement
of an entry that is not kept any more is looked up in the topic, one at a time.

Mark-delete needs the id of its message. An entry that is acknowledged out of order leaves its id here, so mark-delete
moves to it later without a read of the topic.

For the event loop, except the functions that are marked for threads. Must not know: consumers' channels, dispatching.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from pyroaring import BitMap

from api.broker.serving.consumer import Consumer
from api.broker.serving.loop_turns import repeat_while
from api.broker.serving.pending_acks import STEP_SLOTS, EntryKey, PendingAck, PendingAcks
from api.broker.serving.position import SubscriptionPosition
from api.broker.serving.served_topic import ServedTopic
from storage.ack_ranges import bitmap_of, mask_of
from storage.cursor import Cursor
from storage.errors import Unavailable
from storage.ledger.rows import message_id as id_of_row
from storage.model import LogPosition, MessageId

MAX_LOOKUPS = 1_000
"""Acknowledgements of one subscription that may wait to be looked up in the topic."""
MAX_ACKED_IDS = 20_000
"""Ids of messages that were acknowledged out of order."""
_UINT64 = (1 << 64) - 1


class AckedEntry(NamedTuple):
    """A client's acknowledgement of one entry. `batch_index`: of a message in a batch; -1: none is named. `ack_set`:
    the slots that stay unacknowledged, as 64-bit words, the lowest slots first; empty: none."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    ack_set: Sequence[int] = ()

    @property
    def key(self) -> EntryKey:
        return self.ledger_id, self.entry_id


HasMore = bool
"""The result of a step: whether another step may find more to do."""
AcksToLookUp = list[AckedEntry]
"""Acknowledgements of entries that are not pending: their messages have to be looked up in the topic."""


class AckedMessages(NamedTuple):
    """Messages of one entry that are acknowledged: the offsets `first_offset` + i for each set bit i of `mask`. `last`:
    the position of the last one."""

    first_offset: int
    mask: int
    last: LogPosition


class Acknowledgements:
    """The acknowledgements of one subscription: they change its position and its pending entries."""

    def __init__(
        self,
        topic: ServedTopic,
        name: str,
        position: SubscriptionPosition,
        pending: PendingAcks,
        on_progress: Callable[[], object],
    ) -> None:
        """Make the acknowledgements of a subscription. `on_progress` is called after each call that has acknowledged
        something on the position."""
        self.on_entry_acknowledged: Callable[[PendingAck], object] | None = None
        """Called with each pending entry that is wholly acknowledged."""
        self.mark_advanced_at = 0
        """The time in ms at which mark-delete moved last; 0: it has not moved."""
        self._topic = topic
        self._name = name
        self._position = position
        self._pending = pending
        self._on_progress = on_progress
        self._acked_ids: dict[int, LogPosition] = {}
        """By offset."""
        self._end = -1
        """All offsets up to here are acknowledged; perhaps more are."""
        self._mark: LogPosition | None = None
        self._lookups = 0
        self._looking_up = asyncio.Lock()
        self._is_removing = False

    def count_within_step_limit(self, acks: Sequence[AckedEntry]) -> int:
        """Return how many of `acks`, from the first one on, one step of the event loop may acknowledge, by the limit
        `STEP_SLOTS`."""
        slots = 0
        for number, ack in enumerate(acks, 1):
            pending = self._pending.get(ack.key)
            slots += pending.messages if pending is not None else 0
            if slots >= STEP_SLOTS:
                return number
        return len(acks)

    def acknowledge(self, consumer: Consumer, acks: Sequence[AckedEntry], *, cumulative: bool) -> AcksToLookUp:
        """Acknowledge entries; `cumulative`: with all messages before them. Return those that are not pending and have
        to be looked up in the topic (`acknowledge_by_lookup`). Raises Fenced."""
        unknown = [ack for ack in acks if not self._acknowledge_without_lookup(consumer, ack, cumulative)]
        self._advance_mark_delete(consumer)
        return unknown

    async def acknowledge_by_lookup(self, consumer: Consumer, acks: Sequence[AckedEntry], *, cumulative: bool) -> None:
        """Acknowledge entries that `acknowledge` has returned: look each up in the topic, unless it was delivered
        again.

        A subscription looks up one entry at a time. If its position moves meanwhile, the others are dropped.

        Raises CompactorError; Unavailable if too many wait already: their entries are delivered again.
        """
        if self._lookups + len(acks) > MAX_LOOKUPS:
            raise Unavailable(
                f"{self._lookups} acknowledgements of {self._name} wait to be looked up", "acknowledge fewer at once",
                is_public=True,
            )  # fmt: skip
        position, moves = self._position, self._position.moves

        def is_current() -> bool:
            return position.moves == moves and position.durable and not position.moving.locked()

        self._lookups += len(acks)
        try:
            async with self._looking_up:
                for ack in acks:
                    await asyncio.sleep(0)
                    if not is_current():
                        return
                    if not self._acknowledge_without_lookup(consumer, ack, cumulative):
                        acked = await self._topic.store.run(self._find_acked_messages, ack, cumulative)
                        if not is_current():
                            return
                        if acked is not None:
                            self._acknowledge_messages(consumer, acked, cumulative)
                    self._advance_mark_delete(consumer)
        finally:
            self._lookups -= len(acks)

    def remove_acknowledged_pending(self, acknowledged_by: Consumer | None = None) -> None:
        """Remove pending entries that the position has acknowledged cumulatively: some now, others in later turns of
        the event loop.

        `acknowledged_by`: the consumer whose acknowledgement is counted; None: another interface has acknowledged them.
        Until they are removed they count as unacknowledged messages of their consumers.
        """
        if not self._is_removing and self._remove_some_acknowledged(acknowledged_by):
            self._is_removing = True
            self._topic.spawn(
                repeat_while(partial(self._remove_some_acknowledged, acknowledged_by), self._finish_removal)
            )

    def reset_acknowledged_end(self) -> None:
        """Reset the known end of the acknowledged messages to unknown, because the position was opened again."""
        self._end = -1

    def clear(self) -> None:
        """Drop all pending entries and acknowledged ids, because the subscription has moved to another position."""
        self._pending.clear()
        self._acked_ids.clear()
        self.reset_acknowledged_end()

    def _acknowledge_without_lookup(self, consumer: Consumer, ack: AckedEntry, cumulative: bool) -> bool:
        """Acknowledge an entry, unless it has to be looked up in the topic. Return False if it has: it is neither
        pending nor known to be acknowledged."""
        pending = self._pending.get(ack.key)
        if pending is None:
            return not self._position.durable or self._is_acknowledged(ack.key)
        if cumulative:
            self._acknowledge_cumulatively(consumer, pending, ack.ack_set)
        else:
            self._acknowledge_individually(consumer, pending, ack.ack_set)
        return True

    def _acknowledge_individually(self, consumer: Consumer, pending: PendingAck, ack_set: Sequence[int]) -> None:
        """Acknowledge the slots of a pending entry that `ack_set` does not leave unacknowledged. Remove the entry if
        none is left."""
        position = self._position.current
        rest = pending.live_mask & unacked_mask(ack_set, pending.messages) if ack_set else 0
        newly_acked = pending.live_mask & ~rest
        consumer.acknowledged.add(newly_acked.bit_count())
        if not rest:
            self._pending.remove_acknowledged(pending)
            if self.on_entry_acknowledged is not None:
                self.on_entry_acknowledged(pending)
            last = pending.position(pending.messages - 1)
            is_in_order = pending.ack_start <= self._end + 1
            if not is_in_order and self._position.durable:
                self._keep_acknowledged_id(last)
            position.acknowledge(last, pending.ack_start)
            if is_in_order and last.offset > self._end:
                self._end = last.offset
        elif newly_acked:
            if pending.consumer is not None:
                pending.consumer.unacked -= newly_acked.bit_count()
            pending.live_mask = rest
            highest = pending.position(newly_acked.bit_length() - 1)
            self._keep_acknowledged_id(highest)
            position.acknowledge_slots(pending.offset, newly_acked, highest)

    def _acknowledge_cumulatively(self, consumer: Consumer, pending: PendingAck, ack_set: Sequence[int]) -> None:
        """Acknowledge a pending entry and all messages before it; of a part of a batch, up to the slot before the first
        one that stays unacknowledged."""
        rest = pending.live_mask & unacked_mask(ack_set, pending.messages)
        slot = (rest & -rest).bit_length() - 2 if rest else pending.messages - 1
        if slot >= 0:
            self._acknowledge_through_position(consumer, pending.position(slot))
        elif pending.offset:
            ledger_id, entry_id = pending.entry_key
            before = LogPosition(pending.offset - 1, MessageId(ledger_id, entry_id - 1))
            self._acknowledge_through_position(consumer, before)

    def _acknowledge_through_position(self, consumer: Consumer, position: LogPosition) -> None:
        """Acknowledge the message at a position and all messages before it, and remove their pending entries."""
        self._position.note_log_end(position.offset + 1)
        self._position.current.acknowledge_cumulative(position)
        self.remove_acknowledged_pending(consumer)

    def _remove_some_acknowledged(self, acknowledged_by: Consumer | None) -> HasMore:
        """Remove as many acknowledged pending entries as one step of the event loop may take. Return whether more may
        remain."""
        position = self._position.current
        end = position.acknowledged_to + 1  # a reset may have moved it back since the last step
        removed, has_more = self._pending.remove_acknowledged_through(end)
        if acknowledged_by is not None:
            acknowledged_by.acknowledged.add(sum(pending.live_mask.bit_count() for pending in removed))
        if self.on_entry_acknowledged is not None:
            for pending in removed:
                self.on_entry_acknowledged(pending)
        partial = None if has_more else self._pending.oldest()
        if partial is not None and partial.offset < end:
            acked = partial.live_mask & position.acknowledged_mask(partial.offset, partial.messages)
            partial.live_mask &= ~acked
            if partial.consumer is not None:
                partial.consumer.unacked -= acked.bit_count()
        return has_more

    def _finish_removal(self) -> None:
        self._is_removing = False
        self._on_progress()

    def _acknowledge_messages(self, consumer: Consumer, acked: AckedMessages, cumulative: bool) -> None:
        """Acknowledge messages of an entry that is not pending; `cumulative`: with all messages before them."""
        self._position.note_log_end(acked.last.offset + 1)
        if cumulative:
            self._acknowledge_through_position(consumer, acked.last)
        else:
            self._position.current.acknowledge_slots(acked.first_offset, acked.mask, acked.last)

    def _is_acknowledged(self, key: EntryKey) -> bool:
        """Return whether an entry is known to be wholly acknowledged. Reads only memory."""
        if self._pending.is_acknowledged(key):
            return True
        mark = self._position.current.mark_delete
        if mark is None:
            return False
        mark_key = mark.message_id.ledger_id, mark.message_id.entry_id
        return key < mark_key or (key == mark_key and mark.message_id.batch_index < 0)

    def _keep_acknowledged_id(self, position: LogPosition) -> None:
        """Keep the id of a message that was acknowledged out of order, until mark-delete comes to that message."""
        if len(self._acked_ids) >= MAX_ACKED_IDS:
            mark = self._position.current.mark_delete
            low = -1 if mark is None else mark.offset
            self._acked_ids = {offset: item for offset, item in self._acked_ids.items() if offset > low}
            while len(self._acked_ids) >= MAX_ACKED_IDS // 2:
                del self._acked_ids[next(iter(self._acked_ids))]
        self._acked_ids[position.offset] = position

    def _advance_mark_delete(self, consumer: Consumer) -> None:
        """Move mark-delete to the end of the acknowledged messages if the id of its message is known. Report the
        progress, and note the time of `consumer`'s acknowledgement."""
        consumer.last_acked_at = self._topic.clock.now_ms()
        cursor = self._position.current
        if isinstance(cursor, Cursor):
            mark, self._end = cursor.progress
            if mark is None or mark.offset < self._end:
                acked = self._acked_ids.get(self._end)
                if acked is not None:
                    cursor.acknowledge_cumulative(acked)
                    mark = acked
            if mark is not self._mark:
                self._mark, self.mark_advanced_at = mark, consumer.last_acked_at
        self._on_progress()

    # For threads

    def _find_acked_messages(self, ack: AckedEntry, cumulative: bool) -> AckedMessages | None:
        """Return the messages that an acknowledgement names, from a read of the topic; None: the topic has none of
        them.

        For a thread, because a batch may have 262,144 messages.
        """
        return acked_messages(self._read_slots(ack), ack, cumulative)

    def _read_slots(self, ack: AckedEntry) -> list[tuple[int, LogPosition]]:
        """Read from the topic the slots of an entry that still exist. Return each with the position of its message."""
        slots: list[tuple[int, LogPosition]] = []
        for batch in self._topic.storage.read(MessageId(*ack.key), self._position.read_compacted):
            for row in range(len(batch)):
                row_id = id_of_row(batch, row)
                if (row_id.ledger_id, row_id.entry_id) != ack.key:
                    return slots
                slots.append((max(row_id.batch_index, 0), LogPosition(batch.column("offset")[row].as_py(), row_id)))
        return slots


def acked_messages(slots: Sequence[tuple[int, LogPosition]], ack: AckedEntry, cumulative: bool) -> AckedMessages | None:
    """Return the messages of `slots`, the existing slots of an entry, that an acknowledgement names; None: none."""
    rest = bitmap_of(unacked_mask(ack.ack_set, max((slot for slot, _ in slots), default=0) + 1))
    acked = [position for slot, position in slots if slot not in rest]
    if cumulative and ack.batch_index >= 0 and not rest:
        acked = [item for item in acked if item.message_id.batch_index <= ack.batch_index]
    if not acked:
        return None
    first = acked[0].offset
    return AckedMessages(first, mask_of(BitMap([item.offset - first for item in acked])), acked[-1])


def unacked_mask(ack_set: Sequence[int], message_count: int) -> int:
    """Return the slots of an entry that an acknowledgement leaves unacknowledged, as bits.

    `message_count`: the number of slots of the entry; bits of `ack_set` beyond it are ignored.
    """
    words = ack_set[: (message_count + 63) // 64]
    if not words:
        return 0
    data = struct.pack(f"<{len(words)}Q", *(word & _UINT64 for word in words))
    return int.from_bytes(data, "little") & ((1 << message_count) - 1)
