"""Verify: derive the compacted ledger of a topic again from what there is, and name every difference.

    record     the rows of the database and the manifest against each other                       (here)
    objects    one task an object: raw ledgers, parts, indexes            (ledgers.py, parts.py)
    keys       one task a hash range: winners from raw against the visible index           (keys.py)
    details    only where index and parts differ: what exactly                          (explain.py)

Each raw index is proven against its rows, each live row of a part against raw bit for bit, the index of the compacted
ledger against its parts (by fingerprints) and against the winners in raw, its chunk tables likewise (chunks.py):
together that leaves nothing of it unproven.
What raw no longer has is proven by checksums and against itself only, and the report says so.

A difference is only what no run of the topic explains (history.py): values that a time to live took away years
ago are not missing. What cannot be told is counted as undecided.

Safe beside running compactions: it looks at the generation of one moment, under a pin. It writes nothing. Nothing here
is per key or per message but the differences that are named, at most `limit` of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from compactor.engines.engine import (
    Engine,
    Progress,
    Quiet,
    answers,
)
from compactor.run.plan import Sizing, range_bits
from compactor.verify.explain import explain_range, explain_unkeyed, with_keys
from compactor.verify.findings import Findings, Kind
from compactor.verify.history import History
from compactor.verify.keys import check_range, check_unkeyed
from compactor.verify.ledgers import check_index, check_ledger
from compactor.verify.parts import check_part
from compactor.verify.plan import VerifyPlan
from compactor.verify.report import DETAILED_RANGES, Looked, Report
from storage.clock import Clock
from storage.errors import Fenced, ObjectDamaged
from storage.heartbeat import Heartbeat
from storage.ledger.hashing import KeyHasher, Xxh3KeyHasher
from storage.ledger.key_index import IndexDirectory
from storage.ledger.manifest import Manifest, read_manifest
from storage.log.lease import afterwards
from storage.metadata.liveness import PIN_TTL_MS
from storage.metadata.records import (
    Pin,
    TopicSnapshot,
)
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store
from storage.owner import owner_name

PIN_MS = PIN_TTL_MS
"""The term of the pin on the generation that is looked at; it is renewed four times in it."""
RUNS = 100_000
"""So many runs of a topic are looked at; with more its history counts as incomplete."""
LIMIT = 20
"""Differences of a kind that are named."""


@dataclass(frozen=True)
class Verifier:
    """Verifies topics; holds the components, no state. `sizing` None: by the engine's parallelism."""

    metadata: MetadataStore
    store: ObjectStore
    clock: Clock
    engine: Engine
    progress: Progress = field(default_factory=Quiet)
    sizing: Sizing | None = None
    limit: int = LIMIT
    hasher: Callable[[int], KeyHasher] = Xxh3KeyHasher

    def verify(self, name: TopicName) -> Report:
        """Look at all of a topic. Raises TopicNotFound, Fenced (the pin was lost), Unavailable; damage is reported."""
        topic = self.metadata.topics.get(name)
        snapshot, pin = self.metadata.pins.take(topic.id, owner_name(), PIN_MS)
        if pin is None:
            return self._verify(snapshot)
        lost: list[bool] = []
        with (
            afterwards(lambda: self.metadata.pins.release(pin)),
            Heartbeat(lambda: self._renew(pin), PIN_MS / 4000, lambda: lost.append(True)),
        ):
            report = self._verify(snapshot)
        if lost:
            raise Fenced(
                f"the compacted ledger of {name} was collected while it was verified", "verify the one that serves now"
            )
        return report

    def _renew(self, pin: Pin) -> None:
        self.metadata.pins.renew(pin, PIN_MS)

    def _verify(self, snapshot: TopicSnapshot) -> Report:
        looked = Looked(snapshot, Findings(self.limit))
        records = self.metadata.runs.of_topic(snapshot.topic.id, RUNS) if snapshot.compacted else []
        manifest = self._manifest(snapshot, looked)
        looked.compare_records(manifest, records)
        history = History.of(manifest, records) if manifest else None
        plan = VerifyPlan(
            self.store.location,
            self.hasher(snapshot.topic.hash_seed),
            snapshot.ledgers,
            manifest,
            history,
            range_bits(_records(snapshot, manifest), self.sizing or Sizing(self.engine.parallelism)),
            self.limit,
            snapshot.topic.start_offset,
        )
        try:
            self._look(plan, looked)
        finally:
            self.progress.end()
        self._forgive_trimmed(snapshot, looked)
        return looked.report(plan, with_keys(self.store, plan, looked.findings.named))

    def _look(self, plan: VerifyPlan, looked: Looked) -> None:
        manifest = plan.manifest
        parts = [("part", number) for number in range(len(manifest.parts))] if manifest else []
        checks = [("ledger", number) for number in range(len(plan.ledgers))] + parts
        checks += [("index", number) for number in range(len(plan.locations))]
        costs = [2.0 * ledger.rows.size + ledger.index.length for ledger in plan.ledgers]
        costs += [3.0 * part.rows.stored.size for part in (manifest.parts if manifest else ())]
        costs += [float(location.length) for location in plan.locations]
        looked.take_objects(self._run("objects", plan, checks, costs), plan)
        if manifest is None:
            return
        checks = [("range", number) for number in range(len(plan.ranges))] + [("unkeyed", 0)]
        indexes = (*(ledger.index for ledger in plan.below), *plan.locations)
        size = sum(location.length for location in indexes)
        looked.take_keys(self._run("keys", plan, checks, [size / len(checks)] * len(checks)), manifest)
        checks = [("range details", number) for number in looked.differing[:DETAILED_RANGES]]
        checks += [("unkeyed details", 0)] * looked.unkeyed_differ
        if checks:
            size = sum(part.rows.stored.size for part in manifest.parts)
            looked.take_details(self._run("details", plan, checks, [float(size)] * len(checks)))

    def _run(self, phase: str, plan: VerifyPlan, checks: list[tuple[str, int]], costs: list[float]) -> list[Any]:
        self.progress.phase(phase, len(checks), 0)
        return answers(self.engine.run(len(checks), partial(run_check, plan, tuple(checks)), self.progress.done, costs))

    def _manifest(self, snapshot: TopicSnapshot, looked: Looked) -> Manifest | None:
        if snapshot.compacted is None:
            return None
        with looked.findings.reading(snapshot.compacted.manifest.name):
            return read_manifest(self.store, snapshot.compacted.manifest)
        return None

    def _forgive_trimmed(self, snapshot: TopicSnapshot, looked: Looked) -> None:
        """A raw ledger that was trimmed while we looked is not damage."""
        if not looked.findings.counts.get(Kind.DAMAGED):
            return
        there = {ledger.ledger_id for ledger in self.metadata.ledgers.of_topic(snapshot.topic.id)}
        for ledger in snapshot.ledgers:
            if ledger.ledger_id not in there:
                looked.forgive({ledger.rows.name, ledger.index.name})
                looked.unchecked.append(f"ledger {ledger.ledger_id} was trimmed meanwhile")


_CHECKS: Mapping[str, Callable[[ObjectStore, VerifyPlan, int], Any]] = {
    "part": check_part,
    "ledger": check_ledger,
    "index": check_index,
    "range": check_range,
    "unkeyed": check_unkeyed,
    "range details": explain_range,
    "unkeyed details": explain_unkeyed,
}


def run_check(plan: VerifyPlan, checks: tuple[tuple[str, int], ...], number: int) -> Any:
    """One task: check `number`. Raises Unavailable and the like; damage is in the answer."""
    what, which = checks[number]
    with closing(open_store(plan.store)) as store:
        return _CHECKS[what](store, plan, which)


def _records(snapshot: TopicSnapshot, manifest: Manifest | None) -> int:
    """Index records that the hash ranges are cut by. A directory that cannot be read is for a task to name."""
    locations = [ledger.index for ledger in snapshot.ledgers]
    locations += [location for level in (manifest.index if manifest else ()) for location in level]
    records = 0
    for location in locations:
        with suppress(ObjectDamaged):
            records += IndexDirectory.decode(location.directory).records
    return records
