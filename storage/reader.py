"""Reading a topic from one snapshot: raw, or the compacted ledger and then raw.

The rule (semantics.md R1–R4): with the flag on and a start at or below the horizon, the first compacted message at or
after the start, to the end of the compacted ledger, then raw right after the horizon. Otherwise raw. A reader keeps
the snapshot that it began with, so a compaction beside it changes nothing that it sees. That what the snapshot names
stays in the store is not seen to here: `pinned_read.py` does, and goes on where it does not.

May go wrong: ObjectMissing, ObjectDamaged, for the object that was read, with the ledger it belongs to (R8); a
compacted ledger that is lost never turns into a shorter key set.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage.errors import DataLoss
from storage.ledger import rows
from storage.ledger.deleted import alive, read_deleted
from storage.ledger.manifest import Manifest, read_manifest
from storage.ledger.rows_file import RowGroup, RowsObject, RowsReader
from storage.metadata.records import CompactedLedgerRecord, TopicSnapshot
from storage.model import EARLIEST, Message, MessageId
from storage.objects.interface import ObjectStore

_COMPACTED_REMEDY = (
    "raw reads still work (leave out --read-compacted); restore the object, or delete the cursor __compaction to clear "
    "the compacted ledger and compact again from raw"
)


@dataclass(frozen=True)
class Limits:
    """How much one read may give (R10). At least one message is given whatever its size (L3)."""

    messages: int | None = None
    bytes: int | None = None


class SnapshotReader:
    """Reads what one `TopicSnapshot` shows."""

    def __init__(self, store: ObjectStore, snapshot: TopicSnapshot) -> None:
        self._store = store
        self._snapshot = snapshot

    def batches(self, start: MessageId, read_compacted: bool, limits: Limits = Limits()) -> Iterator[pa.RecordBatch]:
        """Messages at or after `start` as record batches of `rows.SCHEMA`, in order, none empty."""
        return limited(self._tables(start, read_compacted), limits)

    def last_message_id(self, read_compacted: bool) -> MessageId:
        """The id of the last message that a reader will get; EARLIEST (-1:-1) if there is none (R6)."""
        snapshot = self._snapshot
        if read_compacted and snapshot.compacted and not self._raw_after(snapshot.compacted.horizon.offset):
            return snapshot.compacted.last_message_id or EARLIEST
        return snapshot.ledgers[-1].last_message_id if snapshot.ledgers else EARLIEST

    def _raw_after(self, offset: int) -> bool:
        return bool(self._snapshot.ledgers) and self._snapshot.ledgers[-1].last_offset > offset

    def _tables(self, start: MessageId, read_compacted: bool) -> Generator[pa.Table, None, None]:
        compacted = self._snapshot.compacted
        if read_compacted and compacted and start <= compacted.horizon.message_id:
            yield from self.compacted(start, self.manifest(compacted))
            yield from self.raw(start, compacted.horizon.offset)
        else:
            yield from self.raw(start)

    def manifest(self, compacted: CompactedLedgerRecord) -> Manifest:
        """The manifest of the snapshot's compacted ledger."""
        with naming_compacted(self._snapshot):
            return read_manifest(self._store, compacted.manifest)

    def compacted(self, start: MessageId, manifest: Manifest) -> Iterator[pa.Table]:
        """The messages of the compacted ledger at or after `start`; no table is empty."""
        for part in manifest.parts:
            if part.last.message_id >= start:
                with naming_compacted(self._snapshot):
                    yield from self._rows(part.rows, start, read_deleted(self._store, part), part.first.offset)

    def raw(self, start: MessageId, after_offset: int = -1) -> Iterator[pa.Table]:
        """The raw messages at or after `start` and behind an offset; no table is empty."""
        for ledger in self._snapshot.ledgers:
            if ledger.last_message_id >= start and ledger.last_offset > after_offset:
                for table in self._rows(RowsObject(ledger.rows, ledger.footer_size), start):
                    if table.column("offset")[0].as_py() <= after_offset:
                        table = table.filter(pc.greater(table.column("offset"), after_offset))
                    if len(table):
                        yield table

    def _rows(
        self,
        rows_object: RowsObject,
        start: MessageId,
        deleted: BitMap | None = None,
        first_offset: int = 0,
    ) -> Iterator[pa.Table]:
        reader = RowsReader(self._store, rows_object)
        wanted = [number for number, group in enumerate(reader.groups) if not _ends_before(group, start)]
        reader.expect(wanted)
        for number in wanted:
            table = reader.read(number)
            if deleted:
                table = table.filter(pa.array(alive(deleted, first_offset, table.column("offset").to_numpy())))
            table = _delivered(table)
            if len(table) and _first_id(table) < start:
                table = table.filter(_at_or_after(table, start))
            if len(table):
                yield table


