"""A whole Compactor for tests: database, store, clock and engine, wired as `api/components.py` does it."""

from __future__ import annotations

import atexit
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from sqlalchemy import insert

from compactor.batch import Outcome
from compactor.engines.engine import Engine, InProcessEngine
from compactor.run.plan import RunPolicies, Sizing
from compactor.two_phase import TwoPhaseCompactor
from storage.environment import Environment
from storage.ledger.hashing import KeyHasher
from storage.ledger.manifest import Manifest, read_manifest
from storage.log.bulk_append import INPUT_SCHEMA
from storage.log.directory import LogDirectory
from storage.log.segment import SegmentPaths
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import CompactedLedgerRecord
from storage.metadata.store import MetadataStore
from storage.metadata.tables import METADATA, policies, store_bindings, store_trials
from storage.model import EARLIEST, Message, MessageId, TopicName
from storage.objects.local import LocalStore
from storage.objects.registry import open_store
from storage.store_identity import StoreIdentity
from storage.topic import Topic
from tests.clocks import ManualClock

HASH_SEED = 1


def ensure_topic(environment: Environment, name: TopicName) -> Topic:
    """A topic, made if need be."""
    return Topic(environment, environment.metadata.tenancy.ensure_topic(name))


def hashing_alike() -> AbstractContextManager[object]:
    """Topics made inside hash their keys alike in each run: what is in which hash range, and so how many objects a
    compaction writes, depends on it."""
    return patch("storage.metadata.topics.secrets.randbits", return_value=HASH_SEED)


TINY = Sizing(parallelism=3, range_records=4, part_bytes=400, small_range_records=1, small_part_bytes=1)
"""Sizes at which a handful of messages has several hash ranges and parts."""


def all_ids(bench: Workbench) -> list[int]:
    """Return the ids of all topics."""
    return [topic.id for topic in bench.metadata.topics.all()]


def content(
    *messages: tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, int | None],
    time: str = "publish_time",
) -> pa.Table:
    """Key and payload of each message, as a bulk append takes them; a third value is the time of that name."""
    columns = ("key", "payload", time)
    return pa.Table.from_pylist([dict(zip(columns, message, strict=False)) for message in messages], INPUT_SCHEMA)


class HookedEngine(InProcessEngine):
    """An engine that calls `before` with the number of each job, counted from 1, and gives its answers to `after`.

    A job is what one call of `run` carries out; `jobs` has the number of tasks of each, `weights` theirs.
    """

    def __init__(
        self,
        before: Callable[[int], object] = lambda job: None,
        after: Callable[[list[Any]], list[Any]] = lambda answers: answers,
    ) -> None:
        self.jobs: list[int] = []
        self.weights: list[Sequence[float] | None] = []
        self.cancelled = threading.Event()
        self._before, self._after = before, after

    def run(
        self, count: int, task: Callable[[int], Any], on_progress: Callable[[int], None], weights: Any = None
    ) -> list[Any]:
        self.jobs.append(count)
        self.weights.append(weights)
        self._before(len(self.jobs))
        return self._after(super().run(count, task, on_progress, weights))

    def cancel(self) -> None:
        self.cancelled.set()
        super().cancel()


def acting_in(job: int, action: Callable[[], object]) -> HookedEngine:
    """An engine that does something before that job."""
    return HookedEngine(lambda number: action() if number == job else None)


def failing_in(job: int, error: BaseException) -> HookedEngine:
    """An engine that gives up that job."""

    def fail() -> None:
        raise error

    return acting_in(job, fail)


