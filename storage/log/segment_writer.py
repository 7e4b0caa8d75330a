"""The writer of one open segment: assigns ids and offsets, commits in groups, flushes as the policy says.

Ids are in the order of `submit`. An entry is acknowledged, and visible to readers, when it is flushed under
flush-every-append, and when it is written otherwise. The writer owns the segment's file until it is closed
(active_segment_file.py).

A write or flush that fails ends the writer: all pending entries fail, and the file is cut back to what was
acknowledged, or to what was flushed if the flush failed. Then the owner closes the writer and recovers the segment
again.

Errors: LeaseHeld (names the process that has the file), InvalidRecord, StorageFull, Unavailable, Misconfigured; in
`recover` ObjectMissing and ObjectDamaged. Memory: `max_pending_bytes`, and one entry of each thread or task that
appends. Must not know: SQL, leases, the list of segments.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Self

from storage.clock import Clock
from storage.entries.entry import EntryHeader
from storage.errors import CompactorError, Unavailable
from storage.failpoints import Failpoint, failpoint
from storage.ledger import rows
from storage.log.active_segment_file import ActiveSegmentFile
from storage.log.frames import FRAME_BYTES
from storage.log.group_commit import Done, GroupCommit, PendingAppend, closed_error, copy_of
from storage.log.segment import AppendResult, WriterOptions, storage_error
from storage.metadata.records import SegmentContent

_log = logging.getLogger(__name__)


class SegmentWriter:
    """The writer of one segment, whose file it takes over. Thread-safe."""

    def __init__(self, file: ActiveSegmentFile, clock: Clock, options: WriterOptions) -> None:
        self.path = file.path
        self.ledger_id = file.segment.header.ledger_id
        self.first_offset = file.segment.header.first_offset
        self._file = file
        self._policy = options.policy
        self._clock = clock
        self._options = options
        self._size = file.written
        self._next_entry_id, self._next_offset = file.tally.entries, file.tally.next_offset
        self._logical_bytes = file.tally.logical_bytes
        self._unflushed_messages = 0
        self._unflushed_since: int | None = None
        self._failed = False
        self._closed = False
        self._commits = GroupCommit(
            f"commit {file.path.name}",
            self._commit,
            self._appended,
            self._due_seconds,
            self.flush_due,
            self._break,
            options.max_pending_bytes,
        )

    # Appending

    def submit(self, entry: bytes, done: Done | None = None) -> PendingAppend:
        """Assign a place to an entry; `result()` of the pending append waits until it is acknowledged.

        `done` is called, in order, with the entry's position or its error; with it, `submit` waits while too many bytes
        are pending. Raises InvalidRecord, and the error that ended the writer.
        """
        pending = PendingAppend(self._commits, entry, self._checked(entry), done)
        self._commits.enqueue(pending, self._place)
        return pending

    def append(self, entry: bytes) -> AppendResult:
        """Append an entry and return when it is acknowledged. Concurrent appends share flushes."""
        return self.submit(entry).result()

    def append_async(self, entry: bytes) -> Awaitable[AppendResult]:
        """Append an entry as `append` does, for tasks of the running event loop. The entry has its place on return.

        Never blocks: a caller that does not await each append checks `pending_bytes`.
        """
        pending = PendingAppend(self._commits, entry, self._checked(entry), None)
        future = asyncio.get_running_loop().create_future()
        pending.future = future
        self._commits.enqueue(pending, self._place)
        return future

    def flush(self) -> None:
        """Write and flush all submitted entries. Raises the error that keeps them from being durable."""
        with self._commits.committing:
            self._commits.commit_pending()
            if self._failed and (refusal := self._commits.refusal) is not None:
                raise copy_of(refusal)
            self._commits.guarded(self._flush)

    def flush_due(self) -> bool:
        """Flush if the policy's time has passed, and return whether it has. The writer's own thread calls it, too."""
        with self._commits.committing:
            seconds = self._due_seconds()
            if seconds is None or seconds > 0:
                return False
            self._commits.guarded(self._flush)
            return True

    # Content

    @property
    def cut_bytes(self) -> int:
        """The bytes that recovery cut off, if it returned this writer."""
        return self._file.cut_bytes

    @property
    def failed(self) -> bool:
        """True after a failed write or flush: close the writer, and recover the segment."""
        return self._failed

    @property
    def size(self) -> int:
        """Bytes of the file, with pending entries."""
        return self._size

    @property
    def entries(self) -> int:
        """The number of entries, with pending ones."""
        return self._next_entry_id

    @property
    def next_offset(self) -> int:
        """The offset of the next message."""
        return self._next_offset

    @property
    def messages(self) -> int:
        """The number of messages, with pending ones."""
        return self._next_offset - self.first_offset

    @property
    def logical_bytes(self) -> int:
        """Uncompressed bytes of its entries, with pending ones."""
        return self._logical_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that are not acknowledged."""
        return self._commits.pending_bytes

    def content(self) -> SegmentContent | None:
        """Return the acknowledged content; None: it is empty. After a failure only recovery knows the content."""
        with self._commits.committing:
            assert not self._failed, "a writer that failed does not know what its file holds"
            return self._file.tally.content(self._file.written)

    # Ending

    def finish(self) -> None:
        """Commit and flush the submitted entries, and accept no more; the file stays locked until `close`.

        Raises the error that keeps them from being durable, also if earlier appends failed with it.
        """
        self._commits.end(closed_error(f"the segment {self.path} is closed"), drop=False)
        if not self._failed:
            self._commits.guarded(self._flush)
        elif (refusal := self._commits.refusal) is not None:
            raise copy_of(refusal)

    def close(self) -> None:
        """Finish, and release the file. A writer that failed before raises nothing: its appends have."""
        if self._closed:
            return
        failed_before = self._failed
        try:
            self.finish()
        except CompactorError:
            if not failed_before:
                raise
        finally:
            self._release()

    def abandon(self, why: CompactorError | None = None) -> None:
        """Release the file as it is; pending entries fail with `why`. For a writer that lost its lease."""
        if self._closed:
            return
        self._commits.end(why or closed_error(f"the segment {self.path} was abandoned"), drop=True)
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _release(self) -> None:
        with self._commits.committing:
            if self._closed:
                return
            self._closed = True
            self._file.release()

    # Inside: placing, for the holder of the queue's lock; the rest for the holder of `committing`

    def _checked(self, entry: bytes) -> EntryHeader:
        return self._options.check(entry, self._clock.now_ms())

    def _place(self, pending: PendingAppend) -> None:
        messages = pending.header.messages
        if self._next_offset - self.first_offset + messages > rows.MAX_ROWS:
            raise closed_error(f"the segment {self.path} has no offsets left for {messages} more messages")
        pending.entry_id = self._next_entry_id
        pending.offset = self._next_offset
        self._next_entry_id += 1
        self._next_offset += messages
        self._size += FRAME_BYTES + len(pending.data)
        self._logical_bytes += pending.header.logical_bytes

    def _commit(self, group: list[PendingAppend]) -> None:
        self._file.write(group)
        for pending in group:
            self._unflushed_messages += pending.header.messages
        failpoint(Failpoint.ENTRIES_WRITTEN)
        if self._policy.messages is not None and self._unflushed_messages >= self._policy.messages:
            self._sync()
        elif self._policy.ms is not None and self._unflushed_since is None:
            self._unflushed_since = self._clock.now_ms()
            self._commits.wake()
        self._file.publish()

    def _appended(self, pending: PendingAppend) -> AppendResult:
        header = pending.header
        first = self._file.segment.first_position(pending.entry_id, pending.offset, header)
        return AppendResult(first, header.messages)

    def _flush(self) -> None:
        if self._file.flushed < self._file.written:
            self._sync()
            self._file.publish()

    def _sync(self) -> None:
        self._file.flush()
        self._unflushed_messages = 0
        self._unflushed_since = None
        failpoint(Failpoint.ENTRIES_FLUSHED)

    def _due_seconds(self) -> float | None:
        since, ms = self._unflushed_since, self._policy.ms
        if since is None or ms is None:
            return None
        remaining = since + ms - self._clock.now_ms()
        return remaining / 1000 if remaining <= ms else 0.0  # more than the whole interval: the clock was set back

    def _break(self, error: BaseException) -> CompactorError:
        """Cut the file back to its acknowledged, or flushed, entries; return the error for all waiting appends."""
        written = self._file.tally.entries
        self._failed = True
        end = self._file.cut_back()
        if isinstance(error, CompactorError):
            failure = type(error)(error.message, error.advice or error.remedy)
        elif isinstance(error, OSError):
            failure = storage_error(error, self.path, "write to")
        else:
            failure = Unavailable(f"writing to the segment {self.path} was cut off by {error!r}", "append again")
        failure.__cause__ = error
        _log.warning("%s; cut back to byte %d, %d of %d entries", failure.message, end.visible, end.entries, written)
        return failure
