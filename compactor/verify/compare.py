"""Rows, index records and bitmaps, and their comparison: walks, fingerprints, sets by hash.

Verify implements the rules (semantics.md P4–P6, P8–P10) and docs/format.md independently of the kernels that it proves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from compactor.verify.findings import Difference, DifferenceKind, Findings, Fingerprint
from storage.ledger import rows
from storage.ledger.chunk_table import Mask
from storage.ledger.deletion_bitmap import live_mask, read_deleted_rows
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import I64, NO_EVENT_TIME, OFFSET_MASK, TOMBSTONE, U64, IndexRecords
from storage.ledger.manifest import Manifest
from storage.ledger.rows_file import RowsReader
from storage.model import MessageId, RowsObject
from storage.objects.interface import ObjectStore

ID_COLUMNS = ("ledger_id", "entry_id", "batch_index")
UNKEYED_SLOTS = {"whole_entries": rows.RowType.WHOLE_ENTRY, "chunks": rows.RowType.CHUNK}


def mixed_bits(*columns: npt.NDArray[np.generic]) -> U64:
    """Return 64 hash-mixed bits per row of the columns, with the finalizer of SplitMix64 after each column. Shape (n,).

    The columns have equal length and items of 64 bits.
    """
    state = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        state = (state + np.uint64(0x9E37_79B9_7F4A_7C15)) ^ column.view(np.uint64)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
        state = state ^ (state >> np.uint64(31))
    return state


def fingerprint_of_bits(bits: U64) -> Fingerprint:
    """Return the fingerprint of a set of elements. `bits`: the mixed bits of each."""
    return Fingerprint(len(bits), int(bits.sum(dtype=np.uint64)))


def fingerprint(*columns: npt.NDArray[np.generic]) -> Fingerprint:
    """Return the fingerprint of a set of tuples. Each column holds 64 bits per tuple."""
    return fingerprint_of_bits(mixed_bits(*columns))


def record_bits(records: IndexRecords, by_event: bool) -> U64:
    """Return the mixed bits of each record, with its event time if `by_event`. Shape (n,)."""
    if not by_event:
        return mixed_bits(records.hi, records.lo, records.offset)
    none = np.full(len(records), NO_EVENT_TIME, dtype=np.int64)
    event_time = none if records.event_time is None else records.event_time
    return mixed_bits(records.hi, records.lo, records.offset, event_time)


# Rows


class RowsObjectWalk:
    """Walk through all row groups of a rows object, in order.

    It checks the object's size, the order of offsets and ids, and the statistics of the footer. After the walk,
    `first`, `last` and `totals` describe the whole object.
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
            offsets = integer_column(table, "offset")
            rising = offsets[1:] > offsets[:-1]
            ascend = np.zeros(len(rising), dtype=np.bool_)
            for column in (integer_column(table, name) for name in reversed(ID_COLUMNS)):
                ascend = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & ascend)
            first, before = _offset_and_id(table, 0), self.last
            joins = before is None or (first[0] > before[0] and first[1] > before[1])
            if not (rising.all() and ascend.all() and joins):
                what = f"rows between offsets {offsets.min()} and {offsets.max()} do not ascend by offset and id"
                self._findings.add_inconsistency(self._where, what)
            if (group.first_offset, group.last_offset) != (int(offsets[0]), int(offsets[-1])):
                ends = f"offsets {group.first_offset} to {group.last_offset}"
                self._findings.add_inconsistency(
                    self._where, f"the footer records {ends} for a row group, whose rows have others"
                )
            self.first, self.last = self.first or first, _offset_and_id(table, len(table) - 1)
            self.messages += len(table)
            self._logical_bytes += int(rows.logical_sizes(table).sum())
            published = pc.min_max(table.column("publish_time")).as_py()
            self._published += [published["min"], published["max"]]
            yield table

    @property
    def totals(self) -> dict[str, object]:
        """The counts, sums and bounds over all rows of the object, under their names in manifest and database."""
        return {
            "messages": self.messages,
            "logical_bytes": self._logical_bytes,
            "min_publish_time": min(self._published, default=None),
            "max_publish_time": max(self._published, default=None),
        }


class GroupOffsets(NamedTuple):
    """The number of a row group, and the positions of its offsets in an array of offsets."""

    group: int
    positions: I64


class FoundRows(NamedTuple):
    """The rows of a search by offset, and the position of each in the array of offsets."""

    positions: I64
    table: pa.Table


