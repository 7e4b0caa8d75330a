"""A durable named cursor as its owner uses it: acknowledge, flush, resume (Pulsar's ManagedCursor).

    acknowledge             in memory: a contiguous offset moves the mark, others become bits (storage/ack_ranges.py)
    flush                   one transaction: mark-delete and the changed ranges are merged with the stored ones
    open                    the flushed position and bits are loaded; all other messages are delivered again

Invariants:
- A message that was acknowledged and flushed is never delivered again; mark-delete never passes an unacknowledged
  message, and goes back only by `reset`. Acknowledgements that were not flushed when the owner dies, or that were
  dropped for lack of memory (`dropped_acknowledgements`), are lost, and their messages delivered again: at least once,
  as Pulsar beyond managedLedgerMaxUnackedRangesToPersist.
- Two owners of one cursor lose no acknowledgement of each other. After a reset by another owner, or a deletion, an
  owner stays Fenced: it must open the cursor again.
- Only existing messages can be acknowledged. The owner's `end` returns the topic's end; it is called when an
  acknowledgement goes beyond the end that it last returned, once a page for a reader at the topic's end.
- Only `flush`, `close`, `reset` and `flush_together` write, when the owner calls them: an event loop must not wait for
  SQL.

The id of mark-delete is the exact one of its message. An owner passes ids with acknowledgements; if the mark comes to a
message whose id is not known, `locate` is called, once a flush at most. If that message is deleted, mark-delete stays
and the ranges record the rest (R9): it never jumps to the next message that still exists.

Safe to share between threads. Each call that flushes may raise Unavailable (nothing is lost; the next call tries
again), Fenced, NotFound. Must not know: the places of messages, SQL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from storage.ack_ranges import RANGE_OFFSETS, AcknowledgedOffsets, bitmap_of, join_adjacent_ranges
from storage.errors import CompactorError, DataLoss, Fenced, InvalidInput, NotFound, OffsetOutOfRange, Unavailable
from storage.metadata.cursor_ranges import CursorState, CursorUpdate, MergeResult
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import LogPosition

End = Callable[[], int]
"""The offset of the topic's next message, also in unsealed segments, as `SnapshotReader.end` returns it."""
Locate = Callable[[int], LogPosition | None]
"""The position of the first raw message at or after an offset (`Topic.first_raw_at_or_after`); None: there is none."""


MAX_HELD_BYTES = 16 << 20
"""The default bound of the bitmaps in memory; a flush needs as much again for the bitmaps that it writes."""


class CursorProgress(NamedTuple):
    """A cursor's mark-delete position, and the last offset up to which all are acknowledged, at one moment."""

    mark_delete: LogPosition | None
    acknowledged_to: int


