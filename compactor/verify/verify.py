"""Verify: derive the compacted ledger of a topic again from what there is, and name every difference.

    metadata   the rows of the database and the manifest against each other                        (metadata.py)
    objects    one task an object: raw ledgers, parts, indexes                                          (objects.py)
    keys       one task a hash range: winners from raw against the visible index                           (keys.py)
    details    only where index and parts differ: what exactly                                             (keys.py)

Each raw index is proven against its rows, each live row of a part against raw bit for bit, the index of the compacted
ledger against its parts (by fingerprints) and against the winners in raw, its chunk tables likewise (unkeyed.py):
together that leaves nothing of it unproven.
What raw no longer has is proven by checksums and against itself only, and the report says so.

A difference is only what no run of the topic explains (run_history.py): values that a time to live took away years
ago are not missing. What cannot be told is counted as undecided.

Safe beside running compactions: it verifies the generation of one moment, under a pin. It writes nothing. Nothing here
is per key or per message but the differences that are named, at most `limit` of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

from compactor.engines.engine import Engine, Progress, SilentProgress, answers
from compactor.run.plan import Sizing, range_bits
from compactor.verify.findings import DETAILED_RANGES, DifferenceKind, Findings, Report, ReportBuilder, TaskFindings
from compactor.verify.keys import check_range, explain_range, with_keys
from compactor.verify.metadata import check_metadata
from compactor.verify.objects import check_index, check_ledger, check_part
from compactor.verify.plan import VerifyPlan
from compactor.verify.run_history import RunHistory
from compactor.verify.unkeyed import check_unkeyed, explain_unkeyed
from storage.environment import Environment
from storage.errors import Fenced, ObjectDamaged
from storage.heartbeat import Heartbeat
from storage.ledger.hashing import KeyHasher, Xxh3KeyHasher
from storage.ledger.key_index import IndexDirectory
from storage.ledger.manifest import Manifest, read_manifest
from storage.log.lease import afterwards
from storage.metadata.liveness import PIN_TTL_MS
from storage.metadata.records import TopicSnapshot
from storage.model import TopicName
from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store
from storage.owner import owner_name

PIN_MS = PIN_TTL_MS
"""The TTL of the pin on the generation that is verified; it is renewed four times in it."""
RUNS = 100_000
"""At most that many runs of a topic are read; with more its history counts as incomplete."""
LIMIT = 20
"""Differences of a kind that are named."""


@dataclass(frozen=True)
class Verifier:
    """Verifies topics; holds no state. `sizing` None: by the engine's parallelism."""

    environment: Environment
    engine: Engine
    progress: Progress = field(default_factory=SilentProgress)
    sizing: Sizing | None = None
    limit: int = LIMIT
    hasher: Callable[[int], KeyHasher] = Xxh3KeyHasher

    def verify(self, name: TopicName) -> Report:
        """Check all of a topic. Raises TopicNotFound, Fenced (the pin was lost), Unavailable; damage is reported."""
        topic = self.environment.metadata.topics.get(name)
        snapshot, pin = self.environment.metadata.pins.take(topic.id, owner_name(), PIN_MS)
        if pin is None:
            return self._verify(snapshot)
        lost: list[bool] = []
        renew = partial(self.environment.metadata.pins.renew, pin, PIN_MS)
        with (
            afterwards(lambda: self.environment.metadata.pins.release(pin)),
            Heartbeat(renew, PIN_MS / 4000, lambda: lost.append(True)),
        ):
            report = self._verify(snapshot)
        if lost:
            raise Fenced(
                f"the compacted ledger of {name} was collected while it was verified", "verify the one that serves now"
            )
        return report

    def _verify(self, snapshot: TopicSnapshot) -> Report:
        findings = Findings(self.limit)
        manifest = self._manifest(snapshot, findings)
        runs = self.environment.metadata.runs.of_topic(snapshot.topic.id, RUNS) if snapshot.compacted else []
        check_metadata(snapshot, manifest, runs, findings)
        plan = VerifyPlan(
            self.environment.store.location,
            self.hasher(snapshot.topic.hash_seed),
            snapshot.ledgers,
            manifest,
            RunHistory.of(manifest, runs) if manifest else RunHistory((), complete=False),
            range_bits(_records(snapshot, manifest), self.sizing or Sizing(self.engine.parallelism)),
            self.limit,
            snapshot.topic.start_offset,
        )
        builder = ReportBuilder(snapshot, plan, findings)
        if snapshot.segments:
            first = snapshot.segments[0].first_offset
            what = "not all is sealed yet, and what is in segments is not read"
            builder.unchecked.append(f"offsets from {first} on: {what}")
        try:
            self._check(plan, builder)
        finally:
            self.progress.end()
        self._forgive_trimmed(snapshot, builder)
        return builder.report(with_keys(self.environment.store, plan, findings.named))

    def _check(self, plan: VerifyPlan, builder: ReportBuilder) -> None:
        """The stages. Costs are bytes that a task reads."""
        parts = plan.manifest.parts if plan.manifest else ()
        builder.add_objects(
            self._run(
                "objects",
                plan,
                [(("ledger", number), 2.0 * of.rows.size + of.index.length) for number, of in enumerate(plan.ledgers)]
                + [(("part", number), 3.0 * part.rows.stored.size) for number, part in enumerate(parts)]
                + [(("index", number), float(index.length)) for number, index in enumerate(plan.locations)],
            )
        )
        if plan.manifest is None:
            return
        indexes = (*(ledger.index for ledger in plan.below), *plan.locations)
        cost = sum(location.length for location in indexes) / (len(plan.ranges) + 1)
        checks = [("range", number) for number in range(len(plan.ranges))] + [("unkeyed", 0)]
        builder.add_keys(self._run("keys", plan, [(check, cost) for check in checks]))
        checks = [("range details", number) for number in builder.differing[:DETAILED_RANGES]]
        checks += [("unkeyed details", 0)] * builder.unkeyed_differ
        if checks:
            cost = float(sum(part.rows.stored.size for part in parts))
            builder.add_details(self._run("details", plan, [(check, cost) for check in checks]))

    def _run(self, phase: str, plan: VerifyPlan, checks: list[tuple[tuple[str, int], float]]) -> list[TaskFindings]:
        self.progress.phase(phase, len(checks), 0)
        task = partial(run_check, plan, tuple(check for check, _ in checks))
        return answers(self.engine.run(len(checks), task, self.progress.done, [cost for _, cost in checks]))

    def _manifest(self, snapshot: TopicSnapshot, findings: Findings) -> Manifest | None:
        if snapshot.compacted is None:
            return None
        with findings.reading(snapshot.compacted.manifest.name):
            return read_manifest(self.environment.store, snapshot.compacted.manifest)
        return None

    def _forgive_trimmed(self, snapshot: TopicSnapshot, builder: ReportBuilder) -> None:
        """A raw ledger that was trimmed during the verification is not damage."""
        if not builder.findings.counts.get(DifferenceKind.DAMAGED):
            return
        there = {ledger.ledger_id for ledger in self.environment.metadata.ledgers.of_topic(snapshot.topic.id)}
        for ledger in snapshot.ledgers:
            if ledger.ledger_id not in there:
                builder.findings.forgive({ledger.rows.name, ledger.index.name})
                builder.unchecked.append(f"ledger {ledger.ledger_id} was trimmed meanwhile")


_CHECKS: Mapping[str, Callable[[ObjectStore, VerifyPlan, int], TaskFindings]] = {
    "part": check_part,
    "ledger": check_ledger,
    "index": check_index,
    "range": check_range,
    "unkeyed": check_unkeyed,
    "range details": explain_range,
    "unkeyed details": explain_unkeyed,
}


def run_check(plan: VerifyPlan, checks: tuple[tuple[str, int], ...], number: int) -> TaskFindings:
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
