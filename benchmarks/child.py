"""Contender in its own process, which stays warm and does not affect the memory or threads of another.

If a child dies (usually out of memory) or raises, the caller gets `ContenderFailed`, and the benchmark continues. The
kernel's OOM killer selects children before the parent.
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
    """A contender failed. The message has the reason."""


class Rewrite(Protocol):
    """A function that reads Parquet rows and writes the newest row of each key as Parquet, with all columns."""

    def __call__(self, sources: list[str], target: Path) -> None:
        """Write the output as files *.parquet into `target`, a new folder."""
        ...


class Child:
    """A child process that runs rewrites. It starts at the first use."""

    def __init__(self, start: Callable[[], dict[str, Rewrite]]) -> None:
        """Build the child. `start` returns the rewrites by name, inside the child, which must be able to import it."""
        self._start = start
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def run(self, name: str, sources: list[str], target: Path) -> float:
        """Return the seconds of one rewrite, without the transfer of the request. Raises ContenderFailed."""
        if self._process is None or self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, child_end = context.Pipe()
            self._process = context.Process(target=_serve, args=(child_end, self._start), daemon=True)
            self._process.start()
            child_end.close()
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
        """Return the largest memory peak of the child and its descendants."""
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
