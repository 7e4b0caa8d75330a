"""The writer of one open segment: assigns ids and offsets, commits in groups, flushes as the policy says.

Ids are in the order of `submit`. An entry is acknowledged, and visible to readers, when it is flushed under
flush-every-append, and when it is written otherwise. The writer owns the segment's file until it is closed
(active_segment_file.py).

A write or flush that fails ends the writer: all pending entries fail, and the file is cut back to what was
acknowledged, or to what was flushed if the flush failed. Then the owner closes the writer and recovers the segment
again.

Errors: LeaseHeld (names the process that has the file), InvalidRecord, StorageFull, Unavailable, Misconfigured; in
`recover` ObjectMissing and ObjectDamaged. Memory: `max_pending_bytes`, and one entry of each thread that
appends. Must not know: SQL, leases, the list of segments.
"""

from __future__ import annotations

import logging

from storage.clock import Clock
from storage.entries.entry import EntryHeader
from storage.errors import CompactorError, Unavailable
from storage.failpoints import Failpoint, failpoint
from storage.ledger import rows
from storage.log.active_segment_file import ActiveSegmentFile
from storage.log.committers import Committers
from storage.log.frames import FRAME_BYTES
from storage.log.group_commit import Done, GroupCommit, NeedsFlush, PendingAppend, closed_error
from storage.log.segment import AppendResult, WriterOptions, storage_error
from storage.metadata.records import SegmentContent

_log = logging.getLogger(__name__)


