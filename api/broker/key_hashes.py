"""Hashes of keys as Pulsar's clients compute them, and the partition of a key.

Keys are hashed as Pulsar does (Murmur3_32Hash): MurmurHash3 x86 of 32 bits, seed 0, without its sign. For a partition
the hash is of the key's text in UTF-8; of a key of other bytes, of their base64, as Pulsar's clients keep it. So a
message gets the partition that a client with `hashingScheme(HashingScheme.Murmur3_32Hash)` chooses for the same key.
"""

from __future__ import annotations

import base64

import mmh3


def partition_of(key: bytes, partitions: int) -> int:
    """Return the number of the partition to which a key belongs, from 0 to `partitions` - 1, as Pulsar's clients do."""
    try:
        key.decode()
    except UnicodeDecodeError:
        key = base64.b64encode(key)
    return murmur3(key) % partitions


def murmur3(key: bytes) -> int:
    """Return Pulsar's Murmur3_32Hash of a key: 31 bits, not negative."""
    return mmh3.hash(key, signed=False) & 0x7FFFFFFF
