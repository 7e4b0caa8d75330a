"""Results of a verification: differences, the findings of a task, and the report.

A difference has a kind, an object or database row, and, if it concerns a single message, a key and an offset. A task
names the first differences of each kind and counts the others, so the number of tasks bounds the size of all findings.
The driver adds up the findings of the tasks and builds the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from compactor.verify.plan import CHUNK_TABLES, VerifyPlan
from storage.errors import CompactorError, DataLoss
from storage.ledger.key_index import UNKEYED_CLASSES
from storage.metadata.records import TopicSnapshot
from storage.model import MessageId, TopicName

UNREADABLE = (DataLoss, pa.ArrowException, ValueError, KeyError, TypeError, OverflowError)
"""Errors of reading wrongly written bytes whose checksums are right."""
Values = Mapping[str, object]
Offsets = npt.NDArray[np.int64] | BitMap64 | Sequence[int]


class DifferenceKind(StrEnum):
    """The kind of a difference that a verification has found."""

    MISSING = "missing"
    """A required message or index record is absent."""
    EXTRA = "extra"
    """A message or index record exists that no input accounts for."""
    ALTERED = "altered"
    """A message or index record has other content than was written, or another message is in its place."""
    REVIVED = "revived"
    """A key has a value although it was deleted or its value has expired."""
    DAMAGED = "damaged"
    """An object is missing, has the wrong size, does not match its checksum, or cannot be decoded."""
    INCONSISTENT = "inconsistent"
    """Two records of the same fact disagree: counts, sums, positions, times, pointers."""


DETAILED_RANGES = 64
"""Maximum number of hash ranges that are compared key by key. Each reads all parts."""
TABLE_OBJECTS = "table objects"
_OF_OBJECTS = ("ledgers", "raw rows", "parts", "part rows", "indexes", "index records")
_OF_KEYS = ("keys", "part rows compared with raw")


@dataclass(frozen=True)
class Difference:
    """One difference. `where`: an object's name, or a row of the database.

    `what`: a description. `public`: the description for others than operators; empty: `what`. `key` None: the key is
    unknown, or the difference concerns no key. `key_hash`: 32 hexadecimal digits.
    """

    kind: DifferenceKind
    where: str
    what: str
    offset: int | None = None
    key: bytes | None = None
    key_hash: str | None = None
    public: str = ""


@dataclass
class Findings:
    """Differences of a task or of the report. At most `limit` of each kind are named, all are counted."""

    limit: int
    named: list[Difference] = field(default_factory=list)
    counts: dict[DifferenceKind, int] = field(default_factory=dict)

    def add(self, difference: Difference, count: int = 1) -> None:
        """Count a difference `count` times, and name it if fewer than `limit` of its kind are named."""
        if self.names_left(difference.kind):
            self.named.append(difference)
        self.add_count(difference.kind, count)

    def add_inconsistency(self, where: str, what: str) -> None:
        """Add a difference of kind INCONSISTENT."""
        self.add(Difference(DifferenceKind.INCONSISTENT, where, what))

    def add_each(
        self,
        kind: DifferenceKind,
        where: str,
        what: str,
        offsets: Offsets,
        keys: pa.ChunkedArray | None = None,
        key_hash: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        """Add a difference for each offset: name the first ones, and count all.

        `keys`: the key of each, by its number in `offsets`. `key_hash`: returns the key hash for such a number.
        """
        room = self.names_left(kind)
        for number, offset in enumerate(islice(offsets, room)):
            key = None if keys is None else keys[number].as_py()
            self.named.append(Difference(kind, where, what, int(offset), key, key_hash(number)))
        self.add_count(kind, len(offsets))

    def compare(self, where: str, recorded: Values, actual: Values, text: str = "{} is {}, not {}") -> None:
        """Add an inconsistency for each name in `recorded` whose actual value differs.

        `text`: the description, with placeholders for the name, the recorded and the actual value.
        """
        for name, value in recorded.items():
            if value != actual[name]:
                self.add_inconsistency(where, text.format(name, _value_text(value), _value_text(actual[name])))

    def check_lower_bounds(self, where: str, holder: object, item: str, actual: Mapping[str, Collection[int]]) -> None:
        """Add an inconsistency for each lower bound that is None or above the least actual value.

        `actual`: the values by name of the bound, an attribute of `holder`. `item`: the noun that has the values ("a
        row").
        """
        for name, values in actual.items():
            bound = getattr(holder, name)
            if values and (bound is None or bound > min(values)):
                self.add_inconsistency(where, f"the manifest records {name} {bound}, but {item} has {min(values)}")

    def add_count(self, kind: DifferenceKind, count: int) -> None:
        """Add to the number of differences of a kind, without naming any; a negative `count` is subtracted."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count

    def names_left(self, kind: DifferenceKind) -> int:
        """Return how many more differences of this kind will be named."""
        return max(0, self.limit - sum(1 for difference in self.named if difference.kind is kind))

    def merge(self, other: Findings) -> None:
        """Add the findings of a task. A named difference that both have counts once."""
        for difference in other.named:
            if difference in self.named:
                self.add_count(difference.kind, -1)
            elif self.names_left(difference.kind):
                self.named.append(difference)
        for kind, count in other.counts.items():
            self.add_count(kind, count)

    def remove_damage(self, names: Collection[str]) -> None:
        """Remove the named differences of kind DAMAGED of these objects."""
        forgiven = [named for named in self.named if named.kind is DifferenceKind.DAMAGED and named.where in names]
        self.named = [named for named in self.named if named not in forgiven]
        self.add_count(DifferenceKind.DAMAGED, -len(forgiven))

    @contextmanager
    def record_damage(self, where: str) -> Iterator[None]:
        """Run the body; if it raises an error of `UNREADABLE`, add that as damage of `where`. Other errors
        propagate."""
        try:
            yield
        except UNREADABLE as error:
            what, public = f"it cannot be decoded ({error!r:.200})", "it cannot be decoded"
            if isinstance(error, CompactorError):
                what, public = error.message, error.public or "it cannot be read"
            self.add(Difference(DifferenceKind.DAMAGED, where, what, public=public))


@dataclass(frozen=True)
class Fingerprint:
    """Number of the elements of a set, and the sum of their mixed bits modulo 2⁶⁴: equal for equal sets."""

    count: int = 0
    total: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.count + other.count, (self.total + other.total) % 2**64)

    def __sub__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.count - other.count, (self.total - other.total) % 2**64)