class SegmentWriter:
    """The writer of one open segment, whose file it takes over. Thread-safe."""

    def __init__(
        self, file: ActiveSegmentFile, clock: Clock, options: WriterOptions, committers: Committers | None = None
    ) -> None:
        """`committers`: the threads that commit appends with callbacks; None: threads of this segment's own."""
        self.path = file.path
        self.ledger_id = file.segment.header.ledger_id
        self.first_offset = file.segment.header.first_offset
        self._file = file
        self._policy = options.policy
        self._clock = clock
        self._options = options
        self.size = file.written
        """Bytes of the file, with pending entries."""
        self.next_offset = file.tally.next_offset
        """The offset of the next message; entries that are pending have theirs."""
        self.logical_bytes = file.tally.logical_bytes
        """Uncompressed bytes of its entries, with pending ones."""
        self.failed = False
        """True after a failed write or flush: close the writer, and recover the segment."""
        self._next_entry_id = file.tally.entries
        self._unflushed_messages = 0
        self._unflushed_since: int | None = None
        self._closed = False
        self._commits = GroupCommit(self, options.max_pending_bytes, committers or Committers())

    # Appending

    def submit(
        self,
        entry: bytes,
        on_done: Done | None = None,
        *,
        header: EntryHeader | None = None,
        waits: bool = True,
        commits_later: bool = False,
    ) -> PendingAppend:
        """Append an entry without waiting for the disk: assign its place, and return the pending append, whose
        `result()` waits until it is acknowledged.

        `on_done` is called, in order, with the entry's position or its error; with it, and with `waits`, `submit` waits
        while too many bytes are pending. `commits_later`: `commit_here` follows. `header`: that of the entry; None: it
        is read. Raises InvalidRecord, and the error that ended the writer.
        """
        header = self._options.read_valid_header(entry, self._clock.now_ms(), header)
        pending = PendingAppend(self._commits, entry, header, on_done)
        self._commits.enqueue(pending, self._assign_place, waits=waits, commits_later=commits_later)
        return pending

    def commit_here(self) -> None:
        """Write and flush the submitted entries in the calling thread, if no other thread does."""
        self._commits.commit_here()

    # Content

    @property
    def messages(self) -> int:
        """The number of messages in the segment, with pending ones."""
        return self.next_offset - self.first_offset

    def content(self) -> SegmentContent | None:
        """Return the acknowledged content of the segment; None: it is empty. Not allowed after a failure."""
        with self._commits.turn():
            assert not self.failed, "a writer that failed does not know what its file holds"
            return self._file.tally.content(self._file.written)

    # Ending

    def finish(self) -> None:
        """Commit and flush the submitted entries, and accept no more; the file stays locked until `close`.

        Raises the error that keeps them from being durable, also if earlier appends failed with it.
        """
        self._commits.close(closed_error(f"the segment {self.path} is closed"), drop=False)
        if not self.failed:
            self._commits.run_in_turn(self._flush_if_needed)
        elif (refusal := self._commits.refusal) is not None:
            raise refusal.copy()

    def close(self) -> None:
        """Finish the segment as `finish` does, and release its file. Idempotent. Raises as `finish`, but nothing if the
        writer had failed before."""
        if self._closed:
            return
        failed_before = self.failed
        try:
            self.finish()
        except CompactorError:
            if not failed_before:
                raise
        finally:
            self.release()

    def abandon(self, reason: CompactorError | None = None) -> None:
        """Release the segment's file as it is; pending entries fail with `reason`. For a writer that lost its lease.

        `reason` None: an error that says that the segment was abandoned.
        """
        if self._closed:
            return
        self._commits.close(reason or closed_error(f"the segment {self.path} was abandoned"), drop=True)
        self.release()

    def release(self) -> None:
        """Release the segment's file as it is, without an answer to pending entries. Idempotent."""
        with self._commits.turn():
            if self._closed:
                return
            self._closed = True
            self._file.release()

    # For the queue (group_commit.py: CommitTarget); `_assign_place` for the holder of its lock

    def _assign_place(self, pending: PendingAppend) -> None:
        messages = pending.header.messages
        if self.messages + messages > rows.MAX_ROWS:
            raise closed_error(f"the segment {self.path} has no offsets left for {messages} more messages")
        pending.entry_id = self._next_entry_id
        pending.offset = self.next_offset
        self._next_entry_id += 1
        self.next_offset += messages
        self.size += FRAME_BYTES + len(pending.data)
        self.logical_bytes += pending.header.logical_bytes

    @property
    def descriptor(self) -> int:
        """The descriptor of the file."""
        return self._file.descriptor

    def write_group(self, group: list[PendingAppend]) -> NeedsFlush:
        """Write pending appends to the file. Return whether the flush policy requires a flush before they are
        acknowledged."""
        self._file.write(group)
        for pending in group:
            self._unflushed_messages += pending.header.messages
        failpoint(Failpoint.ENTRIES_WRITTEN)
        if self._policy.messages is not None and self._unflushed_messages >= self._policy.messages:
            return True
        if self._policy.ms is not None and self._unflushed_since is None:
            self._unflushed_since = self._clock.now_ms()
        return False

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()
        self._reset_unflushed()

    def complete_flush(self, error: BaseException | None) -> None:
        """Record that a flush of the descriptor by another thread has ended. Raises `error`, if any."""
        self._file.complete_flush(error)
        self._reset_unflushed()

    def publish(self) -> None:
        """Make what was written, or flushed, visible to readers."""
        self._file.publish()

    def position_of(self, pending: PendingAppend) -> AppendResult:
        """Return the position of a committed entry."""
        first = self._file.segment.first_position(pending.entry_id, pending.offset, pending.header)
        return AppendResult(first, pending.header.messages)

    def _flush_if_needed(self) -> None:
        if self._file.flushed < self._file.written:
            self.flush()
            self.publish()

    def _reset_unflushed(self) -> None:
        self._unflushed_messages = 0
        self._unflushed_since = None
        failpoint(Failpoint.ENTRIES_FLUSHED)

    def seconds_until_flush(self) -> float | None:
        """Return the seconds until the flush policy requires a flush; None: nothing waits for one."""
        since, ms = self._unflushed_since, self._policy.ms
        if since is None or ms is None:
            return None
        remaining = since + ms - self._clock.now_ms()
        return remaining / 1000 if remaining <= ms else 0.0  # more than the whole interval: the clock was set back

    def stop_writing(self, error: BaseException) -> CompactorError:
        """End the writer because of an error: cut the file back to its acknowledged, or flushed, entries; return the
        error for all waiting appends."""
        written = self._file.tally.entries
        self.failed = True
        end = self._file.truncate_to_acknowledged()
        if isinstance(error, CompactorError):
            failure = error.copy()
        elif isinstance(error, OSError):
            failure = storage_error(error, self.path, "write to")
        else:
            failure = Unavailable(f"writing to the segment {self.path} was cut off by {error!r}", "append again")
        failure.__cause__ = error
        _log.warning(
            "%s; cut back to byte %d, %d of %d entries", failure.message, end.visible_bytes, end.entries, written
        )
        return failure
