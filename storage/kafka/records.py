"""Records of batches as Arrow tables: an array operation for each field, as `storage/entries/bulk_batch.py` does it.

    record        length, attributes, timestamp delta, offset delta, key, value, headers     (magic 2, varints)

A record states its length, so a loop locates the records; then the fields of all records are read side by side. Magic 0
and 1 go message by message (message_set.py). Keys and values keep null and empty apart; a timestamp below 0 is null.

Invariant: the fields of a record end where its length says, its offset is in its batch, and offsets ascend. Raises
InvalidRecord and nothing else, for any bytes; it names the batch. Memory: a block of `BLOCK_BYTES`, or one batch.

Must not know: files, topics, what a consumer gets of aborted transactions. Sources: Kafka's DefaultRecord, KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.kafka.compression import MAX_BYTES, Undecompressable, decompress
from storage.kafka.header_properties import LocatedHeaders, properties_of
from storage.kafka.message_set import read_message_set
from storage.kafka.record_batch import RecordBatch, damaged
from storage.slices import I64, Flags, Spans, slices
from storage.varints import PADDING, WORD_BYTES, read_varint, read_varints, words_of

_RUN, _LOOP = 16, 128
"""The least records of one size that are located together; the records after fewer that are located by a loop."""
_TOGETHER, _LONGEST_RUN = 8, 256
"""The least batches of which records are located together, and the most records of each in a round."""
BLOCK_BYTES = 2 << 20
"""Uncompressed bytes of batches that are decoded together: their arrays stay in a core's cache."""
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
    ]
)
"""Columns of records. `properties`: their headers (header_properties.py)."""


def decode_batches(batches: Iterable[RecordBatch], max_bytes: int = MAX_BYTES) -> Iterator[pa.Table]:
    """Yield the records of batches (SCHEMA), in order, some batches at a time; no table is empty.

    `max_bytes`: of a batch of magic 2, uncompressed. The caller leaves out control batches. Raises InvalidRecord.
    """
    block: list[RecordBatch] = []
    contents: list[bytes | memoryview] = []
    size = 0
    for batch in batches:
        if batch.magic < 2:
            if block:
                yield _decode_block(block, contents)
                block, contents, size = [], [], 0
            yield _legacy_table(batch)
            continue
        content = _uncompressed(batch, max_bytes)
        if block and size + len(content) > BLOCK_BYTES:
            yield _decode_block(block, contents)
            block, contents, size = [], [], 0
        if batch.record_count:
            block.append(batch)
            contents.append(content)
            size += len(content)
    if block:
        yield _decode_block(block, contents)


def _uncompressed(batch: RecordBatch, max_bytes: int) -> bytes | memoryview:
    try:
        return memoryview(decompress(batch.codec, batch.records, max_bytes=max_bytes))
    except Undecompressable as error:
        raise damaged(batch, f"cannot be decompressed: {error}") from error


def _legacy_table(batch: RecordBatch) -> pa.Table:
    messages = read_message_set(batch)
    columns = [[getattr(message, name) for message in messages] for name in ("offset", "timestamp", "key", "value")]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=False)]
    return pa.table([*arrays, pa.nulls(len(messages), SCHEMA.field("properties").type)], schema=SCHEMA)


