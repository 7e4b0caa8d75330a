"""Monitor of a Spark driver, which detects three failures:

    no answer      its Java is stopped or hangs: the monitor kills it, so that callers continue
    stopped        the application has ended
    no executors   for some time, after it had some: its workers have ended, or a restarted master does not know the
                   application; Spark itself would wait forever

After a failure the monitor cancels the driver's jobs, and a new session replaces it (shared_session.py). Every call to
the driver goes through one thread and has a deadline (`DriverCaller`), because a call to a stopped Java does not
return. The limit for a job without finished tasks is the same for all engines (batch.py).

This module has threads but knows nothing of pyspark; `DriverClient` is the interface of the driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

Answer = TypeVar("Answer")

POLL_SECONDS = 0.2
_JOIN_SECONDS = 1.0


@dataclass(frozen=True)
class DriverDeadlines:
    """Time limits in seconds: for an answer of the driver, for a driver that lost its executors, for the end of a
    cancelled job."""

    answer_seconds: float = 60.0
    executors_seconds: float = 60.0
    end_seconds: float = 30.0


@dataclass(frozen=True)
class DriverStatus:
    """Status of a driver. `executors` None: they are not counted. `ended_tasks`: finished tasks of the requested job
    group. `is_waiting`: no task of the group runs, but tasks of other jobs do."""

    stopped: bool
    executors: int | None
    ended_tasks: int = 0
    is_waiting: bool = False


class DriverClient(Protocol):
    """The calls to a Spark driver. A call has no deadline: it does not return if the driver's Java is stopped."""

    def status(self, group: str) -> DriverStatus:
        """Return the current status with the finished tasks of a job group ("": no group). Raises any error."""

    def cancel(self, group: str) -> None:
        """Stop the jobs of a group."""

    def kill_java(self) -> None:
        """Kill the Java process of the driver."""


class DriverTimeout(Exception):
    """The driver did not answer within the deadline of a call."""


class DriverCaller:
    """Caller of a driver from one thread, so that other threads can wait with a deadline."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._closed = False
        threading.Thread(target=self._run_calls, name="spark-driver", daemon=True).start()

    def ask(self, call: Callable[[], Answer], seconds: float) -> Answer:
        """Return the result of the call. Raises its error, DriverTimeout, or ConnectionAbortedError after `close`."""
        if self._closed:
            raise ConnectionAbortedError("the session is closed")
        future: Future[Answer] = Future()
        self._calls.put((future, call))
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():  # it ended just now, or raised TimeoutError itself
                return future.result()
            raise DriverTimeout from None

    def post(self, call: Callable[[], object]) -> None:
        """Queue a call without waiting for it. Its result or error is dropped."""
        self._calls.put((Future(), call))

    def close(self) -> None:
        """End the thread after the pending calls."""
        self._closed = True
        self._calls.put(None)

    def _run_calls(self) -> None:
        while (pending := self._calls.get()) is not None:
            future, call = pending
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


class DriverMonitor:
    """Monitor of one driver, shared by the jobs of its session. Thread-safe."""

    def __init__(
        self,
        driver: DriverClient,
        deadlines: DriverDeadlines = DriverDeadlines(),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._caller = DriverCaller()
        self._answered_at = monotonic()
        self._without_since: float | None = None
        self.deadlines = deadlines
        self.had_executors = False
        self.jobs = 0
        self.failure = ""
        """The reason why the driver is unusable; empty: it is usable."""

    def ask(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of a call to the driver, or raise its error.

        Raises DriverTimeout after `answer_seconds`; then the driver is killed and `failure` is set.
        """
        try:
            return self._caller.ask(call, self.deadlines.answer_seconds)
        except DriverTimeout:
            self._record_failure(f"Spark's driver has not answered for {self.deadlines.answer_seconds:g} s")
            self.kill_java()
            raise

    def poll(self, group: str = "") -> DriverStatus | None:
        """Return the driver's current status, and set `failure` if it is unusable; None: the call failed.

        Failed calls set `failure` only after `answer_seconds` without an answer. `group`: the job group whose tasks are
        counted. Raises DriverTimeout.
        """
        try:
            status = self.ask(lambda: self._driver.status(group))
        except DriverTimeout:
            raise
        except Exception:  # of many kinds: Java has ended or is about to end
            if self._monotonic() - self._answered_at >= self.deadlines.answer_seconds:
                self._record_failure(f"calls to Spark's driver have failed for {self.deadlines.answer_seconds:g} s")
            return None
        self._record_status(status)
        return status

    @property
    def without_executors_seconds(self) -> float | None:
        """Seconds since a poll first saw no executors; None: the driver has some, or they are not counted."""
        since = self._without_since
        return None if since is None else self._monotonic() - since

    def begin_job(self) -> None:
        """Count a job that begins, and restart the time limit for answers of the driver."""
        with self._lock:
            self.jobs += 1
            self._answered_at = self._monotonic()  # the last call may be long ago

    def end_job(self) -> None:
        """Count a job that has ended."""
        with self._lock:
            self.jobs -= 1

    def cancel(self, group: str) -> None:
        """Request the end of a group's jobs, without waiting for it."""
        self._caller.post(lambda: self._driver.cancel(group))

    def kill_java(self) -> None:
        """Kill the driver's Java. Raises nothing."""
        with suppress(Exception):  # it has ended
            self._driver.kill_java()

    def close(self) -> None:
        """End the thread of the calls after the pending ones. Later calls of `ask` raise ConnectionAbortedError."""
        self._caller.close()

    def _record_status(self, status: DriverStatus) -> None:
        with self._lock:
            now = self._answered_at = self._monotonic()
            if status.executors:
                self.had_executors = True
            if status.executors == 0:
                self._without_since = now if self._without_since is None else self._without_since
            else:
                self._without_since = None
        if status.stopped:
            self._record_failure("Spark's application has ended")
        elif self.had_executors and (self.without_executors_seconds or 0) >= self.deadlines.executors_seconds:
            self._record_failure(f"Spark has had no executors for {self.deadlines.executors_seconds:g} s")

    def _record_failure(self, reason: str) -> None:
        with self._lock:
            self.failure = self.failure or reason


class JobWatch:
    """A context manager around a job of a driver. It reports progress, and ends the job if the driver fails.

    Then the code that waits for the job inside gets an error of Spark; `DriverMonitor.failure` has the reason.
    `on_progress` gets the number of finished tasks at each poll, in a thread of this object.
    """

    def __init__(
        self, monitor: DriverMonitor, group: str, on_progress: Callable[[int], None], poll_seconds: float = POLL_SECONDS
    ) -> None:
        self._monitor = monitor
        self._group = group
        self._on_progress = on_progress
        self._poll_seconds = poll_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll_until_end, name="spark-watch", daemon=True)
        self.is_waiting = False
        """True if at the last poll no task of the job ran, but tasks of other jobs did."""

    def __enter__(self) -> Self:
        self._monitor.begin_job()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._monitor.end_job()
        self._thread.join(_JOIN_SECONDS)

    def _poll_until_end(self) -> None:
        monitor = self._monitor
        while not self._ended.wait(self._poll_seconds):
            try:
                status = monitor.poll(self._group)
            except DriverTimeout:
                return  # the driver was killed
            if status is not None and not self._ended.is_set():
                self.is_waiting = status.is_waiting
                with suppress(Exception):  # progress is for display; the terminal may be closed
                    self._on_progress(status.ended_tasks)
            if monitor.failure:
                monitor.cancel(self._group)
                if not self._ended.wait(monitor.deadlines.end_seconds):
                    monitor.kill_java()
                return
