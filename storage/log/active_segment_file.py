"""The file of an open segment, held by its writer: lock, header, frames, flush, cut, and the two side files.

The process that has an `ActiveSegmentFile` holds the lock (flock) on it: there is one on this machine, even if a
process that was suspended and lost the topic's lease still lives. (A process that forks shares the lock with its
child.) Not thread-safe.

The process that gets the lock may have been suspended before, while other processes wrote and ended, so its knowledge
of the file may be outdated. `before_write` checks again, under the lock, before a byte of the file is changed.

Three positions: `written`, the end of the whole frames; the durable end, up to which they were flushed; and the high
watermark, up to which readers see them, because they were acknowledged. `truncate_to_acknowledged` keeps what was
acknowledged or, once a flush has failed, what was flushed: the state of the rest in the kernel is unknown.

Errors: LeaseHeld (names the process that has the file), StorageFull, Unavailable, Misconfigured; in `recover`
ObjectMissing and ObjectDamaged; `write` and `flush` raise OSError. Must not know: threads, flush policies.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

from storage.entries.entry import EntryHeader
from storage.errors import LeaseHeld
from storage.failpoints import Failpoint, failpoint
from storage.file_modes import create_folder_like_parent, file_mode_in, sync_folder
from storage.log import recovery
from storage.log.frames import FRAME_BYTES, HEADER_BYTES, encode_frame_head
from storage.log.high_watermark import HighWatermark, HighWatermarkWriter, read_high_watermark, read_writing_process
from storage.log.orphan_segments import holds_data, set_aside_files
from storage.log.segment import LocalSegment, SegmentPaths, WriterOptions, translating_os_errors
from storage.metadata.records import SegmentContent
from storage.model import MessageId

_BUFFERS = 1024
"""Buffers of one call (IOV_MAX on Linux)."""

BeforeWrite = Callable[[], object]
"""A check that is called with the lock held, before the file is changed; raises if the caller may not change it."""

_log = logging.getLogger(__name__)


def no_check() -> None:
    """Check nothing before a write: no other process can have opened the file."""


class PlacedEntry(Protocol):
    """An entry that has its place in the segment: its entry id and first offset."""

    entry_id: int
    offset: int
    data: bytes
    header: EntryHeader


class ActiveSegmentFile:
    """An open segment's file, locked; returned by `create` or `recover`.

    `written`, `flushed`: bytes of the file up to which frames are written, and are durable; `tally`: its content.
    """

    def __init__(self, segment: LocalSegment, descriptor: int, recovered: recovery.RecoveryResult) -> None:
        files = segment.files
        self.segment = segment
        self.path = files.log
        self.tally = recovered.tally
        self.written = recovered.end
        self.flushed = recovered.end
        self._seed = segment.header.checksum
        self._descriptor = descriptor
        self._pointers = recovered.pointers
        self._durable = self._acknowledged = self._high_watermark_at(recovered.end)
        self._index = _rewrite_index(files.index, recovered.index)
        try:
            with translating_os_errors(files.high_watermark, "write"):
                self._end = HighWatermarkWriter(files.high_watermark, self._seed)
        except BaseException:
            if self._index >= 0:
                os.close(self._index)
            raise
        self._end.publish(self._acknowledged)

    @classmethod
    def create(cls, segment: LocalSegment, options: WriterOptions, before_write: BeforeWrite = no_check) -> Self:
        """Create the file of a new segment, durably, and lock it. An existing file has no row: it is replaced, or set
        aside if it holds messages.

        `before_write` is called with the lock held. Raises LeaseHeld, StorageFull, Unavailable, Misconfigured.
        """
        files = segment.files
        with translating_os_errors(files.log, "create"):
            if not files.folder.is_dir():
                with contextlib.suppress(FileExistsError):
                    create_folder_like_parent(files.folder)
                sync_folder(files.folder.parent)
            descriptor = _open_and_lock(files, os.O_CREAT)
            try:
                before_write()
                if holds_data(os.fstat(descriptor).st_size):
                    set_aside_files(files)
                    renamed, descriptor = descriptor, _open_and_lock(files, os.O_CREAT)
                    os.close(renamed)
                os.ftruncate(descriptor, 0)
                for aid in (files.high_watermark, files.index):
                    aid.unlink(missing_ok=True)
                _write_all(descriptor, [segment.header.encode()], 0)
                os.fsync(descriptor)
                sync_folder(files.folder)
                failpoint(Failpoint.SEGMENT_FILE_CREATED)
                recovered = recovery.scan_segment(descriptor, HEADER_BYTES, segment, options)
                return cls(segment, descriptor, recovered)
            except BaseException:
                os.close(descriptor)
                raise

    @classmethod
    def recover(cls, segment: LocalSegment, options: WriterOptions, before_write: BeforeWrite = no_check) -> Self:
        """Lock the file that a dead writer left, cut it at its last whole frame (recovery.py), flush it, and return it.

        Raises LeaseHeld if its writer lives, ObjectMissing, ObjectDamaged for flushed bytes that are not valid.
        """
        files, header = segment.files, segment.header
        with translating_os_errors(files.log, "recover"):
            descriptor = _open_and_lock(files, 0)
            try:
                before_write()
                recovery.check_header(files.log, os.pread(descriptor, HEADER_BYTES, 0), header)
                end = read_high_watermark(files.high_watermark, header.checksum)
                size = os.fstat(descriptor).st_size
                recovered = recovery.scan_segment(descriptor, size, segment, options)
                recovery.check_no_flushed_loss(files.log, recovered, end)
                if recovered.end < size:
                    os.ftruncate(descriptor, recovered.end)
                os.fsync(descriptor)
                file = cls(segment, descriptor, recovered)
                file._flush_side_files()
                return file
            except BaseException:
                os.close(descriptor)
                raise

    @staticmethod
    @contextlib.contextmanager
    def locked_damaged_content(
        segment: LocalSegment, options: WriterOptions, before_write: BeforeWrite = no_check
    ) -> Iterator[SegmentContent | None]:
        """Lock the file of a damaged segment inside the context, and yield its content as far as it is known; None: it
        is empty.

        The file `.end` records how much was flushed; without it, the readable frames count. The file is not changed.
        Raises LeaseHeld.
        """
        files, header = segment.files, segment.header
        with translating_os_errors(files.log, "read"):
            descriptor = _open_and_lock(files, 0)
        try:
            before_write()
            end = read_high_watermark(files.high_watermark, header.checksum)
            status = os.fstat(descriptor)
            tally = recovery.scan_segment(descriptor, status.st_size, segment, options).tally
            content = tally.content(status.st_size)
            if end is not None and end.entries > tally.entries:
                written = round(status.st_mtime * 1000)
                content = SegmentContent(
                    last_offset=end.next_offset - 1,
                    last_message_id=MessageId(header.ledger_id, end.entries - 1, segment.partition, -1),
                    messages=end.next_offset - header.first_offset,
                    entries=end.entries,
                    logical_bytes=tally.logical_bytes,
                    min_publish_time=content.min_publish_time if content else written,
                    max_publish_time=max(content.max_publish_time, written) if content else written,
                    size=status.st_size,
                )
            yield content
        finally:
            os.close(descriptor)

    def write(self, entries: Sequence[PlacedEntry]) -> None:
        """Write the frames of consecutive entries at the end of the file; they are not durable yet. Raises OSError."""
        buffers: list[bytes] = []
        index = b""
        position = self.written
        for entry in entries:
            data = entry.data
            buffers += (encode_frame_head(self._seed, entry.entry_id, entry.offset, data), data)
            index += self._pointers.record(entry.entry_id, entry.offset, position, entry.header.publish_time)
            position += FRAME_BYTES + len(data)
        _write_all(self._descriptor, buffers, self.written)
        self.written = position
        for entry in entries:
            self.tally.add(entry.header)
        if index:
            self._append_to_index(index)

    @property
    def descriptor(self) -> int:
        """The file descriptor, for a caller that flushes the file itself and then calls `complete_flush`."""
        return self._descriptor

    def flush(self) -> None:
        """Make all written frames durable. Raises OSError; then only frames that were durable before are kept."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self.complete_flush(error)
        self.complete_flush(None)

    def complete_flush(self, error: BaseException | None) -> None:
        """Record that a flush of the descriptor has ended: without an error, all written frames are durable. Raises
        `error`, as `flush` does. Nothing may be written during the flush."""
        if error is not None:
            self._acknowledged = self._durable  # the kernel may have dropped any byte since, and says so only once
            raise error
        self.flushed = self.written
        self._durable = self._high_watermark_at(self.written)

    def publish(self) -> None:
        """Raise the high watermark to the last written frame, so that readers see it: the frames are about to be
        acknowledged, or more of them are durable."""
        self._acknowledged = self._high_watermark_at(self.written)
        self._end.publish(self._acknowledged)

    def truncate_to_acknowledged(self) -> HighWatermark:
        """After a failure, cut off the frames that were not acknowledged or may be lost; return the new end.

        No write may follow. Raises no OSError of the cut: readers go by the end.
        """
        end = self._acknowledged
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, end.visible_bytes)
        self._end.publish(end)
        return end

    def release(self) -> None:
        """Close the file and release the lock. Call it once."""
        self._end.close()
        if self._index >= 0:
            os.close(self._index)
        os.close(self._descriptor)

    def _high_watermark_at(self, visible: int) -> HighWatermark:
        """Return the high watermark of the present content. `visible`: the bytes that readers may read."""
        tally = self.tally
        return HighWatermark(self.flushed, visible, tally.entries, tally.next_offset, tally.logical_bytes)

    def _flush_side_files(self) -> None:
        """Flush the high watermark and the index, once, after a cut: a power cut could restore older ones, which name
        bytes that are cut off."""
        self._end.flush()
        if self._index >= 0:
            os.fsync(self._index)

    def _append_to_index(self, index: bytes) -> None:
        if self._index < 0:
            return
        try:
            os.write(self._index, index)
        except OSError as error:  # readers work without it: no reason to fail an append
            _log.warning("the index of %s is not continued: %s", self.path, error)
            os.close(self._index)
            self._index = -1


