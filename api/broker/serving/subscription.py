"""A subscription of a topic: its consumers, the entries that they have, its position and its dispatcher.

Every door moves the same state: consumers acknowledge, REST and pulsar-admin skip, expire, reset and delete here while
the topic is open in this process. Delivered entries are kept until they are acknowledged, `MAX_PENDING` at most: then
shared consumers receive no more; for the single active consumer of the other types the oldest entry is removed, and
its acknowledgement is looked up in the topic.

For the event loop alone; calls that wait for database or store are awaited.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from api.broker.refusals import ConsumerBusy
from api.broker.serving.acknowledging import AckedEntry, Acknowledgements, AcksToLookUp
from api.broker.serving.consumer import Consumer, SubscriptionType
from api.broker.serving.dispatcher import Dispatcher
from api.broker.serving.pending_acks import EntryKey, Group, PendingAck, PendingAcks
from api.broker.serving.position import SubscribeRequest, SubscriptionPosition
from api.broker.serving.rates import Rate
from api.broker.serving.served_topic import ServedTopic
from storage.cursor import Cursor
from storage.entries.rebuild import DeliverableEntry
from storage.errors import CompactorError, Fenced, NotFound
from storage.model import EARLIEST, LogPosition, MessageId
from storage.positions import StartOffset, StartPosition, StartTime

LOG = logging.getLogger(__name__)
MAX_PENDING = 100_000
"""Delivered entries that are kept for their acknowledgement."""


class Subscription:
    """One subscription: its consumers, their entries, its position, its dispatcher. `open` it first."""

    def __init__(
        self,
        topic: ServedTopic,
        request: SubscribeRequest,
        on_deleted: Callable[[Subscription], Awaitable[object]],
    ) -> None:
        """Make a subscription, which is not open yet. `on_deleted` is called when another process has deleted the
        cursor."""
        self.topic = topic
        self.name = request.name
        self.durable = request.durable
        self.position = SubscriptionPosition(topic, request)
        self.pending = PendingAcks()
        self.dispatcher: Dispatcher | None = None
        self.dispatched = Rate()
        self.is_deleted = False
        self.acks = Acknowledgements(topic, self.name, self.position, self.pending, self._schedule_cursor_write)
        self._on_deleted = on_deleted
        self._ticks_alone = 0
        self._is_locating = False

    async def open(self, request: SubscribeRequest) -> None:
        """Load or create the subscription's cursor, or find where its reader begins. Raises CompactorError."""
        await self.position.open(request)
        self.acks.reset_acknowledged_end()

    async def prepare_for_consumer(self, request: SubscribeRequest) -> None:
        """Prepare a durable subscription for another consumer. A cursor without consumers is loaded again, because
        another process may have moved it. Raises CompactorError."""
        if not self.durable:
            return
        if not self.consumers:
            with suppress(Fenced):  # another process has moved the cursor
                await self.flush()
            await self.open(request)
        elif request.read_compacted:
            await self.position.store_read_compacted_property()

    # Consumers

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self.dispatcher.consumers if self.dispatcher is not None else ()

    @property
    def type(self) -> SubscriptionType | None:
        """The type of the subscription's consumers; None: it has none."""
        return self.consumers[0].type if self.consumers else None

    def prepare_dispatcher(self, consumer: Consumer) -> None:
        """Check that the dispatcher may add a consumer, which the caller adds next. For the first consumer, make the
        dispatcher.

        Raises ConsumerBusy or IncompatibleKeySharedConsumer for a consumer that does not fit the others.
        """
        present = self.type
        if present is None:
            if self.dispatcher is not None:
                self.topic.spawn(self.dispatcher.close())
            self.pending.release_all()  # the new dispatcher reads them again
            self.position.prepare_first_consumer(consumer.options.read_compacted)
            self._set_dispatcher(Dispatcher(self, self.position, self.topic, consumer))
        elif present is not consumer.type:
            raise ConsumerBusy(
                f"Subscription is of different type: {self.name} has consumers of type {present.pulsar_name}, and this "
                f"one asks for {consumer.type.pulsar_name}",
                "use the same type for all consumers",
                is_public=True,
            )
        elif present is SubscriptionType.EXCLUSIVE:
            raise ConsumerBusy(
                f"Exclusive consumer is already connected to {self.name}", "end it, or use a failover subscription",
                is_public=True,
            )  # fmt: skip
        elif 0 < self.topic.max_consumers <= len(self.consumers):
            raise ConsumerBusy(
                f"Subscription reached max consumers limit: {self.name} has {self.topic.max_consumers}",
                "end some, or raise broker.max-consumers-per-subscription",
                is_public=True,
            )
        assert self.dispatcher is not None
        self.dispatcher.check_compatible(consumer)

    def _set_dispatcher(self, dispatcher: Dispatcher | None) -> None:
        """Set the dispatcher, and the callbacks by which it hears of acknowledged and returned entries; None: it has
        none."""
        self.dispatcher = dispatcher
        self.acks.on_entry_acknowledged = None if dispatcher is None else dispatcher.cancel_redelivery
        self.pending.on_entry_left_consumer = None if dispatcher is None else dispatcher.note_entry_left_consumer

    def disconnect(self) -> None:
        """Remove all consumers, and ask the client of each to subscribe again."""
        consumers = list(self.consumers)
        self.remove_consumers(*consumers)
        for consumer in consumers:
            consumer.channel.disconnect()

    def add_permits(self, consumer: Consumer, permits: int) -> None:
        """Add permits of a consumer, which accepts `permits` more messages, and wake the dispatcher."""
        consumer.add_permits(permits, self.topic.clock.now_ms())
        self.wake()

    def wake(self) -> None:
        """Wake the dispatcher, because a consumer may accept more or the topic has new entries."""
        if self.dispatcher is not None:
            self.dispatcher.wake()

    def remove_consumers(self, *consumers: Consumer) -> None:
        """Remove consumers; others receive the entries that they have not acknowledged."""
        if self.dispatcher is not None:
            self.dispatcher.remove(*consumers)

    def redeliver(self, consumer: Consumer, keys: Sequence[EntryKey]) -> None:
        """Deliver entries of a consumer again; empty `keys`: all that it has not acknowledged."""
        if self.dispatcher is not None:
            self.dispatcher.redeliver(consumer, keys or None)

    def count_idle_tick(self, max_ticks: int) -> bool:
        """Count a call, about one a second, at which a reader's subscription has no consumer. Return whether it has had
        none for more than `max_ticks` calls.

        False for a durable subscription.
        """
        self._ticks_alone = 0 if self.durable or self.consumers else self._ticks_alone + 1
        return self._ticks_alone > max_ticks

    # Delivering, for the dispatcher

    @property
    def is_full(self) -> bool:
        return len(self.pending) >= MAX_PENDING

    def live_mask(self, entry: DeliverableEntry) -> int:
        return entry.live_mask & ~self.position.current.acknowledged_mask(entry.offset, entry.messages)

    def deliver(
        self, consumer: Consumer, entry: DeliverableEntry, live_mask: int, ack_start: int, group: Group
    ) -> None:
        ack_start = min(ack_start, entry.offset)
        self.position.note_delivery(ack_start)
        key = entry.ledger_id, entry.entry_id
        before = self.pending.get(key)
        pending = PendingAck(key, ack_start, entry.offset, entry.messages, entry.batched, live_mask, consumer, 0, group)
        if before is not None:
            pending.ack_start, pending.redeliveries = min(ack_start, before.ack_start), before.redeliveries
        self.pending.add(pending)
        self.position.delivered_end = max(self.position.delivered_end, entry.end)
        self.dispatched.add(live_mask.bit_count(), len(entry.data))
        if len(self.pending) > MAX_PENDING:
            oldest = self.pending.oldest()
            if oldest is not None:
                self.pending.remove(oldest.entry_key)
        consumer.send(entry, pending, self.topic.clock.now_ms())

    def release_all_pending(self) -> None:
        self.position.prepare_reread()
        self.pending.release_all()

    # Acknowledging

    def acknowledge(self, consumer: Consumer, acks: Sequence[AckedEntry], *, cumulative: bool = False) -> AcksToLookUp:
        """Acknowledge entries; `cumulative`: with all messages before them. Return those for
        `acks.acknowledge_by_lookup`. Raises Fenced; then the cursor is reopened."""
        if self.position.moving.locked():
            return []
        try:
            return self.acks.acknowledge(consumer, acks, cumulative=cumulative)
        except Fenced as error:
            cursor = self.position.cursor
            if cursor is not None:
                self.on_write_failed(cursor, error)
            raise

    def remove_acknowledged_pending(self) -> None:
        """Remove pending entries that another interface has acknowledged on the cursor, and wake the dispatcher."""
        self.acks.remove_acknowledged_pending()
        self.wake()

    def _schedule_cursor_write(self) -> None:
        """Schedule the write of the cursor after acknowledgements, and wake the dispatcher, which may have room now."""
        cursor = self.position.current
        if isinstance(cursor, Cursor):
            self.topic.cursor_writer.schedule(cursor, self)
        if self.dispatcher is not None and self.dispatcher.is_individual:
            self.dispatcher.wake()  # there may be room now

    # Writing

    async def flush(self) -> None:
        """Write the acknowledgements of the cursor now. Raises CompactorError; then they are written later.

        Does nothing for a subscription without a cursor.
        """
        cursor = self.position.cursor
        if cursor is not None:
            await self.topic.cursor_writer.flush(cursor)

    def on_write_failed(self, cursor: Cursor, error: CompactorError) -> None:
        """Begin to load the cursor again, because another process has moved or deleted it; consumers begin again at its
        new position."""
        if cursor is self.position.current:
            self.topic.spawn(self.replace_fenced_cursor(cursor))

    def start_mark_delete_search(self, cursor: Cursor) -> None:
        """Begin to search the topic for the id of the message that mark-delete has come to, unless a search is in
        progress."""
        if cursor is self.position.current and not self._is_locating:
            self._is_locating = True
            self.topic.spawn(self._find_mark_delete_id(cursor))

    async def _find_mark_delete_id(self, cursor: Cursor) -> None:
        """Search the topic for the id of the message that mark-delete has come to. If it is found, move mark-delete and
        schedule the cursor's write."""
        try:
            before = cursor.mark_delete
            with suppress(CompactorError):  # the next acknowledgement tries again
                await self.topic.store.run(cursor.resolve_mark_delete_id)
            if cursor.mark_delete != before and cursor is self.position.current and not self.is_deleted:
                self.topic.cursor_writer.schedule(cursor, self)
        finally:
            self._is_locating = False

    async def replace_fenced_cursor(self, fenced: Cursor) -> None:
        """Load the cursor from SQL again and disconnect the consumers, if `fenced` is still the subscription's cursor.

        If the cursor was deleted, the subscription ends. Raises CompactorError; then the cursor is fenced as before.
        """
        async with self.position.moving:
            if self.position.current is not fenced:
                return
            try:
                await self.position.reload_cursor()
            except NotFound:
                self.is_deleted = True
            self.topic.cursor_writer.unschedule(fenced)
            self.restart()
        if self.is_deleted:
            await self._on_deleted(self)
        else:
            self.disconnect()

    def restart(self) -> None:
        """Restart the delivery at the first message that is not acknowledged, and drop the pending entries."""
        self.acks.clear()
        self.position.restart()
        if self.dispatcher is not None:
            self.dispatcher.rewind()

    # Moving

    async def seek(self, start: MessageId | StartTime) -> None:
        """Move the subscription to a message id or a publish time, and disconnect the consumers, which subscribe again.

        Raises CompactorError; then the consumers begin again where they were.
        """
        # Before the move, and not during it: threads of the store wait for `reset`, which waits for other moves.
        mark = await self.position.mark_delete_before(start) if self.durable else None
        await self._move_position(mark, start)

    async def reset(self, mark_delete: LogPosition | None) -> None:
        """Move the subscription to the message after `mark_delete`, None: to the first message, and disconnect the
        consumers.

        `mark_delete` and all messages before it count as acknowledged. Raises CompactorError.
        """
        await self._move_position(mark_delete, EARLIEST if mark_delete is None else StartOffset(mark_delete.offset + 1))

    async def _move_position(self, mark: LogPosition | None, start: StartPosition) -> None:
        """Move the cursor to the mark-delete position `mark`, or the reader to `start`, and disconnect the consumers,
        also after an error."""
        async with self.position.moving:
            if self.dispatcher is not None:
                self.dispatcher.pause()
            try:
                await self.position.move(mark, start)
            finally:
                self.restart()
                self.disconnect()

    async def close(self) -> None:
        """Stop the delivery, and write the acknowledgements of the cursor. Raises nothing: messages whose
        acknowledgement cannot be written are delivered again."""
        dispatcher = self.dispatcher
        self._set_dispatcher(None)
        if dispatcher is not None:
            await dispatcher.close()
        self.pending.release_all()
        if not self.is_deleted:
            try:
                await self.flush()
            except CompactorError as error:
                LOG.warning("acknowledgements of %s on %s are not written: %s", self.name, self.topic.name, error)
