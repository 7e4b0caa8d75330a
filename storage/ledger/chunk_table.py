"""Chunk tables: the chunks of chunked messages among the rows of a ledger (P10).

A chunked message is one message, but its chunks are rows of their own, possibly of several ledgers. A table has one
record for each chunk, 72 bytes, ascending by offset: hashes of uuid and key, number and count, offset, times, and
whether the payload is empty. So completeness, and the newest message of a key, are decided without reading a row. A
sealed ledger's table is an area of its key index object; a compacted ledger has tables of its own, named by its
manifest, which hold all its live chunks: those of older ledgers are not read again.

`assemble_chunk_records` is the rule of `storage/entries/chunk_assembler.py` over records. Chunks with one uuid, key and
count form a message if they come in order. Between two messages of a uuid there may be *stale* chunks: repeats, and
beginnings that were sent again; they belong to no message. Chunks after the last message of a uuid are *pending*.

A row of slot CHUNK without uuid, or with an impossible number, is in no table but in the bitmap `chunks` of the index:
it passes whole. Byte for byte in docs/format.md. Errors: ObjectMissing, ObjectDamaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.advice import damaged_object_advice
from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.ledger import key_index, rows
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import I64, NO_EVENT_TIME, OFFSET_MASK, U64, HashRange, IndexDirectory, IndexRecords
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore

Mask = npt.NDArray[np.bool_]
Chunks = npt.NDArray[np.void]
"""Records of RECORD, shape (n,)."""

RECORD = np.dtype(
    [
        ("uuid_hi", "<u8"),
        ("uuid_lo", "<u8"),
        ("key_hi", "<u8"),
        ("key_lo", "<u8"),
        ("offset", "<u8"),
        ("event_time", "<i8"),
        ("publish_time", "<i8"),
        ("retained_at", "<i8"),
        ("index", "<u4"),
        ("count", "<u4"),
    ]
)
"""`offset` carries EMPTY and KEYED. Without a key its hash is 0. NO_EVENT_TIME: no event time, no retained_at."""
EMPTY = np.uint64(1 << 63)
"""Flag in a record's offset: the chunk's payload is null or empty."""
KEYED = np.uint64(1 << 62)
"""Flag in a record's offset: the message has a key."""
IDENTITY = ("count", "key_lo", "key_hi", "uuid_lo", "uuid_hi")
"""The fields that chunks of one message have in common, besides whether they are `keyed`."""

STALE = -1
"""The message number of a chunk that belongs to no message and never will."""
PENDING = -2
"""The message number of a chunk whose message is not complete yet."""
_BLOCK = 65_536


@dataclass(frozen=True)
class ChunkTable:
    """A table of a compacted ledger, an object of its own: the live chunks of one hash range. Times in ms.

    `pending`: the number of chunks of incomplete messages. `oldest_value`: no complete value was published before it.
    `oldest_tombstone`, `first_tombstone`: no retained tombstone was first kept before that time, or has a lower offset.
    `oldest_pending`: the newest chunk of every incomplete message was published then or later. None: there is none of
    the kind.
    """

    name: str
    length: int
    crc32c: int
    hash_range: HashRange = field(default_factory=HashRange)
    pending: int = 0
    oldest_value: int | None = None
    oldest_tombstone: int | None = None
    first_tombstone: int | None = None
    oldest_pending: int | None = None

    @property
    def record_count(self) -> int:
        """The number of chunks in the table."""
        return self.length // RECORD.itemsize


def empty_chunks() -> Chunks:
    """Return an empty array of records, shape (0,)."""
    return np.empty(0, dtype=RECORD)


def chunk_mask(table: pa.Table) -> Mask:
    """Return a mask of the rows that are chunks of a message: with uuid, and a possible number. Shape (n,)."""
    mask: Mask = np.equal(table.column("slot").to_numpy(), int(rows.RowType.CHUNK))
    if not mask.any():
        return mask
    index, count = (pc.fill_null(table.column(name), -1).to_numpy() for name in ("chunk_index", "chunk_count"))
    mask &= table.column("chunk_uuid").is_valid().to_numpy() & (index >= 0) & (index < count)
    return mask


