"""Disk faults of a service's log: a library for LD_PRELOAD, built from `disk_faults.c` where there is a C compiler.

While the file `on` exists, writes and flushes of files below the log directory fail, are cut short or take seconds.
Without a compiler, or on another system than Linux, there is no library and the histories run without these faults.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("disk_faults.c")
_RATE = "0.02"


def build(folder: Path) -> tuple[Path | None, str]:
    """Compile the library into `folder`; return its path, or None and the reason."""
    if not sys.platform.startswith("linux"):
        return None, "LD_PRELOAD is tried on Linux alone"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None, "this machine has no C compiler"
    library = folder / "disk_faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return None, f"{compiler} does not build the library: {result.stderr.strip()[-200:]}"
    return library, ""


@dataclass(frozen=True)
class DiskFaults:
    """The switch of one service's faults. `library` None: they cannot be injected."""

    library: Path | None
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a service whose log this is."""
        if self.library is None:
            return {}
        return {
            "LD_PRELOAD": str(self.library),
            "FAULTS_ON": str(self._switch),
            "FAULTS_MATCH": "/log/",
            "FAULTS_RATE": _RATE,
            "FAULTS_LOG": str(self._log),
        }

    @property
    def _switch(self) -> Path:
        return self.folder / "disk-faults-on"

    @property
    def _log(self) -> Path:
        return self.folder / "disk-faults.txt"

    def turn_on(self) -> None:
        self._switch.touch()

    def turn_off(self) -> None:
        self._switch.unlink(missing_ok=True)

    @property
    def met(self) -> int:
        """Return how many calls have failed so far."""
        return self._log.read_text().count("\n") if self._log.exists() else 0
