"""Messages in a form that a few lines of Java can read, and the comparison of survivors.

A records file holds the key and value of each message, one after the other: all keys have KEY_BYTES digits, all values
have one size. It is written from the Parquet file that this job imports, so keys, values and order are the same.

The comparison of survivors uses a SHA-256 over keys and values in key order. If a broker keeps a key twice, its digest
differs, which is right: a compacted topic has a key once.
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
"""One row per message: the bytes of its key, then of its value. Shape (n, KEY_BYTES + value bytes)."""

_AT_ONCE = 250_000


@dataclass(frozen=True)
class Survivors:
    """Number of surviving messages, and the digest over them."""

    count: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.count:,} survivors with digest {self.sha256[:16]}"


class Disagreement(Exception):
    """Contenders kept different messages, so their times are not comparable."""


def write_records(parquet: Path, value_bytes: int, file: Path) -> None:
    """Write the records file of a Parquet file with columns `key` and `value`."""
    with file.open("wb") as target, pq.ParquetFile(parquet) as source:
        for batch in source.iter_batches(batch_size=131_072, columns=["key", "value"]):
            records_of(batch.column("key"), batch.column("value"), value_bytes).tofile(target)


def survivors_of_file(file: Path, value_bytes: int) -> Survivors:
    """Return the survivors in a records file."""
    return survivors(np.fromfile(file, dtype=np.uint8).reshape(-1, KEY_BYTES + value_bytes))


def survivors_of_parts(files: Iterable[str], value_bytes: int) -> Survivors:
    """Return the survivors in rows objects of this project, without tombstones (rows without payload)."""
    records = []
    for file in files:
        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(batch_size=131_072, columns=["key", "payload"]):
                payloads = batch.column("payload")
                live = pa.compute.greater(pa.compute.binary_length(payloads), 0)
                records.append(records_of(batch.column("key").filter(live), payloads.filter(live), value_bytes))
    return survivors(np.concatenate(records) if records else np.empty((0, KEY_BYTES + value_bytes), np.uint8))


def survivors(records: Records) -> Survivors:
    """Sort the records by key, and return their number and digest."""
    places = 10 ** np.arange(KEY_BYTES - 1, -1, -1, dtype=np.int64)
    keys = np.zeros(len(records), np.int64)
    for place, weight in enumerate(places):
        keys += (records[:, place].astype(np.int64) - ord("0")) * weight
    order = np.argsort(keys, kind="stable")
    digest = hashlib.sha256()
    for first in range(0, len(order), _AT_ONCE):
        digest.update(records[order[first : first + _AT_ONCE]].tobytes())
    return Survivors(len(records), digest.hexdigest())


def check(name: str, actual: Survivors, expected: Survivors) -> None:
    """Raise Disagreement if the survivors differ."""
    if actual != expected:
        raise Disagreement(f"{name} kept {actual}, this job kept {expected}")


def records_of(keys: pa.Array, values: pa.Array, value_bytes: int) -> Records:
    """Return keys and values side by side. Raises pyarrow.ArrowInvalid if one has another size."""
    return np.hstack([_fixed(keys, KEY_BYTES), _fixed(values, value_bytes)])


def _fixed(texts: pa.Array, size: int) -> Records:
    column = texts.cast(pa.binary()).cast(pa.binary(size))
    content = np.frombuffer(column.buffers()[1] or b"", dtype=np.uint8)
    return content[column.offset * size : (column.offset + len(column)) * size].reshape(len(column), size)
