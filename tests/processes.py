"""What the system says of a process: from /proc if there is one, else from `ps`; without either, the test skips."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


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
    asked = subprocess.run(["ps", "-o", "stat=,ppid=", "-p", str(pid)], capture_output=True, text=True, check=False)
    found = asked.stdout.split()
    return Process(found[0][:1], int(found[1])) if found else None
