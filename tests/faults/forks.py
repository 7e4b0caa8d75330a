"""A process that forks a child for each order, so that a crash costs a fork and not a second of imports.

It imports everything once and opens nothing: what a child opens it opens itself, and no connection, lock or thread that
matters crosses the fork (polars and Arrow start their threads when they are used, and it uses none of them). Orders and
answers are lines of JSON.
"""

from __future__ import annotations

import gc
import json
import math
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HUNG_SECONDS = 60
"""A child that gives no sign for that long is killed, and the answer says so."""
REPOSITORY = Path(__file__).resolve().parents[2]


class Forks:
    """The forking process, seen from the tests: `python -m {module}`. Use it in a `with` statement."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Let a child live, to its end; the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def live_in_child(live: Callable[[int], object], killed_after: float = math.inf) -> tuple[int, bytes, str]:
    """Let a child call `live` with a pipe to write to, to its end or until it has written so many bytes.

    The signal that ended it (0: none did), what it wrote, and a traceback, or "".
    """
    reading, writing = os.pipe()
    complaints, complaining = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.close(complaints)
        try:
            live(writing)
        except BaseException:
            os.write(complaining, traceback.format_exc().encode())
        os._exit(0)
    os.close(writing)
    os.close(complaining)
    written, hung, killed = b"", False, False
    while True:
        if len(written) >= killed_after and not killed:
            os.kill(pid, signal.SIGKILL)
            killed = True
        if not hung and not select.select([reading], [], [], HUNG_SECONDS)[0]:
            hung = True
            os.kill(pid, signal.SIGKILL)
        if not (more := os.read(reading, 1 << 16)):
            break
        written += more
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(complaints) as file:
        error = file.read()
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return number, written, f"it gave no sign for {HUNG_SECONDS} s {error}" if hung else error


def serve(raise_child: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """In the forking process: an answer to each order, until there are no more.

    A child collects no garbage of the imports, which it would copy to look at, and of its own seldom.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    for order in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(raise_child(json.loads(order))).encode() + b"\n")
        sys.stdout.buffer.flush()
