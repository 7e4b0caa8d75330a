"""Starting Spark's JVM in such a way that the start can be given up.

It takes seconds, on a busy machine half a minute, and a process that is ended meanwhile must not wait for that. So the
JVM is launched here, as PySpark would do it, and its process is known from its first moment: `end` kills it, from any
thread, and whatever waits for it fails. It has a process group of its own, so that Ctrl-C is not its business; when our
process is gone, its stdin ends, and so does it.

Invariant: no JVM outlives a start that failed or was given up. Errors: the caller raises Misconfigured;
here it is `StartFailed`. Must not know: PySpark.
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
from typing import IO

_POLL_SECONDS = 0.1
_INFO = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Where the JVM writes how it is reached: 4 bytes of port, 4 of length, a secret."""


class StartFailed(Exception):
    """The JVM ended before it could be reached."""


class Jvm:
    """One JVM, from its start on. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.is_ended = False

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """None: it was not launched."""
        return self._process

    def launch(self, submit: Path, options: Iterable[tuple[str, str]], log: IO[bytes]) -> tuple[int, str]:
        """Launch it with `submit`, Spark's script; port and secret of its gateway. Raises StartFailed."""
        command = [str(submit)]
        for name, value in options:
            command += ["--conf", f"{name}={value}"]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        with tempfile.TemporaryDirectory(prefix="compactor-jvm-") as folder:
            info = Path(folder) / "connection"
            environment = {**os.environ, "SPARK_CONNECT_MODE": "0", _INFO: str(info)}
            with self._lock, _signals_wait():
                if self.is_ended:
                    raise StartFailed("it was given up")
                self._process = process = subprocess.Popen(  # noqa: S603
                    command, stdin=subprocess.PIPE, stderr=log, start_new_session=True, env=environment
                )
            try:
                while not info.is_file():
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_POLL_SECONDS)
                        raise StartFailed(f"Java has ended with exit code {process.returncode} as it started")
                return _read(info)
            except BaseException:
                self.end()
                raise

    def end(self) -> None:
        """Kill it, or let it not be launched; again does nothing."""
        with self._lock:
            self.is_ended = True
            process = self._process
        if process is None:
            return
        if process.poll() is None:
            with suppress(ProcessLookupError):
                # PySpark's daemon, with its workers, has a group of its own: it ends when its stdin does.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _read(info: Path) -> tuple[int, str]:
    content = info.read_bytes()
    port, length = struct.unpack_from(">iI", content)
    return port, content[8 : 8 + length].decode()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM wait for the end: a JVM whose process is not known could not be killed."""
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
