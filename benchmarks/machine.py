"""Machine and versions of a run, and the peak memory of processes. It reads /proc, so it needs Linux."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("pyspark", "pyarrow", "numpy", "polars", "polars-hash", "duckdb", "google-crc32c", "sqlalchemy")


def describe(folder: Path) -> dict[str, object]:
    """Return the relevant properties of the machine. `folder`: folder of the data."""
    return {
        "cpu": _first(r"model name\s*:\s*(.*)", "/proc/cpuinfo") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "versions": {name: version(name) for name in PACKAGES},
    }


def summary(machine: dict[str, object]) -> str:
    """Return one paragraph for a page."""
    versions = machine["versions"]
    assert isinstance(versions, dict)
    memory = int(str(machine["memory_bytes"])) / 2**30
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {memory:.0f} GiB of memory, {machine['file_system']}, "
        f"{machine['system']}, Python {machine['python']}, "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + f"; load before the run {machine['load_before']:.2f}"
    )


def descendants(process: int) -> Iterator[tuple[int, str]]:
    """Yield id and command name (`java`, `python3`) of every descendant of a process."""
    for child in _children(process):
        try:
            yield child, Path(f"/proc/{child}/comm").read_text().strip()
        except OSError:
            continue  # it has ended
        yield from descendants(child)


def peak_resident_bytes(process: int) -> int:
    """Return the peak resident memory of a process (VmHWM), 0 if it has ended."""
    peak = _first(r"VmHWM:\s*(\d+) kB", f"/proc/{process}/status")
    return int(peak) * 1024 if peak else 0


class CpuSeconds(NamedTuple):
    """CPU time of a process itself, and of its ended children for which it has waited."""

    own: float
    children: float


def cpu_seconds(process: int) -> CpuSeconds:
    """Return the CPU time of a process, 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return CpuSeconds(0.0, 0.0)
    ticks = os.sysconf("SC_CLK_TCK")
    return CpuSeconds(sum(map(int, fields[11:13])) / ticks, sum(map(int, fields[13:15])) / ticks)


def parent(process: int) -> int:
    """Return the id of the parent of a process, 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _children(process: int) -> list[int]:
    """Return the children of all threads of a process."""
    children: list[int] = []
    with suppress(OSError):  # the process has ended
        for task in Path(f"/proc/{process}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return children


def _file_system(folder: Path) -> str:
    """Return the type of the file system of `folder`, by the longest mount point above it."""
    best, kind = "", "unknown file system"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, this_kind, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, this_kind
    return kind


def _first(pattern: str, file: str) -> str | None:
    try:
        match = re.search(pattern, Path(file).read_text())
    except OSError:
        return None
    return match[1].strip() if match else None
