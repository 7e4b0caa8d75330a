"""Variable-length numbers, low bits first, as Kafka's records (zigzag) and protobuf messages have them.

Must not know: records, messages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage.slices import I64

WORD_BYTES = 8
PADDING = bytes(3 * WORD_BYTES)
"""The bytes after the data: with them a number at its last byte can be read without a check."""
_MOST_BYTES = 10


class Varints(NamedTuple):
    """Decoded numbers, and the positions after each of them, shape (n,)."""

    values: I64
    ends: I64


def overlapping_words(data: bytes) -> I64:
    """Return, for each position of `data`, the eight bytes from there on as a little-endian number."""
    return np.ndarray(len(data) - WORD_BYTES + 1, "<i8", data, strides=(1,))


def read_varints(words: I64, positions: I64) -> Varints:
    """Return the signed (zigzag) numbers at `positions`.

    Numbers that have the same sizes, as most have in a row of records, take few operations. A number of more than ten
    bytes is cut; damage shows in what follows it.
    """
    word = words[positions]
    shortest = _varint_size(int(np.bitwise_and.reduce(word)))
    longest = _varint_size(int(np.bitwise_or.reduce(word)))
    values = word & 0x7F
    for index in range(1, min(shortest, WORD_BYTES)):
        values |= (word >> index) & (0x7F << (7 * index))
    if shortest == longest <= WORD_BYTES:
        return Varints((values >> 1) ^ -(values & 1), positions + longest)
    sizes = np.full(len(word), min(shortest, WORD_BYTES))
    more = np.ones_like(word)
    for index in range(min(shortest, WORD_BYTES), min(longest, WORD_BYTES)):
        more &= word >> (8 * index - 1)
        values |= (word >> index) & (0x7F << (7 * index)) & -more
        sizes += more
    if longest > WORD_BYTES:
        more &= word >> (8 * WORD_BYTES - 1)
        for index in range(WORD_BYTES, _MOST_BYTES):
            sizes += more
            byte = words[positions + index]
            values |= (byte & 0x7F & -more) << (7 * index)
            more &= byte >> 7
    return Varints(((values >> 1) & ((1 << 63) - 1)) ^ -(values & 1), positions + sizes)


def _varint_size(word: int) -> int:
    """Return the bytes of the varint at the low end of a word; more than `WORD_BYTES`: it does not end there."""
    return next((size for size in range(1, WORD_BYTES + 1) if not word >> (8 * size - 1) & 1), WORD_BYTES + 1)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the signed (zigzag) number at position `at` of `data`, and the position after it.

    Raises as `read_unsigned_varint`.
    """
    value, end = read_unsigned_varint(data, at)
    return (value >> 1) ^ -(value & 1), end


def read_unsigned_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at position `at` of `data`, and the position after it.

    Raises IndexError if the data ends before it does, or if it has more than ten bytes.
    """
    value = 0
    for number in range(_MOST_BYTES):
        byte = data[at + number]
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    raise IndexError("a number has more than ten bytes")
