"""Messages of batches that have a key, a payload, an event time and a sequence id, encoded from columns.

    message       size (4), [slots without a message before it], metadata, payload
    metadata      [12 key], 18 payload size, [28 event time], 40 sequence id, [48 01 for a null payload]

Each field is an array operation for all messages. Neighbouring fields that have one length in all messages, as most
numbers have in a row of messages, become the columns of one matrix; keys and payloads too, if they have one length.

Must not know: entries, tables of ledgers. Source: Pulsar's SingleMessageMetadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.entries.entry import U32
from storage.slices import I64, Flags

STUB = U32.pack(4) + b"\x18\x00\x20\x01"
"""A slot whose message was dropped: a payload of no bytes, and the flag `compacted_out`."""
U8 = npt.NDArray[np.uint8]


def encode_plain_messages(
    keys: pa.Array, payloads: pa.Array, event_times: I64 | None, sequence_ids: I64, gaps: I64 | None = None
) -> tuple[I64, memoryview]:
    """Encode messages of batches from columns; return the position of each message, with the end of the last one, shape
    (n + 1,), and their bytes.

    `keys`, `payloads`: binary, may have nulls. `event_times` 0: none; None: no message has one. `gaps`: the number of
    slots without a message before each; None: there are none.
    """
    key_lengths, payload_lengths = _value_lengths(keys), _value_lengths(payloads)
    after_key = _FieldSequence(len(keys))
    after_key.add_byte(0x18)
    after_key.add_varints(payload_lengths)
    if event_times is not None:
        after_key.add_byte(0x28, event_times != 0)
        after_key.add_varints(event_times, event_times != 0)
    after_key.add_byte(0x40)
    after_key.add_varints(sequence_ids)
    if payloads.null_count:
        nulls = pc.is_null(payloads).to_numpy(zero_copy_only=False)
        after_key.add_byte(0x48, nulls)
        after_key.add_byte(0x01, nulls)
    has_key = None if not keys.null_count else pc.is_valid(keys).to_numpy(zero_copy_only=False)
    before_key = _FieldSequence(len(keys))
    before_key.add_byte(0x12, has_key)
    before_key.add_varints(key_lengths, has_key)
    sized = before_key.length + _common_length(key_lengths) + after_key.length
    size = _FieldSequence(len(keys))
    for shift in (24, 16, 8, 0):
        size.add_byte(sized >> shift & 0xFF)
    size.extend(before_key)
    parts: list[_BinaryColumn | _FieldSequence | _DroppedSlots] = [size, _BinaryColumn(keys, key_lengths), after_key]
    parts.append(_BinaryColumn(payloads, payload_lengths))
    if gaps is not None and gaps.any():
        parts.insert(0, _DroppedSlots(gaps))
    return _join_rows(parts, len(keys))


class _DroppedSlots:
    """The encoded slots of dropped messages: `counts` of them before each message. `length`: their bytes before each
    message."""

    def __init__(self, counts: I64) -> None:
        self.length = counts * len(STUB)

    def array(self) -> pa.Array:
        ends = np.cumsum(self.length)
        return _large_binary(np.append(0, ends), np.frombuffer(STUB * (int(ends[-1]) // len(STUB)), np.uint8))


class _BinaryColumn:
    """The keys or payloads of messages, as a part of each encoded message. `length`: in bytes, one number if all have
    the same; otherwise an array."""

    def __init__(self, values: pa.Array, lengths: I64) -> None:
        self._values = values
        self.length = _common_length(lengths)

    def write(self, matrix: U8) -> None:
        """Fill a matrix with the values, which have one length. Shape (n, length)."""
        _, offsets, data = self._values.buffers()
        kind = np.int64 if pa.types.is_large_binary(self._values.type) else np.int32
        first = int(np.frombuffer(offsets, kind)[self._values.offset])
        matrix[:] = np.frombuffer(data, np.uint8)[first : first + matrix.size].reshape(matrix.shape)

    def array(self) -> pa.Array:
        return self._values.cast(pa.large_binary())


class _NumberField(NamedTuple):
    """A number in each encoded message. `length`: in bytes, of all or of each. `values`: single bytes, or numbers that
    become varints."""

    length: int | I64
    values: int | I64
    is_varint: bool

    def byte_column(self, place: int) -> U8:
        """Return one encoded byte of the field for each message, that at index `place`."""
        if not self.is_varint:
            return np.asarray(self.values, np.uint8)
        assert isinstance(self.values, np.ndarray)
        part = (self.values.view(np.uint64) >> np.uint64(7 * place)).astype(np.uint8) & np.uint8(0x7F)
        is_last = self.length == place + 1
        return part | np.where(is_last, np.uint8(0), np.uint8(0x80))


class _FieldSequence:
    """Short byte strings, one for each of `rows` rows, built a field at a time. `length`: in bytes, one number if all
    strings have the same; otherwise an array."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._fields: list[_NumberField] = []
        self.length: int | I64 = 0

    def add_byte(self, value: int | I64, where: Flags | None = None) -> None:
        """Append a byte to the strings of the rows in the mask `where`; None: to all."""
        self._add_field(_NumberField(_masked_length(1, where), value, False))

    def add_varints(self, numbers: I64, where: Flags | None = None) -> None:
        """Append numbers as protobuf varints to the strings of the rows in the mask `where`; None: to all."""
        self._add_field(_NumberField(_masked_length(_varint_lengths(numbers), where), numbers, True))

    def extend(self, other: _FieldSequence) -> None:
        """Append the fields of another sequence to the strings."""
        for item in other._fields:
            self._add_field(item)

    def _add_field(self, item: _NumberField) -> None:
        if not isinstance(item.length, int) or item.length:
            self._fields.append(item)
            self.length = self.length + item.length

    def write(self, matrix: U8) -> None:
        """Fill a matrix with the strings, which have one length. Shape (rows, length)."""
        at = 0
        for item in self._fields:
            assert isinstance(item.length, int)
            for place in range(item.length):
                matrix[:, at] = item.byte_column(place)
                at += 1

    def array(self) -> pa.Array:
        """Return the strings, which have different lengths, as an array."""
        longest = [int(np.max(item.length)) for item in self._fields]
        matrix = np.empty((self._rows, sum(longest)), np.uint8)
        is_filled = np.empty(matrix.shape, bool)
        at = 0
        for item, length in zip(self._fields, longest, strict=True):
            for place in range(length):
                matrix[:, at] = item.byte_column(place)
                is_filled[:, at] = item.length > place
                at += 1
        return _large_binary(np.append(0, np.cumsum(self.length)), matrix[is_filled])


