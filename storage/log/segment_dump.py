"""A scan of a segment's file, however damaged: for `log dump`, and for an operator who must decide on its repair.

Each frame comes with its place and with its credibility. After damage the next frame is searched for: at the end that
the damaged one claims, where the index points, and wherever an entry with a valid checksum of its own begins (Pulsar's
magic number 0x0e01, CRC32C). Its entry id and offset are known again if its checksum proves them: by the index, or if
one damaged frame in between took up to `_GUESSES` offsets.

Needs no SQL and only the file; the index helps if it exists. Changes nothing. Errors: ObjectMissing, Unavailable (the
disk). Memory: the largest entry that the file claims to hold, and 100 bytes for each 64 KiB of it.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from pathlib import Path

from storage.entries.entry import EntryHeader, inspect
from storage.errors import InvalidRecord
from storage.log.frame_reader import FrameReader
from storage.log.frames import (
    FRAME_BYTES,
    HEADER_BYTES,
    SegmentHeader,
    frame_checksum,
    read_header,
    stored_header_checksum,
)
from storage.log.segment import translating_os_errors
from storage.log.sparse_index import FramePosition, IndexFile

_MAGICS = (b"\x0e\x01", b"\x0e\x02")
_WINDOW = 1 << 20
_CHUNK_BYTES = 1 << 16
_GUESSES = 4096


class FrameState(StrEnum):
    """The credibility of a frame that was found in a segment's file."""

    VALID = "ok"
    """The frame's checksum is right for its place."""
    ENTRY_VALID = "frame damaged, entry ok"
    """The frame's checksum is wrong, the entry's own is right; entry id and offset follow from the frame before."""
    UNPLACED = "place unknown, entry ok"
    """After damage: the entry's own checksum is right, its entry id and offset are not known."""
    DAMAGED = "damaged"
    """These bytes are no frame."""


@dataclass(frozen=True)
class ScannedFrame:
    """A frame, or a range of bytes that are no frame (DAMAGED). `position`: its first byte in the file.

    `length`: the bytes of the entry, or of the range. `entry_id`, `offset` None: not known. `data`, `header` None:
    DAMAGED, and `problem` is the reason.
    """

    state: FrameState
    position: int
    length: int
    entry_id: int | None = None
    offset: int | None = None
    data: bytes | None = None
    header: EntryHeader | None = None
    problem: str | None = None
    checksum: int | None = field(default=None, compare=False)
    """The checksum that the frame has, right or not; None: DAMAGED."""


