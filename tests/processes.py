"""Processes of the system: a port for one, one that ends with this one, and what is known of one.

That is from /proc if there is one, else from `ps`; without either, the test skips.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest


def ending_with_this(command: Sequence[str | Path], number: signal.Signals = signal.SIGTERM) -> list[str | Path]:
    """The command, which gets that signal when this process is killed, where the system can send one (`setpriv`).

    Call it in the main thread: what the kernel waits for is the end of the thread that starts the command.
    """
    tied = ["setpriv", "--pdeathsig", number.name.removeprefix("SIG")]
    if shutil.which("setpriv") is None or subprocess.run([*tied, "true"], capture_output=True, check=False).returncode:
        return [*command]
    return [*tied, *command]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process(NamedTuple):
    """`state`: a letter, Z for one that is dead and not yet buried."""

    state: str
    parent: int


def process(pid: int) -> Process | None:
    """None: there is none of that number."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return Process(fields[0], int(fields[1]))
    if shutil.which("ps") is None:
        pytest.skip("there is neither /proc nor ps to check processes with")
    answer = subprocess.run(["ps", "-o", "stat=,ppid=", "-p", str(pid)], capture_output=True, text=True, check=False)
    fields = answer.stdout.split()
    return Process(fields[0][:1], int(fields[1])) if fields else None
