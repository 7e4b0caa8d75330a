"""Start of Spark's JVM, which can be cancelled.

The start takes seconds, on a busy machine half a minute, and a process that ends must not wait for it. So this module
launches the JVM as PySpark would, and knows its process from the first moment. `kill` ends it from any thread, and
callers that wait for it get an error. The JVM has its own process group, so Ctrl-C does not reach it. It ends when its
stdin closes, which happens at the latest when our process ends.

Invariant: no JVM outlives a start that failed or was cancelled. Errors: StartFailed, from which the caller raises
Misconfigured. This module must not know PySpark.
"""

from __future__ import annotations

import os
import shlex
import signal
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

_POLL_SECONDS = 0.1
_INFO = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Variable with the path of the file to which the JVM writes 4 bytes of port, 4 bytes of length, and a secret."""


class StartFailed(Exception):
    """The JVM ended before it was reachable, or its start was cancelled."""


class GatewayAddress(NamedTuple):
    """The address of a JVM's gateway: its port on this machine, and its secret."""

    port: int
    secret: str


class Jvm:
    """Starter of one JVM process, which can kill it at any time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        """The process of the JVM; None: it was not launched."""
        self.is_ended = False

    def launch(self, submit: Path, options: Iterable[tuple[str, str]], log: IO[bytes]) -> GatewayAddress:
        """Launch the JVM and wait until it is reachable; return its gateway.

        `submit`: Spark's start script. `options`: Spark's settings, name and value. `log`: file for its stderr. Raises
        StartFailed, also if another thread calls `kill`.
        """
        command = [str(submit)]
        for name, value in options:
            command += ["--conf", f"{name}={value}"]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        with tempfile.TemporaryDirectory(prefix="compactor-jvm-") as folder:
            info = Path(folder) / "connection"
            environment = {**os.environ, "SPARK_CONNECT_MODE": "0", _INFO: str(info)}
            with self._lock, _deferred_signals():
                if self.is_ended:
                    raise StartFailed("the start was cancelled")
                self.process = process = subprocess.Popen(  # noqa: S603
                    command, stdin=subprocess.PIPE, stderr=log, start_new_session=True, env=environment
                )
            try:
                while not info.is_file():
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_POLL_SECONDS)
                        raise StartFailed(f"Java ended with exit code {process.returncode} during its start")
                return _read_gateway_address(info)
            except BaseException:
                self.kill()
                raise

    def kill(self) -> None:
        """Kill the JVM, or prevent its launch. Idempotent."""
        with self._lock:
            self.is_ended = True
            process = self.process
        if process is None:
            return
        if process.poll() is None:
            with suppress(ProcessLookupError):
                # PySpark's daemon and its workers have their own group; the daemon ends when its stdin closes.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _read_gateway_address(info: Path) -> GatewayAddress:
    content = info.read_bytes()
    port, length = struct.unpack_from(">iI", content)
    return GatewayAddress(port, content[8 : 8 + length].decode())


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the body ends, because a JVM without a known process could not be killed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = threading.Event()

    def remember(*_: object) -> None:
        interrupted.set()

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if interrupted.is_set():
            raise KeyboardInterrupt