class SegmentScan:
    """A scan of a segment's file, however damaged; a context manager. `header` None: it cannot be read, and `problem`
    is the reason."""

    def __init__(self, path: Path, expected: SegmentHeader | None = None) -> None:
        """Open the file. Raises ObjectMissing, Misconfigured, Unavailable.

        `expected`: the header that the file must have, if it is known; then only its frames are believed.
        """
        self.path = path
        self._expected = expected
        self._seed: int | None = None
        with translating_os_errors(path, "read"):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.size = os.fstat(self._descriptor).st_size
            self._frames = FrameReader(self._descriptor, 0, FramePosition.first(0), self.size, _CHUNK_BYTES)
            start = os.pread(self._descriptor, HEADER_BYTES, 0)
            parsed = read_header(start)
            self.header: SegmentHeader | None = None if isinstance(parsed, str) else parsed
            self.problem = parsed if isinstance(parsed, str) else None
            self._seed, self._first_offset = self._seed_and_first_offset(start)
            self._pointers = self._read_index()

    def frames(self) -> Iterator[ScannedFrame]:
        """Yield all frames and all ranges of other bytes, in the order of the file, without gaps."""
        with translating_os_errors(self.path, "read"):
            place = FramePosition.first(self._first_offset) if self._seed is not None else None
            position = min(HEADER_BYTES, self.size)
            while position < self.size:
                frame = self._scan_frame(position, place)
                if frame.state is FrameState.DAMAGED:
                    next_position, next_place = self._next_frame_after(position, place)
                    yield ScannedFrame(frame.state, position, next_position - position, problem=frame.problem)
                    position, place = next_position, next_place
                    continue
                yield frame
                position += FRAME_BYTES + frame.length
                place = None
                if frame.entry_id is not None and frame.offset is not None and frame.header is not None:
                    place = FramePosition(frame.entry_id + 1, frame.offset + frame.header.messages, position)

    def __enter__(self) -> SegmentScan:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def _scan_frame(self, position: int, place: FramePosition | None) -> ScannedFrame:
        entry = self._frames.frame_at(position)
        if isinstance(entry, str):
            return ScannedFrame(FrameState.DAMAGED, position, 0, problem=entry)
        data, checksum = entry
        known = place if place is not None else self._index_pointer_at(position)
        right = known is not None and self._checksum_proves(known, data, checksum)
        try:
            header = inspect(data)
        except InvalidRecord as error:
            problem = error.message if right else "the checksum of a frame is wrong"
            return ScannedFrame(FrameState.DAMAGED, position, 0, problem=problem)
        if not right and not data.startswith(_MAGICS):
            return ScannedFrame(FrameState.DAMAGED, position, 0, problem="the checksum of a frame is wrong")
        state = FrameState.VALID if right else FrameState.ENTRY_VALID if known else FrameState.UNPLACED
        entry_id, offset = (known.entry_id, known.offset) if known else (None, None)
        return ScannedFrame(state, position, len(data), entry_id, offset, data, header, checksum=checksum)

    def _checksum_proves(self, place: FramePosition, data: bytes, checksum: int) -> bool:
        """Return whether a frame's checksum proves that its entry was written at a place of this segment."""
        if self._seed is None:
            return False
        return checksum == frame_checksum(self._seed, place.entry_id, place.offset, data)

    def _seed_and_first_offset(self, start: bytes) -> tuple[int | None, int]:
        """Return the header's CRC32C, from which the frames' checksums continue, and the first offset; (None, 0): not
        known.

        For a damaged header its stored checksum and the file's name are tried: they are right if they prove the first
        frame.
        """
        if known := self._expected or self.header:
            return known.checksum, known.first_offset
        name = self.path.stem
        entry = self._frames.frame_at(HEADER_BYTES)
        if len(start) < HEADER_BYTES or not name.isdecimal() or isinstance(entry, str):
            return None, 0
        self._seed = stored_header_checksum(start)
        return (self._seed, int(name)) if self._checksum_proves(FramePosition.first(int(name)), *entry) else (None, 0)

    def _index_pointer_at(self, position: int) -> FramePosition | None:
        """Return the sparse index's pointer to exactly that position; None: it has none."""
        pointer = self._index_pointer_from(position)
        return pointer if pointer is not None and pointer.position == position else None

    def _index_pointer_from(self, position: int) -> FramePosition | None:
        """Return the first pointer of the sparse index at or after a position; None: it has none."""
        at = bisect_left(self._pointers, position, key=attrgetter("position"))
        return self._pointers[at] if at < len(self._pointers) else None

    def _read_index(self) -> list[FramePosition]:
        if self._seed is None:
            return []
        with IndexFile(self.path.with_suffix(".index"), self._first_offset, self._seed) as index:
            return sorted(index, key=attrgetter("position"))

    def _next_frame_after(self, damaged: int, place: FramePosition | None) -> tuple[int, FramePosition | None]:
        """Search for the next frame after a damaged one; return its position, or the file's end, and its place in the
        segment, if that is known."""
        if place is not None and (jumped := self._frame_after_damaged(damaged, place)) is not None:
            return jumped.position, jumped
        pointer = self._index_pointer_from(damaged + 1)
        limit = self.size
        if pointer is not None:
            entry = self._frames.frame_at(pointer.position)
            if isinstance(entry, str) or not self._checksum_proves(pointer, *entry):
                pointer = None
            else:
                limit = pointer.position
        for position in self._possible_frame_starts(damaged + 1, limit):
            if self._scan_frame(position, None).state is not FrameState.DAMAGED:
                return position, None
        return limit, pointer

    def _frame_after_damaged(self, damaged: int, place: FramePosition) -> FramePosition | None:
        """Return the place of the frame right after a damaged one; None: the damaged one's length is wrong, or no
        checksum proves the place."""
        entry = self._frames.frame_at(damaged)
        if isinstance(entry, str):
            return None
        position = damaged + FRAME_BYTES + len(entry[0])
        following = self._frames.frame_at(position)
        if isinstance(following, str):
            return None
        for messages in range(1, _GUESSES + 1):
            guess = FramePosition(place.entry_id + 1, place.offset + messages, position)
            if self._checksum_proves(guess, *following):
                return guess
        return None

    def _possible_frame_starts(self, start: int, end: int) -> Iterator[int]:
        """Yield the positions between `start` and `end` at which a frame may begin, by the magic number of its
        entry."""
        position = start + FRAME_BYTES
        while position < end:
            window = os.pread(self._descriptor, min(_WINDOW, end - position) + 1, position)
            at = 0
            while (at := window.find(b"\x0e", at)) >= 0:
                if window[at : at + 2] in _MAGICS:
                    yield position + at - FRAME_BYTES
                at += 1
            position += _WINDOW
