"""The command line as a user has it, without the cost of a process: `compactor("import", "t", "file")`.

Each test has an empty data directory and works in a folder of its own, so files are named as they would be typed.
Compactions run on the engine `InProcessEngine`, which answers as Spark does; `test_cli_process.py` runs the real one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import api.cli.main
import compactor.engines.spark
import storage.clock
from api.components import open_environment
from api.settings.settings import Settings
from compactor.engines.engine import InProcessEngine
from compactor.engines.kinds import SPARK
from compactor.two_phase import HEARTBEAT_MS
from storage.ledger.names import STORE_UID
from storage.metadata.records import RunRecord
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.program import Program
from tests.servers.fixtures_s3 import moto_server

__all__ = ["moto_server"]


BASE64 = ("--key-encoding", "base64", "--value-encoding", "base64")
"""For keys and values that are no text."""


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
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
    """Runs the program in this process; Spark's real session is only asked for where a test wants it."""
    return Program("compactor", api.cli.main.main, tmp_path, monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The program's clock of the machine; it begins when the store's does."""
    clock = ManualClock(storage.clock.SystemClock().now_ms())
    monkeypatch.setattr(storage.clock, "SystemClock", lambda: clock)
    return clock


class InsteadOfSpark(InProcessEngine):
    """An engine whose session ends as that of one on a session of its own does."""

    engine_choice = "instead of Spark"

    def stop_session(self) -> None:
        return


@pytest.fixture
def in_process_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compact-topic` with an engine that stands for Spark."""
    monkeypatch.setenv("COMPACTOR_COMPACTION_ENGINE", SPARK)
    monkeypatch.setattr(compactor.engines.spark, "open_session", lambda settings, say: object())
    monkeypatch.setattr(compactor.engines.spark, "SparkEngine", lambda session: InsteadOfSpark())


@pytest.fixture
def history(program: Program, folder: Path) -> str:
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
    program("import", "t", "history.jsonl").done()
    return "t"


def write_lines(file: Path, *messages: dict[str, Any]) -> Path:
    """A JSON Lines file."""
    file.write_text("".join(json.dumps(message) + "\n" for message in messages), encoding="utf-8")
    return file


def runs(topic: str) -> list[RunRecord]:
    """The runs of a topic, the newest first."""
    with open_environment(Settings.load()) as environment:
        return environment.metadata.runs.of_topic(environment.metadata.topics.get(TopicName.parse(topic)).id, 100)


def content(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without what the topic gave them."""
    return [
        {name: field for name, field in message.items() if name not in ("message_id", "offset")} for message in messages
    ]


def claim(topic: str, **progress: object) -> RunRecord:
    """A run of another process, which has reported this progress."""
    with open_environment(Settings.load()) as environment:
        metadata = environment.metadata
        topic_id = metadata.topics.get(TopicName.parse(topic)).id
        run = metadata.runs.claim(topic_id, "otherhost:4711:cafe", {}, HEARTBEAT_MS)
        metadata.runs.heartbeat([run], {run.run_id: progress})
        return run


def objects(folder: Path) -> set[str]:
    """The names of the objects in the store."""
    root = folder.parent / "data" / "objects"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} - {STORE_UID}
