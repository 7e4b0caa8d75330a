"""What a verification has found, put together on the driver: the report.

Here, too, the rows of the database and the manifest are compared with each other: nothing else looks at all of them.
Keeps sums and counts, and of differences those that are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from compactor.verify.findings import Difference, Findings, Kind
from compactor.verify.fingerprints import Fingerprint
from compactor.verify.keys import RangeFound, UnkeyedFound
from compactor.verify.ledgers import ObjectFound
from compactor.verify.parts import PartFound
from compactor.verify.plan import VerifyPlan
from storage.ledger.key_index import UNKEYED_CLASSES, IndexDirectory
from storage.ledger.manifest import Manifest
from storage.metadata.records import (
    COMPACTED_LEDGER_PROPERTY,
    CompactedLedgerRecord,
    RunRecord,
    RunState,
    TopicSnapshot,
)
from storage.model import MessageId, TopicName

DETAILED_RANGES = 64
"""So many hash ranges are gone through key by key; each reads all parts."""


@dataclass(frozen=True)
class Report:
    """What verify looked at, what it could not tell, and every difference.

    `compacted_ledger` None: the topic has none. `checked`: counts by noun. `unchecked`: sentences for a person.
    `counts`: differences by kind, more than are named.
    """

    topic: TopicName
    compacted_ledger: int | None
    generation: int
    checked: Mapping[str, int]
    unchecked: tuple[str, ...]
    differences: tuple[Difference, ...]
    counts: Mapping[Kind, int]

    @property
    def total(self) -> int:
        """All differences, named or not."""
        return sum(self.counts.values())


class Looked:
    """What has been found so far, put together on the driver."""

    def __init__(self, snapshot: TopicSnapshot, findings: Findings) -> None:
        self._snapshot = snapshot
        self.findings = findings
        self.unchecked: list[str] = []
        self.differing: list[int] = []
        self.unkeyed_differ = False
        self._checked = dict.fromkeys(("ledgers", "raw rows", "parts", "part rows", "indexes", "index records"), 0)
        self._parts: list[PartFound] = []
        self._compared = 0

    def compare_records(self, manifest: Manifest | None, runs: list[RunRecord]) -> None:
        """The rows of the database against each other and the manifest."""
        snapshot = self._snapshot
        topic, compacted, cursor = snapshot.topic, snapshot.compacted, snapshot.cursor
        rolled = [segment.content.last_offset for segment in snapshot.segments if segment.content is not None]
        ends = {ledger.last_offset for ledger in snapshot.ledgers}.union(rolled)
        for before, after in pairwise(snapshot.ledgers):
            if before.last_offset >= after.first_offset or before.ledger_id >= after.ledger_id:
                self._say(f"row of ledger {after.ledger_id}", f"it does not follow ledger {before.ledger_id}")
        if ends and max(ends) + 1 != topic.next_offset:
            what = f"next_offset is {topic.next_offset}, its ledgers and rolled segments end at {max(ends)}"
            self._say("row of the topic", what)
        if snapshot.segments:
            first = snapshot.segments[0].first_offset
            self.unchecked.append(
                f"offsets from {first} on: not all is sealed yet, and what is in segments is not read"
            )
        if compacted is None:
            return
        where = f"row of compacted ledger {compacted.ledger_id}"
        self._equal(where, "generation", compacted.generation, topic.generation)
        self._equal("cursor __compaction", "mark_delete", cursor and cursor.mark_delete, compacted.horizon)
        pointer = cursor.properties.get(COMPACTED_LEDGER_PROPERTY) if cursor else None
        self._equal("cursor __compaction", COMPACTED_LEDGER_PROPERTY, pointer, str(compacted.ledger_id))
        for ledger in snapshot.ledgers:
            if ledger.first_offset <= compacted.horizon.offset < ledger.last_offset:
                self._say(where, f"the horizon {compacted.horizon.offset} is inside ledger {ledger.ledger_id}")
            if ledger.last_offset == compacted.horizon.offset:
                self._equal(where, "horizon", compacted.horizon.message_id, ledger.last_message_id)
        wanted = max(compacted.horizon.offset + 1, topic.start_offset)
        following = min((one.first_offset for one in snapshot.extents if one.first_offset > compacted.horizon.offset),
                        default=topic.next_offset)  # fmt: skip
        if following > wanted:
            what = f"offsets {wanted} to {following - 1}, after the horizon, are in no ledger and no segment"
            self.findings.add(Difference(Kind.MISSING, "rows of ledgers", what))
        if manifest is not None:
            self._compare_manifest(manifest, compacted, {run.run_id: run for run in runs})

    def _compare_manifest(
        self, manifest: Manifest, compacted: CompactedLedgerRecord, runs: Mapping[int, RunRecord]
    ) -> None:
        topic = self._snapshot.topic
        where = f"row of compacted ledger {compacted.ledger_id}"
        for name in ("ledger_id", "generation", "horizon", "messages", "logical_bytes", "stored_bytes"):
            self._equal(where, name, getattr(compacted, name), getattr(manifest, name))
        name = compacted.manifest.name
        self._equal(name, "topic", manifest.topic, str(topic.name))
        self._equal(name, "topic_uid", manifest.topic_uid, topic.uid)
        if manifest.dropped_to > manifest.horizon.offset:
            self._say(name, f"dropped_to {manifest.dropped_to} is above the horizon")
        run = runs.get(manifest.run_id)
        if run is None:
            self._say(name, f"run {manifest.run_id}, which made it, is not known")
        else:
            self._equal(name, "frozen_at", manifest.frozen_at, run.started_at)
            self._equal(name, "policies", dict(manifest.policies), dict(run.policies))
            told = (RunState.SUCCESS, manifest.ledger_id, manifest.horizon)
            self._equal(f"row of run {run.run_id}", "result", (run.state, run.compacted_ledger_id, run.horizon), told)
        for number, level in enumerate(manifest.index):
            with self.findings.reading(name):
                ranges = [IndexDirectory.decode(location.directory).hash_range for location in level]
                ends = [(one.prefix << (32 - one.bits), (one.prefix + 1) << (32 - one.bits)) for one in ranges]
                if any(before[1] > after[0] for before, after in pairwise(ends)):
                    self._say(name, f"the indexes of level {number} overlap, or do not ascend")

    def take_objects(self, found: list[Any], plan: VerifyPlan) -> None:
        """The answers of the first stage, in the order of its checks."""
        ledgers, rest = found[: len(plan.ledgers)], found[len(plan.ledgers) :]
        for one in found:
            self.findings.merge(one.findings)
        self._parts = [one for one in rest if isinstance(one, PartFound)]
        indexes = [one for one in rest if isinstance(one, ObjectFound)]
        self._checked = {
            "ledgers": len(ledgers),
            "raw rows": sum(one.rows for one in ledgers),
            "parts": len(self._parts),
            "part rows": sum(one.rows for one in self._parts),
            "indexes": len(ledgers) + len(indexes),
            "index records": sum(one.records for one in (*ledgers, *indexes)),
        }
        self._compared = sum(one.compared for one in self._parts)
        if plan.manifest is not None and all(one.whole for one in self._parts):
            self._compare_totals(plan.manifest)

    def _compare_totals(self, manifest: Manifest) -> None:
        compacted = self._snapshot.compacted
        assert compacted is not None
        last: MessageId | None = self._parts[-1].last_alive if self._parts else None
        self._equal(
            f"row of compacted ledger {compacted.ledger_id}", "last_message_id", compacted.last_message_id, last
        )

    def take_keys(self, found: list[RangeFound | UnkeyedFound], manifest: Manifest) -> None:
        """The answers of the second stage: compare fingerprints of the index with those of the parts."""
        compacted = self._snapshot.compacted
        assert compacted is not None
        whole = all(one.whole for one in self._parts)
        dropped_to = -1
        keys = undecided = chunked_values = chunked_tombstones = 0
        whole_tables = True
        for number, one in enumerate(found):
            self.findings.merge(one.findings)
            if isinstance(one, UnkeyedFound):
                live = {name: _total(part.unkeyed.get(name) for part in self._parts) for name in UNKEYED_CLASSES}
                self.unkeyed_differ = whole and one.bitmaps is not None and one.bitmaps != live
                chunks = _total(part.chunks for part in self._parts)
                self.unkeyed_differ |= whole and one.chunks is not None and one.chunks != chunks
                continue
            keys, undecided = keys + one.keys, undecided + one.undecided
            dropped_to = max(dropped_to, one.dropped_to)
            live_keys = _total(part.keyed.get(number) for part in self._parts)
            if one.chunked is None:
                whole_tables = False
            elif whole and one.visible is not None and one.visible != live_keys + one.chunked:
                self.differing.append(number)
            chunked_values, chunked_tombstones = chunked_values + one.values, chunked_tombstones + one.tombstones
        self._checked["keys"] = keys
        if whole and whole_tables:
            name = compacted.manifest.name
            self._equal(name, "keys", manifest.keys, sum(one.values for one in self._parts) + chunked_values)
            tombstones = sum(one.tombstones for one in self._parts) + chunked_tombstones
            self._equal(name, "tombstones", manifest.tombstones, tombstones)
        if undecided:
            self.unchecked.append(
                f"{undecided} keys: raw, or the policies of earlier runs, do not tell what they must be"
            )
        self._compare_dropped(manifest, dropped_to)

    def _compare_dropped(self, manifest: Manifest, dropped_to: int) -> None:
        """Readers go by this number to know whether they miss deletions, or values that expired (R7)."""
        compacted = self._snapshot.compacted
        if compacted is not None and dropped_to > manifest.dropped_to:
            what = f"dropped_to is {manifest.dropped_to}, but the newest message of a key at offset"
            self._say(compacted.manifest.name, f"{what} {dropped_to} is gone")

    def take_details(self, found: list[Findings]) -> None:
        """The answers of the third stage."""
        for one in found:
            self.findings.merge(one)

    def forgive(self, names: set[str]) -> None:
        """Take back damage of objects that are no longer the topic's."""
        forgiven = [one for one in self.findings.named if one.kind is Kind.DAMAGED and one.where in names]
        self.findings.named = [one for one in self.findings.named if one not in forgiven]
        self.findings.more(Kind.DAMAGED, -len(forgiven))

    def report(self, plan: VerifyPlan, differences: Sequence[Difference]) -> Report:
        """All of it, `differences` being those that were named; to be asked for once."""
        manifest = plan.manifest
        if manifest is not None:
            for first, last in plan.gaps:
                self.unchecked.append(f"offsets {first} to {last}: raw is trimmed, so only checksums and the compacted "
                                      "ledger itself tell")  # fmt: skip
            if plan.history is not None and not plan.history.complete:
                self.unchecked.append("which values are missing: the history of runs is not complete")
            if len(self.differing) > DETAILED_RANGES:
                self.unchecked.append(f"{len(self.differing) - DETAILED_RANGES} more hash ranges differ, unnamed")
            self._checked["part rows compared with raw"] = self._compared
        compacted = self._snapshot.compacted
        return Report(
            self._snapshot.topic.name,
            compacted.ledger_id if compacted else None,
            compacted.generation if compacted else 0,
            self._checked,
            tuple(self.unchecked),
            tuple(differences),
            {kind: count for kind, count in self.findings.counts.items() if count > 0},
        )

    def _equal(self, where: str, name: str, said: object, wanted: object) -> None:
        if said != wanted:
            self._say(where, f"{name} is {said}, not {wanted}")

    def _say(self, where: str, what: str) -> None:
        self.findings.add(Difference(Kind.INCONSISTENT, where, what))


def _total(fingerprints: Iterable[Fingerprint | None]) -> Fingerprint:
    return sum((one for one in fingerprints if one is not None), Fingerprint())
