"""Input for benchmarks: Parquet files with columns `key` and `value`, written in chunks of bounded memory.

Random numbers are seeded, so the same shape gives the same file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

KEY_BYTES = 12
_CHUNK_BYTES = 64 << 20
_CHUNK_ROWS = 1_000_000
_GROUP_ROWS = 131_072
_STRIDE = 7_368_787
"""A prime. Its multiples visit the numbers below any standard number of keys once each, in scattered order."""


@dataclass(frozen=True)
class Shape:
    """Shape of the data. `distribution` of keys: uniform, zipf (exponent 1.1), or each (every key once, in cycles).

    `compressible`: half of each value compresses.
    """

    messages: int
    payload_bytes: int
    keys: int
    distribution: str = "uniform"
    compressible: bool = False
    seed: int = 1

    def __str__(self) -> str:
        kind = "half-compressible" if self.compressible else "random"
        return (
            f"{self.messages:,} messages of {self.payload_bytes} {kind} bytes, "
            f"{self.keys:,} possible keys ({self.distribution})"
        )

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


STANDARD = {
    "1m": Shape(1_000_000, 1024, 100_000),
    "10m": Shape(10_000_000, 100, 1_000_000),
    "30m": Shape(30_000_000, 100, 15_000_000),
}


def write_parquet(shape: Shape, file: Path) -> None:
    """Write the file with zstd level 1 and without dictionaries."""
    schema = pa.schema([("key", pa.string()), ("value", pa.binary())])
    with pq.ParquetWriter(file, schema, compression="zstd", compression_level=1, use_dictionary=False) as writer:
        for table in _chunks(shape, schema):
            writer.write_table(table, row_group_size=_GROUP_ROWS)


def _chunks(shape: Shape, schema: pa.Schema) -> Iterator[pa.Table]:
    random = np.random.default_rng(shape.seed)
    rows = min(_CHUNK_ROWS, max(1, _CHUNK_BYTES // max(1, shape.payload_bytes)))
    for first in range(0, shape.messages, rows):
        count = min(rows, shape.messages - first)
        yield pa.table([_keys(shape, first, count, random), _values(shape, count, random)], schema=schema)


def _keys(shape: Shape, first: int, count: int, random: np.random.Generator) -> pa.Array:
    """Return numbers below `shape.keys`, zero-padded to KEY_BYTES digits."""
    if shape.distribution == "zipf":
        numbers = random.zipf(1.1, count) % shape.keys
    elif shape.distribution == "each":
        numbers = np.arange(first, first + count) * _STRIDE % shape.keys
    else:
        numbers = random.integers(0, shape.keys, count)
    digits = np.empty((count, KEY_BYTES), dtype=np.uint8)
    for place in range(KEY_BYTES - 1, -1, -1):
        numbers, digits[:, place] = np.divmod(numbers, 10)
    digits += ord("0")
    return _fixed(digits.reshape(-1), count, KEY_BYTES, pa.string())


def _values(shape: Shape, count: int, random: np.random.Generator) -> pa.Array:
    size = shape.payload_bytes
    drawn = np.frombuffer(random.bytes(count * size), dtype=np.uint8)
    if shape.compressible:
        drawn = drawn.reshape(count, size).copy()
        drawn[:, : size // 2] = ord(" ")
        drawn = drawn.reshape(-1)
    return _fixed(drawn, count, size, pa.binary())


def _fixed(content: npt.NDArray[np.uint8], count: int, size: int, kind: pa.DataType) -> pa.Array:
    """Return an array of texts of equal length, which `content` holds side by side."""
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