def chunk_records(table: pa.Table, hasher: KeyHasher) -> Chunks:
    """Return the records of the chunks among the rows of `table` (`rows.SCHEMA`), in its order."""
    mask = chunk_mask(table)
    if not mask.any():
        return empty_chunks()
    chunks = table.filter(pa.array(mask))
    has_key = chunks.column("key").is_valid().to_numpy()
    empty = pc.fill_null(pc.binary_length(chunks.column("payload")), 0).to_numpy() == 0
    records = np.zeros(len(chunks), dtype=RECORD)
    records["uuid_hi"], records["uuid_lo"] = hasher(
        rows.contiguous_array(chunks.column("chunk_uuid").cast(pa.binary()))
    )
    hi, lo = hasher(rows.contiguous_array(pc.fill_null(chunks.column("key"), b"")))
    records["key_hi"], records["key_lo"] = np.where(has_key, hi, np.uint64(0)), np.where(has_key, lo, np.uint64(0))
    flags = np.where(empty, EMPTY, np.uint64(0)) | np.where(has_key, KEYED, np.uint64(0))
    records["offset"] = chunks.column("offset").to_numpy().astype(np.uint64) | flags
    records["event_time"] = pc.fill_null(chunks.column("event_time"), NO_EVENT_TIME).to_numpy()
    records["publish_time"] = chunks.column("publish_time").to_numpy()
    records["retained_at"] = NO_EVENT_TIME
    records["index"], records["count"] = (chunks.column(name).to_numpy() for name in ("chunk_index", "chunk_count"))
    return records


def chunk_offsets(chunks: Chunks) -> U64:
    """Return the offsets of chunks without flags, shape (n,)."""
    plain: U64 = chunks["offset"] & OFFSET_MASK
    return plain


def keyed_chunk_mask(chunks: Chunks) -> Mask:
    """Return a mask of the chunks whose messages have a key, shape (n,)."""
    mask: Mask = chunks["offset"] & KEYED != 0
    return mask


def chunks_in_range(chunks: Chunks, hash_range: HashRange) -> Chunks:
    """Return the chunks in one hash range: by the key's hash or, without a key, by the uuid's.

    So all chunks of a message are in the same range.
    """
    if not hash_range.bits:
        return chunks
    hi = np.where(keyed_chunk_mask(chunks), chunks["key_hi"], chunks["uuid_hi"])
    matches: Chunks = chunks[hi >> np.uint64(64 - hash_range.bits) == np.uint64(hash_range.prefix)]
    return matches


def read_ledger_chunks(store: ObjectStore, location: IndexLocation) -> Chunks:
    """Return the chunk table in a ledger's key index object, empty if it has none; then nothing is read.

    Raises ObjectMissing, ObjectDamaged.
    """
    directory = IndexDirectory.decode(location.directory, location.name)
    if directory.chunk_table is None:
        return empty_chunks()
    length, checksum = directory.chunk_table
    start = location.offset + directory.index_bytes - length
    return _decode_chunks(store.get(location.name, start, length), checksum, location.name)


def read_chunk_tables(store: ObjectStore, tables: Sequence[ChunkTable], hash_range: HashRange) -> list[Chunks]:
    """Return the chunks of one hash range, an array for each of `tables` that may have some.

    Raises ObjectMissing, ObjectDamaged.
    """
    chunks = []
    for table in tables:
        bits = min(table.hash_range.bits, hash_range.bits)
        if table.hash_range.prefix >> (table.hash_range.bits - bits) == hash_range.prefix >> (hash_range.bits - bits):
            data = store.get(table.name, 0, table.length)
            chunks.append(chunks_in_range(_decode_chunks(data, table.crc32c, table.name), hash_range))
    return chunks


def _decode_chunks(data: bytes, checksum: int, name: str) -> Chunks:
    if crc32c(data) != checksum:
        raise ObjectDamaged(
            f"the chunk table in {name} does not match its checksum", damaged_object_advice(name), is_public=True
        )
    if len(data) % RECORD.itemsize:
        raise ObjectDamaged(
            f"the chunk table in {name} is {len(data)} bytes long, not whole records",
            damaged_object_advice(name),
            is_public=True,
        )
    return np.frombuffer(data, dtype=RECORD)


