"""The simulated world: one database, one store, one clock, some processes, and what must hold of them.

Everything runs in one thread, one event after the other. An event is something that one process does; where it comes
by a step (storage/failpoints.py) it may be cut off, meet a fault, or be interrupted by events of other processes. After
each event, and right after each publish, `observe` compares the database with the models. All chance comes from one
seeded generator, ids and nonces from another, and time from a ManualClock; so a seed always does the same.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import make_url

from compactor.run.plan import RunPolicies
from storage.entries.chunk_assembler import assemble_messages
from storage.environment import Environment
from storage.errors import CompactorError
from storage.failpoints import Failpoint
from storage.ledger import names
from storage.ledger.hashing import KeyHasher, Xxh3KeyHasher
from storage.ledger.manifest import read_manifest
from storage.log.directory import LogDirectory
from storage.log.segment_writer import SegmentWriter
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import COMPACTED_LEDGER_PROPERTY, GcSnapshot, Pin, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.positions import StartOffset
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.faults.engine.report import Report, Violation
from tests.faults.faulty_store import Fault, Kind
from tests.faults.simulation.model import RunNotes, TopicModel, require
from tests.faults.simulation.process import Heart, Killed, MemoryStore, Objects, Process
from tests.sealed import SEED, CollidingHasher
from tests.servers.cut_link import Cut

INSIDE = frozenset(
    {
        Failpoint.IMPORT_INSIDE_COMMIT,
        Failpoint.PUBLISH_INSIDE_TRANSACTION,
        Failpoint.ROLL_INSIDE_COMMIT,
        Failpoint.SEAL_INSIDE_COMMIT,
        Failpoint.TRIM_INSIDE_COMMIT,
        Failpoint.TRUNCATE_INSIDE_COMMIT,
        Failpoint.TOPIC_DELETE_INSIDE_COMMIT,
    }
)
"""Steps at which a transaction is open: no other process can write, so none runs then."""
STEPS = {
    "a": ("SEGMENT_FILE_CREATED", "SEGMENT_OPENED", "ENTRIES_", "ROLL_", "SEGMENT_ROLLED"),
    "s": ("SEAL_", "SEGMENT_SEALED", "SEGMENT_F", "IMPORT_ROWS", "ROLL_"),
    "w": ("IMPORT_",),
    "c": ("RUN_", "PHASE_", "MANIFEST_", "PUBLISH_"),
    "r": ("PIN_",),
    "g": ("GC_", "TRIM_FORGOTTEN"),
    "o": ("TRIM_MARKED", "TRIM_INSIDE", "TRUNCATE", "TOPIC_DELETE", "ROLL_", "SEAL_"),
}
"""By the first letter of a process's name, how the steps that it may come by begin."""
COMMITS = {"w": Failpoint.IMPORT_BEFORE_COMMIT, "c": Failpoint.PUBLISH_BEFORE_TRANSACTION}
"""The last step before the COMMIT that matters most."""
FAULTS = [Kind.FAIL, Kind.FULL, Kind.LOST, Kind.TRUNCATED, Kind.ALTERED]
CLEANUP = [frozenset(item) for item in ((), ("compact",), ("compact",), ("delete",), ("compact", "delete"))]
DELETE_DELAY_MS = 60_000
LOOKED_AT = frozenset({Failpoint.PUBLISH_AFTER_COMMIT, Failpoint.TRIM_MARKED, Failpoint.TRUNCATE_INSIDE_COMMIT})
"""Right behind what changes the models, or before it, they are compared."""


