"""The command line as a user has it, without the cost of a process: `compactor("import", "t", "file")`.

Each test has an empty data directory and works in a folder of its own, so files are named as they would be typed.
Compactions run on the engine `InProcess`, which answers as Spark does; `test_cli_process.py` runs the real one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import api.cli.main
import compactor.engines.spark
from compactor.engines.engine import InProcess
from tests.program import Program, in_this_process
from tests.servers.fixtures_s3 import moto_server

__all__ = ["moto_server"]


Compactor = Program


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with no setting in the environment but the data directory."""
    for setting in ("STORE", "S3_ENDPOINT", "DATABASE", "SPARK_MASTER"):
        monkeypatch.delenv(f"COMPACTOR_{setting}", raising=False)
    monkeypatch.setenv("COMPACTOR_DATA", str(tmp_path / "data"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def compactor_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compactor:
    """Runs the program in this process; Spark's real session is only asked for where a test wants it."""

    return in_this_process("compactor", api.cli.main.main, tmp_path, monkeypatch)


class InsteadOfSpark(InProcess):
    """An engine that is closed as one on a session of its own is."""

    def close(self) -> None:
        return


@pytest.fixture
def in_process_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compact-topic` without Spark."""
    monkeypatch.setattr(compactor.engines.spark, "open_session", lambda settings, say: object())
    monkeypatch.setattr(compactor.engines.spark, "SparkEngine", lambda session: InsteadOfSpark())


@pytest.fixture
def history(compactor_command: Compactor, folder: Path) -> str:
    """A topic of six messages in one ledger: two live keys, two deleted ones, one message without a key."""
    write_lines(
        folder / "history.jsonl",
        {"key": "a", "value": "1", "event_time": 5, "publish_time": 9, "properties": {"p": "q"}},
        {"key": "b", "value": "2"},
        {"key": None, "value": "n"},
        {"key": "a", "value": None},
        {"key": "c", "value": ""},
        {"key": "ключ", "value": "значение 🎉"},
    )
    compactor_command("import", "t", "history.jsonl").done()
    return "t"


def write_lines(file: Path, *messages: dict[str, Any]) -> Path:
    """A JSON Lines file."""
    file.write_text("".join(json.dumps(message) + "\n" for message in messages), encoding="utf-8")
    return file
