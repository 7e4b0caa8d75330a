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
    """Threads that execute one kind of blocking call for coroutines."""

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call `work(*arguments)` in a thread; return its result or raise its error.

        Raises Unavailable if the call does not end before the deadline; a thread may then still execute it.
        """

    async def run_without_deadline(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call `work(*arguments)` in a thread; wait without a deadline, so that the call never overlaps with the
        caller's next step.

        Raises Unavailable if the call cannot be queued.
        """


class LimitedWorkers:
    """Workers that execute at most `max_calls` calls at the same time, in the threads of others. For one event loop.

    A call whose caller stopped waiting keeps its turn until its thread ends: a thread cannot be stopped.
    """

    def __init__(self, workers: Workers, max_calls: int, seconds: float, callers: str) -> None:
        """`seconds`: the time that a call waits for its turn. `callers`: a noun for the other calls, for the error."""
        self._workers = workers
        self._turns = asyncio.Semaphore(max_calls)
        self._seconds = seconds
        self._callers = callers

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        async with self._acquire_turn() as turn:
            return await self._workers.run(_call_in_turn, turn, work, *arguments)

    async def run_without_deadline(self, work: Callable[..., Result], *arguments: Any) -> Result:
        async with self._acquire_turn() as turn:
            return await self._workers.run_without_deadline(_call_in_turn, turn, work, *arguments)

    @asynccontextmanager
    async def _acquire_turn(self) -> AsyncIterator[_TaskResource]:
        """Wait for one of the `max_calls` turns and yield it. Raises Unavailable if none is free in time."""
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

        turn = _TaskResource(release_turn)
        try:
            yield turn
        finally:
            turn.release_unless_used()


def _call_in_turn(turn: _TaskResource, work: Callable[..., Result], *arguments: Any) -> Result:
    """Call `work` in a thread during a turn. Raises Unavailable if the caller stopped waiting before the start."""
    with turn.use_in_thread() as is_open:
        if not is_open:
            raise Unavailable("the call began after its deadline", "try again", is_public=True)
        return work(*arguments)


