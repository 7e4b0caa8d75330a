"""A simulated process: its own connections to the one database and the one store, and a death like SIGKILL's.

A process that dies raises `Killed` out of the call that it is in, and out of every call to database and store that its
unwinding still makes: nothing is recorded, released or deleted any more, as if it had been killed. Its open runs and
reads are then closed, and the process is born again.

The objects of all processes live in one `Objects`: bytes in memory, dated by the simulation's clock. Each process
reaches them through `tests.faults.faulty_store`, so any call can fail, lose its answer, or come back cut or altered.

What is written down here of pins, attempts and cursor floors is what the checks go by, apart from the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import CompactorError, Fenced, ObjectDamaged, ObjectExists, ObjectMissing, TopicNotFound
from storage.failpoints import Failpoint
from storage.metadata.engine import Database
from storage.metadata.records import RUN_DEAD_MS, Attempt, AttemptKind, Pin, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.metadata.stores import AttemptStore, CursorStore, PinStore
from storage.objects.capability_check import CapabilityReport
from storage.objects.interface import ObjectInfo, ObjectStore, ObjectWriter, StoreLocation, check_range
from tests.faults.faulty_store import PREFIX, FaultyStore, Script
from tests.servers.cut_link import SqliteLink

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tests.faults.simulation.world import World

SCHEME = "sim"


class Killed(BaseException):
    """The process was ended; no BaseException of the code's own, so that no code handles it."""


class Objects:
    """Name to bytes and the time of writing; what all stores of a simulation see."""

    def __init__(self) -> None:
        self.stored: dict[str, tuple[bytes, int]] = {}

    def names(self) -> set[str]:
        return set(self.stored)


class MemoryStore(ObjectStore):
    """The objects as one process sees them; `process` None: as the simulation itself does."""

    preferred_read_bytes = 0

    def __init__(self, world: World, process: Process | None) -> None:
        self._world = world
        self._process = process

    @property
    def location(self) -> StoreLocation:
        return StoreLocation(f"{SCHEME}://{self._process.name if self._process else 'observer'}")

    def put(self, name: str, data: Buffer) -> None:
        stored = self._objects()
        if name in stored:
            raise ObjectExists(f"object {name} exists", "choose another name")
        stored[name] = (bytes(data), self._world.clock.now_ms())

    def create(self, name: str) -> ObjectWriter:
        return _MemoryWriter(name, self)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(name, start, length)
        data = self._find(name)
        end = len(data) if length is None else start + length
        if start > len(data) or end > len(data):
            raise ObjectDamaged(f"object {name} has {len(data)} bytes, fewer than {end}", "restore it")
        return data[start:end]

    def size(self, name: str) -> int:
        return len(self._find(name))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for name in sorted(name for name in self._objects() if name.startswith(prefix)):
            if name in self._objects():
                data, modified = self._objects()[name]
                yield ObjectInfo(name, len(data), modified)

    def delete(self, name: str) -> None:
        stored = self._objects()
        if self._process is not None and name in stored:
            self._world.before_delete(self._process, name)
        stored.pop(name, None)

    def check_capabilities(self) -> CapabilityReport:
        raise NotImplementedError

    def _find(self, name: str) -> bytes:
        item = self._objects().get(name)
        if item is None:
            raise ObjectMissing(f"object {name} does not exist", "restore it")
        return item[0]

    def _objects(self) -> dict[str, tuple[bytes, int]]:
        if self._process is not None:
            self._process.check_alive()
        return self._world.objects.stored


class _MemoryWriter(ObjectWriter):
    def __init__(self, name: str, store: MemoryStore) -> None:
        super().__init__(name)
        self._store = store
        self._data = bytearray()

    def _open(self) -> None:
        self._data.clear()

    def _append(self, view: memoryview) -> None:
        self._data += view

    def _commit(self) -> None:
        self._store.put(self.name, self._data)

    def _discard(self) -> None:
        return


class Heart:
    """A replacement of `storage.heartbeat.Heartbeat`: a process's beat, at a time that the simulation chooses."""

    def __init__(
        self,
        process: Process,
        beat: Callable[[], object],
        _seconds: float,
        on_fenced: Callable[[], object] = lambda: None,
    ) -> None:
        self._process = process
        self._beat = beat
        self._on_fenced = on_fenced

    def __enter__(self) -> None:
        self._process.hearts.append(self)

    def __exit__(self, *_: object) -> None:
        if self in self._process.hearts:
            self._process.hearts.remove(self)

    def beat(self) -> None:
        try:
            self._beat()
        except (Fenced, TopicNotFound):
            self.__exit__()
            self._on_fenced()
        except CompactorError:
            return


