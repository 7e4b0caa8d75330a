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


def plain_messages(
    keys: pa.Array, payloads: pa.Array, event_times: I64 | None, sequence_ids: I64, gaps: I64 | None = None
) -> tuple[I64, memoryview]:
    """Return where each message begins, with the end of the last one, shape (n + 1,), and their bytes.

    `keys`, `payloads`: binary, may have nulls. `event_times` 0: none; None: no message has one. `gaps`: the number of
    slots without a message before each; None: there are none.
    """
    key_lengths, payload_lengths = _lengths(keys), _lengths(payloads)
    after_key = _Fields(len(keys))
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
    before_key = _Fields(len(keys))
    before_key.add_byte(0x12, has_key)
    before_key.add_varints(key_lengths, has_key)
    sized = before_key.length + _common(key_lengths) + after_key.length
    size = _Fields(len(keys))
    for shift in (24, 16, 8, 0):
        size.add_byte(sized >> shift & 0xFF)
    size.extend(before_key)
    parts: list[_Column | _Fields | _Stubs] = [size, _Column(keys, key_lengths), after_key]
    parts.append(_Column(payloads, payload_lengths))
    if gaps is not None and gaps.any():
        parts.insert(0, _Stubs(gaps))
    return _joined(parts, len(keys))


class _Stubs:
    """Slots without a message, a number of them before each message."""

    def __init__(self, counts: I64) -> None:
        self.length = counts * len(STUB)

    def array(self) -> pa.Array:
        ends = np.cumsum(self.length)
        return _large_binary(np.append(0, ends), np.frombuffer(STUB * (int(ends[-1]) // len(STUB)), np.uint8))


class _Column:
    """Keys or payloads. `length`: of all; an array: they differ."""

    def __init__(self, values: pa.Array, lengths: I64) -> None:
        self._values = values
        self.length = _common(lengths)

    def write(self, matrix: U8) -> None:
        """Fill a matrix with values that have one length. Shape (n, length)."""
        _, offsets, data = self._values.buffers()
        kind = np.int64 if pa.types.is_large_binary(self._values.type) else np.int32
        first = int(np.frombuffer(offsets, kind)[self._values.offset])
        matrix[:] = np.frombuffer(data, np.uint8)[first : first + matrix.size].reshape(matrix.shape)

    def array(self) -> pa.Array:
        return self._values.cast(pa.large_binary())


class _Field(NamedTuple):
    """A field of each message. `length`: of all, or of each. `values`: bytes, or varints."""

    length: int | I64
    values: int | I64
    is_varint: bool

    def column(self, place: int) -> U8:
        """Return one byte of each message."""
        if not self.is_varint:
            return np.asarray(self.values, np.uint8)
        assert isinstance(self.values, np.ndarray)
        part = (self.values.view(np.uint64) >> np.uint64(7 * place)).astype(np.uint8) & np.uint8(0x7F)
        is_last = self.length == place + 1
        return part | np.where(is_last, np.uint8(0), np.uint8(0x80))


class _Fields:
    """Short byte strings, one for each of `rows` rows, built a field at a time. `length`: as of a field."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._fields: list[_Field] = []
        self.length: int | I64 = 0

    def add_byte(self, value: int | I64, where: Flags | None = None) -> None:
        """Add a byte to the rows of the mask `where`; None: to all."""
        self._add(_Field(_where(1, where), value, False))

    def add_varints(self, numbers: I64, where: Flags | None = None) -> None:
        """Add numbers in protobuf's encoding to the rows of the mask `where`; None: to all."""
        self._add(_Field(_where(_varint_lengths(numbers), where), numbers, True))

    def extend(self, other: _Fields) -> None:
        """Add all fields of other strings."""
        for item in other._fields:
            self._add(item)

    def _add(self, item: _Field) -> None:
        if not isinstance(item.length, int) or item.length:
            self._fields.append(item)
            self.length = self.length + item.length

    def write(self, matrix: U8) -> None:
        """Fill a matrix with strings that have one length. Shape (rows, length)."""
        at = 0
        for item in self._fields:
            assert isinstance(item.length, int)
            for place in range(item.length):
                matrix[:, at] = item.column(place)
                at += 1

    def array(self) -> pa.Array:
        """Return strings of different lengths: rows of a matrix, without the places that a field leaves empty."""
        longest = [int(np.max(item.length)) for item in self._fields]
        matrix = np.empty((self._rows, sum(longest)), np.uint8)
        is_filled = np.empty(matrix.shape, bool)
        at = 0
        for item, length in zip(self._fields, longest, strict=True):
            for place in range(length):
                matrix[:, at] = item.column(place)
                is_filled[:, at] = item.length > place
                at += 1
        return _large_binary(np.append(0, np.cumsum(self.length)), matrix[is_filled])


def _joined(parts: Sequence[_Column | _Fields | _Stubs], rows: int) -> tuple[I64, memoryview]:
    """Return the bytes of all parts of a row, row by row."""
    blocks: list[pa.Array] = []
    even: list[_Column | _Fields] = []
    for part in parts:
        if not isinstance(part, _Stubs) and isinstance(part.length, int):
            even.append(part)
            continue
        blocks += [*_block(even, rows), part.array()]
        even = []
    blocks += _block(even, rows)
    if len(blocks) == 1:
        (whole,) = blocks
    else:
        whole = pc.binary_join_element_wise(*blocks, pa.scalar(b"", pa.large_binary()), null_handling="replace")
    _, offsets, data = whole.buffers()
    return np.frombuffer(offsets, np.int64)[: rows + 1], memoryview(data)


def _block(parts: Sequence[_Column | _Fields], rows: int) -> list[pa.Array]:
    """Return the bytes of parts of one length each as an array, unless they have none."""
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


def _lengths(values: pa.Array) -> I64:
    return np.asarray(pc.fill_null(pc.binary_length(values), 0).to_numpy(), dtype=np.int64)


def _common(lengths: I64) -> int | I64:
    """Return the length of all, or the lengths."""
    first = int(lengths[0])
    return first if (lengths == first).all() else lengths


def _where(length: int | I64, where: Flags | None) -> int | I64:
    """Return the length of the rows of a mask; that of the others is 0."""
    if where is None or where.all():
        return length
    return np.where(where, length, 0) if where.any() else 0


def _varint_lengths(numbers: I64) -> int | I64:
    """Return the bytes of each number in protobuf's encoding, or those of all. A negative one is a large one."""
    rest = numbers.view(np.uint64)
    shortest, longest = (max(1, -(-int(number).bit_length() // 7)) for number in (rest.min(), rest.max()))
    if shortest == longest:
        return shortest
    lengths = np.full(len(rest), shortest)
    for size in range(shortest, longest):
        lengths += rest >= np.uint64(1 << 7 * size)
    return lengths
