"""The open logs of the topics that this service writes: shared by all requests, released when idle.

An open log has the topic's writer lease and a file, so their number is bounded. Beyond the bound the
least recently used log is closed; if all are in use, the request is refused (Unavailable). A log that has lost its
lease, or whose topic was deleted and created again, is closed, and the next request opens it again. Requests to one
topic share its flushes (group commit): each waits only for its own messages. Few threads wait for a flush
(storage/log/committers.py), however many topics do.

A caller gets LeaseHeld for a topic whose log another process has open (`api/http/owner_proxy.py` handles it).
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial

from storage.clock import Clock
from storage.entries.entry import EntryHeader
from storage.errors import ChecksumMismatch, CompactorError, Fenced, InvalidRecord, Unavailable
from storage.log.group_commit import AppendOutcome, Done, OnAnswered
from storage.log.lease_renewer import LeaseRenewer
from storage.log.prepared_segments import PIECE_BYTES
from storage.log.segment import AppendResult
from storage.log.topic_log import TopicLog
from storage.metadata.records import TopicRecord
from storage.topic import Topic

OPEN_WAIT_MS = 2_000
"""The time to wait for the lease: a compaction of this process has it for a moment, to roll."""
CHECK_SECONDS = 1.0
"""The time between two searches for idle logs."""
_log = logging.getLogger(__name__)


@dataclass
class _OpenLog:
    """The state of a topic's log in `TopicLogs`. `ready` is set when the log is open, or its opening has failed with
    `error`. `users`: the number of callers that use it. `dropped`: the last of them closes it."""

    topic: TopicRecord
    ready: threading.Event
    log: TopicLog | None = None
    error: Exception | None = None
    users: int = 0
    used_at: int = 0
    dropped: bool = False
    grown_bytes: int = 0
    """Bytes of entries since `on_grown` was called."""


MustClose = bool
"""The result of the end of a use: whether the caller must close the log now."""
OnAppended = Callable[[TopicRecord, Sequence[tuple[bytes, AppendResult]]], object]
"""Receives the entries of a topic that were appended together, each with its position."""


class TopicLogs:
    """The open logs of one service. Safe to share between threads. `start` it, and `drain_and_close` it at the end."""

    def __init__(
        self,
        clock: Clock,
        max_open: int,
        idle_ms: int,
        on_rolled: Callable[[], object] = lambda: None,
        watch: LeaseRenewer | None = None,
        on_grown: Callable[[int], object] | None = None,
        max_pending_bytes: int | None = None,
    ) -> None:
        """Make an object without open logs. `max_open`: maximum number of open logs. `idle_ms`: time without a use
        after which a log is closed. `on_rolled` is called when a segment waits to be sealed. `watch` renews the leases;
        it outlives this object. `on_grown` is called with the id of a topic whose log has grown by `PIECE_BYTES`; it
        must be quick. `max_pending_bytes`: the bytes of entries of `submit` that wait for a disk together; None: any
        number."""
        self._clock = clock
        self._max_open = max_open
        self._idle_ms = idle_ms
        self._on_rolled = on_rolled
        self._watch = watch
        self._on_grown = on_grown
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0
        self._lock = threading.Lock()
        self._open: dict[int, _OpenLog] = {}
        self.on_appended: OnAppended = lambda _topic, _entries: None
        """Called by the appending thread with the acknowledged entries; it must be quick."""
        self.appended_entries = 0
        self.appended_bytes = 0
        self._closed = False
        self._round_robin = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producers", daemon=True)

    def start(self) -> None:
        """Start the thread that closes idle logs."""
        self._thread.start()

    def drain_and_close(self) -> None:
        """Refuse new entries, and close all logs when the accepted ones are acknowledged."""
        with self._lock:
            self._closed = True
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._close_logs(self._remove_matching(lambda _: True))

    @property
    def topics(self) -> list[TopicRecord]:
        """The topics whose logs are open."""
        with self._lock:
            return [item.topic for item in self._open.values()]

    def submit(self, topic: Topic, entries: Sequence[bytes | CompactorError], on_answered: OnAnswered) -> None:
        """Append entries in order, without waiting for the disk if others wait.

        `on_answered` gets an AppendResult or an error for each entry, when all are acknowledged or have failed. It is
        called once, by any thread, and must be quick. The answer of an item that is an error is that error. After an
        entry that failed and may be sent again (`is_retryable`), no later one is appended.

        Raises LeaseHeld, the errors of opening a log, and Unavailable if too many bytes wait; then nothing was
        appended, and `on_answered` is not called.
        """
        size = sum(len(entry) for entry in entries if isinstance(entry, bytes))
        self._reserve_pending_bytes(topic, size)
        open_log: _OpenLog | None = None

        def release() -> None:
            self._add_pending_bytes(-size)
            if open_log is not None:
                self._release_without_waiting(open_log)

        def deliver(answers: list[AppendOutcome]) -> None:
            try:
                on_answered(answers)
            finally:
                release()

        try:
            open_log = self._acquire_log(topic)
            GroupAppend(self, open_log, entries, [""] * len(entries), deliver).submit_remaining()
        except BaseException:
            release()
            raise

    def _reserve_pending_bytes(self, topic: Topic, size: int) -> None:
        """Reserve `size` bytes of the limit on entries that wait for a disk. Raises Unavailable if too many wait."""
        with self._lock:
            pending, limit = self._pending_bytes, self._max_pending_bytes
            if limit is None or not pending or pending + size <= limit:
                self._pending_bytes += size
                return
        raise Unavailable(
            f"{size} bytes for {topic.name} are not taken: {pending} bytes of messages wait for the disk of the log, "
            f"of at most {limit}",
            "try again when the disk is faster, or raise limits.bodies-bytes",
            public="too many messages wait for the disk of the log",
        )

    def _add_pending_bytes(self, size: int) -> None:
        """Add to the number of bytes that wait for a disk; a negative `size` releases a reservation."""
        with self._lock:
            self._pending_bytes += size

    def hold(self, topic: Topic) -> HeldLog:
        """Open the topic's log, unless it is open, and return it. It stays open until `HeldLog.release`; until then
        this service owns the topic.

        Raises LeaseHeld and the errors of opening a log.
        """
        return HeldLog(self, self._acquire_log(topic))

    def _note_appended(self, open_log: _OpenLog, appended: Sequence[tuple[bytes, AppendResult]]) -> None:
        """Count entries that were appended, and report them to `on_appended`, and the growth of the log to
        `on_grown`."""
        size = sum(len(entry) for entry, _ in appended)
        with self._lock:
            self.appended_entries += len(appended)
            self.appended_bytes += size
            open_log.grown_bytes += size
            has_grown = open_log.grown_bytes >= PIECE_BYTES
            if has_grown:
                open_log.grown_bytes = 0
        if has_grown and self._on_grown is not None:
            self._on_grown(open_log.topic.id)
        self.on_appended(open_log.topic, appended)

    def is_open(self, topic: TopicRecord) -> bool:
        """Return whether this service has the topic's log open now."""
        with self._lock:
            open_log = self._open.get(topic.id)
            return open_log is not None and open_log.topic.uid == topic.uid and open_log.ready.is_set()

    def next_round_robin_number(self) -> int:
        """Return the next number of a counter, which chooses the partition of a message without a key."""
        return next(self._round_robin)

    def close_topics(self, *topics: TopicRecord) -> None:
        """Close the logs of these topics, each as soon as no request uses it. This releases their leases."""
        ids = {topic.id for topic in topics}
        self._close_logs(self._remove_matching(lambda item: item.topic.id in ids))

    def close_idle(self) -> int:
        """Close the logs that were idle for `idle_ms`. Return their number."""
        now = self._clock.now_ms()
        # Also those used as long in the future: the clock was set back.
        idle = self._remove_matching(lambda item: not item.users and abs(now - item.used_at) >= self._idle_ms)
        self._close_logs(idle)
        return len(idle)

    def _run(self) -> None:
        """Close idle logs every `CHECK_SECONDS`, until the thread is stopped."""
        while not self._stop.wait(CHECK_SECONDS):
            try:
                self.close_idle()
            except Exception:  # without this thread every log would stay open
                _log.exception("idle logs cannot be released now")

    def _acquire_log(self, topic: Topic) -> _OpenLog:
        """Return the topic's log, which is opened first if it is not open, and count the caller as its user until
        `_release`. Raises Unavailable if the service ends or too many logs are in use, and the errors of opening a
        log."""
        surplus: list[_OpenLog] = []
        with self._lock:
            if self._closed:
                raise Unavailable(
                    "the service is ending and takes no more messages", "ask another one, or try again", is_public=True
                )
            open_log = self._open.get(topic.record.id)
            is_first = open_log is None or open_log.topic.uid != topic.record.uid
            if is_first:
                surplus = self._remove_surplus_logs(None if open_log is None else topic.record.id)
                open_log = _OpenLog(topic.record, threading.Event())
                self._open[topic.record.id] = open_log
            assert open_log is not None
            open_log.users += 1
        self._close_logs(surplus)
        try:
            if is_first:
                self._open_topic_log(open_log, topic)
            open_log.ready.wait()
            if open_log.error is not None:
                raise open_log.error
        except BaseException:
            self._release(open_log)
            raise
        return open_log

    def _remove_surplus_logs(self, recreated_id: int | None) -> list[_OpenLog]:
        """Remove and return the logs that must be closed before another one is opened: the least recently used one if
        the limit is reached.

        `recreated_id`: the id of a topic that was deleted and created again, whose old log is removed instead; None:
        there is none. Raises Unavailable if all logs are in use. For the holder of the lock.
        """
        if recreated_id is not None:
            old = self._open.pop(recreated_id)
            old.dropped = bool(old.users)
            return [] if old.dropped else [old]
        if len(self._open) < self._max_open:
            return []
        idle = [item for item in self._open.values() if not item.users]
        if not idle:
            raise Unavailable(
                f"the service writes {self._max_open} topics at once, which is the limit",
                "try again, or raise producers.max",
                is_public=True,
            )
        oldest = min(idle, key=lambda item: item.used_at)
        return [self._open.pop(oldest.topic.id)]

    def _open_topic_log(self, open_log: _OpenLog, topic: Topic) -> None:
        """Open the topic's log and store it, or the error of the opening, in `open_log`."""
        try:
            log = topic.append_log(OPEN_WAIT_MS, self._on_rolled, self._watch)
            log.__enter__()
            open_log.log = log
        except Exception as error:
            open_log.error = error
            self._invalidate(open_log)
        finally:
            open_log.ready.set()

    def _invalidate(self, open_log: _OpenLog) -> None:
        """Remove a log that must not be used again: the next request opens the topic's log again, and the last user of
        this one closes it."""
        with self._lock:
            open_log.dropped = True
            if self._open.get(open_log.topic.id) is open_log:
                del self._open[open_log.topic.id]

    def _release(self, open_log: _OpenLog) -> None:
        """End the caller's use of a log. Close the log if it was removed and no other caller uses it."""
        if self._end_use(open_log):
            self._close_logs([open_log])

    def _release_without_waiting(self, open_log: _OpenLog) -> None:
        """End the caller's use of a log as `_release` does, but let a new thread close the log: for a thread that
        commits."""
        if self._end_use(open_log):
            threading.Thread(target=self._close_logs, args=([open_log],), name="producers", daemon=True).start()

    def _end_use(self, open_log: _OpenLog) -> MustClose:
        """Count off a user of a log. Return whether the caller must close the log."""
        with self._lock:
            open_log.users -= 1
            open_log.used_at = self._clock.now_ms()
            return open_log.dropped and not open_log.users

    def _remove_matching(self, matches: Callable[[_OpenLog], bool]) -> list[_OpenLog]:
        """Remove the logs that match. Return those that the caller must close; one in use is closed by its last
        user."""
        with self._lock:
            removed = [item for item in self._open.values() if matches(item)]
            for item in removed:
                del self._open[item.topic.id]
                item.dropped = bool(item.users)
        return [item for item in removed if not item.dropped]

    @staticmethod
    def _close_logs(logs: Sequence[_OpenLog]) -> None:
        """Close logs. Raises nothing: an error is logged."""
        for item in logs:
            log, item.log = item.log, None
            if log is not None:
                try:
                    log.__exit__(None, None, None)
                except CompactorError:
                    pass  # acknowledged entries are flushed already
                except Exception:  # the caller has other logs to close, or one to open
                    _log.exception("the log of %s did not end as it should", item.topic.name)


