"""Records of batches, located side by side: an array operation for each field, as `storage/entries/bulk_batch.py` does.

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
import pyarrow as pa

from storage.kafka.compression import MAX_BYTES, Undecompressable, decompress
from storage.kafka.header_properties import LocatedHeaders
from storage.kafka.located_records import NO_HEADERS, LocatedRecords, records_from_rows
from storage.kafka.message_set import read_message_set
from storage.kafka.record_batch import RecordBatch, damaged_batch_error
from storage.slices import I64, Flags, Spans
from storage.varints import PADDING, WORD_BYTES, overlapping_words, read_varint, read_varints

_RUN, _LOOP = 16, 1_024
"""The least records of one size that are located together; the records whose positions a loop holds."""
_TOGETHER, _LONGEST_RUN = 8, 256
"""The least batches of which records are located together, and the most records of each in a round."""
_SMALL = 400
"""The average bytes of records up to which a search through all of them costs less than a loop."""
_MOST_ZEROS = 8
"""The zeros for each record up to which the search costs less than a loop: values may consist of them."""
_LEAST_LENGTH = 6
"""The least length that a record states: a byte for each of its fields."""
BLOCK_BYTES = 2 << 20
"""Uncompressed bytes of batches that are decoded together: their arrays stay in a core's cache."""


def decode_batches(batches: Iterable[RecordBatch], max_bytes: int = MAX_BYTES) -> Iterator[pa.Table]:
    """Decode the records of batches, and yield them as tables (located_records.SCHEMA); see `locate_batches`."""
    return (records.table() for records in locate_batches(batches, max_bytes))


def locate_batches(batches: Iterable[RecordBatch], max_bytes: int = MAX_BYTES) -> Iterator[LocatedRecords]:
    """Decompress batches and locate the fields of their records; yield the records in order, some batches at a time, at
    least one record each time.

    `max_bytes`: of a batch of magic 2, uncompressed. The caller leaves out control batches. Raises InvalidRecord.
    """
    block: list[RecordBatch] = []
    contents: list[bytes | memoryview] = []
    size = 0
    for batch in batches:
        if batch.magic < 2:
            if block:
                yield _locate_block(block, contents)
                block, contents, size = [], [], 0
            yield records_from_rows(read_message_set(batch))
            continue
        content = _decompress_batch(batch, max_bytes)
        if len(content) < (1 + _LEAST_LENGTH) * batch.record_count:
            raise damaged_batch_error(batch, f"claims {batch.record_count} records in {len(content)} bytes")
        if block and size + len(content) > BLOCK_BYTES:
            yield _locate_block(block, contents)
            block, contents, size = [], [], 0
        if batch.record_count:
            block.append(batch)
            contents.append(content)
            size += len(content)
    if block:
        yield _locate_block(block, contents)


def _decompress_batch(batch: RecordBatch, max_bytes: int) -> bytes | memoryview:
    try:
        return memoryview(decompress(batch.codec, batch.records, max_bytes=max_bytes))
    except Undecompressable as error:
        raise damaged_batch_error(batch, f"cannot be decompressed: {error}") from error


