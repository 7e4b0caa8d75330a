"""Bytes of a segment: a header of 64 bytes, then one frame for each entry, without gaps.

    header    8 magic | 4 format version | 16 topic uid | 8 ledger id | 8 first offset | 4 CRC32C of these | 16 zeros
    frame     4 length N of the entry | 1 frame version | 4 CRC32C | N the entry, as Pulsar encodes it

All numbers are big-endian. A frame's CRC32C continues from the header's and covers the frame's entry id (8) and first
offset (8), which are not stored, then length and version, then the entry. So a valid frame proves that it was written
to this segment, at this place: bytes of another segment or of another place never pass the check.

Errors: ObjectDamaged for a header that is not the expected one. Must not know: the content of an entry, files. Byte by
byte in docs/format.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct

import google_crc32c

from storage.ledger import rows

MAGIC = b"CMPCTLOG"
FORMAT_VERSION = 1
FRAME_VERSION = 1
HEADER_BYTES = 64
FRAME_BYTES = 9
"""The bytes of a frame besides its entry."""
LARGEST_ENTRY = rows.MAX_MESSAGE_BYTES
"""The most bytes of an entry that any writer may allow; a greater length is invalid."""

_HEADER = Struct(">8sI16sQQ")
_CHECKSUM = Struct(">I")
_FRAME = Struct(">IBI")
_COVERED = Struct(">QQIB")

extend: Callable[[int, bytes], int] = google_crc32c.extend
"""Return the CRC32C of bytes that continue others. It is called for each frame, so not through `storage.checksums`."""
unpack_frame: Callable[[bytes | bytearray | memoryview, int], tuple[int, int, int]] = _FRAME.unpack_from
"""Return the entry's length, the frame version and the CRC32C of the frame at a position of a buffer."""


@dataclass(frozen=True)
class SegmentHeader:
    """The header of a segment's file, which identifies the segment. `topic_uid`: 32 hex digits; `first_offset`: the
    offset of its first message."""

    topic_uid: str
    ledger_id: int
    first_offset: int

    def encode(self) -> bytes:
        """Return the header as the first 64 bytes of the segment's file."""
        return (self._checksummed_bytes() + _CHECKSUM.pack(self.checksum)).ljust(HEADER_BYTES, b"\x00")

    @property
    def checksum(self) -> int:
        """The CRC32C of the header, from which the checksums of the segment's frames and side files continue."""
        return int(google_crc32c.value(self._checksummed_bytes()))

    def _checksummed_bytes(self) -> bytes:
        uid = bytes.fromhex(self.topic_uid)
        return _HEADER.pack(MAGIC, FORMAT_VERSION, uid, self.ledger_id, self.first_offset)


def read_header(data: bytes) -> SegmentHeader | str:
    """Parse the first 64 bytes of a segment's file as its header; return a text, the reason, if they are invalid."""
    if len(data) < HEADER_BYTES:
        return f"the header has {len(data)} bytes, not {HEADER_BYTES}"
    magic, version, uid, ledger_id, first_offset = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return "it does not begin as a segment does"
    header = SegmentHeader(uid.hex(), ledger_id, first_offset)
    if stored_header_checksum(data) != google_crc32c.value(data[: _HEADER.size]):
        return "the header's checksum is wrong"
    if version != FORMAT_VERSION:
        return f"it is of format version {version}, this program knows {FORMAT_VERSION}"
    if any(data[_HEADER.size + 4 : HEADER_BYTES]):
        return "the header does not end in zeros"
    return header


def stored_header_checksum(data: bytes) -> int:
    """Return the header checksum that is stored in the first 64 bytes of a segment's file, right or not."""
    return int(_CHECKSUM.unpack_from(data, _HEADER.size)[0])


def frame_checksum(header_checksum: int, entry_id: int, offset: int, entry: bytes) -> int:
    """Return the CRC32C that the frame of an entry must have. `header_checksum`: the segment header's checksum."""
    return extend(extend(header_checksum, _COVERED.pack(entry_id, offset, len(entry), FRAME_VERSION)), entry)


def encode_frame_head(header_checksum: int, entry_id: int, offset: int, entry: bytes) -> bytes:
    """Return the nine bytes that precede an entry in its frame: length, version and checksum. `header_checksum`: the
    segment header's checksum."""
    return _FRAME.pack(len(entry), FRAME_VERSION, frame_checksum(header_checksum, entry_id, offset, entry))
