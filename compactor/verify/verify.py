"""Verify: derive the compacted ledger of a topic again from its raw ledgers, and name every difference.

The stages, in order:

    metadata   compare the database rows and the manifest with each other; no task                     (metadata.py)
    objects    one task per object: raw ledgers, parts, indexes                                         (objects.py)
    keys       one task per hash range: compare raw winners with the visible index              (keys.py, unkeyed.py)
    details    only where index and parts differ: name the keys and offsets                     (keys.py, unkeyed.py)

Three comparisons together prove the whole compacted ledger: each raw index with the rows of its ledger, each live row
of a part with raw bit for bit, and the index of the compacted ledger with its parts (by fingerprints) and with the
winners in raw. Chunk tables take the same path (unkeyed.py). Trimmed raw ledgers leave only checksums and the
compacted ledger's own consistency to prove; the report says so.

A difference is reported only if no run of the topic explains it (run_history.py): a value that a time to live removed
years ago is not missing. Keys that raw cannot decide are counted as undecided.

Verify may run beside compactions: it pins one generation and reads that. It writes nothing. Memory on the driver is
independent of keys and messages, except for the named differences, at most `limit` per kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

from compactor.engines.engine import Engine, Progress, SilentProgress, answers_or_raise
from compactor.run.plan import Sizing, range_bits
from compactor.verify.findings import DETAILED_RANGES, DifferenceKind, Findings, Report, ReportBuilder, TaskFindings
from compactor.verify.keys import check_range, explain_range, with_keys
from compactor.verify.metadata import check_metadata
from compactor.verify.objects import check_index, check_ledger, check_part, check_table_object
from compactor.verify.plan import VerifyPlan
from compactor.verify.run_history import RunHistory
from compactor.verify.unkeyed import check_unkeyed, explain_unkeyed
from storage.environment import Environment
from storage.errors import Fenced, ObjectDamaged
from storage.heartbeat import Heartbeat
from storage.ledger.hashing import KeyHasher, Xxh3KeyHasher
from storage.ledger.key_index import IndexDirectory
from storage.ledger.manifest import Manifest, read_manifest
from storage.log.lease import release_ignoring_errors
from storage.metadata.liveness import PIN_TTL_MS
from storage.metadata.records import TopicSnapshot
from storage.model import TopicName
from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store
from storage.owner import new_owner_name

RUNS = 100_000
"""Maximum number of runs of a topic that are read. A topic with more runs has an incomplete history."""
LIMIT = 20
"""Maximum number of named differences per kind."""


@dataclass(frozen=True)
class Verifier:
    """A verifier of topics, without state. `sizing` None means the default sizing for the engine's parallelism."""

    environment: Environment
    engine: Engine
    progress: Progress = field(default_factory=SilentProgress)
    sizing: Sizing | None = None
    limit: int = LIMIT
    hasher: Callable[[int], KeyHasher] = Xxh3KeyHasher

    def verify(self, name: TopicName) -> Report:
        """Verify the whole topic and return the report.

        Damaged objects and rows are differences of the report. Raises TopicNotFound, Fenced (garbage collection took
        the pinned ledger) and Unavailable (database or store).
        """
        topic = self.environment.metadata.topics.get(name)
        snapshot, pin = self.environment.metadata.pins.take(topic.id, new_owner_name(), PIN_TTL_MS)
        if pin is None:
            return self._verify_snapshot(snapshot)
        lost: list[bool] = []
        renew = partial(self.environment.metadata.pins.renew, pin, PIN_TTL_MS)
        with (
            release_ignoring_errors(lambda: self.environment.metadata.pins.release(pin)),
            Heartbeat(renew, PIN_TTL_MS / 4000, lambda: lost.append(True)),
        ):
            report = self._verify_snapshot(snapshot)
        if lost:
            raise Fenced(
                f"garbage collection removed the compacted ledger of {name} during its verification", "verify again"
            )
        return report

    def _verify_snapshot(self, snapshot: TopicSnapshot) -> Report:
        """Verify a topic as its snapshot describes it, and return the report."""
        findings = Findings(self.limit)
        manifest = self._read_manifest(snapshot, findings)
        runs = self.environment.metadata.runs.of_topic(snapshot.topic.id, RUNS) if snapshot.compacted else []
        check_metadata(snapshot, manifest, runs, findings)
        plan = VerifyPlan(
            self.environment.store.location,
            self.hasher(snapshot.topic.hash_seed),
            snapshot.ledgers,
            manifest,
            RunHistory.of(manifest, runs) if manifest else RunHistory((), complete=False),
            range_bits(_index_record_count(snapshot, manifest), self.sizing or Sizing(self.engine.parallelism)),
            self.limit,
            snapshot.topic.start_offset,
        )
        builder = ReportBuilder(snapshot, plan, findings)
        if snapshot.segments:
            first = snapshot.segments[0].first_offset
            builder.unchecked.append(f"offsets from {first} on: they are in segments, which verify does not read")
        try:
            self._run_stages(plan, builder)
        finally:
            self.progress.end()
        self._remove_damage_of_trimmed_ledgers(snapshot, builder)
        return builder.build_report(with_keys(self.environment.store, plan, findings.named))

    def _run_stages(self, plan: VerifyPlan, builder: ReportBuilder) -> None:
        """Run the stages that read objects. The cost of a task is the number of bytes that it reads."""
        parts = plan.manifest.parts if plan.manifest else ()
        builder.add_objects_stage(
            self._run_stage(
                "objects",
                plan,
                [
                    (("ledger", number), 2.0 * ledger.rows.size + ledger.index.length)
                    for number, ledger in enumerate(plan.ledgers)
                ]
                + [(("part", number), 3.0 * part.rows.stored.size) for number, part in enumerate(parts)]
                + [(("index", number), float(index.length)) for number, index in enumerate(plan.index_locations)]
                + [(("table", number), float(stored.size)) for number, stored in enumerate(plan.table_objects)],
            )
        )
        if plan.manifest is None:
            return
        indexes = (*(ledger.index for ledger in plan.ledgers_to_horizon), *plan.index_locations)
        cost = sum(location.length for location in indexes) / (len(plan.hash_ranges) + 1)
        checks = [("range", number) for number in range(len(plan.hash_ranges))] + [("unkeyed", 0)]
        builder.add_keys_stage(self._run_stage("keys", plan, [(check, cost) for check in checks]))
        checks = [("range details", number) for number in builder.differing[:DETAILED_RANGES]]
        checks += [("unkeyed details", 0)] * builder.unkeyed_differ
        if checks:
            cost = float(sum(part.rows.stored.size for part in parts))
            builder.add(self._run_stage("details", plan, [(check, cost) for check in checks]))

    def _run_stage(
        self, phase: str, plan: VerifyPlan, checks: list[tuple[tuple[str, int], float]]
    ) -> list[TaskFindings]:
        """Run checks, each with its cost in bytes, as tasks of the engine. Return their answers in order."""
        self.progress.begin_phase(phase, len(checks), 0)
        task = partial(run_check, plan, tuple(check for check, _ in checks))
        return answers_or_raise(
            self.engine.run(len(checks), task, self.progress.report_tasks_done_in_phase, [cost for _, cost in checks])
        )

    def _read_manifest(self, snapshot: TopicSnapshot, findings: Findings) -> Manifest | None:
        """Return the manifest; None: there is no compacted ledger, or the manifest is damaged, which is a finding."""
        if snapshot.compacted is None:
            return None
        with findings.record_damage(snapshot.compacted.manifest.name):
            return read_manifest(self.environment.store, snapshot.compacted.manifest)
        return None

    def _remove_damage_of_trimmed_ledgers(self, snapshot: TopicSnapshot, builder: ReportBuilder) -> None:
        """Remove the damage of raw ledgers that were trimmed during the verification."""
        if not builder.findings.counts.get(DifferenceKind.DAMAGED):
            return
        present = {ledger.ledger_id for ledger in self.environment.metadata.ledgers.of_topic(snapshot.topic.id)}
        for ledger in snapshot.ledgers:
            if ledger.ledger_id not in present:
                builder.findings.remove_damage({ledger.rows.name, ledger.index.name})
                builder.unchecked.append(f"ledger {ledger.ledger_id} was trimmed during the verification")


