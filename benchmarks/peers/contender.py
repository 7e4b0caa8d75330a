"""Interface of contenders in a sitting, and the measurement of their compactions.

Written bytes and memory are the kernel's counts (/proc, Linux only) over all processes of a contender: the bytes of
dirtied file pages (`write_bytes`), and the sum of the peaks of resident memory, so that shared pages count several
times. The peaks are reset before each compaction, but memory that a process kept from before (a Java heap that grew
during loading) counts.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.data import Shape
from benchmarks.machine import descendants, peak_resident_bytes
from benchmarks.peers.records import Survivors


class PeerFailed(Exception):
    """A contender failed. The message has the reason and the end of its log."""


@dataclass(frozen=True)
class Messages:
    """The same messages as a Parquet file and as a records file. `name`: also the prefix of topics."""

    name: str
    shape: Shape
    parquet: Path
    records: Path


@dataclass(frozen=True)
class Compaction:
    """Time of one compaction, by the contender's clock. `remark`: its own figures."""

    seconds: float
    remark: str = ""


class Contender(Protocol):
    """A compactor of messages. Call `load`, `compact`, `survivors` and `forget` per round, and `stop` at the end."""

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> str:
        """The family of the contender. Goals apply to the fastest of a family."""
        ...

    def start(self) -> None:
        """Start the contender. Raises PeerFailed."""
        ...

    def load(self, messages: Messages, topic: str) -> None:
        """Put the messages into a topic, which is new to brokers."""
        ...

    def compact(self, topic: str) -> Compaction:
        """Compact the whole topic, for the first time."""
        ...

    def survivors(self, topic: str, shape: Shape) -> Survivors:
        """Return the messages of a compacted reader, without tombstones."""
        ...

    def forget(self, topic: str) -> None:
        """Delete the data of the compaction."""
        ...

    def process(self) -> int:
        """Return the id of the root process of all its work."""
        ...

    def stop(self) -> None:
        """End its processes, in any state."""
        ...


@dataclass(frozen=True)
class Usage:
    """Resources of one compaction."""

    written_bytes: int
    peak_bytes: int


class Meter:
    """Meter of a contender's resources since its construction."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._before = {item: _written_bytes(item) for item in self._processes()}
        for item in self._before:
            with contextlib.suppress(OSError):
                Path(f"/proc/{item}/clear_refs").write_text("5")  # resets the peak to the present value

    def read(self) -> Usage:
        """Return the usage since the construction, without processes that have ended."""
        now = self._processes()
        written = sum(_written_bytes(item) - self._before.get(item, 0) for item in now)
        return Usage(written, sum(map(peak_resident_bytes, now)))

    def _processes(self) -> list[int]:
        return [self._process, *(below for below, _ in descendants(self._process))]


class Deadline:
    """Time limit of a step. `check` raises PeerFailed after its end."""

    def __init__(self, seconds: float, step: str) -> None:
        self._seconds, self._step = seconds, step
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise PeerFailed(f"{self._step} did not end within {self._seconds:.0f} s; --limit gives it more")


def _written_bytes(process: int) -> int:
    try:
        match = re.search(r"^write_bytes: (\d+)", Path(f"/proc/{process}/io").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) if match else 0
