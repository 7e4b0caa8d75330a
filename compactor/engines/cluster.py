"""What a Spark cluster needs of the driver before Spark is asked: its address, and our code for its executors.

Spark itself tries for a minute to reach a master that is not there, and then says so with a Java stack trace; it knows
nothing of our package. Third-party packages do not travel: they must be on the executors (docs/operations.md).

May go wrong: Misconfigured (no Spark master, or one that cannot be used), Unavailable (nothing listens there).
Must not know: pyspark, sessions, credentials.
"""

from __future__ import annotations

import re
import socket
import zipfile
from pathlib import Path

import compactor
import storage
from storage.errors import Misconfigured, Unavailable

ANSWER_WITHIN_SECONDS = 15.0
"""How long all addresses of a `spark://` master together may take to accept a connection."""

_KNOWN = re.compile(r"local(\[(\*|[1-9]\d*)(, *\d+)?\]|-cluster\[.+\])?|(spark|k8s)://.+|yarn", re.ASCII)
_LOCAL = re.compile(r"local(?:\[[^,\]]*(?:, *(\d+))?\])?", re.ASCII)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:/,\[\]]+):(\d{1,5})", re.ASCII)
_REMEDY = "set COMPACTOR_SPARK_MASTER to local[*], local[N], spark://host:7077, k8s://… or yarn"


def check_master(master: str) -> None:
    """Raises Misconfigured for what is no Spark master, or one of a kind that compactions cannot run on."""
    if master.startswith("sc://"):
        raise Misconfigured(
            f"{master} is a Spark Connect server, and Spark Connect has no RDDs, on which compactions run",
            "set COMPACTOR_SPARK_MASTER to the master of the same cluster: spark://host:7077, k8s://… or yarn",
        )
    if not _KNOWN.fullmatch(master):
        raise Misconfigured(f"{master!r} is no Spark master", _REMEDY)


def is_local(master: str) -> bool:
    """Whether driver and executors are one process on this machine; `local-cluster` has processes of its own."""
    return _LOCAL.fullmatch(master) is not None


def max_failures(master: str, configured: str | None) -> int:
    """How often one task may fail before Spark gives up on the job; `configured`: spark.task.maxFailures.

    Spark's `local` modes do not check the setting, and do not retry unless their name says so.
    """
    if local := _LOCAL.fullmatch(master):
        return int(local[1] or 1)
    return int(configured or 4)


def reach_master(master: str, within_seconds: float = ANSWER_WITHIN_SECONDS) -> str | None:
    """The IPv4 address of this machine that faces a `spark://` master, for executors to call back; None: not IPv4.

    Raises Misconfigured (not host:port), Unavailable (no process accepts a connection).
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
        "start it, or set COMPACTOR_SPARK_MASTER to where it is",
    )


def zip_packages(target: Path) -> Path:
    """Write a zip of the packages that tasks import, for `addPyFile`, and give `target` back."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for package in (compactor, storage):
            folder = Path(package.__path__[0])
            for file in sorted(folder.rglob("*.py")):
                archive.write(file, file.relative_to(folder.parent).as_posix())
    return target
