"""The position of a subscription: what it has acknowledged, and where its reads begin.

    durable        a cursor in SQL (storage/cursor.py)
    not durable    a position in memory, for a reader; it ends with its last consumer

A durable position is opened again when the first consumer subscribes, because another process may have moved it. It is
fenced when another process moves or deletes the cursor: `reopen` loads it again. While `moving` is held the position
changes, and acknowledgements are dropped: they are about the earlier position.

For the event loop, except the functions that are marked for threads. Must not know: consumers, entries in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from api.broker.positions import mark_delete_before
from api.broker.serving.served_topic import ServedTopic
from storage.ack_ranges import AcknowledgedOffsets, bitmap_of
from storage.cursor import Cursor
from storage.errors import CursorExists, Fenced, NotFound, StateMayBeStale
from storage.metadata.records import READ_COMPACTED_PROPERTY
from storage.model import EARLIEST, LATEST, LogPosition, MessageId
from storage.positions import StartOffset, StartPosition, StartTime
from storage.reading.entry_reader import EntryReader

_READER_BYTES = 4 << 20
_READS_COMPACTED = {READ_COMPACTED_PROPERTY: "true"}
"""The property of a cursor whose consumers read compacted: a run waits for it (T1)."""


@dataclass(frozen=True)
class SubscribeRequest:
    """The options of a subscription that a consumer joins.

    `durable`: with a cursor. `start`: the position of a new cursor or of a reader. `resumes`: the reader continues an
    earlier read, as after a reconnection. `properties`: of a new cursor.
    """

    name: str
    durable: bool = True
    read_compacted: bool = False
    start: StartPosition = LATEST
    resumes: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


class ReaderStart(NamedTuple):
    """The start of a reader: its first position. `before`: the position of the message before that; None: there is
    none, or its offset is not known."""

    start: StartPosition
    before: LogPosition | None


class ReaderPosition:
    """Acknowledgements of a reader without a cursor, in memory: the interface of `Cursor`, without a database.

    The event loop changes it; `backlog` may be called from any thread.
    """

    def __init__(self, mark: LogPosition | None) -> None:
        """Make the position of a reader. `mark`: the message before the first one to be delivered; None: the first one
        is the first of the topic."""
        self.mark_delete = mark
        self._offsets = AcknowledgedOffsets(-1 if mark is None else mark.offset, _READER_BYTES)
        self._lock = Lock()

    def acknowledge(self, position: LogPosition, first_offset: int | None = None) -> None:
        """Acknowledge a message; with `first_offset`, all offsets from there to it."""
        with self._lock:
            self._offsets.try_add(position.offset if first_offset is None else first_offset, position.offset)
            self._advance_mark_delete(position)

    def acknowledge_slots(self, base_offset: int, mask: int, highest: LogPosition) -> None:
        """Acknowledge the offsets `base_offset` + i for each set bit i of `mask`. `highest`: the position of the
        last."""
        slots = bitmap_of(mask)
        with self._lock:
            self._offsets.try_add_slots(base_offset, slots)
            self._advance_mark_delete(highest)

    def acknowledge_cumulative(self, position: LogPosition) -> None:
        """Acknowledge the message at a position and all messages before it."""
        with self._lock:
            self._offsets.advance_mark(position.offset)
            self._advance_mark_delete(position)

    def acknowledged_mask(self, first_offset: int, count: int) -> int:
        """Return a mask of the acknowledged offsets among `count` offsets from `first_offset` on: bit i stands for
        `first_offset` + i."""
        return self._offsets.acknowledged_mask(first_offset, count)

    def acknowledge_before(self, offset: int) -> None:
        """Acknowledge all offsets before `offset`, the offset of the first delivered message."""
        with self._lock:
            self._offsets.advance_mark(offset - 1)

    def backlog(self, end: int, start: int) -> int:
        """Return the number of unacknowledged offsets from `start` to before `end`."""
        with self._lock:
            return max(end - start, 0) - self._offsets.count_acknowledged_after(start - 1, end)

    @property
    def acknowledged_to(self) -> int:
        """The largest offset up to which all offsets are acknowledged; -1: none is."""
        return self._offsets.acknowledged_to

    def _advance_mark_delete(self, position: LogPosition) -> None:
        """Move mark-delete to `position` if all offsets up to it are acknowledged, and drop the ranges before it."""
        if self._offsets.acknowledged_to >= position.offset and (
            self.mark_delete is None or self.mark_delete.offset < position.offset
        ):
            self.mark_delete = position
        self._offsets.advance_mark(self._offsets.acknowledged_to)


class SubscriptionPosition:
    """The position of one subscription: a cursor in SQL, or a reader's position in memory. `open` it first."""

    def __init__(self, topic: ServedTopic, request: SubscribeRequest) -> None:
        self.current: Cursor | ReaderPosition = ReaderPosition(None)
        self.durable = request.durable
        self.read_compacted = request.read_compacted
        self.is_new = False
        """True if `open` has created the cursor."""
        self.delivered_end = 0
        """The offset after the last entry that was delivered."""
        self.moving = asyncio.Lock()
        self.moves = 0
        """The number of times that the position was moved other than by an acknowledgement."""
        self._topic = topic
        self._name = request.name
        self._start: StartPosition = LATEST
        self._resumes = request.resumes
        self._has_begun = False
        self._known_end = 0
        """Messages exist before this offset; perhaps also after it."""

    @property
    def cursor(self) -> Cursor | None:
        """The cursor in SQL; None: the subscription is not durable."""
        return self.current if isinstance(self.current, Cursor) else None

    # Opening and moving

    async def open(self, request: SubscribeRequest) -> None:
        """Load or create the subscription's cursor, or find where its reader begins. Raises CompactorError."""
        if self.durable:
            self.current = await self._topic.store.run(self._find_or_create_cursor, request)
            self._begin_after_mark()
        else:
            await self._begin_reader(request.start)

    async def store_read_compacted_property(self) -> None:
        """Store in SQL, as a property of the cursor, that its consumers read compacted: compaction runs then wait for
        the cursor (T1). Raises CompactorError."""
        cursors, topic_id = self._topic.metadata.cursors, self._topic.record.id
        await self._topic.database.run(cursors.set_properties, topic_id, self._name, _READS_COMPACTED)

    async def mark_delete_before(self, start: StartPosition) -> LogPosition | None:
        """Return the mark-delete position of a cursor that begins at `start`; None: it begins at the topic's first
        message.

        Raises CompactorError.
        """
        return await self._topic.store.run(self._mark_delete_before, start)

    async def move(self, mark_delete: LogPosition | None, reader_start: StartPosition) -> None:
        """Move the subscription: reset its cursor to `mark_delete`, or begin its reader at `reader_start`. For the
        holder of `moving`. Raises CompactorError."""
        if isinstance(self.current, Cursor):
            # To its end: a reset that continues beside later work would undo that work.
            database = self._topic.database
            self.current = await database.run_without_deadline(self._reset_cursor, self.current, mark_delete)
            self.delivered_end = 0
        else:
            await self._begin_reader(reader_start)

    async def reload_cursor(self) -> None:
        """Load the fenced cursor from SQL again. For the holder of `moving`. Raises NotFound if it was deleted,
        CompactorError."""
        self.current = await self._topic.database.run(self._open_cursor)

    def restart(self) -> None:
        """Restart the reads at the first message that is not acknowledged. No entry counts as delivered before."""
        self.moves += 1
        self._has_begun = self._resumes = False
        if self.durable:
            self._begin_after_mark()

    # Reading

    @property
    def next_position(self) -> StartPosition:
        """The position of the first message that is not acknowledged, where the next read begins."""
        if isinstance(self.current, ReaderPosition):
            return StartOffset(self.current.acknowledged_to + 1) if self._has_begun else self._start
        mark = self.current.mark_delete
        return EARLIEST if mark is None else StartOffset(mark.offset + 1)

    def open_reader(self, start: StartPosition) -> EntryReader:
        """Return a reader of the topic from `start` on. For threads.

        Raises StateMayBeStale once for a resumed compacted read that would miss deletions (R7); the next call returns a
        reader without them.
        """
        try:
            reader = self._topic.storage.entry_reader(start, self.read_compacted, self._resumes)
        except StateMayBeStale:
            self._resumes = False
            raise
        self._resumes = False
        return reader

    def prepare_first_consumer(self, read_compacted: bool) -> None:
        """Prepare the reads for the first consumer of the subscription. With a cursor, the compacted read of an earlier
        consumer is not resumed (R7)."""
        self._resumes = self._resumes and not self.durable
        self.read_compacted = read_compacted

    def prepare_reread(self) -> None:
        """Prepare to read delivered entries again: if one was delivered, the next reader resumes the compacted read
        (R7) instead of beginning a new one."""
        self._resumes = self._resumes or self._has_begun

    def note_delivery(self, offset: int) -> None:
        """Note that the entry at `offset` is delivered. At the first delivery, a reader acknowledges all offsets before
        it."""
        if not self._has_begun:
            self._has_begun = True
            if isinstance(self.current, ReaderPosition):
                self.current.acknowledge_before(offset)

    def note_log_end(self, end: int) -> None:
        """Note that the log has all offsets before `end`, so that they may be acknowledged."""
        self._known_end = max(self._known_end, end)

    @property
    def mark_delete_or_start_id(self) -> MessageId:
        """The id of the message before the first one to be delivered: mark-delete, or the id before a reader's
        position.

        EARLIEST: the first message is delivered next, or the id is not known. A client that has sought a time learns
        from it whether messages follow.
        """
        mark = self.current.mark_delete
        if mark is not None:
            return mark.message_id
        if self.durable or not isinstance(self._start, MessageId) or self._start in (EARLIEST, LATEST):
            return EARLIEST
        return MessageId(self._start.ledger_id, self._start.entry_id - 1)

    def backlog(self, end: int, start: int) -> int | None:
        """Return the number of unacknowledged messages from `start` to before `end`. For threads.

        None: a reader begins at the id of a message, whose offset is not known before the first delivery.
        """
        current = self.current
        if isinstance(current, ReaderPosition) and current.acknowledged_to < 0 and self._start != EARLIEST:
            return None
        return current.backlog(end, start)

    def _begin_after_mark(self) -> None:
        """Let the next read begin at the message after mark-delete."""
        mark = self.current.mark_delete
        self._start = EARLIEST if mark is None else StartOffset(mark.offset + 1)
        self.delivered_end = max(self.delivered_end, 0 if mark is None else mark.offset + 1)

    async def _begin_reader(self, start: StartPosition) -> None:
        """Begin a reader without a cursor at `start`, with nothing acknowledged."""
        self._start, mark = await self._topic.store.run(self._resolve_reader_start, start)
        self.current = ReaderPosition(mark)

    # For threads

    def _find_or_create_cursor(self, request: SubscribeRequest) -> Cursor:
        """Load the subscription's cursor from SQL, or create it at `request.start`, and return it. Store that its
        consumers read compacted, if they do."""
        record, cursors = self._topic.record, self._topic.metadata.cursors
        marker = _READS_COMPACTED if request.read_compacted else {}
        try:
            cursor = self._open_cursor()
        except NotFound:
            mark = self._mark_delete_before(request.start)
            with suppress(CursorExists):  # another caller was first
                cursors.create(record.id, self._name, mark, {**request.properties, **marker})
                self.is_new = True
            return self._open_cursor()
        if marker and READ_COMPACTED_PROPERTY not in cursors.get(record.id, self._name).properties:
            cursors.set_properties(record.id, self._name, marker)
        return cursor

    def _open_cursor(self) -> Cursor:
        """Load the subscription's cursor from SQL. Raises NotFound if it does not exist."""
        return Cursor(
            self._topic.metadata,
            self._topic.record,
            self._name,
            self._topic.storage.first_raw_at_or_after,
            lambda: max(self.delivered_end, self._known_end),
        )

    def _reset_cursor(self, cursor: Cursor, mark: LogPosition | None) -> Cursor:
        """Reset a cursor in SQL to a mark-delete position, and return it. A fenced one is loaded again before."""
        try:
            cursor.reset(mark)
        except Fenced:
            cursor = self._open_cursor()
            cursor.reset(mark)
        return cursor

    def _mark_delete_before(self, start: StartPosition) -> LogPosition | None:
        """Return the position of the message before `start`; None: `start` is the topic's first message."""
        storage = self._topic.storage
        if start == EARLIEST:
            return None
        first = None if start == LATEST else storage.first_at(start, self.read_compacted)
        mark = mark_delete_before(storage, LATEST if first is None else StartOffset(first.offset))
        if mark is None and first is not None and first.offset:  # the raw messages before it are trimmed
            return LogPosition(first.offset - 1, MessageId(first.message_id.ledger_id, first.message_id.entry_id - 1))
        return mark

    def _resolve_reader_start(self, start: StartPosition) -> ReaderStart:
        """Return where a reader begins that requests `start`.

        `latest` is the present end of the topic, not its end at the first read.
        """
        storage = self._topic.storage
        if isinstance(start, StartTime):
            first = storage.first_at(start, self.read_compacted)
            start = LATEST if first is None else entry_id_of_message(first.message_id)
        if start != LATEST:
            return ReaderStart(start, None)
        last = mark_delete_before(storage, LATEST)
        return ReaderStart(EARLIEST, None) if last is None else ReaderStart(StartOffset(last.offset + 1), last)


def entry_id_of_message(message_id: MessageId) -> MessageId:
    """Return the id of the entry that contains a message, without an index in its batch; EARLIEST or LATEST for an id
    before or after all messages.

    A reader that begins at the message begins at this entry: its client skips the messages of the batch before it.
    """
    if message_id in (EARLIEST, LATEST) or message_id.ledger_id > LATEST.ledger_id - 1:
        return LATEST if message_id.ledger_id > 0 else EARLIEST
    if message_id.ledger_id < 0:
        return EARLIEST
    return MessageId(message_id.ledger_id, max(message_id.entry_id, 0))
