"""A subscription of a topic: what its consumers have got, and what they have acknowledged.

    durable        a cursor in SQL (storage/cursor.py); acknowledgements are held in memory and flushed every second,
                   at once for those that ask for a receipt, and at the end
    not durable    a position in memory, for a reader: gone with its consumer

Entries that were delivered are remembered with their offsets until they are acknowledged, `MOST_PENDING` at most. When
there are so many, shared consumers get no more; for the one consumer of the other types, which gets all again from the
cursor on, the oldest is forgotten, and its acknowledgement is looked up in the topic. With an entry the offsets before
it that no consumer gets are acknowledged, too: what compaction dropped, markers.

For the event loop alone; what waits for database or store is awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.gateway.commands import Refused, bits, message_id
from api.gateway.consumers import Consumer
from api.gateway.pulsar_api_pb2 import CommandSubscribe, MessageIdData, ServerError
from api.gateway.rates import Rate
from api.http.thread_pools import WaitsFor
from storage.cursor import Cursor, CursorSettings
from storage.entries.rebuild import DeliverableEntry
from storage.errors import Conflict, Fenced, NotFound, Unavailable
from storage.ledger.seek import StartOffset, StartPosition
from storage.metadata.records import READ_COMPACTED_PROPERTY
from storage.model import EARLIEST, LATEST, LogPosition, MessageId
from storage.reading.position_text import first_at, mark_delete_before

if TYPE_CHECKING:
    from api.gateway.dispatch import Dispatcher
    from api.gateway.topics import PersistentTopic

LOG = logging.getLogger(__name__)
MOST_PENDING = 100_000
"""Entries that are remembered for their acknowledgement."""

SubType = CommandSubscribe.SubType
EntryKey = tuple[int, int]


@dataclass(slots=True)
class PendingEntry:
    """An entry that was delivered. `first`: the offset from which it acknowledges; `live`: slots that are not
    acknowledged yet; `redeliveries`: how often it was delivered again."""

    entry_key: EntryKey
    first: int
    offset: int
    messages: int
    batched: bool
    live: int
    consumer: Consumer | None
    redeliveries: int = 0
    key_hash: int | None = None

    @property
    def end(self) -> int:
        return self.offset + self.messages

    def position(self, slot: int) -> LogPosition:
        """The place of one of its messages."""
        ledger_id, entry_id = self.entry_key
        return LogPosition(self.offset + slot, MessageId(ledger_id, entry_id, -1, slot if self.batched else -1))


class Subscription:
    """One subscription. `open` it before anything else."""

    def __init__(self, topic: PersistentTopic, name: str, durable: bool, read_compacted: bool) -> None:
        self.topic = topic
        self.name = name
        self.durable = durable
        self.read_compacted = read_compacted
        self.dispatcher: Dispatcher | None = None
        self.cursor: Cursor | None = None
        self.start: StartPosition = LATEST
        self.pending: dict[EntryKey, PendingEntry] = {}
        self.dispatched = Rate()
        self.is_new = False
        """Whether its cursor was created now."""
        self.delivered_end = 0
        """The offset behind the last entry that was delivered."""
        self._ticks_alone = 0
        self._moving = asyncio.Lock()
        """While its position is moved from outside; acknowledgements that come meanwhile are of before, and dropped."""
        self._moves = 0
        self._flushing = asyncio.Lock()
        self._flush_asked = self._flush_done = 0
        self._acked_to = -1
        """Of one that is not durable: all up to this offset is acknowledged."""

    # Opening

    async def open(self, wish: CommandSubscribe) -> None:
        """Find or create its cursor, or the position where its reader begins. Raises Refused, CompactorError."""
        if self.durable:
            self.cursor = await self.topic.pools[WaitsFor.STORE].run(self._open_cursor, wish)
            self._begin_behind_mark()
        else:
            self.start = await self._reader_start(wish)

    def _open_cursor(self, wish: CommandSubscribe) -> Cursor:
        storage, cursors = self.topic.storage, self.topic.metadata.cursors
        properties = {item.key: item.value for item in wish.subscription_properties}
        wanted = {READ_COMPACTED_PROPERTY: "true"} if self.read_compacted else {}
        try:
            cursor = self._owned()
        except NotFound:
            earliest = wish.initial_position == CommandSubscribe.Earliest
            mark = None if earliest else mark_delete_before(storage, LATEST)
            with suppress(Conflict):  # another one was first
                cursors.create(storage.record.id, self.name, mark, properties | wanted)
                self.is_new = True
            return self._owned()
        record = cursors.get(storage.record.id, self.name)
        if wanted and READ_COMPACTED_PROPERTY not in record.properties:
            cursors.set_properties(storage.record.id, self.name, wanted)
        return cursor

    async def note_read_compacted(self) -> None:
        """Its cursor is read compacted from now on: a run waits for it (T1). Raises CompactorError."""
        if self.cursor is not None:
            await self.topic.pools[WaitsFor.DATABASE].run(
                self.topic.metadata.cursors.set_properties,
                self.topic.record.id,
                self.name,
                {READ_COMPACTED_PROPERTY: "true"},
            )

    def _owned(self) -> Cursor:
        storage = self.topic.storage
        return Cursor(
            self.topic.metadata,
            self.topic.clock,
            storage.record,
            self.name,
            storage.locate,
            lambda: self.delivered_end,
            CursorSettings(flush_acknowledgements=None, flush_ms=None),
        )

    async def _reader_start(self, wish: CommandSubscribe) -> StartPosition:
        if wish.start_message_rollback_duration_sec:
            from storage.ledger.seek import StartTime

            return StartTime(self.topic.clock.now_ms() - 1000 * wish.start_message_rollback_duration_sec)
        if not wish.HasField("start_message_id"):
            return EARLIEST if wish.initial_position == CommandSubscribe.Earliest else await self._end()
        return await self._reader_position(message_id(wish.start_message_id))

    async def _reader_position(self, wanted: MessageId) -> StartPosition:
        """Where a reader begins that asks for a message; `latest` is where the topic ends now, not when it is read."""
        start = entry_of(wanted)
        return await self._end() if start == LATEST else start

    async def _end(self) -> StartPosition:
        last = await self.topic.pools[WaitsFor.STORE].run(mark_delete_before, self.topic.storage, LATEST)
        return EARLIEST if last is None else StartOffset(last.offset + 1)

    def _begin_behind_mark(self) -> None:
        assert self.cursor is not None
        mark = self.cursor.mark_delete
        self.start = EARLIEST if mark is None else StartOffset(mark.offset + 1)
        self.delivered_end = max(self.delivered_end, 0 if mark is None else mark.offset + 1)

    # Delivering

    @property
    def is_full(self) -> bool:
        """Whether as many entries wait for their acknowledgement as can be remembered."""
        return len(self.pending) >= MOST_PENDING

    def live_slots(self, entry: DeliverableEntry) -> int:
        """The slots of an entry that are to be delivered: those that exist and are not acknowledged."""
        if self.cursor is None or self.cursor.backlog(entry.end, entry.offset) == entry.messages:
            return entry.live
        live = 0
        for gap in self.cursor.unacknowledged(entry.end, entry.offset):
            live |= ((1 << len(gap)) - 1) << (gap.start - entry.offset)
        return live & entry.live

    def delivered(self, entry: DeliverableEntry, first: int, live: int, consumer: Consumer) -> PendingEntry:
        """Remember an entry that is delivered now."""
        key = (entry.ledger_id, entry.entry_id)
        before = self.pending.pop(key, None)
        redeliveries = 0 if before is None else before.redeliveries
        pending = PendingEntry(key, first, entry.offset, entry.messages, entry.batched, live, consumer, redeliveries)
        self.pending[key] = pending
        self.delivered_end = max(self.delivered_end, entry.end)
        self.dispatched.add(live.bit_count(), len(entry.data))
        if len(self.pending) > MOST_PENDING:
            self._settle(next(iter(self.pending)))
        return pending

    def _settle(self, key: EntryKey) -> PendingEntry:
        pending = self.pending.pop(key)
        if pending.consumer is not None:
            pending.consumer.unacked -= pending.live.bit_count()
        if self.dispatcher is not None:
            self.dispatcher.settled(pending)
        return pending

    # Acknowledging

    def acknowledge(self, consumer: Consumer, ids: Sequence[MessageIdData]) -> list[MessageIdData]:
        """Acknowledge messages one by one; those that are not known any more are left to `acknowledge_found`."""
        if self._moving.locked():
            return []
        unknown = [data for data in ids if not self._acknowledged(consumer, data)]
        return unknown if self.cursor is not None else []

    def _acknowledged(self, consumer: Consumer, data: MessageIdData) -> bool:
        pending = self.pending.get((data.ledger_id, data.entry_id))
        if pending is None:
            return False
        rest = pending.live & bits(data.ack_set) if data.ack_set else 0
        newly = pending.live & ~rest
        consumer.acknowledged.add(newly.bit_count())
        consumer.last_acked_at = self.topic.clock.now_ms()
        if not rest:
            self._settle(pending.entry_key)
            if self.cursor is not None:
                self.cursor.acknowledge(pending.position(pending.messages - 1), pending.first)
            return True
        if pending.consumer is not None:
            pending.consumer.unacked -= newly.bit_count()
        pending.live = rest
        if self.cursor is not None:
            for slot in range(pending.messages):
                if newly >> slot & 1:
                    self.cursor.acknowledge(pending.position(slot))
        return True

    async def acknowledge_found(self, ids: Sequence[MessageIdData]) -> None:
        """Acknowledge messages that are looked up in the topic."""
        moves = self._moves
        for data in ids:
            wanted = message_id(data)
            found = await self.topic.pools[WaitsFor.STORE].run(self._positions_of, wanted)
            if self._moving.locked() or self._moves != moves or self.cursor is None:
                return
            still = bits(data.ack_set)
            for slot, position in found:
                self.delivered_end = max(self.delivered_end, position.offset + 1)
                if not still >> slot & 1:
                    self.cursor.acknowledge(position)

    def _positions_of(self, wanted: MessageId) -> list[tuple[int, LogPosition]]:
        """The slots of an entry, with the places of their messages, of which some may be gone."""
        from storage.ledger.rows import message_id as id_of_row

        found: list[tuple[int, LogPosition]] = []
        start = MessageId(wanted.ledger_id, wanted.entry_id)
        for batch in self.topic.storage.read(start, self.read_compacted):
            for row in range(len(batch)):
                here = id_of_row(batch, row)
                if (here.ledger_id, here.entry_id) != (wanted.ledger_id, wanted.entry_id):
                    return found
                found.append((max(here.batch_index, 0), LogPosition(batch.column("offset")[row].as_py(), here)))
        return found

    def acknowledge_to(self, consumer: Consumer, data: MessageIdData) -> bool:
        """Acknowledge a message and all before it; False: it is not known any more."""
        if self._moving.locked():
            return True
        target = self.pending.get((data.ledger_id, data.entry_id))
        if target is None:
            return self.cursor is None
        # up to the slot before the first that is not acknowledged, if it is a part of a batch
        rest = target.live & bits(data.ack_set) if data.ack_set else 0
        slot = (rest & -rest).bit_length() - 2 if rest else target.messages - 1
        if slot >= 0:
            self._acknowledge_all(target.position(slot), consumer)
        elif target.offset:
            self._acknowledge_all(
                LogPosition(target.offset - 1, MessageId(data.ledger_id, data.entry_id - 1)), consumer
            )
        return True

    async def acknowledge_found_to(self, consumer: Consumer, data: MessageIdData) -> None:
        """As `acknowledge_to`, of a message that is looked up in the topic."""
        wanted, moves = message_id(data), self._moves
        found = await self.topic.pools[WaitsFor.STORE].run(self._positions_of, wanted)
        if self._moving.locked() or self._moves != moves:
            return
        still = bits(data.ack_set)
        done = [position for slot, position in found if not still >> slot & 1]
        if done and wanted.batch_index >= 0 and not still:
            done = [item for item in done if item.message_id.batch_index <= wanted.batch_index]
        if done:
            self._acknowledge_all(done[-1], consumer)

    def _acknowledge_all(self, position: LogPosition, consumer: Consumer) -> None:
        gone = [key for key, pending in self.pending.items() if pending.end <= position.offset + 1]
        for key in gone:
            consumer.acknowledged.add(self._settle(key).live.bit_count())
        consumer.last_acked_at = self.topic.clock.now_ms()
        self._acked_to = max(self._acked_to, position.offset)
        if self.cursor is not None:
            self.delivered_end = max(self.delivered_end, position.offset + 1)
            self.cursor.acknowledge_cumulative(position)

    async def flush(self, *, for_receipt: bool = False) -> None:
        """Write down what was acknowledged. Where another one moved the cursor, consumers begin again from there.

        `for_receipt`: raises CompactorError if it was not written; else it is tried again."""
        cursor = self.cursor
        if cursor is None:
            return
        self._flush_asked += 1
        asked = self._flush_asked
        try:
            async with self._flushing:
                if self._flush_done < asked:  # else one that began later has written this, too
                    covered = self._flush_asked
                    await self.topic.pools[WaitsFor.STORE].run(cursor.flush)
                    self._flush_done = covered
        except (Fenced, NotFound):  # moved, or deleted
            await self.reopen(cursor)
            if for_receipt:
                raise
        except Unavailable as error:
            if for_receipt:
                raise
            LOG.warning("acknowledgements of %s on %s wait: %s", self.name, self.topic.name, error)

    async def reopen(self, fenced: Cursor) -> None:
        """Take the cursor up again, as it is now, and disconnect the consumers: they come back and begin there. Once
        for a cursor that is fenced. Raises CompactorError; then it is fenced as before."""
        async with self._moving:
            if self.cursor is not fenced:
                return
            try:
                self.cursor = await self.topic.pools[WaitsFor.STORE].run(self._owned)
            except NotFound:  # it was deleted
                self.cursor = None
            else:
                self._restart()
        if self.cursor is None:
            await self.topic.remove_subscription(self)
        else:
            self.disconnect()

    def _restart(self) -> None:
        self._moves += 1
        self.pending.clear()
        if self.cursor is not None:
            self._begin_behind_mark()
        if self.dispatcher is not None:
            self.dispatcher.rewind()

    def disconnect(self) -> None:
        """Tell each consumer to come again."""
        for consumer in list(self.consumers):
            consumer.connection.close_consumer(consumer)

    # Moving

    async def seek(self, place: MessageId | int) -> None:
        """Begin again at a message id, or at a publish time; the consumers have to come again. Raises CompactorError;
        then they begin again where they were."""
        async with self._moving:
            if self.dispatcher is not None:
                self.dispatcher.pause()
            try:
                if self.cursor is not None:
                    # To its end, for a reset that goes on beside what comes next would undo that.
                    pool = self.topic.pools[WaitsFor.STORE]
                    self.cursor = await pool.run_to_end(self._sought, self.cursor, place)
                    self.delivered_end = 0
                else:
                    self.start = await self._reader_sought(place)
                    self._acked_to = -1
            finally:
                self._restart()
                self.disconnect()

    async def _reader_sought(self, place: MessageId | int) -> StartPosition:
        from storage.ledger.seek import StartTime

        if isinstance(place, MessageId):
            return await self._reader_position(place)
        pool = self.topic.pools[WaitsFor.STORE]
        found = await pool.run(first_at, self.topic.storage, StartTime(place), self.read_compacted)
        return await self._end() if found is None else entry_of(found.message_id)

    def _sought(self, cursor: Cursor, place: MessageId | int) -> Cursor:
        from storage.ledger.seek import StartTime

        storage = self.topic.storage
        start: StartPosition = place if isinstance(place, MessageId) else StartTime(place)
        if start == EARLIEST:
            mark = None
        else:
            found = None if start == LATEST else first_at(storage, start, self.read_compacted)
            mark = mark_delete_before(storage, LATEST if found is None else found.offset)
            if mark is None and found is not None and found.offset:  # raw is trimmed there
                mark = LogPosition(
                    found.offset - 1, MessageId(found.message_id.ledger_id, found.message_id.entry_id - 1)
                )
        try:
            cursor.reset(mark)
            return cursor
        except Fenced:
            owned = self._owned()
            owned.reset(mark)
            return owned

    # What it is

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self.dispatcher.consumers if self.dispatcher is not None else ()

    @property
    def sub_type(self) -> SubType | None:
        """The type of its consumers; None: there are none."""
        return self.consumers[0].sub_type if self.consumers else None

    def is_left(self, ticks: int) -> bool:
        """Counts a tick; whether it is a reader's, and was without one for so many."""
        self._ticks_alone = 0 if self.durable or self.consumers else self._ticks_alone + 1
        return self._ticks_alone > ticks

    @property
    def delivered_before(self) -> MessageId | None:
        """The place before the first message that is delivered: mark-delete, or what is before a reader's position. By
        it a client that has sought by time knows whether messages follow. None: not known."""
        if self.cursor is not None:
            return None if self.cursor.mark_delete is None else self.cursor.mark_delete.message_id
        if not isinstance(self.start, MessageId) or self.start in (EARLIEST, LATEST):
            return None
        return MessageId(self.start.ledger_id, self.start.entry_id - 1)

    @property
    def next_unacked(self) -> StartPosition:
        """Where delivering begins again."""
        if self.cursor is not None:
            mark = self.cursor.mark_delete
            return EARLIEST if mark is None else StartOffset(mark.offset + 1)
        return StartOffset(self._acked_to + 1) if self._acked_to >= 0 else self.start

    async def close(self) -> None:
        """Flush, when its last consumer is gone or the topic is."""
        dispatcher, self.dispatcher = self.dispatcher, None
        if dispatcher is not None:
            await dispatcher.close()
        await self.flush()


def entry_of(wanted: MessageId) -> MessageId:
    """Where a reader begins whose position is a message: at its entry, of which the client skips what is before."""
    if wanted in (EARLIEST, LATEST) or wanted.ledger_id > LATEST.ledger_id - 1:
        return LATEST if wanted.ledger_id > 0 else EARLIEST
    if wanted.ledger_id < 0:
        return EARLIEST
    return MessageId(wanted.ledger_id, max(wanted.entry_id, 0))


def check_type(subscription: Subscription, consumer: Consumer) -> None:
    """Raises Refused unless a consumer fits those that a subscription has."""
    there = subscription.sub_type
    if there is None:
        return
    if there != consumer.sub_type:
        raise Refused(
            ServerError.ConsumerBusy,
            f"Subscription is of different type: {subscription.name} has consumers of type "
            f"{SubType.Name(there)}, and this one asks for {SubType.Name(consumer.sub_type)}",
        )
    if there == CommandSubscribe.Exclusive:
        raise Refused(ServerError.ConsumerBusy, f"Exclusive consumer is already connected to {subscription.name}")
