"""Verify, first stage: a raw ledger, and an index of the compacted ledger, each by itself. One task an object.

Of a raw ledger its row in the database is compared with its rows, and its key index with what its rows say: an index
that is proven so stands for them in the second stage. Of an index of the compacted ledger the structure is checked:
order, fences, hash range, all checksums.

Memory: of a ledger about 100 bytes a row, of an index 80 bytes a record.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from compactor.verify.findings import Difference, Findings, Kind
from compactor.verify.fingerprints import (
    check_size,
    checked_groups,
    compare_bitmaps,
    compare_records,
    keyed_rows,
    last_of_each,
    name_records,
    numbers,
    plain,
    position,
    records_of,
    unkeyed_masks,
)
from compactor.verify.plan import VerifyPlan
from storage.ledger import chunk_table, key_index, rows
from storage.ledger.key_index import NO_EVENT_TIME, OFFSET_MASK, HashRange, Records
from storage.ledger.rows_file import RowsObject
from storage.model import IndexLocation, LedgerRecord, MessageId
from storage.objects.interface import ObjectStore


@dataclass
class ObjectFound:
    """The answer about a raw ledger or an index."""

    findings: Findings
    rows: int = 0
    records: int = 0


def check_ledger(store: ObjectStore, plan: VerifyPlan, number: int) -> ObjectFound:
    """Raw ledger `number`: its rows against the database, its index against its rows."""
    ledger = plan.ledgers[number]
    found = ObjectFound(Findings(plan.limit))
    expected: list[Records] = []
    unkeyed = {name: BitMap64() for name in key_index.UNKEYED_CLASSES}
    chunks = [chunk_table.none()]
    whole = False
    with found.findings.reading(ledger.rows.name):
        check_size(store, found.findings, ledger.rows.name, ledger.rows.size, exactly=True)
        totals = _LedgerTotals()
        for table in checked_groups(store, RowsObject(ledger.rows, ledger.footer_size), found.findings):
            found.rows += len(table)
            totals.add(table)
            expected.append(records_of(keyed_rows(table), plan.hasher))
            chunks.append(chunk_table.chunk_records(table, plan.hasher))
            offsets = numbers(table, "offset").astype(np.uint64)
            for name, mask in unkeyed_masks(table).items():
                unkeyed[name] |= BitMap64(array("Q", offsets[mask].tobytes()))
        totals.compare(ledger, found.findings)
        whole = True
    with found.findings.reading(ledger.index.name):
        records = _check_structure(store, ledger.index, found.findings)
        found.records = len(records)
        seen = {name: key_index.read_unkeyed(store, ledger.index, name) for name in key_index.UNKEYED_CLASSES}
        seen_chunks = chunk_table.read_ledger_chunks(store, ledger.index)
        if whole:
            where = ledger.index.name
            if not np.array_equal(np.concatenate(chunks), seen_chunks):
                what = "the chunk table does not say what the rows say"
                found.findings.add(Difference(Kind.ALTERED, where, what))
            all_rows = key_index.concatenated(expected)
            wanted = all_rows.take(last_of_each(all_rows.hi, all_rows.lo, all_rows.offset & OFFSET_MASK))
            compare_records(found.findings, where, wanted, records)
            if records.event_time is not None and all_rows.event_time is not None:
                order = (all_rows.offset & OFFSET_MASK, all_rows.event_time)
                winners = all_rows.take(last_of_each(all_rows.hi, all_rows.lo, *order))
                compare_records(found.findings, where, winners, records.by_event(), "event-time winner")
            elif all_rows.event_time is not None and np.any(all_rows.event_time != NO_EVENT_TIME):
                found.findings.add(Difference(Kind.MISSING, where, "event times of its rows are not in the index"))
            for name, bitmap in seen.items():
                compare_bitmaps(found.findings, where, name, unkeyed[name], bitmap)
    return found


class _LedgerTotals:
    """What the rows of a raw ledger say of it as a whole."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last: tuple[int, MessageId] | None = None
        self._messages = self._entries = self._logical_bytes = 0
        self._last_entry: int | None = None
        self._publish: list[int] = []
        self._ledgers: set[int] = set()
        self._retained = 0

    def add(self, table: pa.Table) -> None:
        entries = numbers(table, "entry_id")
        self._first = int(table.column("offset")[0].as_py()) if self._first is None else self._first
        self._last = position(table, len(table) - 1)
        self._messages += len(table)
        self._entries += int(np.count_nonzero(entries[1:] != entries[:-1])) + (int(entries[0]) != self._last_entry)
        self._last_entry = int(entries[-1])
        self._logical_bytes += int(rows.logical_sizes(table).sum())
        published = pc.min_max(table.column("publish_time")).as_py()
        self._publish += [published["min"], published["max"]]
        self._ledgers |= set(np.unique(numbers(table, "ledger_id")).tolist())
        self._retained += len(table) - table.column("retained_at").null_count

    def compare(self, ledger: LedgerRecord, findings: Findings) -> None:
        last_offset, last_id = self._last or (None, None)
        tell = {
            "first_offset": (ledger.first_offset, self._first),
            "last_offset": (ledger.last_offset, last_offset),
            "messages": (ledger.messages, self._messages),
            "entries": (ledger.entries, self._entries),
            "last_message_id": (ledger.last_message_id, last_id),
            "logical_bytes": (ledger.logical_bytes, self._logical_bytes),
            "min_publish_time": (ledger.min_publish_time, min(self._publish, default=None)),
            "max_publish_time": (ledger.max_publish_time, max(self._publish, default=None)),
            "ledger_id": ({ledger.ledger_id}, self._ledgers),
        }
        where = f"row of ledger {ledger.ledger_id} in the database"
        for name, (said, seen) in tell.items():
            if said != seen:
                what = f"it says {name} {plain(said)}, {ledger.rows.name} has {plain(seen)}"
                findings.add(Difference(Kind.INCONSISTENT, where, what))
        gone = ledger.last_offset - ledger.first_offset + 1 - self._messages
        if gone:  # offsets are dense
            what = f"{gone} rows are missing between its first and last offset"
            findings.add(Difference(Kind.MISSING, ledger.rows.name, what), max(1, gone))
        if self._retained:
            what = f"{self._retained} rows have a retained_at, which raw rows never have"
            findings.add(Difference(Kind.ALTERED, ledger.rows.name, what))


