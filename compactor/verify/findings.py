"""What verify has found: differences, named as far as a person can look at them and counted to the last.

A difference says of which kind it is, in which object or row, and of which key and offset where it is of one. A task
names the first of each kind and only counts the others, so what goes through the driver is bounded by the number of
tasks, however much is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from storage.errors import CompactorError, DataLoss, full_part, with_full

UNREADABLE = (DataLoss, pa.ArrowException, ValueError, KeyError, TypeError, OverflowError)
"""What reading bytes may raise that somebody wrote wrongly, though their checksums are right."""


class Kind(StrEnum):
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


@dataclass(frozen=True)
class Difference:
    """One difference. `where`: an object's name, or a row of the database; `what` says it in words,
    perhaps in two ways (`storage.errors.with_full`).

    `key` None: the key is not known, or it has to do with none. `key_hash`: 32 hexadecimal digits.
    """

    kind: Kind
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
        said = f"{''.join(named)}{full_part(self.what)}"
        return said if self.where in said else f"{said} ({self.where})"


@dataclass
class Findings:
    """A growing list; `limit`: so many of each kind are named. Travels from a task to the driver."""

    limit: int
    named: list[Difference] = field(default_factory=list)
    counts: dict[Kind, int] = field(default_factory=dict)

    def add(self, difference: Difference, count: int = 1) -> None:
        """Name it, if there is room, and count it as `count`."""
        if self.room(difference.kind):
            self.named.append(difference)
        self.counts[difference.kind] = self.counts.get(difference.kind, 0) + count

    def more(self, kind: Kind, count: int) -> None:
        """Count differences that are not named."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count

    def room(self, kind: Kind) -> int:
        """How many more of this kind will be named."""
        return self.limit - sum(1 for one in self.named if one.kind is kind)

    def merge(self, other: Findings) -> None:
        """Take in what a task has found; what two tasks stumbled over alike counts once."""
        for difference in other.named:
            if difference in self.named:
                self.more(difference.kind, -1)
            elif self.room(difference.kind):
                self.named.append(difference)
        for kind, count in other.counts.items():
            self.more(kind, count)

    @property
    def total(self) -> int:
        """All differences, named or not."""
        return sum(self.counts.values())

    @contextmanager
    def reading(self, where: str) -> Iterator[None]:
        """Damage that is met inside is a difference, and ends what is inside; all other errors are raised."""
        try:
            yield
        except UNREADABLE as error:
            said = with_full("it cannot be decoded", f"it cannot be decoded ({error!r:.200})")
            if isinstance(error, CompactorError):
                said = with_full(error.public or "it cannot be read", error.message)
            self.add(Difference(Kind.DAMAGED, where, said))
