"""The key index of a ledger: the newest offset of each key, sorted by the key's hash.

A *record* is (hash high, hash low, offset with flags). Records are sorted by the hash, one for each key, and cut into
*fences*, equal ranges of the hash; the number of fences is a power of two that grows with the records. Beside an index
object there is a small *directory*, kept in the ledger's row or the manifest, that gives the records and the CRC32C of
each fence: so any hash range is one ranged read, without opening a footer.

Four areas, byte for byte in docs/format.md:

    newest     the newest record of each key; all that offset-order compaction needs
    events     where messages have event times: the event-time winner of each key (P9), in the order of `newest`
    unkeyed    64-bit Roaring bitmaps of offsets outside the key map: null keys (P6), whole entries (P8), and chunks
               that belong to no message
    chunks     where a ledger has chunked messages (P10): its chunk table (chunk_table.py), here only bytes

A ledger's index serves every policy, because policies may change after sealing; a compacted ledger's index has the same
form, one object for each hash range.

Invariants: hashes ascend strictly within an index; an offset is below 2⁶²; fences of one index cover its hash range.
Reads check the CRC of every fence they return: a wrong one is ObjectDamaged, never a shorter key set.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from storage.advice import damaged_object_advice
from storage.ahead import run_ahead
from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

FORMAT_VERSION = 1
CHUNKS_VERSION = 2
"""The format version of an index with a chunk table; an index without one keeps version 1."""
UNPLACED_VERSION = 3
"""The format version of the index of a ledger that counts from 0 (rows.UNPLACED_VERSION); it has no chunk table."""
FENCE_RECORDS = 16_384
"""The most records a fence should hold, on average; 384 KiB of `newest`."""
MERGED_RUNS = 16
"""Runs in ascending order from which on a table of slots takes less time than a merge."""
_MOST_OTHERS = 4
"""A sort of all records takes less time if more than one in so many is not the last record of its slot."""
_RUN_RECORDS = 64
"""Records in ascending order, on average, from which on runs are merged; shorter ones are sorted by their digits."""
BLOCK_RECORDS = 131_072
"""Records of a piece of `split_by_hash`: their columns stay in a core's cache, and their memory is used again."""
MAX_RANGE_BITS = 32
"""The most bits of a hash range's prefix: the directory has 32 for it."""
RECORD_BYTES = 24
EVENT_BYTES = 16

TOMBSTONE = np.uint64(1 << 63)
"""Flag in a record's offset: the message is a tombstone."""
MARKER = np.uint64(1 << 62)
"""Flag in a record's offset: it has no row. It hides older records of its key, and keeps its event time (P9)."""
OFFSET_MASK = np.uint64((1 << 62) - 1)

NO_EVENT_TIME = np.iinfo(np.int64).min
"""The event time of a message that has none: older than any."""

UNKEYED_CLASSES = ("null_keys", "whole_entries", "chunks")

_HEADER = struct.Struct("<HBBI3I3I")
_CHUNK_TABLE = struct.Struct("<II")


@dataclass(frozen=True)
class HashRange:
    """The keys whose hash begins with the `bits` bits of `prefix`; bits 0: all keys."""

    prefix: int = 0
    bits: int = 0

    def slice_of(self, hi: U64) -> slice:
        """Return the slice of `hi` (high halves, ascending) that is in this range."""
        if self.bits == 0:
            return slice(0, len(hi))
        shift = 64 - self.bits
        first = np.uint64(self.prefix << shift)
        last = np.uint64(((self.prefix + 1) << shift) - 1)
        return slice(int(np.searchsorted(hi, first, "left")), int(np.searchsorted(hi, last, "right")))


@dataclass(frozen=True)
class IndexRecords:
    """Records in hash order, as arrays of one length; `offset` carries the flags TOMBSTONE and MARKER.

    `event_offset` and `event_time` are None unless they were requested and the index has them.
    """

    hi: U64
    lo: U64
    offset: U64
    event_offset: U64 | None = None
    event_time: I64 | None = None

    def __len__(self) -> int:
        return len(self.hi)

    @classmethod
    def empty(cls) -> IndexRecords:
        """Return an empty set of records."""
        empty = np.empty(0, dtype=np.uint64)
        return cls(empty, empty, empty)

    def take(self, positions: npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice) -> IndexRecords:
        """Return the records at `positions`: their numbers, a mask, or a slice."""
        return IndexRecords(
            self.hi[positions],
            self.lo[positions],
            self.offset[positions],
            None if self.event_offset is None else self.event_offset[positions],
            None if self.event_time is None else self.event_time[positions],
        )

    def event_winners(self) -> IndexRecords:
        """Return the record of each key's event-time winner; without event times, that of its newest message."""
        if self.event_offset is None or self.event_time is None:
            none = np.full(len(self), NO_EVENT_TIME, dtype=np.int64)
            return IndexRecords(self.hi, self.lo, self.offset, self.offset, none)
        return IndexRecords(self.hi, self.lo, self.event_offset, self.event_offset, self.event_time)