def _locate_block(batches: Sequence[RecordBatch], contents: Sequence[bytes | memoryview]) -> LocatedRecords:
    """Locate the fields of all records of some batches of magic 2. `contents`: the uncompressed records of each batch.
    Raises InvalidRecord."""
    data = b"".join([*contents, PADDING])
    end = len(data) - len(PADDING)
    words = overlapping_words(data)
    counts = np.fromiter((batch.record_count for batch in batches), np.int64, len(batches))
    content_ends = np.cumsum(np.fromiter((len(content) for content in contents), np.int64, len(contents)))

    def check(fits: Flags) -> None:
        """Raise InvalidRecord, naming the batch, unless every record fits. `fits`: a mask of the records."""
        if not fits.all():
            number = int(np.searchsorted(np.cumsum(counts), int(np.argmin(fits)), "right"))
            raise damaged_batch_error(batches[number], "has records that are not where it says")

    located = _locate_records(data, words, content_ends, counts)
    lengths, at = read_varints(words, np.minimum(located, end))
    check((lengths >= 0) & (lengths <= end))
    ends = at + lengths
    following = np.append(located[1:], 0)
    following[np.cumsum(counts) - 1] = content_ends
    check((ends == following) & (at < ends))
    timestamp_deltas, at = read_varints(words, at + 1)
    check(at < ends)
    offset_deltas, at = read_varints(words, at)
    check(at < ends)
    key_sizes, keys = read_varints(words, at)
    check((key_sizes >= -1) & (key_sizes < ends - keys))
    value_sizes, values = read_varints(words, keys + np.maximum(key_sizes, 0))
    check((value_sizes >= -1) & (value_sizes < ends - values))
    header_counts, at = read_varints(words, values + np.maximum(value_sizes, 0))
    check((header_counts >= 0) & (at <= ends))
    headers = NO_HEADERS
    if header_counts.any():
        at, headers = _locate_headers(words, at, ends, header_counts)
    check(at == ends)
    first_offsets = _repeat_batch_attribute(batches, "first_offset", counts)
    check(
        (offset_deltas >= 0)
        & (offset_deltas <= _repeat_batch_attribute(batches, "last_offset", counts) - first_offsets)
    )
    offsets = first_offsets + offset_deltas
    check(np.append(True, offsets[1:] > offsets[:-1]))
    timestamps = _repeat_batch_attribute(batches, "base_timestamp", counts) + timestamp_deltas
    if any(batch.has_append_time for batch in batches):
        has_append_time = _repeat_batch_attribute(batches, "has_append_time", counts) != 0
        timestamps = np.where(has_append_time, _repeat_batch_attribute(batches, "max_timestamp", counts), timestamps)
    return LocatedRecords(data, end, offsets, timestamps, Spans(keys, key_sizes), Spans(values, value_sizes), headers)


def _repeat_batch_attribute(batches: Sequence[RecordBatch], name: str, counts: I64) -> I64:
    """Return an attribute of each batch, as a number, once for each of its records."""
    return np.repeat(np.fromiter((getattr(batch, name) for batch in batches), np.int64, len(batches)), counts)


def _locate_records(data: bytes, words: I64, content_ends: I64, counts: I64) -> I64:
    """Return the position of each record; of damaged ones, any positions. Shape (records,).

    `content_ends`, `counts`: the end and the number of the records of each batch. Each position depends on the one
    before it. In each round the next records that have one size are located in many batches together: numbers in
    records grow by a byte a few times in a batch. Small records of many sizes are located by the zeros around them. The
    rest are located one by one.
    """
    located = np.zeros(int(counts.sum()), np.int64)
    begins, rows = np.append(0, content_ends[:-1]), np.cumsum(counts) - counts
    rest = _UnlocatedRecords(begins, content_ends, rows, counts).select_batches(counts > 0)
    alone: list[_UnlocatedRecords] = []
    while len(rest.rows) >= _TOGETHER:
        runs, sizes = _locate_equal_sizes(located, words, rest, np.minimum(rest.counts, _LONGEST_RUN))
        rest = rest.without_first(runs, sizes)
        has_one_size = runs >= _RUN
        alone.append(rest.select_batches(~has_one_size & (rest.counts > 0)))
        rest = rest.select_batches(has_one_size & (rest.counts > 0))
    rest = _UnlocatedRecords(*(np.concatenate(columns) for columns in zip(*alone, rest, strict=True)))
    if int((rest.ends - rest.begins).sum()) < _SMALL * int(rest.counts.sum()):
        rest = _locate_by_zeros(located, data, words, rest)
    for at, _, row, count in zip(*(column.tolist() for column in rest), strict=True):
        with suppress(IndexError):  # damage leads out of the data
            _locate_in_batch(located[row : row + count], data, at)
    return located


