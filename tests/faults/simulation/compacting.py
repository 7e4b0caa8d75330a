"""Compactions: runs of several processes, each held half-way for as long as chance will have it.

A run is a generator of work (compactor/batch.py); a `Running` holds one with the answers that it has not been given
yet. It may be driven on, be left alone until others hold it for dead, be overtaken, cancelled, lose its cursor, or die
with its process. BatchRunner's public steps drive it, so that heartbeats, fences and failures are handled as in
production.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from compactor import reference
from compactor.batch import BatchRunner, Job
from compactor.engines.engine import InProcessEngine, SilentProgress
from compactor.run.plan import RunPolicies, Sizing
from compactor.two_phase import HEARTBEAT_MS, TwoPhaseCompactor
from storage.environment import Environment
from storage.errors import (
    CompactionPaused,
    CompactionRunning,
    CompactorError,
    Conflict,
    DataLoss,
    Fenced,
    LeaseHeld,
    NotFound,
    TopicNotFound,
    Unavailable,
)
from storage.metadata.records import COMPACTION_CURSOR, RunState, TopicRecord
from tests.faults.simulation.model import TopicModel, require
from tests.faults.simulation.process import Process
from tests.faults.simulation.world import World


@dataclass
class Running:
    """A run under way. `done`: what came of its work, if that is done; `faults`: of its process when it began."""

    process: Process
    model: TopicModel
    job: Job
    faults: int
    done: Any = None


class Compacting:
    """Events of compactions."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.running: list[Running] = []
        self._policies: dict[int, RunPolicies] = {}
        self._engine = InProcessEngine()

    def start(self, model: TopicModel | None = None, policies: RunPolicies | None = None, faults: float = 0.12) -> None:
        """A trigger: it claims a run and takes it up to its first work, or finds that nothing is new."""
        world = self._world
        free = world.free("c")
        if not free:
            return
        process, model = world.random.choice(free), model or world.random.choice(world.topics)
        used = policies or self._policies.get(model.record.id)
        if used is None or (policies is None and world.random.random() < 0.35):
            used = world.draw_policies(model)
        self._policies[model.record.id] = used
        compactor = replace(self.compactor(process), sizing=self._sizing())
        world.run_as(
            process,
            f"triggers {model.record.name} by {_shown(used)}",
            lambda: self._start(process, model, compactor, used),
            faults,
        )

    def compactor(self, process: Process) -> TwoPhaseCompactor:
        hasher = self._world.hasher
        return TwoPhaseCompactor(
            Environment(process.metadata, process.store, self._world.clock, self._world.log_directory),
            self._engine,
            hasher=lambda _: hasher,
        )

    def _start(self, process: Process, model: TopicModel, compactor: TwoPhaseCompactor, used: RunPolicies) -> None:
        world = self._world
        faults, process.floor = process.faults, None
        try:
            job = compactor.seal_and_claim(model.record.name, self._from_start(model, used))
        except CompactionRunning as error:
            last = world.observer.runs.last(model.record.id)
            stopping = model.stops and "was aborted" in str(error)
            named = last is not None and str(last.run_id) in str(error)
            require(named or stopping or process.preempted, f"{error}, and the last run is {last}")
            world.note("  another run is under way")
            return
        except CompactionPaused as error:
            require(model.paused > 0 or process.preempted, f"{model.record.name} is not paused: {error}")
            world.note("  it is paused")
            return
        except (LeaseHeld, Fenced) as error:
            fenced = isinstance(error, Fenced)  # by another sealer; a lease outlives a writer that died
            require(not fenced or process.preempted or world.depth > 1, f"{model.record.name}: none seals: {error}")
            world.note(f"  {type(error).__name__}: {error}"[:150])
            return
        except CompactorError as error:
            over = model.deleted_at is not None and isinstance(error, TopicNotFound)
            message = f"{model.record.name} could not be claimed without a fault: {error}"
            require(over or process.faults > faults, message)
            world.note(f"  {type(error).__name__}: {error}"[:150])
            return
        if job is None:
            world.note("  nothing is new")
            if not process.preempted and model.deleted_at is None:
                self._check_nothing_new(model, self._from_start(model, used)(model.record), process.floor)
            return
        model = world.model_of(job.run.topic_id)  # of that name another one may have come
        require(not model.paused or process.preempted, f"{job.run} was claimed, and {model.record.name} is paused (S5)")
        running = Running(process, model, job, faults)
        self.running.append(running)
        process.on_death.append(lambda: self._forget(running))
        process.on_snapshot = lambda: world.note_run(process, model, job.run.run_id)
        try:
            job.start()
        finally:
            process.on_snapshot = None
        notes = model.notes.get(job.run.run_id)
        if notes is not None:
            notes.floor = process.floor
        self._end(running)

    def _from_start(self, model: TopicModel, used: RunPolicies) -> Callable[[TopicRecord], RunPolicies]:
        """Apply the start offset to compacted rows under `compact,delete` alone, as run_policies.py does (C2)."""
        return lambda topic: replace(used, start_offset=model.start if model.hides_compacted else 0)

    def _check_nothing_new(self, model: TopicModel, used: RunPolicies, floor: int | None) -> None:
        """P11, property 3: a trigger that makes no run would have changed nothing."""
        now = self._world.clock.now_ms()
        snapshot = self._world.observer.topic_snapshot(model.record.id)
        if snapshot.topic.next_offset > len(model.everything):  # committed, and its caller was interrupted behind that
            self._world.observe()
        end = model.last_old_enough(snapshot, used, now, model.horizon, model.first)
        require(end == model.horizon, f"{model.record.name}: nothing was new, and messages up to {end} are")
        if model.serving is None:
            return
        after = reference.run(model.state, [], used, now, floor if used.tombstones_wait_for_cursors else None)
        before = model.state
        same = (after.messages, after.retained_at, after.dropped_to) == (
            before.messages,
            before.retained_at,
            before.dropped_to,
        )
        require(same, f"{model.record.name}: nothing was new, and a run would have changed something (P11)")

    def advance(self, running: Running | None = None, faults: float = 0.15) -> None:
        """One run continues: its work is done, or it is given what came of it, or both."""
        world = self._world
        candidates = [item for item in self.running if item.process in world.free("c")]
        if running is None:
            if not candidates:
                return
            running = world.random.choice(candidates)
        chosen = running
        task_set = chosen.job.task_set
        both = world.random.random() < 0.6
        world.run_as(
            chosen.process,
            f"continues with run {chosen.job.run.run_id} ({task_set.name if task_set else 'ended'})",
            lambda: self._advance(chosen, both),
            faults,
        )

    def finish(self, running: Running) -> None:
        """Drive it to its end."""
        while running in self.running:
            self.advance(running, faults=0.0)

    def _advance(self, running: Running, both: bool) -> None:
        batch, job = self._batch(running.process), running.job
        if running.done is None:
            if not running.process.stalled and self._world.random.random() < 0.5:
                try:
                    batch.heartbeat_or_cancel([job])
                except CompactorError as error:
                    require(running.process.faults > running.faults, f"no beat, without a fault: {error}")
            running.done = batch.run_tasks([job])
            if not both:
                return
        result, running.done = running.done, None
        if job.fenced:
            job.fail(batch.fencing_error(job.run))
        elif isinstance(result, CompactorError):
            job.fail(result)
        else:
            job.resume(result[0])
        self._end(running)

    def _end(self, running: Running) -> None:
        """If it has ended: its failure is recorded, and it had a reason."""
        job, world = running.job, self._world
        if job.outcome is None:
            return
        self.running.remove(running)
        error = job.outcome.error
        if running.model.deleted_at is not None:
            require(error is not None and not isinstance(error, DataLoss), f"{job.run} of a deleted topic: {error!r}")
            self._batch(running.process).record_failure_if_any(job)
            world.note(f"  ended with its topic: {error!r}"[:150])
            return
        row = world.observer.runs.get(job.run.run_id)
        topic = world.observer.topics.get(running.model.record.name)
        fenced = row.state is not RunState.RUNNING or topic.epoch != row.epoch
        self._batch(running.process).record_failure_if_any(job)
        after = world.observer.runs.get(job.run.run_id)
        message = f"run {row.run_id} of {topic.name}"
        world.note(f"  ended as {after.state} {after.error}"[:150])
        world.report.count(f"run {after.state}")
        faulty = running.process.faults > running.faults
        if error is None:
            require(after.state is RunState.SUCCESS, f"{message} succeeded, and its row says {after.state}")
            return
        require(after.state is not RunState.RUNNING or faulty, f"{message} failed, and its row says RUNNING: {error}")
        if isinstance(error, Fenced):
            require(fenced, f"{message} was fenced by no process: {error}")
        elif isinstance(error, Unavailable):
            require(faulty, f"{message} failed without a fault: {error}")
            unknown = "is not known" in error.message
            require(unknown or after.state is not RunState.SUCCESS, f"{message} published, and its caller got: {error}")
        elif isinstance(error, DataLoss):
            lost = any(name in str(error) for name in world.lost)
            require(faulty or fenced or lost, f"{message} lost data without a fault: {error}")
        elif isinstance(error, Conflict):
            notes = running.model.notes.get(row.run_id)
            trimmed = notes is not None and running.model.first > notes.first
            require(trimmed, f"{message} failed, and nothing was trimmed meanwhile: {error}")
        else:
            require(False, f"{message} failed: {error!r}")

    def _forget(self, running: Running) -> None:
        if running in self.running:
            self.running.remove(running)
        running.job.close()

    def compact(self, model: TopicModel | None = None) -> None:
        """A trigger, and what it began is driven to its end."""
        before = list(self.running)
        self.start(model)
        for running in [item for item in self.running if item not in before]:
            self.finish(running)

    def overtake(self) -> None:
        """A run's process stalls until it is held for dead; another compacts the topic, and the first comes back."""
        candidates = [item for item in self.running if item.process in self._world.free("c")]
        if not candidates:
            return
        running = self._world.random.choice(candidates)
        running.process.stalled = True
        self._world.note(f"{running.process.name} stops beating, until run {running.job.run.run_id} is held for dead")
        self._world.clock.advance(HEARTBEAT_MS + 1)
        self.compact(running.model)

    def beat(self) -> None:
        """Every process that is not stalled says that its runs are alive."""
        for running in self.running:
            if not running.process.stalled and running.process in self._world.free("c"):
                self._batch(running.process).heartbeat_or_cancel([running.job])

    def stall(self) -> None:
        """A process's heart stops, or beats again: a run's, or that of a writer who keeps a log open."""
        process = self._world.random.choice(list(self._world.processes.values()))
        if process.name.startswith(("a", "c")):
            process.stalled = not process.stalled
            self._world.note(f"{process.name} {'stops beating' if process.stalled else 'beats again'}")

    def cancel(self) -> None:
        """An operator cancels the last run of a topic."""
        model = self._world.random.choice(self._world.topics)
        last = self._world.observer.runs.last(model.record.id)
        if last is None:
            return
        model.stops += last.state is RunState.RUNNING
        try:
            self._world.observer.runs.cancel(last.run_id, "cancelled by the simulation")
        except Conflict:
            require(last.state is not RunState.RUNNING, f"run {last.run_id} could not be cancelled")
            return
        self._world.note(f"run {last.run_id} of {model.record.name} is cancelled")
        self._world.report.count("cancelled")

    def delete_cursor(self, model: TopicModel | None = None) -> None:
        """An operator deletes `__compaction`: the compacted ledger is abandoned (R8, S8)."""
        under_way = [running.model for running in self.running]
        if model is None and not under_way and self._world.random.random() < 0.6:
            return
        model = model or self._world.random.choice(under_way or self._world.topics)
        try:
            force = self._world.random.random() < 0.8
            self._world.observer.cursors.delete(model.record.id, COMPACTION_CURSOR, force)
        except NotFound:
            return
        except Conflict as error:
            require(model.first > 0 and not force, f"{model.record.name}: nothing is trimmed, and {error}")
            return
        model.clear()
        self._world.note(f"the cursor {COMPACTION_CURSOR} of {model.record.name} is deleted")
        self._world.report.count("cursor deleted")

    def kill(self) -> None:
        """A process dies between two steps."""
        world = self._world
        process = world.random.choice(world.free("c") * 3 + world.free("r"))
        world.run_as(process, "is killed", process.die)

    def _batch(self, process: Process) -> BatchRunner:
        return BatchRunner(process.metadata, self._engine, SilentProgress(), HEARTBEAT_MS)

    def _sizing(self) -> Sizing:
        draw = self._world.random.choice
        return Sizing(
            parallelism=draw([1, 2, 3]),
            range_records=draw([2, 5, 30]),
            part_bytes=draw([1, 1, 3000, 12_000, 1 << 20]),
            small_range_records=draw([1, 1000]),
            small_part_bytes=draw([1, 1 << 20]),
            max_garbage_ratio=draw([0.0, 0.3, 0.5, 0.9, 1.0]),
        )


def _shown(policies: RunPolicies) -> str:
    plain = asdict(RunPolicies())
    return ", ".join(f"{name}={value}" for name, value in asdict(policies).items() if value != plain[name]) or "default"
