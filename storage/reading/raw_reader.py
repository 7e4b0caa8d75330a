"""Reading raw, on through what changes meanwhile: segments are rolled and sealed, ledgers are trimmed (L3, L4).

A raw read goes through the extents of one snapshot: ledgers and segments. What it names stays for a while after it was
taken off the list (`file.delete.delay`), so most reads end before anything goes. If an extent is gone, the reader takes
a new snapshot:

    its messages are in a ledger now (sealed)   the read continues there, behind the last message that it delivered
    they were trimmed                           the read is out of range, and does as `OffsetReset` says
    they were trimmed, and this is the raw
    part of a compacted read                    the tables end, and `is_gone`: compacted_reader.py knows what follows
                                                (R7)
    nothing has changed                         the loss is real, and the error that names it is raised

Invariants: no message twice, none out of order; none left out but what was trimmed. After an error the read continues
where it was. One instance is one read, which may continue as messages come; it is not for two threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import pyarrow as pa

from storage.errors import ObjectDamaged, ObjectMissing, OffsetOutOfRange
from storage.ledger.seek import NOWHERE, OffsetBound, SeekPosition, start_position_of
from storage.log.segment_tables import SegmentTableReader
from storage.metadata.records import TopicSnapshot
from storage.model import LATEST
from storage.objects.interface import ObjectStore
from storage.positions import ContinuationToken, OffsetReset, StartPosition
from storage.reading.snapshot_reader import SnapshotReader


class RawReader:
    """One raw read. `take_snapshot`: gives the topic as it is now."""

    def __init__(
        self,
        store: ObjectStore,
        unsealed: SegmentTableReader | None,
        take_snapshot: Callable[[], TopicSnapshot],
        start: StartPosition,
        reset: OffsetReset = OffsetReset.EARLIEST,
        *,
        or_compacted: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        """`or_compacted`: a compacted read: where what comes next is trimmed, it leaves the rest to its caller.
        `columns`: those that are read of sealed ledgers (SnapshotReader)."""
        self._store = store
        self._unsealed = unsealed
        self._take_snapshot = take_snapshot
        self._start = start
        self._reset = reset
        self._or_compacted = or_compacted
        self._columns = columns
        self._bound: SeekPosition | None = None
        """The seek position of the next message; None: the start is not resolved yet."""
        self._delivered_to = -1
        """Nothing up to this offset is delivered any more."""
        self.is_gone = False
        """The tables of a compacted read ended because what comes next is trimmed."""

    @property
    def next(self) -> SeekPosition | None:
        """What the read delivers next; None: it has not found its start yet."""
        return self._bound

    @property
    def state(self) -> ContinuationToken | None:
        """Where the read continues, behind the last table that it delivered; None: it has not found its start yet."""
        return None if self._bound is None else ContinuationToken(start_position_of(self._bound))

    def begin(self, bound: SeekPosition, delivered_to: int) -> None:
        """Go on from `bound`, behind an offset."""
        self._bound, self._delivered_to = bound, delivered_to

    def tables(self, snapshot: TopicSnapshot | None = None) -> Generator[pa.Table, None, None]:
        """All up to the topic's end of now, or of `snapshot`, as tables of rows.SCHEMA, none empty; called again, what
        came since.

        Raises OffsetOutOfRange (only with `OffsetReset.FAIL`), ObjectMissing, ObjectDamaged.
        """
        self.is_gone = False
        snapshot = self._take_snapshot() if snapshot is None else snapshot
        while True:
            reader = SnapshotReader(self._store, snapshot, self._unsealed, columns=self._columns)
            try:
                if self._bound is None:
                    self._bound = self._first_bound(reader)
                if self._is_over(reader, self._bound):
                    return
                for table in reader.raw(self._bound, self._delivered_to):
                    self._passed(last_offset(table))
                    yield table
                self._passed(reader.read_to)
                return
            except (ObjectMissing, ObjectDamaged):
                # A file that was written again under its old name looks damaged to a reader with the old row.
                snapshot = self._take_snapshot()
                if snapshot.extents[: len(reader.extents)] == reader.extents:
                    raise

    def _passed(self, offset: int) -> None:
        """All up to `offset` was delivered, or is never delivered."""
        if offset > self._delivered_to:
            self._delivered_to, self._bound = offset, OffsetBound(offset + 1)

    def _first_bound(self, reader: SnapshotReader) -> SeekPosition:
        """Where the read begins; what has not come yet (latest, a time to come) begins at the topic's end."""
        bound = reader.bound(self._start, read_compacted=False)
        return OffsetBound(reader.end) if self._start == LATEST or bound == NOWHERE else bound

    def _is_over(self, reader: SnapshotReader, bound: SeekPosition) -> bool:
        """Whether the read ends because what comes next is gone. Raises OffsetOutOfRange."""
        if self._delivered_to + 1 >= reader.first_offset or not reader.is_below(bound):
            return False
        compacted = reader.snapshot.compacted
        stands = compacted is not None and not bound.is_behind(compacted.horizon)
        if self._or_compacted and (stands or self._delivered_to >= 0):
            self.is_gone = True
            return True
        if self._reset is OffsetReset.FAIL:
            first = reader.first_offset
            raise OffsetOutOfRange(
                f"{bound} is before the first message of {reader.snapshot.topic.name}, which is at offset {first}",
                f"read from earliest, from latest, or from offset {first} on",
            )
        if self._reset is OffsetReset.LATEST:
            self._bound = OffsetBound(reader.end)
        return self._reset is OffsetReset.LATEST


def last_offset(table: pa.Table) -> int:
    """The offset of a table's last row."""
    return int(table.column("offset")[-1].as_py())
