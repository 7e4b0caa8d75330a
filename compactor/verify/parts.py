"""Verify, first stage: a part of the compacted ledger, by itself and against raw. One task a part.

What the manifest says of it is compared with its rows, its live rows, bit for bit, with those of raw ledgers that are
still there, and what goes by time with the history of runs. Its keys are spread over all hash ranges, so it is not
compared with the index here: it adds up, for each range, a *fingerprint* of the records that its live rows must have;
the second stage (keys.py) adds up those of the records that are there. Sums that agree prove that the two sets
are equal, but for a chance of 2⁻⁶⁴.

Memory: one row group of the part and one of a ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.verify.chunks import chunk_fingerprint
from compactor.verify.findings import Difference, Findings, Kind
from compactor.verify.fingerprints import (
    I64,
    Fingerprint,
    Mask,
    check_size,
    checked_groups,
    fingerprint,
    key_hash,
    keyed_rows,
    least,
    message_id,
    numbers,
    plain,
    position,
    records_of,
    stirred_records,
    unkeyed_masks,
)
from compactor.verify.history import NEVER
from compactor.verify.plan import VerifyPlan
from storage.ledger import rows
from storage.ledger.chunk_table import chunk_records
from storage.ledger.deletion_bitmap import read_deleted
from storage.ledger.key_index import OFFSET_MASK, TOMBSTONE, Records
from storage.ledger.manifest import Part
from storage.ledger.rows_file import RowsObject, RowsReader
from storage.model import LedgerRecord, MessageId
from storage.objects.interface import ObjectStore


@dataclass
class PartFound:
    """The answer about a part. `keyed`: fingerprints of its live keyed rows by hash range; `unkeyed`: of offsets, by
    class; `chunks`: of its live chunks. `last_alive`: the id of its last live row. `compared`: live rows that raw still
    has."""

    findings: Findings
    rows: int = 0
    compared: int = 0
    values: int = 0
    tombstones: int = 0
    keyed: dict[int, Fingerprint] = field(default_factory=dict)
    unkeyed: dict[str, Fingerprint] = field(default_factory=dict)
    chunks: Fingerprint = field(default_factory=Fingerprint)
    last_alive: MessageId | None = None
    whole: bool = False
    """Whether all of it could be read: only then its fingerprints tell anything."""


def check_part(store: ObjectStore, plan: VerifyPlan, number: int) -> PartFound:
    """Part `number` of the manifest."""
    assert plan.manifest is not None
    found = PartFound(Findings(plan.limit))
    part = plan.manifest.parts[number]
    with found.findings.reading(part.rows.stored.name):
        _PartCheck(store, plan, part, found).run()
        found.whole = True
    return found


class _PartCheck:
    """One walk through a part."""

    def __init__(self, store: ObjectStore, plan: VerifyPlan, part: Part, found: PartFound) -> None:
        self._store, self._plan, self._part, self._found = store, plan, part, found
        self._name = part.rows.stored.name
        self._raw = RawRows(store, plan, found.findings)
        self._offset_sum = self._live = self._logical_bytes = 0
        self._publish: list[int] = []
        self._oldest_value: list[int] = []
        self._oldest_tombstone: list[int] = []
        self._oldest_row: list[int] = []

    def run(self) -> None:
        part = self._part
        check_size(self._store, self._found.findings, self._name, part.rows.stored.size, exactly=True)
        if part.deleted:
            end = part.deleted.offset + part.deleted.length
            check_size(self._store, self._found.findings, part.deleted.name, end, exactly=False)
        bitmap = read_deleted(self._store, part)
        dead = np.frombuffer(bitmap.to_array(), dtype=np.uint32).astype(np.int64) + part.first.offset
        if part.deleted and len(dead) != part.deleted.cardinality:
            self._say(part.deleted.name, f"{len(dead)} rows are deleted, the manifest says {part.deleted.cardinality}")
        first = last = None
        for table in checked_groups(self._store, part.rows, self._found.findings):
            first, last = first or position(table, 0), position(table, len(table) - 1)
            self._add(table, dead)
        self._compare((first, last), len(dead))

    def _add(self, table: pa.Table, dead: I64) -> None:
        """Take in one row group."""
        self._found.rows += len(table)
        self._logical_bytes += int(rows.logical_sizes(table).sum())
        published = pc.min_max(table.column("publish_time")).as_py()
        self._publish += [published["min"], published["max"]]
        offsets = numbers(table, "offset")
        at = np.minimum(np.searchsorted(dead, offsets), max(0, len(dead) - 1))
        alive = dead[at] != offsets if len(dead) else np.ones(len(offsets), dtype=np.bool_)
        if not alive.any():
            return
        live = table.filter(pa.array(alive))
        offsets = offsets[alive]
        self._oldest_row += least(numbers(live, "publish_time"))
        self._live += len(live)
        self._offset_sum += int(offsets.sum())
        self._found.last_alive = message_id(live, len(live) - 1)
        self._add_keyed(live)
        self._add_unkeyed(live, offsets)
        self._found.chunks += chunk_fingerprint(chunk_records(live, self._plan.hasher))
        self._found.compared += self._raw.compare(live, self._name)

    def _add_keyed(self, live: pa.Table) -> None:
        keyed = keyed_rows(live)
        records = records_of(keyed, self._plan.hasher)
        tombstone = records.offset & TOMBSTONE != 0
        self._found.values += int(np.count_nonzero(~tombstone))
        self._found.tombstones += int(np.count_nonzero(tombstone))
        self._check_times(keyed, records, tombstone)
        assert records.event_time is not None
        bits = self._plan.range_bits
        prefixes = (records.hi >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(keyed), np.int64)
        hash_mixed = stirred_records(records, self._plan.by_event)
        for prefix in np.unique(prefixes).tolist():
            mine = hash_mixed[prefixes == prefix]
            known = self._found.keyed.get(prefix, Fingerprint())
            self._found.keyed[prefix] = known + Fingerprint(len(mine), int(mine.sum(dtype=np.uint64)))

    def _check_times(self, keyed: pa.Table, records: Records, tombstone: Mask) -> None:
        """What goes by time: a value that has expired, a tombstone that is overdue (T1, T2)."""
        history = self._plan.history
        assert history is not None
        offsets, published = numbers(keyed, "offset"), numbers(keyed, "publish_time")
        retained = np.asarray(keyed.column("retained_at").fill_null(0).to_numpy(), dtype=np.int64)
        has_time = keyed.column("retained_at").is_valid().to_numpy()
        self._oldest_value += least(published[~tombstone])
        self._oldest_tombstone += least(retained[tombstone])
        self._name_some(
            Kind.REVIVED,
            keyed,
            records,
            ~tombstone & (published <= history.must_expire(offsets)),
            "its value had expired when a run went over it, and is still there",
        )
        self._name_some(
            Kind.INCONSISTENT,
            keyed,
            records,
            tombstone != has_time,
            "retained_at is set exactly where a tombstone is retained",
        )
        self._name_some(
            Kind.EXTRA,
            keyed,
            records,
            tombstone & (published <= history.must_go(offsets)),
            "a tombstone is there that was below the topic's start, or too old, when a run went over it",
        )
        first_kept = history.first_kept(offsets)
        not_asked = np.zeros(len(keyed), np.bool_) if first_kept is None else tombstone & (first_kept == NEVER)
        self._name_some(Kind.EXTRA, keyed, records, not_asked, "a tombstone is retained that no policy asked for")
        self._name_some(
            Kind.EXTRA,
            keyed,
            records,
            tombstone & ~not_asked & (retained <= history.must_drop(offsets)),
            "a tombstone is there whose retention was over when a run went over it",
        )
        if first_kept is not None:
            self._name_some(
                Kind.ALTERED,
                keyed,
                records,
                tombstone & ~not_asked & (retained != first_kept),
                "retained_at is not the time of the run that first kept the tombstone",
            )

    def _add_unkeyed(self, live: pa.Table, offsets: I64) -> None:
        slot = numbers(live, "slot")
        for name, mask in unkeyed_masks(live).items():
            found = self._found.unkeyed.get(name, Fingerprint())
            self._found.unkeyed[name] = found + fingerprint(offsets[mask])
        never = (slot == int(rows.Slot.COMPACTED_OUT)) | (slot == int(rows.Slot.MARKER))
        for offset in offsets[never].tolist():
            what = "a slot that is never delivered is in a part"
            self._found.findings.add(Difference(Kind.EXTRA, self._name, what, offset))

    def _compare(self, ends: tuple[object, object], dead: int) -> None:
        """What the manifest says of the part as a whole."""
        part = self._part
        tell = {
            "first": ((part.first.offset, part.first.message_id), ends[0]),
            "last": ((part.last.offset, part.last.message_id), ends[1]),
            "messages": (part.messages, self._found.rows),
            "logical_bytes": (part.logical_bytes, self._logical_bytes),
            "min_publish_time": (part.min_publish_time, min(self._publish, default=None)),
            "max_publish_time": (part.max_publish_time, max(self._publish, default=None)),
            "offset_sum": (part.offset_sum, self._offset_sum % 2**64),
        }
        for name, (said, seen) in tell.items():
            if said != seen:
                self._say(self._name, f"the manifest says {name} {plain(said)} of it, its rows say {plain(seen)}")
        if self._found.rows - self._live != dead and part.deleted:
            self._say(part.deleted.name, f"of {dead} deleted rows only {self._found.rows - self._live} are in the part")
        bounds = {
            "oldest_value": (part.oldest_value, min(self._oldest_value, default=None)),
            "oldest_tombstone": (part.oldest_tombstone, min(self._oldest_tombstone, default=None)),
        }
        if part.oldest_row is not None:
            bounds["oldest_row"] = (part.oldest_row, min(self._oldest_row, default=None))
        for name, (bound, seen) in bounds.items():
            if seen is not None and (bound is None or bound > seen):
                self._say(self._name, f"the manifest says {name} {bound} of it, but a row has {seen}")

    def _say(self, where: str, what: str) -> None:
        self._found.findings.add(Difference(Kind.INCONSISTENT, where, what))

    def _name_some(self, kind: Kind, keyed: pa.Table, records: Records, mask: Mask, what: str) -> None:
        wrong = np.flatnonzero(mask)
        named = wrong[: max(0, self._found.findings.room(kind))]
        for row in named.tolist():
            key, offset = keyed.column("key")[row].as_py(), int(records.offset[row] & OFFSET_MASK)
            self._found.findings.add(Difference(kind, self._name, what, offset, key, key_hash(records, row)))
        self._found.findings.more(kind, len(wrong) - len(named))


class RawRows:
    """Rows of raw ledgers at or below the horizon, asked for in ascending order of offsets."""

    def __init__(self, store: ObjectStore, plan: VerifyPlan, findings: Findings) -> None:
        self._store, self._plan, self._findings = store, plan, findings
        self._ledger: LedgerRecord | None = None
        self._reader: RowsReader | None = None
        self._group: tuple[int, pa.Table] | None = None

    def compare(self, live: pa.Table, where: str) -> int:
        """Compare live rows of a part, bit for bit, with raw; how many could be compared."""
        offsets = numbers(live, "offset")
        compared = 0
        for ledger in self._plan.below:
            first, end = np.searchsorted(offsets, [ledger.first_offset, ledger.last_offset + 1], "left").tolist()
            if first == end:
                continue
            mine = live.slice(first, end - first)
            seen = np.zeros(len(mine), dtype=np.bool_)
            with self._findings.reading(ledger.rows.name):
                for positions, raw in self._rows(ledger, offsets[first:end]):
                    seen[positions] = True
                    self._same(mine.take(pa.array(positions)), raw, where)
                for row in np.flatnonzero(~seen).tolist():
                    what = f"a row that ledger {ledger.ledger_id} does not have is in a part"
                    key = mine.column("key")[row].as_py()
                    self._findings.add(Difference(Kind.EXTRA, where, what, int(offsets[first + row]), key))
            compared += int(np.count_nonzero(seen))
        return compared

    def _rows(self, ledger: LedgerRecord, offsets: I64) -> Iterator[tuple[I64, pa.Table]]:
        """Which of `offsets` a row group of the ledger has, and its rows of those."""
        if self._reader is None or self._ledger is not ledger:
            self._ledger, self._group = ledger, None
            self._reader = RowsReader(self._store, RowsObject(ledger.rows, ledger.footer_size))
        for number, group in enumerate(self._reader.groups):
            first, end = np.searchsorted(offsets, [group.first_offset, group.last_offset + 1], "left").tolist()
            if first == end:
                continue
            if self._group is None or self._group[0] != number:
                self._group = (number, self._reader.read(number))
            table = self._group[1]
            present = numbers(table, "offset")
            mine = np.isin(present, offsets[first:end])
            at = np.searchsorted(offsets, present[mine])
            yield at.astype(np.int64), table.filter(pa.array(mine))

    def _same(self, mine: pa.Table, raw: pa.Table, where: str) -> None:
        differs: dict[int, list[str]] = {}
        for name in rows.SCHEMA.names:
            if name == "retained_at":
                continue
            one, other = mine.column(name), raw.column(name)
            if one.equals(other):
                continue
            for row, (ours, theirs) in enumerate(zip(one, other, strict=True)):
                if not ours.equals(theirs):
                    differs.setdefault(row, []).append(name)
        for row, columns in differs.items():
            what = f"{', '.join(columns)} of the row are not as the raw ledger has them"
            offset, key = mine.column("offset")[row].as_py(), raw.column("key")[row].as_py()
            self._findings.add(Difference(Kind.ALTERED, where, what, offset, key))
