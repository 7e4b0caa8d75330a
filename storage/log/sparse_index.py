"""Pointers to some frames of a segment, so that a reader need not read it from its beginning.

A file of records of 28 bytes, one for about every 64 KiB of the segment, ascending:

    4 first offset of the frame's entry, less the segment's | 4 entry id | 8 position | 8 largest publish time before it
    | 4 CRC32C, which continues from that of the segment's header

The largest publish time is that of all entries before the frame: a search for a time above it misses nothing by
beginning there. The file is never flushed, and may be missing, torn or outdated; no record is trusted before the frame
that it points to has proved it (frames.py). Recovery rewrites it, since the bytes that it cuts off may have pointers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

import google_crc32c

from storage.log.frames import HEADER_BYTES

SPACING_BYTES = 64 << 10
NO_TIME = -(2**63)
"""The largest publish time of no entries."""
_RECORD = Struct(">IIQq")
_CHECKSUM = Struct(">I")
RECORD_BYTES = _RECORD.size + _CHECKSUM.size


class FramePosition(NamedTuple):
    """The place of a frame in its segment: entry id and first offset of its entry, and the position of the frame in the
    file.

    `max_time_before`: the largest publish time (ms) of all entries before it.
    """

    entry_id: int
    offset: int
    position: int
    max_time_before: int = NO_TIME

    @classmethod
    def first(cls, first_offset: int) -> FramePosition:
        """Return the place of a segment's first frame."""
        return cls(0, first_offset, HEADER_BYTES)


class SparseIndexBuilder:
    """A builder of the records of a sparse index, from entries that are added in order.

    `first_offset`: the segment's; `seed`: its header's CRC32C; `spacing_bytes`: the least distance of two pointers.
    """

    def __init__(self, first_offset: int, seed: int, spacing_bytes: int = SPACING_BYTES) -> None:
        self._first_offset = first_offset
        self._seed = seed
        self._spacing = spacing_bytes
        self._next = HEADER_BYTES + spacing_bytes
        self._largest = NO_TIME

    def record(self, entry_id: int, offset: int, position: int, publish_time: int) -> bytes:
        """Take the next entry into account; return its encoded index record, or no bytes if it gets none because the
        last pointer is near."""
        before = self._largest
        if publish_time > before:
            self._largest = publish_time
        if position < self._next:
            return b""
        self._next = position + self._spacing
        record = _RECORD.pack(offset - self._first_offset, entry_id, position, before)
        return record + _CHECKSUM.pack(google_crc32c.extend(self._seed, record))


class IndexFile:
    """The sparse index file of a segment; a context manager. Without a readable file it has no records.

    It is read by binary search: it may be long, and a segment is often opened for one read.
    """

    def __init__(self, path: Path, first_offset: int, seed: int) -> None:
        self._first_offset = first_offset
        self._seed = seed
        self._descriptor = -1
        with contextlib.suppress(OSError):  # no index: readers walk from the beginning
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def last_where(self, test: Callable[[FramePosition], bool]) -> FramePosition | None:
        """Search for the last valid record that passes `test`, and return it; None: there is none.

        All records before one that passes must pass. A damaged record counts as failing: the search may then end
        earlier than it could, never later.
        """
        if self._descriptor < 0:
            return None
        last, low, high = None, 0, os.fstat(self._descriptor).st_size // RECORD_BYTES
        while low < high:
            middle = (low + high) // 2
            place = self._read_record(middle)
            if place is not None and test(place):
                last, low = place, middle + 1
            else:
                high = middle
        return last

    def __iter__(self) -> Iterator[FramePosition]:
        """Yield all valid records of the index."""
        if self._descriptor >= 0:
            for number in range(os.fstat(self._descriptor).st_size // RECORD_BYTES):
                if (place := self._read_record(number)) is not None:
                    yield place

    def _read_record(self, number: int) -> FramePosition | None:
        data = os.pread(self._descriptor, RECORD_BYTES, number * RECORD_BYTES)
        if len(data) < RECORD_BYTES:
            return None
        record = data[: _RECORD.size]
        if _CHECKSUM.unpack_from(data, _RECORD.size)[0] != google_crc32c.extend(self._seed, record):
            return None
        offset, entry_id, position, before = _RECORD.unpack(record)
        return FramePosition(entry_id, self._first_offset + offset, position, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
