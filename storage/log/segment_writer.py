"""The writer of one open segment: gives ids and offsets, commits in groups, flushes as the policy says.

Order of ids = order of `submit`. An entry is acknowledged, and visible to readers, when it is flushed under
flush-every-append, and when it is written otherwise. The segment's file is its own for as long as it lives
(active_segment_file.py).

A write or flush that fails ends the writer: all that waits fails, and the file is cut back to what was acknowledged,
or, if it was the flush, to what was flushed. Then the owner closes it and recovers the segment again.

May go wrong: LeaseHeld (names the process that has the file), InvalidRecord, StorageFull, Unavailable, Misconfigured;
in `recover` ObjectMissing and ObjectDamaged. Memory: `max_pending_bytes`, and one entry of each thread or task that
appends. Must not know: SQL, leases, which segments there are.
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
    """Appends to one segment, whose file it takes over. Safe to share between threads."""

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
        """Give an entry its place; `result()` of the pending append waits until it is acknowledged.

        `done` is called, in order, with where the entry went or why it failed; with it, `submit` waits while too many
        bytes are pending. Raises InvalidRecord, and what ended the writer.
        """
        pending = PendingAppend(self._commits, entry, self._checked(entry), done)
        self._commits.enqueue(pending, self._place)
        return pending

    def append(self, entry: bytes) -> AppendResult:
        """Append an entry; returns when it is acknowledged. Appends of many threads share flushes."""
        return self.submit(entry).result()

    def append_async(self, entry: bytes) -> Awaitable[AppendResult]:
        """As `append`, for the tasks of the running event loop. The entry has its place when this returns.

        It never blocks: who appends without awaiting checks `pending_bytes`.
        """
        pending = PendingAppend(self._commits, entry, self._checked(entry), None)
        future = asyncio.get_running_loop().create_future()
        pending.future = future
        self._commits.enqueue(pending, self._place)
        return future

    def flush(self) -> None:
        """Write and flush all that was submitted before. Raises what keeps it from being durable."""
        with self._commits.committing:
            self._commits.commit_pending()
            if self._failed and (refusal := self._commits.refusal) is not None:
                raise copy_of(refusal)
            self._commits.guarded(self._flush)

    def flush_due(self) -> bool:
        """Flush if the policy's time is over; whether it was. The writer's own thread does so, too."""
        with self._commits.committing:
            seconds = self._due_seconds()
            if seconds is None or seconds > 0:
                return False
            self._commits.guarded(self._flush)
            return True

    # What it holds

    @property
    def cut_bytes(self) -> int:
        """What recovery cut off, if it made this writer."""
        return self._file.cut_bytes

    @property
    def failed(self) -> bool:
        """A write or flush failed: close it, and recover the segment."""
        return self._failed

    @property
    def size(self) -> int:
        """Bytes of the file, with what is pending."""
        return self._size

    @property
    def entries(self) -> int:
        """Entries, with those pending."""
        return self._next_entry_id

    @property
    def next_offset(self) -> int:
        """The offset that the next message will get."""
        return self._next_offset

    @property
    def messages(self) -> int:
        """Messages, with those pending."""
        return self._next_offset - self.first_offset

    @property
    def logical_bytes(self) -> int:
        """Uncompressed bytes of its entries, with those pending."""
        return self._logical_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that are not acknowledged."""
        return self._commits.pending_bytes

    def content(self) -> SegmentContent | None:
        """What it holds and has acknowledged; None: nothing. Of a writer that failed recovery says it."""
        with self._commits.committing:
            assert not self._failed, "a writer that failed does not know what its file holds"
            return self._file.tally.content(self._file.written)

    # Ending

    def finish(self) -> None:
        """Commit and flush what was submitted, and take nothing more; the file stays locked until `close`.

        Raises what keeps it from being durable, also if earlier appends failed with it.
        """
        self._commits.end(closed_error(f"the segment {self.path} is closed"), drop=False)
        if not self._failed:
            self._commits.guarded(self._flush)
        elif (refusal := self._commits.refusal) is not None:
            raise copy_of(refusal)

    def close(self) -> None:
        """Finish, and give up the file. A writer that has failed before raises nothing: its appends have."""
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
        """Give up the file as it is: what is pending fails with `why`. For a writer that lost its lease."""
        if self._closed:
            return
        self._commits.end(why or closed_error(f"the segment {self.path} was given up"), drop=True)
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
        return self._options.checked(entry, self._clock.now_ms())

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
        return remaining / 1000 if remaining <= ms else 0.0  # more than all of it: the clock was set back

    def _break(self, error: BaseException) -> CompactorError:
        """Cut the file back to what was acknowledged, and what a lost flush left of it; the error for all who wait."""
        written = self._file.tally.entries
        self._failed = True
        end = self._file.cut_back()
        if isinstance(error, CompactorError):
            ours = type(error)(error.message, error.remedy)
        elif isinstance(error, OSError):
            ours = storage_error(error, self.path, "write to")
        else:
            ours = Unavailable(f"writing to the segment {self.path} was cut off by {error!r}", "append again")
        ours.__cause__ = error
        _log.warning("%s; cut back to byte %d, %d of %d entries", ours.message, end.visible, end.entries, written)
        return ours
