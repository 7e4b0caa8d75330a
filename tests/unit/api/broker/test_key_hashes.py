"""Keys and partitions: MurmurHash3's published values, and its use."""

from __future__ import annotations

import pytest

from api.broker.key_hashes import murmur3, partition_of


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"test", 0xBA6BD213),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
        (b"a", 0x3C2569B2),
        (b"abc", 0xB3DD93FA),
    ],
)
def test_murmur3(data: bytes, expected: int) -> None:
    assert murmur3(data) == expected & 0x7FFFFFFF


def test_the_partition_of_a_key_is_that_of_its_text() -> None:
    assert partition_of(b"test", 7) == (0xBA6BD213 & 0x7FFFFFFF) % 7
    assert partition_of(b"\xff", 1000) == partition_of(b"/w==", 1000)
