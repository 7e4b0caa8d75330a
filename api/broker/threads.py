"""Threads for blocking calls: one pool for each resource that a call can block on.

A route declares the resource that it blocks on, `waits_for=WaitsFor.STORE`; the default is the database. A store that
hangs occupies only the threads of calls that need the store.

A pool bounds everything that a hanging resource could exhaust: threads, queued calls and the time until a result.
A call beyond the last two is refused with `PoolBusy`. If all threads are occupied and none has finished a call for
`STUCK_MS`, new calls are refused at once. A thread cannot be stopped: it keeps its place in the pool until its call
ends (by the time-outs of store and database), and the result is dropped. A queued call whose deadline has passed is
not started.

The threads are daemons, so one that hangs does not delay the end of the process.

`LimitedWorkers` bounds the calls of one topic: an object of the topic that hangs then leaves threads for other topics.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from api.broker.refusals import NotTheOwner, PoolBusy
from api.observability.error_text import text_if_error
from api.observability.logs import LogThrottle
from api.settings.settings import Settings
from storage.clock import Clock
from storage.errors import CompactorError, Unavailable

LOG = logging.getLogger(__name__)
Result = TypeVar("Result")

STUCK_MS = 5_000
"""Time without a finished call after which a pool whose threads are all occupied refuses new calls."""
PARSERS = 2
"""Threads that parse bodies: they wait for nothing, and each may hold a body many times over."""
SCHEMA_CHECKS = 8
"""Threads that wait for the processes which compare schemas (`api/broker/schema_processes.py`)."""
SEQUENCE_READERS = 8
"""Threads that read sequence ids of producers, of one topic each."""
_QUEUED_PER_THREAD = 16
"""Calls that may wait for a thread, for each thread of the pool."""


class WaitsFor(StrEnum):
    """The resource that a call blocks on."""

    DATABASE = "database"
    LOG = "log directory"
    STORE = "object store"
    WORK = "long work over the object store"
    PARSING = "parsing of bodies"
    SCHEMAS = "comparison of schemas"
    SEQUENCES = "sequence ids of producers"


class Workers(Protocol):
    """Threads for one kind of blocking call."""

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Return or raise the result of `work(*arguments)`, called by a thread. Raises Unavailable if it does not end
        in time; a thread may then still run it."""

    async def run_without_deadline(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do the same as `run`, and wait without a deadline: for work that must not overlap with the caller's next
        step.

        Raises Unavailable if the call cannot be queued.
        """


class LimitedWorkers:
    """Workers that occupy at most `max_calls` threads at once. For one event loop.

    A call whose caller stopped waiting keeps its turn until its thread ends: a thread cannot be stopped.
    """

    def __init__(self, workers: Workers, max_calls: int, seconds: float, callers: str) -> None:
        """`seconds`: the time that a call waits for its turn. `callers`: a noun for the other calls, for the error."""
        self._workers = workers
        self._turns = asyncio.Semaphore(max_calls)
        self._seconds = seconds
        self._callers = callers

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        async with self._turn() as turn:
            return await self._workers.run(_in_turn, turn, work, *arguments)

    async def run_without_deadline(self, work: Callable[..., Result], *arguments: Any) -> Result:
        async with self._turn() as turn:
            return await self._workers.run_without_deadline(_in_turn, turn, work, *arguments)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[_SharedUse]:
        try:
            async with asyncio.timeout(self._seconds):
                await self._turns.acquire()
        except TimeoutError as error:
            raise Unavailable(
                f"{self._callers} have not ended within {self._seconds:g} s", "try again", is_public=True
            ) from error
        loop = asyncio.get_running_loop()

        def release_turn() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._turns.release)

        turn = _SharedUse(release_turn)
        try:
            yield turn
        finally:
            turn.end()


def _in_turn(turn: _SharedUse, work: Callable[..., Result], *arguments: Any) -> Result:
    """Return or raise what `work` does, in a thread. Raises Unavailable if the caller left before the start."""
    with turn.in_thread() as is_open:
        if not is_open:
            raise Unavailable("the call began after its deadline", "try again", is_public=True)
        return work(*arguments)


class _SharedUse:
    """A resource of a task that a thread may use: it is released by the task, or, during its use, by the thread."""

    def __init__(self, release: Callable[[], object]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._is_used = False
        self._is_ended = False

    @contextmanager
    def in_thread(self) -> Iterator[bool]:
        """Use the resource in a thread. Yield False if the task has released it."""
        with self._lock:
            is_open = self._is_used = not self._is_ended
        try:
            yield is_open
        finally:
            with self._lock:
                self._is_used = False
                must_release = is_open and self._is_ended
            if must_release:
                self._release()

    def end(self) -> None:
        """Release the resource, or let the thread that uses it do so."""
        with self._lock:
            self._is_ended = True
            if self._is_used:
                return
        self._release()


@dataclass(eq=False)
class _Job(Generic[Result]):
    """A call for a thread.

    `is_required`: the call ends other work, so the pool neither refuses nor skips it. `is_abandoned`: no task waits
    for the result any more.
    """

    work: Callable[[], Result]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Result]
    is_required: bool = False
    is_abandoned: bool = False


class Pool:
    """Threads for one kind of blocking call. Usable from any event loop.

    `run`, `run_without_deadline`, `run_queued` and `run_required` differ in two things: whether the caller stops
    waiting at the pool's deadline, and whether the pool may refuse the call, or skip it after the deadline.
    """

    def __init__(
        self,
        resource: WaitsFor,
        threads: int,
        deadline_ms: int | None,
        clock: Clock,
        expected_errors: tuple[type[Exception], ...] = (),
    ) -> None:
        """`deadline_ms`: time until a caller of `run` stops waiting; None: it does not. `expected_errors`: types that
        are logged without a traceback when no caller waits for the result, besides CompactorError."""
        self._resource = resource
        self._threads = threads
        self._deadline_ms = deadline_ms
        self._clock = clock
        self._expected_errors: tuple[type[Exception], ...] = (CompactorError, *expected_errors)
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._waiting = 0
        self._running = 0
        self._moved_at = clock.now_ms()
        self._log_throttle = LogThrottle(clock, LOG)

    @property
    def size(self) -> int:
        """The largest number of threads that the pool starts."""
        return self._threads

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Return or raise the result of `work(*arguments)`, called by a thread. Raises PoolBusy, also at the
        deadline."""
        return await self._call(_job(work, arguments), self._deadline_ms)

    async def run_without_deadline(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do the same as `run`, and wait without a deadline: for work that must not overlap with the caller's next
        step.

        Raises Unavailable if the call cannot be queued.
        """
        return await self._call(_job(work, arguments), None)

    async def run_queued(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do the same as `run_without_deadline`, however many calls wait: for callers whose number and memory are
        bounded elsewhere. Raises PoolBusy if the pool can start no thread."""
        return await self._call(_job(work, arguments, is_required=True), None)

    async def run_begun(self, begin: Callable[..., object], *arguments: Any) -> Any:
        """Let a thread call `begin(*arguments, deliver)`. Return what is passed to `deliver`, then or later: no thread
        waits for it.

        Raises what `begin` raises, and PoolBusy, also at the deadline.
        """
        result, loop = LoopResult[Any](), asyncio.get_running_loop()
        began = loop.time()
        await self.run(begin, *arguments, result.deliver)
        remaining = None if self._deadline_ms is None else max(0.0, began + self._deadline_ms / 1000 - loop.time())
        await asyncio.wait({result.future}, timeout=remaining)
        if not result.future.done():
            raise self._refusal("deadline", f"has not answered within {self._deadline_ms} ms")
        return result.future.result()

    async def run_required(self, work: Callable[[], Result]) -> Result:
        """Return or raise the result of `work`, a call that ends other work, such as the release of a lease.

        The pool refuses it only if it can start no thread. At the deadline the caller gets PoolBusy, and a thread calls
        `work` nevertheless.
        """
        return await self._call(_job(work, is_required=True), self._deadline_ms)

    async def iterate(self, generator: Generator[Result, None, None]) -> AsyncGenerator[Result, None]:
        """Yield the items of a generator; a thread of the pool makes each step. Raises PoolBusy.

        A thread also closes the generator, even if the client disconnects or a step misses its deadline.
        """
        steps, end = _SharedUse(generator.close), object()

        def take() -> Result | object:
            with steps.in_thread() as is_open:
                return next(generator, end) if is_open else end

        try:
            while (item := await self.run(take)) is not end:
                yield cast(Result, item)
        finally:  # nothing waits for it: the client may have disconnected
            self._enqueue(_job(steps.end, is_required=True, is_abandoned=True))

    def close(self) -> None:
        """Start no more calls. Threads that hang end with the process."""
        for _ in range(self._started):
            self._jobs.put(None)

    async def _call(self, job: _Job[Result], deadline_ms: int | None) -> Result:
        """Return the result of a call. Raises PoolBusy."""
        self._enqueue(job)
        try:
            await asyncio.wait({job.future}, timeout=None if deadline_ms is None else deadline_ms / 1000)
        finally:
            job.is_abandoned = True
        if not job.future.done():
            raise self._refusal("deadline", f"has not answered within {deadline_ms} ms")
        return job.future.result()

    def _enqueue(self, job: _Job[Any]) -> None:
        """Queue a call, and start a thread if none is free.

        Raises PoolBusy; for a required call only if the pool has no thread and cannot start one.
        """
        with self._lock:
            if not job.is_required and self._running >= self._threads:
                self._check_room()
            if self._running + self._waiting >= self._started < self._threads:
                self._start_thread()
            self._waiting += 1
        self._jobs.put(job)

    def _check_room(self) -> None:
        """Raise PoolBusy if no thread makes progress, or if the queue is full. The caller holds the lock."""
        stuck_ms = self._clock.now_ms() - self._moved_at
        if stuck_ms >= STUCK_MS:
            raise self._refusal("stuck", f"has not answered any of {self._running} requests for {stuck_ms} ms")
        if self._waiting >= self._threads * _QUEUED_PER_THREAD:
            raise self._refusal("queue", f"is waited for by {self._running + self._waiting} requests already")

    def _start_thread(self) -> None:
        """Start one more thread. If that is impossible, the existing ones continue. Raises PoolBusy if none exists."""
        try:
            threading.Thread(target=self._serve, name=f"{self._resource.name.lower()}-pool", daemon=True).start()
        except RuntimeError as error:
            if not self._started:
                raise self._refusal("threads", f"has no thread ({error})") from error
            self._log_throttle.warn(
                "%d threads, and not %d, wait for the %s (%s): raise the limit of threads (ulimit -u, TasksMax)",
                self._started,
                self._threads,
                self._resource,
                error,
            )
        else:
            self._started += 1

    def _refusal(self, kind: str, reason: str) -> PoolBusy:
        """Return the refusal, which is logged once a minute for each kind."""
        self._log_throttle.warn("requests are answered 503: the %s %s", self._resource, reason, condition=kind)
        return PoolBusy(f"the {self._resource} {reason}", kind, self._resource)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                self._waiting -= 1
                self._running += 1
                self._moved_at = self._clock.now_ms()
            try:
                if job.is_required or not job.is_abandoned:
                    self._execute(job)
            finally:
                with self._lock:
                    self._running -= 1
                    self._moved_at = self._clock.now_ms()
            del job

    def _execute(self, job: _Job[Any]) -> None:
        try:
            result, error = job.context.run(job.work), None
        except BaseException as raised:  # the task that waits raises it
            result, error = None, raised

        def settle() -> None:
            if job.future.done():
                return
            if error is None:
                job.future.set_result(result)
            elif isinstance(error, StopIteration):  # no future takes one
                job.future.set_exception(RuntimeError("a generator ended where none was"))
            else:
                job.future.set_exception(error)
                job.future.exception()  # counts as retrieved, also if no caller waits any more
            if error is not None and job.is_abandoned:
                self._log_late(error)

        with suppress(RuntimeError):  # the loop has ended
            job.loop.call_soon_threadsafe(settle, context=job.context)

    def _log_late(self, error: BaseException) -> None:
        """Log an error that no caller receives any more; an unexpected one with its traceback."""
        if isinstance(error, NotTheOwner):  # nothing failed: no request is left to forward
            return
        kind, text = type(error).__name__, "the %s failed for a request that has ended already: %s: %s"
        if isinstance(error, self._expected_errors):
            self._log_throttle.warn(text, self._resource, kind, text_if_error(error), condition=f"late {kind}")
        else:
            LOG.error(text, self._resource, kind, text_if_error(error), exc_info=error)


class LoopResult(Generic[Result]):
    """A result that any thread gives to a task of the running event loop, which awaits `future`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Result] = loop.create_future()
        deliveries = _deliveries.get(loop)
        if deliveries is None:
            deliveries = _deliveries[loop] = _Deliveries(loop)
        self._deliveries = deliveries

    def deliver(self, result: Result) -> None:
        """Set the result. Call it once."""
        self._deliveries.add(self.future, result)


class _Deliveries:
    """Results on their way to the tasks of an event loop, which is woken once for those that come together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.Future[Any], Any]] = []

    def add(self, future: asyncio.Future[Any], result: object) -> None:
        with self._lock:
            self._waiting.append((future, result))
            is_first = len(self._waiting) == 1
        loop = self._loop()
        if is_first and loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._set_all)

    def _set_all(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for future, result in waiting:
            if not future.done():  # the task may have been cancelled
                future.set_result(result)


_deliveries: WeakKeyDictionary[asyncio.AbstractEventLoop, _Deliveries] = WeakKeyDictionary()


def _job(
    work: Callable[..., Result],
    arguments: tuple[Any, ...] = (),
    *,
    is_required: bool = False,
    is_abandoned: bool = False,
) -> _Job[Result]:
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    return _Job(lambda: work(*arguments), context, loop, loop.create_future(), is_required, is_abandoned)


Pools = Mapping[WaitsFor, Pool]
"""A pool for each resource."""


def make_pools(settings: Settings, clock: Clock, expected_errors: tuple[type[Exception], ...] = ()) -> Pools:
    """Return a pool for each resource, of the sizes in `settings`. `expected_errors`: as in `Pool`."""
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
    return {
        resource: Pool(resource, threads, deadline_ms, clock, expected_errors)
        for resource, (threads, deadline_ms) in sizes.items()
    }