@dataclass
class TaskFindings:
    """Result of one task. The driver adds up `counts` and `fingerprints`, by name, over all tasks.

    `complete`: everything under the fingerprints was readable. `dropped_to`: highest offset of a winner that was
    rightly removed, −1: none. `last_alive`: id of the last live row of a part.
    """

    findings: Findings
    counts: Counter[str] = field(default_factory=Counter)
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict)
    complete: bool = True
    dropped_to: int = -1
    last_alive: MessageId | None = None

    def add_fingerprint(self, name: str, fingerprint: Fingerprint) -> None:
        """Add `fingerprint` to the fingerprint with this name."""
        self.fingerprints[name] = self.fingerprints.get(name, Fingerprint()) + fingerprint


@dataclass(frozen=True)
class Report:
    """Report of a verification.

    `compacted_ledger` None: the topic has none. `checked`: counts by noun. `unchecked`: sentences for the user about
    what verify could not decide. `differences`: the named ones. `counts`: all differences by kind. `raw_differs`: a raw
    ledger has differences, so that raw does not replace the compacted ledger.
    """

    topic: TopicName
    compacted_ledger: int | None
    generation: int
    checked: Mapping[str, int]
    unchecked: tuple[str, ...]
    differences: tuple[Difference, ...]
    counts: Mapping[DifferenceKind, int]
    raw_differs: bool = False

    @property
    def total(self) -> int:
        """The number of all differences, named or not."""
        return sum(self.counts.values())


