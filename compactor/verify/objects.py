"""Verify, objects stage: raw ledgers, and indexes and parts of the compacted ledger. One task per object.

*Ledger*: compare its database row, and its key index, with its rows. The keys stage then reads the proven index instead
of the rows.
*Table object*: check its checksum.
*Index* of the compacted ledger: check its structure: order, fences, hash range, all checksums.
*Part*: compare its record in the manifest with its rows, its live rows bit for bit with the existing raw ledgers, and
its times with the history of runs. The keys of a part spread over all hash ranges, so the comparison with the index
takes two steps: this stage adds up, per range, a *fingerprint* of the index records that the live rows require; the
keys stage (keys.py) adds up the fingerprint of the records that exist. Equal sums prove equal sets, except with
probability 2⁻⁶⁴.

Memory: about 100 bytes per row of a ledger; 80 bytes per record of an index; two row groups for a part.
"""

from __future__ import annotations

from array import array

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from compactor.verify.compare import (
    RowsByOffset,
    RowsObjectWalk,
    add_record_differences,
    check_size,
    compare_bitmaps,
    diff_by_hash,
    event_winner_per_hash,
    fingerprint,
    fingerprint_of_bits,
    integer_column,
    keyed_rows,
    masks_outside_key_map,
    newest_per_hash,
    offsets_of,
    record_bits,
    records_of,
)
from compactor.verify.findings import TABLE_OBJECTS, Difference, DifferenceKind, Findings, TaskFindings
from compactor.verify.plan import CHUNK_TABLES, VerifyPlan
from compactor.verify.run_history import EXPIRED, NEVER, OVERDUE, RETAINED
from compactor.verify.unkeyed import chunk_fingerprint
from storage.advice import damaged_object_advice
from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.ledger import chunk_table, key_index, rows
from storage.ledger.deletion_bitmap import read_deleted_rows
from storage.ledger.key_index import I64, NO_EVENT_TIME, TOMBSTONE, HashRange, IndexRecords
from storage.ledger.manifest import Part
from storage.model import IndexLocation, LedgerRecord
from storage.objects.interface import ObjectStore


def check_ledger(store: ObjectStore, plan: VerifyPlan, ledger_number: int) -> TaskFindings:
    """Compare raw ledger `ledger_number`: its rows with the database, its index with its rows."""
    ledger = plan.ledgers[ledger_number]
    answer = TaskFindings(Findings(plan.limit))
    answer.counts.update({"ledgers": 1, "indexes": 1})
    rows: _LedgerRows | None = None
    with answer.findings.record_damage(ledger.rows.name):
        walk, readable = RowsObjectWalk(store, ledger.rows_object, answer.findings), _LedgerRows(plan)
        for table in walk:
            answer.counts["raw rows"] += len(table)
            readable.add(table)
        readable.compare(ledger, walk, answer.findings)
        rows = readable
    with answer.findings.record_damage(ledger.index.name):
        records = _read_and_check_index(store, ledger.index, answer)
        unkeyed = {name: key_index.read_unkeyed(store, ledger.index, name) for name in key_index.UNKEYED_CLASSES}
        chunks = chunk_table.read_ledger_chunks(store, ledger.index)
        if rows is not None:
            where = ledger.index.name
            if not np.array_equal(np.concatenate(rows.chunks), chunks):
                what = "the chunk table differs from the rows"
                answer.findings.add(Difference(DifferenceKind.ALTERED, where, what))
            _compare_records(answer.findings, where, key_index.concatenate_records(rows.records), records)
            for name, bitmap in unkeyed.items():
                compare_bitmaps(answer.findings, where, name, rows.unkeyed[name], bitmap)
    return answer


