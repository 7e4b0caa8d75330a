"""Watching a Spark driver, by a fake one and a clock of the test's own: nothing here waits for a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from compactor.engines.driver_monitor import (
    DriverCaller,
    DriverDeadlines,
    DriverMonitor,
    DriverStatus,
    DriverTimeout,
    JobWatch,
)

HOLD_SECONDS = 60
"""What must come from another thread has come long before; or the test fails."""
FINE = DriverStatus(stopped=False, executors=2, ended_tasks=1)
ALONE = DriverStatus(stopped=False, executors=0)


class Time:
    """Goes on by that many seconds each time that it is read."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class FakeDriver:
    """Gives these answers, the last one forever. `obeys`: what ends its job: cancel, kill."""

    def __init__(self, says: Sequence[DriverStatus | Exception], obeys: str = "cancel kill") -> None:
        self.says, self.obeys = list(says), obeys.split()
        self.done: list[str] = []
        self.ended = threading.Event()

    def status(self, group: str) -> DriverStatus:
        answer = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self, group: str) -> None:
        self._do(f"cancel {group}".strip())

    def kill_java(self) -> None:
        self._do("kill")

    def _do(self, what: str) -> None:
        self.done.append(what)
        if what.split()[0] in self.obeys:
            self.ended.set()


class StoppedDriver(FakeDriver):
    """Its Java was stopped: calls come back only when it is killed, and then with an error."""

    def status(self, group: str) -> DriverStatus:
        assert self.ended.wait(HOLD_SECONDS)
        raise ConnectionResetError


def wait_for_job(
    driver: FakeDriver, monitor: DriverMonitor, on_progress: Callable[[int], None] = lambda _: None
) -> None:
    """Wait, as the thread of a run does, until the watch has ended the job."""
    with JobWatch(monitor, "job", on_progress, poll_seconds=0):
        assert driver.ended.wait(HOLD_SECONDS)


def test_a_driver_that_does_not_answer_is_killed() -> None:
    driver = StoppedDriver([], obeys="kill")
    monitor = DriverMonitor(driver, DriverDeadlines(answer_seconds=0))
    wait_for_job(driver, monitor)
    assert driver.done == ["kill"]
    assert monitor.failure == "Spark's driver has not answered for 0 s"
    with pytest.raises(DriverTimeout):
        DriverMonitor(StoppedDriver([], obeys="kill"), DriverDeadlines(answer_seconds=0)).ask(threading.Event().wait)


def test_a_job_whose_executors_are_gone_for_long_is_cancelled() -> None:
    driver, time = FakeDriver([FINE, FINE, ALONE]), Time(step=1.0)
    monitor = DriverMonitor(driver, DriverDeadlines(executors_seconds=50.0), time)
    result: list[int] = []
    wait_for_job(driver, monitor, result.append)
    assert time.now >= 50
    assert result[:2] == [1, 1]
    assert driver.done == ["cancel job"]
    assert monitor.failure == "Spark has had no executors for 50 s"
    assert monitor.had_executors


def test_executors_that_come_back_in_time_are_no_reason() -> None:
    time = Time()
    monitor = DriverMonitor(
        FakeDriver([FINE, ALONE, FINE, ALONE, ALONE]), DriverDeadlines(executors_seconds=50.0), time
    )
    for seconds, without in ((0, None), (49, 0), (49, None), (0, 0), (49, 49)):
        time.now += seconds
        monitor.poll()
        assert monitor.without_executors_seconds == without
    assert monitor.failure == ""
    time.now += 1
    monitor.poll()
    assert monitor.failure == "Spark has had no executors for 50 s"


def test_an_application_that_never_had_executors_waits_for_them() -> None:
    time = Time()
    monitor = DriverMonitor(FakeDriver([ALONE]), DriverDeadlines(executors_seconds=50.0), time)
    for _ in range(3):
        monitor.poll()
        time.now += 100
    assert (monitor.failure, monitor.without_executors_seconds) == ("", 300)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ([FINE, DriverStatus(stopped=True, executors=None)], "Spark's application has ended"),
        ([FINE, ConnectionRefusedError()], "calls to Spark's driver have failed for 60 s"),
    ],
)
def test_a_job_that_does_not_end_when_it_is_cancelled_is_killed(says: list[DriverStatus | Exception], why: str) -> None:
    driver = FakeDriver(says, obeys="kill")
    monitor = DriverMonitor(driver, DriverDeadlines(answer_seconds=60.0, end_seconds=0.0), Time(step=10.0))
    wait_for_job(driver, monitor)
    assert ("kill" in driver.done, monitor.failure) == (True, why)


def test_progress_that_cannot_be_shown_ends_nothing() -> None:
    driver, progress = FakeDriver([FINE]), threading.Event()

    def show(_: int) -> None:
        progress.set()
        raise BrokenPipeError

    monitor = DriverMonitor(driver)
    with JobWatch(monitor, "job", show, poll_seconds=0):
        assert progress.wait(HOLD_SECONDS)
        assert monitor.jobs == 1
    assert (monitor.jobs, monitor.failure, driver.done) == (0, "", [])


def test_what_a_call_raises_is_raised_where_it_was_asked() -> None:
    asker = DriverCaller()

    def fails() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        asker.ask(fails, HOLD_SECONDS)
    assert asker.ask(lambda: 3, HOLD_SECONDS) == 3
    asker.close()
    with pytest.raises(ConnectionAbortedError):
        asker.ask(lambda: 3, HOLD_SECONDS)


def test_a_job_that_begins_after_a_long_pause_is_not_given_up_at_the_first_error() -> None:
    time = Time()
    monitor = DriverMonitor(FakeDriver([ConnectionRefusedError()]), DriverDeadlines(answer_seconds=60.0), time)
    time.now += 3600
    monitor.begin_job()
    assert (monitor.poll(), monitor.failure) == (None, "")


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_watch_knows_whether_its_job_waits_for_cores(is_waiting: bool) -> None:
    monitor = DriverMonitor(FakeDriver([DriverStatus(stopped=False, executors=2, is_waiting=is_waiting)]))
    check = threading.Event()
    with JobWatch(monitor, "job", lambda _: check.set(), poll_seconds=0) as watch:
        assert check.wait(HOLD_SECONDS)
        assert watch.is_waiting is is_waiting