def _decode_block(batches: Sequence[RecordBatch], contents: Sequence[bytes | memoryview]) -> pa.Table:
    """Return the records of batches of magic 2, whose uncompressed records are `contents`."""
    data = b"".join([*contents, PADDING])
    end = len(data) - len(PADDING)
    words = words_of(data)
    counts = np.fromiter((batch.record_count for batch in batches), np.int64, len(batches))
    content_ends = np.cumsum(np.fromiter((len(content) for content in contents), np.int64, len(contents)))
    located = _locate(data, words, content_ends, counts)
    lengths, starts = read_varints(words, np.minimum(located, end))
    ends = starts + np.clip(lengths, -1, end)
    batch_of = np.repeat(np.arange(len(batches)), counts)

    def clipped(positions: I64) -> I64:
        return np.clip(positions, 0, end)

    timestamp_deltas, at = read_varints(words, clipped(starts + 1))
    offset_deltas, at = read_varints(words, clipped(at))
    key_sizes, keys = read_varints(words, clipped(at))
    value_sizes, values = read_varints(words, clipped(keys + np.clip(key_sizes, 0, end)))
    header_counts, at = read_varints(words, clipped(values + np.clip(value_sizes, 0, end)))
    fits = (key_sizes >= -1) & (value_sizes >= -1) & (header_counts >= 0) & (at <= ends)
    headers = _locate_headers(words, at, ends, np.where(fits, header_counts, 0))
    fits &= headers.ends == ends
    first_offsets = _each(batches, "first_offset", batch_of)
    fits &= (offset_deltas >= 0) & (offset_deltas <= _each(batches, "last_offset", batch_of) - first_offsets)
    offsets = first_offsets + offset_deltas
    fits[1:] &= np.diff(offsets) > 0
    following = np.append(located[1:], 0)
    following[np.cumsum(counts) - 1] = content_ends
    fits &= ends == following
    if not fits.all():
        batch = batches[int(batch_of[int(np.argmin(fits))])]
        raise damaged(batch, "has records that are not where it says")
    has_append_time = _each(batches, "has_append_time", batch_of).astype(bool)
    timestamps = np.where(
        has_append_time,
        _each(batches, "max_timestamp", batch_of),
        _each(batches, "base_timestamp", batch_of) + timestamp_deltas,
    )
    buffer = pa.py_buffer(data)
    key_column, value_column = slices(
        buffer,
        end,
        pa.binary(),
        Spans(keys, key_sizes, key_sizes < 0),
        Spans(values, value_sizes, value_sizes < 0),
    )
    columns = [
        pa.array(offsets),
        pa.array(timestamps, mask=timestamps < 0),
        key_column,
        value_column,
        properties_of(buffer, end, len(offsets), headers.located),
    ]
    return pa.table(columns, schema=SCHEMA)


def _each(batches: Sequence[RecordBatch], name: str, batch_of: I64) -> I64:
    """Return an attribute of the batch of each record."""
    return np.fromiter((getattr(batch, name) for batch in batches), np.int64, len(batches))[batch_of]


def _locate(data: bytes, words: I64, content_ends: I64, counts: I64) -> I64:
    """Return the position of each record; of damaged ones, any positions. Shape (records,).

    `content_ends`, `counts`: the end and the number of the records of each batch. Each position depends on the one
    before it. In each round the next records that have one size are located in many batches together: numbers in
    records grow by a byte a few times in a batch. A batch with records of many sizes, and the last few, are located
    alone.
    """
    located = np.zeros(int(counts.sum()), np.int64)
    octets = np.frombuffer(data, np.uint8)
    rest = _Unlocated(np.append(0, content_ends[:-1]), np.cumsum(counts) - counts, counts).where(counts > 0)
    alone: list[_Unlocated] = []
    while len(rest.rows) >= _TOGETHER:
        runs, sizes = _locate_runs(located, words, rest, np.minimum(rest.counts, _LONGEST_RUN))
        rest = rest.after(runs, sizes)
        has_one_size = runs >= _RUN
        alone.append(rest.where(~has_one_size & (rest.counts > 0)))
        rest = rest.where(has_one_size & (rest.counts > 0))
    for batches in (*alone, rest):
        for at, row, count in zip(*(column.tolist() for column in batches), strict=True):
            with suppress(IndexError):  # damage leads out of the data
                _locate_in_batch(located[row : row + count], data, octets, at)
    return located


class _Unlocated(NamedTuple):
    """The records of batches that are not located: the position and the row of the first of each, and their number."""

    positions: I64
    rows: I64
    counts: I64

    def where(self, chosen: Flags) -> _Unlocated:
        """Return some of the batches."""
        return _Unlocated(self.positions[chosen], self.rows[chosen], self.counts[chosen])

    def after(self, records: I64, sizes: I64) -> _Unlocated:
        """Return the same after some records of each, which have one size."""
        return _Unlocated(self.positions + records * sizes, self.rows + records, self.counts - records)


