"""A reader of the entries of one segment: a rolled one, whose size its row records, or an open one, which possibly
another process appends to, up to its high watermark.

The checksum of every returned entry proves it (frames.py). A read that begins in the middle uses the sparse index, and
reads from the beginning if that does not help. Any invalid byte before the end is damage: an error with file and
position, never a gap. If no high watermark can be read, the last whole frame is the end: recovery keeps the same
frames.

Errors: ObjectMissing; ObjectDamaged; Unavailable. Memory: a chunk, or twice the largest entry. Not thread-safe. Must
not know: rows, messages in a batch, the list of segments.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.entries.decode import StoredEntry
from storage.errors import ObjectDamaged
from storage.log.frame_reader import CHUNK_BYTES, FrameReader
from storage.log.frames import HEADER_BYTES
from storage.log.high_watermark import HighWatermark, read_high_watermark
from storage.log.recovery import RESTORE, check_header
from storage.log.segment import LocalSegment, translating_os_errors
from storage.log.sparse_index import FramePosition, IndexFile
from storage.model import LogPosition

_log = logging.getLogger(__name__)
_damaged: set[Path] = set()
"""The damaged end files that this process has logged: each is logged once, not by each read."""


class SegmentReader:
    """A reader of the entries of one segment. `end`: the size of its file, if it is rolled; None: it is open."""

    def __init__(
        self,
        segment: LocalSegment,
        end: int | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._segment = segment
        self._files = segment.files
        self._header = segment.header
        self._end = end
        self._chunk_bytes = chunk_bytes
        self._seed = self._header.checksum

    def entries(self, start_offset: int = 0) -> Iterator[StoredEntry]:
        """Yield the entries, beginning with the one that holds `start_offset`, up to the end at the time of the call.

        Raises ObjectMissing, ObjectDamaged.
        """
        with self._open_with_end() as (descriptor, end):
            start = self._last_proved_place(descriptor, end, lambda place: place.offset <= start_offset)
            frames = self._frame_reader(descriptor, start, end)
            for entry in frames:
                if frames.offset > start_offset:
                    yield entry
            self._check_read_to_end(frames)

    def offset_of_entry(self, entry_id: int) -> int:
        """Return the first offset of the entry with an entry id; for an id after the last entry, the offset after the
        segment's messages.

        Raises ObjectMissing, ObjectDamaged.
        """
        return self._first_offset_where(
            lambda place: place.entry_id <= entry_id, lambda entry: entry.entry_id >= entry_id
        )

    def offset_at_time(self, publish_time: int) -> int:
        """Return the first offset of the first entry published at a time (ms) or later; without one, the offset after
        the segment's messages.

        Times need not ascend: all entries before it are older, those after it may be. Raises ObjectMissing,
        ObjectDamaged.
        """
        return self._first_offset_where(
            lambda place: place.max_time_before < publish_time, lambda entry: entry.header.publish_time >= publish_time
        )

    def last_position(self) -> LogPosition | None:
        """Return the position of the last visible message; None: there is none. Raises ObjectMissing, ObjectDamaged."""
        last: StoredEntry | None = None
        with self._open_with_end() as (descriptor, end):
            frames = self._frame_reader(descriptor, self._last_proved_place(descriptor, end, lambda _: True), end)
            for last in frames:  # noqa: B007  only the last counts
                pass
            self._check_read_to_end(frames)
        if last is None:
            return None
        return self._segment.last_position(last.entry_id, last.offset, last.header)

    def high_watermark(self) -> HighWatermark:
        """Return the readable end of an open segment, from its file or, without that, from its frames. Raises
        ObjectMissing, ObjectDamaged (the header)."""
        watermark = read_high_watermark(self._files.high_watermark, self._seed)
        if watermark is not None:
            return watermark
        with translating_os_errors(self._files.log, "read"), self._open_file() as descriptor:
            return self._scan_high_watermark(descriptor)

    def _first_offset_where(
        self, before: Callable[[FramePosition], bool], matches: Callable[[StoredEntry], bool]
    ) -> int:
        with self._open_with_end() as (descriptor, end):
            frames = self._frame_reader(descriptor, self._last_proved_place(descriptor, end, before), end)
            for entry in frames:
                if matches(entry):
                    return entry.offset
            self._check_read_to_end(frames)
            return frames.offset

    @contextmanager
    def _open_with_end(self) -> Iterator[tuple[int, int]]:
        """Open the segment's file inside the context; yield its descriptor, and the position of its readable end."""
        with translating_os_errors(self._files.log, "read"), self._open_file() as descriptor:
            yield descriptor, self._end if self._end is not None else self._visible_bytes(descriptor)

    @contextmanager
    def _open_file(self) -> Iterator[int]:
        descriptor = os.open(self._files.log, os.O_RDONLY | os.O_CLOEXEC)
        try:
            check_header(self._files.log, os.pread(descriptor, HEADER_BYTES, 0), self._header)
            yield descriptor
        finally:
            os.close(descriptor)

    def _visible_bytes(self, descriptor: int) -> int:
        watermark = read_high_watermark(self._files.high_watermark, self._seed)
        if watermark is None:
            self._files.log.stat()  # raises if the segment was removed since it was opened: then it is not empty
            watermark = self._scan_high_watermark(descriptor)
        return watermark.visible_bytes

    def _scan_high_watermark(self, descriptor: int) -> HighWatermark:
        """Return the high watermark that the frames show: the end of the last whole frame. A damaged end file is logged
        once."""
        size = os.fstat(descriptor).st_size
        frames = self._frame_reader(
            descriptor, self._last_proved_place(descriptor, size, lambda _: True), max(size, HEADER_BYTES)
        )
        for _ in frames:
            pass
        end = HighWatermark(frames.position, frames.position, frames.entry_id, frames.offset)
        if self._files.high_watermark not in _damaged and self._files.high_watermark.exists():
            _damaged.add(self._files.high_watermark)
            _log.warning(
                "%s is damaged; the frames of %s say that %d entries up to byte %d may be read",
                self._files.high_watermark,
                self._files.log.name,
                end.entries,
                end.visible_bytes,
            )
        return end

    def _last_proved_place(self, descriptor: int, end: int, test: Callable[[FramePosition], bool]) -> FramePosition:
        """Return the last place in the sparse index that passes `test` and whose frame is valid; otherwise the place of
        the first frame."""
        first_offset = self._header.first_offset
        with IndexFile(self._files.index, first_offset, self._seed) as index:
            place = index.last_where(lambda item: item.position < end and test(item))
        if place is not None:
            frames = FrameReader(descriptor, self._seed, place, end, 1 << 16)
            if next(iter(frames), None) is not None:
                return place
        return FramePosition.first(first_offset)

    def _frame_reader(self, descriptor: int, start: FramePosition, end: int) -> FrameReader:
        return FrameReader(descriptor, self._seed, start, end, self._chunk_bytes)

    def _check_read_to_end(self, frames: FrameReader) -> None:
        """Raise ObjectDamaged if a read stopped before the end, unless the end itself was lowered meanwhile."""
        if frames.problem is None:
            return
        if self._end is None and self.high_watermark().visible_bytes <= frames.position:
            return  # a flush failed, and entries that a policy shows before their flush were lost
        raise ObjectDamaged(
            f"the segment {self._files.log} is damaged at byte {frames.position} (entry {frames.entry_id}, offset "
            f"{frames.offset}): {frames.problem}",
            RESTORE,
        )
