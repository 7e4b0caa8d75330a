"""The hash that represents a key in every key index: XXH3-128, seeded per topic.

The seed is random and never leaves the database, so no client can construct a collision. Two keys count as one
key when all 128 bits agree; with a trillion keys the chance that any two do is below 10⁻¹⁴.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]


class KeyHasher(Protocol):
    """A function from keys to 128-bit hashes. A component, so that tests can force collisions of the high half."""

    def __call__(self, keys: pa.BinaryArray) -> tuple[Hashes, Hashes]:
        """Return the high and low halves, shape (n,) each, of `keys`: binary, length n, no nulls."""
        ...


class Xxh3KeyHasher:
    """XXH3-128 of the key's bytes, with a seed for each topic."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, keys: pa.BinaryArray) -> tuple[Hashes, Hashes]:
        # A service imports this long before it hashes its first key, and polars takes a while.
        import polars as pl
        import polars_hash as plh

        series = pl.Series("key", keys, dtype=pl.Binary)
        digest = plh.col("key").nchash.xxh3_128(seed=self._seed, return_binary=True, byte_order="big")
        column = series.to_frame().select(digest.alias("digest"))["digest"].to_arrow()
        array = column.cast(pa.large_binary()) if column.type != pa.large_binary() else column
        start = array.offset * 16
        halves = np.frombuffer(array.buffers()[2], dtype=">u8")[start // 8 : start // 8 + 2 * len(array)].reshape(-1, 2)
        return halves[:, 0].astype(np.uint64), halves[:, 1].astype(np.uint64)