def limited(tables: Generator[pa.Table, None, None], limits: Limits) -> Iterator[pa.RecordBatch]:
    """Tables as record batches, none empty, until a limit is reached; then `tables` is closed."""
    left_messages, left_bytes = limits.messages, limits.bytes
    first = True
    if left_messages == 0:
        return
    with closing(tables):
        for table in tables:
            taken = len(table) if left_messages is None else min(len(table), left_messages)
            if left_bytes is not None:
                filled = np.cumsum(rows.logical_sizes(table))
                fits = int(np.searchsorted(filled, left_bytes, "right"))
                if first:  # not "nothing was used of the limit": messages may be empty
                    fits = max(fits, 1)
                taken = min(taken, fits)
                left_bytes -= int(filled[taken - 1]) if taken else 0
            if taken:
                first = False
                yield from table.slice(0, taken).combine_chunks().to_batches()
            if left_messages is not None:
                left_messages -= taken
            if taken < len(table) or left_messages == 0:
                return


@contextmanager
def naming_compacted(snapshot: TopicSnapshot) -> Iterator[None]:
    """Inside the context a loss of data is told as one of the snapshot's compacted ledger, with the way out (R8)."""
    try:
        yield
    except DataLoss as error:
        assert snapshot.compacted is not None
        raise type(error)(
            f"the compacted ledger {snapshot.compacted.ledger_id} of {snapshot.topic.name} cannot be read: "
            f"{error.message}",
            _COMPACTED_REMEDY,
        ) from error


def messages(batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[Message]:
    """Record batches of `rows.SCHEMA` as messages."""
    for batch in batches:
        for row in batch.to_pylist():
            yield Message(
                message_id=MessageId(row["ledger_id"], row["entry_id"], partition, row["batch_index"]),
                offset=row["offset"],
                key=row["key"],
                payload=row["payload"],
                publish_time=row["publish_time"],
                event_time=row["event_time"],
                properties=dict(row["properties"] or ()),
            )


def _delivered(table: pa.Table) -> pa.Table:
    """Without the rows that no reader ever gets (W2)."""
    slot = table.column("slot")
    hidden = pc.or_(pc.equal(slot, int(rows.Slot.COMPACTED_OUT)), pc.equal(slot, int(rows.Slot.MARKER)))
    return table.filter(pc.invert(hidden)) if pc.any(hidden).as_py() else table


def _ends_before(group: RowGroup, start: MessageId) -> bool:
    if group.last_ledger_id != start.ledger_id:
        return group.last_ledger_id < start.ledger_id
    return group.last_entry_id is not None and group.last_entry_id < start.entry_id


def _first_id(table: pa.Table) -> MessageId:
    ledger, entry, index = (table.column(name)[0].as_py() for name in ("ledger_id", "entry_id", "batch_index"))
    return MessageId(ledger, entry, -1, index)


def _at_or_after(table: pa.Table, start: MessageId) -> pa.Array:
    ledger, entry, index = (table.column(name).to_numpy() for name in ("ledger_id", "entry_id", "batch_index"))
    same_ledger = ledger == start.ledger_id
    same_entry = same_ledger & (entry == start.entry_id)
    later = (ledger > start.ledger_id) | (same_ledger & (entry > start.entry_id))
    return pa.array(later | (same_entry & (index >= start.batch_index)))
