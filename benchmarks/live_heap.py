"""Live bytes on the heap of a Java process: what a collection leaves, by the JVM's own histogram of classes.

The JVM is asked through the socket that its tools use (`jcmd`); a JRE has no such tool. Linux only.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.contender import PeerFailed

_ANSWER_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.02


@dataclass
class HeapUse:
    """Live bytes before a piece of work, and the most of them while it ran."""

    before: int
    peak: int

    @property
    def growth(self) -> int:
        return self.peak - self.before


def live_heap_bytes(process: int) -> int:
    """Collect all garbage of a Java process and return the bytes of its objects. Raises PeerFailed."""
    answer = _command(process, "GC.class_histogram")
    total = re.search(r"^Total\s+\d+\s+(\d+)", answer, re.MULTILINE)
    if total is None:
        raise PeerFailed(f"the Java process {process} sent no histogram: {answer[:200]}")
    return int(total[1])


@contextmanager
def watched_heap(process: int, pause_seconds: float = 1.0) -> Iterator[HeapUse]:
    """Measure the live bytes again and again while the context is open. Each time, the process collects garbage."""
    before = live_heap_bytes(process)
    use = HeapUse(before, before)
    end = threading.Event()

    def watch() -> None:
        while not end.wait(pause_seconds):
            use.peak = max(use.peak, live_heap_bytes(process))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield use
    finally:
        end.set()
        thread.join()


def _command(process: int, command: str) -> str:
    """Return the answer of a JVM to a command of `jcmd`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(str(_socket(process)))
        connection.sendall("".join(f"{part}\0" for part in ("1", "jcmd", command, "", "")).encode())
        pieces = []
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    return b"".join(pieces).decode(errors="replace")


def _socket(process: int) -> Path:
    """Return the socket of a JVM for its tools, which it opens when it is asked to."""
    path = Path(tempfile.gettempdir(), f".java_pid{process}")
    if path.exists():
        return path
    request = Path(f"/proc/{process}/cwd/.attach_pid{process}")
    request.touch()
    try:
        deadline = time.monotonic() + _ANSWER_SECONDS
        os.kill(process, signal.SIGQUIT)
        while not path.exists():
            if time.monotonic() > deadline:
                raise PeerFailed(f"the Java process {process} does not open {path}")
            time.sleep(_LOOK_AGAIN_SECONDS)
    finally:
        request.unlink()
    return path
