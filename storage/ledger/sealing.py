"""Sealing: the rows of one ledger, table by table, become a rows object and its key index.

The only place where a ledger's key index is built (its rows are in memory anyway). Writes two objects under the
attempt's names; they do not exist for readers until a row in SQL names them. A ledger can be begun before it has a
name: its bytes wait in memory then. Memory: one table, `INDEX_BYTES` for each key of each table, and what was begun.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from storage.failpoints import Failpoint, failpoint
from storage.ledger import key_index, names, rows
from storage.ledger.chunk_table import Chunks, chunk_mask, chunk_records
from storage.ledger.hashing import KeyHasher
from storage.ledger.rows_file import RowsEncoder, RowsWriter
from storage.model import IndexLocation, LedgerRecord, MessageId
from storage.objects.interface import ObjectStore

INDEX_BYTES = 56
"""Bytes of a key in memory until the index is written: 24, and 32 with event times."""
_PIECE_ROWS = 65_536
"""Rows that are encoded and indexed together."""


class LedgerBuilder:
    """Builder of one ledger, which encodes and indexes rows as they arrive. `summary`: values for its row in SQL.

    `has_topic_offsets`: the rows have the ledger's id and their offsets in the topic.
    """

    def __init__(self, hasher: KeyHasher, *, has_topic_offsets: bool = True) -> None:
        self.has_topic_offsets = has_topic_offsets
        self.encoder = RowsEncoder(has_topic_offsets=has_topic_offsets)
        self.index = IndexBuilder(hasher)
        self.summary = _LedgerSummary()

    @property
    def held_bytes(self) -> int:
        """The approximate memory of the encoded rows and of the index, in bytes."""
        return self.encoder.held_bytes + INDEX_BYTES * self.summary.messages

    def add(self, table: pa.Table) -> None:
        """Add rows (`rows.SCHEMA`), ascending from call to call."""
        for piece in _slices_of(table):
            sizes = rows.logical_sizes(piece)
            self.encoder.write(piece, sizes)
            self.index.add(piece)
            self.summary.add(piece, sizes)


@dataclass(frozen=True)
class Sealer:
    """A sealer of ledgers of one topic, under one attempt's names."""

    store: ObjectStore
    topic_uid: str
    partition: int
    hasher: KeyHasher
    attempt_id: str

    def seal(
        self, tables: Iterable[pa.Table], ledger_id: int, created_at: int, begun: LedgerBuilder | None = None
    ) -> LedgerRecord:
        """Write `tables` (`rows.SCHEMA`, ascending) and their key index; return the record to commit to SQL.

        `begun`: has the rows before those of `tables`; together they have at least one. `created_at`: ms since the Unix
        epoch. Raises any store error, and any error of `tables`; then no rows object remains.
        """
        ledger = begun or LedgerBuilder(self.hasher)
        index_name = names.ledger_index(self.topic_uid, ledger_id, self.attempt_id)
        name = names.ledger_rows(self.topic_uid, ledger_id, self.attempt_id)
        return self._seal(tables, ledger, ledger_id, created_at, name, index_name)

    def seal_unplaced(self, tables: Iterable[pa.Table], task_number: int, created_at: int) -> LedgerRecord:
        """Write a ledger whose place in the topic is not known yet; return its record, which `placed_ledger` completes.

        `tables`: as for `seal`, with offsets and entry ids from 0, ledger id 0, and no chunks. `task_number`: of the
        task that writes it; the names are new at each call.
        """
        nonce = names.new_nonce()
        name = names.task_ledger_rows(self.topic_uid, self.attempt_id, task_number, nonce)
        index_name = names.task_ledger_index(self.topic_uid, self.attempt_id, task_number, nonce)
        ledger = LedgerBuilder(self.hasher, has_topic_offsets=False)
        return self._seal(tables, ledger, 0, created_at, name, index_name)

    def _seal(
        self,
        tables: Iterable[pa.Table],
        ledger: LedgerBuilder,
        ledger_id: int,
        created_at: int,
        name: str,
        index_name: str,
    ) -> LedgerRecord:
        with RowsWriter(self.store, name, ledger.encoder) as writer:
            failpoint(Failpoint.IMPORT_ROWS_BEGUN)
            for table in tables:
                ledger.add(table)
        summary = ledger.summary
        failpoint(Failpoint.IMPORT_ROWS_WRITTEN)
        assert writer.result is not None
        return LedgerRecord(
            ledger_id=ledger_id,
            first_offset=summary.first_offset,
            last_offset=summary.last_offset,
            messages=summary.messages,
            entries=summary.entries,
            last_message_id=MessageId(ledger_id, summary.last_entry_id, self.partition, summary.last_batch_index),
            logical_bytes=summary.logical_bytes,
            min_publish_time=summary.min_publish_time,
            max_publish_time=summary.max_publish_time,
            rows=writer.result.stored,
            footer_size=writer.result.footer_size,
            index=self._write_index(ledger, index_name),
            attempt_id=self.attempt_id,
            created_at=created_at,
        )

    def _write_index(self, ledger: LedgerBuilder, name: str) -> IndexLocation:
        index = ledger.index
        data, directory = key_index.encode_index(
            index.records(),
            key_index.HashRange(),
            index.unkeyed,
            index.encoded_chunks(),
            has_topic_offsets=ledger.has_topic_offsets,
        )
        self.store.put(name, data)
        failpoint(Failpoint.IMPORT_INDEX_WRITTEN)
        return IndexLocation(name, 0, len(data), directory.encode())