class GroupAppend:
    """The append of a group of entries to a topic's log, and the answers to them.

    After an entry that failed and may be sent again, no later one of the same sender is appended. Otherwise a client
    that repeats only the failed entry would reverse the order of a key's messages. Of a sender in `stop_on_error` no
    later one is appended after any that failed.
    """

    def __init__(
        self,
        logs: TopicLogs,
        open_log: _OpenLog,
        entries: Sequence[bytes | CompactorError],
        senders: Sequence[str],
        on_answered: OnAnswered,
        stop_on_error: Container[str] = (),
        headers: Sequence[EntryHeader | None] = (),
    ) -> None:
        """Make the append of `entries`; nothing is submitted yet. An entry that is an error is its own answer.
        `headers`: those of the entries, as far as the caller has them; empty: of none. `on_answered` is called once
        with an AppendResult or an error for each entry, by a thread that commits, perhaps before
        `submit_without_waiting` and `submit_remaining` return; it must be quick."""
        assert open_log.log is not None
        self._logs = logs
        self._open_log = open_log
        self._log = open_log.log
        self._entries = entries
        self._senders = senders
        self._on_answered = on_answered
        self._stop_on_error = stop_on_error
        self._headers = headers or [None] * len(entries)
        self._answers: list[AppendOutcome | None] = [None] * len(entries)
        self._failures: dict[str, CompactorError] = {}
        self._lock = threading.Lock()
        self._unanswered = len(entries)
        self._next = 0

    def submit_without_waiting(self) -> bool:
        """Submit entries to the log until one would have to wait for a disk, the database or another thread. Return
        whether all are submitted; otherwise call `submit_remaining`. For an event loop."""
        return self._submit_each(self._log.submit_at_once)

    def submit_remaining(self) -> None:
        """Submit the remaining entries to the log, and write them. For a thread: this may wait for a segment that is
        opened or rolled, and for the flush of the entries while few other threads wait."""
        try:
            self._submit_each(self._submit_with_wait)
        finally:
            self._log.commit_here()

    def _submit_with_wait(
        self, entry: bytes, on_done: Done, check: Callable[[], object], *, header: EntryHeader | None
    ) -> bool:
        """Submit an entry, also if that has to wait. Return True."""
        self._log.submit(entry, on_done, check, header=header, commits_later=True)
        return True

    def _submit_each(self, submit: Callable[..., bool]) -> bool:
        """Call `submit` for each entry that is not submitted yet, until it returns False. Return whether all are
        submitted."""
        if not self._entries:
            self._on_answered([])
        while self._next < len(self._entries):
            number = self._next
            entry = self._entries[number]
            try:
                if isinstance(entry, CompactorError):
                    raise entry
                done, check = partial(self._set_answer, number), partial(self._check_sender, number)
                if not submit(entry, done, check, header=self._headers[number]):
                    return False
            except CompactorError as error:
                self._set_answer(number, error)
            self._next += 1
        return True

    def _check_sender(self, number: int) -> None:
        """Raise Unavailable if an entry before entry `number`, of the same sender, has failed."""
        failure = self._failures.get(self._senders[number])
        if failure is not None:
            message = "a message before it in the request failed"
            raise Unavailable(f"{message}: {failure.message}", "send both again", public=message)

    def _set_answer(self, number: int, answer: AppendOutcome) -> None:
        """Set the answer to entry `number`. After the last one report all answers to the caller's `on_answered`."""
        if isinstance(answer, CompactorError):
            sender = self._senders[number]
            if is_retryable(answer) or sender in self._stop_on_error:
                self._failures.setdefault(sender, answer)
        with self._lock:
            self._answers[number] = answer
            self._unanswered -= 1
            if self._unanswered:
                return
        answers = [answer for answer in self._answers if answer is not None]
        if any(isinstance(answer, Fenced) for answer in answers):
            self._logs._invalidate(self._open_log)
        appended = [
            (entry, answer)
            for entry, answer in zip(self._entries, answers, strict=True)
            if isinstance(entry, bytes) and isinstance(answer, AppendResult)
        ]
        if appended:
            self._logs._note_appended(self._open_log, appended)
        self._on_answered(answers)


