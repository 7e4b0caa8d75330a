"""Messages of magic 0 and 1, which Kafka's brokers before 0.11 wrote: single, or compressed together in a wrapper.

The messages of a wrapper have offsets of their own (magic 0), or count from 0 to the wrapper's offset (magic 1). With
the broker's time (LogAppendTime, magic 1) the wrapper's timestamp is that of each. Magic 0 has no timestamps.

Message by message: no topic of today is written in this format. Raises InvalidRecord and nothing else, for any bytes.
Must not know: files, topics. Sources: Kafka's AbstractLegacyRecordBatch, KIP-31, KIP-32.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from storage.errors import InvalidRecord
from storage.kafka.compression import Undecompressable, decompress
from storage.kafka.record_batch import RecordBatch, damaged_batch_error, read_batches

_I64 = Struct(">q")
_I32 = Struct(">i")
_NO_TIMESTAMP = -1


class LegacyMessage(NamedTuple):
    """A Kafka message of magic 0 or 1. `timestamp` None: it has none."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None


class _MessageFields(NamedTuple):
    timestamp: int
    key: bytes | None
    value: bytes | None


def read_message_set(batch: RecordBatch) -> list[LegacyMessage]:
    """Return the messages in a batch of magic 0 or 1: the one message that the batch is, or all messages of a
    compressed wrapper."""
    fields = _parse_message(batch)
    if not batch.codec:
        return [LegacyMessage(batch.last_offset, _timestamp_or_none(fields.timestamp), fields.key, fields.value)]
    messages = list(_read_wrapped_messages(batch, fields.value or b""))
    if not messages:
        raise damaged_batch_error(batch, "is a wrapper without messages")
    shift = batch.last_offset - messages[-1][0].last_offset if batch.magic == 1 else 0
    shared = _timestamp_or_none(fields.timestamp) if batch.has_append_time and batch.magic == 1 else None
    result = []
    for message, own in messages:
        timestamp = _timestamp_or_none(own.timestamp) if shared is None else shared
        result.append(LegacyMessage(message.last_offset + shift, timestamp, own.key, own.value))
    offsets = [message.offset for message in result]
    if offsets[-1] != batch.last_offset or sorted(set(offsets)) != offsets:
        raise damaged_batch_error(batch, "holds messages whose offsets do not ascend to its own")
    return result


def _read_wrapped_messages(batch: RecordBatch, value: bytes) -> Iterator[tuple[RecordBatch, _MessageFields]]:
    try:
        data = bytes(decompress(batch.codec, value, magic=batch.magic))
    except Undecompressable as error:
        raise damaged_batch_error(batch, f"cannot be decompressed: {error}") from error
    end = 0
    try:
        for message in read_batches(data):
            if message.magic != batch.magic or message.codec:
                raise damaged_batch_error(batch, "holds a message of another format")
            yield message, _parse_message(message)
            end = message.end_position
    except InvalidRecord as error:
        raise damaged_batch_error(batch, f"holds a damaged message: {error.message}") from error
    if end != len(data):
        raise damaged_batch_error(batch, f"ends inside a message: {len(data) - end} bytes are left")


def _parse_message(batch: RecordBatch) -> _MessageFields:
    data, at, timestamp = bytes(batch.data), 18, _NO_TIMESTAMP
    if batch.magic == 1:
        timestamp, at = _I64.unpack_from(data, at)[0], at + 8
    key, at = _read_sized_bytes(batch, data, at)
    value, at = _read_sized_bytes(batch, data, at)
    if at != len(data):
        raise damaged_batch_error(batch, "has a key or a value that ends elsewhere")
    return _MessageFields(timestamp, key, value)


def _read_sized_bytes(batch: RecordBatch, data: bytes, at: int) -> tuple[bytes | None, int]:
    """Read a size and as many bytes at the position `at`; return the bytes, None for the size -1, and the position
    after them."""
    if at + 4 > len(data):
        raise damaged_batch_error(batch, "ends before its key and value")
    size = _I32.unpack_from(data, at)[0]
    if size < 0:
        return None, at + 4
    return data[at + 4 : at + 4 + size], at + 4 + size


def _timestamp_or_none(value: int) -> int | None:
    return value if value >= 0 else None
