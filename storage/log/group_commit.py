"""Group commit: entries that many threads append during one flush share the next one.

Entries wait in the order of their arrival; the committer takes all that wait, writes them, flushes once, and answers
each. A thread that waits for an answer commits by itself if no other thread does, so a lone appender needs no second
thread. For callbacks there is one thread, started on first use.

Answers are delivered in the order of the entries, in the thread that commits: a callback must be quick and must not
append. The bytes of entries that wait or are being written are bounded: `submit` with a callback waits for room.
Callers that wait for their answers are bounded by their number.

After the first failed commit all waiting entries fail with it, and all later ones: the owner must determine what the
file holds. The same applies when the thread that commits is interrupted (Ctrl-C), at any point: every append gets an
answer, and an answer does not change. Must not know: files, frames.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from storage.entries.entry import EntryHeader
from storage.errors import CompactorError, Unavailable
from storage.log.segment import AppendResult

AppendOutcome = AppendResult | CompactorError
"""The position of an entry, or the error: a failed entry may still exist when the segment is recovered."""
Done = Callable[[AppendOutcome], object]
"""A callback of one append: it is called once with the answer, must be quick, and must not append."""

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
    """The owner of the file. One thread at a time calls it, the holder of `committing`; any calls
    `seconds_to_flush`."""

    def commit(self, group: list[PendingAppend]) -> None:
        """Write pending appends, and flush them if the flush policy requires it. Raises on failure."""

    def position_of(self, pending: PendingAppend) -> AppendResult:
        """Return the position of a committed entry."""

    def seconds_to_flush(self) -> float | None:
        """Return the seconds until `flush_if_due` must be called, if no append comes before; None: no call is due."""

    def flush_if_due(self) -> object:
        """Flush what is due. The implementation runs inside `GroupCommit.guarded`."""

    def break_off(self, error: BaseException) -> CompactorError:
        """Stop writing to the file because of an error; return the error for the waiting appends."""


class GroupCommit:
    """The queue of appends to one segment. `name`: of its thread.

    `max_pending_bytes`: above it, `enqueue` of an append with a callback waits.
    """

    def __init__(self, name: str, committer: Committer, max_pending_bytes: int) -> None:
        self._name = name
        self._committer = committer
        self._max_pending_bytes = max_pending_bytes
        self.committing = threading.RLock()
        """Held by the thread that commits or flushes; only this thread touches the state of the file."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._pending: list[PendingAppend] = []
        self._pending_bytes = 0
        self.refusal: CompactorError | None = None
        """The error with which appends are refused; None: they are accepted."""
        self._thread: threading.Thread | None = None
        self._idle = False
        self._stopping = False

    def enqueue(self, pending: PendingAppend, assign_place: Callable[[PendingAppend], None]) -> None:
        """Queue an append. `assign_place` assigns its entry id and offset, in the order of the queue.

        Raises the error that ended the queue.
        """
        with self._lock:
            if self.refusal is not None:
                raise self.refusal.copy()
            assign_place(pending)
            self._pending.append(pending)
            self._pending_bytes += len(pending.data)
            if pending.done is not None:
                if self._idle or self._thread is None:
                    self._wake()
                while self._pending_bytes > self._max_pending_bytes and self.refusal is None:
                    self._room.wait()

    def commit_until(self, pending: PendingAppend) -> None:
        """Wait for the thread that commits; commit, if the append has no answer then. Afterwards it has one."""
        with self.committing:
            if pending.answer is None:
                self.commit_pending()
            if pending.answer is None:  # the committer was interrupted, and again while it reported that
                pending.answer = self.refusal or closed_error("an append was cut off")

    def commit_pending(self) -> None:
        """Commit the waiting entries. For the holder of `committing`."""
        group: list[PendingAppend] = []
        try:
            with self._lock:
                group, self._pending = self._pending, group
            if group:
                self._committer.commit(group)
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
        """Run `work` on the file, which commits no entries, with `committing` held.

        If it fails, the queue ends: all waiting appends fail, and the error is raised.
        """
        with self.committing:
            try:
                work()
            except BaseException as error:
                self._break(error, [])
                if isinstance(error, Exception) and self.refusal is not None:
                    raise self.refusal.copy() from error
                raise

    def wake(self) -> None:
        """Wake the thread, so that it checks when `flush_if_due` must be called."""
        with self._lock:
            self._wake()

    def end(self, refusal: CompactorError, *, drop: bool) -> None:
        """Accept no more appends: commit the waiting ones or, with `drop`, fail them with `refusal`.

        Waits for the thread. `refusal`: the error of later appends, unless the queue ended before with another.
        """
        with self._lock:
            if self.refusal is None:
                self.refusal = refusal
            dropped: list[PendingAppend] = []
            if drop:
                dropped, self._pending = self._pending, []
            self._stopping = True
            self._work.notify_all()
            self._room.notify_all()
        with self.committing:
            for pending in dropped:
                pending.answer = refusal
            _deliver(dropped)
            self.commit_pending()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

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

    def _wake(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._work.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._pending and not self._stopping:
                    seconds = self._committer.seconds_to_flush() if self.refusal is None else None
                    if seconds is not None and seconds <= 0:
                        break
                    self._idle = True
                    self._work.wait(seconds)
                    self._idle = False
                if self._stopping:
                    return
            with self.committing:
                self.commit_pending()
                if self.refusal is None:
                    with suppress(CompactorError):  # it has ended the queue
                        self._committer.flush_if_due()


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
