"""Runs a scenario in a process that kills itself at a named step.

`python -m tests.faults.child` is the nursery (forks.py).

    order   world, scenario, step (or null: to the end), nth, now_ms
    answer  signal (that ended the child), trace (of steps, in order), error (a traceback, or "")
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import fastavro  # noqa: F401  imported once, before the forks
import polars  # noqa: F401
import polars_hash  # noqa: F401
import psycopg  # noqa: F401

import storage.objects.local  # noqa: F401
from storage.failpoints import Failpoint
from storage.objects.interface import StoreLocation
from storage.objects.s3 import S3Store
from tests.clocks import ManualClock
from tests.failpoint_listeners import observed
from tests.faults.forks import Forks, live_in_child, serve
from tests.faults.stages import SCENARIOS
from tests.faults.worlds import World


@dataclass(frozen=True)
class Ended:
    """The end of a child. `signal` 0: it ran to its end. `trace`: the steps that it passed."""

    signal: int
    trace: list[Failpoint]
    error: str


class Nursery(Forks):
    """The forking process, seen from the tests. Use it in a `with` statement."""

    def __init__(self) -> None:
        super().__init__("tests.faults.child")

    def run(self, world: World, scenario: str, step: Failpoint | None, nth: int, now_ms: int) -> Ended:
        """Run a scenario in a child until `step` is reached for the `nth` time."""
        order = {
            "world": world.encode(),
            "scenario": scenario,
            "step": step.name if step else None,
            "nth": nth,
            "now_ms": now_ms,
        }
        answer = self.ask(order)
        return Ended(answer["signal"], [Failpoint[name] for name in answer["trace"]], answer["error"])


@cache
def _load_s3_client() -> None:
    """Load the modules and the service model of an S3 client in the forking process, by a client that connects nowhere.

    A child that loads them spends 0.4 s of CPU.
    """
    assert S3Store(StoreLocation("s3://unused", "http://127.0.0.1:1", "us-east-1")).client


def _raise_child(order: dict[str, Any]) -> dict[str, Any]:
    world = World.decode(order["world"])
    if world.environment:
        with mock.patch.dict(os.environ, world.environment):
            _load_s3_client()
    number, written, error = live_in_child(lambda writing: _live(order, writing))
    trace = written.decode().split()
    return {"signal": number, "trace": trace, "error": error and f"{error}\nafter {trace[-1:]}"}


def _live(order: dict[str, Any], writing: int) -> None:
    world = World.decode(order["world"])
    os.environ.update(world.environment)
    with world.opened(ManualClock(order["now_ms"])) as bench, observed(_Killer(order, writing)):
        SCENARIOS[order["scenario"]].run(bench)


class _Killer:
    """Writes down each step, and ends the process at the one that was ordered."""

    def __init__(self, order: dict[str, Any], writing: int) -> None:
        self._step = order["step"]
        self._left = order["nth"]
        self._writing = writing
        self._lock = threading.Lock()

    def __call__(self, step: Failpoint) -> None:
        with self._lock:  # held while dying: no other thread gets past its next step
            os.write(self._writing, f"{step.name}\n".encode())
            if step.name == self._step:
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(_raise_child)
