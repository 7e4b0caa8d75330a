"""Compression of Kafka's batches: gzip, Snappy (raw, or in the frames of xerial's Java library), LZ4 frames, ZSTD.

The size of the uncompressed bytes is not stated. Decompression stops at a limit, so a small batch cannot fill the
memory. In messages of magic 0 the checksum of an LZ4 frame's header covers the frame's magic number, too, which is
wrong; it is put right before the frame is read (KAFKA-3160).

Raises Undecompressable and nothing else, for any bytes. Must not know: batches. Source: Kafka's CompressionType.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_BYTES = 1 << 30
"""The most bytes of a batch, uncompressed. Arrow's positions in a block of batches have 31 bits."""


class Codec(IntEnum):
    """Compressions of batches, by Kafka's numbers."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_STREAMS = {Codec.GZIP: "gzip", Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}
_PIECE_BYTES = 1 << 16
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE, _LZ4_DICTIONARY = 0x08, 0x01
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
_U32 = 0xFFFFFFFF


class Undecompressable(Exception):
    """Compressed bytes are damaged, too large, or of a compression that is not known."""


def decompress(codec: int, data: Buffer, *, magic: int = 2, max_bytes: int = MAX_BYTES) -> Buffer:
    """Decompress the records of a Kafka batch; return their bytes. `codec`: a number of Codec; `magic`: the format of
    the message that has them.

    Raises Undecompressable for damaged bytes, an unknown codec, and a result of more than `max_bytes`.
    """
    try:
        known = Codec(codec)
    except ValueError:
        raise Undecompressable(f"the compression {codec} is not known") from None
    if known is Codec.NONE:
        return data
    try:
        if known is Codec.SNAPPY:
            return b"".join(_decompress_snappy(bytes(data), max_bytes))
        frame = with_correct_header_checksum(bytes(data)) if known is Codec.LZ4 and magic == 0 else data
        return _decompress_stream(known, frame, max_bytes)
    except (pa.ArrowException, OSError) as error:
        raise Undecompressable(f"{known.name} data is damaged ({error})") from error


def _decompress_stream(codec: Codec, data: Buffer, max_bytes: int) -> bytes:
    pieces, size = [], 0
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), _STREAMS[codec]) as stream:
        while piece := stream.read(_PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            _check_size(size, max_bytes)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _decompress_snappy(data: bytes, max_bytes: int) -> Iterator[bytes]:
    if not data.startswith(_XERIAL):
        yield _decompress_snappy_block(data, 0, max_bytes)
        return
    at, size = _XERIAL_HEADER_BYTES, 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            raise Undecompressable("SNAPPY data ends inside a frame")
        block = _decompress_snappy_block(data[at + 4 : end], size, max_bytes)
        size += len(block)
        yield block
        at = end


def _decompress_snappy_block(data: bytes, before: int, max_bytes: int) -> bytes:
    """Decompress a raw Snappy block, which begins with its uncompressed size; return its bytes. `before`: the number of
    uncompressed bytes before it, for the limit."""
    size = 0
    for number, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            break
    else:
        raise Undecompressable("SNAPPY data does not begin with its size")
    _check_size(before + size, max_bytes)
    if not size:
        return b""
    block: bytes = pa.Codec("snappy").decompress(data, decompressed_size=size, asbytes=True)
    return block


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise Undecompressable(f"it has more than {max_bytes} bytes, uncompressed")


def with_correct_header_checksum(frame: bytes) -> bytes:
    """Return an LZ4 frame with the correct checksum in its header; other bytes as they are."""
    if not frame.startswith(_LZ4_MAGIC) or len(frame) < 7:
        return frame
    flags = frame[4]
    at = 6 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
    if at >= len(frame):
        return frame
    return frame[:at] + bytes([(short_xxh32(frame[4:at]) >> 8) & 0xFF]) + frame[at + 1 :]


def short_xxh32(data: bytes) -> int:
    """Return the XXH32 hash, with seed 0, of fewer than 16 bytes."""
    value, at = (_PRIME_5 + len(data)) & _U32, 0
    while at + 4 <= len(data):
        value = (value + int.from_bytes(data[at : at + 4], "little") * _PRIME_3) & _U32
        value = (_rotate_left(value, 17) * _PRIME_4) & _U32
        at += 4
    for byte in data[at:]:
        value = (value + byte * _PRIME_5) & _U32
        value = (_rotate_left(value, 11) * _PRIME_1) & _U32
    value = ((value ^ (value >> 15)) * _PRIME_2) & _U32
    value = ((value ^ (value >> 13)) * _PRIME_3) & _U32
    return value ^ (value >> 16)


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _U32
