"""A reader of a segment's frames: one after the other, each checked, or the one at a position that may hold one.

It reads in chunks into one buffer; an entry that is larger than the buffer gets a buffer of its size. So memory is
bounded by the chunk or the largest entry, and a reader that waits after a large entry holds a chunk.

    strict       iteration, after which any `problem` is damage        segment_reader.py
    torn end     iteration, after which a `problem` is where to cut    recovery.py
    damaged      `frame_at` any position; the caller proves frames     segment_dump.py

For each entry of an iteration length, checksum and metadata are checked, and the checksum proves its entry id and
offset (frames.py). The iteration stops at the end, or at the first frame that is not valid. Must not know: the meaning
of a problem.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from storage.entries.decode import StoredEntry
from storage.entries.entry import inspect
from storage.errors import InvalidRecord
from storage.log.frames import FRAME_BYTES, FRAME_VERSION, LARGEST_ENTRY, frame_checksum, unpack_frame
from storage.log.sparse_index import FramePosition

CHUNK_BYTES = 2 << 20


class UnverifiedFrame(NamedTuple):
    """An entry that was read from a frame, and the frame's checksum, which is not verified."""

    entry: bytes
    checksum: int


class FrameReader:
    """A reader of the frames of an open file, from `start` to before the byte `end`.

    `seed`: the CRC32C of the segment's header. `entry_id`, `offset` and `position` are those of the next frame.
    `problem`: the reason why the iteration stopped before `end`; None: every frame was valid.
    """

    def __init__(
        self, descriptor: int, seed: int, start: FramePosition, end: int, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.entry_id, self.offset, self.position = start.entry_id, start.offset, start.position
        self.problem: str | None = None
        self._descriptor = descriptor
        self._seed = seed
        self._end = end
        self._chunk_bytes = chunk_bytes
        self._buffer = bytearray(0)
        self._begin = 0
        """Position in the file of the buffer's first byte; the buffer has `_filled` bytes of the file."""
        self._filled = 0

    def __iter__(self) -> Iterator[StoredEntry]:
        while self.problem is None and self.position < self._end:
            entry = self._next_entry()
            if entry is None:
                return
            yield entry

    def frame_at(self, position: int) -> UnverifiedFrame | str:
        """Read the frame that begins at a position of the file; return a text, the problem, if no frame can begin
        there."""
        remaining = self._end - position
        if remaining < FRAME_BYTES:
            return f"{remaining} bytes remain where a frame has at least {FRAME_BYTES}"
        at = self._load_into_buffer(position, FRAME_BYTES)
        if at < 0:
            return "the file ends within a frame"
        length, version, checksum = unpack_frame(self._buffer, at)
        if version != FRAME_VERSION:
            is_empty = length == version == checksum == 0
            return "zeros where a frame begins" if is_empty else f"a frame of version {version} does not exist"
        if length > LARGEST_ENTRY or length > remaining - FRAME_BYTES:
            return f"a frame of {length} bytes is longer than the rest of the file, or than any frame"
        at = self._load_into_buffer(position, FRAME_BYTES + length)
        if at < 0:
            return "the file ends within a frame"
        entry = bytes(memoryview(self._buffer)[at + FRAME_BYTES : at + FRAME_BYTES + length])
        return UnverifiedFrame(entry, checksum)

    def _next_entry(self) -> StoredEntry | None:
        frame = self.frame_at(self.position)
        if isinstance(frame, str):
            return self._record_problem(frame)
        data, checksum = frame
        if frame_checksum(self._seed, self.entry_id, self.offset, data) != checksum:
            return self._record_problem("the checksum of a frame is wrong")
        try:
            header = inspect(data)
        except InvalidRecord as error:
            return self._record_problem(f"a frame's checksum is right, but its entry is not valid: {error.message}")
        entry = StoredEntry(self.entry_id, self.offset, data, header)
        self.entry_id += 1
        self.offset += header.messages
        self.position += FRAME_BYTES + len(data)
        return entry

    def _record_problem(self, problem: str) -> StoredEntry | None:
        self.problem = problem
        return None

    def _load_into_buffer(self, position: int, length: int) -> int:
        """Read `length` bytes from `position` on into the buffer, if they are not there; return their index in the
        buffer, -1 if the file has fewer."""
        at = position - self._begin
        if 0 <= at <= self._filled - length:
            return at
        size = max(self._chunk_bytes, length)
        if len(self._buffer) != size:  # a buffer that grew for a large entry is not kept
            self._buffer = bytearray(size)
        self._begin, self._filled = position, 0
        needed = min(size, self._end - position)
        view = memoryview(self._buffer)
        while self._filled < needed:
            got = os.preadv(self._descriptor, [view[self._filled : needed]], self._begin + self._filled)
            if not got:
                break
            self._filled += got
        return 0 if length <= self._filled else -1
