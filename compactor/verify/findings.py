"""What verify has found: differences, named as far as a person can check them and counted to the last.

A difference says of which kind it is, in which object or row, and of which key and offset where it is of one. A task
names the first of each kind and only counts the others, so what goes through the driver is bounded by the number of
tasks, however much is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from storage.errors import CompactorError, DataLoss, full_part, with_full

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


def _plain(value: object) -> str:
    return f"{value[0]} ({value[1]})" if isinstance(value, tuple) and len(value) == 2 else str(value)
