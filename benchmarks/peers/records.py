"""The messages in a form that a few lines of Java can read, and whether survivors are the same.

A records file holds, message after message, the key and the value and nothing else: all keys have KEY_BYTES digits, all
values one size. It is made from the Parquet file that this job imports, so keys, values and order are the same.

Survivors are compared by a SHA-256 over their keys and values in the order of keys. A broker's file with a key twice
gives another digest than ours, which is right: compacted topics hold a key once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import KEY_BYTES

Records = npt.NDArray[np.uint8]
"""One row a message: the bytes of its key, then those of its value."""

_AT_ONCE = 250_000


@dataclass(frozen=True)
class Survivors:
    """How many messages are left, and the digest over them."""

    count: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.count:,} survivors with digest {self.sha256[:16]}"


class Disagreement(Exception):
    """Contenders kept different messages; the times mean nothing until that is explained."""


def write_records(parquet: Path, value_bytes: int, file: Path) -> None:
    """Make the records file of a Parquet file with columns `key` and `value`."""
    with file.open("wb") as target, pq.ParquetFile(parquet) as source:
        for batch in source.iter_batches(batch_size=131_072, columns=["key", "value"]):
            records_of(batch.column("key"), batch.column("value"), value_bytes).tofile(target)


def survivors_of_file(file: Path, value_bytes: int) -> Survivors:
    """What a records file holds."""
    return survivors(np.fromfile(file, dtype=np.uint8).reshape(-1, KEY_BYTES + value_bytes))


def survivors_of_parts(files: Iterable[str], value_bytes: int) -> Survivors:
    """What rows objects of this project hold; rows without payload are tombstones and left out."""
    found = []
    for file in files:
        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(batch_size=131_072, columns=["key", "payload"]):
                payloads = batch.column("payload")
                live = pa.compute.greater(pa.compute.binary_length(payloads), 0)
                found.append(records_of(batch.column("key").filter(live), payloads.filter(live), value_bytes))
    return survivors(np.concatenate(found) if found else np.empty((0, KEY_BYTES + value_bytes), np.uint8))


def survivors(records: Records) -> Survivors:
    """Sort by key, then digest."""
    places = 10 ** np.arange(KEY_BYTES - 1, -1, -1, dtype=np.int64)
    keys = np.zeros(len(records), np.int64)
    for place, weight in enumerate(places):
        keys += (records[:, place].astype(np.int64) - ord("0")) * weight
    order = np.argsort(keys, kind="stable")
    digest = hashlib.sha256()
    for first in range(0, len(order), _AT_ONCE):
        digest.update(records[order[first : first + _AT_ONCE]].tobytes())
    return Survivors(len(records), digest.hexdigest())


def check(name: str, found: Survivors, expected: Survivors) -> None:
    """Raises Disagreement unless both are the same."""
    if found != expected:
        raise Disagreement(f"{name} left {found}, this job {expected}")


def records_of(keys: pa.Array, values: pa.Array, value_bytes: int) -> Records:
    """Keys and values side by side. Raises pyarrow.ArrowInvalid if one has another size."""
    return np.hstack([_fixed(keys, KEY_BYTES), _fixed(values, value_bytes)])


def _fixed(texts: pa.Array, size: int) -> Records:
    column = texts.cast(pa.binary()).cast(pa.binary(size))
    content = np.frombuffer(column.buffers()[1] or b"", dtype=np.uint8)
    return content[column.offset * size : (column.offset + len(column)) * size].reshape(len(column), size)