def _locate_runs(located: I64, words: I64, rest: _Unlocated, limits: I64) -> tuple[I64, I64]:
    """Locate the next records of each batch that have the size of the first, up to `limits`; return their number and
    that size. A size of more than two bytes is that of none."""
    end = len(words) - 1 + WORD_BYTES - len(PADDING)
    positions = np.minimum(rest.positions, end)
    word = words[positions] & 0xFFFF
    low, high = word & 0xFF, word >> 8
    is_short = low < 0x80
    sizes = np.where(is_short, 1 + (low >> 1), ((high << 7) + low >> 1) - 62)
    counts = np.where(is_short | (high < 0x80), np.minimum(limits, (end - positions) // sizes), 0)
    numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(positions, counts) + numbers * np.repeat(sizes, counts)
    masks = np.where(is_short, 0xFF, 0xFFFF)
    differs = np.flatnonzero((words[places] ^ np.repeat(word, counts)) & np.repeat(masks, counts))
    runs = counts.copy()
    if len(differs):
        batches, firsts = np.unique(np.repeat(np.arange(len(counts)), counts)[differs], return_index=True)
        runs[batches] = numbers[differs[firsts]]
    equal = numbers < np.repeat(runs, counts)
    located[(np.repeat(rest.rows, counts) + numbers)[equal]] = places[equal]
    return runs, sizes


def _locate_in_batch(located: I64, data: bytes, octets: npt.NDArray[np.uint8], at: int) -> None:
    """Set the positions of records that follow each other from `at` on. Raises IndexError."""
    row = 0
    while row < len(located):
        size, count = _equal_sizes(data, octets, at, len(located) - row)
        if count >= _RUN:
            located[row : row + count] = np.arange(at, at + size * count, size)
            at += size * count
            row += count
            continue
        positions = []
        for _ in range(min(_LOOP, len(located) - row)):
            positions.append(at)
            low = data[at]
            if low < 0x80:
                at += 1 + (low >> 1)
                continue
            high = data[at + 1]
            if high < 0x80:
                at += ((high << 7) + low >> 1) - 62  # the size of both bytes, less the mark in the first
                continue
            length, at = read_varint(data, at)
            at += min(max(length, 0), len(data))
        located[row : row + len(positions)] = positions
        row += len(positions)


def _equal_sizes(data: bytes, octets: npt.NDArray[np.uint8], at: int, count: int) -> tuple[int, int]:
    """Return the size of the record at `at`, and the number of records from it on, up to `count`, that have it.

    A size of more than two bytes is that of no other. Raises IndexError.
    """
    low, high = data[at], data[at + 1]
    if low >= 0x80 and high >= 0x80:
        return 0, 1
    size = 1 + (low >> 1) if low < 0x80 else ((high << 7) + low >> 1) - 62
    end = at + size * min(count, (len(data) - at - 1) // size)
    equal = octets[at:end:size] == low
    if low >= 0x80:
        equal &= octets[at + 1 : end + 1 : size] == high
    differing = int(np.argmin(equal)) if len(equal) else 0
    return size, differing if len(equal) and not equal[differing] else len(equal)


class _Headers(NamedTuple):
    """The headers of records. `ends`: the position after those of each record, shape (records,)."""

    ends: I64
    located: LocatedHeaders


def _locate_headers(words: I64, positions: I64, limits: I64, counts: I64) -> _Headers:
    """Locate the headers that begin at `positions`, `counts` of each record; the k-th of all records in one step."""
    ends = positions.copy()
    records = np.flatnonzero(counts)
    steps: list[tuple[I64, ...]] = []
    at = positions[records]
    while len(records):
        limit = limits[records]
        key_sizes, keys = read_varints(words, np.minimum(at, limit))
        value_sizes, values = read_varints(words, np.minimum(keys + np.clip(key_sizes, 0, limit), limit))
        at = values + np.clip(value_sizes, 0, limit)
        fits = (key_sizes >= 0) & (value_sizes >= -1) & (at <= limit)
        ends[records] = np.where(fits, at, -1)
        steps.append((records, keys, key_sizes, values, value_sizes))
        remaining = fits & (counts[records] > len(steps))
        records, at = records[remaining], at[remaining]
    if not steps:
        return _Headers(ends, LocatedHeaders(*(np.empty(0, np.int64) for _ in range(5))))
    columns = [np.concatenate(column) for column in zip(*steps, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return _Headers(ends, LocatedHeaders(*(column[order] for column in columns)))
