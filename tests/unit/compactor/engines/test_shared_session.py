"""The session of a service's engines: none without executors, a new one after a dead one. Spark is a fake."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.engines import spark
from compactor.engines.driver_monitor import DriverDeadlines, DriverMonitor, DriverStatus
from compactor.engines.shared_session import SparkEngineProvider
from storage.errors import Unavailable
from tests.unit.compactor.engines.test_driver_monitor import ALONE, FINE, FakeDriver, StoppedDriver, Time

DEADLINES = DriverDeadlines()


class Sessions:
    """Opens fake sessions, whose drivers were given. What happened, in order: `open 1`, `end 1`, …"""

    def __init__(self, patch: pytest.MonkeyPatch, *drivers: FakeDriver, deadlines: DriverDeadlines = DEADLINES) -> None:
        self.happened: list[str] = []
        self.logged: list[str] = []
        self.time = Time()
        self._drivers = list(drivers)
        patch.setattr(spark, "open_session", self._open)
        patch.setattr(
            spark.SparkEngine, "stop_session_and_java", lambda engine: self.happened.append(f"end {engine.session}")
        )
        patch.setattr(spark, "SparkDriver", lambda number: self._drivers[number - 1])
        patch.setattr(spark.SparkEngine, "warm_up", lambda engine: self.happened.append("warm up"))
        patch.setattr(
            "compactor.engines.shared_session.DriverMonitor",
            lambda driver, limits: DriverMonitor(driver, limits, self.time),
        )
        self.engines = SparkEngineProvider(Path, "spark://here:7077", self.logged.append, deadlines)

    def open(self) -> str:
        """Open an engine. Return "engine", or the message of the refusal."""
        try:
            self.engines.open()
        except Unavailable as error:
            return str(error)
        return "engine"

    def _open(self, *_: object) -> int:
        number = sum(item.startswith("open") for item in self.happened) + 1
        self.happened.append(f"open {number}")
        return number


def test_engines_share_a_session_as_long_as_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch, FakeDriver([FINE]))
    assert [sessions.open() for _ in range(3)] == ["engine"] * 3
    sessions.engines.close()
    assert sessions.happened == ["open 1", "warm up", "end 1"]


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        (FakeDriver([FINE, DriverStatus(stopped=True, executors=None)]), "Spark's application has ended"),
        (FakeDriver([FINE, ConnectionRefusedError()]), "Spark's Java has died"),
        (FakeDriver([FINE, ALONE]), "Spark has lost its executors"),
    ],
    ids=["ended", "died", "without executors"],
)
def test_a_dead_session_is_followed_by_another(driver: FakeDriver, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without executors: its master was started again, and does not know the application."""
    sessions = Sessions(monkeypatch, driver, FakeDriver([FINE]))
    assert [sessions.open(), sessions.open()] == ["engine", "engine"]
    assert sessions.happened == ["open 1", "warm up", "end 1", "open 2", "warm up"]
    assert sessions.logged == [f"{why}: closing its session and opening a new one"]


def test_a_session_that_is_stopped_is_killed_and_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = StoppedDriver([], obeys="kill")
    sessions = Sessions(monkeypatch, stopped, StoppedDriver([]), deadlines=DriverDeadlines(answer_seconds=0))
    assert sessions.open().startswith("Spark's driver has not answered for 0 s")
    assert stopped.done == ["kill"]
    sessions.open()
    assert sessions.happened == ["open 1", "end 1", "open 2"]
    assert sessions.logged == ["Spark's driver has not answered for 0 s: closing its session and opening a new one"]


def test_without_executors_there_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a master that may not know the application is asked again, less and less often."""
    sessions = Sessions(monkeypatch, *(FakeDriver([ALONE]) for _ in range(3)), FakeDriver([FINE]))
    outcomes = []
    for _ in range(5):
        outcomes.append(sessions.open())
        sessions.time.now += 59
    assert all(
        item.startswith("Spark's master spark://here:7077 has given this service no executors") for item in outcomes
    )
    assert sessions.happened == ["open 1", "end 1", "open 2"]
    sessions.time.now += 200
    sessions.open()
    sessions.time.now += 400
    assert sessions.open() == "engine"
    assert sessions.happened == ["open 1", "end 1", "open 2", "end 2", "open 3", "end 3", "open 4", "warm up"]


def test_executors_that_come_late_are_worked_with(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch, FakeDriver([ALONE, FINE]))
    assert sessions.open() != "engine"
    assert sessions.open() == "engine"
    assert sessions.happened == ["open 1"]
