"""Sealing: the rows of one ledger, in memory, become a rows object and its key index.

The only place where a ledger's key index is built (its rows are in memory anyway). Writes two objects under the
attempt's names; they do not exist for readers until a row in SQL names them.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from storage.failpoints import Failpoint, failpoint
from storage.ledger import key_index, names, rows
from storage.ledger.chunk_table import chunk_mask, chunk_records
from storage.ledger.hashing import KeyHasher
from storage.ledger.rows_file import RowsWriter
from storage.model import IndexLocation, LedgerRecord, MessageId
from storage.objects.interface import ObjectStore


@dataclass(frozen=True)
class Sealer:
    """A sealer of ledgers of one topic, under one attempt's names."""

    store: ObjectStore
    topic_uid: str
    partition: int
    hasher: KeyHasher
    attempt_id: str

    def seal(self, table: pa.Table, ledger_id: int, created_at: int) -> LedgerRecord:
        """Write `table` (`rows.SCHEMA`, at least one row, ascending) and its key index; return the row to commit.

        `created_at`: ms since the Unix epoch. Raises any store error.
        """
        table = table.combine_chunks()
        sizes = rows.logical_sizes(table)
        name = names.ledger_rows(self.topic_uid, ledger_id, self.attempt_id)
        with RowsWriter(self.store, name) as writer:
            failpoint(Failpoint.IMPORT_ROWS_BEGUN)
            writer.write(table, sizes)
        failpoint(Failpoint.IMPORT_ROWS_WRITTEN)
        assert writer.result is not None
        offsets = table.column("offset").to_numpy()
        entries = table.column("entry_id").to_numpy()
        publish = pc.min_max(table.column("publish_time")).as_py()
        return LedgerRecord(
            ledger_id=ledger_id,
            first_offset=int(offsets[0]),
            last_offset=int(offsets[-1]),
            messages=len(table),
            entries=int(np.count_nonzero(entries[1:] != entries[:-1])) + 1,
            last_message_id=MessageId(
                ledger_id, int(entries[-1]), self.partition, table.column("batch_index")[-1].as_py()
            ),
            logical_bytes=int(sizes.sum()),
            min_publish_time=publish["min"],
            max_publish_time=publish["max"],
            rows=writer.result.stored,
            footer_size=writer.result.footer_size,
            index=self._write_index(table, ledger_id),
            attempt_id=self.attempt_id,
            created_at=created_at,
        )

    def _write_index(self, table: pa.Table, ledger_id: int) -> IndexLocation:
        records = ledger_records(table, self.hasher)
        chunks = chunk_records(table, self.hasher).tobytes()
        data, directory = key_index.encode_index(records, key_index.HashRange(), unkeyed_offsets(table), chunks)
        name = names.ledger_index(self.topic_uid, ledger_id, self.attempt_id)
        self.store.put(name, data)
        failpoint(Failpoint.IMPORT_INDEX_WRITTEN)
        return IndexLocation(name, 0, len(data), directory.encode())


def ledger_records(table: pa.Table, hasher: KeyHasher) -> key_index.IndexRecords:
    """Return the newest record of each key in `table` (`rows.SCHEMA`), with event-time winners if it has event times.

    Only rows of slot MESSAGE with a key take part (P6, P8); chunked messages come from chunk tables (P10).
    """
    keyed = keyed_mask(table)
    if not pc.all(keyed).as_py():
        table = table.filter(keyed)
    hi, lo = hasher(rows.contiguous(table.column("key")))
    flagged = tombstone_flagged_offsets(table)
    newest = key_index.latest(hi, lo)
    event_times = table.column("event_time")
    if event_times.null_count == len(event_times):
        return key_index.IndexRecords(hi[newest], lo[newest], flagged[newest])
    events = pc.fill_null(event_times, key_index.NO_EVENT_TIME).to_numpy()
    winners = newest if np.all(events[1:] >= events[:-1]) else key_index.latest_by_event(hi, lo, events)
    return key_index.IndexRecords(hi[newest], lo[newest], flagged[newest], flagged[winners], events[winners])


def keyed_mask(table: pa.Table) -> pa.ChunkedArray:
    """Return a mask of the rows in the key map: messages with a key (P6, P8, P10). Booleans, shape (n,)."""
    return pc.and_(pc.is_valid(table.column("key")), pc.equal(table.column("slot"), int(rows.RowType.MESSAGE)))


def tombstone_flagged_offsets(table: pa.Table) -> npt.NDArray[np.uint64]:
    """Return the offsets of keyed rows, shape (n,), with TOMBSTONE where the payload is null or empty (P5)."""
    payload = table.column("payload")
    empty = pc.fill_null(pc.equal(pc.binary_length(payload), 0), True).to_numpy()
    offsets = table.column("offset").to_numpy().astype(np.uint64)
    flagged: npt.NDArray[np.uint64] = np.where(empty, offsets | key_index.TOMBSTONE, offsets)
    return flagged


def unkeyed_offsets(table: pa.Table) -> dict[str, BitMap64]:
    """Return the offsets of rows that are in no key map and no chunk table, by class of key_index.UNKEYED_CLASSES."""
    slot = table.column("slot")
    is_message = pc.equal(slot, int(rows.RowType.MESSAGE))
    masks = {
        "null_keys": pc.and_(is_message, pc.is_null(table.column("key"))),
        "whole_entries": pc.equal(slot, int(rows.RowType.WHOLE_ENTRY)),
        "chunks": pc.and_not(pc.equal(slot, int(rows.RowType.CHUNK)), pa.array(chunk_mask(table))),
    }
    offsets = table.column("offset").to_numpy().astype(np.uint64)
    return {name: BitMap64(array("Q", offsets[mask.to_numpy()].tobytes())) for name, mask in masks.items()}
