"""A durable named cursor as its owner has it: acknowledge, flush, resume (Pulsar's ManagedCursor).

    acknowledge             in memory; what is contiguous moves the mark, the rest are bits (storage/ack_ranges.py)
    flush                   one transaction: mark-delete and the ranges that have changed, merged with what is stored
    open                    the position and the bits that were flushed; all else is delivered again

Invariants:
- What was acknowledged and flushed is never delivered again; mark-delete never passes what was acknowledged, and never
  goes back but by `reset`. What was not flushed when the owner dies, or found no room (`dropped`), is delivered
  again: at least once, as Pulsar beyond managedLedgerMaxUnackedRangesToPersist.
- Two owners of one cursor lose nothing of each other. After a reset by another, or a deletion, an owner is Fenced, for
  good: it must open the cursor again.
- Nothing is acknowledged that does not exist yet. The owner's `end` says where the topic ends; it is asked when an
  acknowledgement goes beyond the end that it last gave, once a page of messages for a reader that has come to the end.
- Nothing runs beside the owner. A flush is due by the number of acknowledgements that have gathered, or by the age of
  the oldest; it is made by the next call, or by `flush_due`, which an owner may call from a loop or thread of its own.
  The settings None, None leave it to the owner alone, as an event loop wants that must not wait for SQL.

The id of mark-delete is the exact one of the message there. An owner hands ids in with acknowledgements; where the
mark comes to a message whose id is not known, `locate` is asked, once a flush at most. If that message is gone,
mark-delete stays and the ranges say the rest (R9): it never jumps to the next message that still exists.

Safe to share between threads. May go wrong in any call that flushes: Unavailable (nothing is lost; the next call tries
again), Fenced, NotFound. Must not know: where messages are, SQL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from storage.ack_ranges import RANGE_OFFSETS, AcknowledgedOffsets, bitmap_of, joined
from storage.clock import Clock
from storage.errors import CompactorError, DataLoss, Fenced, InvalidInput, NotFound, OffsetOutOfRange, Unavailable
from storage.metadata.cursor_ranges import CursorState, CursorUpdate, MergeResult
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import LogPosition

End = Callable[[], int]
"""The offset of the topic's next message, also in unsealed segments, as `SnapshotReader.end` gives it."""
Locate = Callable[[int], LogPosition | None]
"""The first message at or behind an offset that still exists, as `Topic.locate` gives it; None: there is none."""


@dataclass(frozen=True)
class CursorSettings:
    """When to flush, and how much to hold. None: not for this reason.

    `max_held_bytes`: of bitmaps in memory; a flush takes as much again of those that it writes.
    """

    flush_acknowledgements: int | None = 1000
    flush_ms: int | None = 1000
    max_held_bytes: int = 16 << 20


