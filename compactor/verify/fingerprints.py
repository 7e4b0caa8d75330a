"""What the tasks of verify see rows and records as: sets by hash, fingerprints of sets, differences between two.

Written from the rules (semantics.md P4–P6, P8–P10) and docs/format.md, apart from the kernels that it proves. Pure but
for `checked_groups`, which reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from compactor.verify.findings import Difference, Findings, Kind
from storage.ledger import rows
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import NO_EVENT_TIME, OFFSET_MASK, TOMBSTONE, U64, Records
from storage.ledger.rows_file import RowsObject, RowsReader
from storage.model import MessageId
from storage.objects.interface import ObjectStore

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ID_COLUMNS = ("ledger_id", "entry_id", "batch_index")
UNKEYED_SLOTS = {"whole_entries": rows.Slot.WHOLE_ENTRY, "chunks": rows.Slot.CHUNK}


@dataclass(frozen=True)
class Fingerprint:
    """How many things there are, and the sum of their mixed bits modulo 2⁶⁴: equal for equal sets."""

    count: int = 0
    total: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.count + other.count, (self.total + other.total) % 2**64)


def mixed(*columns: npt.NDArray[np.generic]) -> U64:
    """Bits of all columns, stirred (the finalizer of SplitMix64 after each). Shape (n,)."""
    state = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        state = (state + np.uint64(0x9E37_79B9_7F4A_7C15)) ^ column.view(np.uint64)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
        state = state ^ (state >> np.uint64(31))
    return state


def fingerprint(*columns: npt.NDArray[np.generic]) -> Fingerprint:
    """Of a set of tuples, given as columns of 64 bits."""
    return Fingerprint(len(columns[0]), int(mixed(*columns).sum(dtype=np.uint64)))


def checked_groups(store: ObjectStore, rows_object: RowsObject, findings: Findings) -> Iterator[pa.Table]:
    """The row groups of a rows object, with a look at whether offsets and ids ascend and statistics are true."""
    reader = RowsReader(store, rows_object)
    where = rows_object.stored.name
    before: tuple[int, MessageId] | None = None
    for group, table in zip(reader.groups, reader, strict=True):
        offsets = numbers(table, "offset")
        ids = [numbers(table, name) for name in ID_COLUMNS]
        rising = offsets[1:] > offsets[:-1]
        ascend = np.zeros(len(rising), dtype=np.bool_)
        for column in reversed(ids):
            ascend = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & ascend)
        first = position(table, 0)
        joins = before is None or (first[0] > before[0] and first[1] > before[1])
        if not (rising.all() and ascend.all() and joins):
            what = f"rows between offsets {offsets.min()} and {offsets.max()} do not ascend by offset and id"
            findings.add(Difference(Kind.INCONSISTENT, where, what))
        if (group.first_offset, group.last_offset) != (int(offsets[0]), int(offsets[-1])):
            what = f"the footer says offsets {group.first_offset} to {group.last_offset} of a row group, it has others"
            findings.add(Difference(Kind.INCONSISTENT, where, what))
        before = position(table, len(table) - 1)
        yield table


def keyed_rows(table: pa.Table) -> pa.Table:
    """The rows that are in the key map (P6, P8, P10)."""
    return table.filter(pc.and_(pc.is_valid(table.column("key")), pc.equal(table.column("slot"), 0)))


def records_of(keyed: pa.Table, hasher: KeyHasher) -> Records:
    """A record for each of some keyed rows, in their order, with its event time."""
    key = keyed.column("key").combine_chunks()
    hi, lo = hasher(key.chunk(0) if isinstance(key, pa.ChunkedArray) else key)
    lengths = pc.fill_null(pc.binary_length(keyed.column("payload")), 0).to_numpy()
    offset = numbers(keyed, "offset").astype(np.uint64)
    flagged = np.where(lengths == 0, offset | TOMBSTONE, offset)
    event_time = pc.fill_null(keyed.column("event_time"), NO_EVENT_TIME).to_numpy().astype(np.int64)
    return Records(hi, lo, flagged, flagged, event_time)


def stirred_records(records: Records, by_event: bool) -> U64:
    """What fingerprints of records are summed from; event times count where the index has them. Shape (n,)."""
    if not by_event:
        return mixed(records.hi, records.lo, records.offset)
    none = np.full(len(records), NO_EVENT_TIME, dtype=np.int64)
    event_time = none if records.event_time is None else records.event_time
    return mixed(records.hi, records.lo, records.offset, event_time)


def unkeyed_masks(table: pa.Table) -> dict[str, Mask]:
    """Which rows are outside the key map, by class."""
    slot = numbers(table, "slot")
    null = table.column("key").is_null().to_numpy()
    masks = {name: slot == int(kind) for name, kind in UNKEYED_SLOTS.items()}
    masks["chunks"] &= ~of_messages(table)
    return {"null_keys": (slot == int(rows.Slot.MESSAGE)) & null, **masks}


def of_messages(table: pa.Table) -> Mask:
    """Which rows are chunks that a chunk table has (P10)."""
    numbers_ = (table.column(name).fill_null(-1).to_numpy() for name in ("slot", "chunk_index", "chunk_count"))
    slot, index, count = numbers_
    found: Mask = (slot == int(rows.Slot.CHUNK)) & (index >= 0) & (index < count)
    found &= table.column("chunk_uuid").is_valid().to_numpy()
    return found


def key_hash(records: Records, row: int) -> str:
    """The hash of a record, as differences name it."""
    return f"{int(records.hi[row]):016x}{int(records.lo[row]):016x}"


def align(one: Records, other: Records) -> tuple[I64, I64]:
    """The hashes of both, each once: where it is in `one` and where in `other`, −1 where it is not.

    Neither may have a hash twice.
    """
    hi, lo = np.concatenate([one.hi, other.hi]), np.concatenate([one.lo, other.lo])
    order = np.lexsort((lo, hi))
    high, low = hi[order], lo[order]
    begins = np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])) if len(hi) else np.empty(0, np.bool_)
    group = np.empty(len(hi), dtype=np.int64)
    group[order] = np.cumsum(begins) - 1
    found = []
    for members in (group[: len(one)], group[len(one) :]):
        at = np.full(int(begins.sum()), -1, dtype=np.int64)
        at[members] = np.arange(len(members))
        found.append(at)
    return found[0], found[1]


def compare_bitmaps(findings: Findings, where: str, name: str, wanted: BitMap64, found: BitMap64) -> None:
    """Name offsets of an unkeyed class that only one of two bitmaps has."""
    what = f"a row of {name.replace('_', ' ')} is"
    for kind, difference, how in (
        (Kind.MISSING, wanted - found, f"{what} not in the bitmap"),
        (Kind.EXTRA, found - wanted, f"{what} in the bitmap only"),
    ):
        named = [offset for offset, _ in zip(difference, range(findings.limit), strict=False)]
        for offset in named:
            findings.add(Difference(kind, where, how, offset))
        findings.more(kind, len(difference) - len(named))


def compare_records(
    findings: Findings, where: str, wanted: Records, found: Records, record: str = "newest record"
) -> None:
    """Name the keys of which an index has another record than the rows below it say, or none."""
    ours, theirs = align(wanted, found)
    both = np.flatnonzero((ours >= 0) & (theirs >= 0))
    a, b = wanted.take(ours[both]), found.take(theirs[both])
    same = a.offset == b.offset
    if a.event_time is not None and b.event_time is not None and record != "newest record":
        same &= a.event_time == b.event_time
    revived = ~same & (a.offset & TOMBSTONE != 0) & (b.offset & TOMBSTONE == 0)
    missing, extra = wanted.take(ours[theirs < 0]), found.take(theirs[ours < 0])
    name_records(findings, Kind.MISSING, where, missing, f"the {record} of a key is not in the index")
    name_records(findings, Kind.EXTRA, where, extra, "the index has a key that no row has")
    name_records(findings, Kind.REVIVED, where, b.take(revived), f"the {record} is a tombstone, the index has a value")
    what = f"the {record} of a key is not what its rows say"
    name_records(findings, Kind.ALTERED, where, b.take(~same & ~revived), what)


def name_records(findings: Findings, kind: Kind, where: str, records: Records, what: str) -> None:
    """Name the first of some records, count the others."""
    room = max(0, findings.room(kind))
    for row in range(min(room, len(records))):
        offset = int(records.offset[row] & OFFSET_MASK)
        findings.add(Difference(kind, where, what, offset, None, key_hash(records, row)))
    findings.more(kind, len(records) - min(room, len(records)))


def last_of_each(hi: U64, lo: U64, *order: npt.NDArray[np.generic]) -> I64:
    """Of each hash the position of the last by `order`, the least important column first; in hash order."""
    if not len(hi):
        return np.empty(0, dtype=np.int64)
    by = np.lexsort((*order, lo, hi))
    high, low = hi[by], lo[by]
    ends = np.append((high[1:] != high[:-1]) | (low[1:] != low[:-1]), True)
    found: I64 = by[ends]
    return found


def check_size(store: ObjectStore, findings: Findings, name: str, size: int, *, exactly: bool) -> None:
    seen = store.size(name)
    if seen < size or (exactly and seen != size):
        findings.add(Difference(Kind.DAMAGED, name, f"it is {seen} bytes long in the store, not {size}"))


def position(table: pa.Table, row: int) -> tuple[int, MessageId]:
    return int(table.column("offset")[row].as_py()), message_id(table, row)


def message_id(table: pa.Table, row: int) -> MessageId:
    ledger, entry, index = (table.column(name)[row].as_py() for name in ID_COLUMNS)
    return MessageId(ledger, entry, -1, index)


def numbers(table: pa.Table, column: str) -> I64:
    return np.asarray(table.column(column).to_numpy(), dtype=np.int64)


def least(times: I64) -> list[int]:
    return [int(times.min())] if len(times) else []


def plain(value: object) -> str:
    if isinstance(value, tuple):
        return f"{value[0]} ({value[1]})"
    return str(value)
