"""A service's Spark session: started with the first engine, shared by all, and followed by another one when it is dead.

A session is dead when its Java is, when its driver does not answer or its application has ended (driver_monitor.py), or
when it has no executors and no job under way: a master that was started again does not know the application any more.
It is closed, with its Java, before another one is opened. While a session has no executors no engine is handed out, so
that no run is claimed that could not be executed; requests stay.

Each engine has jobs of its own, to cancel by themselves: each thread of ours has one of Java's (PySpark's pinned mode),
so the job group that a thread sets is its own. Safe to share between threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from compactor.engines import spark
from compactor.engines.driver_monitor import DriverDeadlines, DriverMonitor, DriverTimeout
from compactor.engines.jvm import Jvm
from storage.errors import CompactorError, Misconfigured, Unavailable

_MOST_SECONDS = 900.0
"""How long a session without executors waits at most before another one asks the master for some."""


@dataclass(frozen=True)
class _Session:
    """A Spark session, and what is known of its driver."""

    session: Any
    monitor: DriverMonitor

    def engine(self) -> spark.SparkEngine:
        return spark.SparkEngine(self.session, self.monitor)


class SparkEngineProvider:
    """Engines on one session at a time. `say` gets a line for the user when something deserves one."""

    def __init__(
        self,
        settings: spark.SparkSettings,
        say: Callable[[str], None] = lambda _: None,
        deadlines: DriverDeadlines | None = None,
    ) -> None:
        self._settings = settings
        self._say = say
        self._deadlines = deadlines or DriverDeadlines()
        self._waits_seconds = self._deadlines.executors_seconds
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._starting: Jvm | None = None
        self._closed = False

    def open(self) -> spark.SparkEngine:
        """An engine; the first waits until the session has started, and its Python workers. Raises Misconfigured,
        Unavailable: also while the session has no executors.
        """
        with self._lock:
            self._check_open()
            if self._session is not None and (why := self._unusable(self._session.monitor)):
                self._say(f"{why}: its session is closed, and another one opened")
                self._end_session()
            if self._session is not None:
                self._check_executors(self._session.monitor)
                return self._session.engine()
            self._starting = jvm = Jvm()
            try:
                self._check_open()  # `end` may just not have seen it
                return self._start(jvm)
            except (Misconfigured, Unavailable):
                self._check_open()
                raise
            finally:
                self._starting = None

    def end(self) -> None:
        """Give up a session that is starting, and open none any more; waits for nothing."""
        self._closed = True
        starting = self._starting
        if starting is not None:
            starting.end()

    def close(self) -> None:
        """Stop the session, if it was started."""
        self.end()
        with self._lock:
            self._end_session()

    def _start(self, jvm: Jvm) -> spark.SparkEngine:
        opened = spark.open_session(self._settings, self._say, jvm)
        self._session = _Session(opened, DriverMonitor(spark.SparkDriver(opened), self._deadlines))
        with suppress(DriverTimeout):
            self._session.monitor.look()
        self._check_executors(self._session.monitor)
        engine = self._session.engine()
        with suppress(CompactorError):  # the first job says why
            engine.warm_up()
        self._check_open()
        self._check_executors(self._session.monitor)
        return engine

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(
                "Spark was stopped, as this service is ending", "another service does the work", is_public=True
            )

    def _end_session(self) -> None:
        if self._session is not None:
            spark.end_session(self._session.session, self._session.monitor)
        self._session = None

    def _check_executors(self, monitor: DriverMonitor) -> None:
        if monitor.given_up:
            raise Unavailable(monitor.given_up, "another session is opened the next time")
        if monitor.without_executors_seconds is not None:
            raise Unavailable(
                f"Spark's master {self._settings.master} has given this service no executors",
                "start workers, or see on its web page who has their cores",
            )
        self._waits_seconds = self._deadlines.executors_seconds

    def _unusable(self, monitor: DriverMonitor) -> str:
        """Why another session has to be opened; empty: this one is good, or may yet be."""
        try:
            check = monitor.look()
        except DriverTimeout:
            return monitor.given_up
        if check is None:
            return "Spark's Java has died"
        waited = monitor.without_executors_seconds
        if monitor.given_up or waited is None or monitor.jobs:
            return monitor.given_up
        if monitor.had_executors:
            return "Spark has no executors any more"
        if waited < self._waits_seconds:
            return ""
        self._waits_seconds = min(2 * self._waits_seconds, _MOST_SECONDS)
        return f"Spark has given no executors for {waited:.0f} s"
