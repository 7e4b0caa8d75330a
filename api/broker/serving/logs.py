"""The topics that this service writes: open logs, shared by all requests, released when idle.

An open log holds the topic's writer lease, a file and perhaps a thread, so their number is bounded: beyond, the one
that was used longest ago makes room, and if all are in use the request is refused (Unavailable). One that lost its
lease, or whose topic was deleted and created again, is closed and opened again by the next request. Requests to one
topic share its flushes (group commit): each waits only for its own messages.

A caller gets LeaseHeld for a topic that another process writes soon; `api/http/owner_proxy.py` decides what then.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.clock import Clock
from storage.errors import ChecksumMismatch, CompactorError, Fenced, InvalidRecord, Unavailable
from storage.log.group_commit import Answer
from storage.log.lease_renewer import LeaseRenewer
from storage.log.segment import AppendResult
from storage.log.topic_log import TopicLog
from storage.metadata.records import TopicRecord
from storage.topic import Topic

OPEN_WAIT_MS = 2_000
"""How long to wait for the lease: a compaction here has it for a moment, to roll."""
LOOK_SECONDS = 1.0
"""How often idle logs are searched for."""
_log = logging.getLogger(__name__)


@dataclass
class _Open:
    """A topic's log; `ready` is set when it is open, or could not be: `error`."""

    topic: TopicRecord
    ready: threading.Event
    log: TopicLog | None = None
    error: Exception | None = None
    users: int = 0
    used_at: int = 0
    dropped: bool = False


OnAppended = Callable[[TopicRecord, Sequence[tuple[bytes, AppendResult]]], object]
"""Takes the entries of a topic that were appended together, each with its place."""


class TopicLogs:
    """Appends to topics. Safe to share between threads. Start it, and drain it at the end: what was taken is kept."""

    def __init__(
        self,
        clock: Clock,
        most: int,
        idle_ms: int,
        on_rolled: Callable[[], object] = lambda: None,
        watch: LeaseRenewer | None = None,
    ) -> None:
        """`most` open at once; `on_rolled`: a segment waits to be sealed; `watch`: over all of them, outlives this."""
        self._clock = clock
        self._most = most
        self._idle_ms = idle_ms
        self._on_rolled = on_rolled
        self._watch = watch
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}
        self.on_appended: OnAppended = lambda _topic, _entries: None
        """Called by the appending thread with what was acknowledged; it must be quick."""
        self.appended_entries = 0
        self.appended_bytes = 0
        self._closed = False
        self._turns = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producers", daemon=True)

    def start(self) -> None:
        """Start to check for idle logs."""
        self._thread.start()

    def drain(self) -> None:
        """Take nothing more; close all when what was taken is acknowledged."""
        with self._lock:
            self._closed = True
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._close(self._taken(lambda _: True))

    @property
    def topics(self) -> list[TopicRecord]:
        """Those that are open."""
        with self._lock:
            return [item.topic for item in self._open.values()]

    def append(self, topic: Topic, entries: Sequence[bytes]) -> list[Answer]:
        """Append entries, in order; what came of each. Returns when all are acknowledged, or are not going to be.

        Raises LeaseHeld, Unavailable, what opening raises; then nothing was appended.
        """
        opened = self._use(topic)
        try:
            return self._append(opened, entries)
        finally:
            self._release(opened)

    def hold(self, topic: Topic) -> HeldLog:
        """The topic's log, kept open, and the topic this service's, until it is released. Raises as `append`."""
        return HeldLog(self, self._use(topic))

    def _append(self, opened: _Open, entries: Sequence[bytes]) -> list[Answer]:
        assert opened.log is not None
        answers = _appended(opened.log, entries, lambda: self._drop(opened))
        taken = [
            (entry, answer)
            for entry, answer in zip(entries, answers, strict=True)
            if not isinstance(answer, CompactorError)
        ]
        with self._lock:
            self.appended_entries += len(taken)
            self.appended_bytes += sum(len(entry) for entry, _ in taken)
        if taken:
            self.on_appended(opened.topic, taken)
        return answers

    def is_open(self, topic: TopicRecord) -> bool:
        """Whether this service writes the topic now."""
        with self._lock:
            opened = self._open.get(topic.id)
            return opened is not None and opened.topic.uid == topic.uid and opened.ready.is_set()

    def turn(self) -> int:
        """A number that is one more each time: for messages without a key."""
        return next(self._turns)

    def close_topic(self, topic_id: int) -> None:
        """Give one topic back now, when its writers have finished."""
        self._close(self._taken(lambda item: item.topic.id == topic_id))

    def close_idle(self) -> int:
        """Release the logs that were idle for `producers.idle`; the number released."""
        now = self._clock.now_ms()
        # Or as long in the future: the clock was set back.
        idle = self._taken(lambda item: not item.users and abs(now - item.used_at) >= self._idle_ms)
        self._close(idle)
        return len(idle)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.close_idle()
            except Exception:  # a thread that ends here would leave every log open
                _log.exception("idle logs cannot be released now")

    def _use(self, topic: Topic) -> _Open:
        """The topic's open log, which stays open until it is released."""
        room: list[_Open] = []
        with self._lock:
            if self._closed:
                raise Unavailable(
                    "the service is ending and takes no more messages", "ask another one, or try again", is_public=True
                )
            opened = self._open.get(topic.record.id)
            mine = opened is None or opened.topic.uid != topic.record.uid
            if mine:
                room = self._room(None if opened is None else topic.record.id)
                opened = _Open(topic.record, threading.Event())
                self._open[topic.record.id] = opened
            assert opened is not None
            opened.users += 1
        self._close(room)
        try:
            if mine:
                self._opened(opened, topic)
            opened.ready.wait()
            if opened.error is not None:
                raise opened.error
        except BaseException:
            self._release(opened)
            raise
        return opened

    def _room(self, same: int | None) -> list[_Open]:
        """Take out what must be closed for another one. Raises Unavailable. For the holder of the lock."""
        if same is not None:
            old = self._open.pop(same)
            old.dropped = bool(old.users)
            return [] if old.dropped else [old]
        if len(self._open) < self._most:
            return []
        idle = [item for item in self._open.values() if not item.users]
        if not idle:
            raise Unavailable(
                f"{self._most} topics are written at once, as many as may be",
                "try again, or raise producers.max",
                is_public=True,
            )
        oldest = min(idle, key=lambda item: item.used_at)
        return [self._open.pop(oldest.topic.id)]

    def _opened(self, opened: _Open, topic: Topic) -> None:
        try:
            log = topic.append_log(OPEN_WAIT_MS, self._on_rolled, self._watch)
            log.__enter__()
            opened.log = log
        except Exception as error:
            opened.error = error
            self._drop(opened)
        finally:
            opened.ready.set()

    def _drop(self, opened: _Open) -> None:
        """Let the next request open the topic again; this log is closed by the last caller that releases it."""
        with self._lock:
            opened.dropped = True
            if self._open.get(opened.topic.id) is opened:
                del self._open[opened.topic.id]

    def _release(self, opened: _Open) -> None:
        with self._lock:
            opened.users -= 1
            opened.used_at = self._clock.now_ms()
            last = opened.dropped and not opened.users
        if last:
            self._close([opened])

    def _taken(self, wanted: Callable[[_Open], bool]) -> list[_Open]:
        """Take out those that are wanted; those in use are closed by the last caller that releases them."""
        with self._lock:
            found = [item for item in self._open.values() if wanted(item)]
            for item in found:
                del self._open[item.topic.id]
                item.dropped = bool(item.users)
        return [item for item in found if not item.dropped]

    @staticmethod
    def _close(some: Sequence[_Open]) -> None:
        for item in some:
            log, item.log = item.log, None
            if log is not None:
                try:
                    log.__exit__(None, None, None)
                except CompactorError:
                    pass  # what was acknowledged is flushed; the rest was never acknowledged
                except Exception:  # the caller that makes room, or releases others, continues
                    _log.exception("the log of %s did not end as it should", item.topic.name)


