"""CRC32C over anything with bytes: the checksum of every object, row group and fence.

The checksums are ours, since a store may not check its own (design.md section 5: moto accepts a wrong one).
"""

from __future__ import annotations

from typing import Any

import google_crc32c
import pyarrow as pa


def crc32c(data: Any) -> int:
    """Return the CRC32C (Castagnoli) of a bytes-like object, without copying it."""
    return int(google_crc32c.value(data if isinstance(data, bytes) else pa.py_buffer(data)))


def extend_crc32c(checksum: int, data: Any) -> int:
    """Return the CRC32C of the bytes that `checksum` covers, followed by `data`."""
    return int(google_crc32c.extend(checksum, data if isinstance(data, bytes) else pa.py_buffer(data)))
