"""Delete files: the rows of a part that the table does not show, as deletion vector or as position deletes.

Format version 3 has deletion vectors: a Roaring bitmap of row positions with its length, a magic number and a CRC-32,
as the only blob of a Puffin file. (DuckDB 1.5 reads the first blob of a file, whichever a manifest names.) Format
version 2 has position deletes: a Parquet file with the part's URI and a row position in each row. Both hold all hidden
rows of one part, which never get fewer.

Pure. Specifications: https://iceberg.apache.org/puffin-spec/ and https://iceberg.apache.org/spec/#deletion-vectors.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

PUFFIN_MAGIC = b"PFA1"
VECTOR_MAGIC = bytes.fromhex("D1D33964")
FILE_PATH_ID, POSITION_ID = 2147483546, 2147483545
"""Iceberg's reserved field ids of the columns of position deletes."""
_ROW_POSITION_ID = 2147483645
_LENGTH = struct.Struct(">I")
_ONE_BITMAP = struct.pack("<qI", 1, 0)
"""A 64-bit bitmap with one 32-bit bitmap, whose key is 0: a part has fewer than 2³² rows."""
_POSITION_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"%d" % FILE_PATH_ID}),
        pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"%d" % POSITION_ID}),
    ]
)


def encode_deletion_vector(positions: BitMap) -> bytes:
    """Return a deletion vector: the blob `deletion-vector-v1` of row positions."""
    optimized = BitMap(positions)
    optimized.run_optimize()
    body = VECTOR_MAGIC + _ONE_BITMAP + bytes(optimized.serialize())
    return _LENGTH.pack(len(body)) + body + _LENGTH.pack(zlib.crc32(body))


def decode_deletion_vector(blob: bytes) -> BitMap:
    """Return the row positions of a deletion vector that `encode_deletion_vector` wrote.

    Raises ValueError for other bytes.
    """
    body, frame = blob[4:-4], 4 + len(VECTOR_MAGIC)
    if len(blob) < frame + len(_ONE_BITMAP) + 4 or blob[:4] != _LENGTH.pack(len(body)):
        raise ValueError("a deletion vector has another length than it states")
    if blob[-4:] != _LENGTH.pack(zlib.crc32(body)) or not body.startswith(VECTOR_MAGIC + _ONE_BITMAP):
        raise ValueError("a deletion vector does not match its checksum, or is of another format")
    return BitMap.deserialize(body[len(VECTOR_MAGIC) + len(_ONE_BITMAP) :])


def encode_puffin(part_uri: str, positions: BitMap) -> tuple[bytes, int, int]:
    """Return a Puffin file with the deletion vector of a part, and the start and length of its blob."""
    blob = encode_deletion_vector(positions)
    described = {
        "type": "deletion-vector-v1",
        "fields": [_ROW_POSITION_ID],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": len(PUFFIN_MAGIC),
        "length": len(blob),
        "properties": {"referenced-data-file": part_uri, "cardinality": str(len(positions))},
    }
    footer = json.dumps({"blobs": [described], "properties": {"created-by": "compactor"}}).encode()
    tail = PUFFIN_MAGIC + footer + struct.pack("<i", len(footer)) + bytes(4) + PUFFIN_MAGIC
    return PUFFIN_MAGIC + blob + tail, len(PUFFIN_MAGIC), len(blob)


def encode_position_deletes(part_uri: str, positions: BitMap) -> bytes:
    """Return a Parquet file of position deletes of a part, ascending."""
    rows = _position_array(positions)
    columns = [pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(rows), np.int32)), [part_uri]), pa.array(rows)]
    table = pa.Table.from_arrays([columns[0].cast(pa.string()), columns[1]], schema=_POSITION_DELETES)
    sink = io.BytesIO()
    options: dict[str, Any] = {"use_dictionary": ["file_path"], "column_encoding": {"pos": "DELTA_BINARY_PACKED"}}
    pq.write_table(table, sink, compression="zstd", store_schema=False, **options)
    return sink.getvalue()


def decode_position_deletes(data: bytes) -> BitMap:
    """Return the row positions of a file that `encode_position_deletes` wrote. Raises ValueError for other bytes."""
    positions = pq.read_table(pa.BufferReader(data), columns=["pos"]).column("pos").to_numpy()
    return BitMap(positions.astype(np.uint32))


def _position_array(positions: BitMap) -> npt.NDArray[np.int64]:
    return np.frombuffer(positions.to_array(), dtype=np.uint32).astype(np.int64)