class _LedgerRows:
    """Values of a raw ledger, computed from its rows, for comparison with its database row and its key index."""

    def __init__(self, plan: VerifyPlan) -> None:
        self._hasher = plan.hasher
        self.records: list[IndexRecords] = []
        self.chunks = [chunk_table.empty_chunks()]
        self.unkeyed = {name: BitMap64() for name in key_index.UNKEYED_CLASSES}
        self._entries = self._retained = 0
        self._last_entry: int | None = None
        self._ledgers: set[int] = set()

    def add(self, table: pa.Table) -> None:
        """Add the values of one row group of the ledger."""
        self.records.append(records_of(keyed_rows(table), self._hasher))
        self.chunks.append(chunk_table.chunk_records(table, self._hasher))
        offsets = integer_column(table, "offset").astype(np.uint64)
        for name, mask in masks_outside_key_map(table).items():
            self.unkeyed[name] |= BitMap64(array("Q", offsets[mask].tobytes()))
        entries = integer_column(table, "entry_id")
        self._entries += int(np.count_nonzero(entries[1:] != entries[:-1])) + (int(entries[0]) != self._last_entry)
        self._last_entry = int(entries[-1])
        self._ledgers |= set(np.unique(integer_column(table, "ledger_id")).tolist())
        self._retained += len(table) - table.column("retained_at").null_count

    def compare(self, ledger: LedgerRecord, walk: RowsObjectWalk, findings: Findings) -> None:
        """Compare the values of all rows with the ledger's database row."""
        last_offset, last_id = walk.last or (None, None)
        actual = walk.totals | {
            "first_offset": walk.first[0] if walk.first else None,
            "last_offset": last_offset,
            "last_message_id": last_id,
            "entries": self._entries,
            "ledger_id": self._ledgers,
        }
        recorded = {name: getattr(ledger, name) for name in actual} | {"ledger_id": {ledger.ledger_id}}
        where = f"row of ledger {ledger.ledger_id} in the database"
        findings.compare(where, recorded, actual, f"it records {{}} {{}}, {ledger.rows.name} has {{}}")
        missing = ledger.last_offset - ledger.first_offset + 1 - walk.messages
        if missing:  # offsets are dense
            what = f"{missing} rows are missing between its first and last offset"
            findings.add(Difference(DifferenceKind.MISSING, ledger.rows.name, what), max(1, missing))
        if self._retained:
            what = f"{self._retained} rows have a retained_at, which raw rows never have"
            findings.add(Difference(DifferenceKind.ALTERED, ledger.rows.name, what))


def _compare_records(findings: Findings, where: str, rows: IndexRecords, index: IndexRecords) -> None:
    """Compare a ledger's index with the records of all its rows: the newest of each key, and by event time (P9)."""
    _compare_winners(findings, where, "newest record", newest_per_hash(rows), index)
    if index.event_time is not None and rows.event_time is not None:
        by_event = index.event_winners()
        _compare_winners(findings, where, "event-time winner", event_winner_per_hash(rows), by_event, by_event=True)
    elif rows.event_time is not None and np.any(rows.event_time != NO_EVENT_TIME):
        findings.add(Difference(DifferenceKind.MISSING, where, "the event times of its rows are not in the index"))


def _compare_winners(
    findings: Findings, where: str, record: str, rows: IndexRecords, index: IndexRecords, *, by_event: bool = False
) -> None:
    """Add the differences between the winners of the rows and the index. `record`: the noun for a winner."""
    missing, extra, of_rows, indexed = diff_by_hash(rows, index)
    same = of_rows.offset == indexed.offset
    if by_event and of_rows.event_time is not None and indexed.event_time is not None:
        same &= of_rows.event_time == indexed.event_time
    revived = ~same & (of_rows.offset & TOMBSTONE != 0) & (indexed.offset & TOMBSTONE == 0)
    add_record_differences(
        findings, DifferenceKind.MISSING, where, missing, f"the {record} of a key is not in the index"
    )
    add_record_differences(findings, DifferenceKind.EXTRA, where, extra, "the index has a key that no row has")
    what = f"the {record} of a key is a tombstone, the index has a value"
    add_record_differences(findings, DifferenceKind.REVIVED, where, indexed.take(revived), what)
    what = f"the {record} of a key differs from its rows"
    add_record_differences(findings, DifferenceKind.ALTERED, where, indexed.take(~same & ~revived), what)


def check_index(store: ObjectStore, plan: VerifyPlan, index_number: int) -> TaskFindings:
    """Check index `index_number` of the compacted ledger: its structure, horizon and checksums."""
    location = plan.index_locations[index_number]
    answer = TaskFindings(Findings(plan.limit))
    answer.counts["indexes"] = 1
    with answer.findings.record_damage(location.name):
        records = _read_and_check_index(store, location, answer)
        for name in key_index.UNKEYED_CLASSES:
            key_index.read_unkeyed(store, location, name)
        beyond = records.take(offsets_of(records) > plan.readable_manifest.horizon.offset)
        add_record_differences(
            answer.findings, DifferenceKind.EXTRA, location.name, beyond, "a record is above the horizon"
        )
        if records.event_offset is not None and np.any(records.event_offset != records.offset):
            what = "the offsets of event-time winners differ from those of the records"
            answer.findings.add_inconsistency(location.name, what)
    return answer


