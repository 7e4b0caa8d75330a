"""Runs a scenario in a process that kills itself at a named step.

`python -m tests.faults.child` is the nursery: it imports everything once, opens nothing, and forks a child for each
order that it reads, so that a crash costs a fork and not a second of imports. What a child opens it opens itself: no
connection, lock or thread that matters crosses the fork (polars and Arrow start their threads when they are used, and
the nursery uses none of them).

    order   one line of JSON: world, scenario, step (or null: to the end), nth, now_ms
    answer  one line of JSON: signal (that ended the child), trace (of steps, in order), error (a traceback, or "")

A child that gives no sign for HUNG_SECONDS is killed, and the answer says so.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

import psycopg  # noqa: F401  imported once, before the forks

from storage.steps import Step, observed
from tests.clocks import ManualClock
from tests.faults.stages import SCENARIOS
from tests.faults.worlds import World

HUNG_SECONDS = 60
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a child ended. `signal` 0: it went through to the end. `trace`: the steps that it came by."""

    signal: int
    trace: list[Step]
    error: str


class Nursery:
    """The forking process, seen from the tests. Use it in a `with` statement."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def run(self, world: World, scenario: str, step: Step | None, nth: int, now_ms: int) -> Ended:
        """Run a scenario in a child until `step` is reached for the `nth` time."""
        order = {
            "world": world.encode(),
            "scenario": scenario,
            "step": step.name if step else None,
            "nth": nth,
            "now_ms": now_ms,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Ended(answer["signal"], [Step[name] for name in answer["trace"]], answer["error"])


def serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    """Fork a child for each order, until there are no more."""
    for order in orders:
        answers.write(json.dumps(_raise_child(json.loads(order))).encode() + b"\n")
        answers.flush()


def _raise_child(order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _live(order, writing)
    os.close(writing)
    said, hung = b"", False
    while True:
        if not hung and not select.select([reading], [], [], HUNG_SECONDS)[0]:
            hung = True
            os.kill(pid, signal.SIGKILL)
        if not (more := os.read(reading, 1 << 16)):
            break
        said += more
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    *lines, _ = said.decode().split("\n")
    trace = [line.removeprefix("step ") for line in lines if line.startswith("step ")]
    error = "\n".join(json.loads(line.removeprefix("error ")) for line in lines if line.startswith("error "))
    return {
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        "trace": trace,
        "error": f"it gave no sign for {HUNG_SECONDS} s after {trace[-1:]}" if hung else error,
    }


def _live(order: dict[str, Any], writing: int) -> NoReturn:
    """The child's whole life; never returns into the nursery's loop."""
    try:
        world = World.decode(order["world"])
        os.environ.update(world.environment)
        with world.opened(ManualClock(order["now_ms"])) as bench, observed(_Killer(order, writing)):
            SCENARIOS[order["scenario"]].run(bench)
    except BaseException:
        os.write(writing, f"error {json.dumps(traceback.format_exc())}\n".encode())
    os._exit(0)


class _Killer:
    """Writes down each step, and ends the process at the one that was ordered."""

    def __init__(self, order: dict[str, Any], writing: int) -> None:
        self._step = order["step"]
        self._left = order["nth"]
        self._writing = writing
        self._lock = threading.Lock()

    def __call__(self, step: Step) -> None:
        with self._lock:  # held while dying: no other thread gets past its next step
            os.write(self._writing, f"step {step.name}\n".encode())
            if step.name == self._step:
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
