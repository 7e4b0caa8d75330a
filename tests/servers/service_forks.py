"""A process that forks services, each of which starts in a fraction of the CPU: imports and routes are made once.

`python -m tests.servers.service_forks FD` imports what `compactor serve` imports and opens nothing: no file, connection
or lock crosses the fork, and what threads the libraries have started (jemalloc's) know of forks. It forks a keeper for
each order, and the keeper forks the service, tells its pid, waits for its end and tells its exit code; a service is
then no zombie, and ends as any Python ends. It ends itself when the tests close its socket.
Arguments, environment, signals and output are those of a command line; how a command line becomes a service is proven
by the services that are not forked (`compactor_service.py`).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import IO, Any

_MOST_BYTES = 1 << 20


class ForkedService:
    """A forked service, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self._lines = answers.makefile()
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the service runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when the service has ended. Raise subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                line = self._answers.recv(_MOST_BYTES)
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired("serve", timeout or 0) from error
            self.returncode = int(line)
            self._lines.close()
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ServiceForks:
    """The forking process, seen from the tests."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.servers.service_forks", str(theirs.fileno())],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[str]) -> ForkedService:
        """Start `compactor` with these arguments; what it says goes to `log`."""
        order = {"arguments": [*arguments], "environment": dict(environment)}
        answers, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._orders, [json.dumps(order).encode() + b"\n"], [theirs.fileno(), log.fileno()])
        return ForkedService(answers)

    def close(self) -> None:
        """End the forking process; the services are ended by then."""
        self._orders.close()
        self._process.wait()


@cache
def service_forks() -> ServiceForks:
    """Return the forking process of this process, started at the first call."""
    forks = ServiceForks()
    atexit.register(forks.close)
    return forks


def _serve_orders(orders: socket.socket) -> None:
    """Fork a keeper for each order, until there are no more. Return in a service."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(orders, _MOST_BYTES, 2)
        while text and not text.endswith(b"\n"):
            text += orders.recv(_MOST_BYTES)
        if not text:
            os._exit(0)
        if os.fork() == 0:
            orders.close()
            return _keep(json.loads(text), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(order: Mapping[str, Any], answers: int, log: int) -> None:
    """Fork the service, and tell its pid and its exit code. Return in the service."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(answers)
        return _become_service(order, log)
    os.close(log)
    with suppress(OSError):  # the tests are over
        os.write(answers, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become_service(order: Mapping[str, Any], log: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["compactor", *order["arguments"]]


def main() -> None:
    """Serve orders; in a service, run its command."""
    import gc

    import alembic.command  # noqa: F401
    import uvicorn.protocols.http.h11_impl  # noqa: F401

    import api.app
    import api.pulsar.server
    import api.server
    import api.service  # noqa: F401
    from api.cli import main as program

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _serve_orders(socket.socket(fileno=int(sys.argv[1])))
    sys.modules["__main__"] = program  # where processes that the service spawns begin
    program.main()


if __name__ == "__main__":
    main()
