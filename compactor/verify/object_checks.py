"""Verify, first stage: a raw ledger, and an index of the compacted ledger, each by itself. One task an object.

Of a raw ledger its row in the database is compared with its rows, and its key index with what its rows say: an index
that is proven so stands for them in the second stage. Of an index of the compacted ledger the structure is checked:
order, fences, hash range, all checksums.

Memory: of a ledger about 100 bytes a row, of an index 80 bytes a record.
"""

from __future__ import annotations

from array import array

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from compactor.verify.compare import (
    RowsObjectWalk,
    TaskFindings,
    check_size,
    compare_bitmaps,
    keyed_rows,
    largest_of_each,
    name_records,
    newest_of_each,
    numbers,
    plain,
    records_of,
    split,
    unkeyed_masks,
)
from compactor.verify.findings import Difference, DifferenceKind, Findings
from compactor.verify.plan import VerifyPlan
from storage.ledger import chunk_table, key_index
from storage.ledger.key_index import NO_EVENT_TIME, TOMBSTONE, HashRange, IndexRecords
from storage.model import IndexLocation, LedgerRecord
from storage.objects.interface import ObjectStore


class _LedgerRows:
    """What the rows of a raw ledger say that its row in the database and its key index must say, too."""

    def __init__(self, plan: VerifyPlan) -> None:
        self._hasher = plan.hasher
        self.records: list[IndexRecords] = []
        self.chunks = [chunk_table.none()]
        self.unkeyed = {name: BitMap64() for name in key_index.UNKEYED_CLASSES}
        self._entries = self._retained = 0
        self._last_entry: int | None = None
        self._ledgers: set[int] = set()

    def add(self, table: pa.Table) -> None:
        """Take in one row group."""
        self.records.append(records_of(keyed_rows(table), self._hasher))
        self.chunks.append(chunk_table.chunk_records(table, self._hasher))
        offsets = numbers(table, "offset").astype(np.uint64)
        for name, mask in unkeyed_masks(table).items():
            self.unkeyed[name] |= BitMap64(array("Q", offsets[mask].tobytes()))
        entries = numbers(table, "entry_id")
        self._entries += int(np.count_nonzero(entries[1:] != entries[:-1])) + (int(entries[0]) != self._last_entry)
        self._last_entry = int(entries[-1])
        self._ledgers |= set(np.unique(numbers(table, "ledger_id")).tolist())
        self._retained += len(table) - table.column("retained_at").null_count

    def compare(self, ledger: LedgerRecord, walk: RowsObjectWalk, findings: Findings) -> None:
        """Compare with the ledger's row in the database."""
        last_offset, last_id = walk.last or (None, None)
        seen = walk.totals | {
            "first_offset": walk.first[0] if walk.first else None,
            "last_offset": last_offset,
            "last_message_id": last_id,
            "entries": self._entries,
            "ledger_id": self._ledgers,
        }
        recorded = {name: getattr(ledger, name) for name in seen} | {"ledger_id": {ledger.ledger_id}}
        where = f"row of ledger {ledger.ledger_id} in the database"
        findings.compare(where, f"it says {{}} {{}}, {ledger.rows.name} has {{}}", recorded, seen)
        gone = ledger.last_offset - ledger.first_offset + 1 - walk.messages
        if gone:  # offsets are dense
            what = f"{gone} rows are missing between its first and last offset"
            findings.add(Difference(DifferenceKind.MISSING, ledger.rows.name, what), max(1, gone))
        if self._retained:
            what = f"{self._retained} rows have a retained_at, which raw rows never have"
            findings.add(Difference(DifferenceKind.ALTERED, ledger.rows.name, what))


def check_ledger(store: ObjectStore, plan: VerifyPlan, number: int) -> TaskFindings:
    """Raw ledger `number`: its rows against the database, its index against its rows."""
    ledger = plan.ledgers[number]
    answer = TaskFindings(Findings(plan.limit))
    answer.counts.update({"ledgers": 1, "indexes": 1})
    rows: _LedgerRows | None = None
    with answer.findings.reading(ledger.rows.name):
        walk, walked = RowsObjectWalk(store, ledger.rows_object, answer.findings), _LedgerRows(plan)
        for table in walk:
            answer.counts["raw rows"] += len(table)
            walked.add(table)
        walked.compare(ledger, walk, answer.findings)
        rows = walked
    with answer.findings.reading(ledger.index.name):
        records = _check_structure(store, ledger.index, answer)
        unkeyed = {name: key_index.read_unkeyed(store, ledger.index, name) for name in key_index.UNKEYED_CLASSES}
        chunks = chunk_table.read_ledger_chunks(store, ledger.index)
        if rows is not None:
            where = ledger.index.name
            if not np.array_equal(np.concatenate(rows.chunks), chunks):
                what = "the chunk table does not say what the rows say"
                answer.findings.add(Difference(DifferenceKind.ALTERED, where, what))
            _compare_records(answer.findings, where, key_index.concatenated(rows.records), records)
            for name, bitmap in unkeyed.items():
                compare_bitmaps(answer.findings, where, name, rows.unkeyed[name], bitmap)
    return answer


