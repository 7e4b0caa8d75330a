"""What takes part in a sitting, and what is measured while it compacts.

Bytes written and memory are the kernel's counts (/proc, Linux only) over all processes of a contender: the bytes that
they made dirty in files (`write_bytes`), and the sum of each process's own peak of resident memory, so that pages which
two share count twice. The peaks are set back before each compaction, but memory that a process keeps from before
(a Java heap that loading grew) counts.
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
    """A contender could not do its work; the message says what, and what its log says."""


@dataclass(frozen=True)
class Messages:
    """The same messages as a Parquet file and as a records file (`records`). `name`: also of the topic to make."""

    name: str
    shape: Shape
    parquet: Path
    records: Path


@dataclass(frozen=True)
class Compaction:
    """One compaction as the contender's clock saw it; `remark`: what it said about its work."""

    seconds: float
    remark: str = ""


class Contender(Protocol):
    """Compacts messages. Calls come in the order load, compact, survivors, forget, over and over; `stop` at the end."""

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> str:
        """Whose it is: the goals are held against the family's quickest."""
        ...

    def start(self) -> None:
        """Make it ready; raises PeerFailed."""
        ...

    def load(self, messages: Messages, topic: str) -> None:
        """Put the messages into a topic, which is new to brokers."""
        ...

    def compact(self, topic: str) -> Compaction:
        """Compact all of the topic, nothing of which was compacted before."""
        ...

    def survivors(self, topic: str, shape: Shape) -> Survivors:
        """What a compacted reader gets, tombstones aside."""
        ...

    def forget(self, topic: str) -> None:
        """Free what the compaction took."""
        ...

    def process(self) -> int:
        """The id of the process that all of its work is in or below."""
        ...

    def stop(self) -> None:
        """End its processes, whatever happened."""
        ...


@dataclass(frozen=True)
class Usage:
    """What a contender used in one compaction."""

    written_bytes: int
    peak_bytes: int


class Meter:
    """Begins at once; `read` says what was used since."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._before = {item: _written_bytes(item) for item in self._processes()}
        for item in self._before:
            with contextlib.suppress(OSError):
                Path(f"/proc/{item}/clear_refs").write_text("5")  # the peak is the present from here on

    def read(self) -> Usage:
        """Processes that have ended in between are not seen."""
        now = self._processes()
        written = sum(_written_bytes(item) - self._before.get(item, 0) for item in now)
        return Usage(written, sum(map(peak_resident_bytes, now)))

    def _processes(self) -> list[int]:
        return [self._process, *(below for below, _ in descendants(self._process))]


class Deadline:
    """Raises PeerFailed when something takes too long."""

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds, self._what = seconds, what
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise PeerFailed(f"{self._what} did not end within {self._seconds:.0f} s; --limit gives it more")


def _written_bytes(process: int) -> int:
    try:
        found = re.search(r"^write_bytes: (\d+)", Path(f"/proc/{process}/io").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