def placed_ledger(ledger: LedgerRecord, ledger_id: int, first_offset: int, created_at: int) -> LedgerRecord:
    """Return the record of a ledger of `Sealer.seal_unplaced`, with its id and offsets in the topic.

    `created_at`: ms since the Unix epoch.
    """
    return replace(
        ledger,
        ledger_id=ledger_id,
        first_offset=first_offset,
        last_offset=first_offset + ledger.last_offset,
        last_message_id=replace(ledger.last_message_id, ledger_id=ledger_id),
        index=replace(ledger.index, first_offset=first_offset),
        created_at=created_at,
    )


@dataclass
class _LedgerSummary:
    """Summary of the messages of a ledger, for its row in SQL."""

    first_offset: int = -1
    last_offset: int = -1
    messages: int = 0
    entries: int = 0
    last_entry_id: int = -1
    last_batch_index: int = -1
    logical_bytes: int = 0
    min_publish_time: int = np.iinfo(np.int64).max
    max_publish_time: int = np.iinfo(np.int64).min

    def add(self, table: pa.Table, sizes: npt.NDArray[np.int64]) -> None:
        """Add rows, which follow those before. `sizes`: the logical bytes of each."""
        offsets, entries = table.column("offset").to_numpy(), table.column("entry_id").to_numpy()
        publish = table.column("publish_time").to_numpy()
        if not self.messages:
            self.first_offset = int(offsets[0])
        self.entries += int(np.count_nonzero(entries[1:] != entries[:-1])) + int(entries[0] != self.last_entry_id)
        self.last_offset, self.last_entry_id = int(offsets[-1]), int(entries[-1])
        self.last_batch_index = table.column("batch_index")[-1].as_py()
        self.messages += len(table)
        self.logical_bytes += int(sizes.sum())
        self.min_publish_time = min(self.min_publish_time, int(publish.min()))
        self.max_publish_time = max(self.max_publish_time, int(publish.max()))