class RowsByOffset:
    """Reader of the rows of one object by offset, which caches the last row group."""

    def __init__(self, store: ObjectStore, rows_object: RowsObject) -> None:
        self.reader = RowsReader(store, rows_object)
        self._group: tuple[int, pa.Table] | None = None

    def groups_of(self, offsets: I64) -> Iterator[GroupOffsets]:
        """Yield each row group whose range of offsets has some of the offsets."""
        for number, group in enumerate(self.reader.groups):
            inside = np.flatnonzero((offsets >= group.first_offset) & (offsets <= group.last_offset))
            if len(inside):
                yield GroupOffsets(number, inside)

    def find_in_group(self, group: int, offsets: I64, columns: list[str] | None = None) -> FoundRows:
        """Return the rows of row group `group` that have one of the offsets, in the order of `offsets`.

        `columns` None: all. Consecutive calls for one group must name the same columns, because the group is cached.
        """
        if self._group is None or self._group[0] != group:
            self._group = (group, self.reader.read(group, columns))
        table = self._group[1]
        present = integer_column(table, "offset")
        order = np.argsort(present, kind="stable")  # the offsets of a damaged ledger may not ascend
        at = order[np.minimum(np.searchsorted(present, offsets, sorter=order), len(present) - 1)]
        positions = np.flatnonzero(present[at] == offsets)
        return FoundRows(positions, table.take(pa.array(at[positions])))


def live_row_groups(store: ObjectStore, manifest: Manifest, columns: list[str]) -> Iterator[pa.Table]:
    """Yield the live rows of all parts of a compacted ledger, one row group at a time."""
    for part in manifest.parts:
        deleted = read_deleted_rows(store, part)
        reader = RowsReader(store, part.rows)
        for number in range(len(reader.groups)):
            table = reader.read(number, columns)
            yield table.filter(pa.array(live_mask(deleted, part.first.offset, table.column("offset").to_numpy())))


def check_size(store: ObjectStore, findings: Findings, name: str, size: int, *, exactly: bool) -> None:
    """Add a difference if an object is shorter than `size`, or, with `exactly`, longer. Raises ObjectMissing."""
    actual = store.size(name)
    if actual < size or (exactly and actual != size):
        findings.add(Difference(DifferenceKind.DAMAGED, name, f"it is {actual} bytes long in the store, not {size}"))


def keyed_rows(table: pa.Table) -> pa.Table:
    """Return the rows of a table that are in the key map: whole messages with a key (P6, P8, P10)."""
    return table.filter(pc.and_(pc.is_valid(table.column("key")), pc.equal(table.column("slot"), 0)))


def masks_outside_key_map(table: pa.Table) -> dict[str, Mask]:
    """Return a mask of the rows outside the key map, by class. Shape (n,) each."""
    slot = integer_column(table, "slot")
    null = table.column("key").is_null().to_numpy()
    masks = {name: slot == int(kind) for name, kind in UNKEYED_SLOTS.items()}
    masks["chunks"] &= ~chunk_table_mask(table)
    return {"null_keys": (slot == int(rows.RowType.MESSAGE)) & null, **masks}


def chunk_table_mask(table: pa.Table) -> Mask:
    """Return a mask of the rows that are chunks with valid indexes, which a chunk table holds (P10). Shape (n,)."""
    columns = (table.column(name).fill_null(-1).to_numpy() for name in ("slot", "chunk_index", "chunk_count"))
    slot, index, count = columns
    mask: Mask = (slot == int(rows.RowType.CHUNK)) & (index >= 0) & (index < count)
    mask &= table.column("chunk_uuid").is_valid().to_numpy()
    return mask


def _offset_and_id(table: pa.Table, row: int) -> tuple[int, MessageId]:
    """Return the offset and the message id of a row."""
    return int(table.column("offset")[row].as_py()), rows.message_id(table, row)


def integer_column(table: pa.Table, column: str) -> I64:
    """Return a column of integers without nulls. Shape (n,)."""
    return np.asarray(table.column(column).to_numpy(), dtype=np.int64)


# Records and bitmaps


def records_of(keyed: pa.Table, hasher: KeyHasher) -> IndexRecords:
    """Return an index record per keyed row, in row order, with its event time."""
    key = keyed.column("key").combine_chunks()
    hi, lo = hasher(key.chunk(0) if isinstance(key, pa.ChunkedArray) else key)
    lengths = pc.fill_null(pc.binary_length(keyed.column("payload")), 0).to_numpy()
    offset = integer_column(keyed, "offset").astype(np.uint64)
    flagged = np.where(lengths == 0, offset | TOMBSTONE, offset)
    event_time = pc.fill_null(keyed.column("event_time"), NO_EVENT_TIME).to_numpy().astype(np.int64)
    return IndexRecords(hi, lo, flagged, flagged, event_time)


