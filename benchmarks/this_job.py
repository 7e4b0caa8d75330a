"""This job, run like the product (claim … publish), several times on the same raw ledgers.

`Without` omits work, to show its cost: it patches functions in the worker during a task, and in the driver around a
run. The product has no such switch, and the benchmark deletes a ledger of such a run at once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from benchmarks.machine import descendants, peak_resident_bytes
from compactor import phase_one, phase_two, two_phase
from compactor.engines.engine import TaskFailure
from compactor.engines.spark import SparkEngine
from compactor.run import run_output
from storage.environment import Environment
from storage.ledger import key_index, names, rows_file
from storage.ledger.manifest import read_manifest
from storage.metadata.records import COMPACTION_CURSOR, RunRecord
from storage.objects.local import LocalStore
from storage.topic import Topic

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Without:
    """Work that a run omits."""

    index: bool = False
    checks: bool = False
    fsync: bool = False


WAYS = {
    "this job": Without(),
    "… without index": Without(index=True),
    "… without index, checksums, verify": Without(index=True, checks=True),
    "… without those and fsync": Without(index=True, checks=True, fsync=True),
}


class _Unchecked(int):
    """A checksum that equals every other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _no_checksum(*_: Any) -> int:
    return _Unchecked(0)


def _nothing(*_: Any) -> None:
    return None


@contextlib.contextmanager
def patched(without: Without) -> Iterator[None]:
    """Omit work in this process while the context lasts."""
    with contextlib.ExitStack() as patches:
        if without.index:
            patches.enter_context(mock.patch.object(phase_one, "write_index", _nothing))
        if without.checks:
            for module, name in (
                (phase_one, "crc32c"),
                (phase_two, "crc32c"),
                (rows_file, "crc32c"),
                (rows_file, "extend_crc32c"),
                (key_index, "crc32c"),
            ):
                patches.enter_context(mock.patch.object(module, name, _no_checksum))
            patches.enter_context(mock.patch.object(run_output.RunOutput, "check_totals", _nothing))
        if without.fsync:
            patches.enter_context(mock.patch.object(os, "fsync", _nothing))
        yield


@dataclass(frozen=True)
class _Stripped:
    """A task that omits work. Travels by pickle."""

    task: Callable[[int], Any]
    without: Without

    def __call__(self, number: int) -> Any:
        with patched(self.without):
            return self.task(number)


@dataclass(frozen=True)
class _StrippingEngine:
    """A Spark engine whose tasks omit work."""

    engine: SparkEngine
    without: Without

    @property
    def parallelism(self) -> int:
        return self.engine.parallelism

    @property
    def is_waiting(self) -> bool:
        return self.engine.is_waiting

    @property
    def engine_choice(self) -> str:
        return self.engine.engine_choice

    def run(
        self,
        count: int,
        task: Callable[[int], Answer],
        on_progress: Callable[[int], None],
        weights: Sequence[float] | None = None,
    ) -> list[Answer | TaskFailure]:
        return self.engine.run(count, _Stripped(task, self.without), on_progress, weights)

    def cancel(self) -> None:
        self.engine.cancel()


@dataclass(frozen=True)
class Compacted:
    """One run: its wall time, its record, and the Parquet files of its parts."""

    seconds: float
    run: RunRecord
    files: list[str]


@dataclass(frozen=True)
class ThisJob:
    """Compactor of one topic, from raw each time."""

    environment: Environment
    store: LocalStore
    engine: SparkEngine
    topic: Topic

    def compact(self, without: Without) -> Compacted:
        """Run a compaction in the warm session."""
        self.engine.warm_up()  # Spark ends workers that were idle for a minute; a contender may have taken longer
        plain = without == Without()
        compactor = two_phase.TwoPhaseCompactor(
            self.environment, self.engine if plain else _StrippingEngine(self.engine, without)
        )
        with patched(without):
            started = time.perf_counter()
            outcome = compactor.compact(self.topic.name)
            seconds = time.perf_counter() - started
        assert outcome.run is not None
        compacted = self.topic.snapshot().compacted
        assert compacted is not None
        parts = read_manifest(self.store, compacted.manifest).parts
        return Compacted(seconds, outcome.run, [str(self.store.root / part.rows.stored.name) for part in parts])

    def forget(self) -> None:
        """Delete the compacted ledger, its cursor and its objects. Raw ledgers stay."""
        forget_compacted(self.environment, self.topic)


def forget_compacted(environment: Environment, topic: Topic) -> None:
    """Delete the compacted ledger of a topic, which must exist, its cursor and its objects. Raw ledgers stay."""
    environment.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)
    for stored in list(environment.store.list(names.topic_prefix(topic.record.uid))):
        parsed = names.parse(stored.name)
        if parsed is None or parsed.kind not in (names.ObjectKind.LEDGER_ROWS, names.ObjectKind.LEDGER_INDEX):
            environment.store.delete(stored.name)


def peak_memory() -> dict[str, int]:
    """Return the peak resident bytes until now: driver's JVM, its largest Python worker, this process with imports."""
    java = [process for process, name in descendants(os.getpid()) if name == "java"]
    workers = [process for jvm in java for process, _ in descendants(jvm)]
    return {
        "driver's JVM": max(map(peak_resident_bytes, java), default=0),
        "largest Python worker": max(map(peak_resident_bytes, workers), default=0),
        "this process (import, driver, checks)": peak_resident_bytes(os.getpid()),
    }


def source_files(topic: Topic, store: LocalStore) -> list[str]:
    """Return the files of the topic's raw rows objects, in offset order."""
    return [str(Path(store.root) / ledger.rows.name) for ledger in topic.snapshot().ledgers]
