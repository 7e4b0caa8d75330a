"""How far a segment that is appended to may be read: a file of 256 bytes beside it, which its writer keeps mapped.

    0, 64    two slots, in turn: 8 number | 8 flushed bytes | 8 visible bytes | 8 entries | 8 next offset | 4 CRC32C
    128      who writes: 4 process id | 1 length | host name | zeros | (at 252) 4 CRC32C

Readers in other processes go up to the visible end and no further, so nobody sees an entry that a power cut could take
back while its id goes to another message. The slot with the greater number counts; a writer that is killed between two
bytes spoils one slot, and the other tells what was before. A reader that finds both torn was overtaken twice while it
read, and reads again. A slot's CRC32C goes on from that of the segment's header,
so the file of an earlier life of the same name says nothing.

The file is never flushed: what it says after a power cut is old or nothing, never too much, and nothing is visible then
until recovery has been here. Must not know: frames, what is in them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Self

import google_crc32c

from storage.private import file_mode

_SLOT = Struct(">QQQQQ")
_CHECKSUM = Struct(">I")
_SLOT_BYTES = 64
_WRITER = Struct(">IB")
_WRITER_AT = 128
_WRITER_BYTES = 128
_BYTES = _WRITER_AT + _WRITER_BYTES
_READS = 5
"""How often both slots may look torn before there is nothing in them: a writer takes microseconds for one."""
_HOST_BYTES = _WRITER_BYTES - _WRITER.size - _CHECKSUM.size


@dataclass(frozen=True)
class VisibleEnd:
    """Bytes of the segment that are durable, bytes that may be read, and what these hold."""

    flushed: int
    visible: int
    entries: int
    next_offset: int


@dataclass(frozen=True)
class WritingProcess:
    """Who appends to a segment."""

    pid: int
    host: str


class VisibleEndWriter:
    """Keeps the file up to date. For the holder of the segment's lock alone."""

    def __init__(self, path: Path, seed: int) -> None:
        self._seed = seed
        found = _newest(_read(path), seed)
        self._number = found[0] if found else 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode(path.parent))
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

    def publish(self, end: VisibleEnd) -> None:
        """Let readers go so far."""
        self._number += 1
        slot = _SLOT.pack(self._number, end.flushed, end.visible, end.entries, end.next_offset)
        at = self._number % 2 * _SLOT_BYTES
        self._map[at : at + _SLOT.size + 4] = slot + _CHECKSUM.pack(google_crc32c.extend(self._seed, slot))

    def flush(self) -> None:
        """Make it durable: needed once, when it has to say less than before."""
        self._map.flush()
        os.fsync(self._descriptor)

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_visible_end(path: Path, seed: int) -> VisibleEnd | None:
    """What the file says; None if there is none, or none of this segment that is whole. `seed`: the header's CRC32C."""
    for _ in range(_READS):
        data = _read(path)
        found = _newest(data, seed)
        if found:
            return VisibleEnd(*found[1:])
        if len(data) < _BYTES:
            return None
    return None


def read_writing_process(path: Path) -> WritingProcess | None:
    """Who last opened the segment for appending; None if the file does not say."""
    record = _read(path)[_WRITER_AT:]
    if len(record) < _WRITER_BYTES:
        return None
    text, checksum = record[: -_CHECKSUM.size], _CHECKSUM.unpack(record[-_CHECKSUM.size :])[0]
    if checksum != google_crc32c.value(text):
        return None
    pid, length = _WRITER.unpack_from(text)
    return WritingProcess(pid, text[_WRITER.size : _WRITER.size + length].decode(errors="replace"))


def _newest(data: bytes, seed: int) -> tuple[int, int, int, int, int] | None:
    slots = []
    for at in (0, _SLOT_BYTES):
        slot = data[at : at + _SLOT.size]
        checksum = data[at + _SLOT.size : at + _SLOT.size + 4]
        if len(checksum) == 4 and _CHECKSUM.unpack(checksum)[0] == google_crc32c.extend(seed, slot):
            slots.append(_SLOT.unpack(slot))
    return max(slots) if slots else None


def _read(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()[:_BYTES]
    return b""
