"""Reading a topic from one snapshot: raw, or the compacted ledger and then raw.

The rule (semantics.md R1–R4): with the flag on and a start at or below the horizon, the first compacted message at or
after the start, to the end of the compacted ledger, then raw right after the horizon. Otherwise raw. Raw is one
sequence of sealed ledgers and unsealed segments, in the order of offsets, from the topic's start offset on
(storage/log/segment_tables.py reads the segments). A reader keeps its first snapshot, so a concurrent compaction
changes nothing that it sees. It protects no file of the snapshot: `compacted_reader.py` and `raw_reader.py` continue
after one was deleted.

Errors: ObjectMissing and ObjectDamaged name the object or file and its ledger (R8); a lost compacted ledger never
becomes a shorter key set. SegmentNotLocal: the next messages are in another machine's log; the messages before them
were yielded.

`RetentionFilter` hides compacted messages under `compact,delete`: those past the retention, and those below the topic's
start (C2). A run removes hidden messages from the compacted ledger; until the next run, readers leave them out. Raw
messages need no filter: they expire by whole ledgers, and no read begins below the topic's start offset. Under any
other cleanup policy the whole compacted ledger is visible, even where raw is trimmed (R4). A hidden message stays
hidden while the policies stay: the start only grows, and messages only get older.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage.errors import DataLoss
from storage.ledger import rows
from storage.ledger.deletion_bitmap import live_mask, read_deleted_rows
from storage.ledger.manifest import Manifest, Part, read_manifest
from storage.ledger.rows_file import RowsReader
from storage.ledger.seek import NOWHERE, SeekMessageId, SeekOffset, SeekPosition, SeekTime, seek_position_of
from storage.log.segment_tables import TABLE_BYTES, SegmentTableReader, mark_budgeted
from storage.metadata.records import CompactedLedgerRecord, SegmentRecord, TopicSnapshot
from storage.model import EARLIEST, LATEST, LedgerRecord, LogPosition, MessageId, RowsObject
from storage.objects.interface import ObjectStore
from storage.options.policies import TopicPolicies
from storage.positions import StartOffset, StartPosition, StartTime
from storage.reading.compacted_loss import naming_compacted_ledger

Value = TypeVar("Value")

BOTH = frozenset({"compact", "delete"})
_NEVER = 2**63 - 1
WINDOW = 1024
"""The most offsets of a segment that are read together, backwards."""


@dataclass(frozen=True)
class RetentionFilter:
    """A filter that hides compacted messages below `start_offset`, and those published before `not_before_ms`.

    `not_before_ms` None: no message is hidden for its age.
    """

    start_offset: int = 0
    not_before_ms: int | None = None

    def shows(self, offset: int, publish_time: int) -> bool:
        """Return whether a compacted message with this offset and publish time (ms) is visible."""
        return offset >= self.start_offset and (self.not_before_ms is None or publish_time >= self.not_before_ms)

    def visible_rows(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table of compacted messages that are visible; there may be none.

        The table needs the columns `offset`, ascending, and `publish_time`.
        """
        if len(table) and table.column("offset")[0].as_py() < self.start_offset:
            offsets = table.column("offset").to_numpy()
            table = table.slice(int(np.searchsorted(offsets, self.start_offset, "left")))
        if self.not_before_ms is None or not len(table):
            return table
        if pc.min(table.column("publish_time")).as_py() >= self.not_before_ms:
            return table
        return table.filter(pc.greater_equal(table.column("publish_time"), self.not_before_ms))

    def hides_all(self, part: Part) -> bool:
        """Return whether all messages of a part of the compacted ledger are hidden, so that it need not be read."""
        if part.last.offset < self.start_offset:
            return True
        return self.not_before_ms is not None and part.max_publish_time < self.not_before_ms

    def may_hide_after(self, offset: int, parts: Sequence[Part]) -> bool:
        """Return whether a live row of these parts of a compacted ledger, after an offset, may be hidden."""
        later = [part for part in parts if part.last.offset > offset]
        if not later or self.start_offset > offset + 1:
            return bool(later)
        oldest = min(part.min_publish_time if part.oldest_row is None else part.oldest_row for part in later)
        return self.not_before_ms is not None and oldest < self.not_before_ms


