"""What verify has found: differences, named as far as a person can check them and counted to the last.

A difference says of which kind it is, in which object or row, and of which key and offset where it is of one. A task
names the first of each kind and only counts the others, so what goes through the driver is bounded by the number of
tasks, however much is wrong. The driver adds up the answers of the tasks and puts the report together.
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
from storage.errors import CompactorError, DataLoss, full_part, with_full
from storage.ledger.key_index import UNKEYED_CLASSES
from storage.metadata.records import TopicSnapshot
from storage.model import MessageId, TopicName

UNREADABLE = (DataLoss, pa.ArrowException, ValueError, KeyError, TypeError, OverflowError)
"""What reading bytes may raise that were written wrongly, though their checksums are right."""
Offsets = npt.NDArray[np.int64] | BitMap64 | Sequence[int]


class DifferenceKind(StrEnum):
    """What a difference is."""

    MISSING = "missing"
    """A message, or a record of the index, that must be there is not."""
    EXTRA = "extra"
    """One is there that nothing accounts for."""
    ALTERED = "altered"
    """It is there, but not as it was written, or an older message stands in its place."""
    REVIVED = "revived"
    """A key has a value though it was deleted, or its value has expired."""
    DAMAGED = "damaged"
    """An object is missing, too short, not the bytes that its checksum says, or cannot be decoded."""
    INCONSISTENT = "inconsistent"
    """Two places that must say the same do not: counts, sums, positions, times, pointers."""


DETAILED_RANGES = 64
"""At most that many hash ranges are gone through key by key; each reads all parts."""
_OF_OBJECTS = ("ledgers", "raw rows", "parts", "part rows", "indexes", "index records")
_OF_KEYS = ("keys", "part rows compared with raw")


@dataclass(frozen=True)
class Difference:
    """One difference. `where`: an object's name, or a row of the database; `what` says it in words,
    perhaps in two ways (`storage.errors.with_full`).

    `key` None: the key is not known, or it has to do with none. `key_hash`: 32 hexadecimal digits.
    """

    kind: DifferenceKind
    where: str
    what: str
    offset: int | None = None
    key: bytes | None = None
    key_hash: str | None = None

    def __str__(self) -> str:
        named = [f"{self.kind}: "]
        if self.key is not None:
            named.append(f"key {self.key!r}, ")
        elif self.key_hash is not None:
            named.append(f"a key of hash {self.key_hash}, ")
        if self.offset is not None:
            named.append(f"offset {self.offset}, ")
        text = f"{''.join(named)}{full_part(self.what)}"
        return text if self.where in text else f"{text} ({self.where})"


@dataclass
class Findings:
    """A growing list; `limit`: at most that many of each kind are named. Travels from a task to the driver."""

    limit: int
    named: list[Difference] = field(default_factory=list)
    counts: dict[DifferenceKind, int] = field(default_factory=dict)

    def add(self, difference: Difference, count: int = 1) -> None:
        """Count a difference, and name it if there is room."""
        if self.room(difference.kind):
            self.named.append(difference)
        self.more(difference.kind, count)

    def inconsistent(self, where: str, what: str) -> None:
        """Add a difference between two places that must say the same."""
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
        """Name the first of some differences, each by its offset; count all. `keys`, `key_hash`: if they are known."""
        room = self.room(kind)
        for number, offset in enumerate(islice(offsets, room)):
            key = None if keys is None else keys[number].as_py()
            self.named.append(Difference(kind, where, what, int(offset), key, key_hash(number)))
        self.more(kind, len(offsets))

    def compare(self, where: str, text: str, recorded: Mapping[str, object], seen: Mapping[str, object]) -> None:
        """Name what is recorded otherwise than it is seen; `text` has places for the name and the two values."""
        for name, value in recorded.items():
            if value != seen[name]:
                self.inconsistent(where, text.format(name, _plain(value), _plain(seen[name])))

    def check_bounds(self, where: str, holder: object, text: str, seen: Mapping[str, Collection[int]]) -> None:
        """Name the lower bounds, attributes of `holder`, that are above the least of what is seen, or not there."""
        for name, values in seen.items():
            bound = getattr(holder, name)
            if values and (bound is None or bound > min(values)):
                self.inconsistent(where, f"the manifest says {name} {bound} of it, but {text} has {min(values)}")

    def more(self, kind: DifferenceKind, count: int) -> None:
        """Count differences that are not named."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count

    def room(self, kind: DifferenceKind) -> int:
        """How many more of this kind will be named."""
        return max(0, self.limit - sum(1 for difference in self.named if difference.kind is kind))

    def merge(self, other: Findings) -> None:
        """Take in what a task has found; what two tasks met alike counts once."""
        for difference in other.named:
            if difference in self.named:
                self.more(difference.kind, -1)
            elif self.room(difference.kind):
                self.named.append(difference)
        for kind, count in other.counts.items():
            self.more(kind, count)

    def forgive(self, names: Collection[str]) -> None:
        """Take back the damage of these objects."""
        forgiven = [found for found in self.named if found.kind is DifferenceKind.DAMAGED and found.where in names]
        self.named = [found for found in self.named if found not in forgiven]
        self.more(DifferenceKind.DAMAGED, -len(forgiven))

    @contextmanager
    def reading(self, where: str) -> Iterator[None]:
        """Damage that is met inside is a difference, and ends what is inside; all other errors are raised."""
        try:
            yield
        except UNREADABLE as error:
            reason = with_full("it cannot be decoded", f"it cannot be decoded ({error!r:.200})")
            if isinstance(error, CompactorError):
                reason = with_full(error.public or "it cannot be read", error.message)
            self.add(Difference(DifferenceKind.DAMAGED, where, reason))


@dataclass(frozen=True)
class Fingerprint:
    """How many things there are, and the sum of their mixed bits modulo 2⁶⁴: equal for equal sets."""

    count: int = 0
    total: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.count + other.count, (self.total + other.total) % 2**64)

    def __sub__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.count - other.count, (self.total - other.total) % 2**64)


@dataclass
class TaskFindings:
    """What one task found. `counts` and `fingerprints`, by name, are added up over all tasks.

    `complete`: whether all that the fingerprints are of could be read. `dropped_to`: the highest winner of a key that
    is rightly gone, −1: none. `last_alive`: the id of the last live row of a part.
    """

    findings: Findings
    counts: Counter[str] = field(default_factory=Counter)
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict)
    complete: bool = True
    dropped_to: int = -1
    last_alive: MessageId | None = None

    def add(self, name: str, fingerprint: Fingerprint) -> None:
        """Add to the fingerprint of that name."""
        self.fingerprints[name] = self.fingerprints.get(name, Fingerprint()) + fingerprint


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


def _plain(value: object) -> str:
    return f"{value[0]} ({value[1]})" if isinstance(value, tuple) and len(value) == 2 else str(value)
