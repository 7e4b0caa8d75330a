"""A contender in a process of its own, kept alive and warm, so that none disturbs another's memory or threads.

A child that dies (out of memory, most likely) or raises becomes `ContenderFailed`, and the benchmark continues.
Children offer themselves to the kernel's OOM killer before the parent.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from benchmarks.machine import descendants, peak_resident_bytes


class ContenderFailed(Exception):
    """A contender could not do its work; the message says why."""


class Rewrite(Protocol):
    """Reads Parquet rows, writes the newest row of each key as Parquet, all columns."""

    def __call__(self, sources: list[str], target: Path) -> None:
        """`target`: a new folder that takes the output, as files named *.parquet."""
        ...


class Child:
    """Runs rewrites in a child process, which is started when first needed."""

    def __init__(self, start: Callable[[], dict[str, Rewrite]]) -> None:
        """`start` makes the rewrites inside the child, by name; it must be importable from there."""
        self._start = start
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def run(self, name: str, sources: list[str], target: Path) -> float:
        """Seconds of one rewrite, without what passing the request costs. Raises ContenderFailed."""
        if self._process is None or self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._start), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._connection.send((name, sources, target))
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            process, self._process = self._process, None
            process.join()
            raise ContenderFailed(f"its process ended with exit code {process.exitcode}") from error
        if isinstance(answer, str):
            raise ContenderFailed(answer)
        return float(answer)

    def peak_bytes(self) -> int:
        """The largest peak of the child and the processes below it."""
        if self._process is None or self._process.pid is None:
            return 0
        process = self._process.pid
        return max(map(peak_resident_bytes, [process, *(below for below, _ in descendants(process))]))

    def stop(self) -> None:
        """End the child."""
        if self._process is not None and self._connection is not None:
            self._connection.close()
            self._process.join(20)
            if self._process.is_alive():
                self._process.terminate()
            self._process = None


def _serve(connection: Connection, start: Callable[[], dict[str, Rewrite]]) -> None:
    Path("/proc/self/oom_score_adj").write_text("1000")
    rewrites: dict[str, Rewrite] = {}
    while True:
        try:
            name, sources, target = connection.recv()
        except EOFError:
            return
        try:
            rewrites = rewrites or start()
            started = time.perf_counter()
            rewrites[name](sources, target)
            connection.send(time.perf_counter() - started)
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0][:300]
            last = traceback.extract_tb(error.__traceback__)[-1]
            connection.send(f"{type(error).__name__}: {first} ({Path(last.filename).name}:{last.lineno})")
