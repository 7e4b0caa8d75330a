"""Group commit: entries that many threads append during one flush share the next one.

Entries wait in the order of their arrival; the committer takes all that wait, writes them, flushes once, and answers
each. A thread that waits for an answer commits by itself if no other thread does, so a lone appender needs no second
thread. For callbacks there are threads that all segments share (committers.py): none waits while the disk flushes.

Answers are delivered in the order of the entries, in a thread that commits: a callback must be quick and must not
append. The bytes of entries that wait or are being written are bounded: `submit` with a callback waits for room, unless
the caller bounds them by itself. Callers that wait for their answers are bounded by their number.

After the first failed commit all waiting entries fail with it, and all later ones: the owner must determine what the
file holds. The same applies when the thread that commits is interrupted (Ctrl-C), at any point: every append gets an
answer, and an answer does not change. Must not know: files, frames.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from storage.entries.entry import EntryHeader
from storage.errors import CompactorError, Unavailable
from storage.log.committers import Committers
from storage.log.kernel_flushes import FileDescriptor
from storage.log.segment import AppendResult

AppendOutcome = AppendResult | CompactorError
"""The position of an entry, or the error: a failed entry may still exist when the segment is recovered."""
Done = Callable[[AppendOutcome], object]
"""A callback of one append: it is called once with the answer, must be quick, and must not append."""

NeedsFlush = bool
"""True: what was written must be flushed before its appends are answered."""
OnAnswered = Callable[[list[AppendOutcome]], object]
"""Receives the answers of entries that were appended together, in their order."""

_log = logging.getLogger(__name__)


class PendingAppend:
    """An entry that was submitted to a segment, and its answer.

    `entry_id`, `offset`: -1 until it gets its place. `answer`: None until it is acknowledged, or has failed.
    """

    __slots__ = ("_commits", "answer", "data", "done", "entry_id", "header", "is_delivered", "offset")

    def __init__(self, commits: GroupCommit, data: bytes, header: EntryHeader, done: Done | None) -> None:
        self._commits = commits
        self.data = data
        self.header = header
        self.done = done
        self.entry_id = -1
        self.offset = -1
        self.answer: AppendOutcome | None = None
        self.is_delivered = False

    def result(self) -> AppendResult:
        """Wait until the entry is acknowledged, and return its position. Raises the error that prevented it."""
        while self.answer is None:
            self._commits.commit_until_answered(self)
        if isinstance(self.answer, CompactorError):
            raise self.answer.copy()
        return self.answer


class CommitTarget(Protocol):
    """The file of a group commit. The thread that has the turn calls it; any thread calls `seconds_until_flush`."""

    @property
    def descriptor(self) -> FileDescriptor:
        """The descriptor of the file."""

    def write_group(self, group: list[PendingAppend]) -> NeedsFlush:
        """Write pending appends to the file. Return whether they must be flushed before they are answered. Raises on
        failure."""

    def flush(self) -> None:
        """Flush the file. Raises on failure."""

    def complete_flush(self, error: BaseException | None) -> None:
        """Record that a flush of `descriptor` by another thread has ended; nothing was written during it. Raises
        `error`, if any."""

    def publish(self) -> None:
        """Make what was written, or flushed, visible to readers."""

    def position_of(self, pending: PendingAppend) -> AppendResult:
        """Return the position of a committed entry."""

    def seconds_until_flush(self) -> float | None:
        """Return the seconds until the file must be flushed, if no append comes before; None: it need not be
        flushed."""

    def stop_writing(self, error: BaseException) -> CompactorError:
        """End all writing to the file because of an error; return the error with which the waiting appends fail."""


class GroupCommit:
    """The queue of appends to one segment, which commits them in groups. `committers`: the threads that commit appends
    with callbacks.

    `max_pending_bytes`: above it, `enqueue` of an append with a callback waits.
    """

    def __init__(self, target: CommitTarget, max_pending_bytes: int, committers: Committers) -> None:
        self._target = target
        self._max_pending_bytes = max_pending_bytes
        self._committers = committers
        self._committing = threading.Lock()
        """Held by the thread that commits or flushes, and while a flush is under way: only its holder touches the state
        of the file. The thread that notes the end of a flush releases it. Then follows `_schedule_next_commit`."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._pending: list[PendingAppend] = []
        self._pending_bytes = 0
        self.refusal: CompactorError | None = None
        """The error with which appends are refused; None: they are accepted."""
        self._is_put = False
        """True while the queue waits for a committing thread."""
        self._timed_at: float | None = None
        """The time when a committing thread looks whether a flush is due; None: none will."""
        self._flushed: list[PendingAppend] = []
        """The group that is being flushed."""

    def enqueue(
        self,
        pending: PendingAppend,
        assign_place: Callable[[PendingAppend], None],
        *,
        waits: bool = True,
        commits_later: bool = False,
    ) -> None:
        """Add an append to the queue. `assign_place` assigns its entry id and offset, in the order of the queue.

        `waits`: with a callback, wait while too many bytes are pending. `commits_later`: the caller calls `commit_here`
        next, or after more appends; no committing thread is needed for this one. Raises the error that ended the queue.
        """
        with self._lock:
            if self.refusal is not None:
                raise self.refusal.copy()
            assign_place(pending)
            self._pending.append(pending)
            self._pending_bytes += len(pending.data)
            if pending.done is not None:
                if not commits_later:
                    self._enqueue_for_commit()
                while waits and self._pending_bytes > self._max_pending_bytes and self.refusal is None:
                    self._room.wait()

    def commit_until_answered(self, pending: PendingAppend) -> None:
        """Wait for the turn, and commit the waiting appends if this one has no answer yet. Afterwards it has one."""
        with self.turn():
            if pending.answer is None:
                self._commit_pending()
            if pending.answer is None:  # the committer was interrupted, and again while it reported that
                pending.answer = self.refusal or closed_error("an append was cut off")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold exclusive access to the file inside the context, after a wait for the thread that commits and for a
        running flush."""
        try:
            with self._committing:
                yield
        finally:
            self._schedule_next_commit()

    def _commit_pending(self) -> None:
        """Write and flush the waiting appends, and answer them; on failure, fail them. The caller has the turn."""
        group: list[PendingAppend] = []
        try:
            with self._lock:
                group, self._pending = self._pending, group
            if group:
                if self._target.write_group(group):
                    self._target.flush()
                self._target.publish()
                self._answer_group(group)
        except BaseException as error:
            self._fail_all(error, group)
            if not isinstance(error, Exception):
                raise

    def _answer_group(self, group: list[PendingAppend]) -> None:
        """Give each append of a group its position as the answer, release its bytes, and call the callbacks."""
        size = 0
        for pending in group:
            size += len(pending.data)
            pending.answer = self._target.position_of(pending)
        with self._lock:
            full = self._pending_bytes > self._max_pending_bytes
            self._pending_bytes -= size
            if full:
                self._room.notify_all()
        _call_callbacks(group)

    def run_in_turn(self, work: Callable[[], object]) -> None:
        """Run `work` on the file with exclusive access; it commits no appends.

        If it fails, the queue ends: all waiting appends fail, and the error is raised.
        """
        with self.turn():
            try:
                work()
            except BaseException as error:
                self._fail_all(error, [])
                if isinstance(error, Exception) and self.refusal is not None:
                    raise self.refusal.copy() from error
                raise

    def commit_here(self) -> None:
        """Commit the waiting appends in the calling thread, unless a committing thread has the queue already."""
        with self._lock:
            if self._is_put or not self._pending:
                return
            self._is_put = True
        self._committers.commit(self)

    def begin_commit(self) -> FileDescriptor | None:
        """Write the waiting appends; return the descriptor if the file must be flushed now, otherwise None
        (committers.py: AppendQueue)."""
        with self._lock:
            self._is_put = False
            if self._timed_at is not None and self._timed_at <= time.monotonic():
                self._timed_at = None
        if not self._committing.acquire(blocking=False):
            return None  # its holder puts the queue again at the end
        group: list[PendingAppend] = []
        try:
            with self._lock:
                group, self._pending = self._pending, group
            if group:
                if self._target.write_group(group):
                    self._flushed = group
                    return self._target.descriptor
                self._target.publish()
                self._answer_group(group)
            seconds = self._target.seconds_until_flush() if self.refusal is None else None
            if seconds is not None and seconds <= 0:
                return self._target.descriptor
        except BaseException as error:
            self._fail_all(error, group)
        self._end_turn()
        return None

    def complete_flush(self, error: BaseException | None) -> None:
        """Record that the flush after `begin_commit` has ended, and answer the appends that it made durable; with an
        error, fail them (committers.py: AppendQueue)."""
        group, self._flushed = self._flushed, []
        try:
            self._target.complete_flush(error)
            self._target.publish()
            self._answer_group(group)
        except BaseException as failure:
            self._fail_all(failure, group)
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        self._committing.release()
        self._schedule_next_commit()

    def _schedule_next_commit(self) -> None:
        """Let a committing thread commit the waiting appends that have callbacks, or flush the file when that is
        due."""
        with self._lock:
            if self._pending and any(pending.done is not None for pending in self._pending):
                self._enqueue_for_commit()
            elif self.refusal is None and self._timed_at is None:
                seconds = self._target.seconds_until_flush()
                if seconds is not None:
                    self._timed_at = time.monotonic() + seconds
                    self._committers.enqueue_at(self._timed_at, self)

    def _enqueue_for_commit(self) -> None:
        """Give the queue to the committing threads, unless they have it already. The caller holds the lock."""
        if not self._is_put:
            self._is_put = True
            self._committers.enqueue(self)

    def close(self, refusal: CompactorError, *, drop: bool) -> None:
        """End the queue: commit the waiting appends or, with `drop`, fail them with `refusal`; no more are accepted.

        Waits for a running flush. `refusal`: the error of later appends, unless the queue ended before with another.
        """
        with self._lock:
            if self.refusal is None:
                self.refusal = refusal
            dropped: list[PendingAppend] = []
            if drop:
                dropped, self._pending = self._pending, []
            self._room.notify_all()
        with self.turn():
            for pending in dropped:
                pending.answer = refusal
            _call_callbacks(dropped)
            self._commit_pending()

    def _fail_all(self, error: BaseException, group: list[PendingAppend]) -> None:
        """Stop writing because of an error, end the queue, and fail the appends of `group` and all waiting ones."""
        refusal = self._target.stop_writing(error)
        with self._lock:
            self.refusal = refusal
            failed, self._pending = [*group, *self._pending], []
            self._pending_bytes = 0
            self._room.notify_all()
        for pending in failed:
            if pending.answer is None:
                pending.answer = refusal
        _call_callbacks(failed)


def _call_callbacks(group: list[PendingAppend]) -> None:
    """Call the callback of each append of a group with its answer, once."""
    for pending in group:
        if pending.done is not None and pending.answer is not None and not pending.is_delivered:
            pending.is_delivered = True
            try:
                pending.done(pending.answer)
            except Exception:
                _log.exception("a callback of an append failed; the entry %d is answered", pending.entry_id)


def closed_error(message: str) -> Unavailable:
    """Return the error of appends to a segment that accepts no more. `message`: the text of the error."""
    return Unavailable(message, "append to the segment that the topic has open now")
