"""Many ranges of objects in few requests: neighbours in one object are read in one ranged read.

This includes gaps that are cheaper to read than another request (`ObjectStore.preferred_read_bytes`). So a run that
reads thousands of small blocks makes a request for each object that they are in, not one for each block.

Errors: those of `ObjectStore.get`. The bytes are not checked here: the caller knows the checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.objects.interface import ObjectStore


@dataclass(frozen=True)
class ByteRange:
    """`length` bytes of the object `name`, from the byte `start` on."""

    name: str
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


def read_ranges(store: ObjectStore, ranges: Sequence[ByteRange]) -> list[memoryview]:
    """Return the bytes of each range, in the order of `ranges`; all of them are in memory at once.

    They are views of shared buffers. Raises as `ObjectStore.get`.
    """
    blocks = [memoryview(b"")] * len(ranges)
    run: list[int] = []
    for number in sorted(range(len(ranges)), key=lambda item: (ranges[item].name, ranges[item].start)):
        if run and not _near(store, ranges[run[-1]], ranges[number]):
            _read(store, ranges, run, blocks)
            run = []
        run.append(number)
    if run:
        _read(store, ranges, run, blocks)
    return blocks


def _near(store: ObjectStore, before: ByteRange, following: ByteRange) -> bool:
    same = before.name == following.name
    return same and 0 <= following.start - before.end <= store.preferred_read_bytes


def _read(store: ObjectStore, ranges: Sequence[ByteRange], run: list[int], blocks: list[memoryview]) -> None:
    first, last = ranges[run[0]], ranges[run[-1]]
    data = memoryview(store.get(first.name, first.start, last.end - first.start))
    for number in run:
        start = ranges[number].start - first.start
        blocks[number] = data[start : start + ranges[number].length]
