"""What runs the tasks of a phase. The job knows no more of Spark than this.

An engine calls one function for the numbers 0 … n-1, wherever and however often it likes (tasks may be retried, or run
twice at once by speculation), and gives back one outcome a number: an answer, or `TaskFailure` where the task failed
for good, so that one bad topic fails alone. `compactor/engines/spark.py` is the real one; `InProcessEngine` is for
tests, for use with a debugger, and as the shortest description of the contract.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from storage.objects.throttled import stopped

Answer = TypeVar("Answer")

LIGHT = 32 << 20
"""A task that weighs less shares a partition: starting one costs Spark 40–70 ms of a core, about what this much data
takes. Weights are bytes to read and write, or anything in their place; small numbers count as light."""

IN_PROCESS = "in-process"
"""A Spark master that is none: tasks run in the process itself, one after the other. For tests and small topics."""

PARTITIONS_PER_CORE = 3
"""Partitions of light tasks for each core, so that no core waits long for the last one."""


@dataclass(frozen=True)
class TaskFailure:
    """What stands in the place of an answer: the task failed for good (retries are over), with this error.

    A CompactorError is as it was raised; a defect is a RuntimeError whose notes tell the place.
    """

    error: Exception


@dataclass(frozen=True)
class TaskInputs:
    """A task of which each number has an input of its own: an engine sends a worker the inputs of its numbers only."""

    task: Callable[[Any], Any]
    inputs: Sequence[Any]

    def __call__(self, number: int) -> Any:
        return self.task(self.inputs[number])


def answers(outcomes: Iterable[Answer | TaskFailure]) -> list[Answer]:
    """The answers, when all tasks must have one. Raises the error of the first that failed."""
    good: list[Answer] = []
    for outcome in outcomes:
        if isinstance(outcome, TaskFailure):
            raise outcome.error
        good.append(outcome)
    return good


def pack(count: int, weights: Sequence[float] | None, cores: int) -> list[list[int]]:
    """Task numbers by partition: light tasks together, at about equal weight, others alone; heavy partitions first.

    Without weights every task is a partition of its own.
    """
    if weights is None:
        return [[number] for number in range(count)]
    if len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} tasks")
    heaviest_first = sorted(range(count), key=lambda number: -weights[number])
    heavy = [[number] for number in heaviest_first if weights[number] >= LIGHT]
    light = heaviest_first[len(heavy) :]
    wanted = max(PARTITIONS_PER_CORE * cores, math.ceil(math.fsum(weights[number] for number in light) / LIGHT))
    bins: list[tuple[float, int, list[int]]] = [(0.0, slot, []) for slot in range(min(wanted, len(light)))]
    for number in light:
        # Weights of nothing must spread as well, so a task weighs at least a little.
        weight, slot, numbers = heapq.heappop(bins)
        numbers.append(number)
        heapq.heappush(bins, (weight + max(weights[number], 1e-9), slot, numbers))
    packed = sorted(bins, key=lambda item: (-item[0], item[1]))
    return heavy + [numbers for _, _, numbers in packed]


class Progress(Protocol):
    """Told how far a run is; the default says nothing."""

    def phase(self, name: str, tasks: int, messages: int) -> None:
        """A phase begins: its tasks, and the messages or index records that they go through."""
        ...

    def done(self, tasks: int) -> None:
        """So many tasks of the phase have ended."""
        ...

    def end(self) -> None:
        """The run is over, well or not."""
        ...


class SilentProgress:
    """A progress that says nothing."""

    def phase(self, name: str, tasks: int, messages: int) -> None:
        return

    def done(self, tasks: int) -> None:
        return

    def end(self) -> None:
        return


class Engine(Protocol):
    """Runs the tasks of a phase."""

    @property
    def parallelism(self) -> int:
        """Tasks that can run at once."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether no task of the running job can end, because other jobs have all the cores."""
        ...

    def run(
        self,
        count: int,
        task: Callable[[int], Answer],
        on_done: Callable[[int], None],
        weights: Sequence[float] | None = None,
    ) -> list[Answer | TaskFailure]:
        """The outcomes of `task(0)` … `task(count - 1)`, in order; `task` must travel by pickle.

        `on_done` hears from time to time about how many have ended. `weights`: what each task costs, about, in bytes
        that it reads and writes; light tasks then share partitions. Raises Fenced (cancelled), Unavailable (the
        engine itself gave up).
        """
        ...

    def cancel(self) -> None:
        """Stop the tasks that run now; `run` then raises Fenced. May be called from another thread."""
        ...


_STOP: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


def stop_of_this_task() -> threading.Event | None:
    """Set when the task that asks is to end; None: the process is killed for that."""
    return _STOP.get()


class InProcessEngine:
    """Runs tasks one after the other in this process.

    `cancel` is heard between two of them, and by a task that reads, writes or waits through `phase_one.task_store`.
    """

    parallelism = 1
    is_waiting = False
    """Each engine has the thread that calls it."""
    _stop: threading.Event | None = None
    """Of the tasks that run; the next ones have another."""

    def run(
        self,
        count: int,
        task: Callable[[int], Answer],
        on_done: Callable[[int], None],
        weights: Sequence[float] | None = None,
    ) -> list[Answer | TaskFailure]:
        outcomes: list[Answer | TaskFailure] = []
        stop = self._stop = threading.Event()
        before = _STOP.set(stop)
        try:
            for number in range(count):
                if stop.is_set():
                    raise stopped()
                try:
                    outcomes.append(task(number))
                except Exception as error:
                    if stop.is_set():  # whatever it says: that is why
                        raise stopped() from error
                    outcomes.append(TaskFailure(error))
                on_done(number + 1)
        finally:
            _STOP.reset(before)
        return outcomes

    def cancel(self) -> None:
        if self._stop is not None:
            self._stop.set()


class EngineProvider(Protocol):
    """Where a service's engines come from: they share what is slow to start, and each is cancelled by itself."""

    def open(self) -> Engine:
        """An engine of the caller's own; the first waits until the machinery has started."""
        ...

    def end(self) -> None:
        """Give up machinery that is starting; `open` raises Unavailable from now on. Engines that run continue."""
        ...

    def close(self) -> None:
        """Stop the machinery; no engine runs any more."""
        ...


class InProcessEngineProvider:
    """Engines without any machinery: no Java, one core."""

    def open(self) -> Engine:
        return InProcessEngine()

    def end(self) -> None:
        return

    def close(self) -> None:
        return
