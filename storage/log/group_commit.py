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
from storage.log.segment import AppendResult

AppendOutcome = AppendResult | CompactorError
"""The position of an entry, or the error: a failed entry may still exist when the segment is recovered."""
Done = Callable[[AppendOutcome], object]
"""A callback of one append: it is called once with the answer, must be quick, and must not append."""

OnAnswered = Callable[[list[AppendOutcome]], object]
"""Receives the answers of entries that were appended together, in their order."""

_log = logging.getLogger(__name__)


class PendingAppend:
    """An entry on its way into the segment.

    `entry_id`, `offset`: -1 until it gets its place. `answer`: None until it is written, or has failed.
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
        """Wait until the entry is acknowledged. Raises the error that prevented it."""
        while self.answer is None:
            self._commits.commit_until(self)
        if isinstance(self.answer, CompactorError):
            raise self.answer.copy()
        return self.answer


class Committer(Protocol):
    """The owner of the file. The holder of the turn calls it; any thread calls `seconds_to_flush`."""

    @property
    def descriptor(self) -> int:
        """The descriptor of the file."""

    def write(self, group: list[PendingAppend]) -> bool:
        """Write pending appends. Return whether they must be flushed before they are answered. Raises on failure."""

    def flush(self) -> None:
        """Flush the file. Raises on failure."""

    def end_flush(self, error: BaseException | None) -> None:
        """Note the end of a flush of `descriptor` that others did, during which nothing was written. Raises its
        error."""

    def publish(self) -> None:
        """Let readers see what was written, or flushed."""

    def position_of(self, pending: PendingAppend) -> AppendResult:
        """Return the position of a committed entry."""

    def seconds_to_flush(self) -> float | None:
        """Return the seconds until the file must be flushed, if no append comes before; None: it need not be."""

    def break_off(self, error: BaseException) -> CompactorError:
        """Stop writing to the file because of an error; return the error for the waiting appends."""


class GroupCommit:
    """The queue of appends to one segment. `committers`: the threads that commit appends with callbacks.

    `max_pending_bytes`: above it, `enqueue` of an append with a callback waits.
    """

    def __init__(self, committer: Committer, max_pending_bytes: int, committers: Committers) -> None:
        self._committer = committer
        self._max_pending_bytes = max_pending_bytes
        self._committers = committers
        self._committing = threading.Lock()
        """Held by the thread that commits or flushes, and while a flush is under way: only its holder touches the state
        of the file. The thread that notes the end of a flush releases it. Then follows `_after_turn`."""
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
        """Queue an append. `assign_place` assigns its entry id and offset, in the order of the queue.

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
                    self._put()
                while waits and self._pending_bytes > self._max_pending_bytes and self.refusal is None:
                    self._room.wait()

    def commit_until(self, pending: PendingAppend) -> None:
        """Wait for the thread that commits; commit, if the append has no answer then. Afterwards it has one."""
        with self.turn():
            if pending.answer is None:
                self._commit_pending()
            if pending.answer is None:  # the committer was interrupted, and again while it reported that
                pending.answer = self.refusal or closed_error("an append was cut off")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the thread that commits, and for a flush that is under way; then the caller has the file."""
        try:
            with self._committing:
                yield
        finally:
            self._after_turn()

    def _commit_pending(self) -> None:
        """Commit the waiting entries. For the holder of the turn."""
        group: list[PendingAppend] = []
        try:
            with self._lock:
                group, self._pending = self._pending, group
            if group:
                if self._committer.write(group):
                    self._committer.flush()
                self._committer.publish()
                self._answer(group)
        except BaseException as error:
            self._break(error, group)
            if not isinstance(error, Exception):
                raise

    def _answer(self, group: list[PendingAppend]) -> None:
        size = 0
        for pending in group:
            size += len(pending.data)
            pending.answer = self._committer.position_of(pending)
        with self._lock:
            full = self._pending_bytes > self._max_pending_bytes
            self._pending_bytes -= size
            if full:
                self._room.notify_all()
        _deliver(group)

    def guarded(self, work: Callable[[], object]) -> None:
        """Run `work` on the file, in a turn; it commits no entries.

        If it fails, the queue ends: all waiting appends fail, and the error is raised.
        """
        with self.turn():
            try:
                work()
            except BaseException as error:
                self._break(error, [])
                if isinstance(error, Exception) and self.refusal is not None:
                    raise self.refusal.copy() from error
                raise

    def commit_here(self) -> None:
        """Let this thread commit what waits, as a committing thread does, unless one has the queue already."""
        with self._lock:
            if self._is_put or not self._pending:
                return
            self._is_put = True
        self._committers.commit(self)

    def begin(self) -> int | None:
        """Write the waiting entries, for a committing thread (committers.py: AppendQueue)."""
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
                if self._committer.write(group):
                    self._flushed = group
                    return self._committer.descriptor
                self._committer.publish()
                self._answer(group)
            seconds = self._committer.seconds_to_flush() if self.refusal is None else None
            if seconds is not None and seconds <= 0:
                return self._committer.descriptor
        except BaseException as error:
            self._break(error, group)
        self._end_turn()
        return None

    def end_flush(self, error: BaseException | None) -> None:
        """Answer the entries that were flushed (committers.py: AppendQueue)."""
        group, self._flushed = self._flushed, []
        try:
            self._committer.end_flush(error)
            self._committer.publish()
            self._answer(group)
        except BaseException as failure:
            self._break(failure, group)
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        self._committing.release()
        self._after_turn()

    def _after_turn(self) -> None:
        """Have a committing thread commit the waiting entries that have callbacks, and flush the file when it is
        due."""
        with self._lock:
            if self._pending and any(pending.done is not None for pending in self._pending):
                self._put()
            elif self.refusal is None and self._timed_at is None:
                seconds = self._committer.seconds_to_flush()
                if seconds is not None:
                    self._timed_at = time.monotonic() + seconds
                    self._committers.put_at(self._timed_at, self)

    def _put(self) -> None:
        """For the holder of the lock."""
        if not self._is_put:
            self._is_put = True
            self._committers.put(self)

    def end(self, refusal: CompactorError, *, drop: bool) -> None:
        """Accept no more appends: commit the waiting ones or, with `drop`, fail them with `refusal`.

        Waits for a flush that is under way. `refusal`: the error of later appends, unless the queue ended before with
        another.
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
            _deliver(dropped)
            self._commit_pending()

    def _break(self, error: BaseException, group: list[PendingAppend]) -> None:
        refusal = self._committer.break_off(error)
        with self._lock:
            self.refusal = refusal
            failed, self._pending = [*group, *self._pending], []
            self._pending_bytes = 0
            self._room.notify_all()
        for pending in failed:
            if pending.answer is None:
                pending.answer = refusal
        _deliver(failed)


def _deliver(group: list[PendingAppend]) -> None:
    """Pass the answers of a group to its callbacks, to each once."""
    for pending in group:
        if pending.done is not None and pending.answer is not None and not pending.is_delivered:
            pending.is_delivered = True
            try:
                pending.done(pending.answer)
            except Exception:
                _log.exception("a callback of an append failed; the entry %d is answered", pending.entry_id)


def closed_error(message: str) -> Unavailable:
    """Return the error of appends to a segment that accepts no more. `message`: its message."""
    return Unavailable(message, "append to the segment that the topic has open now")
