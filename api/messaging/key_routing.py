"""Which partition of a partitioned topic a message goes to: by its key's hash, in turn if it has none.

The hash is Pulsar's Murmur3_32Hash: MurmurHash3 x86 of 32 bits, seed 0, over the key's text in UTF-8 (a key of other
bytes: their base64, as Pulsar's clients keep it), without its sign. So a message meets those of its key that a client
with `hashingScheme(HashingScheme.Murmur3_32Hash)` has sent.
"""

from __future__ import annotations

import base64

_MASK = 0xFFFFFFFF


def partition_of(key: bytes | None, partitions: int, turn: int) -> int:
    """From 0 to `partitions` - 1; `turn` decides where there is no key."""
    if key is None:
        return turn % partitions
    try:
        key.decode()
    except UnicodeDecodeError:
        key = base64.b64encode(key)
    return (murmur3_32(key) & 0x7FFFFFFF) % partitions


def murmur3_32(data: bytes) -> int:
    """MurmurHash3 x86 of 32 bits with seed 0, unsigned."""
    whole = len(data) & ~3
    state = 0
    for at in range(0, whole, 4):
        state ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        state = (_rotated(state, 13) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        state ^= _mixed(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return state ^ (state >> 16)


def _mixed(block: int) -> int:
    return _rotated((block * 0xCC9E2D51) & _MASK, 15) * 0x1B873593 & _MASK


def _rotated(number: int, bits: int) -> int:
    return ((number << bits) | (number >> (32 - bits))) & _MASK
