"""The command line as a process: what only a real one shows.

Imports at start, pipes that close, disks that fill up, and one compaction by Spark itself.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pytest

from api import DISTRIBUTION
from tests.clients.cli.conftest import write_lines
from tests.clients.cli.processes import COMMAND, run
from tests.program import Program, loaded

pytestmark = pytest.mark.slow

HEAVY = ("pyspark", "boto3", "botocore", "sqlalchemy", "alembic", "pyarrow", "pandas", "numpy", "polars", "fastapi")


@pytest.fixture
def big_topic(program: Program, folder: Path) -> str:
    """More than any pipe holds."""
    write_lines(folder / "big.jsonl", *({"key": f"k{n}", "value": "v" * 1000} for n in range(1000)))
    program("import", "big", "big.jsonl").done()
    return "big"


@pytest.mark.parametrize("arguments", [["--help"], ["read", "--help"], ["import", "t"], ["read", "a/b"]], ids=" ".join)
def test_help_and_usage_import_nothing_heavy(arguments: list[str]) -> None:
    """The reason why `compactor --help` is quick, without a stopwatch."""
    assert loaded("api.cli.main", arguments, HEAVY) == []


def test_the_installed_script_is_the_program() -> None:
    script = Path(sys.executable).parent / "compactor"
    assert subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout.startswith("Usage:")


@pytest.mark.parametrize("output", ["jsonl", "table"])
def test_a_reader_that_has_enough(big_topic: str, output: str) -> None:
    """`compactor read … | head -1`"""
    with subprocess.Popen(
        [*COMMAND, "read", big_topic, "--output", output], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("arguments", [["topics", "list"], ["topics", "stats", "big"], ["read", "big", "--limit", "1"]])
def test_a_reader_that_was_never_there(big_topic: str, arguments: list[str]) -> None:
    """Little output is written only when the program ends."""
    ends = os.pipe()
    os.close(ends[0])
    result = subprocess.run([*COMMAND, *arguments], stdout=ends[1], stderr=subprocess.PIPE, check=False)
    os.close(ends[1])
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("arguments", [["read", "big"], ["topics", "list"]])
def test_output_to_a_full_disk(big_topic: str, arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, check=False, text=True)
    assert result.returncode == 6
    assert result.stderr == "compactor: No space left on device: free some space, then try again\n"


def test_a_disk_that_fills_up(program: Program, big_topic: str, folder: Path) -> None:
    """A real limit of the operating system, in the middle of an import of incompressible data."""
    values = [os.urandom(3000).hex() for _ in range(500)]
    write_lines(folder / "more.jsonl", *({"key": value[:9], "value": value} for value in values))
    size = 600_000

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    result = run("import", big_topic, "more.jsonl", preexec_fn=limit)
    assert result.returncode == 6, result.stderr
    assert result.stderr.startswith("compactor: ")
    assert len(result.stderr.splitlines()) == 1
    assert len(program("read", big_topic).done().lines) == 1000
    program("import", big_topic, "more.jsonl").done()
    assert len(program("read", big_topic).done().lines) == 1500


def test_a_terminal_that_is_not_utf8(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", {"key": "ключ", "value": "🎉"})
    program("import", "t", "in.jsonl").done()
    environment = dict(os.environ, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    table = run("read", "t", "--output", "table", env=environment)
    assert (table.returncode, table.stderr) == (0, "")
    assert "\\u043a" in table.stdout
    lines = subprocess.run([*COMMAND, "read", "t"], env=environment, capture_output=True, check=True).stdout
    assert json.loads(lines)["key"] == "ключ", "data is UTF-8 everywhere"


def test_closed_standard_input() -> None:
    result = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -m api.cli.main import t - <&-', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("compactor: there is no standard input")


def test_a_compaction_by_spark_says_only_what_it_did(program: Program, big_topic: str) -> None:
    result = run("compact-topic", "--topic", big_topic, "--spark-master", "local[2]", "--engine", "spark")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(
        "Compaction of topic persistent://public/default/big complete. Compacted to ledger "
    )
    words = [line.split(":")[0].split(" ")[0] for line in result.stderr.splitlines()]
    assert words == ["phase", "phase", "read", "engine"]
    assert len(program("read", big_topic, "--read-compacted").done().lines) == 1000


def test_a_start_of_spark_that_is_given_up_forgets_its_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another one can be started afterwards, and nothing waits for the first."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from compactor.engines import spark
    from compactor.engines.jvm import Jvm

    steps: list[str] = []

    class Started(Jvm):
        def __init__(self) -> None:
            super().__init__()
            self.process = mock.Mock(spec=subprocess.Popen)

        def launch(self, *_: object) -> NoReturn:
            raise KeyboardInterrupt

        def kill(self) -> None:
            steps.append("ended")

    context = mock.Mock(spec=SparkContext)
    context.stop.side_effect = lambda: steps.append("purged")
    state = {"_gateway": None, "_jvm": None, "_active_spark_context": context}  # another test's Java stays as it is
    for name, value in state.items():
        monkeypatch.setattr(SparkContext, name, value)
    for name in ("_instantiatedSession", "_activeSession"):
        monkeypatch.setattr(SparkSession, name, None, raising=False)
    for variable in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    with pytest.raises(KeyboardInterrupt):
        spark.open_session(spark.SparkSettings(tmp_path / "spark.log"), jvm=Started())
    assert steps == ["ended", "purged"]
    assert SparkContext._active_spark_context is None


def test_a_mistyped_variable_is_told(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPACTOR_STOER", "x")
    assert (
        "COMPACTOR_STOER is not a setting, and is ignored: did you mean COMPACTOR_STORE?"
        in program("topics", "list").stderr
    )


def test_the_version_is_told(program: Program) -> None:
    assert program("--version").done().stdout == f"compactor {version(DISTRIBUTION)}\n"