class IndexBuilder:
    """A builder of a key index, of rows that arrive table by table. `unkeyed`: their bitmaps, by class.

    `with_event_times`: the index has event times even if no row has one.
    """

    def __init__(self, hasher: KeyHasher, *, with_event_times: bool = False) -> None:
        self._hasher = hasher
        self._with_event_times = with_event_times
        self._records: list[key_index.IndexRecords] = []
        self._chunks: list[Chunks] = []
        self.unkeyed = {kind: BitMap64() for kind in key_index.UNKEYED_CLASSES}

    def add(self, table: pa.Table) -> None:
        """Add rows (`rows.SCHEMA`). They ascend from call to call."""
        if _has_only_keyed_rows(table):
            self._records.append(_newest_records(table, self._hasher))
            return
        self._records.append(ledger_records(table, self._hasher))
        for kind, bitmap in unkeyed_offsets(table).items():
            self.unkeyed[kind] |= bitmap
        chunks = chunk_records(table, self._hasher)
        if len(chunks):
            self._chunks.append(chunks)

    def records(self) -> key_index.IndexRecords:
        """Return the newest record of each key, with event-time winners if any row has an event time."""
        runs = self._records
        together = key_index.concatenate_records([key_index.IndexRecords(run.hi, run.lo, run.offset) for run in runs])
        records = together.take(key_index.latest_positions(together.hi, together.lo))
        if not self._with_event_times and all(run.event_time is None for run in runs):
            return records
        events = key_index.concatenate_records([run.event_winners() for run in runs]).event_winners()
        assert events.event_time is not None
        events = events.take(key_index.latest_positions_by_event(events.hi, events.lo, events.event_time))
        return key_index.IndexRecords(records.hi, records.lo, records.offset, events.event_offset, events.event_time)

    def encoded_chunks(self) -> bytes:
        """Return the bytes of the chunk table."""
        return b"".join(chunks.tobytes() for chunks in self._chunks)


def _slices_of(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a table in contiguous pieces, which stay in a core's cache while they are encoded."""
    for start in range(0, len(table), _PIECE_ROWS):
        yield table.slice(start, _PIECE_ROWS).combine_chunks()


def ledger_records(table: pa.Table, hasher: KeyHasher) -> key_index.IndexRecords:
    """Return the newest record of each key in `table` (`rows.SCHEMA`), with event-time winners if it has event times.

    Only rows of slot MESSAGE with a key take part (P6, P8); chunked messages come from chunk tables (P10).
    """
    return _newest_records(table if _has_only_keyed_rows(table) else table.filter(keyed_mask(table)), hasher)


def _newest_records(table: pa.Table, hasher: KeyHasher) -> key_index.IndexRecords:
    """Return the newest record of each key, with event-time winners, of rows that are all in the key map."""
    hi, lo = hasher(rows.contiguous_array(table.column("key")))
    flagged = tombstone_flagged_offsets(table)
    newest = key_index.latest_positions(hi, lo)
    event_times = table.column("event_time")
    if event_times.null_count == len(event_times):
        return key_index.IndexRecords(hi[newest], lo[newest], flagged[newest])
    events = pc.fill_null(event_times, key_index.NO_EVENT_TIME).to_numpy()
    winners = newest if np.all(events[1:] >= events[:-1]) else key_index.latest_positions_by_event(hi, lo, events)
    return key_index.IndexRecords(hi[newest], lo[newest], flagged[newest], flagged[winners], events[winners])


def _has_only_keyed_rows(table: pa.Table) -> bool:
    """Return whether all rows are in the key map."""
    slots = table.column("slot").to_numpy()
    return table.column("key").null_count == 0 and bool(np.all(slots == int(rows.RowType.MESSAGE)))


def keyed_mask(table: pa.Table) -> pa.ChunkedArray:
    """Return a mask of the rows in the key map: messages with a key (P6, P8, P10). Booleans, shape (n,)."""
    return pc.and_(pc.is_valid(table.column("key")), pc.equal(table.column("slot"), int(rows.RowType.MESSAGE)))


def tombstone_flagged_offsets(table: pa.Table) -> npt.NDArray[np.uint64]:
    """Return the offsets of keyed rows, shape (n,), with TOMBSTONE where the payload is null or empty (P5)."""
    lengths = pc.binary_length(table.column("payload"))
    offsets: npt.NDArray[np.uint64] = table.column("offset").to_numpy().view(np.uint64)
    if not lengths.null_count and (pc.min(lengths).as_py() or 0) > 0:
        return offsets
    empty = pc.fill_null(pc.equal(lengths, 0), True).to_numpy()
    return np.where(empty, offsets | key_index.TOMBSTONE, offsets)


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