def concatenate_records(runs: Sequence[IndexRecords]) -> IndexRecords:
    """Return the records of all runs, one run after the other; with event times if all that are not empty have them."""
    runs = [run for run in runs if len(run)]
    if not runs:
        return IndexRecords.empty()
    hi, lo, offset = (np.concatenate(column) for column in zip(*((r.hi, r.lo, r.offset) for r in runs), strict=True))
    event_offsets = [run.event_offset for run in runs if run.event_offset is not None]
    event_times = [run.event_time for run in runs if run.event_time is not None]
    if len(event_times) < len(runs):
        return IndexRecords(hi, lo, offset)
    return IndexRecords(hi, lo, offset, np.concatenate(event_offsets), np.concatenate(event_times))


def split_by_hash(runs: Sequence[IndexRecords]) -> Iterator[list[IndexRecords]]:
    """Yield the records of all runs in pieces: the same range of the hash of each run, ranges ascending.

    `runs`: each in hash order. A piece has about `BLOCK_RECORDS` records of all runs together if hashes are spread
    evenly. There is at least one piece, and records of one hash are in the same.
    """
    count = sum(map(len, runs)) // BLOCK_RECORDS + 1
    if count == 1:
        yield list(runs)
        return
    filled = [run for run in runs if len(run)]
    first, last = min(int(run.hi[0]) for run in filled), max(int(run.hi[-1]) for run in filled)
    bounds = np.array([first + (last - first) * number // count for number in range(1, count)], dtype=np.uint64)
    cuts = [[0, *np.searchsorted(run.hi, bounds, "left").tolist(), len(run)] for run in runs]
    for number in range(count):
        yield [run.take(slice(cut[number], cut[number + 1])) for run, cut in zip(runs, cuts, strict=True)]


@dataclass(frozen=True)
class IndexDirectory:
    """The layout of an index object: the records and CRC32C of each fence, and the sizes of the other areas.

    `unkeyed_sizes`, `unkeyed_checksums`: bytes and CRC32C of the unkeyed bitmaps, by class. `event_checksums`: empty if
    the index has no event times. `chunk_table`: bytes and CRC32C of the chunk table; None: the index has none.
    `has_topic_offsets`: offsets are those of the topic; otherwise they count from 0.
    """

    hash_range: HashRange
    counts: tuple[int, ...]
    checksums: tuple[int, ...]
    event_checksums: tuple[int, ...] = ()
    unkeyed_sizes: Mapping[str, int] = field(default_factory=dict)
    unkeyed_checksums: Mapping[str, int] = field(default_factory=dict)
    chunk_table: tuple[int, int] | None = None
    has_topic_offsets: bool = True

    @property
    def index_bytes(self) -> int:
        """The size of the whole index in bytes."""
        width = RECORD_BYTES + (EVENT_BYTES if self.has_events else 0)
        chunks = self.chunk_table[0] if self.chunk_table else 0
        return self.record_count * width + sum(self.unkeyed_sizes.values()) + chunks

    @property
    def record_count(self) -> int:
        """The number of records of `newest`, that is of keys."""
        return sum(self.counts)

    @property
    def has_events(self) -> bool:
        """True if the index has event-time winners."""
        return bool(self.event_checksums)

    @property
    def fence_bits(self) -> int:
        """log2 of the number of fences."""
        return len(self.counts).bit_length() - 1

    def fences(self, hash_range: HashRange) -> range:
        """Return the fences that hold the part of a hash range that is in this index; empty if it holds none."""
        own = self.hash_range
        if hash_range.bits <= own.bits:
            inside = own.prefix >> (own.bits - hash_range.bits) == hash_range.prefix
            return range(len(self.counts)) if inside else range(0)
        if hash_range.prefix >> (hash_range.bits - own.bits) != own.prefix:
            return range(0)
        below = hash_range.prefix & ((1 << (hash_range.bits - own.bits)) - 1)
        shift = self.fence_bits - (hash_range.bits - own.bits)
        if shift >= 0:
            return range(below << shift, (below + 1) << shift)
        return range(below >> -shift, (below >> -shift) + 1)

    def encode(self) -> bytes:
        """Return the directory as bytes, for a database column or a manifest."""
        sizes = [self.unkeyed_sizes.get(name, 0) for name in UNKEYED_CLASSES]
        crcs = [self.unkeyed_checksums.get(name, 0) for name in UNKEYED_CLASSES]
        bits, prefix = self.hash_range.bits, self.hash_range.prefix
        version = CHUNKS_VERSION if self.chunk_table else FORMAT_VERSION
        if not self.has_topic_offsets:
            assert not self.chunk_table
            version = UNPLACED_VERSION
        header = _HEADER.pack(version, bits, int(self.has_events), prefix, *sizes, *crcs)
        if self.chunk_table:
            header += _CHUNK_TABLE.pack(*self.chunk_table)
        columns = [self.counts, self.checksums, self.event_checksums]
        return header + b"".join(np.asarray(column, dtype="<u4").tobytes() for column in columns)

    @classmethod
    def decode(cls, data: bytes, name: str = "") -> IndexDirectory:
        """Parse a directory, the inverse of `encode`. Raises ObjectDamaged for an unreadable one.

        `name`: of the object that has the index, for the error; empty: not known.
        """
        subject = f"the key index directory of {name}" if name else "a key index directory"
        if len(data) < _HEADER.size:
            raise ObjectDamaged(f"{subject} has only {len(data)} bytes", damaged_object_advice(name), is_public=True)
        version, bits, has_events, prefix, *rest = _HEADER.unpack_from(data)
        columns = 3 if has_events else 2
        start = _HEADER.size + (_CHUNK_TABLE.size if version == CHUNKS_VERSION else 0)
        fences, odd = divmod(len(data) - start, 4 * columns)
        known = version in (FORMAT_VERSION, CHUNKS_VERSION, UNPLACED_VERSION) and fences > 0
        known &= has_events <= 1 and bits <= MAX_RANGE_BITS and not prefix >> bits
        if not known or odd or fences.bit_count() != 1:
            raise ObjectDamaged(
                f"{subject} has version {version} and {len(data)} bytes, and cannot be read",
                damaged_object_advice(name),
                is_public=True,
            )
        body = np.frombuffer(data, dtype="<u4", offset=start)
        table = body.reshape(columns, -1).tolist()
        return cls(
            HashRange(prefix, bits),
            tuple(table[0]),
            tuple(table[1]),
            tuple(table[2]) if has_events else (),
            dict(zip(UNKEYED_CLASSES, rest[:3], strict=True)),
            dict(zip(UNKEYED_CLASSES, rest[3:], strict=True)),
            _CHUNK_TABLE.unpack_from(data, _HEADER.size) if version == CHUNKS_VERSION else None,
            version != UNPLACED_VERSION,
        )


def latest_positions(hi: U64, lo: U64) -> npt.NDArray[np.int64]:
    """Return the positions of the last record of each distinct hash, in hash order.

    Input: halves of shape (n,), in offset order among equal hashes. A few concatenated sorted runs are merged. Two keys
    that share the high half differ in the low half.
    """
    if len(hi) == 0:
        return np.empty(0, dtype=np.int64)
    if np.count_nonzero(hi[1:] < hi[:-1]) < MERGED_RUNS:
        return _latest_in_sort_order(hi, lo, np.argsort(hi, kind="stable"))
    return _latest_by_slot(hi, lo)


def _latest_in_sort_order(hi: U64, lo: U64, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions of the last record of each distinct hash, in hash order.

    `order`: the stable order of `hi`, shape (n,), n > 0.
    """
    high, low = hi[order], lo[order]
    same_high = high[1:] == high[:-1]
    differs = low[1:] != low[:-1]
    if np.any(same_high & differs):
        order = np.lexsort((np.arange(len(hi)), lo, hi))
        high, low = hi[order], lo[order]
        same_high = high[1:] == high[:-1]
        differs = low[1:] != low[:-1]
    last = np.append(~same_high | differs, True)
    winners: npt.NDArray[np.int64] = order[last]
    return winners


def _latest_by_slot(hi: U64, lo: U64) -> npt.NDArray[np.int64]:
    """Return the positions of the last record of each distinct hash, in hash order, of records in any order.

    This takes half the time of a sort, and less with many records of a key.

    A table has two slots for each record, in hash order. Each record writes its position into its slot, so the last
    record of the slot stays. Only records of other hashes than that one are sorted, unless they are many, because few
    keys are repeated.
    """
    bits = len(hi).bit_length()
    least = hi.min()
    shift = max(0, int(hi.max() - least).bit_length() - bits)
    slots = ((hi - least) >> np.uint64(shift)).view(np.int64)
    table = np.full(1 << bits, -1, dtype=np.int32)
    positions = np.arange(len(hi), dtype=np.int32)
    table[slots] = positions
    last = table[slots]
    others = np.flatnonzero((hi[last] != hi) | (lo[last] != lo))
    if len(others) > len(hi) // _MOST_OTHERS or np.any(last < positions):  # NumPy promises no order of assignments
        return _latest_in_sort_order(hi, lo, _stable_sort_order(hi))
    winners = table[table >= 0].astype(np.int64)
    if not len(others):
        return winners
    hi_left, lo_left = hi[others], lo[others]
    winners = np.concatenate([winners, others[_latest_in_sort_order(hi_left, lo_left, _stable_sort_order(hi_left))]])
    return winners[_latest_in_sort_order(hi[winners], lo[winners], np.argsort(hi[winners], kind="stable"))]


def _stable_sort_order(hi: U64) -> npt.NDArray[np.int64]:
    """Return the stable order of high halves, shape (n,), n > 0.

    Long runs are merged. Others are ordered by the highest 32 bits that differ, 16 at a time, which NumPy sorts by
    their digits; values that agree in these bits need a second sort, of almost ordered values.
    """
    if np.count_nonzero(hi[1:] < hi[:-1]) < len(hi) // _RUN_RECORDS:
        return np.argsort(hi, kind="stable")
    least = hi.min()
    shift = max(0, int(hi.max() - least).bit_length() - 32)
    digits = (hi - least) >> np.uint64(shift)
    order = np.argsort(digits.astype(np.uint16), kind="stable")
    order = order[np.argsort((digits[order] >> np.uint64(16)).astype(np.uint16), kind="stable")]
    high = hi[order]
    return order[np.argsort(high, kind="stable")] if np.any(high[1:] < high[:-1]) else order


def latest_positions_by_event(hi: U64, lo: U64, event_time: I64) -> npt.NDArray[np.int64]:
    """Return the position of the record with the largest event time of each distinct hash, in hash order.

    Of equal event times the later record wins (P9).
    """
    order = np.lexsort((np.arange(len(hi)), event_time, lo, hi))
    high, low = hi[order], lo[order]
    last = np.append((high[1:] != high[:-1]) | (low[1:] != low[:-1]), True)
    winners: npt.NDArray[np.int64] = order[last] if len(hi) else np.empty(0, dtype=np.int64)
    return winners


def positions_of_hashes(records: IndexRecords, hi: U64, lo: U64) -> npt.NDArray[np.int64]:
    """Return the position of each hash in `records`, −1 where it is missing. Shape (n,).

    Ascending hashes are faster.
    """
    at = np.searchsorted(records.hi, hi, "left")
    positions = np.full(len(hi), -1, dtype=np.int64)
    pending = np.flatnonzero(at < len(records))
    while len(pending):  # more than one round only for keys that share the high half
        candidates = at[pending]
        same = records.hi[candidates] == hi[pending]
        match = same & (records.lo[candidates] == lo[pending])
        positions[pending[match]] = candidates[match]
        pending = pending[same & ~match]
        at[pending] += 1
        pending = pending[at[pending] < len(records)]
    return positions


def fence_count(records: int) -> int:
    """Return the number of fences for a number of records: a power of two, 1 for few records."""
    return 1 << max(0, (max(1, records) - 1) // FENCE_RECORDS).bit_length()


def encode_index(
    records: IndexRecords,
    hash_range: HashRange,
    unkeyed: Mapping[str, BitMap64] | None = None,
    chunks: bytes = b"",
    *,
    has_topic_offsets: bool = True,
) -> tuple[bytes, IndexDirectory]:
    """Return an index object and its directory.

    `records`: hash order, one for each key, all inside `hash_range`; `unkeyed`: bitmaps of offsets, by class; `chunks`:
    a chunk table. `has_topic_offsets`: False if offsets count from 0, in the index of a ledger without chunks.
    """
    fences = fence_count(len(records))
    bits = fences.bit_length() - 1
    shift = 64 - hash_range.bits - bits
    first = (hash_range.prefix << bits) if shift < 64 else 0
    inner = np.array([(first + fence) << shift for fence in range(1, fences)], dtype=np.uint64)
    cuts = [0, *np.searchsorted(records.hi, inner, "left").tolist(), len(records)]
    spans = list(pairwise(cuts))
    newest = [_encode_columns(records.hi[a:b], records.lo[a:b], records.offset[a:b]) for a, b in spans]
    events: list[bytes] = []
    if records.event_offset is not None and records.event_time is not None:
        events = [_encode_columns(records.event_offset[a:b], records.event_time[a:b]) for a, b in spans]
    bitmaps = {name: _encode_bitmap((unkeyed or {}).get(name)) for name in UNKEYED_CLASSES}
    directory = IndexDirectory(
        hash_range,
        tuple(b - a for a, b in spans),
        tuple(map(crc32c, newest)),
        tuple(map(crc32c, events)),
        {name: len(data) for name, data in bitmaps.items()},
        {name: crc32c(data) for name, data in bitmaps.items()},
        (len(chunks), crc32c(chunks)) if chunks else None,
        has_topic_offsets,
    )
    return b"".join([*newest, *events, *bitmaps.values(), chunks]), directory


def read_records(
    store: ObjectStore, location: IndexLocation, hash_range: HashRange, *, events: bool = False
) -> IndexRecords:
    """Return the records of a hash range, in hash order: one ranged read, or two with `events`.

    Raises ObjectMissing, ObjectDamaged.
    """
    directory = IndexDirectory.decode(location.directory, location.name)
    records = _read_fence_records(store, location, directory, directory.fences(hash_range), events)
    return records.take(hash_range.slice_of(records.hi))


@dataclass(frozen=True)
class Probe:
    """One read of consecutive fences of an index, for the records of some hashes.

    `hi`: distinct high halves, ascending. A call returns their records, in hash order. It raises ObjectMissing,
    ObjectDamaged.
    """

    store: ObjectStore
    location: IndexLocation
    directory: IndexDirectory
    fences: range
    hi: U64
    events: bool

    @property
    def records_read(self) -> int:
        """The number of records of the fences."""
        return sum(self.directory.counts[fence] for fence in self.fences)

    def __call__(self) -> IndexRecords:
        return _read_fence_records(self.store, self.location, self.directory, self.fences, self.events, self.hi)


def probe_records(store: ObjectStore, location: IndexLocation, hi: U64, *, events: bool = False) -> IndexRecords:
    """Return the records with one of the high halves `hi` (ascending), in hash order.

    Only the fences that may hold one are read. Raises ObjectMissing, ObjectDamaged.
    """
    return concatenate_records(
        list(run_ahead(plan_probes(store, location, hi, events=events), store.concurrent_requests))
    )


def plan_probes(store: ObjectStore, location: IndexLocation, hi: U64, *, events: bool = False) -> list[Probe]:
    """Return the reads that find the records with one of the high halves `hi` (ascending), in hash order.

    Neighbouring fences are read in one ranged read, also across a gap that is cheaper to read than another request.
    Raises ObjectDamaged.
    """
    directory = IndexDirectory.decode(location.directory, location.name)
    own = hi[directory.hash_range.slice_of(hi)]
    own = own[np.append(np.ones(min(1, len(own)), dtype=np.bool_), own[1:] != own[:-1])]
    shift = np.uint64(64 - directory.hash_range.bits - directory.fence_bits)
    within = np.uint64(len(directory.counts) - 1)
    fences = (
        np.unique((own >> shift) & within).astype(np.int64).tolist() if directory.fence_bits else [0] * bool(len(own))
    )
    gap = store.preferred_read_bytes // (RECORD_BYTES * FENCE_RECORDS)
    reads: list[Probe] = []
    start = 0
    for position in range(1, len(fences) + 1):
        if position == len(fences) or fences[position] - fences[position - 1] > gap:
            together = range(fences[start], fences[position - 1] + 1)
            reads.append(Probe(store, location, directory, together, own, events))
            start = position
    return reads


def read_unkeyed(store: ObjectStore, location: IndexLocation, name: str) -> BitMap64:
    """Return the offsets of one unkeyed class. `name`: one of UNKEYED_CLASSES.

    Raises ObjectMissing, ObjectDamaged.
    """
    directory = IndexDirectory.decode(location.directory, location.name)
    size = directory.unkeyed_sizes[name]
    if not size:
        return BitMap64()
    before = UNKEYED_CLASSES[: UNKEYED_CLASSES.index(name)]
    start = directory.record_count * (RECORD_BYTES + (EVENT_BYTES if directory.has_events else 0))
    start += sum(directory.unkeyed_sizes[other] for other in before)
    data = store.get(location.name, location.offset + start, size)
    _check_checksum(location, data, directory.unkeyed_checksums[name], f"the bitmap of {name}")
    bitmap = BitMap64.deserialize(data)
    if directory.has_topic_offsets:
        return bitmap
    offsets = np.fromiter(bitmap, np.uint64, len(bitmap)) + np.uint64(location.first_offset)
    return BitMap64(array("Q", offsets.tobytes()))


def _read_fence_records(
    store: ObjectStore,
    location: IndexLocation,
    directory: IndexDirectory,
    fences: range,
    events: bool,
    only: U64 | None = None,
) -> IndexRecords:
    """Return the records of consecutive fences; nothing is read if they have none. `only`: those high halves."""
    if not sum(directory.counts[fence] for fence in fences):
        return IndexRecords.empty()
    blocks = _read_fences(store, location, directory.counts, directory.checksums, fences, 0, RECORD_BYTES)
    columns = [_decode_columns(block, 3) for block in blocks]
    places = [slice(None) if only is None else _positions_in_fence(column[0], only) for column in columns]
    hi, lo, offset = _gather_columns(columns, places)
    # The offset has 62 bits, so the flags above it stay.
    added = np.uint64(0 if directory.has_topic_offsets else location.first_offset)
    if added:
        offset += added
    if not (events and directory.has_events):
        return IndexRecords(hi, lo, offset)
    area = directory.record_count * RECORD_BYTES
    blocks = _read_fences(store, location, directory.counts, directory.event_checksums, fences, area, EVENT_BYTES)
    event_offset, event_time = _gather_columns([_decode_columns(block, 2) for block in blocks], places)
    if added:
        event_offset += added
    return IndexRecords(hi, lo, offset, event_offset, event_time.view(np.int64))


def _positions_in_fence(hi: U64, only: U64) -> npt.NDArray[np.int64]:
    """Return the positions in a fence's `hi` of the high halves that are in `only`; both ascend."""
    if not len(hi):
        return np.empty(0, dtype=np.int64)
    within = only[np.searchsorted(only, hi[0], "left") : np.searchsorted(only, hi[-1], "right")]
    first, end = np.searchsorted(hi, within, "left"), np.searchsorted(hi, within, "right")
    if np.any(end - first > 1):  # keys share a high half
        return np.flatnonzero(np.isin(hi, within))
    places: npt.NDArray[np.int64] = first[end > first]
    return places


def _gather_columns(columns: Sequence[U64], places: Sequence[npt.NDArray[np.int64] | slice]) -> list[U64]:
    """Return the columns of fences one after the other, of each fence the rows at its `places`."""
    return [
        np.concatenate([fence[number][place] for fence, place in zip(columns, places, strict=True)])
        for number in range(len(columns[0]))
    ]


def _read_fences(
    store: ObjectStore,
    location: IndexLocation,
    counts: tuple[int, ...],
    checksums: tuple[int, ...],
    fences: range,
    area: int,
    width: int,
) -> list[memoryview]:
    """Return the blocks of consecutive fences of one area, each checked."""
    start = area + sum(counts[: fences.start]) * width
    sizes = [counts[fence] * width for fence in fences]
    data = memoryview(store.get(location.name, location.offset + start, sum(sizes)))
    ends = list(accumulate(sizes))
    blocks = [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    for fence, block in zip(fences, blocks, strict=True):
        _check_checksum(location, block, checksums[fence], f"fence {fence}")
    return blocks


def _check_checksum(location: IndexLocation, data: bytes | memoryview, checksum: int, what: str) -> None:
    if crc32c(data) != checksum:
        raise ObjectDamaged(
            f"{what} of the key index {location.name} does not match its checksum",
            damaged_object_advice(location.name),
            is_public=True,
        )


def _encode_columns(*columns: npt.NDArray[np.generic]) -> bytes:
    return b"".join(np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<")).tobytes() for column in columns)


def _decode_columns(block: memoryview, columns: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(block, dtype="<u8").reshape(columns, -1)


def _encode_bitmap(bitmap: BitMap64 | None) -> bytes:
    if not bitmap:
        return b""
    bitmap.run_optimize()
    return bytes(bitmap.serialize())
