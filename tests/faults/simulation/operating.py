"""Events of operators and the maintenance loop: trims, truncates, deletes, pauses, resumes and aborts.

What each of them may take is said in `TopicModel` (C1, C2, S5, S8, S9); here it is asked for, by a process that may
die or meet faults in the middle, and the answer is compared with what came of it. A topic that is deleted is rebuilt
at once, under its name and with another policy: what continues with the incarnation before shares nothing with it.
"""

from __future__ import annotations

from collections.abc import Callable

from compactor.maintenance.retention import Retention
from compactor.maintenance.truncation import truncate
from storage.environment import Environment
from storage.errors import (
    CompactorError,
    Conflict,
    Fenced,
    InvalidInput,
    LeaseHeld,
    NotFound,
    TopicNotFound,
    Unavailable,
)
from storage.failpoints import Failpoint
from tests.faults.simulation.compacting import Compacting
from tests.faults.simulation.model import TopicModel, require
from tests.faults.simulation.process import Process
from tests.faults.simulation.world import World


class Operating:
    """Events of operators."""

    def __init__(self, world: World, compacting: Compacting) -> None:
        self._world = world
        self._compacting = compacting

    def _any(self) -> TopicModel:
        """A topic; mostly one that has a run under way, if there is one: that run has to notice."""
        living = [item.model for item in self._compacting.running if item.model in self._world.topics]
        draw = self._world.random
        return draw.choice(living if living and draw.random() < 0.6 else self._world.topics)

    def trim(self, model: TopicModel | None = None) -> None:
        """Trim what the cleanup policy allows, or all before some offset, sometimes by force."""
        draw = self._world.random
        forced, before = draw.random() < 0.25, None
        model = model or draw.choice(self._world.topics)
        if model.cleanup != {"compact"} and draw.random() < 0.6:
            before = draw.randint(model.start, len(model.everything))
        message = f"trims{'' if before is None else f' before offset {before}'}{' by force' if forced else ''}"
        self._act(model, message, lambda process: self._trim(process, model, before, forced), 0.25)

    def _trim(self, process: Process, model: TopicModel, before: int | None, forced: bool) -> None:
        world = self._world
        retention = Retention(Environment(process.metadata, process.store, world.clock, world.log_directory))
        start = model.start
        model.forced = forced
        try:
            result = retention.trim(model.record, before, force=forced)
            world.observe()
        finally:
            model.forced = False
        if model.first > start:
            world.report.count("trimmed by force" if forced else "trimmed")
        if before is not None and forced and not result.tail_error and not process.preempted:
            require(model.start == max(start, before), f"{model.record.name} begins at {model.start}, not {before}")

    def truncate(self, model: TopicModel | None = None) -> None:
        """Everything goes, raw and compacted (C2)."""
        model = model or self._any()
        self._act(model, "truncates", lambda process: self._truncate(process, model), 0.3)

    def _truncate(self, process: Process, model: TopicModel) -> None:
        world = self._world
        noted: list[int] = []

        def note() -> None:
            noted.append(len(model.everything))
            model.truncate(len(model.everything), world.clock.now_ms())
            world.report.count("truncated")

        process.on_step[Failpoint.TRUNCATED] = note
        try:
            environment = Environment(process.metadata, process.store, world.clock, world.log_directory)
            (truncated,) = truncate(environment, [model.record])
        except Unavailable:
            snapshot = world.observer.topic_snapshot(model.record.id)
            is_cleared = snapshot.topic.start_offset > model.start or (model.serving and snapshot.compacted is None)
            if not noted and is_cleared:
                note()
            raise
        finally:
            del process.on_step[Failpoint.TRUNCATED]
        require(truncated.start_offset == noted[-1], f"{truncated} is the answer, and the end was {noted}")

    def delete(self, model: TopicModel | None = None) -> None:
        """The topic goes, and another one takes its name (S8)."""
        model = model or self._any()
        forced = self._world.random.random() < 0.7
        self._act(model, f"deletes{' by force' if forced else ''}", lambda item: self._delete(item, model, forced), 0.3)

    def _delete(self, process: Process, model: TopicModel, forced: bool) -> None:
        world = self._world

        def note() -> None:
            world.replace_topic(model)
            world.report.count("deleted")

        process.on_step[Failpoint.TOPIC_DELETED] = note
        try:
            process.metadata.tenancy.delete_topic(model.record.id, force=forced)
        except CompactorError:
            if model.deleted_at is None and world.observer.tenancy.deleted_topic(model.record.uid) is not None:
                note()
            raise
        finally:
            del process.on_step[Failpoint.TOPIC_DELETED]

    def pause(self, model: TopicModel | None = None) -> None:
        """Compaction is paused, resumed or aborted (S5)."""
        draw = self._world.random
        model = model or self._any()
        choice = draw.random()
        if model.paused and choice < 0.7:
            self._act(model, "resumes", lambda process: self._resume(process, model), 0.2)
        elif choice < 0.7:
            self._act(model, "pauses", lambda process: self._pause(process, model), 0.2)
        else:
            self._act(model, "aborts", lambda process: self._abort(process, model), 0.2)

    def _pause(self, process: Process, model: TopicModel) -> None:
        try:
            process.metadata.compaction_control.pause([model.record.id])
        finally:
            self._count_pauses(model, 1)

    def _abort(self, process: Process, model: TopicModel) -> None:
        model.stops += 1  # before: a publish in between would not be one that continues after it
        process.metadata.compaction_control.abort([model.record.id])
        self._world.report.count("aborted")

    def _resume(self, process: Process, model: TopicModel) -> None:
        try:
            process.metadata.compaction_control.resume([model.record.id])
        except Conflict as error:
            last = self._world.observer.runs.last(model.record.id)
            stopping = last is not None and f"a run of {model.record.name} was aborted" in str(error)
            require(stopping or process.preempted, f"{model.record.name} is paused {model.paused} times: {error}")
        finally:
            self._count_pauses(model, -1)

    def _count_pauses(self, model: TopicModel, change: int) -> None:
        """Check that the database has the requested state, or the old one where the answer was lost."""
        if model.deleted_at is not None:
            return
        pauses = self._world.observer.compaction_control.get(model.record.id).paused
        require(pauses in (model.paused, model.paused + change), f"{model.record.name} is paused {pauses} times")
        if pauses > model.paused:
            model.stops += 1
            self._world.report.count("paused")
        elif pauses < model.paused:
            self._world.report.count("resumed")
        model.paused = pauses

    def resume_all(self, model: TopicModel) -> None:
        """Nothing keeps the topic from being compacted."""
        while model.paused:
            self._world.observer.compaction_control.resume([model.record.id])
            model.paused -= 1

    def _act(self, model: TopicModel, what: str, action: Callable[[Process], None], faults: float) -> None:
        world = self._world
        free = world.free("o")
        if not free:
            return
        process = free[0]

        def act() -> None:
            before = process.faults
            try:
                action(process)
            except CompactorError as error:
                world.note(f"  {type(error).__name__}: {error}"[:150])
                message = f"{process.name} {what} {model.record.name}: {error!r}"
                if isinstance(error, LeaseHeld | Fenced | Conflict | InvalidInput):
                    return  # a writer or sealer has it, a cursor needs it, or it has changed meanwhile
                over = isinstance(error, TopicNotFound | NotFound) and model.deleted_at is not None
                require(over or (process.faults > before and isinstance(error, Unavailable)), message)

        world.run_as(process, f"{what} {model.record.name}", act, faults=faults)