class Cursor:
    """One owner's view of a cursor. Close it, or the last acknowledgements are delivered again."""

    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        topic: TopicRecord,
        name: str,
        locate: Locate,
        end: End,
        settings: CursorSettings = CursorSettings(),
    ) -> None:
        """Opens the cursor, which must exist. Raises NotFound; InvalidInput for `__compaction` (A4)."""
        self._metadata = metadata
        self._clock = clock
        self._topic = topic
        self._locate = locate
        self._end = end
        self._end_seen = 0
        """Below this offset there are messages; the topic's end is asked for again only behind it."""
        self._settings = settings
        self.name = name
        self._state = threading.Lock()
        self._flushing = threading.Lock()
        self._taken: tuple[int, int | None] = (0, None)
        """Of the flush that is under way: acknowledgements, and when the oldest was gathered."""
        self._fenced: Fenced | None = None
        self._resume(metadata.cursors.load(topic.id, name, settings.max_held_bytes))

    def _resume(self, loaded: CursorState) -> None:
        self._incarnation = loaded.incarnation
        self._stored = self._position = loaded.record.mark_delete
        self._offsets = AcknowledgedOffsets(_offset(self._stored), self._settings.max_held_bytes)
        for number, bitmap in loaded.ranges.items():
            self._offsets.adopt(number, bitmap)
        self._highest: LogPosition | None = None
        self._gone = -1
        self._gathered = 0
        self._oldest: int | None = None
        self.left_out = loaded.left_out
        """Stored bitmaps that went beyond `max_held_bytes` when the cursor was opened: delivered again, not lost."""

    @property
    def mark_delete(self) -> LogPosition | None:
        """The last message up to which all is acknowledged and whose id is known; flushed or not. None: nothing."""
        with self._state:
            return self._position

    @property
    def dropped(self) -> int:
        """Acknowledgements that found no room since the cursor was opened; their messages are delivered again."""
        with self._state:
            return self._offsets.dropped

    @property
    def held_bytes(self) -> int:
        """What the bitmaps take in memory, at most."""
        with self._state:
            return self._offsets.held_bytes

    def acknowledge(self, position: LogPosition, first: int | None = None) -> None:
        """Acknowledge one message; with `first`, all offsets from there to it.

        `first` is for offsets of which a reader is given nothing: those that compaction took, markers. Without it they
        would be holes forever. Raises InvalidInput for an offset at or behind the topic's end: the message that comes
        there would never be delivered.
        """
        first = position.offset if first is None else first
        if not 0 <= first <= position.offset:
            raise InvalidInput(
                f"offsets from {first} to {position.offset} of {self._topic.name} cannot be acknowledged",
                "an offset is 0 or more, and the first is not behind the last",
            )
        self._check_exists(position.offset)
        with self._state:
            self._check()
            if first <= self._offsets.end + 1:
                self._move(position)
            elif self._offsets.add(first, position.offset) and _offset(self._highest) < position.offset:
                self._highest = position
            is_due = self._gather()
        if is_due:
            self.flush()

    def acknowledge_slots(self, base: int, mask: int, highest: LogPosition) -> None:
        """Acknowledge the offsets `base` + i for each set bit i of `mask`, in one step however many there are.

        `highest` is the position of the last of them. Raises InvalidInput for an offset at or after the topic's end.
        """
        self._check_exists(highest.offset)
        with self._state:
            self._check()
            if self._offsets.add_slots(base, bitmap_of(mask)) and _offset(self._highest) < highest.offset:
                self._highest = highest
            is_due = self._gather()
        if is_due:
            self.flush()

    def acknowledge_cumulative(self, position: LogPosition) -> None:
        """Acknowledge a message and all before it."""
        self.acknowledge(position, 0)

    def acknowledge_below(self, offset: int) -> None:
        """Acknowledge all before an offset, at most the topic's end; the message there need not exist any more.

        Mark-delete then stands on the last of them, if `locate` finds it; if not, the ranges say so. Raises
        InvalidInput for an offset behind the topic's end.
        """
        last = offset - 1
        if last < 0:
            return
        found = self._locate(last)
        if found is not None and found.offset == last:
            self.acknowledge_cumulative(found)
            return
        self._check_exists(last)
        with self._state:
            self._check()
            self._offsets.add(0, last)
            is_due = self._gather()
        if is_due:
            self.flush()

    def is_acknowledged(self, offset: int) -> bool:
        with self._state:
            return offset in self._offsets

    def acknowledged_mask(self, first: int, count: int) -> int:
        """Return which of `count` offsets from `first` on are acknowledged: bit i stands for `first` + i."""
        with self._state:
            return self._offsets.mask(first, count)

    def unacknowledged(self, end: int, start: int = 0) -> Iterator[range]:
        """The offsets from `start` to before `end` that are to be delivered, as ranges in order; touching ones are one.

        What is acknowledged meanwhile may or may not be among them. A range of offsets is in memory at a time.
        """
        return joined(self._unacknowledged(start, end))

    def backlog(self, end: int, start: int = 0) -> int:
        """How many offsets from `start` to before `end` are not acknowledged."""
        with self._state:
            return max(end - start, 0) - self._offsets.acknowledged_above(start - 1, end)

    def skip(self, count: int, end: int, start: int = 0) -> int:
        """Acknowledge the first `count` messages from `start` to before `end` that are not; how many that were.

        `start`: where the topic's messages begin; what is trimmed is no message, and counts as acknowledged.
        """
        remaining, last = count, -1
        for gap in self.unacknowledged(end, start):
            if remaining <= 0:
                break
            taken = min(remaining, len(gap))
            last, remaining = gap[taken - 1], remaining - taken
        if last >= 0:
            self.acknowledge_below(last + 1)
        return count - remaining

    def reset(self, position: LogPosition | None) -> None:
        """Move the cursor, at once: `position` is the last message that counts as acknowledged; None: none does.

        Every other owner is Fenced. What was acknowledged and not flushed is dropped.
        """
        with self._flushing:
            with self._state:
                self._check()
            self._metadata.cursors.reset(self._topic.id, self.name, position)
            loaded = self._metadata.cursors.load(self._topic.id, self.name, self._settings.max_held_bytes)
            with self._state:
                self._resume(loaded)

    @property
    def due(self) -> bool:
        """Whether the settings want a flush now."""
        with self._state:
            return self._is_due()

    def flush_due(self) -> bool:
        """Flush if it is due; whether it was."""
        with self._state:
            self._check()
            if not self._is_due():
                return False
        self.flush()
        return True

    def flush(self) -> None:
        """Write down all that was acknowledged so far. When it returns, none of that is ever delivered again."""
        with self._flushing:
            self._locate_mark()
            update = self._take()
            if update is None:
                return
            try:
                merged = self._metadata.cursors.merge(
                    update.topic_id, update.name, update.incarnation, update.mark_delete, update.changed
                )
            except BaseException as error:
                self._put_back(update, error)
                raise
            self._note_written(update, merged)

    def locate_mark(self) -> None:
        """Find the id of the message that mark-delete has come to, where it is not known; the next flush writes it.

        Reads the topic, beside flushes: a store that hangs holds up none. For owners that flush with `flush_together`.
        Raises Fenced.
        """
        self._locate_mark()

    @property
    def progress(self) -> tuple[LogPosition | None, int]:
        """`mark_delete` and `acknowledged_end`, of one moment."""
        with self._state:
            return self._position, self._offsets.end

    @property
    def acknowledged_end(self) -> int:
        """The last offset up to which all is acknowledged; its message's id may not be known yet."""
        with self._state:
            return self._offsets.end

    @property
    def lacks_mark(self) -> bool:
        """Whether mark-delete can move once `locate_mark` has found an id."""
        with self._state:
            return self._lacks_mark()

    def _locate_mark(self) -> None:
        with self._state:
            self._check()
            if not self._lacks_mark():
                return
            end, highest, incarnation = self._offsets.end, self._highest, self._incarnation
        position = self._located(end, highest)
        with self._state:
            if position is not None and self._incarnation == incarnation:  # else a reset came meanwhile
                self._move(position)

    def _take(self) -> CursorUpdate | None:
        """Return what is to be written; None: nothing is. For the holder of `_flushing`."""
        with self._state:
            self._check()
            gathered, self._gathered = self._gathered, 0
            oldest, self._oldest = self._oldest, None
            if not self._is_dirty():
                return None
            self._taken = gathered, oldest
            return CursorUpdate(
                self._topic.id, self.name, self._incarnation, self._position, self._offsets.take_changed()
            )

    def _put_back(self, update: CursorUpdate, error: BaseException) -> None:
        """Count what was taken as not written again. For the holder of `_flushing`."""
        if isinstance(error, Fenced):
            self._fenced = error
        gathered, oldest = self._taken
        with self._state:
            self._offsets.give_back(update.changed)
            self._gathered += gathered
            self._oldest = oldest if oldest is not None else self._oldest

    def _note_written(self, update: CursorUpdate, merged: MergeResult) -> None:
        """Take over the result of a write, merged with what other owners wrote. For the holder of `_flushing`."""
        with self._state:
            self._stored = merged.mark_delete
            for acknowledged in (update.mark_delete, merged.mark_delete):
                if acknowledged is not None:
                    self._move(acknowledged)
            for number, bitmap in merged.ranges.items():
                self._offsets.adopt(number, bitmap)
            if self._is_dirty() and self._oldest is None:
                # Another owner's acknowledgements closed a hole: mark-delete moves with the next flush.
                self._oldest = self._clock.now_ms()

    def close(self) -> None:
        """Flush. The object must not be used afterwards."""
        self.flush()
        self.flush()  # the first may have learned from another owner that a hole is closed

    def _check_exists(self, offset: int) -> None:
        """Raises InvalidInput for an offset at or behind the topic's end."""
        if offset >= self._end_seen:
            self._end_seen = max(self._end_seen, self._end())
            if offset >= self._end_seen:
                raise InvalidInput(
                    f"offset {offset} of {self._topic.name} cannot be acknowledged: the topic ends before "
                    f"offset {self._end_seen}",
                    "acknowledge only messages that were delivered",
                )

    def _unacknowledged(self, start: int, end: int) -> Iterator[range]:
        while start < end:
            with self._state:
                start = max(start, self._offsets.end + 1)
                stop = min(end, (start | (RANGE_OFFSETS - 1)) + 1)
                parts = list(self._offsets.gaps(start, stop))
            yield from parts
            start = stop

    def _located(self, end: int, highest: LogPosition | None) -> LogPosition | None:
        """Return the position of the message at `end`; None if its id cannot be had now."""
        if highest is not None and highest.offset == end:
            return highest
        try:
            found = self._locate(end)
        except Unavailable:
            return None  # the ranges can be written all the same; the next flush asks again
        except (NotFound, OffsetOutOfRange, DataLoss):
            found = None
        if found is None or found.offset != end:
            self._gone = end
            return None
        return found

    def _move(self, position: LogPosition) -> None:
        """All up to `position` is acknowledged."""
        if position.offset > _offset(self._position):
            self._position = position
            self._offsets.move_mark(position.offset)

    def _gather(self) -> bool:
        """Count an acknowledgement. Return whether a flush is due."""
        self._gathered += 1
        if self._oldest is None:
            self._oldest = self._clock.now_ms()
        return self._is_due()

    def _is_dirty(self) -> bool:
        return self._offsets.changed or self._lacks_mark() or _offset(self._position) > _offset(self._stored)

    def _lacks_mark(self) -> bool:
        end = self._offsets.end
        return end > _offset(self._position) and end != self._gone

    def _is_due(self) -> bool:
        settings = self._settings
        if settings.flush_acknowledgements is not None and self._gathered >= settings.flush_acknowledgements:
            return True
        if settings.flush_ms is None or self._oldest is None:
            return False
        return self._clock.now_ms() - self._oldest >= settings.flush_ms

    def _check(self) -> None:
        if self._fenced is not None:
            raise Fenced(self._fenced.message, self._fenced.remedy)


