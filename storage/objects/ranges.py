"""Many ranges of objects in few requests: neighbours in one object are read in one ranged read.

This includes gaps that are cheaper to read than another request (`ObjectStore.preferred_read_bytes`). So a run that
reads thousands of small blocks makes a request for each object that they are in, not one for each block. The requests
run side by side (`ObjectStore.concurrent_requests`).

Errors: those of `ObjectStore.get`. The bytes are not checked here: the caller knows the checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from storage.ahead import run_ahead
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
    runs: list[list[int]] = []
    for number in sorted(range(len(ranges)), key=lambda item: (ranges[item].name, ranges[item].start)):
        if runs and _are_read_together(store, ranges[runs[-1][-1]], ranges[number]):
            runs[-1].append(number)
        else:
            runs.append([number])
    reads = (partial(_read_run, store, [ranges[number] for number in run]) for run in runs)
    for run, data in zip(runs, run_ahead(reads, store.concurrent_requests), strict=True):
        for number in run:
            start = ranges[number].start - ranges[run[0]].start
            blocks[number] = data[start : start + ranges[number].length]
    return blocks


def _are_read_together(store: ObjectStore, before: ByteRange, following: ByteRange) -> bool:
    same = before.name == following.name
    return same and 0 <= following.start - before.end <= store.preferred_read_bytes


def _read_run(store: ObjectStore, run: Sequence[ByteRange]) -> memoryview:
    """Return the bytes from the beginning of the first range of one object to the end of the last."""
    return memoryview(store.get(run[0].name, run[0].start, run[-1].end - run[0].start))
