"""The command line as a user has it, without the cost of a process: `compactor("import", "t", "file")`.

Each test has an empty data directory and works in a folder of its own, so files are named as they would be typed.
Compactions run on the engine `InProcess`, which answers as Spark does; `test_cli_process.py` runs the real one.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import api.cli.main
import compactor.spark
from compactor.engine import InProcess
from tests.servers.fixtures_s3 import moto_server

__all__ = ["moto_server"]


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    exit_code: int
    raw_stdout: bytes
    stderr: str

    @property
    def stdout(self) -> str:
        return self.raw_stdout.decode()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """stdout as JSON Lines."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    def refused(self, exit_code: int, *says: str) -> str:
        """Asserts that this is a refusal as it must be: that code, nothing on stdout, and one line with `says`."""
        assert self.exit_code == exit_code, self.stderr
        assert self.raw_stdout == b""
        assert "Traceback" not in self.stderr
        lines = self.stderr.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("compactor: ")
        assert not lines[0].startswith("compactor: unexpected"), "a user can do nothing about an unexpected error"
        for text in says:
            assert text in lines[0]
        return lines[0]

    def done(self) -> Result:
        """Asserts that the command did what it should."""
        assert self.exit_code == 0, self.stderr
        return self


Compactor = Callable[..., Result]


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

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        given = tmp_path / "stdin"
        given.write_bytes(stdin)
        # Both are kept here: a wrapper that nobody holds closes what is below it.
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with given.open() as text, monkeypatch.context() as process:
            process.setattr(sys, "argv", ["compactor", *arguments])
            process.setattr(sys, "stdin", text)
            process.setattr(sys, "stdout", out)
            process.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as ended:
                api.cli.main.main()
        code = ended.value.code
        stdout, stderr = (stream.buffer for stream in (out, err))
        assert isinstance(stdout, io.BytesIO)
        assert isinstance(stderr, io.BytesIO)
        return Result(code if isinstance(code, int) else 0, stdout.getvalue(), stderr.getvalue().decode())

    return run


class _NoSession:
    def stop(self) -> None:
        return


@pytest.fixture
def in_process_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compact-topic` without Spark."""
    monkeypatch.setattr(compactor.spark, "open_session", lambda settings, say: _NoSession())
    monkeypatch.setattr(compactor.spark, "SparkEngine", lambda session: InProcess())


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
