"""Watches over all open logs of a process: renews their leases, and rolls those that are old or asked to roll.

A TopicLog alone has a thread for either; a thousand of them would ask SQL five thousand times a second. Here one
thread looks at all, with one statement for some hundred, and one renews all leases, in one transaction for some
hundred. What a log does about it (it rolls, or gives up its segment) waits for disks and databases, so it is done in
pools, one for rolls and one for fenced logs: neither thread ever waits for a log, and what one log fails in is its own.

A log that was fenced, or whose topic was deleted (S8), is told once and not looked at again. All that fails otherwise
is tried again, at the next look or renewal. Losing the right to work is not decided here but where it counts, as in
storage/heartbeat.py. Must not know: segments, files.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from storage.errors import CompactorError, Fenced, TopicNotFound, Unavailable
from storage.log.lease import TERM_MS
from storage.metadata.records import Lease
from storage.metadata.store import MetadataStore

LOOK_SECONDS = 0.2
"""How often a writer looks whether its segment is too old, or whether somebody asked it to roll."""
RENEW_SECONDS = TERM_MS / 3000
AT_ONCE = 500
"""Leases in one transaction."""
POOL = 4
"""Logs that roll at once, and fenced ones that give up their segments."""
_TICKS = 10
"""In the time from a renewal to the next one: a lease whose row somebody had is tried again a tick later."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Watched:
    """Something that is watched for a log, and what is being done about it, one thing at a time."""

    on_fenced: Callable[[], object]
    work: Future[None] | None = field(default=None, init=False)

    @property
    def busy(self) -> bool:
        return self.work is not None and not self.work.done()


@dataclass(eq=False)
class _HeldLease(_Watched):
    lease: Lease


@dataclass(eq=False)
class _OpenLog(_Watched):
    topic_id: int
    is_old: Callable[[], bool]
    roll: Callable[[], object]
    failing: bool = field(default=False, init=False)


Kind = TypeVar("Kind", bound=_Watched)