class HeldLog:
    """An open log for a caller that appends often: a topic with connected clients."""

    def __init__(self, logs: TopicLogs, open_log: _OpenLog) -> None:
        self._logs = logs
        self._open_log = open_log

    @property
    def is_lost(self) -> bool:
        """True if this log must not be used any more, because another process may write the topic, or the topic was
        deleted."""
        log = self._open_log.log
        return self._open_log.dropped or log is None or log.is_fenced

    def new_append(
        self,
        entries: Sequence[bytes | CompactorError],
        senders: Sequence[str],
        on_answered: OnAnswered,
        stop_on_error: Container[str] = (),
        headers: Sequence[EntryHeader | None] = (),
    ) -> GroupAppend:
        """Return the append of a group of entries in order, which the caller starts by a `submit` method. `senders`:
        the sender of each entry.

        After an entry that failed and may be sent again, no later one of the same sender is appended; after any that
        failed, none of a sender in `stop_on_error`. Raises Fenced if the topic is lost.
        """
        if self.is_lost:
            raise Fenced(
                f"{self._open_log.topic.name} is not written here any more", "look it up again", is_public=True
            )
        return GroupAppend(self._logs, self._open_log, entries, senders, on_answered, stop_on_error, headers)

    def release(self) -> None:
        """Release the log, which may be closed then. Call it once."""
        self._logs._release(self._open_log)


def is_retryable(error: BaseException) -> bool:
    """Return whether an entry that failed with `error` may be sent again; otherwise it can never be appended."""
    return not isinstance(error, InvalidRecord) or isinstance(error, ChecksumMismatch)