def _join_rows(parts: Sequence[_BinaryColumn | _FieldSequence | _DroppedSlots], rows: int) -> tuple[I64, memoryview]:
    """Concatenate the parts of each row, and the rows; return the position of each row, with the end of the last one,
    and all bytes."""
    blocks: list[pa.Array] = []
    even: list[_BinaryColumn | _FieldSequence] = []
    for part in parts:
        if not isinstance(part, _DroppedSlots) and isinstance(part.length, int):
            even.append(part)
            continue
        blocks += [*_join_even_columns(even, rows), part.array()]
        even = []
    blocks += _join_even_columns(even, rows)
    if len(blocks) == 1:
        (whole,) = blocks
    else:
        whole = pc.binary_join_element_wise(*blocks, pa.scalar(b"", pa.large_binary()), null_handling="replace")
    _, offsets, data = whole.buffers()
    return np.frombuffer(offsets, np.int64)[: rows + 1], memoryview(data)


def _join_even_columns(parts: Sequence[_BinaryColumn | _FieldSequence], rows: int) -> list[pa.Array]:
    """Return parts that have one length each, joined row by row, as a list of one array; an empty list if they have no
    bytes."""
    lengths = [part.length for part in parts if isinstance(part.length, int)]
    total = sum(lengths)
    if not total:
        return []
    matrix = np.empty((rows, total), np.uint8)
    at = 0
    for part, length in zip(parts, lengths, strict=True):
        if length:
            part.write(matrix[:, at : at + length])
        at += length
    return [_large_binary(np.arange(0, matrix.size + 1, total), matrix.reshape(-1))]


def _large_binary(offsets: I64, data: U8) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _value_lengths(values: pa.Array) -> I64:
    return np.asarray(pc.fill_null(pc.binary_length(values), 0).to_numpy(), dtype=np.int64)


def _common_length(lengths: I64) -> int | I64:
    """Return the one length if all lengths are equal; otherwise the lengths."""
    first = int(lengths[0])
    return first if (lengths == first).all() else lengths


def _masked_length(length: int | I64, where: Flags | None) -> int | I64:
    """Return the length of each row: `length` in the rows of the mask `where`, 0 in the others. One number if all rows
    have the same."""
    if where is None or where.all():
        return length
    return np.where(where, length, 0) if where.any() else 0


def _varint_lengths(numbers: I64) -> int | I64:
    """Return the size in bytes of each number as a protobuf varint; one number if all have the same. Negative numbers
    count as unsigned."""
    rest = numbers.view(np.uint64)
    shortest, longest = (max(1, -(-int(number).bit_length() // 7)) for number in (rest.min(), rest.max()))
    if shortest == longest:
        return shortest
    lengths = np.full(len(rest), shortest)
    for size in range(shortest, longest):
        lengths += rest >= np.uint64(1 << 7 * size)
    return lengths
