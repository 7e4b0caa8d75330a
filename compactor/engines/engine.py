"""Interface of engines, which run the tasks of a phase. The job depends on Spark only through it.

An engine calls one function for the numbers 0 … n-1. It may run a task anywhere and several times (retries,
speculation). It returns one outcome per number: an answer, or `TaskFailure` if all retries of the task failed, so that
one bad topic fails alone. `compactor/engines/spark.py` is the engine of large jobs; `InProcessEngine` runs
small ones in threads of this process, and is the shortest description of the contract.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from compactor.engines.kinds import IN_PROCESS
from storage.objects.throttled import stopped_error

Answer = TypeVar("Answer")

LIGHT = 32 << 20
"""Weight below which tasks share a partition. Spark needs 40–70 ms of a core to start a partition, as long as this many
bytes take. Weights are bytes to read and write, or any other measure; small numbers count as light."""

PARTITIONS_PER_CORE = 3
"""Partitions of light tasks per core, so that no core waits long for the last one."""


@dataclass(frozen=True)
class TaskFailure:
    """Outcome of a task whose last retry failed with `error`.

    `error` is the CompactorError that the task raised. Any other error counts as a defect: Spark's engine turns it into
    a RuntimeError with the traceback in its notes.
    """

    error: Exception


@dataclass(frozen=True)
class TaskInputs:
    """A task `task(inputs[number])` for each number. An engine sends a worker only the inputs of its numbers."""

    task: Callable[[Any], Any]
    inputs: Sequence[Any]

    def __call__(self, number: int) -> Any:
        return self.task(self.inputs[number])


def answers_or_raise(outcomes: Iterable[Answer | TaskFailure]) -> list[Answer]:
    """Return the answers of all tasks, in order. Raise the error of the first failed task."""
    good: list[Answer] = []
    for outcome in outcomes:
        if isinstance(outcome, TaskFailure):
            raise outcome.error
        good.append(outcome)
    return good


def partition_tasks(count: int, weights: Sequence[float] | None, cores: int) -> list[list[int]]:
    """Return the numbers of `count` tasks by partition: each heavy task alone, light tasks together; heavy ones first.

    A task is light below the weight `LIGHT`. Partitions of light tasks have about equal weight. Without weights every
    task has its own partition.
    """
    if weights is None:
        return [[number] for number in range(count)]
    if len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} tasks")
    heaviest_first = sorted(range(count), key=lambda number: -weights[number])
    heavy = [[number] for number in heaviest_first if weights[number] >= LIGHT]
    light = heaviest_first[len(heavy) :]
    partitions = max(PARTITIONS_PER_CORE * cores, math.ceil(math.fsum(weights[number] for number in light) / LIGHT))
    bins: list[tuple[float, int, list[int]]] = [(0.0, slot, []) for slot in range(min(partitions, len(light)))]
    for number in light:
        # The minimum weight spreads tasks of weight 0 as well.
        weight, slot, numbers = heapq.heappop(bins)
        numbers.append(number)
        heapq.heappush(bins, (weight + max(weights[number], 1e-9), slot, numbers))
    packed = sorted(bins, key=lambda item: (-item[0], item[1]))
    return heavy + [numbers for _, _, numbers in packed]


class Progress(Protocol):
    """Receiver of the progress of a run. A subclass ignores the reports that it does not override."""

    def begin_phase(self, name: str, tasks: int, messages: int) -> None:
        """Report the start of a phase, its number of tasks, and the number of messages or index records to read."""
        return

    def report_tasks_done_in_phase(self, done: int) -> None:
        """Report `done`, the approximate number of finished tasks of the active phase."""
        return

    def end(self) -> None:
        """Report the end of the run, successful or not."""
        return


class SilentProgress(Progress):
    """Receiver of progress that ignores all reports."""


class Engine(Protocol):
    """A runner of the tasks of a phase."""

    @property
    def parallelism(self) -> int:
        """The number by which tasks and parts are sized: of tasks that can run concurrently, on Spark if it is used."""

    @property
    def is_waiting(self) -> bool:
        """True if no task of the current job runs because other jobs use all cores."""

    @property
    def engine_choice(self) -> str:
        """The engine that runs the current or last job, and the reason: `in-process: 3.1 MiB, below 256 MiB`."""

    def run(
        self,
        count: int,
        task: Callable[[int], Answer],
        on_progress: Callable[[int], None],
        weights: Sequence[float] | None = None,
    ) -> list[Answer | TaskFailure]:
        """Return the outcomes of `task(0)` … `task(count - 1)`, in order. `task` must travel by pickle.

        `on_progress` gets the approximate number of finished tasks from time to time. `weights`: approximate bytes that
        each task reads and writes, or holds; with them, light tasks share partitions. Raises Fenced (cancelled),
        Unavailable (the engine itself failed).
        """

    def cancel(self) -> None:
        """Stop the current tasks; `run` then raises Fenced. May be called from another thread."""


MOST_THREADS = 4
"""Tasks that one engine runs at the same time in this process: a bound on their memory. More threads would mostly wait
for the interpreter."""


@dataclass(frozen=True)
class InProcessTask:
    """A task that an engine runs in this process. `stop`: set when the task must end. `concurrent`: the most tasks of
    the job that run at the same time."""

    stop: threading.Event
    concurrent: int


_CURRENT_TASK: ContextVar[InProcessTask | None] = ContextVar("task", default=None)


def current_task() -> InProcessTask | None:
    """Return the task that calls this function; None: no engine of this process runs the caller, whose process is
    killed instead of stopped."""
    return _CURRENT_TASK.get()


class InProcessEngine:
    """Engine that runs tasks in threads of this process, the heaviest first.

    `cancel` takes effect between two tasks, and inside a task at each access through `phase_one.task_store`.
    """

    engine_choice = IN_PROCESS
    is_waiting = False
    """Always False: each engine has threads of its own."""
    parallelism = 1
    _stop: threading.Event | None = None
    """The stop event of the current `run`. Each call has its own."""

    def __init__(self, parallelism: int = 1) -> None:
        """Build the engine.

        `parallelism`: the most tasks at the same time, up to `MOST_THREADS`; with 1 they follow each other, in order,
        in the caller's thread. It sizes tasks and parts, too: with that of Spark the bytes are those of Spark.
        """
        self.parallelism = parallelism

    def run(
        self,
        count: int,
        task: Callable[[int], Answer],
        on_progress: Callable[[int], None],
        weights: Sequence[float] | None = None,
    ) -> list[Answer | TaskFailure]:
        stop = self._stop = threading.Event()
        concurrent = max(1, min(self.parallelism, count, MOST_THREADS))

        def outcome_of(number: int) -> Answer | TaskFailure:
            if stop.is_set():
                raise stopped_error()
            try:
                return task(number)
            except Exception as error:
                if stop.is_set():  # the stop is the cause of any error
                    raise stopped_error() from error
                return TaskFailure(error)

        before = _CURRENT_TASK.set(InProcessTask(stop, concurrent))
        try:
            if concurrent > 1:
                return _run_in_threads(outcome_of, _heaviest_first(count, weights), concurrent, on_progress, stop)
            outcomes = []
            for number in range(count):
                outcomes.append(outcome_of(number))
                on_progress(number + 1)
            return outcomes
        finally:
            _CURRENT_TASK.reset(before)

    def cancel(self) -> None:
        if self._stop is not None:
            self._stop.set()


def _heaviest_first(count: int, weights: Sequence[float] | None) -> list[int]:
    return sorted(range(count), key=lambda number: 0.0 if weights is None else -weights[number])


def _run_in_threads(
    outcome_of: Callable[[int], Answer | TaskFailure],
    numbers: Sequence[int],
    threads: int,
    on_progress: Callable[[int], None],
    stop: threading.Event,
) -> list[Answer | TaskFailure]:
    """Return the outcomes of all tasks, by number. `numbers`: the tasks in the order of their starts.

    The first error of a task, or of `on_progress`, sets `stop`, and is raised when all threads have ended.
    """
    with ThreadPoolExecutor(threads, "compaction-task") as pool:
        try:
            futures = {number: pool.submit(copy_context().run, outcome_of, number) for number in numbers}
            for done, future in enumerate(as_completed(futures.values()), 1):
                future.result()
                on_progress(done)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [futures[number].result() for number in range(len(numbers))]


class EngineProvider(Protocol):
    """Source of a service's engines. They share what is slow to start; each is cancelled separately."""

    def open(self, *, large: bool = True, kind: str | None = None) -> Engine:
        """Return an engine for the caller alone.

        `large`: its first job is large. `kind`: the policy compaction.topic-engine; None: the provider's own kind. A
        provider of one kind alone ignores it.

        The first call that needs what engines share waits until that has started.
        Raises Misconfigured, Unavailable.
        """

    def stop_opening(self) -> None:
        """Cancel a start in progress; `open` raises Unavailable from now on. Active engines continue. Does not wait."""
        return

    def close(self) -> None:
        """Stop all engines, and what they share."""
        return


class InProcessEngineProvider(EngineProvider):
    """A provider of InProcessEngine: no Java, nothing to stop. `parallelism`: of each engine."""

    def __init__(self, parallelism: int = 1) -> None:
        self._parallelism = parallelism

    def open(self, *, large: bool = True, kind: str | None = None) -> Engine:
        return InProcessEngine(self._parallelism)
