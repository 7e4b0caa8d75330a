"""Driving runs: one, or many that share the jobs of an engine.

A run is a generator that yields `TaskSet` and is sent the answers (two_phase.py). A batch takes the work of all its
runs, lets the engine do it as one job, hands out the answers, and goes round until every run has ended. Runs need not
be in the same phase. A run that fails, or is fenced, ends alone: its error is recorded in its row (W3) and kept in its
outcome, the others continue.

One thread beats for all runs of the batch, with their progress, in one transaction. It hears which runs were fenced
(cancelled, taken over, their cursor deleted): those end at the next phase, and when none is left the job is stopped. A
job of which no task ends for too long is stopped as well, and its runs fail; their heartbeats stop, so that an
engine that cannot even be stopped holds up no other service. The time for which a job waits for the cores that other
jobs of the session have does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Any

from compactor.engines.engine import Engine, Progress, TaskFailure, TaskInputs
from storage.clock import Clock
from storage.errors import CompactorError, Fenced, Unavailable, recorded
from storage.heartbeat import Heartbeat
from storage.metadata.records import RunRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName

BEATS = 30
"""Heartbeats in the time after which a run counts as dead: one a second. A cancelled run is notified as soon,
and its progress is as old at most."""


@dataclass(frozen=True)
class Outcome:
    """What a trigger led to. `run` None and no error: nothing was new, so no run was made (P11)."""

    topic: TopicName
    run: RunRecord | None = None
    error: Exception | None = None

    @property
    def compacted_ledger_id(self) -> int | None:
        """The compacted ledger that this run published, if it did."""
        return self.run.compacted_ledger_id if self.run else None


@dataclass(frozen=True)
class TaskSet:
    """One phase of a run: `task` for each number, `costs` in bytes to read and write, about (Engine.run: weights).

    `messages`: messages or index records that it goes through, for progress.
    """

    name: str
    task: Callable[[int], Any]
    costs: Sequence[float]
    messages: int


class StallDetector:
    """For how long the engine's job has had cores and no task of it has ended. One thread runs the jobs, another one
    looks."""

    def __init__(self, clock: Clock, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self._clock = clock
        self._ended = 0
        self._since: int | None = None
        self._waited_until = 0
        self.is_over = False
        """Whether the job, or the last one, was still for longer than the limit."""

    def begin(self) -> None:
        """A job begins."""
        self._ended, self._since, self.is_over = 0, self._clock.now_ms(), False

    def moved(self, ended: int) -> None:
        """So many of its tasks have ended."""
        if ended != self._ended:
            self._ended, self._since = ended, self._clock.now_ms()

    def end(self) -> None:
        """It has ended."""
        self._since = None

    def look(self, is_waiting: bool = False) -> bool:
        """Whether the job has been still for too long. `is_waiting`: other jobs have all cores now; that counts for
        nothing."""
        since, now = self._since, self._clock.now_ms()
        if is_waiting:
            self._waited_until = now
        if since is not None and now - max(since, self._waited_until) > self.limit_ms:
            self.is_over = True
        return self.is_over and since is not None


Steps = Generator[TaskSet, list[Any], RunRecord]
OnFailed = Callable[[RunRecord, BaseException, str], object]


class Job:
    """A run under way: its steps, the work that it waits for, and in the end its outcome."""

    def __init__(self, topic: TopicName, run: RunRecord, steps: Steps) -> None:
        self.topic = topic
        self.run = run
        self.work: TaskSet | None = None
        self.done = 0
        self.fenced = False
        self.outcome: Outcome | None = None
        self._steps = steps

    def start(self) -> None:
        """Run up to the first work."""
        self._advance(lambda: next(self._steps))

    def answer(self, outcomes: list[Any]) -> None:
        """Go on with what came of the work, up to the next; its first failure is raised in the run."""
        failed = next((outcome for outcome in outcomes if isinstance(outcome, TaskFailure)), None)
        if failed is not None:
            self.fail(failed.error)
        else:
            self._advance(lambda: self._steps.send(outcomes))

    def fail(self, error: BaseException) -> None:
        """Raise `error` in the run, which then ends."""
        self._advance(lambda: self._steps.throw(error))

    def _advance(self, step: Callable[[], TaskSet]) -> None:
        self.work, self.done = None, 0
        try:
            self.work = step()
        except StopIteration as stop:
            self.outcome = Outcome(self.topic, stop.value)
        except Exception as error:
            self.outcome = Outcome(self.topic, self.run, error)

    @property
    def progress(self) -> dict[str, object]:
        """Phase, tasks and bytes done, for the run's row; bytes are those of the tasks that have ended, about."""
        work = self.work
        if work is None:
            return {}
        share = self.done / len(work.costs) if work.costs else 1.0
        return {
            "phase": work.name,
            "tasks_done": self.done,
            "tasks_total": len(work.costs),
            "bytes_done": int(share * sum(work.costs)),
        }