def check_index(store: ObjectStore, plan: VerifyPlan, number: int) -> ObjectFound:
    """Index `number` of the compacted ledger, all of it."""
    assert plan.manifest is not None
    location = plan.locations[number]
    found = ObjectFound(Findings(plan.limit))
    with found.findings.reading(location.name):
        records = _check_structure(store, location, found.findings)
        found.records = len(records)
        for name in key_index.UNKEYED_CLASSES:
            key_index.read_unkeyed(store, location, name)
        beyond = (records.offset & OFFSET_MASK) > np.uint64(plan.manifest.horizon.offset)
        name_records(found.findings, Kind.EXTRA, location.name, records.take(beyond), "a record is above the horizon")
        if records.event_offset is not None and np.any(records.event_offset != records.offset):
            what = "the offsets of event-time winners are not those of the records"
            found.findings.add(Difference(Kind.INCONSISTENT, location.name, what))
    return found


def _check_structure(store: ObjectStore, location: IndexLocation, findings: Findings) -> Records:
    """All records of an index, after a look at their order and the fence and hash range that each is in."""
    where = location.name
    check_size(store, findings, where, location.offset + location.length, exactly=False)
    directory = key_index.IndexDirectory.decode(location.directory)
    width = key_index.RECORD_BYTES + (key_index.EVENT_BYTES if directory.has_events else 0)
    length = directory.records * width + sum(directory.unkeyed_sizes.values())
    length += directory.chunk_table[0] if directory.chunk_table else 0
    if length != location.length:
        what = f"the index is {location.length} bytes long, its directory says {length}"
        findings.add(Difference(Kind.INCONSISTENT, where, what))
    records = key_index.read_records(store, location, HashRange(), events=True)
    if len(records) != directory.records:
        what = f"only {len(records)} of {directory.records} records are where their hash says"
        findings.add(Difference(Kind.INCONSISTENT, where, what))
    rising = (records.hi[1:] > records.hi[:-1]) | (
        (records.hi[1:] == records.hi[:-1]) & (records.lo[1:] > records.lo[:-1])
    )
    bits = directory.hash_range.bits + directory.fence_bits
    fences = np.repeat(np.arange(len(directory.counts), dtype=np.uint64), directory.counts)
    first = np.uint64(directory.hash_range.prefix << directory.fence_bits)
    astray = (records.hi >> np.uint64(64 - bits)) != first + fences if bits else np.zeros(len(records), dtype=np.bool_)
    if not rising.all() or astray.any():
        what = "its records do not ascend by hash" if not rising.all() else "a record is in the wrong fence"
        findings.add(Difference(Kind.INCONSISTENT, where, what))
    return records
