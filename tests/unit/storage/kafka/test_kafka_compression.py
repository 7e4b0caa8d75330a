"""Compression of batches: every codec, whole frames alone, and no more bytes than the limit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage.kafka.compression import Undecompressable, decompress, short_xxh32, with_correct_header_checksum
from tests.kafka_batches import GZIP, LZ4, NONE, SNAPPY, XERIAL, ZSTD, compress

DATA = b"".join(b"%d, " % number for number in range(100_000))
STREAMS = [GZIP, LZ4, ZSTD]


def kafka_codec(codec: int) -> int:
    return SNAPPY if codec == XERIAL else codec


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, XERIAL, LZ4, ZSTD])
@pytest.mark.parametrize("data", [b"", b"x", DATA])
def test_what_a_producer_compressed_comes_out(codec: int, data: bytes) -> None:
    assert bytes(decompress(kafka_codec(codec), compress(codec, data))) == data


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, XERIAL, LZ4, ZSTD])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_damaged_data_is_an_error(codec: int, kept: float) -> None:
    packed = compress(codec, DATA)
    with pytest.raises(Undecompressable):
        decompress(kafka_codec(codec), packed[: max(5, int(kept * len(packed)))])


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, XERIAL, LZ4, ZSTD])
def test_more_bytes_than_the_limit_are_refused(codec: int) -> None:
    with pytest.raises(Undecompressable, match="more than"):
        decompress(kafka_codec(codec), compress(codec, DATA), max_bytes=len(DATA) - 1)


def test_an_unknown_codec_is_an_error() -> None:
    with pytest.raises(Undecompressable, match="compression 5 is not known"):
        decompress(5, b"x")


@pytest.mark.parametrize(
    ("data", "value"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF)], ids=["empty", "a", "abc"]
)
def test_xxh32_of_short_bytes(data: bytes, value: int) -> None:
    """Values that the implementations of XXH32 publish."""
    assert short_xxh32(data) == value


def test_the_checksum_of_an_lz4_frame_s_header_is_put_right() -> None:
    frame = bytes(pa.Codec("lz4").compress(DATA, asbytes=True))
    assert with_correct_header_checksum(frame) == frame
    at = 6 if not frame[4] & 0x08 else 14
    wrong = frame[:at] + bytes([frame[at] ^ 0xFF]) + frame[at + 1 :]
    with pytest.raises(Undecompressable):
        decompress(LZ4, wrong)
    assert bytes(decompress(LZ4, wrong, magic=0)) == DATA
    assert with_correct_header_checksum(b"no frame") == b"no frame"
