"""Group commit: entries that many threads and tasks append during one flush share the next one.

Entries wait in the order of their arrival; the committer takes all that wait, writes them, flushes once, and answers
each. A thread that waits for an answer commits by itself if no other thread does, so a lone appender needs no second
thread. For callbacks and tasks there is one thread, started on first use. The tasks of one event loop are answered in
one call, since each call wakes the loop.

Answers are delivered in the order of the entries, in the thread that commits: a callback must be quick and must not
append. The bytes of entries that wait or are being written are bounded: `submit` with a callback waits for room.
Callers that wait for their answers are bounded by their number.

After the first failed commit all waiting entries fail with it, and all later ones: the owner must determine what the
file holds. The same applies when the thread that commits is interrupted (Ctrl-C), at any point: every append gets an
answer, and an answer does not change. Must not know: files, frames.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from storage.entries.entry import EntryHeader
from storage.errors import CompactorError, Unavailable
from storage.log.segment import AppendResult

Answer = AppendResult | CompactorError
"""The position of an entry, or the error: a failed entry may still exist when the segment is recovered."""
Done = Callable[[Answer], object]

_log = logging.getLogger(__name__)


class PendingAppend:
    """An entry on its way into the segment. `entry_id` and `offset` are set when it gets its place."""

    __slots__ = ("_commits", "answer", "data", "done", "entry_id", "future", "header", "is_delivered", "offset")

    def __init__(self, commits: GroupCommit, data: bytes, header: EntryHeader, done: Done | None) -> None:
        self._commits = commits
        self.data = data
        self.header = header
        self.done = done
        self.future: asyncio.Future[AppendResult] | None = None
        self.entry_id = -1
        self.offset = -1
        self.answer: Answer | None = None
        self.is_delivered = False

    def result(self) -> AppendResult:
        """Wait until the entry is acknowledged. Raises the error that prevented it."""
        while self.answer is None:
            self._commits.commit_until(self)
        if isinstance(self.answer, CompactorError):
            raise copy_of(self.answer)
        return self.answer


class GroupCommit:
    """The queue of one segment.

    `commit` writes pending appends and flushes them if required; it raises on failure, and is called by one thread at a
    time. `answered` returns the position of a committed entry. `due_seconds`: the time until `tick`, which is
    `guarded`, must be called without an append; None: no call is due. `broken`: called, once, with the error that ends
    the queue.
    """

    def __init__(
        self,
        name: str,
        commit: Callable[[list[PendingAppend]], None],
        answered: Callable[[PendingAppend], AppendResult],
        due_seconds: Callable[[], float | None],
        tick: Callable[[], object],
        broken: Callable[[BaseException], CompactorError],
        max_pending_bytes: int,
    ) -> None:
        self._name = name
        self._commit = commit
        self._answered = answered
        self._due_seconds = due_seconds
        self._tick = tick
        self._broken = broken
        self._max_pending_bytes = max_pending_bytes
        self.committing = threading.RLock()
        """Held by the thread that commits or flushes; only this thread touches the state of the file."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._pending: list[PendingAppend] = []
        self._pending_bytes = 0
        self._refusal: CompactorError | None = None
        self._thread: threading.Thread | None = None
        self._idle = False
        self._stopping = False

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that wait, or are being written."""
        return self._pending_bytes

    @property
    def refusal(self) -> CompactorError | None:
        """The error with which appends are refused; None: they are accepted."""
        return self._refusal

    def enqueue(self, pending: PendingAppend, place: Callable[[PendingAppend], None]) -> None:
        """Queue an append; `place` assigns its ids, in that order. Raises the error that ended the queue."""
        background = pending.done is not None or pending.future is not None
        with self._lock:
            if self._refusal is not None:
                raise copy_of(self._refusal)
            place(pending)
            self._pending.append(pending)
            self._pending_bytes += len(pending.data)
            if background and (self._idle or self._thread is None):
                self._wake()
            if pending.done is not None:
                while self._pending_bytes > self._max_pending_bytes and self._refusal is None:
                    self._room.wait()

    def commit_until(self, pending: PendingAppend) -> None:
        """Wait for the committer; if this entry was not among its entries, commit."""
        with self.committing:
            if pending.answer is None:
                self.commit_pending()
            if pending.answer is None:  # the committer was interrupted, and again while it reported that
                pending.answer = self._refusal or closed_error("an append was cut off")

    def commit_pending(self) -> None:
        """Commit the waiting entries. For the holder of `committing`."""
        group: list[PendingAppend] = []
        try:
            with self._lock:
                group, self._pending = self._pending, group
            if group:
                self._commit(group)
                self._answer(group)
        except BaseException as error:
            self._break(error, group)
            if not isinstance(error, Exception):
                raise

    def _answer(self, group: list[PendingAppend]) -> None:
        size = 0
        for pending in group:
            size += len(pending.data)
            pending.answer = self._answered(pending)
        with self._lock:
            full = self._pending_bytes > self._max_pending_bytes
            self._pending_bytes -= size
            if full:
                self._room.notify_all()
        _deliver(group)

    def guarded(self, work: Callable[[], object]) -> None:
        """Run work on the file that is no commit of entries; if it fails, the queue fails, too, and it raises."""
        with self.committing:
            try:
                work()
            except BaseException as error:
                self._break(error, [])
                if isinstance(error, Exception) and self._refusal is not None:
                    raise copy_of(self._refusal) from error
                raise

    def wake(self) -> None:
        """Wake the thread, so that it checks when a tick is due."""
        with self._lock:
            self._wake()

    def end(self, refusal: CompactorError, *, drop: bool) -> None:
        """Accept no more: commit the waiting entries or, with `drop`, fail them with `refusal`."""
        with self._lock:
            if self._refusal is None:
                self._refusal = refusal
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
        refusal = self._broken(error)
        with self._lock:
            self._refusal = refusal
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
                    seconds = self._due_seconds() if self._refusal is None else None
                    if seconds is not None and seconds <= 0:
                        break
                    self._idle = True
                    self._work.wait(seconds)
                    self._idle = False
                if self._stopping:
                    return
            with self.committing:
                self.commit_pending()
                if self._refusal is None:
                    with suppress(CompactorError):  # it has ended the queue
                        self._tick()


def _deliver(group: list[PendingAppend]) -> None:
    """Pass the answers of a group to callbacks and event loops, to each once."""
    loops: dict[asyncio.AbstractEventLoop, list[PendingAppend]] = {}
    for pending in group:
        if pending.future is not None:  # may be delivered twice: `_resolve` checks
            loops.setdefault(pending.future.get_loop(), []).append(pending)
        elif pending.done is not None and pending.answer is not None and not pending.is_delivered:
            pending.is_delivered = True
            try:
                pending.done(pending.answer)
            except Exception:
                _log.exception("a callback of an append failed; the entry %d is answered", pending.entry_id)
    for loop, group in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, group)
        except RuntimeError:
            _log.debug("an event loop was closed before its appends were answered")


def _resolve(group: list[PendingAppend]) -> None:
    """Answer the tasks of an event loop, inside it."""
    for pending in group:
        future, answer = pending.future, pending.answer
        if future is None or future.done():
            continue  # its task was cancelled
        if isinstance(answer, CompactorError):
            future.set_exception(copy_of(answer))
        elif answer is not None:
            future.set_result(answer)


def copy_of(error: CompactorError) -> CompactorError:
    """Return a copy of an error for another thread to raise: a traceback belongs to one thread."""
    copy: CompactorError = type(error)(error.message, error.advice or error.remedy)
    copy.__cause__ = error
    return copy


def closed_error(what: str) -> Unavailable:
    """Return the error of appends to a segment that accepts no more."""
    return Unavailable(what, "append to the segment that the topic has open now")
