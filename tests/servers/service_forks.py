"""A process that forks services and commands, which start in a fraction of the CPU: imports and routes are made once.

`python -m tests.servers.service_forks FD` imports what `compactor serve` imports and opens nothing: no file, connection
or lock crosses the fork, and what threads the libraries have started (jemalloc's) know of forks. It forks a keeper for
each order, and the keeper forks the service, tells its pid, waits for its end and tells its exit code; a service is
then no zombie, and ends as any Python ends. It ends itself when the tests close its socket.
Arguments, environment, signals and output are those of a command line; how a command line becomes a service is proven
by the services and commands that are not forked (`compactor_service.py`, tests/clients/cli/processes.py).
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import cache
from types import TracebackType
from typing import IO, Any, Self

_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 32


class ForkedProcess:
    """A forked process, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        with answers.makefile("rb", buffering=0) as lines:  # the exit code may be there already
            self.pid = int(lines.readline())
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
                raise subprocess.TimeoutExpired("compactor", timeout or 0) from error
            self.returncode = int(line)
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


class ForkedCommand(ForkedProcess):
    """A forked command with pipes. Used in a `with` statement, which closes them and waits for its end."""

    def __init__(self, answers: socket.socket, stdin: IO[str], stdout: IO[str], stderr: IO[str]) -> None:
        super().__init__(answers)
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return the rest of its output when it has ended. Of little output: one stream is read after the other."""
        self.stdin.close()
        written = self.stdout.read(), self.stderr.read()
        self.wait(timeout)
        return written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            with suppress(BrokenPipeError):
                stream.close()
        self.wait()


class Orders:
    """The way to the forking process. A forked service has a copy of it, for its own children."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders

    def run(self, command: Sequence[str], descriptors: Sequence[int]) -> ForkedProcess:
        """Execute the code of a command `python … -c CODE …` in a fork, with these descriptors under their numbers."""
        code = command.index("-c") + 1
        order = {"code": command[code], "arguments": [*command[code + 1 :]], "numbers": [0, 1, 2, *descriptors]}
        return ForkedProcess(self._order(order, os.environ, 0, 1, 2, *descriptors))

    def _order(self, order: Mapping[str, Any], environment: Mapping[str, str], *descriptors: int) -> socket.socket:
        whole = {**order, "environment": dict(environment), "folder": os.getcwd()}
        answers, theirs = socket.socketpair()
        with theirs:
            fields = [theirs.fileno(), *descriptors]
            socket.send_fds(self._orders, [json.dumps(whole).encode() + b"\n"], fields)
        return answers


class ServiceForks(Orders):
    """The forking process, seen from the tests."""

    def __init__(self) -> None:
        orders, theirs = socket.socketpair()
        super().__init__(orders)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.servers.service_forks", str(theirs.fileno())],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[str]) -> ForkedProcess:
        """Start `compactor` with these arguments and no input; what it says goes to `log`."""
        with open(os.devnull) as nothing:
            return ForkedProcess(self._start(arguments, environment, nothing, log, log))

    def open(self, *arguments: str) -> ForkedCommand:
        """Start `compactor` with these arguments and pipes, in the environment and the folder of this process."""
        pipes = [os.pipe() for _ in range(3)]
        stdin, stdout, stderr = (os.fdopen(end, mode) for end, mode in zip(_ours(pipes), "wrr", strict=True))
        with ExitStack() as theirs:
            ends = [theirs.enter_context(os.fdopen(end, mode)) for end, mode in zip(_theirs(pipes), "rww", strict=True)]
            return ForkedCommand(self._start(arguments, os.environ, *ends), stdin, stdout, stderr)

    def _start(self, arguments: Sequence[str], environment: Mapping[str, str], *streams: IO[str]) -> socket.socket:
        descriptors = [stream.fileno() for stream in streams]
        return self._order({"arguments": [*arguments]}, environment, *descriptors, self._orders.fileno())

    def close(self) -> None:
        """End the forking process; the services are ended by then."""
        self._orders.shutdown(socket.SHUT_RDWR)
        self._orders.close()
        self._process.wait()


def _ours(pipes: Sequence[tuple[int, int]]) -> list[int]:
    """Return this process's ends of the pipes of stdin, stdout and stderr."""
    return [pipes[0][1], pipes[1][0], pipes[2][0]]


def _theirs(pipes: Sequence[tuple[int, int]]) -> list[int]:
    """Return the other ends."""
    return [pipes[0][0], pipes[1][1], pipes[2][1]]


@cache
def service_forks() -> ServiceForks:
    """Return the forking process of this process, started at the first call."""
    forks = ServiceForks()
    atexit.register(forks.close)
    return forks


def _serve_orders(orders: socket.socket) -> Orders | None:
    """Fork a keeper for each order, until there are no more. Return in a service, what it may order; and in a process
    that executes code, nothing."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(orders, _MOST_BYTES, _MOST_DESCRIPTORS)
        while text and not text.endswith(b"\n"):
            text += orders.recv(_MOST_BYTES)
        if not text:
            os._exit(0)
        if os.fork() == 0:
            orders.close()
            return _keep(json.loads(text), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(order: Mapping[str, Any], answers: int, *descriptors: int) -> Orders | None:
    """Fork the process, and tell its pid and its exit code. Return in that process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(answers)
        return _become(order, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    with suppress(OSError):  # the tests are over
        os.write(answers, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(order: Mapping[str, Any], descriptors: Sequence[int]) -> Orders | None:
    numbers = order.get("numbers", [0, 1, 2])
    # Above all numbers, so that no descriptor of the order is in the way of another one.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, max(numbers) + 1) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    orders = None if "code" in order else Orders(socket.socket(fileno=os.dup(high.pop())))
    for number, descriptor in zip(numbers, high, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # The objects of the forking process know what its own streams can do.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    # A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["-c" if "code" in order else "compactor", *order["arguments"]]
    if "code" in order:
        gc.freeze()
        # A process that is spawned executes its main module, and warns into the service's log if that was imported.
        sys.modules.pop("api.cli.main", None)
        exec(order["code"], {"__name__": "__main__"})
        sys.exit()
    return orders


def main() -> None:
    """Serve orders; in a service, run its command."""
    import alembic.command  # noqa: F401
    import uvicorn.protocols.http.h11_impl  # noqa: F401

    import api.app
    import api.background.sealer_process
    import api.pulsar.server
    import api.server
    import api.service  # noqa: F401
    from api.cli import main as program
    from tests.servers.sealer_forks import forking_sealers

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    orders = _serve_orders(socket.socket(fileno=int(sys.argv[1])))
    assert orders is not None
    sys.modules["__main__"] = program  # where processes that the service spawns begin
    with forking_sealers(lambda: orders.run) if sys.argv[1] == "serve" else nullcontext():
        program.main()


if __name__ == "__main__":
    main()
