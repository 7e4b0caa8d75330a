"""What the tasks of verify see rows and records as, and how they compare them: walks, fingerprints, sets by hash.

Written from the rules (semantics.md P4–P6, P8–P10) and docs/format.md, apart from the kernels that it proves.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from compactor.verify.findings import Difference, DifferenceKind, Findings, Fingerprint
from compactor.verify.plan import Mask
from compactor.verify.run_history import I64
from storage.ledger import rows
from storage.ledger.deletion_bitmap import alive, read_deleted
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import NO_EVENT_TIME, OFFSET_MASK, TOMBSTONE, U64, IndexRecords
from storage.ledger.manifest import Manifest
from storage.ledger.rows_file import RowsReader
from storage.model import MessageId, RowsObject
from storage.objects.interface import ObjectStore

ID_COLUMNS = ("ledger_id", "entry_id", "batch_index")
UNKEYED_SLOTS = {"whole_entries": rows.RowType.WHOLE_ENTRY, "chunks": rows.RowType.CHUNK}


def mixed(*columns: npt.NDArray[np.generic]) -> U64:
    """Bits of all columns, mixed (the finalizer of SplitMix64 after each). Shape (n,)."""
    state = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        state = (state + np.uint64(0x9E37_79B9_7F4A_7C15)) ^ column.view(np.uint64)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
        state = state ^ (state >> np.uint64(31))
    return state


def summed(bits: U64) -> Fingerprint:
    """The fingerprint of things with these mixed bits."""
    return Fingerprint(len(bits), int(bits.sum(dtype=np.uint64)))


def fingerprint(*columns: npt.NDArray[np.generic]) -> Fingerprint:
    """Of a set of tuples, given as columns of 64 bits."""
    return summed(mixed(*columns))


def mixed_records(records: IndexRecords, by_event: bool) -> U64:
    """What fingerprints of records are summed from; event times count where the index has them. Shape (n,)."""
    if not by_event:
        return mixed(records.hi, records.lo, records.offset)
    none = np.full(len(records), NO_EVENT_TIME, dtype=np.int64)
    event_time = none if records.event_time is None else records.event_time
    return mixed(records.hi, records.lo, records.offset, event_time)


# Rows


class RowsObjectWalk:
    """All row groups of a rows object, in order; checks its size, that offsets and ids ascend, and its statistics.

    After the walk, `first`, `last` and `totals` are what the rows say of the object as a whole.
    """

    def __init__(self, store: ObjectStore, rows_object: RowsObject, findings: Findings) -> None:
        self._where, self._findings = rows_object.stored.name, findings
        check_size(store, findings, self._where, rows_object.stored.size, exactly=True)
        self._reader = RowsReader(store, rows_object)
        self.first: tuple[int, MessageId] | None = None
        self.last: tuple[int, MessageId] | None = None
        self.messages = self._logical_bytes = 0
        self._published: list[int] = []

    def __iter__(self) -> Iterator[pa.Table]:
        for group, table in zip(self._reader.groups, self._reader, strict=True):
            offsets = numbers(table, "offset")
            rising = offsets[1:] > offsets[:-1]
            ascend = np.zeros(len(rising), dtype=np.bool_)
            for column in (numbers(table, name) for name in reversed(ID_COLUMNS)):
                ascend = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & ascend)
            first, before = _position(table, 0), self.last
            joins = before is None or (first[0] > before[0] and first[1] > before[1])
            if not (rising.all() and ascend.all() and joins):
                what = f"rows between offsets {offsets.min()} and {offsets.max()} do not ascend by offset and id"
                self._findings.inconsistent(self._where, what)
            if (group.first_offset, group.last_offset) != (int(offsets[0]), int(offsets[-1])):
                ends = f"offsets {group.first_offset} to {group.last_offset}"
                self._findings.inconsistent(self._where, f"the footer says {ends} of a row group, it has others")
            self.first, self.last = self.first or first, _position(table, len(table) - 1)
            self.messages += len(table)
            self._logical_bytes += int(rows.logical_sizes(table).sum())
            published = pc.min_max(table.column("publish_time")).as_py()
            self._published += [published["min"], published["max"]]
            yield table

    @property
    def totals(self) -> dict[str, object]:
        """By the names that manifest and database have for them."""
        return {
            "messages": self.messages,
            "logical_bytes": self._logical_bytes,
            "min_publish_time": min(self._published, default=None),
            "max_publish_time": max(self._published, default=None),
        }


class RowsByOffset:
    """Rows of one object by their offsets; keeps the row group that was read last."""

    def __init__(self, store: ObjectStore, rows_object: RowsObject) -> None:
        self.reader = RowsReader(store, rows_object)
        self._group: tuple[int, pa.Table] | None = None

    def groups(self, offsets: I64) -> Iterator[tuple[int, I64]]:
        """The row groups that may have one of the offsets, each with the positions of those."""
        for number, group in enumerate(self.reader.groups):
            inside = np.flatnonzero((offsets >= group.first_offset) & (offsets <= group.last_offset))
            if len(inside):
                yield number, inside

    def rows(self, number: int, offsets: I64, columns: list[str] | None = None) -> tuple[I64, pa.Table]:
        """The rows of a group that have one of the offsets; and for each row the position of its offset."""
        if self._group is None or self._group[0] != number:
            self._group = (number, self.reader.read(number, columns))
        table = self._group[1]
        present = numbers(table, "offset")
        order = np.argsort(present, kind="stable")  # the offsets of a damaged ledger may not ascend
        at = order[np.minimum(np.searchsorted(present, offsets, sorter=order), len(present) - 1)]
        found = np.flatnonzero(present[at] == offsets)
        return found, table.take(pa.array(at[found]))


def live_groups(store: ObjectStore, manifest: Manifest, columns: list[str]) -> Iterator[pa.Table]:
    """The live rows of all parts, a row group at a time."""
    for part in manifest.parts:
        deleted = read_deleted(store, part)
        reader = RowsReader(store, part.rows)
        for number in range(len(reader.groups)):
            table = reader.read(number, columns)
            yield table.filter(pa.array(alive(deleted, part.first.offset, table.column("offset").to_numpy())))


def check_size(store: ObjectStore, findings: Findings, name: str, size: int, *, exactly: bool) -> None:
    """Name an object that is shorter than `size`, or not `exactly` as long."""
    seen = store.size(name)
    if seen < size or (exactly and seen != size):
        findings.add(Difference(DifferenceKind.DAMAGED, name, f"it is {seen} bytes long in the store, not {size}"))


def keyed_rows(table: pa.Table) -> pa.Table:
    """The rows that are in the key map (P6, P8, P10)."""
    return table.filter(pc.and_(pc.is_valid(table.column("key")), pc.equal(table.column("slot"), 0)))


def unkeyed_masks(table: pa.Table) -> dict[str, Mask]:
    """Which rows are outside the key map, by class."""
    slot = numbers(table, "slot")
    null = table.column("key").is_null().to_numpy()
    masks = {name: slot == int(kind) for name, kind in UNKEYED_SLOTS.items()}
    masks["chunks"] &= ~of_messages(table)
    return {"null_keys": (slot == int(rows.RowType.MESSAGE)) & null, **masks}


def of_messages(table: pa.Table) -> Mask:
    """Which rows are chunks that a chunk table has (P10)."""
    columns = (table.column(name).fill_null(-1).to_numpy() for name in ("slot", "chunk_index", "chunk_count"))
    slot, index, count = columns
    found: Mask = (slot == int(rows.RowType.CHUNK)) & (index >= 0) & (index < count)
    found &= table.column("chunk_uuid").is_valid().to_numpy()
    return found


def message_id(table: pa.Table, row: int) -> MessageId:
    """The id of a row."""
    ledger, entry, index = (table.column(name)[row].as_py() for name in ID_COLUMNS)
    return MessageId(ledger, entry, -1, index)


def _position(table: pa.Table, row: int) -> tuple[int, MessageId]:
    return int(table.column("offset")[row].as_py()), message_id(table, row)


def numbers(table: pa.Table, column: str) -> I64:
    """A column of whole numbers without nulls."""
    return np.asarray(table.column(column).to_numpy(), dtype=np.int64)


# Records and bitmaps


def records_of(keyed: pa.Table, hasher: KeyHasher) -> IndexRecords:
    """A record for each of some keyed rows, in their order, with its event time."""
    key = keyed.column("key").combine_chunks()
    hi, lo = hasher(key.chunk(0) if isinstance(key, pa.ChunkedArray) else key)
    lengths = pc.fill_null(pc.binary_length(keyed.column("payload")), 0).to_numpy()
    offset = numbers(keyed, "offset").astype(np.uint64)
    flagged = np.where(lengths == 0, offset | TOMBSTONE, offset)
    event_time = pc.fill_null(keyed.column("event_time"), NO_EVENT_TIME).to_numpy().astype(np.int64)
    return IndexRecords(hi, lo, flagged, flagged, event_time)


def plain(records: IndexRecords) -> I64:
    """The offsets of records, without their flags."""
    return (records.offset & OFFSET_MASK).astype(np.int64)


def key_hash(records: IndexRecords, row: int) -> str:
    """The hash of a record, as differences name it."""
    return f"{int(records.hi[row]):016x}{int(records.lo[row]):016x}"


def name_records(
    findings: Findings,
    kind: DifferenceKind,
    where: str,
    records: IndexRecords,
    what: str,
    keys: pa.ChunkedArray | None = None,
) -> None:
    """Name the first of some records, with their keys if those are known; count all."""
    findings.add_each(kind, where, what, plain(records), keys, lambda row: key_hash(records, row))


def align(left: IndexRecords, right: IndexRecords) -> tuple[I64, I64]:
    """The hashes of both, each once: where it is in `left` and where in `right`, −1 where it is not.

    Neither may have a hash twice.
    """
    hi, lo = np.concatenate([left.hi, right.hi]), np.concatenate([left.lo, right.lo])
    order = np.lexsort((lo, hi))
    high, low = hi[order], lo[order]
    begins = np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])) if len(hi) else np.empty(0, np.bool_)
    group = np.empty(len(hi), dtype=np.int64)
    group[order] = np.cumsum(begins) - 1
    found = []
    for members in (group[: len(left)], group[len(left) :]):
        at = np.full(int(begins.sum()), -1, dtype=np.int64)
        at[members] = np.arange(len(members))
        found.append(at)
    return found[0], found[1]


def split(left: IndexRecords, right: IndexRecords) -> tuple[IndexRecords, IndexRecords, IndexRecords, IndexRecords]:
    """Only in `left`, only in `right`, and of the hashes of both the records of each, by hash."""
    ours, theirs = align(left, right)
    both = np.flatnonzero((ours >= 0) & (theirs >= 0))
    return left.take(ours[theirs < 0]), right.take(theirs[ours < 0]), left.take(ours[both]), right.take(theirs[both])


def last_of_each(hi: U64, lo: U64, *order: npt.NDArray[np.generic]) -> I64:
    """Of each hash the position of the last by `order`, the least important column first; in hash order."""
    if not len(hi):
        return np.empty(0, dtype=np.int64)
    by = np.lexsort((*order, lo, hi))
    high, low = hi[by], lo[by]
    ends = np.append((high[1:] != high[:-1]) | (low[1:] != low[:-1]), True)
    found: I64 = by[ends]
    return found


def newest_of_each(records: IndexRecords) -> IndexRecords:
    """Of each hash the record of the largest offset."""
    return records.take(last_of_each(records.hi, records.lo, records.offset & OFFSET_MASK))


def largest_of_each(records: IndexRecords) -> IndexRecords:
    """Of each hash the record of the largest event time; of equal ones that of the largest offset (P9)."""
    assert records.event_time is not None
    return records.take(last_of_each(records.hi, records.lo, records.offset & OFFSET_MASK, records.event_time))


def compare_bitmaps(findings: Findings, where: str, name: str, wanted: BitMap64, found: BitMap64) -> None:
    """Name offsets of an unkeyed class that only one of two bitmaps has."""
    what = f"a row of {name.replace('_', ' ')} is"
    findings.add_each(DifferenceKind.MISSING, where, f"{what} not in the bitmap", wanted - found)
    findings.add_each(DifferenceKind.EXTRA, where, f"{what} in the bitmap only", found - wanted)
