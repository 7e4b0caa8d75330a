"""The high watermark of an open segment: a file of 256 bytes beside it, which its writer keeps mapped.

    0, 64    two copies: 8 number | 8 flushed bytes | 8 visible bytes | 8 entries | 8 next offset | 8 logical bytes |
             1 version | 4 CRC32C
    128      the writer: 4 process id | 1 length | host name | zeros | (at 252) 4 CRC32C

Readers in other processes read up to the high watermark and no further, so no reader sees an entry that a power cut
could revoke while its id goes to another message. The writer writes one copy, then the other, before it acknowledges.
If the writer is killed between two bytes, or a bit flips, one copy is invalid, and the other holds the same or the
previous value. The copy with the greater number counts. A reader to which both look torn was overtaken twice while it
read, and reads again. A copy's CRC32C continues from that of the segment's header, so the file of an earlier segment of
the same name is never valid.

Files of version 2 do not have the logical bytes. A writer that opens one writes version 3.

The file is never flushed: after a power cut it is outdated or invalid, never ahead. Must not know: frames, their
content.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import google_crc32c

from storage.file_modes import file_mode_in

_VALUES = Struct(">QQQQQQ")
_VERSION = b"\x03"
_FORMATS = ((_VALUES, _VERSION), (Struct(">QQQQQ"), b"\x02"))
_CHECKSUM = Struct(">I")
_COPIES_AT = (0, 64)
_WRITER = Struct(">IB")
_WRITER_AT = 128
_WRITER_BYTES = 128
_BYTES = _WRITER_AT + _WRITER_BYTES
_READS = 5
"""Reads after which both copies count as invalid if they look torn: a writer takes microseconds for one."""
_HOST_BYTES = _WRITER_BYTES - _WRITER.size - _CHECKSUM.size


@dataclass(frozen=True)
class HighWatermark:
    """The ends of an open segment. `flushed_bytes`: the bytes that are durable; `visible_bytes`: the bytes that readers
    may read.

    `entries`: the number of entries in the visible bytes; `next_offset`: the offset after them; `logical_bytes`: their
    logical bytes, None if they were not counted.
    """

    flushed_bytes: int
    visible_bytes: int
    entries: int
    next_offset: int
    logical_bytes: int | None = None


@dataclass(frozen=True)
class WritingProcess:
    """The process that appends to a segment."""

    pid: int
    host: str


class HighWatermarkWriter:
    """The writer of a high watermark file, for the process that holds the segment's lock. `seed`: the CRC32C of the
    segment's header."""

    def __init__(self, path: Path, seed: int) -> None:
        self._seed = seed
        newest = _newest_copy(_read_bytes(path), seed)
        self._number = newest.number if newest else 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode_in(path.parent))
        try:
            if os.fstat(self._descriptor).st_size != _BYTES:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, bytes(_BYTES), 0)  # blocks on the disk: a mapped hole may fail with SIGBUS
            self._map = mmap.mmap(self._descriptor, _BYTES)
        except BaseException:
            os.close(self._descriptor)
            raise
        host = socket.gethostname().encode()[:_HOST_BYTES]
        writer = (_WRITER.pack(os.getpid(), len(host)) + host).ljust(_WRITER_BYTES - _CHECKSUM.size, b"\x00")
        self._map[_WRITER_AT:] = writer + _CHECKSUM.pack(google_crc32c.value(writer))

    def publish(self, end: HighWatermark) -> None:
        """Write a new high watermark, so that readers in all processes read up to `end`."""
        self._number += 1
        values = end.flushed_bytes, end.visible_bytes, end.entries, end.next_offset, end.logical_bytes
        copy = _VALUES.pack(self._number, *values) + _VERSION
        copy += _CHECKSUM.pack(google_crc32c.extend(self._seed, copy))
        for at in _COPIES_AT:
            self._map[at : at + len(copy)] = copy

    def flush(self) -> None:
        """Make the high watermark file durable: needed once, when the watermark was lowered."""
        self._map.flush()
        os.fsync(self._descriptor)

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)


def read_high_watermark(path: Path, header_checksum: int) -> HighWatermark | None:
    """Read the high watermark of a segment from its file; None: there is no file, or no valid copy of this segment.

    `header_checksum`: the CRC32C of the segment's header.
    """
    for _ in range(_READS):
        data = _read_bytes(path)
        newest = _newest_copy(data, header_checksum)
        if newest:
            return newest.end
        if len(data) < _BYTES:
            return None
    return None


def read_writing_process(path: Path) -> WritingProcess | None:
    """Return the process that last opened the segment for appending; None if the file does not name one."""
    record = _read_bytes(path)[_WRITER_AT:]
    if len(record) < _WRITER_BYTES:
        return None
    text, checksum = record[: -_CHECKSUM.size], _CHECKSUM.unpack(record[-_CHECKSUM.size :])[0]
    if checksum != google_crc32c.value(text):
        return None
    pid, length = _WRITER.unpack_from(text)
    return WritingProcess(pid, text[_WRITER.size : _WRITER.size + length].decode(errors="replace"))


class _Copy(NamedTuple):
    number: int
    end: HighWatermark


def _newest_copy(data: bytes, seed: int) -> _Copy | None:
    copies = [copy for at in _COPIES_AT for layout in _FORMATS if (copy := _parse_copy(data, at, *layout, seed))]
    return max(copies, key=lambda copy: copy.number, default=None)


def _parse_copy(data: bytes, at: int, layout: Struct, version: bytes, seed: int) -> _Copy | None:
    """Parse the copy of the high watermark at a position; None: it has another version, or a wrong checksum."""
    end = at + layout.size + len(version)
    copy, checksum = data[at:end], data[end : end + _CHECKSUM.size]
    if not copy.endswith(version) or checksum != _CHECKSUM.pack(google_crc32c.extend(seed, copy)):
        return None
    number, *values = layout.unpack_from(copy)
    return _Copy(number, HighWatermark(*values))


def _read_bytes(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()[:_BYTES]
    return b""
