"""Records of Kafka as entries of the log: batches of Pulsar's encoding.

    record        offset       timestamp                   key, value, headers
    message       sequence id  event time                  key, payload, properties
    entry         highest id   publish time: the latest    up to ENTRY_MESSAGES messages, ENTRY_BYTES bytes

Invariant: the sequence ids of an entry are those of its messages, and the highest one is stated, so the last entry of a
log says up to which offset the log has the source. An empty value has the form of a deletion (P5): the caller decides
whether it may become one. Records become messages by whole columns (plain_messages.py). One with headers, or with a key
that is not UTF-8, costs its block of records that: they are encoded one by one (rebuild.py).

Raises nothing. Must not know: partitions, appends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage.entries.encode import encode_entry
from storage.entries.plain_messages import encode_plain_messages
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.entries.rebuild import EntryBuilder
from storage.kafka.located_records import LocatedRecords
from storage.ledger import rows
from storage.slices import I64

ENTRY_MESSAGES = 1_000
ENTRY_BYTES = 512 << 10
MOST_ENTRY_BYTES = 1 << 31
_ENTRIES_AT_ONCE = 60
"""Entries of one table: with more, rebuild.py would leave its fast way."""


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """An entry that holds Kafka records: its bytes, the Kafka offsets of its first and last record, and the number of
    records."""

    data: bytes
    first_offset: int
    last_offset: int
    messages: int


def to_entries(
    records: LocatedRecords, producer: str, now_ms: int, max_bytes: int = MOST_ENTRY_BYTES
) -> Iterator[RecordEntry]:
    """Encode Kafka records (at least one) as entries, and yield them in order. None is larger than `max_bytes` but for
    one of a single record.

    `producer`: the name of their producer here. `now_ms`: the publish time of records without a timestamp, and the
    latest one of any entry: a wrong clock at the source must not stop a mirror.
    """
    at = 0
    for entry in _encode_entries(records, producer, now_ms, min(ENTRY_BYTES, max_bytes)):
        if len(entry.data) <= max_bytes or entry.messages == 1:
            yield entry
        else:  # its metadata make it larger
            middle = at + entry.messages // 2
            for start, end in ((at, middle), (middle, at + entry.messages)):
                yield from to_entries(records.part(start, end), producer, now_ms, max_bytes)
        at += entry.messages


def _encode_entries(records: LocatedRecords, producer: str, now_ms: int, entry_bytes: int) -> Iterator[RecordEntry]:
    ends = _entry_ends(_record_sizes(records), entry_bytes)
    for first in range(0, len(ends), _ENTRIES_AT_ONCE):
        start = 0 if not first else int(ends[first - 1])
        some = ends[first : first + _ENTRIES_AT_ONCE]
        part = records.part(start, int(some[-1]))
        encode = _encode_row_by_row if len(part.headers.rows) else _encode_by_columns
        yield from encode(part, some - start, producer, now_ms)


def _record_sizes(records: LocatedRecords) -> I64:
    """Return the size of each record: the bytes of its key, value and headers."""
    sizes = np.maximum(records.keys.sizes, 0) + np.maximum(records.values.sizes, 0)
    headers = records.headers
    if len(headers.rows):
        own = headers.name_sizes + np.maximum(headers.value_sizes, 0)
        sizes += np.bincount(headers.rows, own, records.count).astype(np.int64)
    return sizes


def _entry_ends(sizes: I64, entry_bytes: int) -> I64:
    """Divide records into entries by bytes and number; return the row after the last record of each entry."""
    bytes_before = np.append(0, np.cumsum(sizes))
    ends, start = [], 0
    while start < len(sizes):
        fitting = int(np.searchsorted(bytes_before, bytes_before[start] + entry_bytes, "right")) - 1
        start = max(start + 1, min(fitting, start + ENTRY_MESSAGES))
        ends.append(start)
    return np.array(ends, np.int64)


def _encode_by_columns(records: LocatedRecords, ends: I64, producer: str, now_ms: int) -> Iterator[RecordEntry]:
    """Yield the entries of records without headers, encoded by whole columns. `ends`: the row after the last record of
    each entry."""
    keys, values = records.keys_and_values()
    try:
        keys = keys.cast(pa.string())
    except pa.ArrowInvalid:
        yield from _encode_row_by_row(records, ends, producer, now_ms)
        return
    starts = np.append(0, ends[:-1])
    offsets, timestamps = records.offsets, records.timestamps
    latest = _publish_times(timestamps, starts, now_ms)
    event_times = np.maximum(timestamps, 0) if (timestamps >= 0).any() else None
    at, data = encode_plain_messages(keys, values, event_times, offsets)
    numbers = starts, ends, at[starts], at[ends], offsets[starts], offsets[ends - 1], latest
    columns = [*(column.tolist() for column in numbers), keys.take(pa.array(starts)).to_pylist()]
    for start, end, first_byte, end_byte, first, last, time, key in zip(*columns, strict=True):
        metadata = MessageMetadata(
            producer_name=producer,
            sequence_id=first,
            publish_time=time,
            highest_sequence_id=last,
            num_messages_in_batch=end - start,
            uncompressed_size=end_byte - first_byte,
            partition_key=None if key is None else key.encode(),
        )
        yield RecordEntry(encode_entry(metadata, data[first_byte:end_byte]), first, last, end - start)


def _publish_times(timestamps: I64, starts: I64, now_ms: int) -> I64:
    """Return the publish time (ms) of each entry: the latest timestamp of its records, at most `now_ms`. `starts`: the
    first row of each entry."""
    times = np.where(timestamps < 0, now_ms, timestamps)
    return np.minimum(np.maximum.reduceat(times, starts), now_ms)


def _encode_row_by_row(located: LocatedRecords, ends: I64, producer: str, now_ms: int) -> Iterator[RecordEntry]:
    records = located.table()
    starts = np.append(0, ends[:-1])
    counts = ends - starts
    entry_of = np.repeat(np.arange(len(ends)), counts)
    offsets, latest = located.offsets, _publish_times(located.timestamps, starts, now_ms)
    keys = records.column("key")
    values = {
        "offset": pa.array(np.arange(len(records))),
        "entry_id": pa.array(entry_of),
        "batch_index": pa.array((np.arange(len(records)) - starts[entry_of]).astype(np.int32)),
        "batch_size": pa.array(counts[entry_of].astype(np.int32)),
        "key": keys,
        "key_base64": _non_utf8_mask(keys),
        "payload": records.column("value"),
        "publish_time": pa.array(latest[entry_of]),
        "event_time": records.column("timestamp"),
        "sequence_id": records.column("offset"),
        "properties": records.column("properties"),
        "producer": rows.constant_column(producer, "producer", len(records)),
        "metadata": pa.array(
            [_highest_sequence_id_metadata(last) for last in offsets[ends - 1].tolist()], pa.binary()
        ).take(pa.array(entry_of)),
    }
    defaults = {"ledger_id": 0, "codec": 0, "slot": 0}
    columns = [
        values[name] if name in values else rows.constant_column(defaults.get(name), name, len(records))
        for name in rows.SCHEMA.names
    ]
    table = pa.table([pa.chunked_array([column]) if isinstance(column, pa.Array) else column for column in columns],
                     schema=rows.SCHEMA)  # fmt: skip
    builder = EntryBuilder()
    built = [*builder.add(table), *builder.remaining()]
    for entry, start, end in zip(built, starts.tolist(), ends.tolist(), strict=True):
        yield RecordEntry(entry.data, int(offsets[start]), int(offsets[end - 1]), end - start)


def _highest_sequence_id_metadata(offset: int) -> bytes:
    """Return the encoded metadata that states the highest sequence id of an entry, which is a Kafka offset."""
    return MessageMetadata(highest_sequence_id=offset).SerializePartialToString()


def _non_utf8_mask(keys: pa.ChunkedArray) -> pa.Array:
    """Return a mask of the keys that are not UTF-8, and so are sent in base64."""
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key is not None and not _is_utf8(key) for key in keys.to_pylist()])
    return rows.constant_column(False, "key_base64", len(keys))


def _is_utf8(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