@dataclass(frozen=True)
class ChunkAssembly:
    """Chunks, and the messages that they form.

    `chunks` are ordered by uuid, key and count, and then by offset. For each chunk: `message_numbers`, the number of
    the complete message that it is part of, or STALE or PENDING; `group_numbers`, the number of its uuid, key and
    count. For each message: the positions in `chunks` of its `first_chunks` and `last_chunks` chunk, and whether its
    payload is `empty`.
    """

    chunks: Chunks
    message_numbers: I64
    group_numbers: I64
    first_chunks: I64
    last_chunks: I64
    empty: Mask

    @property
    def keyed_mask(self) -> Mask:
        """A mask of the messages that have a key."""
        return keyed_chunk_mask(self.chunks[self.last_chunks])

    @property
    def message_offsets(self) -> U64:
        """The offset of each message, which is that of its last chunk."""
        return chunk_offsets(self.chunks[self.last_chunks])

    def index_records(self, mask: Mask) -> IndexRecords:
        """Return key index records, by hash and then offset, of the messages in `mask`, which all have a key."""
        last, first = self.chunks[self.last_chunks[mask]], self.chunks[self.first_chunks[mask]]
        flagged = np.where(self.empty[mask], chunk_offsets(last) | key_index.TOMBSTONE, chunk_offsets(last))
        records = IndexRecords(
            last["key_hi"].copy(), last["key_lo"].copy(), flagged, flagged, first["event_time"].copy()
        )
        return records.take(np.lexsort((chunk_offsets(last), records.lo, records.hi)))

    def newest_pending_times(self, mask: Mask | None = None) -> I64:
        """Return for each group the publish time (ms) of its newest pending chunk, shape (groups,).

        `mask`: a mask of the chunks that count; None: all. A group without a pending chunk gets the least number of 64
        bits.
        """
        newest = np.full(int(self.group_numbers[-1]) + 1 if len(self.group_numbers) else 0, np.iinfo(np.int64).min)
        pending = self.message_numbers == PENDING if mask is None else mask & (self.message_numbers == PENDING)
        np.maximum.at(newest, self.group_numbers[pending], self.chunks["publish_time"][pending])
        return newest


def assemble_chunk_records(chunks: Chunks) -> ChunkAssembly:
    """Return the messages that `chunks`, in any order, form."""
    chunks = chunks[np.lexsort((chunk_offsets(chunks), keyed_chunk_mask(chunks), *(chunks[name] for name in IDENTITY)))]
    begins = np.ones(len(chunks), dtype=np.bool_)
    begins[1:] = keyed_chunk_mask(chunks)[1:] != keyed_chunk_mask(chunks)[:-1]
    for name in IDENTITY:
        begins[1:] |= chunks[name][1:] != chunks[name][:-1]
    message, first, last = _assign_messages(chunks, begins)
    empty = np.ones(len(last), dtype=np.bool_)
    empty[message[(message >= 0) & (chunks["offset"] & EMPTY == 0)]] = False
    return ChunkAssembly(chunks, message, np.cumsum(begins) - 1, first, last, empty)


def _assign_messages(chunks: Chunks, begins: Mask) -> tuple[I64, I64, I64]:
    """Return for each chunk its message; for each message its first and last chunk."""
    message = np.full(len(chunks), PENDING, dtype=np.int64)
    firsts: list[int] = []
    lasts: list[int] = []
    counted: list[int] = []
    since = 0
    for start in range(0, len(chunks), _BLOCK):
        span = slice(start, start + _BLOCK)
        columns = (begins[span].tolist(), chunks["index"][span].tolist(), chunks["count"][span].tolist())
        for at, (begin, index, count) in enumerate(zip(*columns, strict=True), start):
            if begin:
                counted, since = [], at
            if index == 0:
                counted = [at]
            elif counted and index == len(counted):
                counted.append(at)
            else:
                continue
            if len(counted) == count:
                message[since : at + 1] = STALE
                message[counted] = len(lasts)
                firsts.append(counted[0])
                lasts.append(at)
                counted, since = [], at + 1
    return message, np.array(firsts, dtype=np.int64), np.array(lasts, dtype=np.int64)
