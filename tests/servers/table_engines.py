"""Engines that read Iceberg tables, each with its packages in an environment of its own: DuckDB 1.5, Spark 4.1.

This project's own environment has a newer DuckDB and a newer Spark, for which there are no Iceberg extensions. The
packages are pinned and checked by hash (engines/*.lock); an environment is made once, in `.cache/engines` of this
repository, in seconds for DuckDB and minutes for Spark.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compactor.engines.java import find_java_home

ENGINES = Path(__file__).with_name("engines")
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "engines"
RUNTIME = "iceberg-spark-runtime-4.1_2.13"
RUNTIME_VERSION = "1.12.0"
RUNTIME_SHA256 = "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"
MAVEN = "https://repo1.maven.org/maven2/org/apache/iceberg"


def by_duckdb(orders: list[dict[str, Any]]) -> list[list[list[Any]]]:
    """The rows of each order; see engines/duckdb_reads.py."""
    return _run("duckdb", [], orders, {})


def run_script(engine: str, script: str, folder: Path) -> Any:
    """Execute a program in an engine's environment and in a folder; return the document of its last line."""
    ran = subprocess.run(
        [str(python_of(engine)), "-"],
        input=script,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "JAVA_HOME": str(find_java_home(os.environ).path)},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def by_spark(uris: list[str]) -> list[list[list[list[Any]]]]:
    """The rows of each table, read in vectors and row by row; see engines/spark_reads.py."""
    return _run("spark", [str(iceberg_runtime())], uris, {"JAVA_HOME": str(find_java_home(os.environ).path)})


def _run(engine: str, arguments: list[str], orders: Any, environment: Mapping[str, str]) -> Any:
    command = [str(python_of(engine)), str(ENGINES / f"{engine}_reads.py"), *arguments]
    ran = subprocess.run(
        command,
        input=json.dumps(orders),
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def python_of(engine: str) -> Path:
    """The Python of an engine's environment, which is made if it does not exist. Others wait for the one that makes
    it."""
    lock = ENGINES / f"{engine}.lock"
    folder = CACHE / f"{engine}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{engine}.making").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        python = folder / "bin" / "python"
        if not (folder / "made").exists():
            uv = Path(sys.executable).with_name("uv")
            subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, folder], check=True)
            subprocess.run([uv, "pip", "install", "-q", "--python", python, "--require-hashes", "-r", lock], check=True)
            (folder / "made").touch()
    return python


def iceberg_runtime() -> Path:
    """Iceberg's jar for Spark."""
    name = f"{RUNTIME}-{RUNTIME_VERSION}.jar"
    path = CACHE / name
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(f"{MAVEN}/{RUNTIME}/{RUNTIME_VERSION}/{name}") as answer:
            data = answer.read()
        assert hashlib.sha256(data).hexdigest() == RUNTIME_SHA256
        path.with_suffix(".new").write_bytes(data)
        path.with_suffix(".new").replace(path)
    return path
