"""`compactor` as processes, for what only processes show. What a process prints is waited for, never a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, TypeAlias

from tests.servers.service_forks import ForkedCommand, service_forks

COMMAND = [sys.executable, "-m", "api.cli.main"]
Command: TypeAlias = subprocess.Popen[str] | ForkedCommand


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, **options)


@contextmanager
def started(*arguments: str) -> Iterator[ForkedCommand]:
    """A forked command with pipes; it is killed at the end if it still runs."""
    with service_forks().open(*arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def piped(stream: IO[str] | None) -> IO[str]:
    """A stream that is a pipe."""
    assert stream is not None
    return stream


def send(producer: Command, *values: object) -> None:
    """Give a producer lines of seven keys with these values."""
    lines = ({"key": f"k{int(str(value)) % 7}", "value": str(value)} for value in values)
    piped(producer.stdin).write("".join(json.dumps(line) + "\n" for line in lines))
    piped(producer.stdin).flush()


def acknowledged(producer: Command, count: int) -> list[str]:
    """The next ids that it prints; waits for them."""
    return [piped(producer.stdout).readline().strip() for _ in range(count)]


def received(reader: Command) -> Any:
    """The next message that it prints; waits for it."""
    return json.loads(piped(reader.stdout).readline())


def ended(process: Command) -> int:
    """The exit code of a process whose input is over."""
    piped(process.stdin).close()
    return process.wait()
