"""Kafka's record batches, written and read record by record, by its specification alone: an oracle for storage/kafka.

Nothing here comes from the product but CRC32C.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from storage.checksums import crc32c

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
XERIAL = 12
"""Snappy in the frames of Java's library; a codec of this module alone."""
APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
ABORT, COMMIT = 0, 1


@dataclass(frozen=True)
class Record:
    """A record. `timestamp` -1: none."""

    offset: int
    timestamp: int = 1_700_000_000_000
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: Sequence[tuple[bytes, bytes | None]] = ()


@dataclass(frozen=True)
class Batch:
    """A batch of magic 2, or the messages of one wrapper. `last_offset` None: that of the last record."""

    records: Sequence[Record]
    codec: int = NONE
    attributes: int = 0
    producer_id: int = -1
    first_offset: int | None = None
    last_offset: int | None = None
    append_time: int = 1_800_000_000_000
    base_timestamp: int | None = None


def encode(batch: Batch) -> bytes:
    """The bytes of a batch of magic 2."""
    records = batch.records
    first = records[0].offset if batch.first_offset is None and records else batch.first_offset or 0
    last = records[-1].offset if batch.last_offset is None and records else batch.last_offset or first
    base = batch.base_timestamp if batch.base_timestamp is not None else records[0].timestamp if records else -1
    largest = batch.append_time if batch.attributes & APPEND_TIME else max((r.timestamp for r in records), default=-1)
    body = compress(batch.codec, b"".join(_record(record, first, base) for record in records))
    attributes = (SNAPPY if batch.codec == XERIAL else batch.codec) | batch.attributes
    numbers = (attributes, last - first, base, largest, batch.producer_id, 0, 0, len(records))
    covered = struct.pack(">hiqqqhii", *numbers) + body
    return struct.pack(">qiibI", first, 9 + len(covered), 0, 2, crc32c(covered)) + covered


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    """A control batch that ends a transaction."""
    record = Record(offset, 5, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    return encode(Batch([record], attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id))


def _record(record: Record, first: int, base: int) -> bytes:
    body = b"\x00" + _varint(record.timestamp - base) + _varint(record.offset - first)
    for part in (record.key, record.value):
        body += _varint(-1) if part is None else _varint(len(part)) + part
    body += _varint(len(record.headers))
    for name, value in record.headers:
        body += _varint(len(name)) + name + (_varint(-1) if value is None else _varint(len(value)) + value)
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    unsigned = (number << 1) ^ (number >> 63)
    unsigned &= (1 << 64) - 1
    result = bytearray()
    while unsigned >= 0x80:
        result.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    result.append(unsigned)
    return bytes(result)


def compress(codec: int, data: bytes) -> bytes:
    """`data` as a producer compresses it."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return gzip.compress(data)
    if codec == SNAPPY:
        return bytes(pa.Codec("snappy").compress(data, asbytes=True))
    if codec == XERIAL:
        frames = [compress(SNAPPY, data[at : at + 100]) for at in range(0, len(data), 100)]
        return (
            b"\x82SNAPPY\x00"
            + struct.pack(">ii", 1, 1)
            + b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
        )
    return bytes(pa.Codec("lz4" if codec == LZ4 else "zstd").compress(data, asbytes=True))


def legacy_message(magic: int, record: Record, attributes: int = 0) -> bytes:
    """The bytes of a message of magic 0 or 1."""
    covered = struct.pack(">bb", magic, attributes)
    if magic == 1:
        covered += struct.pack(">q", record.timestamp)
    for part in (record.key, record.value):
        covered += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    return struct.pack(">qiI", record.offset, 4 + len(covered), zlib.crc32(covered)) + covered


def legacy_wrapper(magic: int, batch: Batch) -> bytes:
    """The bytes of a wrapper of magic 0 or 1 with the records of a batch."""
    shift = batch.records[0].offset if magic == 1 else 0
    inside = b"".join(
        legacy_message(magic, Record(r.offset - shift, r.timestamp, r.key, r.value)) for r in batch.records
    )
    timestamp = batch.append_time if batch.attributes & APPEND_TIME else max(r.timestamp for r in batch.records)
    codec = SNAPPY if batch.codec == XERIAL else batch.codec
    outer = Record(batch.records[-1].offset, timestamp, None, compress(batch.codec, inside))
    return legacy_message(magic, outer, codec | batch.attributes)


def expected(batch: Batch, magic: int = 2) -> list[tuple[Any, ...]]:
    """The rows that a consumer gets of a batch: (offset, timestamp, key, value, headers) of each record."""
    rows: list[tuple[Any, ...]] = []
    for record in batch.records:
        timestamp: int | None = batch.append_time if batch.attributes & APPEND_TIME else record.timestamp
        if magic == 0 or (timestamp is not None and timestamp < 0):
            timestamp = None
        rows.append((record.offset, timestamp, record.key, record.value, list(record.headers)))
    return rows


def read_slowly(data: bytes) -> Iterator[tuple[Any, ...]]:
    """The records of whole, uncompressed batches of magic 2, one byte after the other."""
    at = 0
    while at < len(data):
        first, length = struct.unpack_from(">qi", data, at)
        attributes, _, base, largest = struct.unpack_from(">hiqq", data, at + 21)
        (count,) = struct.unpack_from(">i", data, at + 57)
        place = at + 61
        for _ in range(count):
            _, place = _read_varint(data, place)
            delta, place = _read_varint(data, place + 1)
            offset, place = _read_varint(data, place)
            parts = []
            for _ in range(2):
                size, place = _read_varint(data, place)
                parts.append(None if size < 0 else data[place : place + size])
                place += max(size, 0)
            headers, (number, place) = [], _read_varint(data, place)
            for _ in range(number):
                size, place = _read_varint(data, place)
                name = data[place : place + size]
                place += size
                size, place = _read_varint(data, place)
                headers.append((name, None if size < 0 else data[place : place + size]))
                place += max(size, 0)
            timestamp = largest if attributes & APPEND_TIME else base + delta
            yield first + offset, timestamp if timestamp >= 0 else None, *parts, headers
        at += 12 + length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at


def text_properties(headers: Sequence[tuple[bytes, bytes | None]]) -> list[tuple[str, str]] | None:
    """Headers whose names differ and whose values are texts, as properties."""
    return [(name.decode(), (value or b"").decode()) for name, value in headers] or None