def flush_together(metadata: MetadataStore, cursors: Sequence[Cursor]) -> dict[Cursor, CompactorError]:
    """Write what several cursors acknowledged, in one transaction. Return the errors of those that were not written.

    No topic is read: a mark-delete whose id is not known stays until `Cursor.locate_mark`. A cursor that another
    thread flushes is not waited for: its error is Unavailable. Raises what the database raises; then none was written.
    """
    errors: dict[Cursor, CompactorError] = {}
    updates: dict[Cursor, CursorUpdate] = {}
    held: list[Cursor] = []
    try:
        for cursor in cursors:
            if not cursor._flushing.acquire(blocking=False):
                errors[cursor] = Unavailable(f"the cursor {cursor.name!r} is being written already", "try again")
                continue
            held.append(cursor)
            try:
                update = cursor._take()
            except Fenced as error:
                errors[cursor] = error
                continue
            if update is not None:
                updates[cursor] = update
        try:
            results = metadata.cursors.merge_all(list(updates.values())) if updates else []
        except BaseException as error:
            for cursor, update in updates.items():
                cursor._put_back(update, error)
            raise
        for (cursor, update), result in zip(updates.items(), results, strict=True):
            if isinstance(result, CompactorError):
                cursor._put_back(update, result)
                errors[cursor] = result
            else:
                cursor._note_written(update, result)
    finally:
        for cursor in held:
            cursor._flushing.release()
    return errors


def _offset(position: LogPosition | None) -> int:
    return position.offset if position is not None else -1
