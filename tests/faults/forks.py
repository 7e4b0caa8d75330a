"""A process that forks a child for each order, so that a crash costs a fork and not a second of imports.

It imports everything once and opens nothing: what a child opens it opens itself, and no connection, lock or thread that
matters crosses the fork (polars and Arrow start their threads when they are used, and it uses none of them). Orders and
answers are lines of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
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


def serve(raise_child: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """In the forking process: an answer to each order, until there are no more."""
    for order in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(raise_child(json.loads(order))).encode() + b"\n")
        sys.stdout.buffer.flush()