def check_table_object(store: ObjectStore, plan: VerifyPlan, object_number: int) -> TaskFindings:
    """Check the bytes of one object of the topic's Iceberg table by their checksum."""
    stored = plan.table_objects[object_number]
    answer = TaskFindings(Findings(plan.limit))
    answer.counts[TABLE_OBJECTS] = 1
    with answer.findings.record_damage(stored.name):
        if crc32c(store.get(stored.name, 0, stored.size)) != stored.crc32c:
            raise ObjectDamaged(
                f"{stored.name} of the table does not match its checksum", damaged_object_advice(stored.name)
            )
    return answer


def _read_and_check_index(store: ObjectStore, location: IndexLocation, answer: TaskFindings) -> IndexRecords:
    """Return all records of an index. Check its size, their order, and the fence and hash range of each."""
    where, findings = location.name, answer.findings
    check_size(store, findings, where, location.offset + location.length, exactly=False)
    directory = key_index.IndexDirectory.decode(location.directory, location.name)
    if directory.index_bytes != location.length:
        what = f"the index is {location.length} bytes long, its directory requires {directory.index_bytes}"
        findings.add_inconsistency(where, what)
    records = key_index.read_records(store, location, HashRange(), events=True)
    answer.counts["index records"] += len(records)
    if len(records) != directory.record_count:
        what = f"only {len(records)} of {directory.record_count} records are in the hash range of the index"
        findings.add_inconsistency(where, what)
    rising = (records.hi[1:] > records.hi[:-1]) | (
        (records.hi[1:] == records.hi[:-1]) & (records.lo[1:] > records.lo[:-1])
    )
    bits = directory.hash_range.bits + directory.fence_bits
    fences = np.repeat(np.arange(len(directory.counts), dtype=np.uint64), directory.counts)
    first = np.uint64(directory.hash_range.prefix << directory.fence_bits)
    misplaced = (
        (records.hi >> np.uint64(64 - bits)) != first + fences if bits else np.zeros(len(records), dtype=np.bool_)
    )
    if not rising.all() or misplaced.any():
        what = "its records do not ascend by hash" if not rising.all() else "a record is in the wrong fence"
        findings.add_inconsistency(where, what)
    return records


def check_part(store: ObjectStore, plan: VerifyPlan, part_number: int) -> TaskFindings:
    """Check part `part_number` of the manifest. Return fingerprints of its live rows by hash range and class."""
    answer = TaskFindings(Findings(plan.limit), complete=False)
    answer.counts["parts"] = 1
    part = plan.readable_manifest.parts[part_number]
    with answer.findings.record_damage(part.rows.stored.name):
        _PartCheck(store, plan, part, answer).run()
        answer.complete = True
    return answer


