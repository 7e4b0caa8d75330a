"""A real standalone Spark cluster on loopback, from the PySpark wheel: a master and workers on ports of their choice.

Java is the one that the job itself would find. Every daemon has a guard (`until_stdin_ends`), so that it ends with this
process, however that ends. Workers have two names of this machine, so that Spark takes them for two hosts: it gives a
speculative attempt to another host only.
Can go wrong: a daemon that does not start within some minutes; its log is then part of the error.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import pyspark

from compactor.engines.java import find_java_home
from tests.servers import until_stdin_ends
from tests.servers.light_java import LIGHT_JAVA

Found = TypeVar("Found")

SPARK_CLASS = Path(pyspark.__path__[0]) / "bin" / "spark-class"
HOSTS = ("127.0.0.1", "localhost")
TRIES = 2000
WAIT_SECONDS = 0.1


def until(look: Callable[[], Found | None], what: str) -> Found:
    """Call `look` for some minutes until it returns a value, and return that: a foreign process sends no signal."""
    pause = threading.Event()
    for _ in range(TRIES):
        if (result := look()) is not None:
            return result
        pause.wait(WAIT_SECONDS)
    raise AssertionError(f"{what} did not come")


@dataclass
class Daemon:
    """A master or a worker, and its guard. `pid` is the Java's."""

    pid: int
    log: Path
    _guard: subprocess.Popen[bytes]

    @classmethod
    def start(cls, main: str, arguments: list[str], environment: Mapping[str, str], log: Path) -> Daemon:
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{main}", *arguments]
        with log.open("wb") as errors:
            guard = subprocess.Popen(
                [sys.executable, until_stdin_ends.__file__, *command],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert guard.stdout is not None
        return cls(int(guard.stdout.readline()), log, guard)

    def logged(self, pattern: str) -> str:
        """The first group of what its log says, once it does."""

        def look() -> str | None:
            if self._guard.poll() is not None:
                raise AssertionError(f"a Spark daemon ended:\n{self.log.read_text()}")
            match = re.search(pattern, self.log.read_text())
            return match[1] if match else None

        return until(look, f"{pattern!r} in {self.log}")

    def kill(self) -> None:
        """SIGKILL, to the daemon alone; its guard then ends what it leaves of its group."""
        os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        self._guard.wait()
        self._guard.stdout.close()


class SparkCluster:
    """A running master and its workers, one core each. Workers have `environment`, which their executors inherit.

    Master, workers and drivers share a secret, as docs/operations.md shows: `configuration` is the drivers' part.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "JAVA_HOME": str(find_java_home(os.environ).path),
            "SPARK_DAEMON_MEMORY": "256m",
            **LIGHT_JAVA,
            **environment,
        }
        self.configuration = {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(16)}
        self._properties = folder / "properties.conf"
        self._properties.write_text("".join(f"{k} {v}\n" for k, v in self.configuration.items()))
        self._workers: dict[str, Daemon] = {}
        self._started = 0

    def __enter__(self) -> Self:
        self._start_master("0")
        try:
            self.url = self._master.logged(r"Starting Spark master at (spark://\S+)")
            self._master.logged(r"(New state: ALIVE)")
            self.fill_up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for daemon in [*self._workers.values(), self._master]:
            daemon.stop()

    def fill_up(self) -> None:
        """Start a worker for every host that has none."""
        missing = [host for host in HOSTS if host not in self._workers]
        for host in missing:
            work = ["--work-dir", str(self._folder / "work"), "--cores", "1", "--memory", "1g"]
            self._workers[host] = self._start("worker.Worker", ["--host", host, *work, self.url])
        for host in missing:
            self._workers[host].logged(r"(Successfully registered with master)")

    def kill_all(self) -> None:
        """SIGKILL the master and all workers."""
        for daemon in [*self._workers.values(), self._master]:
            daemon.kill()
        self._workers.clear()

    def start_again(self) -> None:
        """After `kill_all`: a master at the same address, which knows nothing, and workers."""
        self._start_master(self.url.rpartition(":")[2])
        self._master.logged(r"(New state: ALIVE)")
        self.fill_up()

    def kill_worker(self, pid: int) -> None:
        """SIGKILL the worker with this pid; `fill_up` gives another one."""
        (host,) = [host for host, daemon in self._workers.items() if daemon.pid == pid]
        self._workers.pop(host).kill()

    def _start_master(self, port: str) -> None:
        self._master = self._start("master.Master", ["--host", "127.0.0.1"], port)

    def _start(self, main: str, arguments: list[str], port: str = "0") -> Daemon:
        self._started += 1
        log = self._folder / f"{self._started}-{main}.log"
        options = ["--port", port, "--webui-port", "0", "--properties-file", str(self._properties)]
        return Daemon.start(main, [*options, *arguments], self._environment, log)
