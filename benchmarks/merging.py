"""`python -m benchmarks.merging`: how often a row is written again, and how much garbage stays, by the merge policy.

A model, checked against runs. The model calls the product's own `lay_out` for simulated rounds of new messages on a
compacted topic, with the exact rows of each part. The runs do the same rounds with the product's compactor, in this
process; all policies take turns, round by round, on topics with equal messages.

Write amplification: rows that runs write into parts, for each new message. Read amplification: rows that a reader of
the compacted ledger decodes, for each row that it gets.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from api.components import open_environment
from api.settings.settings import Settings
from benchmarks import machine
from benchmarks.bench_session import say
from compactor.engines.engine import InProcessEngine
from compactor.run import layout
from compactor.run.plan import (
    HashRangeStatistics,
    RangeTaskResult,
    RowSet,
    RunPlan,
    RunPolicies,
    Sizing,
    Source,
    expected_totals,
    row_sets_by_source,
)
from compactor.two_phase import TwoPhaseCompactor
from storage.environment import Environment
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.manifest import DeletedRows, read_manifest
from storage.log.bulk_append import INPUT_SCHEMA
from storage.model import RowsObject, StoredObject, TopicName
from storage.objects.interface import StoreLocation
from storage.topic import Topic
from tests.workbench import compacted_ledger, ensure_topic

Keys = npt.NDArray[np.int64]
PARALLELISM = 2
STORED_BYTES = 130
"""Approximate bytes that a row of 100 random bytes takes in a part."""


@dataclass(frozen=True)
class MergePolicy:
    """A policy of layout.py. `tier_ratio` 0: merge as soon as one older part is smaller than twice what is written."""

    tier_ratio: float
    max_garbage_ratio: float

    def __str__(self) -> str:
        merge = f"tiers of {self.tier_ratio:g}" if self.tier_ratio else "levels"
        return f"{merge}, garbage {self.max_garbage_ratio:g}"

    @property
    def sizing(self) -> Sizing:
        return Sizing(PARALLELISM, max_garbage_ratio=self.max_garbage_ratio)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with mock.patch.object(layout, "TIER_RATIO", self.tier_ratio):
            yield


POLICIES = [
    MergePolicy(tier, garbage) for tier, garbage in ((0, 0.5), (2, 0.5), (4, 0.5), (8, 0.5), (4, 0.7), (8, 0.7))
]


@dataclass
class Rounds:
    """Figures of rounds, by round: new messages, rows written, rows held for each live one, parts, times of the run."""

    new: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    @property
    def write_amplification(self) -> float:
        return sum(self.written) / sum(self.new)

    @property
    def read_amplification(self) -> float:
        return fmean(self.held)

    def first(self, count: int) -> Rounds:
        """Return the first rounds alone, without times."""
        return Rounds(self.new[:count], self.written[:count], self.held[:count], self.parts[:count])


class Model:
    """Simulated rounds: the offset of the newest message of each key, and the parts, as numbers alone."""

    def __init__(self, keys: int, policy: MergePolicy) -> None:
        self._policy = policy
        self._newest = np.arange(keys, dtype=np.int64)
        self._end = 0
        self._parts: list[Source] = []
        self.rounds = Rounds()

    def run(self, keys: Keys) -> None:
        """Append a message of each of `keys`, and compact."""
        first, self._end = self._end, self._end + len(keys)
        self._newest[keys] = np.arange(first, self._end)
        live = np.sort(self._newest)
        dirty = _source(first, self._end - 1, len(keys))
        sources = [*self._parts, dirty]
        counts = [_count(live, item.first_offset, item.last_offset) for item in sources]
        removed = [item.messages - count for item, count in zip(self._parts, counts, strict=False)]
        sets = [RowSet(number, 0, count, 0, 0) for number, count in enumerate([*removed, counts[-1]]) if count]
        by_source = row_sets_by_source([RangeTaskResult("", tuple(sets), None, HashRangeStatistics())])
        plan = RunPlan(
            StoreLocation("file:///none"), "", -1, "", RunPolicies(), 0, Xxh3KeyHasher(0), tuple(sources), len(removed)
        )
        with self._policy.in_force():
            result = layout.lay_out(plan, by_source, expected_totals(plan, by_source), self._policy.sizing)
        parts, written = [], 0
        for number in result.kept_parts:
            part = sources[number]
            dead = _held(part) - counts[number]
            deleted = DeletedRows("", 0, 0, dead, 0) if dead else None
            parts.append(replace(part, messages=counts[number], deleted=deleted))
        for task in result.parts:
            start, last = task.slices[0].first_offset, task.slices[-1].last_offset
            if rows := _count(live, start, last):
                parts.append(_source(start, last, rows))
                written += rows
        self._parts = sorted(parts, key=lambda part: part.first_offset)
        self.rounds.new.append(len(keys))
        self.rounds.written.append(written)
        self.rounds.held.append(sum(map(_held, self._parts)) / sum(part.messages for part in self._parts))
        self.rounds.parts.append(len(self._parts))


class Runs:
    """The same rounds with the product, on a topic of its own."""

    def __init__(self, environment: Environment, policy: MergePolicy, name: str) -> None:
        self._environment = environment
        self._policy = policy
        self._topic: Topic = ensure_topic(environment, TopicName.parse(name))
        self._compactor = TwoPhaseCompactor(environment, InProcessEngine(PARALLELISM), sizing=policy.sizing)
        self._names: set[str] = set()
        self.rounds = Rounds()

    def run(self, table: pa.Table) -> None:
        """Append the messages of a table, and compact."""
        self._topic.bulk_append().append([table])
        with self._policy.in_force():
            started, cpu = time.perf_counter(), time.process_time()
            self._compactor.compact(self._topic.name)
            self.rounds.seconds.append(time.perf_counter() - started)
            self.rounds.cpu_seconds.append(time.process_time() - cpu)
        parts = read_manifest(self._environment.store, compacted_ledger(self._topic).manifest).parts
        self.rounds.new.append(len(table))
        self.rounds.written.append(sum(part.messages for part in parts if part.rows.stored.name not in self._names))
        self._names = {part.rows.stored.name for part in parts}
        self.rounds.held.append(sum(part.messages for part in parts) / sum(part.live for part in parts))
        self.rounds.parts.append(len(parts))


def _source(first: int, last: int, rows: int) -> Source:
    return Source(RowsObject(StoredObject("", rows * STORED_BYTES, 0), 1), first, last, rows)


def _held(part: Source) -> int:
    """Return the rows of a part, including deleted ones."""
    return part.messages + (part.deleted.cardinality if part.deleted else 0)


def _count(ascending: Keys, first: int, last: int) -> int:
    """Return how many values are from `first` to `last`, both included."""
    return int(np.searchsorted(ascending, last, "right") - np.searchsorted(ascending, first, "left"))


def _messages(keys: Keys, payload: bytes) -> pa.Table:
    """Return a message of 100 bytes for each key; `payload`: random bytes, enough for all."""
    names = pa.array([b"%012d" % key for key in keys.tolist()], pa.binary())
    values = pa.array([payload[start : start + 100] for start in range(0, 100 * len(keys), 100)], pa.binary())
    columns = {"key": names, "payload": values}
    length = len(keys)
    return pa.table([columns.get(item.name, pa.nulls(length, item.type)) for item in INPUT_SCHEMA], INPUT_SCHEMA)


def _drawn(distribution: str, keys: int, messages: int, random: np.random.Generator) -> Keys:
    return random.zipf(1.1, messages) % keys if distribution == "zipf" else random.integers(0, keys, messages)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return 0 whatever the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merging", description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", type=int, default=300_000)
    parser.add_argument("--shares", default="0.001,0.01,0.1,1", help="new messages of a round, as shares of the keys")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of the model (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=0, help="rounds that are also run by the product")
    parser.add_argument("--distribution", choices=("uniform", "zipf"), default="uniform")
    parser.add_argument("--folder", help="where to work; default: the system's temporary folder")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="merging-benchmark-", dir=options.folder))
    say(machine.summary(machine.describe(folder)))
    columns = [f"new a round, of {options.keys:,} keys", "policy", "rows written for each new"]
    columns += ["rows held for each live, mean (most)", "parts, mean (most)"]
    if options.runs:
        columns += [f"written, {options.runs} runs, their model", "held", "CPU of a run, s", "time, mean (median), s"]
    print(f"| {' | '.join(columns)} |")
    print("|---|---|" + "---:|" * (len(columns) - 2))
    try:
        for share in map(float, options.shares.split(",")):
            _compare(share, options, folder / f"share-{share}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _compare(share: float, options: argparse.Namespace, folder: Path) -> None:
    """Print a row for each policy."""
    random = np.random.default_rng(1)
    base = random.permutation(options.keys)
    rounds = [
        _drawn(options.distribution, options.keys, max(1, int(options.keys * share)), random)
        for _ in range(max(options.rounds, options.runs))
    ]
    models = {}
    for policy in POLICIES:
        model = Model(options.keys, policy)
        model.run(base)
        model.rounds = Rounds()
        for keys in rounds:
            model.run(keys)
        models[policy] = model.rounds
    runs = _run(base, rounds[: options.runs], folder) if options.runs else {}
    for policy, whole in models.items():
        line = (
            f"| {share:.1%} | {policy} | {whole.write_amplification:.2f} | {whole.read_amplification:.2f} "
            f"({max(whole.held):.2f}) | {fmean(whole.parts):.1f} ({max(whole.parts)}) |"
        )
        if policy in runs:
            real, same = runs[policy], whole.first(options.runs)
            line += (
                f" {real.write_amplification:.2f}, {same.write_amplification:.2f} "
                f"| {real.read_amplification:.2f}, {same.read_amplification:.2f} "
                f"| {fmean(real.cpu_seconds):.3f} | {fmean(real.seconds):.3f} ({median(real.seconds):.3f}) |"
            )
        print(line, flush=True)


def _run(base: Keys, rounds: list[Keys], folder: Path) -> dict[MergePolicy, Rounds]:
    """Run the rounds with the product; the policies take turns."""
    payload = np.random.default_rng(2).bytes(100 * max(map(len, [base, *rounds])))
    with open_environment(Settings(data=str(folder))) as environment:
        runs = {policy: Runs(environment, policy, f"topic-{number}") for number, policy in enumerate(POLICIES)}
        for keys in [base, *rounds]:
            table = _messages(keys, payload)
            for run in runs.values():
                run.run(table)
                if keys is base:
                    run.rounds = Rounds()
        return {policy: run.rounds for policy, run in runs.items()}


if __name__ == "__main__":
    sys.exit(main())
