"""`compactor serve` as a process of its own, at a port that is free, compacting without Spark.

It is forked (`service_forks.py`), unless a command is named: `SERVE` is the command line of a user.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

from tests.servers.service_forks import service_forks

_ENDS_WITHIN_SECONDS = 30
_LOOK_AGAIN_SECONDS = 0.05
SERVE = (sys.executable, "-m", "api.cli.main", "serve", "--port", "0")


class ServiceProcess(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class RunningService:
    """A service that answers. `log`: what it said, a JSON object a line."""

    url: str
    broker_service_url: str
    process: ServiceProcess
    log: Path


@contextmanager
def compactor_service(
    folder: Path, *arguments: str, command: Sequence[str] = (), **environment: str
) -> Iterator[RunningService]:
    """Start one with its data in `folder`, wait until it answers, and end it by SIGTERM."""
    log = folder / "serve.log"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COMPACTOR_")}
    chosen = {"COMPACTOR_DATA": str(folder / "data"), "COMPACTOR_SPARK_MASTER": "in-process", **environment}
    # Into a file: no process reads a pipe while the service runs, and a full one would stop it.
    with log.open("w") as written, log.open() as read:
        process = _start(command, arguments, {**clean, **chosen}, written)
        try:
            yield RunningService(*_urls(process, read), process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_ENDS_WITHIN_SECONDS)
            finally:
                process.kill()
                process.wait()


def _start(
    command: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str], log: TextIO
) -> ServiceProcess:
    if not command:
        return service_forks().start(["serve", "--port", "0", *arguments], environment, log)
    return subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=log, text=True)


def _urls(process: ServiceProcess, log: TextIO) -> tuple[str, str]:
    """The URLs that the service tells when it answers, for HTTP and for Pulsar's protocol."""
    message = ""
    while process.poll() is None:
        message += log.read()
        for line in message.splitlines(keepends=True):
            if '"serving"' in line and line.endswith("\n"):
                addresses = json.loads(line)
                return addresses["url"], addresses["broker_service_url"]
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_AGAIN_SECONDS)
    raise AssertionError(f"the service ended with {process.poll()}: {message}{log.read()}")
