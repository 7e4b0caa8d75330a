"""Verify, first stage: a part of the compacted ledger, by itself and against raw. One task a part.

What the manifest says of it is compared with its rows, its live rows, bit for bit, with those of raw ledgers that are
still there, and what goes by time with the history of runs. Its keys are spread over all hash ranges, so it is not
compared with the index here: it adds up, for each range, a *fingerprint* of the records that its live rows must have;
the second stage (keys.py) adds up those of the records that are there. Sums that agree prove that the two sets
are equal, but for a chance of 2⁻⁶⁴.

Memory: one row group of the part and one of a ledger.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from compactor.verify.unkeyed import chunk_fingerprint
from compactor.verify.compare import (
    I64,
    RowsByOffset,
    RowsObjectWalk,
    TaskFindings,
    check_size,
    fingerprint,
    keyed_rows,
    message_id,
    mixed_records,
    name_records,
    numbers,
    records_of,
    summed,
    unkeyed_masks,
)
from compactor.verify.findings import Difference, DifferenceKind, Findings
from compactor.verify.plan import CHUNK_TABLES, VerifyPlan
from compactor.verify.run_history import EXPIRED, NEVER, OVERDUE, RETAINED
from storage.ledger import rows
from storage.ledger.chunk_table import chunk_records
from storage.ledger.deletion_bitmap import read_deleted
from storage.ledger.key_index import TOMBSTONE, IndexRecords
from storage.ledger.manifest import Part
from storage.model import LedgerRecord
from storage.objects.interface import ObjectStore


def check_part(store: ObjectStore, plan: VerifyPlan, number: int) -> TaskFindings:
    """Part `number` of the manifest: fingerprints of its live rows by hash range, class, and of its live chunks."""
    answer = TaskFindings(Findings(plan.limit), complete=False)
    answer.counts["parts"] = 1
    part = plan.serving.parts[number]
    with answer.findings.reading(part.rows.stored.name):
        _PartCheck(store, plan, part, answer).run()
        answer.complete = True
    return answer


class _PartCheck:
    """One walk through a part."""

    def __init__(self, store: ObjectStore, plan: VerifyPlan, part: Part, answer: TaskFindings) -> None:
        self._store, self._plan, self._part, self._answer = store, plan, part, answer
        self._findings = answer.findings
        self._name = part.rows.stored.name
        self._raw = _RawRows(store, plan, answer.findings)
        self._offset_sum = self._live = 0
        self._seen: dict[str, list[int]] = {"oldest_value": [], "oldest_tombstone": []}
        if part.oldest_row is not None:
            self._seen["oldest_row"] = []

    def run(self) -> None:
        part = self._part
        walk = RowsObjectWalk(self._store, part.rows, self._findings)  # the rows first: a damaged bitmap ends the check
        dead = self._dead()
        for table in walk:
            self._add(table, dead)
        seen = walk.totals | {"offset_sum": self._offset_sum % 2**64}
        recorded = {name: getattr(part, name) for name in seen}
        for name, end, position in (("first", part.first, walk.first), ("last", part.last, walk.last)):
            recorded[name], seen[name] = (end.offset, end.message_id), position
        self._findings.compare(self._name, "the manifest says {} {} of it, its rows say {}", recorded, seen)
        deleted = walk.messages - self._live
        if deleted != len(dead) and part.deleted:
            what = f"of {len(dead)} deleted rows only {deleted} are in the part"
            self._findings.inconsistent(part.deleted.name, what)
        self._findings.check_bounds(self._name, part, "a row", self._seen)

    def _dead(self) -> I64:
        """The offsets of the deleted rows."""
        part = self._part
        if part.deleted:
            end = part.deleted.offset + part.deleted.length
            check_size(self._store, self._findings, part.deleted.name, end, exactly=False)
        bitmap = read_deleted(self._store, part)
        dead = np.frombuffer(bitmap.to_array(), dtype=np.uint32).astype(np.int64) + part.first.offset
        if part.deleted and len(dead) != part.deleted.cardinality:
            what = f"{len(dead)} rows are deleted, the manifest says {part.deleted.cardinality}"
            self._findings.inconsistent(part.deleted.name, what)
        return dead

    def _add(self, table: pa.Table, dead: I64) -> None:
        """Take in one row group."""
        self._answer.counts["part rows"] += len(table)
        offsets = numbers(table, "offset")
        at = np.minimum(np.searchsorted(dead, offsets), max(0, len(dead) - 1))
        alive = dead[at] != offsets if len(dead) else np.ones(len(offsets), dtype=np.bool_)
        if not alive.any():
            return
        live = table.filter(pa.array(alive))
        offsets = offsets[alive]
        self._see("oldest_row", numbers(live, "publish_time"))
        self._live += len(live)
        self._offset_sum += int(offsets.sum())
        self._answer.last_alive = message_id(live, len(live) - 1)
        self._add_keyed(live)
        self._add_unkeyed(live, offsets)
        self._answer.add(CHUNK_TABLES, chunk_fingerprint(chunk_records(live, self._plan.hasher)))
        self._answer.counts["part rows compared with raw"] += self._raw.compare(live, self._name)

    def _see(self, bound: str, times: I64) -> None:
        if len(times) and bound in self._seen:
            self._seen[bound].append(int(times.min()))

    def _add_keyed(self, live: pa.Table) -> None:
        keyed = keyed_rows(live)
        records = records_of(keyed, self._plan.hasher)
        tombstones = int(np.count_nonzero(records.offset & TOMBSTONE))
        self._answer.counts.update({"values": len(records) - tombstones, "tombstones": tombstones})
        self._check_times(keyed, records)
        bits = self._plan.range_bits
        prefixes = (records.hi >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(keyed), np.int64)
        mixed = mixed_records(records, self._plan.by_event)
        for prefix in np.unique(prefixes).tolist():
            self._answer.add(self._plan.range_name(prefix), summed(mixed[prefixes == prefix]))

    def _check_times(self, keyed: pa.Table, records: IndexRecords) -> None:
        """What goes by time: a value that has expired, a tombstone that is overdue (T1, T2)."""
        history = self._plan.history
        offsets, published = numbers(keyed, "offset"), numbers(keyed, "publish_time")
        retained = np.asarray(keyed.column("retained_at").fill_null(0).to_numpy(), dtype=np.int64)
        has_time = keyed.column("retained_at").is_valid().to_numpy()
        tombstone = records.offset & TOMBSTONE != 0
        self._see("oldest_value", published[~tombstone])
        self._see("oldest_tombstone", retained[tombstone])
        kept = history.first_kept(offsets)
        asked = tombstone if kept is None else tombstone & (kept != NEVER)
        checks = [
            (DifferenceKind.REVIVED, ~tombstone & (published <= history.must_expire(offsets)), EXPIRED),
            (DifferenceKind.INCONSISTENT, tombstone != has_time, RETAINED),
            (
                DifferenceKind.EXTRA,
                tombstone & (published <= history.must_go(offsets)),
                "a tombstone is there that was below the topic's start, or too old, when a run went over it",
            ),
            (DifferenceKind.EXTRA, tombstone & ~asked, "a tombstone is retained that no policy asked for"),
            (DifferenceKind.EXTRA, asked & (retained <= history.must_drop(offsets)), OVERDUE),
        ]
        if kept is not None:
            what = "retained_at is not the time of the run that first kept the tombstone"
            checks.append((DifferenceKind.ALTERED, asked & (retained != kept), what))
        for kind, mask, what in checks:
            if mask.any():
                keys = keyed.column("key").filter(pa.array(mask))
                name_records(self._findings, kind, self._name, records.take(mask), what, keys)

    def _add_unkeyed(self, live: pa.Table, offsets: I64) -> None:
        for name, mask in unkeyed_masks(live).items():
            self._answer.add(name, fingerprint(offsets[mask]))
        slot = numbers(live, "slot")
        never = (slot == int(rows.RowType.COMPACTED_OUT)) | (slot == int(rows.RowType.MARKER))
        what = "a slot that is never delivered is in a part"
        self._findings.add_each(DifferenceKind.EXTRA, self._name, what, offsets[never])


class _RawRows:
    """Rows of raw ledgers at or below the horizon, asked for in ascending order of offsets."""

    def __init__(self, store: ObjectStore, plan: VerifyPlan, findings: Findings) -> None:
        self._store, self._plan, self._findings = store, plan, findings
        self._rows: tuple[LedgerRecord, RowsByOffset] | None = None

    def compare(self, live: pa.Table, where: str) -> int:
        """Compare live rows of a part, bit for bit, with raw; how many could be compared."""
        offsets = numbers(live, "offset")
        compared = 0
        for ledger in self._plan.below:
            first, end = np.searchsorted(offsets, [ledger.first_offset, ledger.last_offset + 1], "left").tolist()
            if first == end:
                continue
            mine, wanted = live.slice(first, end - first), offsets[first:end]
            seen = np.zeros(len(mine), dtype=np.bool_)
            with self._findings.reading(ledger.rows.name):
                rows_of = self._rows_of(ledger)
                for number, inside in rows_of.groups(wanted):
                    found, raw = rows_of.rows(number, wanted[inside])
                    seen[inside[found]] = True
                    self._same(mine.take(pa.array(inside[found])), raw, where)
                what = f"a row that ledger {ledger.ledger_id} does not have is in a part"
                keys = mine.column("key").filter(pa.array(~seen))
                self._findings.add_each(DifferenceKind.EXTRA, where, what, wanted[~seen], keys)
            compared += int(np.count_nonzero(seen))
        return compared

    def _rows_of(self, ledger: LedgerRecord) -> RowsByOffset:
        if self._rows is None or self._rows[0] is not ledger:
            self._rows = (ledger, RowsByOffset(self._store, ledger.rows_object))
        return self._rows[1]

    def _same(self, mine: pa.Table, raw: pa.Table, where: str) -> None:
        differs: dict[int, list[str]] = {}
        for name in rows.SCHEMA.names:
            ours, theirs = mine.column(name), raw.column(name)
            if name == "retained_at" or ours.equals(theirs):
                continue
            for row, (our, their) in enumerate(zip(ours, theirs, strict=True)):
                if not our.equals(their):
                    differs.setdefault(row, []).append(name)
        for row, columns in differs.items():
            what = f"{', '.join(columns)} of the row are not as the raw ledger has them"
            offset, key = mine.column("offset")[row].as_py(), raw.column("key")[row].as_py()
            self._findings.add(Difference(DifferenceKind.ALTERED, where, what, offset, key))