def offsets_of(records: IndexRecords) -> I64:
    """Return the offsets of records, without flags. Shape (n,)."""
    return (records.offset & OFFSET_MASK).astype(np.int64)


def key_hash(records: IndexRecords, row: int) -> str:
    """Return the key hash of a record as 32 hexadecimal digits."""
    return f"{int(records.hi[row]):016x}{int(records.lo[row]):016x}"


def add_record_differences(
    findings: Findings,
    kind: DifferenceKind,
    where: str,
    records: IndexRecords,
    what: str,
    keys: pa.ChunkedArray | None = None,
) -> None:
    """Add a difference for each record: name the first ones, with their keys if known, and count all.

    `keys`: of each record.
    """
    findings.add_each(kind, where, what, offsets_of(records), keys, lambda row: key_hash(records, row))


class AlignedPositions(NamedTuple):
    """For each hash of either side, its position in `left` and in `right`, −1 where absent. Shapes (n,)."""

    left: I64
    right: I64


def align_by_hash(left: IndexRecords, right: IndexRecords) -> AlignedPositions:
    """Return the positions of each hash of either side, in hash order. Each side has a hash at most once."""
    hi, lo = np.concatenate([left.hi, right.hi]), np.concatenate([left.lo, right.lo])
    order = np.lexsort((lo, hi))
    high, low = hi[order], lo[order]
    begins = np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])) if len(hi) else np.empty(0, np.bool_)
    group = np.empty(len(hi), dtype=np.int64)
    group[order] = np.cumsum(begins) - 1
    positions = []
    for members in (group[: len(left)], group[len(left) :]):
        at = np.full(int(begins.sum()), -1, dtype=np.int64)
        at[members] = np.arange(len(members))
        positions.append(at)
    return AlignedPositions(*positions)


class RecordDiff(NamedTuple):
    """The records only in `left`, only in `right`, and of the common hashes those of `left` and of `right`.

    The last two have equal length and hash order.
    """

    only_left: IndexRecords
    only_right: IndexRecords
    common_left: IndexRecords
    common_right: IndexRecords


def diff_by_hash(left: IndexRecords, right: IndexRecords) -> RecordDiff:
    """Return the difference of two sets of records, by hash. Each side has a hash at most once."""
    at_left, at_right = align_by_hash(left, right)
    both = (at_left >= 0) & (at_right >= 0)
    only_left, only_right = left.take(at_left[at_right < 0]), right.take(at_right[at_left < 0])
    return RecordDiff(only_left, only_right, left.take(at_left[both]), right.take(at_right[both]))


def last_per_hash(hi: U64, lo: U64, *order: npt.NDArray[np.generic]) -> I64:
    """Return, per hash, the position of its last element by `order` (least important column first), in hash order."""
    if not len(hi):
        return np.empty(0, dtype=np.int64)
    by = np.lexsort((*order, lo, hi))
    high, low = hi[by], lo[by]
    ends = np.append((high[1:] != high[:-1]) | (low[1:] != low[:-1]), True)
    last: I64 = by[ends]
    return last


def newest_per_hash(records: IndexRecords) -> IndexRecords:
    """Return, per hash, the record of the largest offset."""
    return records.take(last_per_hash(records.hi, records.lo, records.offset & OFFSET_MASK))


def event_winner_per_hash(records: IndexRecords) -> IndexRecords:
    """Return, per hash, the record of the largest event time, then of the largest offset (P9)."""
    assert records.event_time is not None
    return records.take(last_per_hash(records.hi, records.lo, records.offset & OFFSET_MASK, records.event_time))


def compare_bitmaps(findings: Findings, where: str, name: str, expected: BitMap64, actual: BitMap64) -> None:
    """Add a difference for each offset that only one of two bitmaps has. `name`: their class of rows outside the key
    map."""
    what = f"a row of {name.replace('_', ' ')} is"
    findings.add_each(DifferenceKind.MISSING, where, f"{what} not in the bitmap", expected - actual)
    findings.add_each(DifferenceKind.EXTRA, where, f"{what} only in the bitmap", actual - expected)