def retention_filter(policies: TopicPolicies, start_offset: int, now: int) -> RetentionFilter | None:
    """Return the filter of compacted messages for a topic with these policies at the time `now` (ms); None: everything
    is visible.

    `start_offset`: the topic's; rows below it are hidden.
    """
    if not policies.cleanup_policy >= BOTH:
        return None
    kept = policies.retention_ms_effective
    if kept is None and start_offset == 0:
        return None
    return RetentionFilter(start_offset, None if kept is None else now - kept)


class SnapshotReader:
    """A reader of the messages in one snapshot of a topic.

    `retention`: hides rows of the compacted ledger (C2); None: hides none.
    """

    def __init__(
        self,
        store: ObjectStore,
        snapshot: TopicSnapshot,
        unsealed: SegmentTableReader,
        retention: RetentionFilter | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        """Create a reader. `unsealed`: reads segments.

        `columns`: those to read of sealed ledgers and parts, with `offset` and `slot` among them; None: all.
        """
        self.snapshot = snapshot
        self._columns = None if columns is None else list(columns)
        self._store = store
        self.unsealed = unsealed
        """The reader of the snapshot's segments."""
        self.retention = retention
        self.extents = snapshot.extents
        self.read_to = -1
        """The last offset that `raw` has passed, including rows that no reader gets."""

    def with_columns(self, columns: Sequence[str]) -> SnapshotReader:
        """Return a reader of the same snapshot that reads only some columns of sealed ledgers and parts."""
        return SnapshotReader(self._store, self.snapshot, self.unsealed, self.retention, columns)

    @property
    def first_offset(self) -> int:
        """The offset of the topic's first raw message; of the next message, if there is none."""
        return self.snapshot.first_offset

    def first_message_id(self) -> MessageId | None:
        """Return the id of the topic's first raw message; None: there is none."""
        for table in self.raw(SeekOffset(0)):
            return rows.message_id(table, 0, self.snapshot.topic.name.partition)
        return None

    @property
    def end(self) -> int:
        """The end of the topic: the offset that its next raw message gets. Raises SegmentNotLocal."""
        last = self.last_position()
        return max(last.offset + 1 if last else 0, self.snapshot.topic.next_offset)

    def last_position(self) -> LogPosition | None:
        """Return the position of the last raw row, also of one that no reader gets; None: there is none."""
        for extent in reversed(self.extents):
            last = last_position_of(extent)
            if last is None and isinstance(extent, SegmentRecord):
                last = self.unsealed.last_position(self.snapshot.topic, extent)
            if last is not None:
                return last if last.offset >= self.snapshot.topic.start_offset else None
        return None

    def is_before_first(self, seek: SeekPosition) -> bool:
        """Return whether the message that a seek position by offset or id names is before the topic's first message.

        EARLIEST and LATEST never are.
        """
        if isinstance(seek, SeekOffset):
            return seek.offset < self.first_offset
        assert isinstance(seek, SeekMessageId)
        start = seek.message_id
        if start in (EARLIEST, LATEST) or not self.extents:
            return start not in (EARLIEST, LATEST)
        if start.ledger_id != self.extents[0].ledger_id:
            return start.ledger_id < self.extents[0].ledger_id
        first = self.first_message_id()
        if first is None or start.entry_id != first.entry_id:
            return first is None or start.entry_id < first.entry_id
        return 0 <= start.batch_index < first.batch_index

    def is_start_after_end(self, start: StartPosition) -> bool:
        """Return whether a start position is after the position of the topic's next message. A publish time never is.

        No segment is read for a start within sealed ledgers and rolled segments. Raises SegmentNotLocal.
        """
        if isinstance(start, StartTime):
            return False
        if any(last_position_of(extent) is not None and may_read_extent(start, extent) for extent in self.extents):
            return False
        return start.offset > self.end if isinstance(start, StartOffset) else self._is_id_after_end(start)

    def _is_id_after_end(self, start: MessageId) -> bool:
        """Return whether a message id is larger than that of the topic's next message can be."""
        if start in (EARLIEST, LATEST):
            return False
        last, compacted = self.last_position(), self.snapshot.compacted
        known = [last.message_id] if last else []
        known += [compacted.horizon.message_id] if compacted else []
        if known and start.ledger_id <= max(known).ledger_id:
            return start.ledger_id == max(known).ledger_id and start.entry_id > max(known).entry_id + 1
        if start.ledger_id in {extent.ledger_id for extent in self.extents}:  # of a segment that is empty yet
            return start.entry_id > 0
        newest = max((extent.ledger_id for extent in self.extents), default=None)
        if known or newest is not None:
            return newest is None or start.ledger_id > newest
        return self.end == 0  # of what was truncated no id is known any more

    def seek_position(self, start: StartPosition, read_compacted: bool) -> SeekPosition:
        """Convert a start position to a seek position; for a time, to that of the first message published then or
        later.

        NOWHERE: there is no such message. `read_compacted`: search the compacted ledger first. Raises ObjectMissing,
        ObjectDamaged, SegmentNotLocal.
        """
        if not isinstance(start, StartTime):
            return seek_position_of(start)
        compacted, after = self.snapshot.compacted, -1
        seek = SeekTime(start.publish_time)
        if read_compacted and compacted:
            after = compacted.horizon.offset
            for table in self.compacted(seek, self.manifest(compacted)):
                return SeekOffset(table.column("offset")[0].as_py())
        # The largest time up to each extent only grows, however producers' clocks differ: it can be searched.
        newest = list(accumulate((_max_publish_time(extent) for extent in self.extents), max))
        candidates = self.extents[bisect_left(newest, start.publish_time) :]
        for table in self._raw(candidates, seek, after):
            return SeekOffset(table.column("offset")[0].as_py())
        return NOWHERE

    def first_since(self, extent: LedgerRecord | SegmentRecord, publish_time: int, offset: int) -> int | None:
        """Return the offset of the first message of an extent that was published at `publish_time` (ms) or later.

        Messages before `offset` do not count. None: there is no such message. Raises SegmentNotLocal.
        """
        for table in self._raw((extent,), SeekTime(publish_time), offset - 1):
            return int(table.column("offset")[0].as_py())
        return None

    def manifest(self, compacted: CompactedLedgerRecord) -> Manifest:
        """Read the manifest of the compacted ledger from the store, at each call, and return it.

        `compacted`: the snapshot's record of it. Raises DataLoss, naming the compacted ledger.
        """
        with naming_compacted_ledger(self.snapshot):
            return read_manifest(self._store, compacted.manifest)

    def compacted(self, seek: SeekPosition, manifest: Manifest) -> Iterator[pa.Table]:
        """Yield the visible messages of the compacted ledger from `seek` on; no table is empty.

        Raises DataLoss, naming the compacted ledger.
        """
        for part in manifest.parts:
            yield from self.part(part, seek)

    def part(self, part: Part, seek: SeekPosition) -> Iterator[pa.Table]:
        """Yield the visible messages of a part of the compacted ledger from `seek` on; no table is empty.

        Raises DataLoss, naming the compacted ledger.
        """
        if seek.surely_begins_after(part.last) or (self.retention is not None and self.retention.hides_all(part)):
            return
        with naming_compacted_ledger(self.snapshot):
            for table in self._groups_from(part.rows, seek, read_deleted_rows(self._store, part), part.first.offset):
                if len(
                    table := _rows_from(seek, table if self.retention is None else self.retention.visible_rows(table))
                ):
                    yield table

    def raw(self, seek: SeekPosition, after_offset: int = -1) -> Iterator[pa.Table]:
        """Yield the raw messages from `seek` on whose offsets are after `after_offset`; no table is empty.

        Raises ObjectMissing, ObjectDamaged, SegmentNotLocal.
        """
        return self._raw(self.extents, seek, after_offset)

    def _raw(
        self, extents: tuple[LedgerRecord | SegmentRecord, ...], seek: SeekPosition, after_offset: int
    ) -> Iterator[pa.Table]:
        after = max(after_offset, self.snapshot.topic.start_offset - 1)
        for extent in extents:
            last = last_position_of(extent)
            if last is not None and (seek.surely_begins_after(last) or last.offset <= after):
                continue
            if isinstance(extent, LedgerRecord):
                tables = self._groups_from(extent.rows_object, seek)
            else:
                tables = self.unsealed.tables(self.snapshot.topic, extent, seek, after)
            for table in tables:
                table = _rows_from(SeekOffset(after + 1), table)
                if len(passed := _rows_from(seek, table)):
                    self.read_to = passed.column("offset")[-1].as_py()
                if len(table := _rows_from(seek, deliverable_rows(table))):
                    yield table
            if last is not None:
                self.read_to = last.offset

    def raw_before(self, end: int, after_offset: int = -1) -> Iterator[pa.Table]:
        """Yield the raw messages before the offset `end`, the newest table first; no table is empty.

        Messages up to the offset `after_offset` are left out. The rows of a table ascend.
        """
        first = max(after_offset + 1, self.snapshot.topic.start_offset)
        for extent in reversed(self.extents):
            last = last_position_of(extent)
            if last is not None and last.offset < first:
                return
            if extent.first_offset >= end:
                continue
            if isinstance(extent, LedgerRecord):
                tables = self._groups_before(extent.rows_object, end)
            else:
                windows = self.segment_windows_backwards(extent, first, end, WINDOW // 16)
                tables = (deliverable_rows(table) for window in windows for table in reversed(window))
            for table in tables:
                if len(messages := rows_between(table, first, end)):
                    yield messages
                if len(table) and table.column("offset")[0].as_py() < first:
                    return

    def compacted_before(self, end: int, manifest: Manifest) -> Iterator[pa.Table]:
        """Yield the visible messages of the compacted ledger before an offset, the newest table first; none is
        empty."""
        with naming_compacted_ledger(self.snapshot):
            for part in reversed(manifest.parts):
                if part.first.offset >= end or (self.retention is not None and self.retention.hides_all(part)):
                    continue
                for table in self._groups_before(
                    part.rows, end, read_deleted_rows(self._store, part), part.first.offset
                ):
                    if len(
                        table := rows_between(
                            table if self.retention is None else self.retention.visible_rows(table), 0, end
                        )
                    ):
                        yield table

    def segment_windows_backwards(
        self, segment: SegmentRecord, first: int, end: int, first_length: int = 1
    ) -> Iterator[list[pa.Table]]:
        """Yield the rows of a segment in windows of offsets, from `end` down to `first`: a list of tables each.

        The first window has `first_length` offsets; they grow up to `WINDOW`.
        """
        last = self.unsealed.last_position(self.snapshot.topic, segment)
        first = max(first, segment.first_offset)
        end = min(end, first if last is None else last.offset + 1)
        while end > first:
            start = max(first, end - first_length)
            yield list(self.segment_window(segment, start, end))
            end, first_length = start, min(8 * first_length, WINDOW)

    def segment_window(self, segment: SegmentRecord, start: int, stop: int) -> Iterator[pa.Table]:
        """Yield the rows of a segment from the offset `start` to before `stop`, also those that no reader gets."""
        for table in self.segment(segment, start):
            if table.column("offset")[0].as_py() >= stop:
                return
            yield rows_between(table, start, stop)

    def segment(self, segment: SegmentRecord, first_offset: int = 0) -> Iterator[pa.Table]:
        """Yield all rows of one of the snapshot's segments, from `first_offset` on, also those that no reader gets.

        No row is before the topic's start.
        """
        start = SeekOffset(max(first_offset, self.snapshot.topic.start_offset))
        return self.unsealed.tables(self.snapshot.topic, segment, start)

    def ledger(self, ledger: LedgerRecord, first_offset: int) -> Iterator[pa.Table]:
        """Yield the messages of one of the snapshot's ledgers from `first_offset` on; no table is empty."""
        seek = SeekOffset(first_offset)
        for table in self._groups_from(ledger.rows_object, seek):
            if len(table := _rows_from(seek, table)):
                yield table

    def _groups_from(
        self,
        rows_object: RowsObject,
        seek: SeekPosition,
        deleted: BitMap | None = None,
        first_offset: int = 0,
    ) -> Iterator[pa.Table]:
        """Yield the messages of an object's row groups that may hold any from `seek` on, a table each; none is empty.

        The first tables may begin before it. `deleted`: the positions of superseded rows, counted from `first_offset`.
        """
        reader = RowsReader(self._store, rows_object)
        numbers = [number for number in range(len(reader.groups)) if not seek.skips_row_group(reader, number)]
        reader.announce_row_groups(numbers)
        return self._groups(reader, numbers, deleted, first_offset)

    def _groups_before(
        self, rows_object: RowsObject, end: int, deleted: BitMap | None = None, first_offset: int = 0
    ) -> Iterator[pa.Table]:
        """Yield the messages of an object's row groups that begin before the offset `end`, a table each, the last one
        first; none is empty."""
        reader = RowsReader(self._store, rows_object)
        numbers = [number for number, group in enumerate(reader.groups) if group.first_offset < end]
        return self._groups(reader, reversed(numbers), deleted, first_offset)

    def _groups(
        self, reader: RowsReader, numbers: Iterable[int], deleted: BitMap | None, first_offset: int
    ) -> Iterator[pa.Table]:
        for number in numbers:
            size = reader.decoded_bytes(number)
            is_large = size > TABLE_BYTES
            with self.unsealed.log.decoding.hold(size if is_large else 0):
                table = reader.read(number, self._columns)
                if is_large:
                    table = mark_budgeted(table)
                if deleted:
                    table = table.filter(pa.array(live_mask(deleted, first_offset, table.column("offset").to_numpy())))
                if len(table := deliverable_rows(table)):
                    yield table
                del table


def _rows_from(seek: SeekPosition, table: pa.Table) -> pa.Table:
    """Return the rows of a table from `seek` on. Filter other rows out first: any row may be the first of a time."""
    return table.slice(seek.first_row(table)) if len(table) else table


def rows_between(table: pa.Table, first: int, end: int) -> pa.Table:
    """Return the rows of a table from the offset `first` to before the offset `end`."""
    start, stop = np.searchsorted(table.column("offset").to_numpy(), (first, end), "left").tolist()
    return table.slice(start, stop - start)


def last_position_of(extent: LedgerRecord | SegmentRecord) -> LogPosition | None:
    """Return the position of the last message of a ledger or segment, as its row in SQL records it; None: the segment
    is open."""
    return LogPosition(extent.content.last_offset, extent.content.last_message_id) if extent.content else None


def _max_publish_time(extent: LedgerRecord | SegmentRecord) -> int:
    """Return the largest publish time of a ledger or segment; of an open segment it is unknown, so the largest
    number."""
    return extent.content.max_publish_time if extent.content else _NEVER


def may_read_extent(start: StartPosition, extent: LedgerRecord | SegmentRecord) -> bool:
    """Return whether a raw read from `start` may read messages of a ledger or segment, by what its row in SQL
    records."""
    if isinstance(start, StartTime):
        return _max_publish_time(extent) >= start.publish_time
    last = last_position_of(extent)
    return last is None or not seek_position_of(start).surely_begins_after(last)


def read_snapshot(
    store: ObjectStore,
    take_snapshot: Callable[[], TopicSnapshot],
    unsealed: SegmentTableReader,
    retention: Callable[[TopicSnapshot], RetentionFilter | None],
    read: Callable[[SnapshotReader], Value],
) -> Value:
    """Call `read` with a reader of the topic as it is now, and return its result.

    If it raises DataLoss, and the topic has other ledgers or segments now, read again: the object was replaced or
    trimmed. `take_snapshot`: returns the topic as it is now; `retention`: returns the filter of a snapshot.
    """
    snapshot = take_snapshot()
    while True:
        try:
            return read(SnapshotReader(store, snapshot, unsealed, retention(snapshot)))
        except DataLoss:
            newer = take_snapshot()
            if (newer.compacted, newer.extents) == (snapshot.compacted, snapshot.extents):
                raise
            snapshot = newer


def deliverable_rows(table: pa.Table) -> pa.Table:
    """Return the rows of a table that readers get: without compacted-out slots and markers (W2)."""
    slot = table.column("slot")
    if not pc.max(slot).as_py():  # all are messages, whose type is the least
        return table
    hidden = pc.or_(pc.equal(slot, int(rows.RowType.COMPACTED_OUT)), pc.equal(slot, int(rows.RowType.MARKER)))
    return table.filter(pc.invert(hidden)) if pc.any(hidden).as_py() else table
