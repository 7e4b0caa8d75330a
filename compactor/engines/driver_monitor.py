"""Watching a Spark driver: whether its Java answers, its application lives, and it has executors.

    no answer      its Java is stopped or hangs: it is killed, and so its callers continue
    stopped        the application is over
    no executors   for some time, where there were some: its workers are gone, or a master that was started again does
                   not know the application any more; Spark itself would wait forever

A job that is given up is cancelled, and its session is followed by another one (shared_session.py). Everything that is
asked of the driver goes through one thread and has a deadline (`DriverCaller`), since a call to a Java that is stopped
does not come back. How long a job may go without an ended task is decided for runs of any engine (batch.py).

Pure but for threads: knows nothing of pyspark; `DriverClient` is the interface of what it watches.
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
    """How long a driver may give no answer, a job may be without executors where there were some, and a job that was
    cancelled may take to end."""

    answer_seconds: float = 60.0
    executors_seconds: float = 60.0
    end_seconds: float = 30.0


@dataclass(frozen=True)
class DriverStatus:
    """What a driver says of itself. `executors` None: they are not counted. `ended`: tasks of the job that is asked
    for; `is_waiting`: none of its tasks runs, and tasks of other jobs do."""

    stopped: bool
    executors: int | None
    ended: int = 0
    is_waiting: bool = False


class DriverClient(Protocol):
    """A driver, asked without any deadline."""

    def look(self, group: str) -> DriverStatus:
        """What it says now, with the ended tasks of a job group; "": of none. Raises whatever the way to it raises."""
        ...

    def cancel(self, group: str) -> None:
        """Stop the jobs of a group."""
        ...

    def kill(self) -> None:
        """End its Java, which is ours, whatever it does."""
        ...


class DriverTimeout(Exception):
    """The driver has not answered in time."""


class DriverCaller:
    """Calls a driver from one thread, so that no other waits for it longer than it wants."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._closed = False
        threading.Thread(target=self._run, name="spark-driver", daemon=True).start()

    def ask(self, call: Callable[[], Answer], seconds: float) -> Answer:
        """What the call gives, or raises. Raises DriverTimeout, and ConnectionAbortedError after `close`."""
        if self._closed:
            raise ConnectionAbortedError("the session is closed")
        future: Future[Answer] = Future()
        self._calls.put((future, call))
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():  # just now; or the call itself raised it
                return future.result()
            raise DriverTimeout from None

    def post(self, call: Callable[[], object]) -> None:
        """Let it be called, and wait for nothing."""
        self._calls.put((Future(), call))

    def close(self) -> None:
        """End the thread when what was asked is done."""
        self._closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (asked := self._calls.get()) is not None:
            future, call = asked
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


class DriverMonitor:
    """A driver with what is known of it. Safe to share between threads: the jobs of a session are watched together."""

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
        self.given_up = ""
        """Why it is not to be used any more; empty: it may be."""

    def ask(self, call: Callable[[], Answer]) -> Answer:
        """What a call to the driver gives, or raises. Raises DriverTimeout; then the driver is given up and killed."""
        try:
            return self._caller.ask(call, self.deadlines.answer_seconds)
        except DriverTimeout:
            self._give_up(f"Spark's driver has not answered for {self.deadlines.answer_seconds:g} s")
            self.kill()
            raise

    def look(self, group: str = "") -> DriverStatus | None:
        """What the driver says now; None: nothing that could be understood, which is not yet a reason to give it up.

        Raises DriverTimeout.
        """
        try:
            look = self.ask(lambda: self._driver.look(group))
        except DriverTimeout:
            raise
        except Exception:  # of many kinds: Java may be gone, or is about to end
            if self._monotonic() - self._answered_at >= self.deadlines.answer_seconds:
                self._give_up(f"Spark's driver cannot be asked for {self.deadlines.answer_seconds:g} s")
            return None
        self._learn(look)
        return look

    @property
    def without_executors_seconds(self) -> float | None:
        """For how long it has had none; None: it has some, or they are not counted."""
        since = self._without_since
        return None if since is None else self._monotonic() - since

    def begun(self) -> None:
        """A job begins."""
        with self._lock:
            self.jobs += 1
            self._answered_at = self._monotonic()  # the last call may be long ago

    def over(self) -> None:
        """It has ended."""
        with self._lock:
            self.jobs -= 1

    def cancel(self, group: str) -> None:
        """Ask for the end of a group's jobs; waits for nothing."""
        self._caller.post(lambda: self._driver.cancel(group))

    def kill(self) -> None:
        """End its Java."""
        with suppress(Exception):  # it has ended
            self._driver.kill()

    def close(self) -> None:
        """Ask no more."""
        self._caller.close()

    def _learn(self, look: DriverStatus) -> None:
        with self._lock:
            now = self._answered_at = self._monotonic()
            if look.executors:
                self.had_executors = True
            if look.executors == 0:
                self._without_since = now if self._without_since is None else self._without_since
            else:
                self._without_since = None
        if look.stopped:
            self._give_up("Spark's application has ended")
        elif self.had_executors and (self.without_executors_seconds or 0) >= self.deadlines.executors_seconds:
            self._give_up(f"Spark's executors have been gone for {self.deadlines.executors_seconds:g} s")

    def _give_up(self, why: str) -> None:
        with self._lock:
            self.given_up = self.given_up or why


class JobWatch:
    """A context manager around a job of a driver: says how far it is, and ends it when the driver is given up.

    Who waits inside for the job of a driver that is given up gets an error of Spark's; `DriverMonitor.given_up` says
    why.
    """

    def __init__(
        self, monitor: DriverMonitor, group: str, on_done: Callable[[int], None], poll_seconds: float = POLL_SECONDS
    ) -> None:
        self._watched = monitor
        self._group = group
        self._on_done = on_done
        self._poll_seconds = poll_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-watch", daemon=True)
        self.is_waiting = False
        """Whether the job had no task that ran, and other jobs had, when the driver was last asked."""

    def __enter__(self) -> Self:
        self._watched.begun()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._watched.over()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        monitor = self._watched
        while not self._ended.wait(self._poll_seconds):
            try:
                check = monitor.look(self._group)
            except DriverTimeout:
                return  # it is killed
            if check is not None and not self._ended.is_set():
                self.is_waiting = check.is_waiting
                with suppress(Exception):  # progress is for display: the terminal may be gone
                    self._on_done(check.ended)
            if monitor.given_up:
                monitor.cancel(self._group)
                if not self._ended.wait(monitor.deadlines.end_seconds):
                    monitor.kill()
                return
