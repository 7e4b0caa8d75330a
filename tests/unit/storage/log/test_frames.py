"""Bytes of segments: what docs/format.md says, and that a frame passes in its own place alone."""

from __future__ import annotations

from dataclasses import replace

import google_crc32c
import pytest

from storage.log.frames import FRAME_BYTES, HEADER_BYTES, SegmentHeader, encode_frame_head, frame_checksum, read_header

HEADER = SegmentHeader("00112233445566778899aabbccddeeff", 7, 1000)


def test_the_header_byte_by_byte() -> None:
    covered = (
        b"CMPCTLOG"
        + bytes([0, 0, 0, 1])
        + bytes.fromhex("00112233445566778899aabbccddeeff")
        + bytes([0, 0, 0, 0, 0, 0, 0, 7])
        + bytes([0, 0, 0, 0, 0, 0, 3, 232])
    )
    expected = covered + google_crc32c.value(covered).to_bytes(4, "big") + bytes(16)
    assert HEADER.encode() == expected
    assert len(expected) == HEADER_BYTES
    assert read_header(expected + b"frames") == HEADER


def test_a_frame_byte_by_byte() -> None:
    covered = (5).to_bytes(8, "big") + (1012).to_bytes(8, "big") + (7).to_bytes(4, "big") + bytes([1]) + b"entry.."
    checksum = google_crc32c.extend(HEADER.checksum, covered)
    head = encode_frame_head(HEADER.checksum, 5, 1012, b"entry..")
    assert head == (7).to_bytes(4, "big") + bytes([1]) + checksum.to_bytes(4, "big")
    assert len(head) == FRAME_BYTES


@pytest.mark.parametrize("position", range(HEADER_BYTES))
def test_every_byte_of_a_header_counts(position: int) -> None:
    data = bytearray(HEADER.encode())
    data[position] ^= 1
    assert isinstance(read_header(bytes(data)), str)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1])
def test_a_short_header_is_none(length: int) -> None:
    assert read_header(HEADER.encode()[:length]) == f"the header has {length} bytes, not 64"


def test_a_later_format_is_told() -> None:
    covered = bytearray(HEADER.encode()[:44])
    covered[11] = 2
    data = bytes(covered) + google_crc32c.value(bytes(covered)).to_bytes(4, "big") + bytes(16)
    assert read_header(data) == "it is of format version 2, this program knows 1"


@pytest.mark.parametrize(
    "other",
    [
        (replace(HEADER, topic_uid="ff" * 16), 5, 1012),
        (replace(HEADER, ledger_id=8), 5, 1012),
        (replace(HEADER, first_offset=1001), 5, 1012),
        (HEADER, 6, 1012),
        (HEADER, 5, 1013),
        (HEADER, 1012, 5),
    ],
)
@pytest.mark.parametrize("entry", [b"", b"entry", bytes(100)])
def test_a_frame_passes_in_its_own_place_alone(other: tuple[SegmentHeader, int, int], entry: bytes) -> None:
    header, entry_id, offset = other
    checksum = frame_checksum(HEADER.checksum, 5, 1012, entry)
    assert frame_checksum(header.checksum, entry_id, offset, entry) != checksum
