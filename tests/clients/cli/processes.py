"""`compactor` as processes, for what only processes show. What a process prints is waited for, never a time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

COMMAND = [sys.executable, "-m", "api.cli.main"]


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, **options)


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes; it is killed at the end if it still runs."""
    pipe = subprocess.PIPE
    # A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C.
    hear = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, preexec_fn=hear
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def piped(stream: IO[str] | None) -> IO[str]:
    """A stream that is a pipe."""
    assert stream is not None
    return stream


def send(producer: subprocess.Popen[str], *values: object) -> None:
    """Give a producer lines of seven keys with these values."""
    lines = ({"key": f"k{int(str(value)) % 7}", "value": str(value)} for value in values)
    piped(producer.stdin).write("".join(json.dumps(line) + "\n" for line in lines))
    piped(producer.stdin).flush()


def acknowledged(producer: subprocess.Popen[str], count: int) -> list[str]:
    """The next ids that it prints; waits for them."""
    return [piped(producer.stdout).readline().strip() for _ in range(count)]


def received(reader: subprocess.Popen[str]) -> Any:
    """The next message that it prints; waits for it."""
    return json.loads(piped(reader.stdout).readline())


def ended(process: subprocess.Popen[str]) -> int:
    """The exit code of a process whose input is over."""
    piped(process.stdin).close()
    return process.wait()
