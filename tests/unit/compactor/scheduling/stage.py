"""A database with topics and services whose control loops a test drives, with engines that it can hold."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compactor.engines.engine import Engine, InProcessEngine
from compactor.scheduling.control_loop import ControlLoop, ControlLoopSettings
from compactor.scheduling.status import compaction_status
from compactor.scheduling.worker import WorkerSettings
from storage.environment import Environment
from storage.errors import Fenced
from storage.metadata.records import CompactionControl, RunState
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.entries import produce, single
from tests.workbench import TINY, Workbench

HOLD_SECONDS = 60
"""What must come from another thread has come long before; or the test fails."""
TERM = 10_000
SETTINGS = ControlLoopSettings(lease_ttl_ms=TERM, worker=WorkerSettings(slots=3, sizing=TINY))


class Held(InProcessEngine):
    """An engine that waits in its first task until the test releases or cancels it."""

    def __init__(self, engines: Engines) -> None:
        super().__init__()
        self._engines = engines
        self._stopped = threading.Event()

    def run(
        self, count: int, task: Callable[[int], Any], on_progress: Callable[[int], None], weights: Any = None
    ) -> Any:
        engines = self._engines
        with engines.lock:
            engines.at_work.append(self)
            engines.peak = max(engines.peak, len(engines.at_work))
        engines.began.release()
        while not engines.go.wait(0.01) and not self._stopped.is_set():
            pass
        with engines.lock:
            engines.at_work.remove(self)
        if self._stopped.is_set():
            raise Fenced("the compaction was cancelled", "start it again if it is still wanted")
        return super().run(count, task, on_progress, weights)

    def cancel(self) -> None:
        self._stopped.set()


class Engines:
    """Engines that a test can hold. `go`: nothing is held; `peak`: phases that were at work at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.at_work: list[Held] = []
        self.peak = 0
        self.opened = 0
        self.opened_large: list[bool] = []
        self.closed = self.ended = False
        self.fails: Exception | None = None
        self.only_large_fail = False

    def open(self, *, large: bool = True, kind: str | None = None) -> Engine:
        self.opened += 1
        self.opened_large.append(large)
        if self.fails is not None and (large or not self.only_large_fail):
            raise self.fails
        return Held(self)

    def stop_opening(self) -> None:
        self.ended = True

    def close(self) -> None:
        assert self.ended
        self.closed = True

    def wait_for(self, phases: int = 1) -> None:
        for _ in range(phases):
            assert self.began.acquire(timeout=HOLD_SECONDS)


class Stage:
    """A database with topics, and services that a test starts, polls and ends."""

    def __init__(self, folder: Path) -> None:
        self.bench = Workbench.embedded(folder)
        self.metadata = self.bench.metadata
        self.control = self.bench.metadata.compaction_control
        self.clock = self.bench.clock
        self.engines = Engines()
        self.loops: list[ControlLoop] = []

    def service(
        self, settings: ControlLoopSettings = SETTINGS, engines: Engines | None = None, clock: ManualClock | None = None
    ) -> ControlLoop:
        """A service whose threads are not started: the test calls `heartbeat` and `poll`."""
        number = len(self.loops)
        loop = ControlLoop(
            Environment(self.metadata, self.bench.store, clock or self.clock, self.bench.log),
            engines or self.engines,
            settings,
            url=f"http://service{number}",
            name=f"host:{number}:x",
            random=random.Random(number),
        )
        self.loops.append(loop)
        return loop

    def topic(self, name: str, messages: int = 1) -> Topic:
        topic = self.bench.topic(name)
        produce(topic, [single(b"key %d" % number, b"value") for number in range(messages)])
        return topic

    def lead(self, settings: ControlLoopSettings = SETTINGS) -> ControlLoop:
        loop = self.service(settings)
        loop.heartbeat()
        assert loop.is_leader
        return loop

    def finish(self, loop: ControlLoop, *triggered: Topic, after_ms: int | None = None) -> None:
        """Trigger these topics, and poll until nothing is left to do; at this time, or `after_ms` with a heartbeat."""
        if after_ms is not None:
            self.clock.advance(after_ms)
            loop.heartbeat()
        for topic in triggered:
            loop.trigger(topic.record)
        for _ in range(50):
            self.poll(loop)
            if not self.control.requests() and loop.worker.busy_slots() == (0, 0):
                return
        raise AssertionError(f"requests stay: {self.control.requests()}")

    def poll(self, loop: ControlLoop, *triggered: Topic) -> None:
        """Trigger these topics, poll once, and wait for the jobs that this begins."""
        for topic in triggered:
            loop.trigger(topic.record)
        loop.poll()
        self.roll_and_seal(loop)

    def hold(self, loop: ControlLoop, topic: Topic) -> None:
        """Trigger a topic; its run waits in its first phase until `engines.go` is set."""
        self.engines.go.clear()
        loop.trigger(topic.record)
        loop.poll()
        self.engines.wait_for()

    def roll_and_seal(self, loop: ControlLoop) -> None:
        """Wait for the jobs of a service."""
        assert until(lambda: loop.worker.busy_slots() == (0, 0))

    def state(self, topic: Topic) -> CompactionControl:
        return self.control.get(topic.record.id)

    def runs(self, topic: Topic) -> list[RunState]:
        return [run.state for run in reversed(self.metadata.runs.of_topic(topic.record.id, 1000))]

    def status(self, topic: Topic) -> tuple[str, str]:
        return tuple(map(str, compaction_status(self.metadata, topic.record.id)))  # type: ignore[return-value]


def until(holds: Callable[[], bool]) -> bool:
    """Wait for another thread until `holds`. Return False if it still does not after HOLD_SECONDS."""
    pause = threading.Event()
    for _ in range(HOLD_SECONDS * 100):
        if holds():
            return True
        pause.wait(0.01)
    return False
