"""A subscription of a topic: its position, the entries that its consumers have, its dispatcher.

    durable        a cursor in SQL (storage/cursor.py), written together with others (cursor_writer.py)
    not durable    a position in memory, for a reader; it goes with its last consumer

Every door moves the same state: consumers acknowledge, REST and pulsar-admin skip, expire, reset and delete here while
the topic is open in this process. Entries that were delivered are remembered with their offsets until they are
acknowledged, `MOST_PENDING` at most: when there are so many, shared consumers receive no more, and for the one consumer
of the other types the oldest is forgotten, and its acknowledgement is looked up in the topic. With an entry the offsets
before it that no consumer receives are acknowledged, too: what compaction dropped, markers.

For the event loop alone; what waits for database or store is awaited.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from pyroaring import BitMap

from api.broker.positions import mark_delete_before
from api.broker.refusals import ConsumerBusy
from api.broker.serving.consumer import Consumer, SubscriptionType
from api.broker.serving.cursor_writer import MarkLocator, ReaderPosition
from api.broker.serving.dispatcher import Dispatcher
from api.broker.serving.pending_acks import EntryKey, Group, PendingAck, PendingAcks
from api.broker.serving.rates import Rate
from api.broker.serving.served_topic import ServedTopic
from storage.ack_ranges import bitmap_of, mask_of
from storage.cursor import Cursor, CursorSettings
from storage.entries.rebuild import DeliverableEntry
from storage.errors import CompactorError, Conflict, Fenced, NotFound, StateMayBeStale, Unavailable
from storage.metadata.records import READ_COMPACTED_PROPERTY
from storage.model import EARLIEST, LATEST, LogPosition, MessageId
from storage.positions import StartOffset, StartPosition, StartTime
from storage.reading.entry_reader import EntryReader

LOG = logging.getLogger(__name__)
MOST_PENDING = 100_000
"""Entries that are remembered for their acknowledgement."""
MOST_LOOKUPS = 1_000
"""Acknowledgements of entries that are not known any more, and wait to be looked up in the topic."""
_MOST_ACKED_IDS = 20_000
"""Ids of messages that were acknowledged out of order, by which mark-delete moves without a read of the topic."""
_UINT64 = (1 << 64) - 1


class AckedEntry(NamedTuple):
    """An acknowledgement of one entry. `ack_set`: the slots that stay unacknowledged, 64 a number; empty: none."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    ack_set: Sequence[int] = ()

    @property
    def key(self) -> EntryKey:
        return self.ledger_id, self.entry_id


class AckedMessages(NamedTuple):
    """Messages of one entry that are acknowledged: offsets `first` + i for each set bit i of `mask`."""

    first: int
    mask: int
    last: LogPosition


@dataclass(frozen=True)
class SubscribeRequest:
    """Options of a consumer for its subscription. `start`: of a new cursor or of a reader; `resumes`: a reader that may
    have read before it, as one that connects again has; `properties`: of a new cursor."""

    name: str
    durable: bool = True
    read_compacted: bool = False
    start: StartPosition = LATEST
    resumes: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


