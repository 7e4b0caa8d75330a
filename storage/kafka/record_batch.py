"""Record batches of Kafka: where each begins and ends, its header, its checksum.

    magic 2       offset, size, epoch, magic, CRC32C, attributes, …, count, records      (KIP-98)
    magic 0, 1    offset, size, CRC32, magic, attributes, [timestamp], key, value        (a message, or a wrapper)

Numbers are big-endian. All three have offset, size and magic at the same places. A message of magic 0 or 1 counts as a
batch; a wrapper holds compressed messages, and its offset is that of the last of them.

Invariant: a batch is yielded only if it is whole and its checksum is that of its bytes. Positions count from the first
byte of the file or answer, so an error names the place. Raises InvalidRecord and nothing else, for any bytes.

Must not know: files, topics, the meaning of a transaction. Sources: Kafka's DefaultRecordBatch, LegacyRecord.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from storage.checksums import crc32c
from storage.errors import InvalidRecord

PREFIX_BYTES = 17
"""Offset, size, four bytes and the magic: what every batch begins with."""
NO_PRODUCER = -1
DAMAGED_REMEDY = (
    "copy it again from the broker, or from another replica; if it is damaged there, too, leave out the files from "
    "this one on"
)

_SIZE = Struct(">i")
_V2 = Struct(">qiibIhiqqqhii")
_LEGACY = Struct(">qiIbb")
_SIZED_FROM = 12
"""The size of a batch counts the bytes from here on."""
_CRC_FROM = {0: 16, 1: 16, 2: 21}
"""The first byte that a checksum covers, by magic."""
_LEAST_BYTES = {0: 26, 1: 34, 2: _V2.size}
"""The bytes of a batch without a record, or of a message without key and value, by magic."""
_MOST_BYTES = 1 << 30
"""A batch is not larger: a size beyond it is damage."""
_MOST_OFFSET = 1 << 62
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20


class RecordBatch(NamedTuple):
    """A whole Kafka record batch. `position`: of its first byte; `data`: all its bytes.

    `first_offset` of a wrapper (magic 0 and 1) is not known, and is `last_offset`. `record_count`: -1 for magic 0 and
    1. `base_timestamp`, `max_timestamp`: of magic 2, else 0. `leader_epoch`: of the broker that appended it; -1: not
    known.
    """

    position: int
    data: memoryview
    magic: int
    first_offset: int
    last_offset: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    record_count: int
    leader_epoch: int = -1

    @property
    def end_position(self) -> int:
        """The position after the batch's last byte."""
        return self.position + len(self.data)

    @property
    def codec(self) -> int:
        """The compression of the batch's records, by Kafka's numbers."""
        return self.attributes & _CODEC

    @property
    def has_append_time(self) -> bool:
        """True if the batch's largest timestamp, set by the broker, is that of all its records (LogAppendTime)."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return self.magic >= 2 and bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True for a control batch, which a broker wrote: the end of a transaction, and others that no consumer
        gets."""
        return self.magic >= 2 and bool(self.attributes & _CONTROL)

    @property
    def records(self) -> memoryview:
        """The bytes of the batch's records, possibly compressed. For magic 2."""
        return self.data[_V2.size :]


def batch_bytes(data: bytes | memoryview, data_position: int, at: int = 0) -> int | None:
    """Return the size of the batch that begins at `at` in `data`; None: `data` ends before its magic.

    `data_position`: of `data` in its file or answer, for errors. Raises InvalidRecord for a size or a magic that no
    batch has.
    """
    if at + PREFIX_BYTES > len(data):
        return None
    size: int = _SIZED_FROM + _SIZE.unpack_from(data, at + 8)[0]
    magic = data[at + 16]
    if magic not in _LEAST_BYTES:
        raise _damaged_batch_error_at(data_position + at, f"has the format {magic}, and 0, 1 and 2 are known")
    if not _LEAST_BYTES[magic] <= size <= _MOST_BYTES:
        raise _damaged_batch_error_at(data_position + at, f"claims {size} bytes")
    return size


def is_preallocated(data: bytes | memoryview, at: int = 0) -> bool:
    """Return whether there are zeros at `at` instead of a batch: space that a broker has reserved and not written
    yet."""
    start = data[at : at + PREFIX_BYTES]
    return bool(start) and not any(start)


def read_batches(data: bytes | memoryview, data_position: int = 0, *, verify: bool = True) -> Iterator[RecordBatch]:
    """Yield the whole batches in `data`, up to one that ends after it, or to zeros.

    The caller knows if more must follow. `data_position`: of `data` in its file or answer. `verify`: compare checksums.
    Raises InvalidRecord.
    """
    view, at = memoryview(data), 0
    while not is_preallocated(data, at):
        size = batch_bytes(data, data_position, at)
        if size is None or at + size > len(data):
            return
        batch = _parse_batch(view[at : at + size], data_position + at)
        if verify:
            _verify_checksum(batch)
        yield batch
        at += size


def _parse_batch(data: memoryview, position: int) -> RecordBatch:
    if data[16] < 2:
        offset, _, _, magic, attributes = _LEGACY.unpack_from(data)
        if not 0 <= offset <= _MOST_OFFSET:
            raise _damaged_batch_error_at(position, f"claims the offset {offset}")
        return RecordBatch(position, data, magic, offset, offset, attributes, 0, 0, NO_PRODUCER, -1)
    header = _V2.unpack_from(data)
    first_offset, _, leader_epoch, magic, _, attributes, last_delta, base_timestamp, max_timestamp, producer_id = (
        header[:10]
    )
    count = header[12]
    if last_delta < 0 or not 0 <= count <= last_delta + 1 or not 0 <= first_offset <= _MOST_OFFSET:
        raise _damaged_batch_error_at(
            position, f"claims {count} records from offset {first_offset} to {first_offset} + {last_delta}"
        )
    last_offset = first_offset + last_delta
    return RecordBatch(
        position,
        data,
        magic,
        first_offset,
        last_offset,
        attributes,
        base_timestamp,
        max_timestamp,
        producer_id,
        count,
        leader_epoch,
    )


def _verify_checksum(batch: RecordBatch) -> None:
    covered = batch.data[_CRC_FROM[batch.magic] :]
    stated = int.from_bytes(batch.data[17:21] if batch.magic >= 2 else batch.data[12:16], "big")
    actual = crc32c(covered) if batch.magic >= 2 else zlib.crc32(covered)
    if actual != stated:
        raise damaged_batch_error(batch, f"has the checksum {actual:08x}, and states {stated:08x}")


def damaged_batch_error(batch: RecordBatch, reason: str) -> InvalidRecord:
    """Return the error about a damaged batch. `reason`: the defect, as a predicate."""
    return InvalidRecord(
        f"the batch at position {batch.position}, offset {batch.first_offset}, {reason}", DAMAGED_REMEDY
    )


def _damaged_batch_error_at(position: int, reason: str) -> InvalidRecord:
    return InvalidRecord(f"the batch at position {position} {reason}", DAMAGED_REMEDY)
