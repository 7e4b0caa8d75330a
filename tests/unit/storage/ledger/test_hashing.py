"""The key hash is XXH3-128 as published, whatever the array around the keys looks like.

The vectors were made by the xxHash project's own library (xxhash 4.1.0 for Python).
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage.ledger.hashing import Xxh3KeyHasher

VECTORS = {
    0: {
        b"": "99aa06d3014798d86001c324468d497f",
        b"a": "a96faf705af16834e6c632b61e964e1f",
        b"abc": "06b05ab6733a618578af5f94892f3950",
        b"compactor": "a42f6a173c230d3da72bbbbb4341f1e0",
        b"x" * 300: "125237ea2ad7bc7aa5d1b4607dc83554",
    },
    1: {
        b"": "d9265cc53bb2b9ae6131b78f753823cd",
        b"a": "fdd9b77fdcaf3221d2f6d0996f37a720",
        b"abc": "7577b06fae9ee3ed6b4467b443c76228",
        b"compactor": "937c631718900f92247247b309920efe",
        b"x" * 300: "aa1a1a8c3739a6f534c297d5dc46ccff",
    },
    2**63 + 5: {
        b"": "02ae5b72f54108bc7758a6314584f230",
        b"a": "2a4f0f9e9c0124ad5b233e77a3242aaa",
        b"abc": "aa7465850f4d0bddd8b1479e2d2ec4ff",
        b"compactor": "c785e9798e205988c810ad67ea610359",
        b"x" * 300: "71512bebaae2c085c8924d1409b923ab",
    },
}


def digests(seed: int, keys: pa.Array) -> list[str]:
    hi, lo = Xxh3KeyHasher(seed)(keys)
    assert hi.dtype == lo.dtype == "uint64"
    return [f"{high:016x}{low:016x}" for high, low in zip(hi.tolist(), lo.tolist(), strict=True)]


@pytest.mark.parametrize("seed", VECTORS)
def test_hashes_are_xxh3_128(seed: int) -> None:
    assert digests(seed, pa.array(list(VECTORS[seed]), pa.binary())) == list(VECTORS[seed].values())


@pytest.mark.parametrize(("start", "length"), [(0, 5), (1, 3), (4, 1), (5, 0)])
def test_a_slice_of_keys_hashes_as_its_keys_do(start: int, length: int) -> None:
    keys = pa.array(list(VECTORS[0]), pa.binary()).slice(start, length)
    assert digests(0, keys) == list(VECTORS[0].values())[start : start + length]


def test_no_keys_no_hashes() -> None:
    assert digests(7, pa.array([], pa.binary())) == []


def test_many_keys_keep_their_order() -> None:
    keys = list(VECTORS[1]) * 5_000
    assert digests(1, pa.array(keys, pa.binary())) == list(VECTORS[1].values()) * 5_000
