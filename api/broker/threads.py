"""What a request waits for, and the threads that wait: each kind of waiting has a pool of its own.

A route declares what it waits for, `waits_for=WaitsFor.STORE`; without that, the database. A store that hangs holds the
threads of the routes that need it, and no other route notices.

A pool has a bound for each thing that a hanging part could use up: threads, requests that wait for one, and the time
until the answer. A request beyond the last two is answered 503 with Retry-After; so is, at once, a request that comes
while all threads are held and none has got anywhere for `STUCK_MS`. A thread cannot be stopped: it keeps its place in
the pool until what it waits for ends (by the store's and the database's own time-outs), and its result is
dropped. What no thread has begun at the deadline is never begun.

The threads are daemons, so one that hangs does not delay the end of the process. Must not know: routes, HTTP but for
the refusal.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar, cast

from fastapi import HTTPException, Request

from api.http.owner_proxy import NotTheOwner
from api.http.problems import RestException
from api.observability.logs import LogThrottle
from api.settings.settings import Settings
from storage.clock import Clock
from storage.errors import CompactorError

LOG = logging.getLogger(__name__)
Answer = TypeVar("Answer")

STUCK_MS = 5_000
"""How long all threads may be held without one of them ending before the pool takes no more requests."""
PARSERS = 2
"""Threads that parse bodies: they wait for nothing, and each may hold a body many times over."""
SCHEMA_CHECKS = 8
"""Threads that wait for the processes which compare schemas (`api/broker/schema_processes.py`)."""
SEQUENCE_READERS = 8
"""Threads that read sequence ids of producers, of one topic each."""
_PARSED_HERE_BYTES = 4 << 10
"""A body up to this size takes less time to parse than to hand to a thread."""
_PER_THREAD = 16
"""Requests that wait for a thread, for each thread there is."""


class WaitsFor(StrEnum):
    """What the thread of a route waits for."""

    DATABASE = "database"
    LOG = "log directory"
    STORE = "object store"
    WORK = "long work over the object store"
    PARSING = "parsing of bodies"
    SCHEMAS = "comparison of schemas"
    SEQUENCES = "sequence ids of producers"


@dataclass(eq=False)
class _Job:
    """A call that a thread makes. `dropped`: no request waits for it. `ends_other`: it is made all the same."""

    work: Callable[[], Any]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    dropped: bool = False
    ends_other: bool = False


def _job(work: Callable[[], Any]) -> _Job:
    loop = asyncio.get_running_loop()
    return _Job(work, contextvars.copy_context(), loop, loop.create_future())


class _Steps(Generic[Answer]):
    """The steps of a generator. It cannot be closed during one, so the thread that makes the step closes it behind."""

    def __init__(self, parts: Generator[Answer, None, None]) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._is_running = False
        self._is_left = False

    def take(self, end: object) -> Answer | object:
        """What the next step yields; `end` behind the last one."""
        with self._lock:
            if self._is_left:
                return end
            self._is_running = True
        try:
            return next(self._parts, end)
        finally:
            with self._lock:
                self._is_running = False
                is_left = self._is_left
            if is_left:
                self._parts.close()

    def leave(self) -> None:
        """Close the generator, or let the step that runs close it."""
        with self._lock:
            self._is_left = True
            if self._is_running:
                return
        self._parts.close()


class Pool:
    """Threads for one kind of waiting. For the tasks of any event loop."""

    def __init__(self, what: WaitsFor, threads: int, deadline_ms: int | None, clock: Clock) -> None:
        """`deadline_ms` None: the work may take as long as it takes."""
        self._what = what
        self._threads = threads
        self._deadline_ms = deadline_ms
        self._clock = clock
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._waiting = 0
        self._running = 0
        self._moved_at = clock.now_ms()
        self._log_throttle = LogThrottle(clock, LOG)

    @property
    def size(self) -> int:
        """The most threads that the pool starts."""
        return self._threads

    async def run(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """What `work` returns or raises, called by a thread of the pool. Raises RestException (503)."""
        return await self._run(self._deadline_ms, work, *arguments)

    async def run_to_end(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """As `run`, but without the deadline: for what must not run beside what comes next."""
        return await self._run(None, work, *arguments)

    async def _run(self, deadline_ms: int | None, work: Callable[..., Answer], *arguments: Any) -> Answer:
        job = self._begin(lambda: work(*arguments))
        try:
            await asyncio.wait({job.future}, timeout=None if deadline_ms is None else deadline_ms / 1000)
        finally:
            job.dropped = True
        if not job.future.done():
            raise self._refused("deadline", f"has not answered within {deadline_ms} ms")
        found: Answer = job.future.result()
        return found

    async def each(self, parts: Generator[Answer, None, None]) -> AsyncGenerator[Answer, None]:
        """What a generator yields, each step made by a thread of the pool.

        A thread closes it, too, also when the client goes away or a step misses its deadline.
        """
        steps, end = _Steps(parts), object()
        try:
            while (found := await self.run(steps.take, end)) is not end:
                yield cast(Answer, found)
        finally:  # the client may have gone away: nothing is waited for
            self._finish(steps.leave, dropped=True)

    def close(self) -> None:
        """Begin nothing more. Threads that hang are left to end with the process."""
        for _ in range(self._started):
            self._jobs.put(None)

    async def finish(self, work: Callable[[], Answer]) -> Answer:
        """Return what `work` returns or raises, which ends other work: a lease is released, for example.

        It is never refused for want of a thread. After the deadline the caller gets RestException (503), and a thread
        calls `work` all the same.
        """
        job = self._finish(work)
        deadline = self._deadline_ms
        try:
            await asyncio.wait({job.future}, timeout=None if deadline is None else deadline / 1000)
        finally:
            job.dropped = True
        if not job.future.done():
            raise self._refused("deadline", f"has not answered within {deadline} ms")
        answer: Answer = job.future.result()
        return answer

    def _finish(self, work: Callable[[], Any], dropped: bool = False) -> _Job:
        """Queue what ends other work; `dropped`: no caller waits for it."""
        job = _job(work)
        job.ends_other, job.dropped = True, dropped
        with self._lock:
            if self._running + self._waiting >= self._started < self._threads:
                self._start()
            self._waiting += 1
        self._jobs.put(job)
        return job

    def _begin(self, work: Callable[[], Any]) -> _Job:
        """Queue a call, and start a thread if none is free. Raises RestException (503)."""
        job = _job(work)
        with self._lock:
            if self._running >= self._threads:
                stuck_ms = self._clock.now_ms() - self._moved_at
                if stuck_ms >= STUCK_MS:
                    raise self._refused("stuck", f"has not answered any of {self._running} requests for {stuck_ms} ms")
                if self._waiting >= self._threads * _PER_THREAD:
                    raise self._refused("queue", f"is waited for by {self._running + self._waiting} requests already")
            if self._running + self._waiting >= self._started < self._threads:
                self._start()
            self._waiting += 1
        self._jobs.put(job)
        return job

    def _start(self) -> None:
        """Start one thread more; if that is impossible, the existing ones continue. Raises RestException (503) if none
        is."""
        try:
            threading.Thread(target=self._serve, name=f"{self._what.name.lower()}-pool", daemon=True).start()
        except RuntimeError as error:
            if not self._started:
                raise self._refused("threads", f"has no thread ({error})") from error
            self._log_throttle.warn(
                f"{self._started} threads, and not {self._threads}, wait for the {self._what} ({error}): raise the "
                "limit of threads (ulimit -u, TasksMax)",
                "threads",
            )
        else:
            self._started += 1

    def _refused(self, kind: str, reason: str) -> RestException:
        """The refusal, which is logged once a minute for each kind."""
        self._log_throttle.warn(f"requests are answered 503: the {self._what} {reason}", kind)
        return RestException(503, f"the {self._what} {reason}: try again", {"Retry-After": "1"})

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                self._waiting -= 1
                self._running += 1
                self._moved_at = self._clock.now_ms()
            try:
                if job.ends_other or not job.dropped:
                    self._call(job)
            finally:
                with self._lock:
                    self._running -= 1
                    self._moved_at = self._clock.now_ms()
            del job

    def _call(self, job: _Job) -> None:
        try:
            found, error = job.context.run(job.work), None
        except BaseException as raised:  # the task that waits raises it
            found, error = None, raised

        def tell() -> None:
            if job.future.done():
                return
            if error is None:
                job.future.set_result(found)
            elif isinstance(error, StopIteration):  # no future takes one
                job.future.set_exception(RuntimeError("a generator ended where none was"))
            else:
                job.future.set_exception(error)
                job.future.exception()  # it counts as seen, also if no caller waits any more
            if error is not None and job.dropped:
                self._log_late(error)

        with suppress(RuntimeError):  # the loop has ended
            job.loop.call_soon_threadsafe(tell, context=job.context)

    def _log_late(self, error: BaseException) -> None:
        """Log an error that no request gets any more; one that was not foreseen with its traceback."""
        if isinstance(error, NotTheOwner):  # nothing failed: there is no request any more to forward
            return
        reason = f"the {self._what} failed for a request that has ended already: {type(error).__name__}: {error}"
        if isinstance(error, CompactorError | HTTPException):
            self._log_throttle.warn(reason, f"late {type(error).__name__}")
        else:
            LOG.error(reason, exc_info=error)


Pools = Mapping[WaitsFor, Pool]
"""A pool for each kind of waiting."""


def make_pools(settings: Settings, clock: Clock) -> Pools:
    """As the settings say."""
    deadline = settings.limits_request_timeout_ms
    sizes = {
        WaitsFor.DATABASE: (settings.threads_database, deadline),
        WaitsFor.LOG: (settings.threads_log, deadline),
        WaitsFor.STORE: (settings.threads_store, deadline),
        WaitsFor.WORK: (settings.threads_work, None),
        WaitsFor.PARSING: (PARSERS, deadline),
        WaitsFor.SCHEMAS: (SCHEMA_CHECKS, deadline),
        WaitsFor.SEQUENCES: (SEQUENCE_READERS, None),
    }
    return {what: Pool(what, threads, most, clock) for what, (threads, most) in sizes.items()}


def pools_of(request: Request) -> Pools:
    """The pools of the service that a request came to."""
    return cast(Pools, request.app.state.pools)


async def parse_body(request: Request, parse: Callable[[bytes], Answer]) -> Answer:
    """What `parse` makes of the request's body, called by a thread if the body is large."""
    body = await request.body()
    if len(body) <= _PARSED_HERE_BYTES:
        return parse(body)
    return await pools_of(request)[WaitsFor.PARSING].run(parse, body)