class LeaseRenewer:
    """A context manager, which outlives the logs that it watches. Safe to share between threads."""

    def __init__(
        self,
        metadata: MetadataStore,
        look_seconds: float = LOOK_SECONDS,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        self._metadata = metadata
        self._lock = threading.Lock()
        self._watched: dict[_Watched, None] = {}
        self._stop = threading.Event()
        self._rolls = ThreadPoolExecutor(POOL, "log-roll")
        self._fences = ThreadPoolExecutor(POOL, "log-fence")
        self._threads = [
            threading.Thread(target=self._run_looks, args=(look_seconds,), name="log-look", daemon=True),
            threading.Thread(target=self._run_renewals, args=(renew_seconds,), name="log-renew", daemon=True),
        ]

    def __enter__(self) -> LeaseRenewer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stop.set()
        for thread in self._threads:
            thread.join()
        self._rolls.shutdown()
        self._fences.shutdown()

    @contextmanager
    def renewing(self, lease: Lease, on_fenced: Callable[[], object]) -> Iterator[None]:
        """Inside, the lease is renewed; `on_fenced` is called, once, if it is lost. Raises Unavailable at the end."""
        with self._watching(_HeldLease(on_fenced, lease)):
            yield

    @contextmanager
    def looking(
        self,
        topic_id: int,
        is_old: Callable[[], bool],
        roll: Callable[[], object],
        on_fenced: Callable[[], object],
    ) -> Iterator[None]:
        """Inside, `roll` is called if the log is old, which is to be said without waiting, or somebody wants it to.

        `on_fenced` is called, once, if the topic is gone, or if `roll` finds that it or the lease is. A caller that
        leaves waits for what has begun, and nothing begins after. Raises Unavailable at the end.
        """
        with self._watching(_OpenLog(on_fenced, topic_id, is_old, roll)):
            yield

    def look(self) -> list[Future[None]]:
        """Look at all open logs once; what was begun. Raises Unavailable, Misconfigured."""
        logs = [one for one in self._those(_OpenLog) if not one.busy]
        requested = self._metadata.segments.roll_requests([one.topic_id for one in logs]) if logs else {}
        begun: list[Future[None] | None] = []
        for one in logs:
            if one.topic_id not in requested:
                begun.append(self._begin(one, self._fences, self._fence))
            elif requested[one.topic_id] or _is_old(one):
                begun.append(self._begin(one, self._rolls, self._roll))
        return [work for work in begun if work is not None]

    def renew(self) -> list[Future[None]]:
        """Renew all leases once; what was begun for those that are lost."""
        return self._renew(self._those(_HeldLease))[0]

    def _those(self, kind: type[Kind]) -> list[Kind]:
        with self._lock:
            return [one for one in self._watched if isinstance(one, kind)]

    @contextmanager
    def _watching(self, one: _Watched) -> Iterator[None]:
        with self._lock:
            if self._stop.is_set():
                raise Unavailable(
                    "the process is ending and opens no more logs", "ask another one, or try again", is_public=True
                )
            self._watched[one] = None
        try:
            yield
        finally:
            with self._lock:
                self._watched.pop(one, None)
                work = one.work
            if work is not None and not work.cancel():
                wait([work])

    def _begin(self, one: Kind, pool: ThreadPoolExecutor, step: Callable[[Kind], None]) -> Future[None] | None:
        with self._lock:
            if one not in self._watched or one.busy:
                return None
            one.work = pool.submit(step, one)
            return one.work

    def _roll(self, one: _OpenLog) -> None:
        try:
            one.roll()
            one.failing = False
        except (Fenced, TopicNotFound):
            self._fence(one)
        except Exception as error:  # it is tried again at the next look
            level = logging.DEBUG if one.failing else logging.WARNING
            one.failing = True
            known = isinstance(error, CompactorError)
            _log.log(level, "a segment of topic %d cannot be rolled now: %s", one.topic_id, error, exc_info=not known)

    def _fence(self, one: _Watched) -> None:
        with self._lock:
            self._watched.pop(one, None)
        try:
            one.on_fenced()
        except Exception:
            _log.exception("a log that was fenced did not give up its segment as it should")

    def _renew(self, held: Sequence[_HeldLease]) -> tuple[list[Future[None]], list[_HeldLease]]:
        """What was begun for those that are lost; and those that are to be tried again soon."""
        begun: list[Future[None]] = []
        again: list[_HeldLease] = []
        for first in range(0, len(held), AT_ONCE):
            some = held[first : first + AT_ONCE]
            try:
                lost, busy = self._metadata.leases.renew_many([one.lease for one in some], TERM_MS)
            except Exception as error:  # the next ones may be luckier, and these the next time
                _log.warning("%d leases cannot be renewed now: %s", len(some), error)
                continue
            lost_ones, busy_ones = set(lost), set(busy)
            works = [self._begin(one, self._fences, self._fence) for one in some if one.lease in lost_ones]
            begun += [work for work in works if work is not None]
            again += [one for one in some if one.lease in busy_ones]
        return begun, again

    def _run_looks(self, seconds: float) -> None:
        failing = False
        while not self._stop.wait(seconds):
            try:
                self.look()
                failing = False
            except Exception as error:  # a thread that ends here would roll nothing ever after
                if not failing:
                    _log.warning("open logs cannot be looked at now: %s", error)
                failing = True

    def _run_renewals(self, seconds: float) -> None:
        tick = 0
        again: list[_HeldLease] = []
        while not self._stop.wait(seconds / _TICKS):
            tick = (tick + 1) % _TICKS
            try:
                again = self._renew(again if tick else self._those(_HeldLease))[1]
            except Exception:  # a thread that ends here would lose all leases
                _log.exception("leases cannot be renewed now")


def _is_old(one: _OpenLog) -> bool:
    try:
        return one.is_old()
    except Exception:  # others are looked at all the same
        _log.exception("the age of the segment of topic %d is not known", one.topic_id)
        return False
