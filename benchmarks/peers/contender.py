"""Interface of contenders in a sitting, and the measurement of their compactions.

Bytes, CPU time and memory are the kernel's counts (/proc, Linux only) over all processes of a contender: the bytes of
dirtied file pages (`write_bytes`) and of read calls (`rchar`), and the sum of the peaks of resident memory, so that
shared pages count several times. The peaks are reset before each compaction, but memory that a process kept from before
(a Java heap that grew during loading) counts.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.data import Shape
from benchmarks.machine import CpuSeconds, cpu_seconds, descendants, parent, peak_resident_bytes
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

    def load(self, messages: Messages, topic: str) -> float:
        """Append the messages to a topic, which is created if there is none. Return the seconds of sending."""
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
    """Resources of one step. `read_bytes`: bytes of read calls, from the page cache or the disk."""

    written_bytes: int
    peak_bytes: int
    read_bytes: int
    cpu_seconds: float


class Meter:
    """Meter of a contender's resources since its construction."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._before = {item: _Counters.of(item) for item in self._processes()}
        self._parents = {item: parent(item) for item in self._before}
        for item in self._before:
            with contextlib.suppress(OSError):
                Path(f"/proc/{item}/clear_refs").write_text("5")  # resets the peak to the present value

    def read(self) -> Usage:
        """Return the usage since the construction. A process that ended counts if its parent has waited for it."""
        now = {item: _Counters.of(item) for item in self._processes()}
        after = _Counters.total(now.values())
        before = _Counters.total(counters for item, counters in self._before.items() if self._is_counted(item, now))
        return Usage(
            max(0, after.written_bytes - before.written_bytes),
            sum(map(peak_resident_bytes, now)),
            max(0, after.read_bytes - before.read_bytes),
            max(0.0, after.cpu.own + after.cpu.children - before.cpu.own - before.cpu.children),
        )

    def _is_counted(self, process: int, now: Mapping[int, _Counters]) -> bool:
        """Return whether the past of a process is in the present counters: it lives, or a parent has waited for it.

        Spark's driver does not wait for all of its Python workers.
        """
        item = process
        while item not in now and item in self._parents:
            item = self._parents[item]
        if item == process or item not in now or item not in self._before:
            return item in now
        added = now[item].cpu.children - self._before[item].cpu.children
        past = self._before[process].cpu
        return added >= past.own + past.children

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


@dataclass(frozen=True)
class _Counters:
    """The kernel's counters of processes since their start, with those of ended children; of one that ended: 0."""

    written_bytes: int
    read_bytes: int
    cpu: CpuSeconds

    @classmethod
    def total(cls, counters: Iterable[_Counters]) -> _Counters:
        items = list(counters)
        return cls(
            sum(item.written_bytes for item in items),
            sum(item.read_bytes for item in items),
            CpuSeconds(sum(item.cpu.own for item in items), sum(item.cpu.children for item in items)),
        )

    @classmethod
    def of(cls, process: int) -> _Counters:
        try:
            text = Path(f"/proc/{process}/io").read_text()
        except OSError:
            return cls(0, 0, CpuSeconds(0.0, 0.0))
        counts = dict(re.findall(r"^(\w+): (\d+)", text, re.MULTILINE))
        return cls(int(counts["write_bytes"]), int(counts["rchar"]), cpu_seconds(process))
