"""What a verification has found, put together on the driver: sums and counts, and the differences that are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compactor.verify.compare import Fingerprint, TaskFindings
from compactor.verify.findings import Difference, DifferenceKind, Findings
from compactor.verify.plan import CHUNK_TABLES, VerifyPlan
from storage.ledger.key_index import UNKEYED_CLASSES
from storage.metadata.records import TopicSnapshot
from storage.model import TopicName

DETAILED_RANGES = 64
"""At most that many hash ranges are gone through key by key; each reads all parts."""
_OF_OBJECTS = ("ledgers", "raw rows", "parts", "part rows", "indexes", "index records")
_OF_KEYS = ("keys", "part rows compared with raw")


@dataclass(frozen=True)
class Report:
    """What verify checked, what it could not tell, and every difference.

    `compacted_ledger` None: the topic has none. `checked`: counts by noun. `unchecked`: sentences for a person.
    `counts`: differences by kind, more than are named.
    """

    topic: TopicName
    compacted_ledger: int | None
    generation: int
    checked: Mapping[str, int]
    unchecked: tuple[str, ...]
    differences: tuple[Difference, ...]
    counts: Mapping[DifferenceKind, int]

    @property
    def total(self) -> int:
        """All differences, named or not."""
        return sum(self.counts.values())


@dataclass
class ReportBuilder:
    """Takes in the answers of the stages, in their order.

    `differing`: hash ranges of which index and parts do not say the same; `unkeyed_differ`: the same of rows outside
    the key map, and of chunks.
    """

    snapshot: TopicSnapshot
    plan: VerifyPlan
    findings: Findings
    unchecked: list[str] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    unkeyed_differ: bool = False
    _counts: Counter[str] = field(default_factory=Counter)
    _rows: dict[str, Fingerprint] = field(default_factory=dict)
    """Fingerprints of the live rows of all parts."""
    _complete: bool = True
    """Whether all parts could be read."""

    def _add(self, answers: Sequence[TaskFindings]) -> None:
        for answer in answers:
            self.findings.merge(answer.findings)
            self._counts += answer.counts

    def add_objects(self, answers: Sequence[TaskFindings]) -> None:
        """The answers about ledgers, parts and indexes."""
        self._add(answers)
        parts = [answer for answer in answers if answer.counts["parts"]]
        self._rows = _summed(parts)
        self._complete = all(part.complete for part in parts)
        compacted, manifest = self.snapshot.compacted, self.plan.manifest
        if compacted is not None and manifest is not None and self._complete:
            last = parts[-1].last_alive if parts else None
            where = f"row of compacted ledger {compacted.ledger_id}"
            self._equal(where, "last_message_id", compacted.last_message_id, last)

    def add_keys(self, answers: Sequence[TaskFindings]) -> None:
        """The answers about hash ranges and unkeyed rows; compares what the index says with what the parts say."""
        self._add(answers)
        manifest, compacted = self.plan.serving, self.snapshot.compacted
        assert compacted is not None
        index = _summed(answers)
        differing = {name for name, of in index.items() if of != self._rows.get(name, Fingerprint())}
        if self._complete:
            names = map(self.plan.range_name, range(len(self.plan.ranges)))
            self.differing = [number for number, name in enumerate(names) if name in differing]
            self.unkeyed_differ = not differing.isdisjoint((CHUNK_TABLES, *UNKEYED_CLASSES))
        where = compacted.manifest.name
        if self._complete and all(answer.complete for answer in answers):
            self._equal(where, "keys", manifest.keys, self._counts["values"])
            self._equal(where, "tombstones", manifest.tombstones, self._counts["tombstones"])
        if self._counts["undecided"]:
            what = "raw, or the policies of earlier runs, do not tell what they must be"
            self.unchecked.append(f"{self._counts['undecided']} keys: {what}")
        dropped_to = max(answer.dropped_to for answer in answers)
        if dropped_to > manifest.dropped_to:  # readers go by it to know whether they miss deletions (R7)
            what = f"dropped_to is {manifest.dropped_to}, but the newest message of a key at offset"
            self.findings.inconsistent(where, f"{what} {dropped_to} is gone")

    def add_details(self, answers: Sequence[TaskFindings]) -> None:
        """What exactly differs."""
        self._add(answers)

    def report(self, differences: Sequence[Difference]) -> Report:
        """All of it, `differences` being those that were named."""
        unchecked, compacted = list(self.unchecked), self.snapshot.compacted
        checked = {noun: self._counts[noun] for noun in _OF_OBJECTS}
        if self.plan.manifest is not None:
            checked |= {noun: self._counts[noun] for noun in _OF_KEYS}
            for first, last in self.plan.gaps:
                what = "raw is trimmed, so only checksums and the compacted ledger itself tell"
                unchecked.append(f"offsets {first} to {last}: {what}")
            if not self.plan.history.complete:
                unchecked.append("which values are missing: the history of runs is not complete")
            if len(self.differing) > DETAILED_RANGES:
                unchecked.append(f"{len(self.differing) - DETAILED_RANGES} more hash ranges differ, unnamed")
        return Report(
            self.snapshot.topic.name,
            compacted.ledger_id if compacted else None,
            compacted.generation if compacted else 0,
            checked,
            tuple(unchecked),
            tuple(differences),
            {kind: count for kind, count in self.findings.counts.items() if count > 0},
        )

    def _equal(self, where: str, name: str, recorded: object, seen: object) -> None:
        self.findings.compare(where, "{} is {}, not {}", {name: recorded}, {name: seen})


def _summed(answers: Sequence[TaskFindings]) -> dict[str, Fingerprint]:
    """The fingerprints of some answers, by name."""
    total = TaskFindings(Findings(0))
    for answer in answers:
        for name, fingerprint in answer.fingerprints.items():
            total.add(name, fingerprint)
    return total.fingerprints
