"""Compression again: with the codec that a client chose, fast, and no larger than the client sent it if it is large."""

from __future__ import annotations

import random

import pytest

from storage.entries import compression
from storage.entries.compression import compress, decompress, recompress
from storage.ledger.rows import CompressionType

CODECS = [codec for codec in CompressionType if codec != CompressionType.NONE]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"x", b"\0" * 100_000, random.Random(1).randbytes(100_000)])
def test_what_was_compressed_again_is_decompressed(codec: CompressionType, data: bytes) -> None:
    assert decompress(codec, recompress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", [CompressionType.ZLIB, CompressionType.ZSTD])
def test_what_stays_large_is_compressed_as_far_as_clients_do(
    codec: CompressionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = random.Random(1)
    data = b"".join(b'{"id":%d,"state":"new","total":%d}' % (n, numbers.randrange(1000)) for n in range(10_000))
    fast = recompress(codec, data)
    monkeypatch.setattr(compression, "LARGE_BYTES", 1000)

    assert len(recompress(codec, data)) < len(fast)
    assert len(recompress(codec, data)) <= len(compress(codec, data))