@dataclass
class ReportBuilder:
    """Builder of the report, which gets the answers of the stages in their order.

    `differing`: hash ranges in which index and parts differ. `unkeyed_differ`: index and parts differ in the rows
    outside the key map, or in the chunks.
    """

    snapshot: TopicSnapshot
    plan: VerifyPlan
    findings: Findings
    unchecked: list[str] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    unkeyed_differ: bool = False
    raw_differs: bool = False
    """True if a raw ledger has differences."""
    _counts: Counter[str] = field(default_factory=Counter)
    _rows: dict[str, Fingerprint] = field(default_factory=dict)
    """Fingerprints of the live rows of all parts."""
    _complete: bool = True
    """True if all parts were readable."""

    def add(self, answers: Sequence[TaskFindings]) -> None:
        """Add the findings and counts of the answers."""
        for answer in answers:
            self.findings.merge(answer.findings)
            self._counts += answer.counts

    def add_objects_stage(self, answers: Sequence[TaskFindings]) -> None:
        """Add the answers of the objects stage, in the order of the objects, and compare the last live message."""
        self.add(answers)
        self.raw_differs = any(answer.counts["ledgers"] and answer.findings.counts for answer in answers)
        parts = [answer for answer in answers if answer.counts["parts"]]
        self._rows = _sum_fingerprints(parts)
        self._complete = all(part.complete for part in parts)
        compacted, manifest = self.snapshot.compacted, self.plan.manifest
        if compacted is not None and manifest is not None and self._complete:
            last = parts[-1].last_alive if parts else None
            where = f"row of compacted ledger {compacted.ledger_id}"
            self.findings.compare(where, {"last_message_id": compacted.last_message_id}, {"last_message_id": last})

    def add_keys_stage(self, answers: Sequence[TaskFindings]) -> None:
        """Add the answers about hash ranges and unkeyed rows, and compare the fingerprints of index and parts."""
        self.add(answers)
        manifest, compacted = self.plan.readable_manifest, self.snapshot.compacted
        assert compacted is not None
        index = _sum_fingerprints(answers)
        differing = {name for name, total in index.items() if total != self._rows.get(name, Fingerprint())}
        if self._complete:
            names = map(self.plan.fingerprint_name, range(len(self.plan.hash_ranges)))
            self.differing = [number for number, name in enumerate(names) if name in differing]
            self.unkeyed_differ = not differing.isdisjoint((CHUNK_TABLES, *UNKEYED_CLASSES))
        where = compacted.manifest.name
        if self._complete and all(answer.complete for answer in answers):
            recorded = {"keys": manifest.keys, "tombstones": manifest.tombstones}
            actual = {"keys": self._counts["values"], "tombstones": self._counts["tombstones"]}
            self.findings.compare(where, recorded, actual)
        if self._counts["undecided"]:
            reason = "raw ledgers and the policies of earlier runs do not decide their values"
            self.unchecked.append(f"{self._counts['undecided']} keys: {reason}")
        dropped_to = max(answer.dropped_to for answer in answers)
        if dropped_to > manifest.dropped_to:  # readers compare it with their position: they may miss deletions (R7)
            what = f"dropped_to is {manifest.dropped_to}, but the newest message of a key, at offset {dropped_to},"
            self.findings.add_inconsistency(where, f"{what} was removed")

    def build_report(self, differences: Sequence[Difference]) -> Report:
        """Return the report. `differences`: the named ones of `findings`, with their keys added."""
        unchecked, compacted = list(self.unchecked), self.snapshot.compacted
        checked = {noun: self._counts[noun] for noun in _OF_OBJECTS}
        if self._counts[TABLE_OBJECTS]:
            checked[TABLE_OBJECTS] = self._counts[TABLE_OBJECTS]
        if self.plan.manifest is not None:
            checked |= {noun: self._counts[noun] for noun in _OF_KEYS}
            for first, last in self.plan.gaps:
                what = "raw is trimmed, so only checksums and the compacted ledger itself were checked"
                unchecked.append(f"offsets {first} to {last}: {what}")
            if not self.plan.history.complete:
                unchecked.append("missing values: the history of runs is incomplete, so any run may have removed them")
            if len(self.differing) > DETAILED_RANGES:
                unchecked.append(
                    f"{len(self.differing) - DETAILED_RANGES} more hash ranges differ; their keys are not named"
                )
        return Report(
            self.snapshot.topic.name,
            compacted.ledger_id if compacted else None,
            compacted.generation if compacted else 0,
            checked,
            tuple(unchecked),
            tuple(differences),
            {kind: count for kind, count in self.findings.counts.items() if count > 0},
            self.raw_differs,
        )


def _sum_fingerprints(answers: Sequence[TaskFindings]) -> dict[str, Fingerprint]:
    """Return the sums of the fingerprints of the answers, by name."""
    total = TaskFindings(Findings(0))
    for answer in answers:
        for name, fingerprint in answer.fingerprints.items():
            total.add_fingerprint(name, fingerprint)
    return total.fingerprints


def _value_text(value: object) -> str:
    """Return a value as text; a pair as `first (second)`."""
    return f"{value[0]} ({value[1]})" if isinstance(value, tuple) and len(value) == 2 else str(value)