class _PartCheck:
    """Check of one part of the compacted ledger, in one walk through its rows."""

    def __init__(self, store: ObjectStore, plan: VerifyPlan, part: Part, answer: TaskFindings) -> None:
        self._store, self._plan, self._part, self._answer = store, plan, part, answer
        self._findings = answer.findings
        self._name = part.rows.stored.name
        self._raw = _RawRows(store, plan, answer.findings)
        self._offset_sum = self._live = 0
        self._oldest: dict[str, list[int]] = {"oldest_value": [], "oldest_tombstone": []}
        if part.oldest_row is not None:
            self._oldest["oldest_row"] = []

    def run(self) -> None:
        """Compare the part's rows with its record in the manifest, its deletion bitmap, raw and the history of runs."""
        part = self._part
        walk = RowsObjectWalk(self._store, part.rows, self._findings)  # before the bitmap: its damage ends the check
        dead = self._read_deleted_offsets()
        for table in walk:
            self._add_row_group(table, dead)
        actual = walk.totals | {"offset_sum": self._offset_sum % 2**64}
        recorded = {name: getattr(part, name) for name in actual}
        for name, end, position in (("first", part.first, walk.first), ("last", part.last, walk.last)):
            recorded[name], actual[name] = (end.offset, end.message_id), position
        self._findings.compare(self._name, recorded, actual, "the manifest records {} {}, its rows have {}")
        deleted = walk.messages - self._live
        if deleted != len(dead) and part.deleted:
            what = f"of {len(dead)} deleted rows only {deleted} are in the part"
            self._findings.add_inconsistency(part.deleted.name, what)
        self._findings.check_lower_bounds(self._name, part, "a row", self._oldest)

    def _read_deleted_offsets(self) -> I64:
        """Return the offsets of the deleted rows, ascending. Check size and cardinality of their bitmap."""
        part = self._part
        if part.deleted:
            end = part.deleted.offset + part.deleted.length
            check_size(self._store, self._findings, part.deleted.name, end, exactly=False)
        bitmap = read_deleted_rows(self._store, part)
        dead = np.frombuffer(bitmap.to_array(), dtype=np.uint32).astype(np.int64) + part.first.offset
        if part.deleted and len(dead) != part.deleted.cardinality:
            what = f"{len(dead)} rows are deleted, the manifest records {part.deleted.cardinality}"
            self._findings.add_inconsistency(part.deleted.name, what)
        return dead

    def _add_row_group(self, table: pa.Table, dead: I64) -> None:
        """Check one row group of the part, and add its live rows. `dead`: the offsets of the deleted rows."""
        self._answer.counts["part rows"] += len(table)
        offsets = integer_column(table, "offset")
        at = np.minimum(np.searchsorted(dead, offsets), max(0, len(dead) - 1))
        alive = dead[at] != offsets if len(dead) else np.ones(len(offsets), dtype=np.bool_)
        if not alive.any():
            return
        live = table.filter(pa.array(alive))
        offsets = offsets[alive]
        self._note_oldest("oldest_row", integer_column(live, "publish_time"))
        self._live += len(live)
        self._offset_sum += int(offsets.sum())
        self._answer.last_alive = rows.message_id(live, len(live) - 1)
        self._add_keyed_rows(live)
        self._add_unkeyed_rows(live, offsets)
        self._answer.add_fingerprint(
            CHUNK_TABLES, chunk_fingerprint(chunk_table.chunk_records(live, self._plan.hasher))
        )
        self._answer.counts["part rows compared with raw"] += self._raw.compare_and_count_matches(live, self._name)

    def _note_oldest(self, bound: str, times: I64) -> None:
        """Keep the smallest of `times` for the comparison with a lower bound of the manifest."""
        if len(times) and bound in self._oldest:
            self._oldest[bound].append(int(times.min()))

    def _add_keyed_rows(self, live: pa.Table) -> None:
        """Count live rows with a key, check their times, and add their fingerprints by hash range."""
        keyed = keyed_rows(live)
        records = records_of(keyed, self._plan.hasher)
        tombstones = int(np.count_nonzero(records.offset & TOMBSTONE))
        self._answer.counts.update({"values": len(records) - tombstones, "tombstones": tombstones})
        self._check_times(keyed, records)
        bits = self._plan.range_bits
        prefixes = (records.hi >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(keyed), np.int64)
        mixed = record_bits(records, self._plan.index_has_event_times)
        for prefix in np.unique(prefixes).tolist():
            self._answer.add_fingerprint(
                self._plan.fingerprint_name(prefix), fingerprint_of_bits(mixed[prefixes == prefix])
            )

    def _check_times(self, keyed: pa.Table, records: IndexRecords) -> None:
        """Add the expired values, the overdue tombstones, and the wrong times of tombstones (T1, T2)."""
        history = self._plan.history
        offsets, published = integer_column(keyed, "offset"), integer_column(keyed, "publish_time")
        retained = np.asarray(keyed.column("retained_at").fill_null(0).to_numpy(), dtype=np.int64)
        has_time = keyed.column("retained_at").is_valid().to_numpy()
        tombstone = records.offset & TOMBSTONE != 0
        self._note_oldest("oldest_value", published[~tombstone])
        self._note_oldest("oldest_tombstone", retained[tombstone])
        kept = history.expected_retained_at(offsets)
        retainable = tombstone if kept is None else tombstone & (kept != NEVER)
        checks = [
            (
                DifferenceKind.REVIVED,
                ~tombstone & (published <= history.latest_removed_value_publish_time(offsets)),
                EXPIRED,
            ),
            (DifferenceKind.INCONSISTENT, tombstone != has_time, RETAINED),
            (
                DifferenceKind.EXTRA,
                tombstone & (published <= history.latest_removed_row_publish_time(offsets)),
                "the tombstone was below the topic's start, or too old, when a run read it, but it was not removed",
            ),
            (DifferenceKind.EXTRA, tombstone & ~retainable, "a tombstone is retained that no policy retains"),
            (
                DifferenceKind.EXTRA,
                retainable & (retained <= history.latest_removed_tombstone_retained_at(offsets)),
                OVERDUE,
            ),
        ]
        if kept is not None:
            what = "retained_at is not the time of the first run that kept the tombstone"
            checks.append((DifferenceKind.ALTERED, retainable & (retained != kept), what))
        for kind, mask, what in checks:
            if mask.any():
                keys = keyed.column("key").filter(pa.array(mask))
                add_record_differences(self._findings, kind, self._name, records.take(mask), what, keys)

    def _add_unkeyed_rows(self, live: pa.Table, offsets: I64) -> None:
        """Add the fingerprints of live rows outside the key map, and the rows that no part may have."""
        for name, mask in masks_outside_key_map(live).items():
            self._answer.add_fingerprint(name, fingerprint(offsets[mask]))
        slot = integer_column(live, "slot")
        never = (slot == int(rows.RowType.COMPACTED_OUT)) | (slot == int(rows.RowType.MARKER))
        what = "a part has a row of a slot that is never delivered"
        self._findings.add_each(DifferenceKind.EXTRA, self._name, what, offsets[never])