class _TaskResource:
    """A resource of a task that a thread may use. The task releases it, or the thread at the end of a use during which
    the task ended."""

    def __init__(self, release: Callable[[], object]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._is_used = False
        self._is_ended = False

    @contextmanager
    def use_in_thread(self) -> Iterator[bool]:
        """Keep the resource from release during the context. Yield False if the task has released it already."""
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

    def release_unless_used(self) -> None:
        """Release the resource now, or at the end of the use if a thread uses it."""
        with self._lock:
            self._is_ended = True
            if self._is_used:
                return
        self._release()


@dataclass(eq=False)
class _Job(Generic[Result]):
    """A blocking call for a thread of a pool, and the future of its result.

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
    """A pool of threads for the calls that block on one resource, with limits for threads, queue and waiting time.

    Usable from any event loop. The methods `run`, `run_without_deadline`, `run_without_deadline_or_queue_limit` and
    `run_required` differ in two things: whether the caller stops waiting at the pool's deadline, and whether the pool
    may refuse the call, or skip it after the deadline.
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
        """Return the maximum number of threads of the pool."""
        return self._threads

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call `work(*arguments)` in a thread; return its result or raise its error. Raises PoolBusy, also at the
        deadline."""
        return await self._enqueue_and_wait(_new_job(work, arguments), self._deadline_ms)

    async def run_without_deadline(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call `work(*arguments)` in a thread; wait without a deadline, so that the call never overlaps with the
        caller's next step.

        Raises PoolBusy if the call cannot be queued.
        """
        return await self._enqueue_and_wait(_new_job(work, arguments), None)

    async def run_without_deadline_or_queue_limit(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call `work(*arguments)` in a thread without a deadline and without the limit of queued calls.

        For callers whose number and memory are limited already. Raises PoolBusy if the pool can start no thread.
        """
        return await self._enqueue_and_wait(_new_job(work, arguments, is_required=True), None)

    async def run_with_callback(self, begin: Callable[..., object], *arguments: Any) -> Any:
        """Call `begin(*arguments, deliver)` in a thread; wait until someone calls `deliver`, and return its argument.

        No thread is occupied while the result is awaited. Raises the errors of `begin`, and PoolBusy, also at the
        deadline.
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
        """Call `work` in a thread and return its result: a call that ends other work, such as a lease's release.

        The pool refuses it only if it can start no thread. At the deadline the caller gets PoolBusy, and a thread calls
        `work` nevertheless.
        """
        return await self._enqueue_and_wait(_new_job(work, is_required=True), self._deadline_ms)

    async def iterate(self, generator: Generator[Result, None, None]) -> AsyncGenerator[Result, None]:
        """Yield the items of a blocking generator; a thread executes each step. Raises PoolBusy.

        A thread also closes the generator, even if the client disconnects or a step misses its deadline.
        """
        steps, end = _TaskResource(generator.close), object()

        def take() -> Result | object:
            with steps.use_in_thread() as is_open:
                return next(generator, end) if is_open else end

        try:
            while (item := await self.run(take)) is not end:
                yield cast(Result, item)
        finally:  # nothing waits for it: the client may have disconnected
            self._enqueue(_new_job(steps.release_unless_used, is_required=True, is_abandoned=True))

    def close(self) -> None:
        """End the threads after the queued calls. Threads that hang end with the process."""
        for _ in range(self._started):
            self._jobs.put(None)

    async def _enqueue_and_wait(self, job: _Job[Result], deadline_ms: int | None) -> Result:
        """Queue a call, and wait for its result until the deadline. Raises PoolBusy."""
        self._enqueue(job)
        try:
            await asyncio.wait({job.future}, timeout=None if deadline_ms is None else deadline_ms / 1000)
        finally:
            job.is_abandoned = True
        if not job.future.done():
            raise self._refusal("deadline", f"has not answered within {deadline_ms} ms")
        return job.future.result()

    def _enqueue(self, job: _Job[Any]) -> None:
        """Put a call into the queue, and start a thread if none is free.

        Raises PoolBusy; for a required call only if the pool has no thread and cannot start one.
        """
        with self._lock:
            if not job.is_required and self._running >= self._threads:
                self._check_queue_room()
            if self._running + self._waiting >= self._started < self._threads:
                self._start_thread()
            self._waiting += 1
        self._jobs.put(job)

    def _check_queue_room(self) -> None:
        """Raise PoolBusy if no thread makes progress, or if the queue is full. The caller holds the lock."""
        stuck_ms = self._clock.now_ms() - self._moved_at
        if stuck_ms >= STUCK_MS:
            raise self._refusal("stuck", f"has not answered any of {self._running} requests for {stuck_ms} ms")
        if self._waiting >= self._threads * _QUEUED_PER_THREAD:
            raise self._refusal("queue", f"is waited for by {self._running + self._waiting} requests already")

    def _start_thread(self) -> None:
        """Start one more thread. If that is impossible, the existing ones continue. Raises PoolBusy if none exists."""
        try:
            threading.Thread(target=self._run_jobs, name=f"{self._resource.name.lower()}-pool", daemon=True).start()
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
        """Return the error of a refused call, and log a warning, at most once a minute for each kind."""
        self._log_throttle.warn("requests are answered 503: the %s %s", self._resource, reason, condition=kind)
        return PoolBusy(f"the {self._resource} {reason}", kind, self._resource)

    def _run_jobs(self) -> None:
        """Execute queued calls until the pool is closed. The main function of a thread."""
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
        """Execute a call, and pass its result or error to the task that waits; log an error without such a task."""
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
                self._log_late_error(error)

        with suppress(RuntimeError):  # the loop has ended
            job.loop.call_soon_threadsafe(settle, context=job.context)

    def _log_late_error(self, error: BaseException) -> None:
        """Log an error that no caller receives any more; an unexpected one with its traceback."""
        if isinstance(error, NotTheOwner):  # nothing failed: no request is left to forward
            return
        kind, text = type(error).__name__, "the %s failed for a request that has ended already: %s: %s"
        if isinstance(error, self._expected_errors):
            self._log_throttle.warn(text, self._resource, kind, text_if_error(error), condition=f"late {kind}")
        else:
            LOG.error(text, self._resource, kind, text_if_error(error), exc_info=error)


class LoopResult(Generic[Result]):
    """A result that any thread passes to a task of the running event loop. The task awaits `future`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Result] = loop.create_future()
        deliveries = _deliveries.get(loop)
        if deliveries is None:
            deliveries = _deliveries[loop] = _LoopResults(loop)
        self._deliveries = deliveries

    def deliver(self, result: Result) -> None:
        """Set the result, so that the waiting task continues. Any thread may call it, once."""
        self._deliveries.add(self.future, result)


class _LoopResults:
    """Results that threads pass to the tasks of an event loop. The loop is woken once for several results."""

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
                loop.call_soon_threadsafe(self._set_all_results)

    def _set_all_results(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for future, result in waiting:
            if not future.done():  # the task may have been cancelled
                future.set_result(result)


_deliveries: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopResults] = WeakKeyDictionary()


def _new_job(
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
    """Create a pool of threads for each resource, with the sizes in `settings`. `expected_errors`: as in `Pool`."""
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