class HeldLog:
    """An open log for one who appends often: producers and consumers that are connected."""

    def __init__(self, logs: TopicLogs, opened: _Open) -> None:
        self._logs = logs
        self._opened = opened

    @property
    def is_lost(self) -> bool:
        """Whether the topic was lost to another writer, or deleted: it must be held again."""
        log = self._opened.log
        return self._opened.dropped or log is None or log.is_fenced

    def append(self, entries: Sequence[bytes]) -> list[Answer]:
        """As `TopicLogs.append`. Raises Fenced if the topic is lost: what is appended then would be in no topic."""
        if self.is_lost:
            raise Fenced(f"{self._opened.topic.name} is not written here any more", "look it up again", is_public=True)
        return self._logs._append(self._opened, entries)

    def release(self) -> None:
        """Once, at the end."""
        self._logs._release(self._opened)


def may_come_again(error: BaseException) -> bool:
    """Whether the entry that failed so may be sent again; else its message can never be taken."""
    return not isinstance(error, InvalidRecord) or isinstance(error, ChecksumMismatch)


def _appended(log: TopicLog, entries: Sequence[bytes], on_lost: Callable[[], object]) -> list[Answer]:
    """The answers of entries, in order. `on_lost`: this process no longer owns the log.

    Behind an entry that failed, and may be sent again, none is appended. A client that repeats only what failed would
    else turn the order of a key's messages round.
    """
    answers: list[Answer | None] = [None] * len(entries)
    failed: list[CompactorError] = []
    remaining = threading.Semaphore(0)

    def answered(number: int) -> Callable[[Answer], None]:
        def done(answer: Answer) -> None:
            answers[number] = answer
            if isinstance(answer, CompactorError) and may_come_again(answer):
                failed.append(answer)
            remaining.release()

        return done

    def check() -> None:
        if failed:
            message = "a message before it in the request failed"
            raise Unavailable(f"{message}: {failed[0].message}", "send both again", public=message)

    if len(entries) == 1:
        try:
            return [log.append(entries[0])]
        except CompactorError as error:
            if isinstance(error, Fenced):
                on_lost()
            return [error]
    for number, entry in enumerate(entries):
        done = answered(number)
        try:
            log.submit(entry, done, check)
        except CompactorError as error:
            done(error)
    for _ in entries:
        remaining.acquire()
    if any(isinstance(answer, Fenced) for answer in answers):
        on_lost()
    return [answer for answer in answers if answer is not None]
