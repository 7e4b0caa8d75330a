"""Garbage collection, and objects that are lost on purpose (properties 9 and 15).

What is deleted is checked object by object as it goes (`World.before_delete`). Here: a dry run deletes nothing and
tells what the real one then does, twice is once, and in the end nothing is left but what something refers to.
"""

from __future__ import annotations

from compactor.maintenance.garbage import CollectionResult, GarbageCollector
from storage.environment import Environment
from storage.errors import CompactorError, DataLoss, NotFound, Unavailable
from storage.ledger.manifest import read_manifest
from storage.ledger.names import STORE_UID
from tests.faults.simulation.compacting import Compacting
from tests.faults.simulation.model import TopicModel, require
from tests.faults.simulation.process import Process
from tests.faults.simulation.reading import Readers
from tests.faults.simulation.world import World

LONGEST_GRACE = 150_000
SKEW = 5_000


class Collecting:
    """Events of garbage collection, and of loss."""

    def __init__(self, world: World, compacting: Compacting, readers: Readers) -> None:
        self._world = world
        self._compacting = compacting
        self._readers = readers

    def collect(self, model: TopicModel | None = None, grace: int | None = None) -> None:
        """One collection of a topic, dry or not, or both."""
        world = self._world
        free = world.free("g")
        if not free:
            return
        model = model or world.random.choice(world.topics)
        grace = grace or world.random.choice([500, 40_000, LONGEST_GRACE])
        dry, twice = world.random.random() < 0.3, world.random.random() < 0.5
        world.run_as(
            free[0],
            f"collects garbage of {model.record.name}, grace {grace}{', after a dry run' if dry else ''}",
            lambda: self._collect(free[0], model, grace, dry, twice),
            faults=0.15,
        )

    def _collect(self, process: Process, model: TopicModel, grace: int, dry: bool, twice: bool) -> None:
        world = self._world
        faults = process.faults
        world.grace_ms, world.collecting_since = grace, world.clock.now_ms()
        collector = GarbageCollector(
            Environment(process.metadata, process.store, world.clock, world.log_directory), grace, SKEW
        )
        estimate: CollectionResult | None = None
        try:
            if dry:
                before = dict(world.objects.stored)
                estimate = collector.collect(model.record, dry_run=True)
                if not process.preempted:
                    require(world.objects.stored == before, "a dry run of garbage collection deleted something")
            result = collector.collect(model.record)
            undisturbed = not process.preempted and process.faults == faults
            if estimate is not None and undisturbed:
                answer = (estimate.objects, estimate.attempts_given_up, estimate.compacted_ledgers)
                did = (result.objects, result.attempts_given_up, result.compacted_ledgers)
                require(answer == did, f"a dry run foretold {answer}, and {did} came of it")
            world.note(f"  deleted {result.total.count}, gave up {result.attempts_given_up}")
            world.report.count("collected" if result.total.count else "nothing to collect")
            if twice and undisturbed:
                again = collector.collect(model.record)
                if not process.preempted:
                    require(again.total.count == 0, f"a second collection deleted {again.objects} more")
        except CompactorError as error:
            world.note(f"  {type(error).__name__}: {error}"[:150])
            lost = any(name in str(error) for name in world.lost)
            faulty = process.faults > faults
            if isinstance(error, DataLoss):
                require(lost or faulty, f"garbage collection of {model.record.name} failed: {error}")
            else:
                require(isinstance(error, Unavailable) and faulty, f"garbage collection failed: {error!r}")

    def lose(self) -> None:
        """R8: an object of the compacted ledger is lost; it is reported, raw reads continue, and there is a way out."""
        world = self._world
        model = world.random.choice(world.topics)
        if model.serving is None or world.depth:
            return
        ledger = model.serving
        compacted = world.observer.topic_snapshot(model.record.id).compacted
        assert compacted is not None
        parts = read_manifest(world.store, compacted.manifest).parts
        needed = {part.rows.stored.name for part in parts} | {part.deleted.name for part in parts if part.deleted}
        needed.add(compacted.manifest.name)
        name = world.random.choice(sorted(world.manifests[ledger]))
        world.lost[name] = world.objects.stored.pop(name)
        world.note(f"{name} is lost")
        self._check_loss(model, name, name in needed)
        if self._readers.open and world.random.random() < 0.5:
            self._readers.advance(self._readers.open[0], faults=0.0)
        if world.random.random() < 0.6:
            self._compacting.start(model, faults=0.0)
            for running in list(self._compacting.running):
                if running.model is model:
                    self._compacting.finish(running)
        life = model.life
        if model.serving == ledger and world.random.random() < 0.4:
            self._compacting.delete_cursor(model)
        if model.life == life:
            world.objects.stored[name] = world.lost.pop(name)
            world.note("it is restored")

    def _check_loss(self, model: TopicModel, name: str, needed: bool) -> None:
        topic = self._world.topic(model)
        try:
            delivered = list(topic.messages(read_compacted=True))
        except DataLoss as error:
            require(name in str(error), f"{name} is lost, and the error does not name it: {error}")
        else:
            require(not needed, f"{name} is lost, and a compacted read did not tell (R8)")
            require(
                delivered == model.readable(compacted=True),
                f"{name} is lost, and a compacted read gave something else (R8)",
            )
        require(list(topic.messages()) == model.raw, f"{name} is lost, and raw reads changed (R8)")

    def collect_everything(self, grace: int | None = None) -> None:
        """One collection of all topics, those that were deleted too, and a sweep of the log's files."""
        world = self._world
        free = world.free("g")
        if not free:
            return
        chosen = grace or world.random.choice([500, LONGEST_GRACE])
        world.run_as(free[0], "collects all garbage", lambda: self._collect_everything(free[0], chosen), faults=0.15)

    def _collect_everything(self, process: Process, grace: int) -> None:
        world = self._world
        faults = process.faults
        world.grace_ms, world.collecting_since = grace, world.clock.now_ms()
        collector = GarbageCollector(
            Environment(process.metadata, process.store, world.clock, world.log_directory), grace, SKEW
        )
        try:
            for result in collector.collect_all():
                message = f"garbage collection of {result.topic} failed: {result.error}"
                over = isinstance(result.error, NotFound) and result.topic_uid in {
                    item.record.uid for item in world.deleted
                }
                lost = any(name in str(result.error) for name in world.lost)
                require(result.error is None or over or lost or process.faults > faults, message)
                world.report.count(
                    "deleted topic collected" if result.topic_deleted and result.total.count else "collected all"
                )
            world.topic(world.topics[0], process).log_manager().remove_sealed_files()
        except CompactorError as error:
            world.note(f"  {type(error).__name__}: {error}"[:150])
            faulty = process.faults > faults
            require(isinstance(error, Unavailable | NotFound) and faulty, f"garbage collection failed: {error!r}")

    def collect_all(self) -> None:
        """When everything is over and aged, exactly what the topics refer to is left, of objects and of files."""
        world = self._world
        process = world.processes["g0"]
        for _ in range(2):  # first, attempts are abandoned; a grace time later, their remains are removed
            world.clock.advance(LONGEST_GRACE + SKEW + 1)
            for model in world.topics:
                world.run_as(
                    process,
                    "collects at the end",
                    lambda m=model: self._collect(process, m, LONGEST_GRACE, False, True),
                )
            world.run_as(process, "collects all", lambda: self._collect_everything(process, LONGEST_GRACE))
        referenced = set().union(*(world.serving_objects(model) for model in world.topics))
        remaining = world.objects.names() - {STORE_UID}
        require(remaining >= referenced, f"in the end these are missing: {sorted(referenced - remaining)}")
        require(remaining <= referenced, f"in the end these are left over: {sorted(remaining - referenced)}")
        for model in world.topics:
            after = world.observer.pins.gc_snapshot(model.record.id)
            require(len(after.compacted) == (model.serving is not None), "rows of retired generations are left")
            require(all(attempt.finished_at is not None for attempt in after.attempts), "attempts are left open")
        for model in world.topics:
            self._check_files(model)
        deleted = {model.record.uid for model in world.deleted}
        folders = {path.name for path in world.log_directory.topic_folders()}
        require(not folders & deleted, f"in the end there are log files of deleted topics: {folders & deleted}")

    def _check_files(self, model: TopicModel) -> None:
        """Only log files that no ledger replaces yet are left, and one at the topic's end if its writer died before
        it stored the row: the next writer takes it."""
        snapshot = self._world.observer.topic_snapshot(model.record.id)
        named = {segment.first_offset for segment in snapshot.segments}
        files = {int(path.name[:20]) for path in self._world.log_directory.topic_folder(model.record.uid).glob("*")}
        extra = {first for first in files - named if first < snapshot.topic.next_offset}
        require(not extra and named <= files, f"in the end there are the segments {files}, and {named} are named")
