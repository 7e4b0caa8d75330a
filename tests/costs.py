"""The cost of the tests: printed by folder and by tier at the end of a run, and bounded for the fast tier.

A pytest plugin. The cost of a test is its wall time with its fixtures, and the CPU seconds of this process and of the
child processes that ended during the test; a Spark or a server that many tests share is counted where it ends, and a
forked service (servers/service_forks.py) nowhere.
A test that is neither slow nor has a budget of its own (budgets.py) fails if it takes, without its fixtures, more than
`FAST_SECONDS` of CPU, or waits for as long: `WAITING_FACTOR` allows for the other worker, the load for a busy machine.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest

from tests.budgets import IN_CI

FAST_SECONDS = 5.0
"""The most CPU that a test of the fast tier may take, in seconds."""
WAITING_FACTOR = 6
"""How many times as long it may take by the clock."""
MACHINE_FACTOR = 4 if IN_CI else 1
"""CI's machine may be a quarter as fast as the one that the bound is for: `make test` bounds the cost of the tier."""
STARTED = "COMPACTOR_TEST_CI_STARTED"
"""When CI began, in seconds since the epoch: set by .ci/run."""
_CPU, _WALL, _CALL = pytest.StashKey[float](), pytest.StashKey[float](), pytest.StashKey[float]()


def _cpu() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _crowd() -> float:
    """Return how many processes want each core, at least 1: among so many a test that waits for none takes as long."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[_CPU], item.stash[_WALL] = _cpu(), time.monotonic()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[_CALL] = _cpu()
    return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cpu, wall = _cpu() - item.stash.get(_CALL, _cpu()), call.stop - call.start
    bound = FAST_SECONDS * MACHINE_FACTOR
    too_long = cpu > bound or wall > bound * WAITING_FACTOR * _crowd()
    if too_long and report.when == "call" and report.passed and not {"slow", "budgeted"} & set(item.keywords):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} took {cpu:.1f} s of CPU and {wall:.1f} s in all. A test of the fast tier may take "
            f"{bound:.0f} s: make it cheaper, or mark it slow."
        )
    if report.when == "teardown":
        cpu, wall = _cpu() - item.stash.get(_CPU, _cpu()), time.monotonic() - item.stash.get(_WALL, time.monotonic())
        report.user_properties.append(("cost", f"{cpu:.3f} {wall:.3f}"))
    return report


@dataclass
class _Cost:
    tests: int = 0
    cpu: float = 0.0
    wall: float = 0.0

    def add(self, cpu: float, wall: float) -> None:
        self.tests, self.cpu, self.wall = self.tests + 1, self.cpu + cpu, self.wall + wall

    def line(self, name: str) -> str:
        return f"{self.cpu:8.0f} {self.wall:8.0f} {self.tests:6d}  {name}"


class Costs:
    """Collects what each worker reports, and prints it. In the process that the user started."""

    def __init__(self) -> None:
        self._folders: defaultdict[str, _Cost] = defaultdict(_Cost)
        self._tiers: defaultdict[str, _Cost] = defaultdict(_Cost)
        self._workers: Counter[str] = Counter()
        self._validators: list[str] = []
        """What validators of the deployment's files said (tests/docs/test_deployment.py)."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == "validator":
                self._validators.append(str(value))
            if name == "cost":
                cpu, wall = map(float, str(value).split())
                self._folders[str(PurePosixPath(report.nodeid.partition("::")[0]).parent)].add(cpu, wall)
                self._tiers["slow" if "slow" in report.keywords else "fast"].add(cpu, wall)
                self._workers[getattr(report, "worker_id", "")] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._folders:
            return
        write = terminalreporter.write_line
        if self._validators:
            terminalreporter.section("validators")
        for line in sorted(self._validators):
            write(line)
        terminalreporter.section("cost of the tests")
        write("  CPU s   wall s  tests")
        for folder, cost in sorted(self._folders.items(), key=lambda each: -each[1].wall):
            write(cost.line(folder))
        for tier, cost in sorted(self._tiers.items()):
            write(cost.line(f"{tier} tier: {cost.wall / len(self._workers):.0f} s with {len(self._workers)} at once"))
        if STARTED in os.environ:
            total = time.time() - float(os.environ[STARTED])
            write(f"CI has taken {total / 60:.1f} minutes, the installation and the checks included")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Costs())
