"""Raw reads, which continue while segments are rolled and sealed and ledgers are trimmed (L3, L4).

A raw read goes through the extents of one snapshot: ledgers and segments. Their files stay for a while after they are
no longer listed (`file.delete.delay`), so most reads end before a file is deleted. If an extent is missing, the reader
takes a new snapshot:

    its messages are in a ledger now (sealed)   the read continues there, after the last message that it delivered
    they were trimmed                           the read is out of range, and does as `OffsetReset` says
    they were trimmed, and this is the raw
    part of a compacted read                    the tables end, and `is_gone` is set: compacted_reader.py decides what
                                                follows (R7)
    nothing has changed                         the loss is real, and the error that names it is raised

Invariants: each message is delivered once, in order; only trimmed messages are left out. After an error the read
continues where it was. One instance is one read, which may continue as messages arrive; it is not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import pyarrow as pa

from storage.errors import ObjectDamaged, ObjectMissing, OffsetOutOfRange
from storage.ledger.seek import NOWHERE, SeekOffset, SeekPosition, start_position_of
from storage.log.segment_tables import SegmentTableReader
from storage.metadata.records import TopicSnapshot
from storage.model import LATEST
from storage.objects.interface import ObjectStore
from storage.positions import ContinuationToken, OffsetReset, StartPosition
from storage.reading.snapshot_reader import SnapshotReader


class RawReader:
    """A reader of a topic's raw messages. `take_snapshot` returns the topic as it is now."""

    def __init__(
        self,
        store: ObjectStore,
        unsealed: SegmentTableReader,
        take_snapshot: Callable[[], TopicSnapshot],
        start: StartPosition,
        reset: OffsetReset = OffsetReset.EARLIEST,
        *,
        or_compacted: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        """Create a reader that begins at `start`.

        `unsealed`: reads segments. `reset`: the behaviour if the start is trimmed. `or_compacted`: this is the raw part
        of a compacted read. If its next messages are trimmed, it sets `is_gone` and leaves the rest to its caller.
        `columns`: the columns that are read of sealed ledgers; None: all (SnapshotReader).
        """
        self._store = store
        self._unsealed = unsealed
        self._take_snapshot = take_snapshot
        self._start = start
        self._reset = reset
        self._or_compacted = or_compacted
        self._columns = columns
        self.next: SeekPosition | None = None
        """The seek position of the next message; None: the start is not resolved yet."""
        self._delivered_to = -1
        """The last offset that was delivered, or that is never delivered."""
        self.is_gone = False
        """True if the tables of a compacted read ended because the next messages are trimmed."""

    @property
    def state(self) -> ContinuationToken | None:
        """The continuation token after the last table that was delivered; None: the start is not resolved yet."""
        return None if self.next is None else ContinuationToken(start_position_of(self.next))

    def seek(self, seek: SeekPosition, delivered_to: int) -> None:
        """Continue from `seek`; messages up to the offset `delivered_to` are not delivered again."""
        self.next, self._delivered_to = seek, delivered_to

    def tables(self, snapshot: TopicSnapshot | None = None) -> Generator[pa.Table, None, None]:
        """Yield all messages up to the topic's present end, as tables of rows.SCHEMA, none empty.

        `snapshot`: the topic as it is now, if the caller has it; None: it is taken. A later call yields the messages
        that were appended since. Raises OffsetOutOfRange (only with `OffsetReset.FAIL`), ObjectMissing, ObjectDamaged,
        SegmentNotLocal.
        """
        self.is_gone = False
        snapshot = self._take_snapshot() if snapshot is None else snapshot
        while True:
            reader = SnapshotReader(self._store, snapshot, self._unsealed, columns=self._columns)
            try:
                if self.next is None:
                    self.next = self._first_seek_position(reader)
                if self._reset_or_end_if_trimmed(reader, self.next):
                    return
                for table in reader.raw(self.next, self._delivered_to):
                    self._advance_past(last_offset(table))
                    yield table
                self._advance_past(reader.read_to)
                return
            except (ObjectMissing, ObjectDamaged):
                # A file that was written again under its old name looks damaged to a reader with the old row.
                snapshot = self._take_snapshot()
                if snapshot.extents[: len(reader.extents)] == reader.extents:
                    raise

    def _advance_past(self, offset: int) -> None:
        """Move the read after `offset`, if it is not there yet: no message up to that offset is still to be
        delivered."""
        if offset > self._delivered_to:
            self._delivered_to, self.next = offset, SeekOffset(offset + 1)

    def _first_seek_position(self, reader: SnapshotReader) -> SeekPosition:
        """Return the seek position of the read's start.

        A start that no message has reached yet (latest, a time in the future) is the topic's end.
        """
        seek = reader.seek_position(self._start, read_compacted=False)
        return SeekOffset(reader.end) if self._start == LATEST or seek == NOWHERE else seek

    def _reset_or_end_if_trimmed(self, reader: SnapshotReader, seek: SeekPosition) -> bool:
        """Apply the `OffsetReset` of the read if its next message is trimmed; in a compacted read, set `is_gone`
        instead. Return whether the read ends with that. Raises OffsetOutOfRange."""
        if self._delivered_to + 1 >= reader.first_offset or not reader.is_before_first(seek):
            return False
        compacted = reader.snapshot.compacted
        stands = compacted is not None and not seek.surely_begins_after(compacted.horizon)
        if self._or_compacted and (stands or self._delivered_to >= 0):
            self.is_gone = True
            return True
        if self._reset is OffsetReset.FAIL:
            first = reader.first_offset
            raise OffsetOutOfRange(
                f"{seek} is before the first message of {reader.snapshot.topic.name}, which is at offset {first}",
                f"read from earliest, from latest, or from offset {first} on",
            )
        if self._reset is OffsetReset.LATEST:
            self.next = SeekOffset(reader.end)
        return self._reset is OffsetReset.LATEST


def last_offset(table: pa.Table | pa.RecordBatch) -> int:
    """Return the offset of the last row of a table, which must not be empty."""
    return int(table.column("offset")[-1].as_py())