class Cursor:
    """A durable cursor as one owner uses it: acknowledgements are in memory until a flush stores them.

    Without `close`, the messages of the last acknowledgements are delivered again.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        topic: TopicRecord,
        name: str,
        locate: Locate,
        end: End,
        max_held_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        """Open the cursor, which must exist. Raises NotFound, CompactionCursorProtected (A4)."""
        self._metadata = metadata
        self._topic = topic
        self._locate = locate
        self._end = end
        self._end_seen = 0
        """The topic's end as it was read last; it is read again for an offset at or after it."""
        self._max_held_bytes = max_held_bytes
        self.name = name
        self._state = threading.Lock()
        self._flushing = threading.Lock()
        self._fenced: Fenced | None = None
        self._restore_state(metadata.cursors.load(topic.id, name, max_held_bytes))

    def _restore_state(self, loaded: CursorState) -> None:
        self._incarnation = loaded.incarnation
        self._stored = self._position = loaded.record.mark_delete
        self._offsets = AcknowledgedOffsets(_offset_or_minus_one(self._stored), self._max_held_bytes)
        for number, bitmap in loaded.ranges.items():
            self._offsets.try_merge_stored(number, bitmap)
        self._highest: LogPosition | None = None
        self._missing_mark = -1
        """The offset to which mark-delete cannot move, since its message is deleted."""

    @property
    def mark_delete(self) -> LogPosition | None:
        """The last message up to which all are acknowledged and whose id is known, flushed or not; None: none."""
        with self._state:
            return self._position

    @property
    def dropped_acknowledgements(self) -> int:
        """The number of acknowledgements dropped for lack of memory since the cursor was opened."""
        with self._state:
            return self._offsets.dropped

    @property
    def bitmap_bytes(self) -> int:
        """An upper bound of the memory, in bytes, of the bitmaps of acknowledged offsets."""
        with self._state:
            return self._offsets.bitmap_bytes

    def acknowledge(self, position: LogPosition, first_offset: int | None = None) -> None:
        """Acknowledge one message; with `first_offset`, all offsets from `first_offset` to it.

        `first_offset` is for offsets without a message for the reader: compacted ones, and markers. Without it they
        would stay holes forever. Raises Fenced; InvalidInput for an offset at or after the topic's end: the message
        that is appended there would never be delivered.
        """
        first_offset = position.offset if first_offset is None else first_offset
        if not 0 <= first_offset <= position.offset:
            raise InvalidInput(
                f"offsets from {first_offset} to {position.offset} of {self._topic.name} cannot be acknowledged",
                "an offset is 0 or more, and the first is not after the last",
            )
        self._check_below_end(position.offset)
        with self._state:
            self._check_not_fenced()
            if first_offset <= self._offsets.acknowledged_to + 1:
                self._advance_mark_delete(position)
            elif (
                self._offsets.try_add(first_offset, position.offset)
                and _offset_or_minus_one(self._highest) < position.offset
            ):
                self._highest = position

    def acknowledge_slots(self, base: int, mask: int, highest: LogPosition) -> None:
        """Acknowledge the offsets `base` + i for each set bit i of `mask`, in one step however many there are.

        `highest` is the position of the last of them. Raises Fenced; InvalidInput for an offset at or after the topic's
        end.
        """
        self._check_below_end(highest.offset)
        with self._state:
            self._check_not_fenced()
            if (
                self._offsets.try_add_slots(base, bitmap_of(mask))
                and _offset_or_minus_one(self._highest) < highest.offset
            ):
                self._highest = highest

    def acknowledge_cumulative(self, position: LogPosition) -> None:
        """Acknowledge a message and all before it. Raises as `acknowledge`."""
        self.acknowledge(position, 0)

    def acknowledge_below(self, offset: int) -> None:
        """Acknowledge all offsets before an offset, which is at most the topic's end; 0 acknowledges nothing.

        Mark-delete moves to the last of them if that message still exists; otherwise the ranges record it. Raises
        Fenced; InvalidInput for an offset after the topic's end; the errors of `locate`.
        """
        last = offset - 1
        if last < 0:
            return
        position = self._locate(last)
        if position is not None and position.offset == last:
            self.acknowledge_cumulative(position)
            return
        self._check_below_end(last)
        with self._state:
            self._check_not_fenced()
            self._offsets.try_add(0, last)

    def is_acknowledged(self, offset: int) -> bool:
        """Return whether an offset is acknowledged, flushed or not."""
        with self._state:
            return offset in self._offsets

    def acknowledged_mask(self, first: int, count: int) -> int:
        """Return which of `count` offsets from `first` on are acknowledged: bit i stands for `first` + i."""
        with self._state:
            return self._offsets.acknowledged_mask(first, count)

    def unacknowledged(self, end: int, start: int = 0) -> Iterator[range]:
        """Yield the unacknowledged offsets from `start` to before `end`, as ranges in order that do not touch.

        An offset that is acknowledged meanwhile may or may not be among them. One range of 2^19 offsets is in memory at
        a time.
        """
        return join_adjacent_ranges(self._unacknowledged_by_range(start, end))

    def backlog(self, end: int, start: int = 0) -> int:
        """Return the number of unacknowledged offsets from `start` to before `end`."""
        with self._state:
            return max(end - start, 0) - self._offsets.count_acknowledged_after(start - 1, end)

    def skip(self, count: int, end: int, start: int = 0) -> int:
        """Acknowledge the first `count` unacknowledged messages from `start` to before `end`. Returns their number.

        `start`: the first offset of the topic; trimmed offsets, which are below it, count as acknowledged, too. There
        may be fewer than `count`. Raises as `acknowledge_below`.
        """
        remaining, last = count, -1
        for gap in self.unacknowledged(end, start):
            if remaining <= 0:
                break
            skipped = min(remaining, len(gap))
            last, remaining = gap[skipped - 1], remaining - skipped
        if last >= 0:
            self.acknowledge_below(last + 1)
        return count - remaining

    def reset(self, position: LogPosition | None) -> None:
        """Move the stored cursor: `position` is the last message that counts as acknowledged; None: none does.

        Every other owner is Fenced. Acknowledgements that were not flushed are dropped. Raises Fenced, NotFound,
        CompactionCursorProtected (A4).
        """
        with self._flushing:
            with self._state:
                self._check_not_fenced()
            self._metadata.cursors.reset(self._topic.id, self.name, position)
            loaded = self._metadata.cursors.load(self._topic.id, self.name, self._max_held_bytes)
            with self._state:
                self._restore_state(loaded)

    def flush(self) -> None:
        """Store all acknowledgements: their messages are never delivered again.

        Raises Fenced, NotFound, Unavailable; after Unavailable nothing is lost, and the next flush tries again.
        """
        with self._flushing:
            self.resolve_mark_delete_id()
            for error in _flush_locked(self._metadata, [self]).values():
                raise error

    def resolve_mark_delete_id(self) -> None:
        """Move mark-delete to the last message up to which all are acknowledged, after a look-up of the message's id.

        Does nothing if mark-delete is there already. The next flush stores the position. Raises Fenced. This reads the
        topic outside the flush lock, so a store that hangs delays no `flush_together` of the owner.
        """
        with self._state:
            self._check_not_fenced()
            if not self._lacks_mark_delete_id():
                return
            end, highest, incarnation = self._offsets.acknowledged_to, self._highest, self._incarnation
        position = self._find_mark_delete_position(end, highest)
        with self._state:
            if position is not None and self._incarnation == incarnation:  # else a reset came meanwhile
                self._advance_mark_delete(position)

    @property
    def progress(self) -> CursorProgress:
        """`mark_delete` and `acknowledged_to`, read at the same moment."""
        with self._state:
            return CursorProgress(self._position, self._offsets.acknowledged_to)

    @property
    def acknowledged_to(self) -> int:
        """The last offset up to which all are acknowledged; its message's id may not be known yet."""
        with self._state:
            return self._offsets.acknowledged_to

    @property
    def lacks_mark_delete_id(self) -> bool:
        """True if mark-delete can move as soon as `resolve_mark_delete_id` has found the id of its message."""
        with self._state:
            return self._lacks_mark_delete_id()

    def _take_update(self) -> CursorUpdate | None:
        """Return the changes that are not stored yet, and count them as stored; None: there are none.

        The caller holds `_flushing`.
        """
        with self._state:
            self._check_not_fenced()
            if not self._is_dirty():
                return None
            return CursorUpdate(
                self._topic.id, self.name, self._incarnation, self._position, self._offsets.take_changed()
            )

    def _return_unwritten_update(self, update: CursorUpdate, error: BaseException) -> None:
        """Count the changes of an update that could not be stored as not stored again. The caller holds `_flushing`."""
        if isinstance(error, Fenced):
            self._fenced = error
        with self._state:
            self._offsets.mark_changed(update.changed)

    def _adopt_merge_result(self, update: CursorUpdate, merged: MergeResult) -> None:
        """Add the stored state, which includes the updates of other owners, to the one in memory.

        The caller holds `_flushing`.
        """
        with self._state:
            self._stored = merged.mark_delete
            for acknowledged in (update.mark_delete, merged.mark_delete):
                if acknowledged is not None:
                    self._advance_mark_delete(acknowledged)
            for number, bitmap in merged.ranges.items():
                self._offsets.try_merge_stored(number, bitmap)

    def close(self) -> None:
        """Store all acknowledgements; the object must not be used afterwards. Raises as `flush`."""
        self.flush()
        self.flush()  # the first may have received another owner's acknowledgements, which close a hole

    def _check_below_end(self, offset: int) -> None:
        """Raise InvalidInput for an offset at or after the topic's end."""
        if offset >= self._end_seen:
            self._end_seen = max(self._end_seen, self._end())
            if offset >= self._end_seen:
                raise InvalidInput(
                    f"offset {offset} of {self._topic.name} cannot be acknowledged: the topic ends before "
                    f"offset {self._end_seen}",
                    "acknowledge only messages that were delivered",
                )

    def _unacknowledged_by_range(self, start: int, end: int) -> Iterator[range]:
        while start < end:
            with self._state:
                start = max(start, self._offsets.acknowledged_to + 1)
                stop = min(end, (start | (RANGE_OFFSETS - 1)) + 1)
                parts = list(self._offsets.gaps(start, stop))
            yield from parts
            start = stop

    def _find_mark_delete_position(self, end: int, highest: LogPosition | None) -> LogPosition | None:
        """Return the position of the message at offset `end`; None: the message is deleted, or cannot be read now.

        `highest`: a position that is known, and is used if it is the one.
        """
        if highest is not None and highest.offset == end:
            return highest
        try:
            position = self._locate(end)
        except Unavailable:
            return None  # the ranges can be stored without it; the next flush tries again
        except (NotFound, OffsetOutOfRange, DataLoss):
            position = None
        if position is None or position.offset != end:
            self._missing_mark = end
            return None
        return position

    def _advance_mark_delete(self, position: LogPosition) -> None:
        """Move mark-delete forward to `position`; a position that is not after mark-delete is ignored."""
        if position.offset > _offset_or_minus_one(self._position):
            self._position = position
            self._offsets.advance_mark(position.offset)

    def _is_dirty(self) -> bool:
        return (
            self._offsets.has_changes
            or self._lacks_mark_delete_id()
            or _offset_or_minus_one(self._position) > _offset_or_minus_one(self._stored)
        )

    def _lacks_mark_delete_id(self) -> bool:
        end = self._offsets.acknowledged_to
        return end > _offset_or_minus_one(self._position) and end != self._missing_mark

    def _check_not_fenced(self) -> None:
        if self._fenced is not None:
            raise self._fenced.copy()


