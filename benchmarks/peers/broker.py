"""Process of a broker on this machine, with its log.

It listens on loopback only, on ports that were free just before, and stores its data in one folder.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

from benchmarks.peers.contender import Deadline, PeerFailed

ADDRESS = "127.0.0.1"
_POLL_SECONDS = 0.05
_STOP_SECONDS = 30
_TAIL = 1500


def free_ports(count: int) -> list[int]:
    """Return ports that no process uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind((ADDRESS, 0))
        return [item.getsockname()[1] for item in sockets]


class Broker:
    """A started process whose stdout and stderr are its log."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self._log = folder / "broker.log"
        with self._log.open("wb") as log:
            # An own session: Ctrl-C in a terminal reaches only us, and we end the broker.
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def log_end(self) -> int:
        """Return the current length of the log in bytes."""
        return self._log.stat().st_size

    def log_since(self, start: int) -> str:
        """Return the log from the byte `start` on."""
        with self._log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    def wait_for(self, pattern: str, limit: float, step: str) -> None:
        """Wait for a line of the log. Raises PeerFailed if that takes longer than `limit`, or if the process ends."""
        deadline = Deadline(limit, f"{self.name}: {step}")
        while not re.search(pattern, self.log_since(0)):
            self.check(deadline)
            time.sleep(_POLL_SECONDS)

    def check(self, deadline: Deadline) -> None:
        """Raise PeerFailed if the process has ended, or the deadline is over."""
        if self._process.poll() is not None:
            tail = self.log_since(max(0, self.log_end() - _TAIL))
            raise PeerFailed(f"{self.name} ended with exit code {self._process.returncode}: {tail}")
        deadline.check()

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Terminate the process; kill it if that takes too long."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
