"""An entry's compression, by Pulsar's codecs: raw LZ4 blocks and raw Snappy, ZLIB and ZSTD streams.

The caller states the uncompressed size. Decompression never takes more memory than that, and raises Undecodable for any
other size. This holds although Arrow's LZ4 and Snappy may fill only a part of a larger buffer without reporting it, and
leave the previous content of the memory in the rest.

Must not know: the meaning of the bytes, the source of their size.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from storage.ledger.rows import CompressionType

_ARROW_NAMES = {CompressionType.LZ4: "lz4_raw", CompressionType.ZSTD: "zstd", CompressionType.SNAPPY: "snappy"}
_LEVELS = {CompressionType.ZLIB: (1, 6, 9), CompressionType.ZSTD: (1, 3, 9)}
"""Levels of `recompress`, the fastest first. The default level of clients is the second."""
LARGE_BYTES = 4 << 20
"""The size above which bytes are compressed again at a higher level: a client's largest message is 5 MiB by default."""


class Undecodable(Exception):
    """Bytes are damaged, or are not what their metadata states; their entry passes whole (P8)."""


def compress(codec: CompressionType, data: bytes, level: int | None = None) -> bytes:
    """Compress bytes with a codec; return them as they are for NONE. `level`: on the codec's own scale; None: its
    default."""
    if codec == CompressionType.NONE:
        return data
    if codec == CompressionType.ZLIB:
        return zlib.compress(data, zlib.Z_DEFAULT_COMPRESSION if level is None else level)
    compressed: bytes = pa.Codec(_ARROW_NAMES[codec], level).compress(data, asbytes=True)
    return compressed


def recompress(codec: CompressionType, data: bytes) -> bytes:
    """Compress a payload again with the codec that its producer used, at the codec's fastest level.

    If the result is larger than LARGE_BYTES, the next higher levels are tried. Any bytes can be compressed: no error is
    raised.
    """
    compressed = data
    for level in _LEVELS.get(codec, (None,)):
        compressed = compress(codec, data, level)
        if len(compressed) <= LARGE_BYTES:
            break
    return compressed


def decompress(codec: CompressionType, data: bytes, size: int) -> bytes:
    """Decompress bytes to exactly `size` bytes. Raises Undecodable if they have any other size, or are damaged.

    With CompressionType.NONE nothing is checked: the bytes are returned as they are.
    """
    if codec == CompressionType.NONE:
        return data
    if not size and not data:
        return b""
    try:
        if codec == CompressionType.ZLIB:
            return _decompress_zlib(data, size)
        return _arrow_decompress(codec, data, size)
    except (pa.ArrowException, OSError, zlib.error) as error:
        raise Undecodable(f"{codec.name} data is damaged: {error}") from error


def _decompress_zlib(data: bytes, size: int) -> bytes:
    # Java's clients end a stream with a sync flush and no checksum, so its end proves nothing; its length does.
    stream = zlib.decompressobj()
    inflated = stream.decompress(data, size) if size else b""  # a maximum of 0 would mean none
    if len(inflated) != size or stream.decompress(stream.unconsumed_tail if size else data, 1):
        raise Undecodable(f"ZLIB data does not hold {size} bytes")
    return inflated


def _arrow_decompress(codec: CompressionType, data: bytes, size: int) -> bytes:
    if codec == CompressionType.SNAPPY and _stated_snappy_size(data) != size:
        raise Undecodable(f"SNAPPY data does not hold {size} bytes")
    arrow = pa.Codec(_ARROW_NAMES[codec])
    decompressed: bytes = arrow.decompress(data, decompressed_size=size, asbytes=True)
    if codec == CompressionType.LZ4 and size and _decompresses_within(arrow, data, size - 1):
        # A raw block does not say how long it is. It holds exactly `size` bytes if one byte less is not enough room.
        raise Undecodable(f"LZ4 data does not hold {size} bytes")
    return decompressed


def _decompresses_within(arrow: pa.Codec, data: bytes, size: int) -> bool:
    try:
        arrow.decompress(data, decompressed_size=size)
    except (pa.ArrowException, OSError):
        return False
    return True


def _stated_snappy_size(data: bytes) -> int:
    size = 0
    for number, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return size
    raise Undecodable("SNAPPY data does not begin with its size")
