"""Delete files: the bytes of Iceberg's formats, and the same rows back."""

from __future__ import annotations

import io
import json
import struct

import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from storage.table import deletes

VECTOR = bytes.fromhex(
    "00000026"  # bytes of magic and vector, big-endian
    "d1d33964"  # magic
    "0100000000000000"  # one 32-bit bitmap, little-endian
    "00000000"  # its key
    "3a300000 01000000 0000 0200 10000000 0000 0200 0500"  # Roaring: no runs, one container of positions 0, 2 and 5
    "297ee9f9"  # CRC-32 of magic and vector, big-endian
)
PART = "s3://bucket/topics/t/runs/a/part-0.parquet"
POSITIONS = BitMap([0, 2, 5])


def test_a_deletion_vector_has_the_bytes_of_the_specification() -> None:
    assert deletes.encode_deletion_vector(POSITIONS) == VECTOR
    assert deletes.decode_deletion_vector(VECTOR) == POSITIONS


@pytest.mark.parametrize("at", [0, 3, 5, 10, 30, len(VECTOR) - 1])
def test_a_changed_deletion_vector_is_refused(at: int) -> None:
    changed = bytearray(VECTOR)
    changed[at] ^= 1
    with pytest.raises(ValueError, match="deletion vector"):
        deletes.decode_deletion_vector(bytes(changed))
    with pytest.raises(ValueError, match="deletion vector"):
        deletes.decode_deletion_vector(VECTOR[:at])


def test_a_puffin_file_has_one_blob_and_says_whose_rows_it_hides() -> None:
    data, start, length = deletes.encode_puffin(PART, POSITIONS)
    assert data[:4] == data[-4:] == b"PFA1"
    assert data[start : start + length] == VECTOR
    (size,) = struct.unpack("<i", data[-12:-8])
    assert data[-8:-4] == bytes(4), "the footer is not compressed"
    assert data[start + length : start + length + 4] == b"PFA1"
    footer = json.loads(data[-12 - size : -12])
    assert start + length + 4 + size + 12 == len(data)
    (blob,) = footer["blobs"]
    assert (blob["type"], blob["offset"], blob["length"]) == ("deletion-vector-v1", 4, 46)
    assert (blob["snapshot-id"], blob["sequence-number"], blob["fields"]) == (-1, -1, [2147483645])
    assert blob["properties"] == {"referenced-data-file": PART, "cardinality": "3"}


def test_position_deletes_name_the_part_in_each_row() -> None:
    data = deletes.encode_position_deletes(PART, POSITIONS)
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.read().to_pylist() == [{"file_path": PART, "pos": position} for position in POSITIONS]
    ids = [file.schema_arrow.field(name).metadata[b"PARQUET:field_id"] for name in ("file_path", "pos")]
    assert ids == [b"2147483546", b"2147483545"]
    assert deletes.decode_position_deletes(data) == POSITIONS


def test_many_positions_are_the_same_after_a_round() -> None:
    many = BitMap([*range(0, 200_000, 3), *range(300_000, 400_000), 2**32 - 1])
    assert deletes.decode_deletion_vector(deletes.encode_deletion_vector(many)) == many
    assert deletes.decode_position_deletes(deletes.encode_position_deletes(PART, many)) == many