class Process:
    """One process. `dying`: it raises Killed wherever it calls; `steps`: how many it has come by in this event."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dying = False
        self.stalled = False
        """Whether its heart has stopped, though it works."""
        self.script = Script()
        self.metadata = WatchedMetadata(self)
        self.link = SqliteLink(self.metadata)
        self.store: ObjectStore = FaultyStore(MemoryStore(world, self), self.script)
        self.steps = 0
        self.cues: dict[int | Failpoint, Callable[[Failpoint], None]] = {}
        """What happens at the nth step of this event, or when a step is reached."""
        self.cued = 0
        """Faults that were put in, ever: who sees it unchanged had none."""
        self.last_attempt = ""
        self.floor: int | None = None
        self.preempted = False
        self.on_attempt: Callable[[Attempt], None] | None = None
        self.on_pin: Callable[[TopicSnapshot], None] | None = None
        self.on_snapshot: Callable[[], None] | None = None
        self.on_death: list[Callable[[], object]] = []
        self.on_step: dict[Failpoint, Callable[[], object]] = {}
        """What the simulation does where this process comes by a step."""
        self.hearts: list[Heart] = []
        self.left_log: dict[Path, bytes] | None = None
        """The log's files as they were when it died: what its unwinding did to them since is undone."""

    def close(self) -> None:
        """It is dead for good: nothing that it leaves open reaches the life that comes next."""
        self.bury()
        self.dying = True
        self.link.close()
        self.metadata.close()

    @property
    def faults(self) -> int:
        """Faults that this process has met or was dealt."""
        return self.cued + len(self.script.met)

    def check_alive(self) -> None:
        if self.dying:
            raise Killed(self.name)

    def die(self) -> None:
        """Raises Killed, now and at every further call."""
        if not self.dying:
            self.left_log = self.world.log_files()
        self.dying = True
        raise Killed(self.name)

    def bury(self) -> None:
        """Drop all that the process had open, so that it starts again with nothing."""
        self.dying = True
        for forget in self.on_death:
            with suppress(Killed):
                forget()
        self.metadata.forget_pins()
        self.on_death.clear()
        self.on_step.clear()
        self.hearts.clear()
        if self.left_log is not None:
            self.world.put_back(self.left_log)
            self.left_log = None
        self.calm()
        self.dying = self.stalled = False

    def beat(self) -> None:
        """Run the periodic work of the process."""
        for heart in list(self.hearts):
            heart.beat()

    def calm(self) -> None:
        """No fault is armed any more."""
        self.cued += len(self.script.met)
        self.script.begin()
        self.cues.clear()
        self.link.disarm()


class WatchedMetadata(MetadataStore):
    """A process's MetadataStore: every transaction needs a living process; the simulation takes notes."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.database_url, process.world.clock)
        for kind in ("read", "write", "snapshot"):
            setattr(self.database, kind, _alive(process, getattr(self.database, kind)))
        self.attempts = WatchedAttempts(self.database, process)
        self.cursors = WatchedCursors(self.database, process)
        self.own_pins: set[str] = set()
        """Ids."""
        self.pins = WatchedPins(self.database, process, self.own_pins)

    def forget_pins(self) -> None:
        """The process is dead: its pins stay as long as they last."""
        self.own_pins.clear()


class WatchedAttempts(AttemptStore):
    def __init__(self, database: Database, process: Process) -> None:
        super().__init__(database, process.world.clock, {}, RUN_DEAD_MS)
        self._process = process

    def begin(self, topic_id: int, kind: AttemptKind, holder: str) -> Attempt:
        attempt = super().begin(topic_id, kind, holder)
        self._process.last_attempt = attempt.attempt_id
        if self._process.on_attempt is not None:
            self._process.on_attempt(attempt)
        return attempt


class WatchedCursors(CursorStore):
    def __init__(self, database: Database, process: Process) -> None:
        super().__init__(database, process.world.clock, {}, RUN_DEAD_MS)
        self._process = process

    def slowest_compacted_reader_offset(self, topic_id: int) -> int | None:
        self._process.floor = super().slowest_compacted_reader_offset(topic_id)
        return self._process.floor


class WatchedPins(PinStore):
    def __init__(self, database: Database, process: Process, own: set[str]) -> None:
        super().__init__(database, process.world.clock, {}, RUN_DEAD_MS)
        self._process = process
        self._own = own

    def take(
        self, topic_id: int, holder: str, ttl_ms: int, ledger_id: int | None = None
    ) -> tuple[TopicSnapshot, Pin | None]:
        snapshot, pin = super().take(topic_id, holder, ttl_ms, ledger_id)
        pinned = snapshot.compacted
        if pin is not None:
            kept = self._process.world.observer.pins.gc_snapshot(topic_id).compacted
            (pinned,) = [item for item in kept if item.ledger_id == pin.ledger_id]
            self._process.world.sweep_pins(topic_id)
            self._process.world.pins[pin.pin_id] = pin
            self._own.add(pin.pin_id)
        if self._process.on_pin is not None:
            self._process.on_pin(replace(snapshot, compacted=pinned))
        return snapshot, pin

    def renew(self, pin: Pin, ttl_ms: int) -> Pin:
        renewed = super().renew(pin, ttl_ms)
        self._process.world.pins[pin.pin_id] = renewed
        return renewed

    def release(self, pin: Pin) -> None:
        if pin.pin_id not in self._own or self._process.dying:
            return  # a generator of a dead process is closed some time, and gives nothing back
        try:
            super().release(pin)
        finally:  # it may be gone though the answer was lost
            world = self._process.world
            if all(item.pin_id != pin.pin_id for item in world.observer.pins.gc_snapshot(pin.topic_id).pins):
                world.pins.pop(pin.pin_id, None)

    def delete_ledger_if_unpinned(self, topic_id: int, ledger_id: int, grace_ms: int) -> bool:
        collected = super().delete_ledger_if_unpinned(topic_id, ledger_id, grace_ms)
        if collected:
            self._process.world.after_collected(ledger_id)
        return collected


def _alive(process: Process, transaction: Callable[[], Any]) -> Callable[[], Any]:
    def begin() -> Any:
        process.check_alive()
        return transaction()

    return begin


def location_of(name: str) -> StoreLocation:
    """Return the location at which the tasks of a process find its store."""
    return StoreLocation(f"{PREFIX}{SCHEME}://{name}")