_CHECKS: Mapping[str, Callable[[ObjectStore, VerifyPlan, int], TaskFindings]] = {
    "part": check_part,
    "ledger": check_ledger,
    "index": check_index,
    "table": check_table_object,
    "range": check_range,
    "unkeyed": check_unkeyed,
    "range details": explain_range,
    "unkeyed details": explain_unkeyed,
}


def run_check(plan: VerifyPlan, checks: tuple[tuple[str, int], ...], check_number: int) -> TaskFindings:
    """Run check `check_number` of `checks` as one task. A check: its kind, a key of `_CHECKS`, and the number of its
    object or hash range. Damage is part of the answer; an unavailable store raises Unavailable."""
    kind, item = checks[check_number]
    with closing(open_store(plan.store)) as store:
        return _CHECKS[kind](store, plan, item)


def _index_record_count(snapshot: TopicSnapshot, manifest: Manifest | None) -> int:
    """Return the number of index records, by which the hash ranges are sized. A task names unreadable directories."""
    locations = [ledger.index for ledger in snapshot.ledgers]
    locations += [location for level in (manifest.index if manifest else ()) for location in level]
    records = 0
    for location in locations:
        with suppress(ObjectDamaged):
            records += IndexDirectory.decode(location.directory, location.name).record_count
    return records
