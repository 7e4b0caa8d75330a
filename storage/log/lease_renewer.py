"""The renewal of all leases of a process, and the rolls of its logs that are old or have a request to roll.

A TopicLog alone has a thread for each; a thousand of them would query SQL five thousand times a second. Here one thread
polls for all logs, with one statement, and one renews all leases, in one transaction for several
hundred. The log's reaction (a roll, or the release of its segment) waits for disks and databases, so it runs in pools,
one for rolls and one for fenced logs: neither thread ever waits for a log, and no log's failure reaches another.

`on_fenced` of a log that was fenced, or whose topic was deleted (S8), is called once; then the log is no longer
watched. Any other failure is retried, at the next poll or renewal. The commit, not this module, decides which process
may write, as in storage/heartbeat.py. Must not know: segments, files.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from storage.clock import Clock, SystemClock
from storage.errors import CompactorError, Fenced, TopicNotFound, Unavailable
from storage.metadata.liveness import LEASE_TTL_MS
from storage.metadata.records import Lease
from storage.metadata.store import MetadataStore
from storage.metadata.topic_work import WorkKind

POLL_SECONDS = 0.2
"""The interval at which a writer checks the age of its segment, and requests to roll."""
RENEW_SECONDS = LEASE_TTL_MS / 3000
AT_ONCE = 500
"""The leases of one transaction."""
POOL = 4
"""Logs that roll at the same time, and fenced ones that release their segments."""
TICKS = 10
"""Ticks of an interval of renewal: a lease whose row was locked is tried again a tick later."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Watched:
    """A lease or an open log that a renewer takes care of. `work`: what runs for it now or ran last; one at a time."""

    on_fenced: Callable[[], object]
    work: Future[object] | None = field(default=None, init=False)

    @property
    def has_running_work(self) -> bool:
        """True while a roll or a fence of this item, which the renewer began, has not ended."""
        return self.work is not None and not self.work.done()


@dataclass(eq=False)
class _HeldLease(_Watched):
    lease: Lease


@dataclass(eq=False)
class _OpenLog(_Watched):
    topic_id: int
    is_old: Callable[[], bool]
    roll: Callable[[], object]
    appended: Callable[[], int]
    noted: int = field(default=0, init=False)
    """The number of entries at the last note that their topic has new ones."""
    queued: int = field(default=0, init=False)
    """The number of entries that the topic's last mark includes."""
    failing: bool = field(default=False, init=False)


AnyWatched = TypeVar("AnyWatched", bound=_Watched)