class Subscription:
    """One subscription. `open` it before anything else."""

    def __init__(
        self,
        topic: ServedTopic,
        request: SubscribeRequest,
        on_deleted: Callable[[Subscription], Awaitable[object]],
    ) -> None:
        """`on_deleted` is called when the cursor turns out to be deleted by another process."""
        self.topic = topic
        self._on_deleted = on_deleted
        self.name = request.name
        self.durable = request.durable
        self.read_compacted = request.read_compacted
        self.dispatcher: Dispatcher | None = None
        self.position: Cursor | ReaderPosition = ReaderPosition(None)
        self.start: StartPosition = LATEST
        self.pending = PendingAcks(self._released)
        self.dispatched = Rate()
        self.is_new = False
        """Whether its cursor was created now."""
        self.delivered_end = 0
        """The offset after the last entry that was delivered."""
        self.is_deleted = False
        self.mark_advanced_at = 0
        """The time in ms at which mark-delete moved last; 0: it has not."""
        self._resumes = request.resumes
        self._known_end = 0
        """Messages exist before this offset, as far as is known here."""
        self._acked_ids: dict[int, LogPosition] = {}
        self._mark: LogPosition | None = None
        self._has_begun = False
        self._ticks_alone = 0
        self._moving = asyncio.Lock()
        """Held while its position is moved from outside; acknowledgements that come meanwhile are dropped."""
        self._moves = 0
        self._lookups = 0
        self._looking_up = asyncio.Lock()
        self._locator = MarkLocator(topic.store, topic.spawn, self._mark_located)

    # Opening

    async def open(self, request: SubscribeRequest) -> None:
        """Find or create its cursor, or the position where its reader begins. Raises CompactorError."""
        if self.durable:
            self.position = await self.topic.store.run(self._open_cursor, request)
            self._begin_after_mark()
        else:
            self.start, mark = await self.topic.store.run(self._reader_start, request.start)
            self.position = ReaderPosition(mark)

    async def join(self, request: SubscribeRequest) -> None:
        """Take note of what another consumer asks for. A cursor without consumers is opened again: another process may
        have moved it. Raises CompactorError."""
        if not self.durable:
            return
        if not self.consumers:
            await self.flush()
            await self.open(request)
        elif request.read_compacted:
            properties = {READ_COMPACTED_PROPERTY: "true"}  # a run waits for it (T1)
            cursors = self.topic.metadata.cursors
            await self.topic.database.run(cursors.set_properties, self.topic.record.id, self.name, properties)

    def _open_cursor(self, request: SubscribeRequest) -> Cursor:
        storage, cursors = self.topic.storage, self.topic.metadata.cursors
        marker = {READ_COMPACTED_PROPERTY: "true"} if request.read_compacted else {}
        try:
            cursor = self._owned()
        except NotFound:
            mark = self._mark_before(request.start)
            with suppress(Conflict):  # another caller was first
                cursors.create(storage.record.id, self.name, mark, {**request.properties, **marker})
                self.is_new = True
            return self._owned()
        record = cursors.get(storage.record.id, self.name)
        if marker and READ_COMPACTED_PROPERTY not in record.properties:
            cursors.set_properties(storage.record.id, self.name, marker)
        return cursor

    def _owned(self) -> Cursor:
        storage = self.topic.storage
        return Cursor(
            self.topic.metadata,
            self.topic.clock,
            storage.record,
            self.name,
            storage.locate,
            lambda: max(self.delivered_end, self._known_end),
            CursorSettings(flush_acknowledgements=None, flush_ms=None),
        )

    def _reader_start(self, start: StartPosition) -> tuple[StartPosition, LogPosition | None]:
        """Return where a reader begins, and the message before it if its offset is known.

        `latest` is the present end of the topic, not the end when it is read.
        """
        storage = self.topic.storage
        if isinstance(start, StartTime):
            first = storage.first_at(start, self.read_compacted)
            start = LATEST if first is None else entry_of(first.message_id)
        if start != LATEST:
            return start, None
        last = mark_delete_before(storage, LATEST)
        return (EARLIEST, None) if last is None else (StartOffset(last.offset + 1), last)

    def _begin_after_mark(self) -> None:
        mark = self.position.mark_delete
        self.start = EARLIEST if mark is None else StartOffset(mark.offset + 1)
        self.delivered_end = max(self.delivered_end, 0 if mark is None else mark.offset + 1)

    # Consumers

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self.dispatcher.consumers if self.dispatcher is not None else ()

    @property
    def type(self) -> SubscriptionType | None:
        """The type of its consumers; None: there are none."""
        return self.consumers[0].type if self.consumers else None

    def check(self, consumer: Consumer) -> None:
        """Make room for a consumer. Raises ConsumerBusy, ConsumerNotAssigned if it does not fit the others."""
        present = self.type
        if present is None:
            if self.dispatcher is not None:
                self.topic.spawn(self.dispatcher.close())
            self.pending.retire()  # the new dispatcher reads them again
            self._resumes = self._resumes and not self.durable
            self.read_compacted = consumer.options.read_compacted
            self.dispatcher = Dispatcher(self, self.topic, consumer)
        elif present is not consumer.type:
            raise ConsumerBusy(
                f"Subscription is of different type: {self.name} has consumers of type {type_name(present)}, and this "
                f"one asks for {type_name(consumer.type)}",
                "use the same type for all consumers",
                is_public=True,
            )
        elif present is SubscriptionType.EXCLUSIVE:
            raise ConsumerBusy(
                f"Exclusive consumer is already connected to {self.name}", "end it, or use a failover subscription",
                is_public=True,
            )  # fmt: skip
        assert self.dispatcher is not None
        self.dispatcher.check(consumer)

    def use_reads_of(self, consumer: Consumer) -> None:
        self.read_compacted = consumer.options.read_compacted

    def disconnect(self) -> None:
        """Tell each consumer to subscribe again."""
        for consumer in list(self.consumers):
            consumer.channel.disconnect()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Permit a consumer that many more messages."""
        consumer.flow(permits, self.topic.clock.now_ms())
        self.wake()

    def wake(self) -> None:
        """Deliver what can be delivered now: a consumer may accept more."""
        if self.dispatcher is not None:
            self.dispatcher.wake()

    def leave(self, consumer: Consumer) -> None:
        """Deliver nothing more to a consumer; other consumers receive what it has not acknowledged."""
        if self.dispatcher is not None:
            self.dispatcher.remove(consumer)

    def redeliver(self, consumer: Consumer, keys: Sequence[EntryKey]) -> None:
        """Deliver entries of a consumer again; without `keys`, all that it has not acknowledged."""
        if self.dispatcher is not None:
            self.dispatcher.redeliver(consumer, keys or None)

    def is_left(self, ticks: int) -> bool:
        """Count a tick. Return whether it is a reader's, and was without one for so many."""
        self._ticks_alone = 0 if self.durable or self.consumers else self._ticks_alone + 1
        return self._ticks_alone > ticks

    # Delivering

    @property
    def is_full(self) -> bool:
        return len(self.pending) >= MOST_PENDING

    def live_slots(self, entry: DeliverableEntry) -> int:
        return entry.live & ~self.position.acknowledged_mask(entry.offset, entry.messages)

    def deliver(self, consumer: Consumer, entry: DeliverableEntry, live: int, first: int, group: Group) -> None:
        if not self._has_begun:
            self._has_begun = True
            if isinstance(self.position, ReaderPosition):
                self.position.begin(min(first, entry.offset))
        key = entry.ledger_id, entry.entry_id
        before = self.pending.get(key)
        pending = PendingAck(key, min(first, entry.offset), entry.offset, entry.messages, entry.batched, live, consumer)
        pending.group = group
        if before is not None:
            pending.first, pending.redeliveries = min(pending.first, before.first), before.redeliveries
        self.pending.add(pending)
        self.delivered_end = max(self.delivered_end, entry.end)
        self.dispatched.add(live.bit_count(), len(entry.data))
        if len(self.pending) > MOST_PENDING:
            oldest = self.pending.oldest()
            if oldest is not None:
                self.pending.remove(oldest.entry_key)
        consumer.send(entry, pending, self.topic.clock.now_ms())

    def retire(self) -> None:
        self._resumes = self._resumes or self._has_begun
        self.pending.retire()

    def return_pending(self, pending: PendingAck) -> None:
        self.pending.release(pending)

    def forget(self, key: EntryKey) -> None:
        self.pending.remove(key)

    def _released(self, pending: PendingAck) -> None:
        if self.dispatcher is not None:
            self.dispatcher.released(pending)

    @property
    def next_position(self) -> StartPosition:
        if isinstance(self.position, ReaderPosition):
            return StartOffset(self.position.next_offset) if self._has_begun else self.start
        mark = self.position.mark_delete
        return EARLIEST if mark is None else StartOffset(mark.offset + 1)

    def open_reader(self, start: StartPosition) -> EntryReader:
        try:
            reader = self.topic.storage.entry_reader(start, self.read_compacted, self._resumes)
        except StateMayBeStale:  # the next read continues with what is there
            self._resumes = False
            raise
        self._resumes = False
        return reader

    @property
    def delivered_before(self) -> MessageId:
        """The message before the first one that is delivered: mark-delete, or the one before a reader's position. By it
        a client that has sought by time knows whether messages follow."""
        mark = self.position.mark_delete
        if mark is not None:
            return mark.message_id
        if self.durable or not isinstance(self.start, MessageId) or self.start in (EARLIEST, LATEST):
            return EARLIEST
        return MessageId(self.start.ledger_id, self.start.entry_id - 1)

    # Acknowledging

    def acknowledge(self, consumer: Consumer, acks: Sequence[AckedEntry]) -> list[AckedEntry]:
        """Acknowledge messages one by one. Return those that are not known any more, for `look_up`. Raises Fenced."""
        if self._moving.locked():
            return []
        unknown: list[AckedEntry] = []
        for ack in acks:
            pending = self.pending.get(ack.key)
            if pending is not None:
                self._acknowledge(consumer, pending, ack)
            elif self.durable and not self._is_acknowledged(ack.key):
                unknown.append(ack)
        self._note_acknowledged(consumer)
        return unknown

    def acknowledge_to(self, consumer: Consumer, ack: AckedEntry) -> bool:
        """Acknowledge a message and all before it. Return False if it is not known any more. Raises Fenced."""
        if self._moving.locked():
            return True
        target = self.pending.get(ack.key)
        if target is None:
            return not self.durable or self._is_acknowledged(ack.key)
        # up to the slot before the first that is not acknowledged, if it is a part of a batch
        rest = target.live & remaining_slots(ack.ack_set, target.messages)
        slot = (rest & -rest).bit_length() - 2 if rest else target.messages - 1
        if slot >= 0:
            self._acknowledge_through(consumer, target.position(slot))
        elif target.offset:
            self._acknowledge_through(
                consumer, LogPosition(target.offset - 1, MessageId(ack.ledger_id, ack.entry_id - 1))
            )
        self._note_acknowledged(consumer)
        return True

    async def look_up(self, consumer: Consumer, acks: Sequence[AckedEntry], *, cumulative: bool) -> None:
        """Acknowledge messages that are looked up in the topic, one at a time for a subscription. Raises
        CompactorError; Unavailable if too many wait already: their messages are delivered again."""
        if self._lookups + len(acks) > MOST_LOOKUPS:
            raise Unavailable(
                f"{self._lookups} acknowledgements of {self.name} wait to be looked up", "acknowledge fewer at once",
                is_public=True,
            )  # fmt: skip
        moves = self._moves
        self._lookups += len(acks)
        try:
            async with self._looking_up:
                for ack in acks:
                    acked = await self.topic.store.run(self._messages_of, ack, cumulative)
                    if self._moving.locked() or self._moves != moves or not self.durable:
                        return
                    if acked is not None:
                        self._acknowledge_messages(consumer, acked, cumulative)
        finally:
            self._lookups -= len(acks)
        self._note_acknowledged(consumer)

    def _acknowledge(self, consumer: Consumer, pending: PendingAck, ack: AckedEntry) -> None:
        rest = pending.live & remaining_slots(ack.ack_set, pending.messages)
        newly = pending.live & ~rest
        consumer.acknowledged.add(newly.bit_count())
        if not rest:
            self._settle(pending)
            last = pending.position(pending.messages - 1)
            self._note_id(last)
            self.position.acknowledge(last, pending.first)
        elif newly:
            if pending.consumer is not None:
                pending.consumer.unacked -= newly.bit_count()
            pending.live = rest
            highest = pending.position(newly.bit_length() - 1)
            self._note_id(highest)
            self.position.acknowledge_slots(pending.offset, newly, highest)

    def _settle(self, pending: PendingAck) -> None:
        self.pending.settle(pending.entry_key)
        if self.dispatcher is not None:
            self.dispatcher.settled(pending)

    def _acknowledge_through(self, consumer: Consumer, position: LogPosition) -> None:
        for pending in self.pending.pop_through(position.offset + 1):
            consumer.acknowledged.add(pending.live.bit_count())
            if self.dispatcher is not None:
                self.dispatcher.settled(pending)
        cut = self.pending.oldest()
        if cut is not None and cut.offset <= position.offset:
            gone = cut.live & ((1 << (position.offset + 1 - cut.offset)) - 1)
            cut.live &= ~gone
            if cut.consumer is not None:
                cut.consumer.unacked -= gone.bit_count()
        self._known_end = max(self._known_end, position.offset + 1)
        self.position.acknowledge_cumulative(position)

    def _acknowledge_messages(self, consumer: Consumer, acked: AckedMessages, cumulative: bool) -> None:
        self._known_end = max(self._known_end, acked.last.offset + 1)
        if cumulative:
            self._acknowledge_through(consumer, acked.last)
        else:
            self.position.acknowledge_slots(acked.first, acked.mask, acked.last)

    def _messages_of(self, ack: AckedEntry, cumulative: bool) -> AckedMessages | None:
        """Return the messages of an entry that an acknowledgement names; None: they are not in the topic. Called by a
        thread, because a batch may have 262,144."""
        slots = self._positions_of(ack)
        rest = bitmap_of(remaining_slots(ack.ack_set, max((slot for slot, _ in slots), default=0) + 1))
        acked = [position for slot, position in slots if slot not in rest]
        if cumulative and ack.batch_index >= 0 and not rest:
            acked = [item for item in acked if item.message_id.batch_index <= ack.batch_index]
        if not acked:
            return None
        first = acked[0].offset
        return AckedMessages(first, mask_of(BitMap([item.offset - first for item in acked])), acked[-1])

    def _positions_of(self, ack: AckedEntry) -> list[tuple[int, LogPosition]]:
        """Return the slots of an entry, with the positions of their messages, of which some may be gone."""
        from storage.ledger.rows import message_id as id_of_row

        slots: list[tuple[int, LogPosition]] = []
        for batch in self.topic.storage.read(MessageId(*ack.key), self.read_compacted):
            for row in range(len(batch)):
                row_id = id_of_row(batch, row)
                if (row_id.ledger_id, row_id.entry_id) != ack.key:
                    return slots
                slots.append((max(row_id.batch_index, 0), LogPosition(batch.column("offset")[row].as_py(), row_id)))
        return slots

    def _is_acknowledged(self, key: EntryKey) -> bool:
        """Return whether an entry is known to be wholly acknowledged, without a look into the topic."""
        if self.pending.is_settled(key):
            return True
        mark = self.position.mark_delete
        if mark is None:
            return False
        mark_key = mark.message_id.ledger_id, mark.message_id.entry_id
        return key < mark_key or (key == mark_key and mark.message_id.batch_index < 0)

    def _note_id(self, position: LogPosition) -> None:
        """Remember the id of a message that was acknowledged, for when mark-delete comes to it."""
        if len(self._acked_ids) >= _MOST_ACKED_IDS:
            mark = self.position.mark_delete
            low = -1 if mark is None else mark.offset
            self._acked_ids = {offset: item for offset, item in self._acked_ids.items() if offset > low}
            while len(self._acked_ids) >= _MOST_ACKED_IDS // 2:
                del self._acked_ids[next(iter(self._acked_ids))]
        self._acked_ids[position.offset] = position

    def _note_acknowledged(self, consumer: Consumer) -> None:
        consumer.last_acked_at = self.topic.clock.now_ms()
        if isinstance(self.position, Cursor):
            mark, end = self.position.progress
            known = self._acked_ids.get(end)
            if known is not None and (mark is None or mark.offset < end):
                self.position.acknowledge_cumulative(known)
                mark = known
            self.topic.cursor_writer.note(self.position, self)
            if mark is not self._mark:
                self._mark, self.mark_advanced_at = mark, consumer.last_acked_at
        if self.dispatcher is not None and self.dispatcher.type.is_individual:
            self.dispatcher.wake()  # there may be room now

    # Writing

    async def flush(self) -> None:
        """Write what was acknowledged. Raises CompactorError; what is not written stays to be written."""
        if isinstance(self.position, Cursor):
            await self.topic.cursor_writer.flush(self.position)

    def write_failed(self, cursor: Cursor, error: CompactorError) -> None:
        """Another process has moved or deleted the cursor: open it again, and let consumers begin there."""
        if cursor is self.position:
            self.topic.spawn(self.reopen(cursor))

    def locate_mark(self, cursor: Cursor) -> None:
        """Find the id of the message that mark-delete has come to."""
        if cursor is self.position:
            self._locator.locate(cursor)

    def _mark_located(self, cursor: Cursor) -> None:
        if cursor is self.position and not self.is_deleted:
            self.topic.cursor_writer.note(cursor, self)

    async def reopen(self, fenced: Cursor) -> None:
        """Open the cursor again and disconnect the consumers. Once for a cursor that is fenced. Raises CompactorError;
        then it is fenced as before."""
        async with self._moving:
            if self.position is not fenced:
                return
            try:
                self.position = await self.topic.database.run(self._owned)
            except NotFound:
                self.is_deleted = True
            self.topic.cursor_writer.forget(fenced)
            self._restart()
        if self.is_deleted:
            await self._on_deleted(self)
        else:
            self.disconnect()

    def _restart(self) -> None:
        """Begin at the position as it is now."""
        self._moves += 1
        self._has_begun = self._resumes = False
        self.pending.clear()
        self._acked_ids.clear()
        if self.durable:
            self._begin_after_mark()
        if self.dispatcher is not None:
            self.dispatcher.rewind()

    # Moving

    async def seek(self, place: MessageId | int) -> None:
        """Begin again at a message id, or at a publish time; the consumers have to subscribe again. Raises
        CompactorError; then they begin again where they were."""
        start: StartPosition = place if isinstance(place, MessageId) else StartTime(place)
        # Before the move, and not during it: threads of the store wait for `reset`, which waits for other moves.
        mark = await self.topic.store.run(self._mark_before, start) if self.durable else None
        await self._move(mark, start)

    async def reset(self, mark: LogPosition | None) -> None:
        """Begin again after a message, which counts as acknowledged with all before it; None: at the first one."""
        await self._move(mark, EARLIEST if mark is None else StartOffset(mark.offset + 1))

    async def _move(self, mark: LogPosition | None, start: StartPosition) -> None:
        async with self._moving:
            if self.dispatcher is not None:
                self.dispatcher.pause()
            try:
                if isinstance(self.position, Cursor):
                    # To its end: a reset that goes on beside what comes next would undo that.
                    self.position = await self.topic.database.run_to_end(self._reset_cursor, self.position, mark)
                    self.delivered_end = 0
                else:
                    self.start, mark = await self.topic.store.run(self._reader_start, start)
                    self.position = ReaderPosition(mark)
            finally:
                self._restart()
                self.disconnect()

    def _reset_cursor(self, cursor: Cursor, mark: LogPosition | None) -> Cursor:
        try:
            cursor.reset(mark)
        except Fenced:
            cursor = self._owned()
            cursor.reset(mark)
        return cursor

    def _mark_before(self, start: StartPosition) -> LogPosition | None:
        storage = self.topic.storage
        if start == EARLIEST:
            return None
        first = None if start == LATEST else storage.first_at(start, self.read_compacted)
        mark = mark_delete_before(storage, LATEST if first is None else StartOffset(first.offset))
        if mark is None and first is not None and first.offset:  # raw is trimmed there
            return LogPosition(first.offset - 1, MessageId(first.message_id.ledger_id, first.message_id.entry_id - 1))
        return mark

    def extend(self, end: int) -> None:
        """Messages exist before `end`: they may be acknowledged."""
        self._known_end = max(self._known_end, end)

    def acknowledged_outside(self) -> None:
        """Messages were acknowledged on the cursor by another door: consumers receive none of them."""
        assert isinstance(self.position, Cursor)
        for pending in self.pending.pop_through(self.position.acknowledged_end + 1):
            if self.dispatcher is not None:
                self.dispatcher.settled(pending)
        if self.dispatcher is not None:
            self.dispatcher.wake()

    def restart(self) -> None:
        """Deliver again from the position on: the topic was truncated, and what was read of it is gone."""
        self._restart()

    def backlog(self, end: int, start: int) -> int | None:
        """Return how many messages from `start` to before `end` are not acknowledged; None: it has no cursor."""
        return self.position.backlog(end, start) if isinstance(self.position, Cursor) else None

    async def close(self) -> None:
        """Stop to deliver, and write what was acknowledged. Never fails: what cannot be written is delivered again."""
        dispatcher, self.dispatcher = self.dispatcher, None
        if dispatcher is not None:
            await dispatcher.close()
        self.pending.retire()
        if not self.is_deleted:
            try:
                await self.flush()
            except CompactorError as error:
                LOG.warning("acknowledgements of %s on %s are not written: %s", self.name, self.topic.name, error)


def entry_of(start: MessageId) -> MessageId:
    """Return where a reader begins whose position is a message: its entry, of which the client skips what is before."""
    if start in (EARLIEST, LATEST) or start.ledger_id > LATEST.ledger_id - 1:
        return LATEST if start.ledger_id > 0 else EARLIEST
    if start.ledger_id < 0:
        return EARLIEST
    return MessageId(start.ledger_id, max(start.entry_id, 0))


def remaining_slots(ack_set: Sequence[int], messages: int) -> int:
    """Return the slots of an entry that an acknowledgement leaves, as bits; what goes beyond its slots is ignored."""
    words = ack_set[: (messages + 63) // 64]
    if not words:
        return 0
    data = struct.pack(f"<{len(words)}Q", *(word & _UINT64 for word in words))
    return int.from_bytes(data, "little") & ((1 << messages) - 1)


def type_name(subscription_type: SubscriptionType) -> str:
    """Return the name of a type as Pulsar's protocol writes it."""
    return {
        SubscriptionType.EXCLUSIVE: "Exclusive",
        SubscriptionType.SHARED: "Shared",
        SubscriptionType.FAILOVER: "Failover",
        SubscriptionType.KEY_SHARED: "Key_Shared",
    }[subscription_type]
