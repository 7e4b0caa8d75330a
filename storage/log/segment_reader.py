"""Reads the entries of one segment: a rolled one, whose size its row says, or one that is appended to, possibly by
another process, up to its high watermark.

Every entry that is handed out is proved by its checksum (frames.py). A read that begins in the middle reads the
sparse index, and walks from the beginning if that does not help. Whatever is not valid before the end is damage: an
error with file and position, never a gap. Where no high watermark can be read, the last whole frame is the end:
recovery keeps the same frames.

May go wrong: ObjectMissing; ObjectDamaged; Unavailable. Memory: a chunk, or twice the largest entry. Not for several
threads at once. Must not know: rows, messages in a batch, which segments there are.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.entries.decode import StoredEntry
from storage.entries.entry import EntryHeader
from storage.errors import ObjectDamaged
from storage.log.frame_reader import CHUNK_BYTES, FrameReader
from storage.log.frames import HEADER_BYTES
from storage.log.high_watermark import HighWatermark, read_high_watermark
from storage.log.recovery import RESTORE, check_header
from storage.log.segment import LocalSegment, naming_file
from storage.log.sparse_index import FramePosition, IndexFile
from storage.model import LogPosition

_log = logging.getLogger(__name__)
_damaged: set[Path] = set()
"""The end files that this process has found damaged: each is logged once, and not again by each read."""


class SegmentReader:
    """Reads one segment. `end`: its size, if it is rolled; None: it is open."""

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
        """The entries from the one that holds `start_offset` on, up to where the end was when this was called.

        Raises ObjectMissing, ObjectDamaged.
        """
        with self._opened() as (descriptor, end):
            start = self._proved(descriptor, end, lambda place: place.offset <= start_offset)
            frames = self._frames(descriptor, start, end)
            for entry in frames:
                if frames.offset > start_offset:
                    yield entry
            self._check(frames)

    def offset_of_entry(self, entry_id: int) -> int:
        """The first offset of an entry; behind the last one: the offset that comes next."""
        return self._search(lambda place: place.entry_id <= entry_id, lambda entry, _: entry.entry_id >= entry_id)

    def offset_at_time(self, publish_time: int) -> int:
        """The first offset of the first entry published at that time or later; if there is none: the one that comes
        next. Times need not ascend: all entries before it are older, those behind it may be.
        """
        return self._search(
            lambda place: place.time_before < publish_time, lambda _, header: header.publish_time >= publish_time
        )

    def last(self) -> LogPosition | None:
        """The last message that can be seen; None: there is none."""
        found: StoredEntry | None = None
        with self._opened() as (descriptor, end):
            frames = self._frames(descriptor, self._proved(descriptor, end, lambda _: True), end)
            for found in frames:  # noqa: B007  only the last counts
                pass
            self._check(frames)
        if found is None:
            return None
        return self._segment.last_position(found.entry_id, found.offset, _known(found))

    def high_watermark(self) -> HighWatermark:
        """How far the segment, which is open, may be read. Raises ObjectMissing, ObjectDamaged (the header)."""
        found = read_high_watermark(self._files.end, self._seed)
        if found is not None and found.certain:
            return found
        with naming_file(self._files.log, "read"), self._file() as descriptor:
            return self._end_by_frames(descriptor, found)

    def _search(
        self, before: Callable[[FramePosition], bool], found: Callable[[StoredEntry, EntryHeader], bool]
    ) -> int:
        with self._opened() as (descriptor, end):
            frames = self._frames(descriptor, self._proved(descriptor, end, before), end)
            for entry in frames:
                if found(entry, _known(entry)):
                    return entry.offset
            self._check(frames)
            return frames.offset

    @contextmanager
    def _opened(self) -> Iterator[tuple[int, int]]:
        """The file, and how far it may be read."""
        with naming_file(self._files.log, "read"), self._file() as descriptor:
            yield descriptor, self._end if self._end is not None else self._visible_end(descriptor)

    @contextmanager
    def _file(self) -> Iterator[int]:
        descriptor = os.open(self._files.log, os.O_RDONLY | os.O_CLOEXEC)
        try:
            check_header(self._files.log, os.pread(descriptor, HEADER_BYTES, 0), self._header)
            yield descriptor
        finally:
            os.close(descriptor)

    def _visible_end(self, descriptor: int) -> int:
        found = read_high_watermark(self._files.end, self._seed)
        if found is None or not found.certain:
            self._files.log.stat()  # raises if the segment was removed since it was opened: then it is not empty
            found = self._end_by_frames(descriptor, found)
        return found.visible

    def _end_by_frames(self, descriptor: int, at_least: HighWatermark | None) -> HighWatermark:
        """The end of the last whole frame; `at_least`, if that is behind it: then frames before it are damaged."""
        size = os.fstat(descriptor).st_size
        frames = self._frames(descriptor, self._proved(descriptor, size, lambda _: True), max(size, HEADER_BYTES))
        for _ in frames:
            pass
        found = HighWatermark(frames.position, frames.position, frames.entry_id, frames.offset)
        if self._files.end not in _damaged and self._files.end.exists():
            _damaged.add(self._files.end)
            _log.warning(
                "%s is damaged; the frames of %s say that %d entries up to byte %d may be read",
                self._files.end,
                self._files.log.name,
                found.entries,
                found.visible,
            )
        return found if at_least is None or found.visible >= at_least.visible else at_least

    def _proved(self, descriptor: int, end: int, wanted: Callable[[FramePosition], bool]) -> FramePosition:
        """The last place that the index knows, is `wanted`, and where that frame really is; else the first frame's."""
        first_offset = self._header.first_offset
        with IndexFile(self._files.index, first_offset, self._seed) as index:
            place = index.last(lambda found: found.position < end and wanted(found))
        if place is not None:
            frames = FrameReader(descriptor, self._seed, place, end, 1 << 16)
            if next(iter(frames), None) is not None:
                return place
        return FramePosition.first(first_offset)

    def _frames(self, descriptor: int, start: FramePosition, end: int) -> FrameReader:
        return FrameReader(descriptor, self._seed, start, end, self._chunk_bytes)

    def _check(self, frames: FrameReader) -> None:
        """Raises ObjectDamaged for a walk that did not come to the end, unless the end itself has been taken back."""
        if frames.problem is None:
            return
        if self._end is None and self.high_watermark().visible <= frames.position:
            return  # a flush failed, and what was visible under a policy that allows it is gone
        raise ObjectDamaged(
            f"the segment {self._files.log} is damaged at byte {frames.position} (entry {frames.entry_id}, offset "
            f"{frames.offset}): {frames.problem}",
            RESTORE,
        )


def _known(entry: StoredEntry) -> EntryHeader:
    assert entry.header is not None, "a walk reads each entry"
    return entry.header
