"""Reading raw, on through what changes meanwhile: segments are rolled and sealed, ledgers are trimmed (L3, L4).

A raw read goes through the pieces of one snapshot. What it names stays for a while after it was taken off the list
(`file.delete.delay`), so most looks end before anything goes. If a piece is gone, the topic is looked at again:

    its messages stand elsewhere now (sealed)   the read goes on there, behind the last message that was given
    they were trimmed                           the read is out of range, and does as `Reset` says
    they were trimmed, and this is the raw
    part of a compacted read                    the look is over, and `is_gone`: compacted_reader.py knows what follows
                                                (R7)
    nothing has changed                         the loss is real, and the error that names it is raised

Invariants: no message twice, none out of order; none left out but what was trimmed. After an error the read goes on
where it was. One instance is one read, which may go on as messages come; it is not for two threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pyarrow as pa

from storage.errors import ObjectDamaged, ObjectMissing, OffsetOutOfRange
from storage.ledger.seek import (
    NOWHERE,
    Bound,
    FromId,
    FromOffset,
    Reset,
    Start,
    start_of,
)
from storage.log.segment_tables import UnsealedSegments
from storage.metadata.records import TopicSnapshot
from storage.model import EARLIEST, LATEST
from storage.objects.interface import ObjectStore
from storage.reading.reader_state import ReaderState
from storage.reading.snapshot_reader import SnapshotReader


class RawReader:
    """One raw read. `look`: the topic as it is now."""

    def __init__(
        self,
        store: ObjectStore,
        tail: UnsealedSegments | None,
        look: Callable[[], TopicSnapshot],
        start: Start,
        reset: Reset = Reset.EARLIEST,
        *,
        or_compacted: bool = False,
    ) -> None:
        """`or_compacted`: a compacted read, which goes on elsewhere, or fails, where what comes next is trimmed."""
        self._store = store
        self._tail = tail
        self._look = look
        self._start = start
        self._reset = reset
        self._or_compacted = or_compacted
        self._bound: Bound | None = None
        """Where to go on; None: the start was not looked up yet."""
        self._given = -1
        """Nothing up to this offset is given any more."""
        self.is_gone = False
        """The last look of a compacted read ended because what comes next is trimmed."""

    @property
    def next(self) -> Bound | None:
        """What the read delivers next; None: it has not found its start yet."""
        return self._bound

    @property
    def state(self) -> ReaderState | None:
        """Where the read goes on, behind the last table that it delivered; None: it has not found its start yet."""
        return None if self._bound is None else ReaderState(start_of(self._bound))

    def begin(self, bound: Bound, given: int) -> None:
        """Go on from `bound`, behind an offset."""
        self._bound, self._given = bound, given

    def tables(self, snapshot: TopicSnapshot | None = None) -> Generator[pa.Table, None, None]:
        """All up to the topic's end of now, or of `snapshot`, as tables of rows.SCHEMA, none empty; called again, what
        came since.

        Raises OffsetOutOfRange (only with `Reset.FAIL`), ObjectMissing, ObjectDamaged.
        """
        self.is_gone = False
        snapshot = self._look() if snapshot is None else snapshot
        while True:
            reader = SnapshotReader(self._store, snapshot, self._tail)
            try:
                if self._bound is None:
                    self._bound = self._first_bound(reader)
                if self._is_over(reader, self._bound):
                    return
                for table in reader.raw(self._bound, self._given):
                    self._passed(last_offset(table))
                    yield table
                self._passed(reader.read_to)
                return
            except (ObjectMissing, ObjectDamaged):
                # A file that is made again under its old name looks damaged to who has the old row.
                snapshot = self._look()
                if snapshot.pieces[: len(reader.pieces)] == reader.pieces:
                    raise

    def _passed(self, offset: int) -> None:
        """All up to `offset` was given, or is never given."""
        if offset > self._given:
            self._given, self._bound = offset, FromOffset(offset + 1)

    def _first_bound(self, reader: SnapshotReader) -> Bound:
        """Where the read begins; what has not come yet (latest, a time to come) begins at the topic's end."""
        bound = reader.bound(self._start, read_compacted=False)
        return FromOffset(reader.end) if self._start == LATEST or bound == NOWHERE else bound

    def _is_over(self, reader: SnapshotReader, bound: Bound) -> bool:
        """Whether the look ends because what it asks for is gone. Raises OffsetOutOfRange."""
        if self._given + 1 >= reader.first_offset or not is_below(bound, reader):
            return False
        compacted = reader.snapshot.compacted
        stands = compacted is not None and not bound.is_behind(compacted.horizon)
        if self._or_compacted and (stands or self._given >= 0):
            self.is_gone = True
            return True
        if self._reset is Reset.FAIL:
            first = reader.first_offset
            raise OffsetOutOfRange(
                f"{bound} is before the first message of {reader.snapshot.topic.name}, which is at offset {first}",
                f"read from earliest, from latest, or from offset {first} on",
            )
        if self._reset is Reset.LATEST:
            self._bound = FromOffset(reader.end)
        return self._reset is Reset.LATEST


def is_below(bound: Bound, reader: SnapshotReader) -> bool:
    """Whether what a bound names is before the topic's first message. Earliest never does."""
    if isinstance(bound, FromOffset):
        return bound.offset < reader.first_offset
    assert isinstance(bound, FromId)
    wanted = bound.message_id
    if wanted in (EARLIEST, LATEST) or not reader.pieces:
        return wanted not in (EARLIEST, LATEST)
    if wanted.ledger_id != reader.pieces[0].ledger_id:
        return wanted.ledger_id < reader.pieces[0].ledger_id
    first = reader.first_message_id()
    if first is None or wanted.entry_id != first.entry_id:
        return first is None or wanted.entry_id < first.entry_id
    return 0 <= wanted.batch_index < first.batch_index


def last_offset(table: pa.Table) -> int:
    """The offset of a table's last row."""
    return int(table.column("offset")[-1].as_py())
