"""Appends to the log, by processes that may die in the middle; rolling, sealing and sweeping by others.

A writer's event is one life of a `TopicLog`: it takes the lease, recovers what the last one left, appends, sometimes
rolls, and gives the topic back, or dies. Other writers keep a log open over many events, and may lose their lease
meanwhile. Acknowledged entries go into the model at once. Entries without an answer may appear later (L2), and no
others may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from storage.entries.encode import encode_batch, encode_message
from storage.errors import CompactorError, Fenced, LeaseHeld, NotFound, TopicNotFound, Unavailable
from storage.ledger.rows import CompressionType
from storage.log.segment import AppendResult
from storage.log.topic_log import TopicLog
from storage.model import Message, MessageId
from tests.faults.simulation.model import TopicModel, require
from tests.faults.simulation.process import Process
from tests.faults.simulation.world import World
from tests.faults.simulation.writing import KEYS
from tests.workbench import content

Keep = Callable[[Process, TopicModel], object]
Pairs = list[tuple[bytes | None, bytes | None]]


class Appending:
    """Events of the log."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[str, tuple[TopicModel, TopicLog]] = {}
        """By process, the log that it keeps open."""

    def append_some(self, model: TopicModel | None = None) -> None:
        """One writer's life."""
        world = self._world
        free = [item for item in world.free("a") if item.name not in self._open]
        if not free or world.is_importing:  # the model would not know which of the two came first
            return
        process, model = world.random.choice(free), model or world.random.choice(world.topics)
        entries = [self._pairs() for _ in range(world.random.randint(1, 5))]
        rolls = [world.random.random() < 0.25 for _ in entries]
        world.run_as(
            process,
            f"appends {len(entries)} entries to {model.record.name}",
            lambda: self._append(process, model, entries, rolls),
            faults=0.3,
        )

    def _pairs(self) -> Pairs:
        draw = self._world.random
        count = draw.choice([1, 1, 2, 4])
        return [
            (
                None if draw.random() < 0.1 else draw.choice(KEYS),
                None if draw.random() < 0.2 else draw.randbytes(draw.choice([1, 12, 60])),
            )
            for _ in range(count)
        ]

    def _append(self, process: Process, model: TopicModel, entries: list[Pairs], rolls: list[bool]) -> None:
        with self._appending(process, model), self._world.topic(model, process).append_log(0) as log:
            self._append_all(model, log, entries, rolls)

    def _append_all(self, model: TopicModel, log: TopicLog, entries: list[Pairs], rolls: list[bool]) -> None:
        world = self._world
        for pairs, rolled in zip(entries, rolls, strict=True):
            now = world.clock.now_ms()
            if model.maybe and model.deleted_at is None:
                world.observe()  # it is found, now that the segment is recovered, or it never will be
            model.maybe = list(pairs)
            try:
                answer = log.append(self._entry(pairs, now))
            except CompactorError:
                model.maybe = []  # an append that fails was refused: only a disk that fails leaves it open
                raise
            model.maybe = []
            model.appended(_messages(answer, pairs, now))
            world.report.count("appended")
            if rolled:
                log.roll()

    @contextmanager
    def _appending(self, process: Process, model: TopicModel) -> Iterator[None]:
        """Allow the errors that an append may meet: another writer has the topic or took its lease, or a fault."""
        before = process.faults
        try:
            yield
        except CompactorError as error:
            self._world.note(f"  {type(error).__name__}: {error}"[:150])
            if isinstance(error, LeaseHeld | Fenced):
                return
            over = model.deleted_at is not None and isinstance(error, TopicNotFound)
            faulty = process.faults > before and isinstance(error, Unavailable)
            require(over or faulty, f"{model.record.name}: an append failed: {error!r}")

    def open_log(self, model: TopicModel | None = None) -> None:
        """A writer that stays: it holds the lease, and renews it as its heart beats, until it loses it or goes."""
        world = self._world
        free = [item for item in world.free("a") if item.name not in self._open]
        if not free or world.is_importing:
            return
        process, model = world.random.choice(free), model or world.random.choice(world.topics)
        world.run_as(process, f"opens the log of {model.record.name}", lambda: self._open_log(process, model), 0.1)

    def _open_log(self, process: Process, model: TopicModel) -> None:
        with self._appending(process, model), ExitStack() as stack:
            log = stack.enter_context(self._world.topic(model, process).append_log(0))
            stack.pop_all()
            self._open[process.name] = model, log
            process.on_death.append(lambda: self._forget(process, log))

    def _forget(self, process: Process, log: TopicLog) -> None:
        """It is dead. Closed now, as it reaches nothing: Python would close it later, and give its lease back."""
        self._open.pop(process.name, None)
        log.__exit__(None, None, None)

    def append_to_open(self) -> None:
        """It appends, although its lease may have gone to another meanwhile (S8: or its topic)."""
        world = self._world
        free = [item for item in world.free("a") if item.name in self._open]
        if not free or world.is_importing:
            return
        process = world.random.choice(free)
        model, log = self._open[process.name]
        entries = [self._pairs() for _ in range(world.random.randint(1, 3))]
        rolls = [world.random.random() < 0.3 for _ in entries]

        def append() -> None:
            with self._appending(process, model):
                try:
                    self._append_all(model, log, entries, rolls)
                except Fenced:
                    world.report.count("lease lost")
                    self._open.pop(process.name, None)
                    log.__exit__(None, None, None)
                    raise

        world.run_as(process, f"appends {len(entries)} entries to the open {model.record.name}", append, 0.25)

    def close_log(self) -> None:
        """It goes, and leaves the segment open for the next one."""
        free = [item for item in self._world.free("a") if item.name in self._open]
        if not free:
            return
        process = self._world.random.choice(free)
        model, log = self._open.pop(process.name)

        def close() -> None:
            with self._appending(process, model):
                log.__exit__(None, None, None)

        self._world.run_as(process, f"closes the log of {model.record.name}", close)

    def _entry(self, pairs: Pairs, now: int) -> bytes:
        if len(pairs) == 1:
            key, payload = pairs[0]
            return encode_message(key, payload, producer="p", sequence_id=0, publish_time=now, event_time=None)
        codec = self._world.random.choice(list(CompressionType))
        return encode_batch(content(*pairs), producer="p", first_sequence_id=0, publish_time=now, codec=codec)

    def roll(self) -> None:
        """Somebody who does not write closes the segment that a writer left open."""
        self._keep("rolls", lambda process, model: self._world.topic(model, process).log_manager().roll(model.record))

    def seal(self, model: TopicModel | None = None) -> None:
        """Rolled segments become ledgers."""
        self._keep(
            "seals",
            lambda process, model: list(self._world.topic(model, process).log_manager().seal(model.record)),
            model,
        )

    def sweep(self) -> None:
        """Files that ledgers have taken the place of go."""
        self._keep(
            "sweeps", lambda process, model: self._world.topic(model, process).log_manager().remove_sealed_files()
        )

    def _keep(self, what: str, action: Keep, model: TopicModel | None = None) -> None:
        world = self._world
        free = world.free("s")
        if not free:
            return
        process, chosen = world.random.choice(free), model or world.random.choice(world.topics)

        def act() -> None:
            before = process.faults
            try:
                action(process, chosen)
                world.report.count(what)
            except CompactorError as error:
                world.note(f"  {type(error).__name__}: {error}"[:150])
                if isinstance(error, LeaseHeld | Fenced):
                    return
                over = isinstance(error, TopicNotFound) and chosen.deleted_at is not None
                faulty = process.faults > before and isinstance(error, Unavailable | NotFound)
                require(over or faulty, f"{process.name} {what}: {error!r}")

        world.run_as(process, f"{what} {chosen.record.name}", act, faults=0.2)


def _messages(result: AppendResult, pairs: Pairs, now: int) -> list[Message]:
    """Return the messages that readers must receive of an acknowledged entry."""
    first = result.first.message_id
    return [
        Message(
            message_id=MessageId(first.ledger_id, first.entry_id, first.partition, n if first.batch_index >= 0 else -1),
            offset=result.first.offset + n,
            key=key,
            payload=payload,
            publish_time=now,
            event_time=None,
            properties={},
        )
        for n, (key, payload) in enumerate(pairs)
    ]