class World:
    """`random` decides everything; `depth` 1: inside an interrupted event."""

    def __init__(self, seed: int, database_url: str, folder: Path, report: Report) -> None:
        self.folder = folder
        self.report = report
        self.log_directory = LogDirectory(folder / "log")
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.database_url = database_url
        self.objects = Objects()
        self.lost: dict[str, tuple[bytes, int]] = {}
        """Objects that were removed on purpose."""
        self.pins: dict[str, Pin] = {}
        self.manifests: dict[int, set[str]] = {}
        """By compacted ledger, the objects that it needs, its manifest's among them."""
        self.grace_ms = 0
        self.collecting_since = 0
        self.failed: Violation | None = None
        self.others: Callable[[], None] = lambda: None
        """Lets another process have an event; set by the simulation."""
        self.processes = {
            name: Process(self, name)
            for name in ("w0", "w1", "a0", "a1", "s0", "s1", "c0", "c1", "c2", "r0", "r1", "g0", "o0")
        }
        self.observer = MetadataStore(database_url, self.clock)
        self._commits = _Commits(database_url)
        self._observed = -1
        self._references: dict[int, tuple[int, GcSnapshot]] = {}
        self.store = MemoryStore(self, None)
        colliding = self.random.random() < 0.2
        self.hasher: KeyHasher = CollidingHasher() if colliding else Xxh3KeyHasher(SEED)
        self.topics = [
            self.make_topic(TopicName.parse(f"simulated-{number}")) for number in range(self.random.choice([1, 1, 2]))
        ]
        self.deleted: list[TopicModel] = []
        """Incarnations that are over."""
        require(all(model.record.next_offset == 0 for model in self.topics), "give a fresh database")
        self._stack: list[Process] = []

    @property
    def depth(self) -> int:
        return len(self._stack)

    def close(self) -> None:
        for process in self.processes.values():
            process.close()
        self.observer.close()
        self._commits.close()

    def topic(self, model: TopicModel, process: Process | None = None) -> Topic:
        """The topic as a process sees it; None: as the simulation does."""
        metadata, store = (process.metadata, process.store) if process else (self.observer, self.store)
        return Topic(Environment(metadata, store, self.clock, self.log_directory), model.record, self.hasher)

    def noting_writers(self) -> Callable[..., None]:
        """SegmentWriter.__init__, which lets the process that makes one give its file up when it dies."""
        created = SegmentWriter.__init__

        def noting(writer: SegmentWriter, *arguments: Any, **options: Any) -> None:
            created(writer, *arguments, **options)
            if self._stack:
                self._stack[-1].on_death.append(writer.release)

        return noting

    def heart(self, *arguments: Any) -> Heart:
        """A heart of the process that is at work."""
        return Heart(self._stack[-1], *arguments)

    def beat(self) -> None:
        """The hearts of all processes beat, but of those that are in the middle of an event, or have stopped."""
        for process in self.processes.values():
            if process.hearts and not process.stalled and process not in self._stack:
                self.run_as(process, "beats", process.beat)

    def log_files(self) -> dict[Path, bytes]:
        """Every file of the log."""
        return {path: path.read_bytes() for path in self.log_directory.path.rglob("*") if path.is_file()}

    def put_back(self, files: dict[Path, bytes]) -> None:
        """Make the log's files what they were; those that are right stay as they are."""
        now = self.log_files()
        for path in now.keys() - files.keys():
            path.unlink()
        for path, data in files.items():
            if now.get(path) != data:
                path.write_bytes(data)

    def free(self, kind: str) -> list[Process]:
        """The processes of a kind (the first letter of their names) that are not in the middle of an event."""
        return [
            process for name, process in self.processes.items() if name.startswith(kind) and process not in self._stack
        ]

    def note(self, what: str) -> None:
        """Add a line to the report."""
        self.report.note(f"{'    ' * self.depth}{what.replace(str(self.folder), '…')}")

    def violated(self, what: str) -> None:
        """Raises Violation, and remembers it in case somebody holds it up."""
        self.failed = self.failed or Violation(what)
        raise self.failed

    @property
    def is_importing(self) -> bool:
        """Return whether an import is under way: the model learns of its messages when it ends."""
        return any(process.name.startswith("w") for process in self._stack)

    def run_as(self, process: Process, what: str, action: Callable[[], object], faults: float = 0.0) -> bool:
        """An event of a process, cut off or interrupted at steps by chance; False: the process died of it."""
        self.note(f"{process.name}: {what}")
        process.steps = 0
        process.preempted = False
        if self.random.random() < faults:
            self._deal(process)
        self._stack.append(process)
        try:
            action()
            survived = True
        except Killed:
            self.report.count("killed")
            self.note("killed")
            survived = False
        finally:
            self._stack.pop()
            if self.failed:
                raise self.failed
        if survived:
            process.calm()
        else:
            process.bury()
        self.observe()
        return survived

    def _deal(self, process: Process) -> None:
        """Something goes wrong, or comes between, at a step or a call to the store."""
        choice = self.random.random()
        at: int | Failpoint = self.random.choice([1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 28])
        if self.random.random() < 0.5:
            at = self.random.choice([step for step in Failpoint if step.name.startswith(STEPS[process.name[0]])])
        if choice < 0.25:
            process.cues[at] = lambda step: self._cue(process, "dies", step, process.die)
        elif choice < 0.5:
            cut = self.random.choice([Cut.BEFORE, Cut.AFTER, Cut.AFTER])
            if self.random.random() < 0.5:
                at = COMMITS.get(process.name[0], at)
            if urlsplit(self.database_url).scheme.startswith("sqlite"):
                process.cues[at] = lambda step: self._cue(
                    process, f"COMMIT {cut.name}", step, lambda: process.link.cut(cut)
                )
        elif choice < 0.75 and not self.depth:
            process.cues[at] = lambda step: self._interrupt(process, step)
        else:
            kind = self.random.choice(FAULTS)
            operation = (
                "get" if kind in (Kind.TRUNCATED, Kind.ALTERED) else self.random.choice(["put", "get", "delete"])
            )
            fault = Fault(kind, operation, nth=self.random.randint(1, 25), times=self.random.choice([1, 1, 3]))
            self.note(f"call {fault.nth} ({fault.times}) of {operation}: {kind.name}")
            process.script.begin(fault)

    def _cue(self, process: Process, what: str, step: Failpoint, action: Callable[[], object]) -> None:
        process.cued += 1
        self.report.count(what)
        self.note(f"{process.name} {what} at {step.name}")
        action()

    def _interrupt(self, process: Process, step: Failpoint) -> None:
        if step in INSIDE:
            process.cues[process.steps + 1] = lambda later: self._interrupt(process, later)
            return
        self.report.count("interrupted")
        self.note(f"{process.name} is interrupted at {step.name}")
        for _ in range(self.random.randint(1, 3)):
            process.preempted = True
            self.others()

    def __call__(self, step: Failpoint) -> None:
        """Hears of every step."""
        if not self._stack:
            return
        process = self._stack[-1]
        process.check_alive()
        if step in LOOKED_AT:
            self.observe()
        if step in process.on_step:
            process.on_step[step]()
        if step is Failpoint.RUN_SNAPSHOT_TAKEN and process.on_snapshot is not None:
            process.on_snapshot()
        process.steps += 1
        for at in (process.steps, step):
            cue = process.cues.pop(at, None)
            if cue is not None:
                cue(step)

    def note_run(self, process: Process, model: TopicModel, run_id: int) -> None:
        """The run has just taken its snapshot."""
        process.floor = None
        self.observe()
        model.notes[run_id] = RunNotes(
            self.observer.topic_snapshot(model.record.id), model.life, model.first, model.stops
        )

    def observe(self) -> None:
        """Compare the database with the models, and take in what is new. Properties 1, 5, 8, 17, 18."""
        version = self._commits.seen()
        changed, self._observed = version != self._observed, version
        try:
            for model in self.topics:
                if not changed and not model.maybe:
                    continue
                self._observe(model, self.observer.topic_snapshot(model.record.id))
        except (Violation, CompactorError) as error:
            self.violated(str(error))

    def _observe(self, model: TopicModel, snapshot: TopicSnapshot) -> None:
        self._find_what_was_left(model)
        cursors = self.observer.cursors.of_topic(model.record.id)
        model.absorb(snapshot.topic, snapshot.ledgers, cursors, self.clock.now_ms())
        compacted, cursor = snapshot.compacted, snapshot.cursor
        name = model.record.name
        if compacted is None:
            require(model.serving is None, f"{name}: compacted ledger {model.serving} serves no more")
            pointer = cursor.properties.get(COMPACTED_LEDGER_PROPERTY) if cursor else None
            require(pointer is None, f"{name}: the cursor points to {pointer}, and nothing serves")
            return
        if compacted.ledger_id != model.serving:
            (run,) = [
                run
                for run in self.observer.runs.of_topic(model.record.id, 1000)
                if run.compacted_ledger_id == compacted.ledger_id
            ] or [None]
            if run is None:
                raise Violation(f"{name}: compacted ledger {compacted.ledger_id} serves, and no run published it")
            model.check_publish(snapshot, run)
            self.note(f"published {compacted.ledger_id} (generation {compacted.generation})")
            manifest = read_manifest(self.store, compacted.manifest)
            self.manifests[compacted.ledger_id] = manifest.object_names | {compacted.manifest.name}
        require(compacted.horizon.offset == model.horizon, f"{name}: the horizon moved without a publish (A4)")
        require(cursor is not None, f"{name}: {compacted.ledger_id} serves without a cursor (A2)")
        assert cursor is not None
        expected = {**model.properties, COMPACTED_LEDGER_PROPERTY: str(compacted.ledger_id)}
        require(dict(cursor.properties) == expected, f"{name}: the cursor's properties are {cursor.properties} (A2)")
        require(cursor.mark_delete == compacted.horizon, f"{name}: the cursor is at {cursor.mark_delete} (A1)")

    def _find_what_was_left(self, model: TopicModel) -> None:
        """L2: what a dead writer wrote and did not tell is there, whole and where it was put, or it is not."""
        if not model.maybe:
            return
        delivered = list(
            assemble_messages(self.topic(model).read(StartOffset(len(model.everything))), model.record.name.partition)
        )
        count = len(model.maybe)
        if delivered and [(m.key, m.payload) for m in delivered[:count]] == model.maybe:
            self.report.count("surfaced")
            model.appended(delivered[:count])
            model.maybe = []

    def serving_objects(self, model: TopicModel) -> set[str]:
        """Return the names of the objects of raw ledgers and of the compacted ledger that serves."""
        objects = {name for ledger in model.ledgers for name in (ledger.rows.name, ledger.index.name)}
        return objects | (self.manifests[model.serving] if model.serving is not None else set())

    def sweep_pins(self, topic_id: int) -> None:
        """Pins that are over are over for good, though the clock may go back."""
        now = self.clock.now_ms()
        self.pins = {i: pin for i, pin in self.pins.items() if pin.topic_id != topic_id or pin.expires_at > now}

    def after_collected(self, ledger_id: int) -> None:
        """The row of a retired compacted ledger was removed: no reader had pinned it (A3)."""
        for pin in [pin for pin in self.pins.values() if pin.ledger_id == ledger_id]:
            if pin.expires_at > self.clock.now_ms():
                self.violated(f"compacted ledger {ledger_id} is collected, and {pin.owner} has pinned it (A3)")
            del self.pins[pin.pin_id]

    def before_delete(self, process: Process, name: str) -> None:
        """Property 9: an object that a row, a manifest or a live pin leads to, or that may still be named, stays."""
        parsed = names.parse(name)
        everybody = (*self.topics, *self.deleted)
        (model,) = [model for model in everybody if name.startswith(names.topic_prefix(model.record.uid))]
        assert parsed is not None
        message = f"{process.name} deletes {name}"
        if model.deleted_at is not None:
            self._check_delay(message, model.deleted_at)
            return
        references = self._references_of(model)
        if name in self.serving_objects(model):
            self.violated(f"{message}, which the topic refers to")
        for compacted in references.compacted:
            if name in self.manifests.get(compacted.ledger_id, set()):
                self.violated(f"{message}, which compacted ledger {compacted.ledger_id} refers to")
        for pin in self.pins.values():
            if pin.expires_at > self.clock.now_ms() and name in self.manifests.get(pin.ledger_id, set()):
                self.violated(
                    f"{message}, which compacted ledger {pin.ledger_id} refers to, and {pin.owner} has pinned"
                )
        if not process.name.startswith("g"):
            return
        if name in model.trimmed:
            self._check_delay(message, model.trimmed[name])
            return
        for attempt in references.attempts:
            if attempt.attempt_id != parsed.attempt_id:
                continue
            if attempt.finished_at is None:
                self.violated(f"{message}, whose attempt is not finished")
            elif attempt.finished_at > max(self.clock.now_ms(), self.collecting_since) - self.grace_ms:
                self.violated(f"{message}, whose attempt was finished less than the grace time ago")

    def _check_delay(self, message: str, marked_at: int) -> None:
        """C3: a reader of what was marked as deleted may finish."""
        if marked_at > max(self.clock.now_ms(), self.collecting_since) - DELETE_DELAY_MS:
            self.violated(f"{message}, which was marked as deleted less than {DELETE_DELAY_MS} ms ago")

    def _references_of(self, model: TopicModel) -> GcSnapshot:
        version = self._commits.seen()
        if self._references.get(model.record.id, (-1, None))[0] != version:
            self._references[model.record.id] = version, self.observer.pins.gc_snapshot(model.record.id)
        return self._references[model.record.id][1]

    def make_topic(self, name: TopicName) -> TopicModel:
        """A new incarnation of a topic, with a cleanup policy that stays."""
        record = self.observer.tenancy.ensure_topic(name)
        cleanup = self.random.choice(CLEANUP)
        self.observer.policies.change([topic_scope(record)], {"cleanup.policy": sorted(cleanup)})
        self.observer.policies.change([topic_scope(record)], {"file.delete.delay.ms": DELETE_DELAY_MS})
        return TopicModel(record, by_event=self.random.random() < 0.2, cleanup=cleanup)

    def replace_topic(self, model: TopicModel) -> None:
        """The topic was deleted: another one takes its name (S8)."""
        model.deleted_at = self.clock.now_ms()
        self.deleted.append(model)
        self.topics[self.topics.index(model)] = self.make_topic(model.record.name)

    def model_of(self, topic_id: int) -> TopicModel:
        """The incarnation with that id."""
        (model,) = [model for model in (*self.topics, *self.deleted) if model.record.id == topic_id]
        return model

    def draw_policies(self, model: TopicModel) -> RunPolicies:
        draw = self.random.choice
        return RunPolicies(
            retain_null_key=draw([False, True]),
            tombstone_retention_ms=draw([0, 0, 15, 60, 40_000, 200_000]),
            tombstones_wait_for_cursors=draw([False, False, True]),
            key_ttl_ms=draw([None, None, None, 70, 100_000]),
            min_lag_ms=draw([0, 0, 10, 20_000]),
            event_time_order=model.by_event and draw([False, True, True]),
            event_time_max_lateness_ms=draw([10, 60_000, 10_000_000]),
        )


class _Commits:
    """Tells whether anything was committed to the database: a number that is another one then.

    SQLite has such a number, of all other connections; of another database each look counts as a change.
    """

    def __init__(self, database_url: str) -> None:
        url = make_url(database_url)
        self._connection = sqlite3.connect(url.database) if url.drivername == "sqlite" and url.database else None
        self._looks = 0

    def seen(self) -> int:
        if self._connection is None:
            self._looks += 1
            return self._looks
        ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
        return int(version)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