@dataclass(frozen=True)
class BatchRunner:
    """Drives runs; `heartbeat_ms`: a run without a heartbeat for that time counts as dead.

    `claims_at_once`: a claim may have to wait for others (a tail is rolled and sealed), so some are made at once.
    `on_failed` records that a run did not succeed, why, and in which words, as soon as it is known; None: in its row.
    `stillness` None: a task of a job has no time limit.
    """

    metadata: MetadataStore
    engine: Engine
    progress: Progress
    heartbeat_ms: int
    claims_at_once: int = 1
    on_failed: OnFailed | None = None
    stillness: StallDetector | None = None

    def run(
        self, topics: Iterable[TopicName], claim: Callable[[TopicName], Job | None], size: int
    ) -> Iterator[Outcome]:
        """An outcome for each topic, in order. `claim` gives a job, None for nothing to do, or raises."""
        remaining = iter(topics)
        while some := list(islice(remaining, size)):
            yield from self._run_some(some, claim)

    def _run_some(self, topics: list[TopicName], claim: Callable[[TopicName], Job | None]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        claimed: dict[int, Job] = {}
        try:
            with Heartbeat(lambda: self._beat(list(claimed.values())), self.heartbeat_ms / 1000 / BEATS):
                for number, job in self._claim_all(topics, claim):
                    if isinstance(job, Outcome):
                        outcomes[number] = job
                    else:
                        claimed[number] = job
                self._drive([claimed[number] for number in sorted(claimed)])
        except BaseException as error:
            for job in claimed.values():
                if job.outcome is None:
                    self._record_failure(job.run, error)
            raise
        finally:
            self.progress.end()
        outcomes |= {number: job.outcome for number, job in claimed.items() if job.outcome is not None}
        return [outcomes[number] for number in range(len(topics))]

    def _claim_all(
        self, topics: Sequence[TopicName], claim: Callable[[TopicName], Job | None]
    ) -> Iterator[tuple[int, Job | Outcome]]:
        """A job, or the outcome if there is nothing to do, with the number of its topic, as soon as it is known."""

        def one(name: TopicName) -> Job | Outcome:
            try:
                return claim(name) or Outcome(name)
            except Exception as error:
                return Outcome(name, None, error)

        if self.claims_at_once == 1 or len(topics) == 1:
            yield from ((number, one(name)) for number, name in enumerate(topics))
            return
        with ThreadPoolExecutor(min(self.claims_at_once, len(topics)), "claim") as pool:
            numbers = {pool.submit(one, name): number for number, name in enumerate(topics)}
            for future in as_completed(numbers):
                yield numbers[future], future.result()

    def _drive(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.start()
            self._note_end(job)
        while running := self._still_wanted(jobs):
            for job, result in zip(running, self._do(running), strict=True):
                if job.fenced:
                    job.fail(self._why_fenced(job.run))
                elif isinstance(result, CompactorError):
                    job.fail(result)
                else:
                    job.answer(result)
                self._note_end(job)

    def _still_wanted(self, jobs: list[Job]) -> list[Job]:
        """The runs that have work to do; those that were fenced meanwhile end before anything is done for them."""
        running = [job for job in jobs if job.work is not None]
        with suppress(CompactorError):  # a database that is away for a moment is asked again by the next beat
            self._beat(running)
        for job in running:
            if job.fenced:
                job.fail(self._why_fenced(job.run))
                self._note_end(job)
        return [job for job in running if job.work is not None]

    def _do(self, running: list[Job]) -> list[list[Any] | CompactorError]:
        """Let the engine do the work of all; what came of it, run by run, or why nothing did.

        An engine that gives up on all, because one task kills its workers, is asked again for each run alone.
        """
        together = self._do_together(running)
        still = self.stillness is not None and self.stillness.is_over
        if isinstance(together, Unavailable) and len(running) > 1 and not still:
            alone = [self._do_together([job]) for job in running]
            return [item if isinstance(item, CompactorError) else item[0] for item in alone]
        return [together for _ in running] if isinstance(together, CompactorError) else [*together]

    def _do_together(self, running: list[Job]) -> list[list[Any]] | CompactorError:
        works = [job.work for job in running if job.work is not None]
        costs = list(chain.from_iterable(work.costs for work in works))
        ends = list(accumulate(len(work.costs) for work in works))
        task = works[0].task if len(works) == 1 else _together(works)
        phases = dict.fromkeys(work.name for work in works)
        self.progress.phase(" and ".join(phases), len(costs), sum(work.messages for work in works))

        still = self.stillness

        def on_done(tasks: int) -> None:
            if still is not None:
                still.moved(tasks)
            for job, work in zip(running, works, strict=True):
                job.done = len(work.costs) * tasks // max(1, len(costs))
            self.progress.done(tasks)

        if still is not None:
            still.begin()
        try:
            outcomes = self.engine.run(len(costs), task, on_done, costs)
        except CompactorError as error:
            return self._why_stopped(error, " and ".join(phases))
        finally:
            if still is not None:
                still.end()
        return [outcomes[end - len(work.costs) : end] for end, work in zip(ends, works, strict=True)]

    def _why_stopped(self, error: CompactorError, phases: str) -> CompactorError:
        if self.stillness is None or not self.stillness.is_over or not isinstance(error, Fenced):
            return error
        return Unavailable(
            f"no task of {phases} ended for {self.stillness.limit_ms / 1000:g} s, so it was stopped",
            "check that Spark's workers and the object store answer; where a task may take that long, raise "
            "compaction.stalled-after",
            is_public=True,
        )

    def _beat(self, jobs: Sequence[Job]) -> None:
        if self.stillness is not None and self.stillness.look(self.engine.is_waiting):
            self.engine.cancel()
            return
        active = [job for job in jobs if job.outcome is None]
        if not active:
            return
        progress = {job.run.run_id: job.progress for job in active}
        fenced = set(self.metadata.runs.heartbeat([job.run for job in active], progress))
        for job in active:
            job.fenced = job.fenced or job.run.run_id in fenced
        waiting = [job for job in active if job.work is not None]  # a run without work publishes, or has ended
        if waiting and all(job.fenced for job in waiting):
            self.engine.cancel()

    def _note_end(self, job: Job) -> None:
        if job.outcome is not None and job.outcome.error is not None:
            self._record_failure(job.run, job.outcome.error)

    def _why_fenced(self, run: RunRecord) -> CompactorError:
        """The database knows by whom a run was overtaken."""
        try:
            self.metadata.runs.update(run)
        except CompactorError as error:
            return error
        return Fenced(f"run {run.run_id} was stopped", "start it again if it is still wanted")

    def _record_failure(self, run: RunRecord, error: BaseException) -> None:
        """W3: the original error is kept; a database that is away too must not hide it."""
        try:
            error_text = recorded(error)
            if self.on_failed is None:
                self.metadata.runs.fail(run, error_text)
            else:
                self.on_failed(run, error, error_text)
        except CompactorError as second:
            error.add_note(f"and the failure could not be recorded: {second}")


def _together(works: Sequence[TaskSet]) -> TaskInputs:
    """The tasks of several works as one sequence; of a divided one, each input goes where its task does."""
    tasks = tuple(work.task.task if isinstance(work.task, TaskInputs) else work.task for work in works)
    inputs = [
        (number, given)
        for number, work in enumerate(works)
        for given in (work.task.inputs if isinstance(work.task, TaskInputs) else range(len(work.costs)))
    ]
    return TaskInputs(_OneOf(tasks), inputs)


@dataclass(frozen=True)
class _OneOf:
    """Calls one of several tasks. Travels by pickle."""

    tasks: tuple[Callable[[Any], Any], ...]

    def __call__(self, given: tuple[int, Any]) -> Any:
        number, its_input = given
        return self.tasks[number](its_input)
