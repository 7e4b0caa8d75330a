"""Which partition of a partitioned topic a message goes to: by its key's hash, in turn if it has none.

The hash is Pulsar's Murmur3_32Hash: MurmurHash3 x86 of 32 bits, seed 0, over the key's text in UTF-8 (a key of other
bytes: their base64, as Pulsar's clients keep it), without its sign. So a message meets those of its key that a client
with `hashingScheme(HashingScheme.Murmur3_32Hash)` has sent.
"""

from __future__ import annotations

import base64

import mmh3


def partition_of(key: bytes | None, partitions: int, turn: int) -> int:
    """From 0 to `partitions` - 1; `turn` decides where there is no key."""
    if key is None:
        return turn % partitions
    try:
        key.decode()
    except UnicodeDecodeError:
        key = base64.b64encode(key)
    return (mmh3.hash(key, signed=False) & 0x7FFFFFFF) % partitions
