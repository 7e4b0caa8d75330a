"""Preparation of a driver for a Spark cluster: check of the master, own address, and our code for the executors.

Spark itself tries for a minute to reach an absent master, and then reports that with a Java stack trace. Our packages
travel with the session; third-party packages must be installed on the executors (docs/operations.md).

Errors: Misconfigured (not a Spark master, or an unusable one), Unavailable (no process listens at the address). This
module must not know pyspark, sessions and credentials.
"""

from __future__ import annotations

import os
import re
import socket
import zipfile
from pathlib import Path

import compactor
import storage
from storage.errors import Misconfigured, Unavailable

ANSWER_WITHIN_SECONDS = 15.0
"""Time limit for a connection to a `spark://` master, for all its addresses together."""

_KNOWN = re.compile(r"local(\[(\*|[1-9]\d*)(, *\d+)?\]|-cluster\[.+\])?|(spark|k8s)://.+|yarn", re.ASCII)
_LOCAL = re.compile(r"local(?:\[(?P<cores>[^,\]]*)(?:, *(?P<failures>\d+))?\])?", re.ASCII)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:/,\[\]]+):(\d{1,5})", re.ASCII)
_REMEDY = "set COMPACTOR_SPARK_MASTER to local[*], local[N], spark://host:7077, k8s://… or yarn"


def check_master(master: str) -> None:
    """Raise Misconfigured if `master` is not a Spark master, or is of a kind that cannot run compactions."""
    if master.startswith("sc://"):
        raise Misconfigured(
            f"{master} is a Spark Connect server, and Spark Connect has no RDDs, which compactions need",
            "set COMPACTOR_SPARK_MASTER to the master of the same cluster: spark://host:7077, k8s://… or yarn",
        )
    if not _KNOWN.fullmatch(master):
        raise Misconfigured(f"{master!r} is not a Spark master", _REMEDY)


def is_local(master: str) -> bool:
    """Return whether driver and executors are one process on this machine. `local-cluster` has several."""
    return _LOCAL.fullmatch(master) is not None


def local_parallelism(master: str) -> int:
    """Return the number of tasks that Spark runs concurrently with a local master: `local`, `local[N]`, `local[*]`."""
    match = _LOCAL.fullmatch(master)
    cores = match["cores"] if match else None
    if cores == "*":
        return os.cpu_count() or 1
    return int(cores) if cores and cores.isdecimal() else 1


def max_task_failures(master: str, configured: str | None) -> int:
    """Return how often a task may fail before Spark fails the job. `configured`: spark.task.maxFailures.

    Spark's `local` modes ignore the setting, and retry only if their name has a number of failures.
    """
    if local := _LOCAL.fullmatch(master):
        return int(local["failures"] or 1)
    return int(configured or 4)


def local_address_for_master(master: str, within_seconds: float = ANSWER_WITHIN_SECONDS) -> str | None:
    """Connect to a `spark://` master; return this machine's IPv4 address on the route, or None if it is not IPv4.

    Executors connect to that address. Raises Misconfigured (not host:port), Unavailable (no connection accepted).
    """
    addresses = [_ADDRESS.fullmatch(part) for part in master.removeprefix("spark://").split(",")]
    failures = []
    for address in addresses:
        if address is None or int(address[2]) > 65535:
            raise Misconfigured(f"{master!r} does not name host:port of a Spark master", _REMEDY)
        host, port = address[1].strip("[]"), int(address[2])
        try:
            with socket.create_connection((host, port), timeout=within_seconds / len(addresses)) as connection:
                return connection.getsockname()[0] if connection.family == socket.AF_INET else None
        except OSError as error:
            failures.append(f"{address[0]}: {error.strerror or error}")
    raise Unavailable(
        f"no Spark master answers at {master} ({'; '.join(failures)})",
        "start it, or set COMPACTOR_SPARK_MASTER to its address",
    )


def zip_packages(target: Path) -> Path:
    """Write a zip of the packages that tasks import, for `addPyFile`, and return `target`."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for package in (compactor, storage):
            folder = Path(package.__path__[0])
            for file in sorted(folder.rglob("*.py")):
                archive.write(file, file.relative_to(folder.parent).as_posix())
    return target