def flush_together(metadata: MetadataStore, cursors: Sequence[Cursor]) -> dict[Cursor, CompactorError]:
    """Store the acknowledgements of cursors in one transaction; return the errors of those not stored, by cursor.

    No topic is read: a mark-delete whose id is not known stays until `Cursor.resolve_mark_delete_id`. A cursor that
    another thread flushes is not waited for: its error is Unavailable. Raises the errors of the database; then none was
    stored.
    """
    errors: dict[Cursor, CompactorError] = {}
    free: list[Cursor] = []
    with ExitStack() as held:
        for cursor in cursors:
            if cursor._flushing.acquire(blocking=False):
                held.callback(cursor._flushing.release)
                free.append(cursor)
            else:
                errors[cursor] = Unavailable(f"the cursor {cursor.name!r} is being written already", "try again")
        return errors | _flush_locked(metadata, free)


def _flush_locked(metadata: MetadataStore, cursors: Sequence[Cursor]) -> dict[Cursor, CompactorError]:
    """Store the acknowledgements of cursors as `flush_together` does. The caller holds their `_flushing` locks."""
    errors: dict[Cursor, CompactorError] = {}
    updates: dict[Cursor, CursorUpdate] = {}
    for cursor in cursors:
        try:
            update = cursor._take_update()
        except Fenced as error:
            errors[cursor] = error
            continue
        if update is not None:
            updates[cursor] = update
    try:
        results = metadata.cursors.merge(list(updates.values())) if updates else []
    except BaseException as error:
        for cursor, update in updates.items():
            cursor._return_unwritten_update(update, error)
        raise
    for (cursor, update), result in zip(updates.items(), results, strict=True):
        if isinstance(result, CompactorError):
            cursor._return_unwritten_update(update, result)
            errors[cursor] = result
        else:
            cursor._adopt_merge_result(update, result)
    return errors


def _offset_or_minus_one(position: LogPosition | None) -> int:
    return position.offset if position is not None else -1