@dataclass(frozen=True)
class Workbench(Environment):
    """An environment with an engine; `engine` and `sizing` decide how compactions run."""

    clock: ManualClock
    engine: Engine = field(default_factory=InProcessEngine)
    sizing: Sizing | None = None

    @classmethod
    def embedded(
        cls,
        folder: Path,
        engine: Engine | None = None,
        sizing: Sizing | None = TINY,
        clock: ManualClock | None = None,
    ) -> Workbench:
        """SQLite and a local store below `folder`, a clock that stands still, and messages of any time."""
        clock = clock or ManualClock()
        metadata = MetadataStore(f"sqlite:///{folder / 'metadata.db'}", clock, {"message.timestamp.after.max.ms": None})
        metadata.upgrade()
        store = open_store((folder / "objects").as_uri())
        StoreIdentity(metadata, store).check_or_bind()
        return cls(metadata, store, clock, LogDirectory(folder / "log"), engine or InProcessEngine(), sizing)

    def built(self, build: Callable[[Workbench], Topic]) -> Topic:
        """Return the topic that `build` makes on this bench, which is embedded: by a copy of its files.

        `build` makes them once in this process, on a bench of its own. A compaction and two imports take 50 ms of CPU,
        a copy takes 5.

        `build` does the same each time and keeps nothing in memory. On a bench whose database has something already, or
        with another engine, whose jobs a test counts, it is called each time.
        """
        if type(self.engine) is not InProcessEngine or _rows(self.metadata) != _rows_of_new():
            return build(self)
        key = build, self.sizing, self.clock.now_ms()
        template = _TEMPLATES.get(key)
        if template is None:
            template = _TEMPLATES[key] = _Template.of(*key)
        self.metadata.close()  # no process has its file open then
        template.files.copied_to(_Files.of(self))
        self.log.__dict__.pop("uid", None)
        self.clock.advance(template.takes_ms)
        return self.topic(template.topic)

    def topic(self, name: TopicName | str = "t", hasher: KeyHasher | None = None) -> Topic:
        """A topic, made if need be. `hashing_alike` says how its keys are hashed the same in each run."""
        record = self.metadata.tenancy.ensure_topic(TopicName.parse(str(name)))
        return Topic(self, record, hasher)

    def advance(self, milliseconds: int) -> None:
        """Let time pass, under a clock that stands still by itself."""
        self.clock.advance(milliseconds)

    def files(self, topic: Topic, first_offset: int = 0) -> SegmentPaths:
        """The files of one of the topic's segments."""
        return SegmentPaths(self.folder(topic), first_offset)

    def folder(self, topic: Topic) -> Path:
        """The folder of the topic's segments."""
        return self.log.topic_folder(topic.record.uid)

    def segment_states(self, topic: Topic) -> list[str]:
        """The state of each of the topic's segments, in order."""
        return [segment.state.value for segment in self.metadata.segments.of_topic(topic.record.id)]

    def append(self, topic: Topic, tables: Iterable[pa.Table], ledger_bytes: int = 1 << 20) -> list[Message]:
        """Append as one import; the messages as they can now be read raw."""
        appended = topic.bulk_append(ledger_bytes=ledger_bytes, workers=2).append(tables)
        first = appended.ledgers[0].first_offset if appended.ledgers else 0
        return [message for message in topic.messages() if message.offset >= first] if appended.ledgers else []

    def compactor(self, hasher: KeyHasher | None = None) -> TwoPhaseCompactor:
        plain = TwoPhaseCompactor(self, self.engine, sizing=self.sizing)
        return plain if hasher is None else replace(plain, hasher=lambda _: hasher)

    def compact(self, topic: Topic, retain_null_key: bool = False) -> Outcome:
        """One run."""
        return self.compactor().compact(topic.name, RunPolicies(retain_null_key=retain_null_key))

    def manifest(self, topic: Topic) -> Manifest:
        """That of the compacted ledger that serves."""
        return read_manifest(self.store, compacted_ledger(topic).manifest)

    def set_policies(self, topic: Topic, **values: object) -> None:
        """Policies of the topic itself, by their names."""
        for name, value in values.items():
            self.metadata.policies.change([topic_scope(topic.record)], {name: value})

    def with_sizing(self, sizing: Sizing | None) -> Workbench:
        return replace(self, sizing=sizing)


@dataclass(frozen=True)
class _Files:
    """The database, the objects and the log of an embedded bench."""

    database: Path
    objects: Path
    log: Path

    @classmethod
    def of(cls, bench: Workbench) -> _Files:
        assert isinstance(bench.store, LocalStore)
        return cls(Path(bench.metadata.database.url.database or ""), bench.store.root, bench.log.path)

    def copied_to(self, target: _Files) -> _Files:
        """Copy them over those of `target`, which no process has open, and return it."""
        shutil.copyfile(self.database, target.database)
        for source, copy in ((self.objects, target.objects), (self.log, target.log)):
            if source.is_dir():
                shutil.copytree(source, copy, dirs_exist_ok=True)
        return target