class LeaseRenewer:
    """The renewer of all leases of a process, which also rolls its logs when that is due: a context manager that
    outlives its logs. Thread-safe.

    `poll_seconds`: between two polls of all logs; `renew_seconds`: between two renewals of a lease.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        poll_seconds: float = POLL_SECONDS,
        renew_seconds: float = RENEW_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._metadata = metadata
        self._clock = clock or SystemClock()
        self._renewed_at = self._clock.now_ms()
        self._tick = 0
        self._locked: list[_HeldLease] = []
        self._lock = threading.Lock()
        self._watched: dict[_Watched, None] = {}
        self._stop = threading.Event()
        self._rolls = ThreadPoolExecutor(POOL, "log-roll")
        self._fences = ThreadPoolExecutor(POOL, "log-fence")
        self._threads = [
            threading.Thread(target=self._run_polls, args=(poll_seconds,), name="log-look", daemon=True),
            threading.Thread(target=self._run_renewals, args=(renew_seconds,), name="log-renew", daemon=True),
        ]

    def __enter__(self) -> LeaseRenewer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stop.set()
        for thread in self._threads:
            thread.join()
        self._rolls.shutdown()
        self._fences.shutdown()

    def renewing(self, lease: Lease, on_fenced: Callable[[], object]) -> AbstractContextManager[None]:
        """Renew a lease inside the context; call `on_fenced`, once, if it is lost to another owner.

        Raises Unavailable if this renewer is ending.
        """
        return self._watch_inside(_HeldLease(on_fenced, lease))

    def rolling_when_due(
        self,
        topic_id: int,
        is_old: Callable[[], bool],
        roll: Callable[[], object],
        on_fenced: Callable[[], object],
        appended: Callable[[], int] = lambda: 0,
    ) -> AbstractContextManager[None]:
        """Watch a log inside the context: call `roll` if the log is old, or a roll was requested; `is_old` must not
        wait.

        `appended`: returns the number of entries that were appended so far; while it grows, the topic is queued for the
        leader's check, since only this process knows (storage/metadata/topic_work.py).

        `on_fenced` is called, once, if the topic is deleted, or if `roll` discovers that the topic or the lease is
        lost. A caller that leaves the context waits for running work, and no work begins after. Raises Unavailable if
        this renewer is ending.
        """
        return self._watch_inside(_OpenLog(on_fenced, topic_id, is_old, roll, appended))

    def roll(self, topic_id: int, wait_ms: int) -> bool:
        """Roll the log of a topic now, if this renewer watches it; return whether its segment was rolled within
        `wait_ms`.

        Callable from any thread. A failure is logged as that of a requested roll.
        """
        log = next((log for log in self._watched_of_type(_OpenLog) if log.topic_id == topic_id), None)
        work = None if log is None else self._begin_work(log, self._rolls, self._roll_log)
        if work is None:
            return False
        ended, _ = wait([work], wait_ms / 1000)
        return work in ended and not work.cancelled() and work.result() is True

    def poll_logs(self) -> list[Future[object]]:
        """Check all open logs once for age, requests to roll and deleted topics; return the work that this begins.
        Raises Unavailable, Misconfigured."""
        logs = [log for log in self._watched_of_type(_OpenLog) if not log.has_running_work]
        if not logs:
            return []
        topic_ids = self._metadata.segments.roll_requests_and_deletions()
        begun: list[Future[object] | None] = []
        for log in logs:
            if log.topic_id in topic_ids.deleted:
                begun.append(self._begin_work(log, self._fences, self._report_fenced))
            elif log.topic_id in topic_ids.roll_requested or _is_old(log):
                begun.append(self._begin_work(log, self._rolls, self._roll_log))
        return [work for work in begun if work is not None]

    def renew_due_leases(self) -> list[Future[object]]:
        """Renew the leases that are due; return the work that begins for lost ones.

        All are due once in `TICKS` ticks, and after the process was paused for as long as a lease lasts, because
        another process may have taken them. In every other tick, those are due whose row was locked in the tick before.
        """
        self._tick = (self._tick + 1) % TICKS
        now = self._clock.now_ms()
        due = self._locked
        if self._tick == 0 or abs(now - self._renewed_at) >= LEASE_TTL_MS:
            self._renewed_at = now
            due = self._watched_of_type(_HeldLease)
        begun, self._locked = self._renew_leases(due)
        if self._tick == 0:
            self._queue_topics_with_appends()
        return begun

    def _queue_topics_with_appends(self) -> None:
        """Queue the topics of logs with new entries for the leader's check.

        An entry that was not flushed yet at one call is visible at the next, so a topic is queued once more after its
        last entry. Its log's end queues it as well.
        """
        counted = [(log, log.appended()) for log in self._watched_of_type(_OpenLog)]
        grown = [(log, count) for log, count in counted if count != log.queued]
        for first in range(0, len(grown), AT_ONCE):
            batch = grown[first : first + AT_ONCE]
            try:
                self._metadata.topic_work.queue(WorkKind.COMPACT, [log.topic_id for log, _ in batch])
            except Exception as error:  # the next call tries again
                _log.warning("%d topics with new messages cannot be queued now: %s", len(batch), error)
                continue
            for log, count in batch:
                log.queued, log.noted = log.noted, count

    def _watched_of_type(self, kind: type[AnyWatched]) -> list[AnyWatched]:
        with self._lock:
            return [watched for watched in self._watched if isinstance(watched, kind)]

    @contextmanager
    def _watch_inside(self, watched: _Watched) -> Iterator[None]:
        with self._lock:
            if self._stop.is_set():
                raise Unavailable(
                    "the process is ending and opens no more logs", "ask another one, or try again", is_public=True
                )
            self._watched[watched] = None
        try:
            yield
        finally:
            with self._lock:
                self._watched.pop(watched, None)
                work = watched.work
            if work is not None and not work.cancel():
                wait([work])

    def _begin_work(
        self, watched: AnyWatched, pool: ThreadPoolExecutor, step: Callable[[AnyWatched], object]
    ) -> Future[object] | None:
        with self._lock:
            if watched not in self._watched or watched.has_running_work:
                return None
            watched.work = pool.submit(step, watched)
            return watched.work

    def _roll_log(self, log: _OpenLog) -> bool:
        """Roll a log, and return whether that succeeded; a failure is logged."""
        try:
            log.roll()
            log.failing = False
            return True
        except (Fenced, TopicNotFound):
            self._report_fenced(log)
        except Exception as error:  # the next poll tries again
            level = logging.DEBUG if log.failing else logging.WARNING
            log.failing = True
            known = isinstance(error, CompactorError)
            _log.log(level, "a segment of topic %d cannot be rolled now: %s", log.topic_id, error, exc_info=not known)
        return False

    def _report_fenced(self, watched: _Watched) -> None:
        with self._lock:
            self._watched.pop(watched, None)
        try:
            watched.on_fenced()
        except Exception:
            _log.exception("a fenced log failed to release its segment")

    def _renew_leases(self, held: Sequence[_HeldLease]) -> tuple[list[Future[object]], list[_HeldLease]]:
        """Renew leases; return the work that began for lost ones, and the leases to try again soon, whose rows were
        locked."""
        begun: list[Future[object]] = []
        again: list[_HeldLease] = []
        for first in range(0, len(held), AT_ONCE):
            batch = held[first : first + AT_ONCE]
            try:
                lost, busy = self._metadata.leases.renew_many([watched.lease for watched in batch], LEASE_TTL_MS)
            except Exception as error:  # the next renewal tries these again
                _log.warning("%d leases cannot be renewed now: %s", len(batch), error)
                continue
            lost_ones, busy_ones = set(lost), set(busy)
            works = [
                self._begin_work(watched, self._fences, self._report_fenced)
                for watched in batch
                if watched.lease in lost_ones
            ]
            begun += [work for work in works if work is not None]
            again += [watched for watched in batch if watched.lease in busy_ones]
        return begun, again

    def _run_polls(self, seconds: float) -> None:
        failing = False
        while not self._stop.wait(seconds):
            try:
                self.poll_logs()
                failing = False
            except Exception as error:  # the thread must survive: it rolls all logs
                if not failing:
                    _log.warning("roll requests of open logs cannot be polled now: %s", error)
                failing = True

    def _run_renewals(self, seconds: float) -> None:
        while not self._stop.wait(seconds / TICKS):
            try:
                self.renew_due_leases()
            except Exception:  # the thread must survive: it renews all leases
                _log.exception("leases cannot be renewed now")


def _is_old(log: _OpenLog) -> bool:
    try:
        return log.is_old()
    except Exception:  # the other logs are still polled
        _log.exception("the age of the segment of topic %d is not known", log.topic_id)
        return False
