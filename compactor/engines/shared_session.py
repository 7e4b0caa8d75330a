"""Spark session of a service: started with the first engine, shared by all engines, and replaced when it is dead.

A session is dead if its Java has ended, its driver does not answer, or its application has ended (driver_monitor.py);
or if it has no executors and no active job, because a restarted master does not know the application any more. The dead
session and its Java are closed before a new session is opened. While a session has no executors, `open` returns no
engine, so that no run is claimed that could not run; requests remain.

Each engine has its own jobs, which are cancelled separately: each Python thread has its own Java thread (PySpark's
pinned mode), so a job group belongs to the thread that sets it. Thread-safe.

PySpark is imported with the first engine, so that a service answers before that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from compactor.engines.driver_monitor import DriverDeadlines, DriverMonitor, DriverTimeout
from compactor.engines.jvm import Jvm
from storage.errors import CompactorError, Misconfigured, Unavailable

if TYPE_CHECKING:
    from compactor.engines.spark import SparkEngine

_MAX_WAIT_SECONDS = 900.0
"""Maximum time that a session without executors waits before a new session requests them."""


@dataclass(eq=False)
class SparkEngineProvider:
    """Provider of engines on one session at a time.

    `make_folder` creates the folder of Spark's log, if necessary, and returns it. `notify` gets lines for the user.
    """

    make_folder: Callable[[], Path]
    master: str
    notify: Callable[[str], None] = lambda _: None
    deadlines: DriverDeadlines = field(default_factory=DriverDeadlines)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _first: SparkEngine | None = field(init=False, default=None)
    """The first engine of the session."""
    _starting: Jvm | None = field(init=False, default=None)
    _closed: bool = field(init=False, default=False)
    _doublings: int = field(init=False, default=0)
    """Number of sessions in a row that got no executors; each waits twice as long as the one before."""

    def open(self, *, large: bool = True, kind: str | None = None) -> SparkEngine:
        """Return an engine. The first call waits until the session and its Python workers have started.

        Raises Misconfigured, Unavailable (also while the session has no executors).
        """
        with self._lock:
            self._check_not_closed()
            if self._first is not None and (reason := self._death_reason(self._first.monitor)):
                self.notify(f"{reason}: closing its session and opening a new one")
                self._end_session()
            if self._first is not None:
                self._check_executors(self._first.monitor)
                return self._first.on_same_session()
            self._starting = jvm = Jvm()
            try:
                self._check_not_closed()  # `stop_opening` may have run just before `_starting` was set
                return self._start_session(jvm)
            except (Misconfigured, Unavailable):
                self._check_not_closed()
                raise
            finally:
                self._starting = None

    def stop_opening(self) -> None:
        """Cancel the start of a session, and open no session from now on. Does not wait."""
        self._closed = True
        starting = self._starting
        if starting is not None:
            starting.kill()

    def close(self) -> None:
        """Stop the session, if it was started, and open none from now on. Waits for a start in progress to end."""
        self.stop_opening()
        with self._lock:
            self._end_session()

    def _start_session(self, jvm: Jvm) -> SparkEngine:
        from compactor.engines import spark

        settings = spark.SparkSettings(self.make_folder() / "spark.log", self.master)
        session = spark.open_session(settings, self.notify, jvm)
        monitor = DriverMonitor(spark.SparkDriver(session), self.deadlines)
        self._first = engine = spark.SparkEngine(session, monitor)
        with suppress(DriverTimeout):
            monitor.poll()
        self._check_executors(monitor)
        with suppress(CompactorError):  # the first job reports the error
            engine.warm_up()
        self._check_not_closed()
        self._check_executors(monitor)
        return engine

    def _check_not_closed(self) -> None:
        if self._closed:
            raise Unavailable(
                "Spark was stopped because this service is ending", "another service continues the work", is_public=True
            )

    def _end_session(self) -> None:
        if self._first is not None:
            self._first.stop_session_and_java()
        self._first = None

    def _check_executors(self, monitor: DriverMonitor) -> None:
        if monitor.failure:
            raise Unavailable(monitor.failure, "the next run opens a new session")
        if monitor.without_executors_seconds is not None:
            raise Unavailable(
                f"Spark's master {self.master} has given this service no executors",
                "start workers, or find on its web page the applications that use their cores",
            )
        self._doublings = 0

    def _death_reason(self, monitor: DriverMonitor) -> str:
        """Return the reason why the session is dead; empty: it is usable, or may become usable."""
        try:
            status = monitor.poll()
        except DriverTimeout:
            return monitor.failure
        if status is None:
            return "Spark's Java has died"
        waited = monitor.without_executors_seconds
        if monitor.failure or waited is None or monitor.jobs:
            return monitor.failure
        if monitor.had_executors:
            return "Spark has lost its executors"
        if waited < min(2**self._doublings * self.deadlines.executors_seconds, _MAX_WAIT_SECONDS):
            return ""
        self._doublings += 1
        return f"Spark has given no executors for {waited:.0f} s"