class _RawRows:
    """Rows of raw ledgers at or below the horizon, read in ascending order of offsets."""

    def __init__(self, store: ObjectStore, plan: VerifyPlan, findings: Findings) -> None:
        self._store, self._plan, self._findings = store, plan, findings
        self._rows: tuple[LedgerRecord, RowsByOffset] | None = None

    def compare_and_count_matches(self, live: pa.Table, where: str) -> int:
        """Compare live rows of a part, bit for bit, with raw. Return how many rows had a raw row."""
        offsets = integer_column(live, "offset")
        compared = 0
        for ledger in self._plan.ledgers_to_horizon:
            first, end = np.searchsorted(offsets, [ledger.first_offset, ledger.last_offset + 1], "left").tolist()
            if first == end:
                continue
            part_rows, part_offsets = live.slice(first, end - first), offsets[first:end]
            matched = np.zeros(len(part_rows), dtype=np.bool_)
            with self._findings.record_damage(ledger.rows.name):
                rows_of = self._open_rows(ledger)
                for number, inside in rows_of.groups_of(part_offsets):
                    present, raw = rows_of.find_in_group(number, part_offsets[inside])
                    matched[inside[present]] = True
                    self._compare_rows(part_rows.take(pa.array(inside[present])), raw, where)
                what = f"a part has a row that ledger {ledger.ledger_id} does not have"
                keys = part_rows.column("key").filter(pa.array(~matched))
                self._findings.add_each(DifferenceKind.EXTRA, where, what, part_offsets[~matched], keys)
            compared += int(np.count_nonzero(matched))
        return compared

    def _open_rows(self, ledger: LedgerRecord) -> RowsByOffset:
        """Return the reader of a ledger's rows; the last reader is cached."""
        if self._rows is None or self._rows[0] is not ledger:
            self._rows = (ledger, RowsByOffset(self._store, ledger.rows_object))
        return self._rows[1]

    def _compare_rows(self, live: pa.Table, raw: pa.Table, where: str) -> None:
        """Add the rows whose columns differ. Both tables have the same offsets; raw rows have no `retained_at`."""
        differing: dict[int, list[str]] = {}
        for name in rows.SCHEMA.names:
            live_column, raw_column = live.column(name), raw.column(name)
            if name == "retained_at" or live_column.equals(raw_column):
                continue
            for row, (live_value, raw_value) in enumerate(zip(live_column, raw_column, strict=True)):
                if not live_value.equals(raw_value):
                    differing.setdefault(row, []).append(name)
        for row, columns in differing.items():
            what = f"{', '.join(columns)} of the row differ from the raw ledger"
            offset, key = live.column("offset")[row].as_py(), raw.column("key")[row].as_py()
            self._findings.add(Difference(DifferenceKind.ALTERED, where, what, offset, key))
