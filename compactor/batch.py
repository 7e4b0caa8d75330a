"""Batch of runs, which share the jobs of an engine.

A run is a generator: it yields `TaskSet` and receives the results (two_phase.py). In each round the batch collects the
tasks of all its runs, lets the engine run them as one job, and distributes the results, until every run has ended. Runs
may be in different phases. A run that fails or is fenced ends alone: its row records the error (W3), its outcome has
it, and the others continue.

One thread sends the heartbeats of all runs of the batch, with their progress, in one transaction. The answer names the
fenced runs (cancelled, taken over, their cursor deleted). Those end at the next phase; if all are fenced, the job is
stopped. A job without any finished task for too long is stopped too, and its runs fail. Their heartbeats stop, so that
an engine that does not stop blocks no other process. The time during which a job waits for cores that other jobs of
the session use does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import Any

from compactor.engines.engine import Engine, Progress, TaskFailure, TaskInputs
from storage.clock import Clock, SystemClock
from storage.errors import CompactorError, ErrorText, Fenced, Unavailable
from storage.heartbeat import Heartbeat
from storage.metadata.records import RunRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName

BEATS = 30
"""Number of heartbeats within the time after which a run counts as dead: one per second. It also bounds the delay of a
cancellation and the age of the recorded progress."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of the compaction of one topic.

    `run` None: no run was claimed, because of `error`, or because nothing was new (P11).
    """

    topic: TopicName
    run: RunRecord | None = None
    error: Exception | None = None

    @property
    def compacted_ledger_id(self) -> int | None:
        """The id of the compacted ledger that the run published; None: it published none."""
        return self.run.compacted_ledger_id if self.run else None


@dataclass(frozen=True)
class TaskSet:
    """The tasks of one phase of a run: `task` for each of `inputs`.

    `costs`: approximate bytes that each task reads and writes. `messages`: number of messages or index records that the
    phase reads, for progress. `memory_factor`: bytes of memory that a task holds for each of these bytes, if more than
    one.
    """

    name: str
    task: Callable[[Any], Any]
    inputs: Sequence[Any]
    costs: Sequence[float]
    messages: int
    memory_factor: float = 1.0

    @property
    def weights(self) -> list[float]:
        """The weights of the tasks for `Engine.run`: bytes to read and write, or to hold."""
        return [self.memory_factor * cost for cost in self.costs]


class StallDetector:
    """Detector of a job that has cores but finishes no task for longer than `limit_ms`; infinity: no limit.

    One thread runs the jobs, another calls `check_stalled`.
    """

    def __init__(self, clock: Clock = SystemClock(), limit_ms: float = math.inf) -> None:  # noqa: B008
        self.limit_ms = limit_ms
        self._clock = clock
        self._ended = 0
        self._since: int | None = None
        self._waited_until = 0
        self.is_over = False
        """True if the current or last job stalled for longer than the limit."""

    def begin_job(self) -> None:
        """Start the measurement of a new job, and clear `is_over`."""
        self._ended, self._since, self.is_over = 0, self._clock.now_ms(), False

    def record_finished_tasks_so_far(self, count: int) -> None:
        """Note how many tasks of the job have finished since its begin. A change starts the time again."""
        if count != self._ended:
            self._ended, self._since = count, self._clock.now_ms()

    def end_job(self) -> None:
        """End the measurement: the job cannot stall any more. `is_over` stays."""
        self._since = None

    def check_stalled(self, is_waiting: bool = False) -> bool:
        """Return whether the current job has stalled for longer than the limit; False between two jobs.

        `is_waiting`: other jobs use all cores, so time does not count.
        """
        since, now = self._since, self._clock.now_ms()
        if is_waiting:
            self._waited_until = now
        if since is not None and now - max(since, self._waited_until) > self.limit_ms:
            self.is_over = True
        return self.is_over and since is not None


Steps = Generator[TaskSet, list[Any], RunRecord]
OnFailed = Callable[[RunRecord, BaseException], object]


class Job:
    """One active run in a batch: its steps, the tasks that it waits for (`task_set`), and in the end its outcome.

    `done`: finished tasks of `task_set`. `engines`: the engine of each phase, with the reason (Engine.engine_choice).
    The run reads them when it publishes. An error that a step raises becomes the outcome; no method raises it.
    """

    def __init__(self, topic: TopicName, run: RunRecord, steps: Steps, engines: dict[str, str] | None = None) -> None:
        self.topic = topic
        self.run = run
        self.engines = {} if engines is None else engines
        self.task_set: TaskSet | None = None
        self.done = 0
        self.fenced = False
        self.outcome: Outcome | None = None
        self._steps = steps

    def start(self) -> None:
        """Begin the run and continue up to its first task set, or its end."""
        self._advance(lambda: next(self._steps))

    def resume(self, outcomes: list[Any]) -> None:
        """Continue the run with the outcomes of its tasks, in order, up to its next task set, or its end.

        If a task failed, the first failure is raised inside the run.
        """
        failed = next((outcome for outcome in outcomes if isinstance(outcome, TaskFailure)), None)
        if failed is not None:
            self.fail(failed.error)
        else:
            self._advance(lambda: self._steps.send(outcomes))

    def fail(self, error: BaseException) -> None:
        """Raise `error` inside the run, which then ends with it as its outcome."""
        self._advance(lambda: self._steps.throw(error))

    def close(self) -> None:
        """Close the generator of the run. The job gets no outcome."""
        self._steps.close()

    def _advance(self, step: Callable[[], TaskSet]) -> None:
        self.task_set, self.done = None, 0
        try:
            self.task_set = step()
        except StopIteration as stop:
            self.outcome = Outcome(self.topic, stop.value)
        except Exception as error:
            self.outcome = Outcome(self.topic, self.run, error)

    @property
    def progress(self) -> dict[str, object]:
        """Progress for the row of the run: phase, finished tasks, approximate bytes; empty between two phases."""
        task_set = self.task_set
        if task_set is None:
            return {}
        share = self.done / len(task_set.costs) if task_set.costs else 1.0
        return {
            "phase": task_set.name,
            "tasks_done": self.done,
            "tasks_total": len(task_set.costs),
            "bytes_done": int(share * sum(task_set.costs)),
        }


@dataclass(frozen=True)
class BatchRunner:
    """Driver of runs in batches. `heartbeat_ms`: a run without a heartbeat for that time counts as dead.

    `claims_at_once`: number of concurrent claims; a claim may wait until a tail is sealed. `on_failed`: records a
    failed run (run, error) at once; None: the run's row records it.
    """

    metadata: MetadataStore
    engine: Engine
    progress: Progress
    heartbeat_ms: int
    claims_at_once: int = 1
    on_failed: OnFailed | None = None
    stall_detector: StallDetector = field(default_factory=StallDetector)

    def run(
        self, topics: Iterable[TopicName], claim: Callable[[TopicName], Job | None], batch_size: int
    ) -> Iterator[Outcome]:
        """Yield an outcome per topic, in order, batch by batch of `batch_size` topics.

        `claim` returns a job, returns None if nothing is to be compacted, or raises the error of the outcome.
        """
        remaining = iter(topics)
        while batch := list(islice(remaining, batch_size)):
            yield from self._run_batch(batch, claim)

    def _run_batch(self, topics: list[TopicName], claim: Callable[[TopicName], Job | None]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        claimed: dict[int, Job] = {}
        try:
            with Heartbeat(lambda: self.heartbeat_or_cancel(list(claimed.values())), self.heartbeat_ms / 1000 / BEATS):
                for number, job in self._claim_all(topics, claim):
                    if isinstance(job, Outcome):
                        outcomes[number] = job
                    else:
                        claimed[number] = job
                self._run_to_end([claimed[number] for number in sorted(claimed)])
        except BaseException as error:
            for job in claimed.values():
                if job.outcome is None:
                    self._record_run_failure(job.run, error)
            raise
        finally:
            self.progress.end()
        outcomes |= {number: job.outcome for number, job in claimed.items() if job.outcome is not None}
        return [outcomes[number] for number in range(len(topics))]

    def _claim_all(
        self, topics: Sequence[TopicName], claim: Callable[[TopicName], Job | None]
    ) -> Iterator[tuple[int, Job | Outcome]]:
        """Yield the number of each topic with its job, or with its outcome if no run was claimed, as each is known."""

        def claim_topic(name: TopicName) -> Job | Outcome:
            try:
                return claim(name) or Outcome(name)
            except Exception as error:
                return Outcome(name, None, error)

        if self.claims_at_once == 1 or len(topics) == 1:
            yield from ((number, claim_topic(name)) for number, name in enumerate(topics))
            return
        with ThreadPoolExecutor(min(self.claims_at_once, len(topics)), "claim") as pool:
            numbers = {pool.submit(claim_topic, name): number for number, name in enumerate(topics)}
            for future in as_completed(numbers):
                yield numbers[future], future.result()

    def _run_to_end(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.start()
            self.record_failure_if_any(job)
        while running := self._heartbeat_and_end_fenced(jobs):
            for job, result in zip(running, self.run_tasks(running), strict=True):
                if job.fenced:
                    job.fail(self.fencing_error(job.run))
                elif isinstance(result, CompactorError):
                    job.fail(result)
                else:
                    job.resume(result)
                self.record_failure_if_any(job)

    def _heartbeat_and_end_fenced(self, jobs: list[Job]) -> list[Job]:
        """Send a heartbeat, end the fenced jobs, and return the jobs that have tasks to run."""
        running = [job for job in jobs if job.task_set is not None]
        with suppress(CompactorError):  # the next heartbeat repeats this if the database is away
            self.heartbeat_or_cancel(running)
        for job in running:
            if job.fenced:
                job.fail(self.fencing_error(job.run))
                self.record_failure_if_any(job)
        return [job for job in running if job.task_set is not None]

    def run_tasks(self, running: list[Job]) -> list[list[Any] | CompactorError]:
        """Let the engine run the tasks of all jobs together. Return the outcomes of its tasks, or an error, for each
        job.

        If the engine itself fails, for instance because a task kills its workers, each job runs alone.
        """
        results = self._run_as_one_engine_job(running)
        if isinstance(results[0], Unavailable) and len(running) > 1 and not self.stall_detector.is_over:
            return [result for job in running for result in self._run_as_one_engine_job([job])]
        return results

    def _run_as_one_engine_job(self, running: list[Job]) -> list[list[Any] | CompactorError]:
        """Run the tasks of all jobs as one job of the engine.

        Return, for each job, the outcomes of its tasks, or the error of the engine.
        """
        task_sets = [job.task_set for job in running if job.task_set is not None]
        weights = list(chain.from_iterable(task_set.weights for task_set in task_sets))
        ends = list(accumulate(len(task_set.costs) for task_set in task_sets))
        phases = dict.fromkeys(task_set.name for task_set in task_sets)
        self.progress.begin_phase(" and ".join(phases), len(weights), sum(task_set.messages for task_set in task_sets))

        def on_progress(tasks: int) -> None:
            self.stall_detector.record_finished_tasks_so_far(tasks)
            for job, task_set in zip(running, task_sets, strict=True):
                job.done = len(task_set.costs) * tasks // max(1, len(weights))
            self.progress.report_tasks_done_in_phase(tasks)

        self.stall_detector.begin_job()
        try:
            outcomes = self.engine.run(len(weights), join_task_sets(task_sets), on_progress, weights)
        except CompactorError as error:
            return [self._stall_error_or(error, " and ".join(phases))] * len(running)
        finally:
            self.stall_detector.end_job()
        for job, task_set in zip(running, task_sets, strict=True):
            job.engines[task_set.name] = self.engine.engine_choice
        return [outcomes[end - len(task_set.costs) : end] for end, task_set in zip(ends, task_sets, strict=True)]

    def _stall_error_or(self, error: CompactorError, phases: str) -> CompactorError:
        """Return the error of a stalled job if `error` is the result of its stop, else `error`."""
        if not self.stall_detector.is_over or not isinstance(error, Fenced):
            return error
        return Unavailable(
            f"no task of {phases} ended for {self.stall_detector.limit_ms / 1000:g} s, so it was stopped",
            "check that Spark's workers and the object store answer; where a task may take that long, raise "
            "compaction.stalled-after",
            is_public=True,
        )

    def heartbeat_or_cancel(self, jobs: Sequence[Job]) -> None:
        """Record that the runs are alive, with their progress; mark those that were fenced. Raises CompactorError.

        Cancels the engine's job if it has stalled, or if all its runs were fenced.
        """
        if self.stall_detector.check_stalled(self.engine.is_waiting):
            self.engine.cancel()
            return
        active = [job for job in jobs if job.outcome is None]
        if not active:
            return
        progress = {job.run.run_id: job.progress for job in active}
        fenced = set(self.metadata.runs.heartbeat([job.run for job in active], progress))
        for job in active:
            job.fenced = job.fenced or job.run.run_id in fenced
        waiting = [job for job in active if job.task_set is not None]  # a run without tasks publishes, or has ended
        if waiting and all(job.fenced for job in waiting):
            self.engine.cancel()

    def record_failure_if_any(self, job: Job) -> None:
        """Record the failure of a job's run, if the job has ended with an error. Call it once after each step."""
        if job.outcome is not None and job.outcome.error is not None:
            self._record_run_failure(job.run, job.outcome.error)

    def fencing_error(self, run: RunRecord) -> CompactorError:
        """Return the database's error for a fenced run, which names the newer run or the cause."""
        try:
            self.metadata.runs.update(run)
        except CompactorError as error:
            return error
        return Fenced(f"run {run.run_id} was stopped", "start it again if it is still wanted")

    def _record_run_failure(self, run: RunRecord, error: BaseException) -> None:
        """Record the error of a failed run (W3). If the database fails too, add that to the error as a note."""
        try:
            if self.on_failed is None:
                self.metadata.runs.fail(run, ErrorText.from_error(error))
            else:
                self.on_failed(run, error)
        except CompactorError as second:
            error.add_note(f"and the failure could not be recorded: {second}")


def join_task_sets(task_sets: Sequence[TaskSet]) -> TaskInputs:
    """Return the tasks of several task sets as one sequence, in order. A worker gets only the inputs of its tasks."""
    if len(task_sets) == 1:
        return TaskInputs(task_sets[0].task, task_sets[0].inputs)
    inputs = [(number, item) for number, task_set in enumerate(task_sets) for item in task_set.inputs]
    return TaskInputs(_TaskDispatcher(tuple(task_set.task for task_set in task_sets)), inputs)


@dataclass(frozen=True)
class _TaskDispatcher:
    """A task that calls one of several tasks, by its number. It travels by pickle."""

    tasks: tuple[Callable[[Any], Any], ...]

    def __call__(self, item: tuple[int, Any]) -> Any:
        number, task_input = item
        return self.tasks[number](task_input)