def _open_and_lock(files: SegmentPaths, flags: int) -> int:
    """Open the segment's file, lock it, and return the descriptor. Raises LeaseHeld if another process has the lock;
    OSError."""
    while True:
        descriptor = os.open(files.log, os.O_RDWR | os.O_CLOEXEC | flags, file_mode_in(files.folder))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(files.log, descriptor):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise _lease_held_error(files) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed between the two calls


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lease_held_error(files: SegmentPaths) -> LeaseHeld:
    process = read_writing_process(files.high_watermark)
    name = f"process {process.pid} on {process.host}" if process else "another process"
    return LeaseHeld(
        f"{name} is writing to the segment {files.log}",
        "let it finish, or end it if it hangs, then try again; what it has appended stays",
    )


def _rewrite_index(path: Path, index: bytes) -> int:
    """Write the index file again, and return its descriptor, open for appends; -1 if that fails: readers work without
    it."""
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode_in(path.parent))
        os.ftruncate(descriptor, 0)
        _write_all(descriptor, [index], 0)
    except OSError as error:
        _log.warning("no index can be written at %s: %s", path, error)
        if descriptor >= 0:
            os.close(descriptor)
        return -1
    return descriptor


def _write_all(descriptor: int, buffers: Sequence[bytes], position: int) -> None:
    for start in range(0, len(buffers), _BUFFERS):
        part = buffers[start : start + _BUFFERS]
        expected = sum(map(len, part))
        result = os.pwritev(descriptor, part, position)
        if result < expected:
            rest = memoryview(b"".join(part))
            while result < expected:
                result += os.pwrite(descriptor, rest[result:], position + result)
        position += expected
