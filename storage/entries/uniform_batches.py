"""The messages of batches that have one size and one layout, as rows of a matrix: a field is a range of its columns.

Batches of keys and payloads of one length are such, if their numbers have one length, as sequence ids mostly have. The
layout is that of the first message: a key shorter than 128 bytes, then numbers. Another message has it if the bytes
that state it are the same: sizes, tags, and the bits that say where numbers end. So one comparison proves all
messages, and fields are copied without a position for each. bulk_batch.py decodes whatever differs; a property test
holds the two equal.

Raises nothing, for any bytes. Must not know: batches, entries.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from storage.entries.field_tags import (
    BASE64,
    COMPACTED_OUT,
    EVENT_TIME,
    KEY,
    MORE,
    NULL_VALUE,
    PAYLOAD_SIZE,
    SEQUENCE_ID,
)
from storage.slices import I64
from storage.varints import read_unsigned_varint

WORD_BYTES = 8
"""The bytes that must follow the last message: layouts are compared in words."""
_LONGEST_HEAD = 256
"""The most bytes of a message before its payload."""
_LONGEST_NUMBER = 9
_FLAGS = (BASE64, NULL_VALUE, COMPACTED_OUT)
"""Numbers that are 0 in all messages here."""
_NUMBERS = {PAYLOAD_SIZE, SEQUENCE_ID, EVENT_TIME, *_FLAGS}


class UniformMessages(NamedTuple):
    """The decoded messages of one size and layout, in order, shape (n,). `sequence_ids`, `event_times` None: the
    messages have none of their own."""

    keys: pa.Array
    payloads: pa.Array
    sequence_ids: I64 | None
    event_times: I64 | None


def decode_uniform_messages(data: bytes, count: int, size: int) -> UniformMessages | None:
    """Decode the `count` messages of `size` bytes each with which `data` begins; WORD_BYTES follow them.

    None: their layouts differ, or are not the expected one.
    """
    layout = None
    with suppress(IndexError):
        layout = _parse_layout(data[:size])
    if layout is None:
        return None
    stated = layout.common_bits()
    heads = _byte_columns(data, count, size, slice(0, stated.nbytes))
    words = heads.view(np.uint64).reshape(count, -1)
    if any(((words[:, at] ^ words[0, at]) & bits).any() for at, bits in enumerate(stated)):
        return None
    head_bytes = heads.view(np.uint8).reshape(count, -1)
    sequence_ids, event_times = (
        None if number is None else _decode_varint_columns(head_bytes[:, number])
        for number in (layout.sequence_id, layout.event_time)
    )
    keys = pa.nulls(count, pa.binary()) if layout.key is None else _binary_array(data, count, size, layout.key)
    return UniformMessages(
        keys, _binary_array(data, count, size, slice(layout.payload_at, size)), sequence_ids, event_times
    )


class _Layout(NamedTuple):
    """The byte ranges of the fields in a message. None: it has no such field."""

    key: slice | None
    sequence_id: slice | None
    event_time: slice | None
    payload_at: int

    def common_bits(self) -> Any:
        """Return a mask of the bits that are equal in all messages of this layout, in words of 8 bytes, shape
        (words,)."""
        stated = np.zeros(-(-self.payload_at // WORD_BYTES) * WORD_BYTES, np.uint8)
        stated[: self.payload_at] = 0xFF
        for field, bits in (self.key, 0), (self.sequence_id, MORE), (self.event_time, MORE):
            if field is not None:
                stated[field] = bits
        return stated.view(np.uint64)


def _parse_layout(message: bytes) -> _Layout | None:
    """Return the layout of a message; None: it is not the expected one. Raises IndexError for a message that is cut
    off."""
    payload_at = 4 + int.from_bytes(message[:4], "big")
    if payload_at > _LONGEST_HEAD:
        return None
    at, key = 4, None
    if message[at] == KEY and message[at + 1] < MORE:
        key = slice(at + 2, at + 2 + message[at + 1])
        at = key.stop
    fields: dict[int, slice] = {}
    values: dict[int, int] = {}
    while at < payload_at:
        tag, first = message[at], at + 1
        values[tag], at = read_unsigned_varint(message, first)  # of repeated fields, the last one counts
        fields[tag] = slice(first, at)
        if tag not in _NUMBERS or at - first > _LONGEST_NUMBER:
            return None
    if at != payload_at or values.get(PAYLOAD_SIZE) != len(message) - at or any(values.get(flag) for flag in _FLAGS):
        return None
    return _Layout(key, fields.get(SEQUENCE_ID), fields.get(EVENT_TIME), payload_at)


def _byte_columns(data: bytes, count: int, size: int, columns: slice) -> Any:
    """Return the bytes `columns` of each message, one item of bytes for each, shape (n,). `size`: the bytes of a
    message."""
    width = columns.stop - columns.start
    return np.ndarray(count, f"V{width}", data, columns.start, (size,)).copy()


def _binary_array(data: bytes, count: int, size: int, columns: slice) -> pa.Array:
    width = columns.stop - columns.start
    values = _byte_columns(data, count, size, columns).view(np.uint8) if width else b""
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(values)])


def _decode_varint_columns(digits: Any) -> I64:
    """Decode one varint of each message from its bytes, low bits first; return the numbers. `digits`: the bytes, shape
    (n, bytes)."""
    values = np.zeros(len(digits), np.int64)
    for place in range(digits.shape[1]):
        values |= (digits[:, place] & ~np.uint8(MORE)).astype(np.int64) << (7 * place)
    return values