def _compare_records(findings: Findings, where: str, rows: IndexRecords, index: IndexRecords) -> None:
    """The index of a ledger against the records of all its rows: the newest of each key, and by event time (P9)."""
    _compare_winners(findings, where, "newest record", newest_of_each(rows), index)
    if index.event_time is not None and rows.event_time is not None:
        by_event = index.by_event()
        _compare_winners(findings, where, "event-time winner", largest_of_each(rows), by_event, by_event=True)
    elif rows.event_time is not None and np.any(rows.event_time != NO_EVENT_TIME):
        findings.add(Difference(DifferenceKind.MISSING, where, "event times of its rows are not in the index"))


def _compare_winners(
    findings: Findings, where: str, record: str, wanted: IndexRecords, found: IndexRecords, *, by_event: bool = False
) -> None:
    missing, extra, ours, theirs = split(wanted, found)
    same = ours.offset == theirs.offset
    if by_event and ours.event_time is not None and theirs.event_time is not None:
        same &= ours.event_time == theirs.event_time
    revived = ~same & (ours.offset & TOMBSTONE != 0) & (theirs.offset & TOMBSTONE == 0)
    name_records(findings, DifferenceKind.MISSING, where, missing, f"the {record} of a key is not in the index")
    name_records(findings, DifferenceKind.EXTRA, where, extra, "the index has a key that no row has")
    what = f"the {record} is a tombstone, the index has a value"
    name_records(findings, DifferenceKind.REVIVED, where, theirs.take(revived), what)
    what = f"the {record} of a key is not what its rows say"
    name_records(findings, DifferenceKind.ALTERED, where, theirs.take(~same & ~revived), what)


def check_index(store: ObjectStore, plan: VerifyPlan, number: int) -> TaskFindings:
    """Index `number` of the compacted ledger, all of it."""
    location = plan.locations[number]
    answer = TaskFindings(Findings(plan.limit))
    answer.counts["indexes"] = 1
    with answer.findings.reading(location.name):
        records = _check_structure(store, location, answer)
        for name in key_index.UNKEYED_CLASSES:
            key_index.read_unkeyed(store, location, name)
        beyond = records.take(plain(records) > plan.serving.horizon.offset)
        name_records(answer.findings, DifferenceKind.EXTRA, location.name, beyond, "a record is above the horizon")
        if records.event_offset is not None and np.any(records.event_offset != records.offset):
            what = "the offsets of event-time winners are not those of the records"
            answer.findings.inconsistent(location.name, what)
    return answer


def _check_structure(store: ObjectStore, location: IndexLocation, answer: TaskFindings) -> IndexRecords:
    """All records of an index; checks its size, their order, and the fence and hash range that each is in."""
    where, findings = location.name, answer.findings
    check_size(store, findings, where, location.offset + location.length, exactly=False)
    directory = key_index.IndexDirectory.decode(location.directory)
    width = key_index.RECORD_BYTES + (key_index.EVENT_BYTES if directory.has_events else 0)
    length = directory.records * width + sum(directory.unkeyed_sizes.values())
    length += directory.chunk_table[0] if directory.chunk_table else 0
    if length != location.length:
        what = f"the index is {location.length} bytes long, its directory says {length}"
        findings.inconsistent(where, what)
    records = key_index.read_records(store, location, HashRange(), events=True)
    answer.counts["index records"] += len(records)
    if len(records) != directory.records:
        what = f"only {len(records)} of {directory.records} records are where their hash says"
        findings.inconsistent(where, what)
    rising = (records.hi[1:] > records.hi[:-1]) | (
        (records.hi[1:] == records.hi[:-1]) & (records.lo[1:] > records.lo[:-1])
    )
    bits = directory.hash_range.bits + directory.fence_bits
    fences = np.repeat(np.arange(len(directory.counts), dtype=np.uint64), directory.counts)
    first = np.uint64(directory.hash_range.prefix << directory.fence_bits)
    astray = (records.hi >> np.uint64(64 - bits)) != first + fences if bits else np.zeros(len(records), dtype=np.bool_)
    if not rising.all() or astray.any():
        what = "its records do not ascend by hash" if not rising.all() else "a record is in the wrong fence"
        findings.inconsistent(where, what)
    return records