@dataclass(frozen=True)
class _Template:
    """The files of a topic that was built in this process. `takes_ms`: by the clock of the bench."""

    files: _Files
    topic: TopicName
    takes_ms: int

    @classmethod
    def of(cls, build: Callable[[Workbench], Topic], sizing: Sizing | None, now_ms: int) -> _Template:
        """Build the topic on a new bench, at that time."""
        bench = Workbench.embedded(_new_folder(), sizing=sizing, clock=ManualClock(now_ms))
        topic = build(bench)
        bench.metadata.close()  # SQLite's log goes into its file
        return cls(_Files.of(bench), topic.name, bench.clock.now_ms() - now_ms)


_TEMPLATES: dict[tuple[Callable[[Workbench], Topic], Sizing | None, int], _Template] = {}


@cache
def _templates_folder() -> Path:
    folder = TemporaryDirectory(prefix="compactor-built-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _new_folder() -> Path:
    return Path(mkdtemp(dir=_templates_folder()))


@cache
def _rows_of_new() -> dict[str, list[Any]]:
    """Return the rows of a database to which nothing was written but its store."""
    bench = Workbench.embedded(_new_folder())
    rows = _rows(bench.metadata)
    bench.metadata.close()
    return rows


def _rows(metadata: MetadataStore) -> dict[str, list[Any]]:
    """Return the rows of each table but those about the object store, which differ."""
    with metadata.database.read() as connection:
        cursor = connection.connection.cursor()
        return {name: cursor.execute(f"SELECT * FROM {name}").fetchall() for name in _COMPARED}


_COMPARED = sorted(METADATA.tables.keys() - {store_bindings.name, store_trials.name})


def half_compacted(bench: Workbench) -> Topic:
    """a@0 b@1 a@2 c@3 | compacted: b@1 a@2 c@3 | b@4 -c@5 d@6"""
    return bench.built(_half_compacted)


def _half_compacted(bench: Workbench) -> Topic:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"), (b"a", b"2"), (b"c", b"3"))])
    bench.compact(topic)
    bench.append(topic, [content((b"b", b"4"), (b"c", None), (b"d", b"6"))])
    return topic


def two_generations(bench: Workbench) -> Topic:
    """A topic with a compacted ledger and messages after its horizon; when these are compacted, a is 3 and c is 4."""
    return bench.built(_two_generations)


def _two_generations(bench: Workbench) -> Topic:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"), (b"b", b"2"), (None, b"n"), (b"b", b""))])
    bench.compact(topic)
    bench.append(topic, [content((b"a", b"3"), (b"c", b"4"))])
    return topic


def store_policy(metadata: MetadataStore, scope: str, name: str, value: object) -> None:
    """A policy's value as a newer version may have stored it: unchecked."""
    with metadata.database.write() as connection:
        connection.execute(insert(policies).values(scope=scope, name=name, value=value))


def compacted_ledger(topic: Topic) -> CompactedLedgerRecord:
    """The compacted ledger that serves: there must be one."""
    compacted = topic.snapshot().compacted
    assert compacted is not None
    return compacted


def compacted_only(topic: Topic) -> list[Message]:
    """The messages of the compacted ledger, without the raw ones after the horizon."""
    horizon = topic.snapshot().horizon
    return [m for m in topic.messages(read_compacted=True) if horizon is not None and m.offset <= horizon.offset]


def ids(messages: Iterable[Message]) -> list[MessageId]:
    return [message.message_id for message in messages]


def raw(topic: Topic, start: MessageId = EARLIEST) -> list[Message]:
    return list(topic.messages(start))


def view(messages: Sequence[Message]) -> dict[bytes, bytes | None]:
    """Return the newest value of each key, as a reader collects them; independent of compactor.reference."""
    state = {message.key: message.payload for message in messages if message.key is not None}
    return {key: payload for key, payload in state.items() if payload}