class _UnlocatedRecords(NamedTuple):
    """The records of batches that are not located yet: for each batch the positions where they begin and end, the row
    of the first one, and their number."""

    begins: I64
    ends: I64
    rows: I64
    counts: I64

    def select_batches(self, chosen: Flags) -> _UnlocatedRecords:
        """Return the batches of a mask."""
        return _UnlocatedRecords(*(column[chosen] for column in self))

    def without_first(self, records: I64, sizes: I64) -> _UnlocatedRecords:
        """Return all batches without their first records. `records`: how many of each batch; `sizes`: the bytes of each
        of them."""
        return _UnlocatedRecords(self.begins + records * sizes, self.ends, self.rows + records, self.counts - records)


class _EqualSizes(NamedTuple):
    """The records of each batch that were located because they have one size: their number, and that size in bytes."""

    counts: I64
    sizes: I64


def _locate_equal_sizes(located: I64, words: I64, rest: _UnlocatedRecords, limits: I64) -> _EqualSizes:
    """Locate the next records of each batch that have the size of its first one, up to `limits`; write their positions
    to `located`. Return their number and that size.

    A record whose size takes more than two bytes is not located.
    """
    end = len(words) - 1 + WORD_BYTES - len(PADDING)
    positions = np.minimum(rest.begins, end)
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
    return _EqualSizes(runs, sizes)


def _locate_by_zeros(located: I64, data: bytes, words: I64, rest: _UnlocatedRecords) -> _UnlocatedRecords:
    """Locate records by the zeros between them: the number of headers of a record, and the attributes of the next;
    write their positions to `located`.

    Return the batches that are not located: those with headers, or with other bytes that look like the start of a
    record; all, if there are many zeros.
    """
    octets = np.frombuffer(data, np.uint8, len(data) - len(PADDING))
    begins = (octets[:-1] == 0) & (octets[1:] != 0)  # no length begins with a zero
    if np.count_nonzero(begins) > _MOST_ZEROS * int(rest.counts.sum()):
        return rest
    at = np.append(0, np.flatnonzero(begins) + 1)
    word = words[at]
    more = word >> 7 & 1
    more += word >> 15 & more
    at = at[(word >> 8 * (more + 1) & 0xFF) == 0]
    lengths, after = read_varints(words, at)
    is_record = lengths >= _LEAST_LENGTH
    at, after = at[is_record], (after + lengths)[is_record]
    firsts = np.searchsorted(at, rest.begins)
    fits = np.searchsorted(at, rest.ends) - firsts == rest.counts
    if not fits.any():
        return rest
    counts = rest.counts[fits]
    batch_rows = np.cumsum(counts) - counts
    numbers = np.arange(int(counts.sum())) + np.repeat(firsts[fits] - batch_rows, counts)
    following = np.append(at[numbers[1:]], 0)
    following[batch_rows + counts - 1] = rest.ends[fits]
    is_chain = np.logical_and.reduceat(after[numbers] == following, batch_rows)
    is_chain &= at[firsts[fits]] == rest.begins[fits]
    chosen = np.repeat(is_chain, counts)
    rows = np.arange(len(numbers)) + np.repeat(rest.rows[fits] - batch_rows, counts)
    located[rows[chosen]] = at[numbers[chosen]]
    fits[fits] = is_chain
    return rest.select_batches(~fits)


def _locate_in_batch(located: I64, data: bytes, at: int) -> None:
    """Write the positions of the records that follow each other from `at` on to `located`, in a loop. Raises IndexError
    if they lead out of the data."""
    for row in range(0, len(located), _LOOP):
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


class _HeaderLocations(NamedTuple):
    """The located headers of records. `ends`: the position after the headers of each record, shape (records,); -1: they
    do not fit."""

    ends: I64
    located: LocatedHeaders


def _locate_headers(words: I64, positions: I64, limits: I64, counts: I64) -> _HeaderLocations:
    """Locate the headers that begin at `positions`, `counts` of each record, and return them; the k-th headers of all
    records are located in one step."""
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
        return _HeaderLocations(ends, NO_HEADERS)
    columns = [np.concatenate(column) for column in zip(*steps, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return _HeaderLocations(ends, LocatedHeaders(*(column[order] for column in columns)))
