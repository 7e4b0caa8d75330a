"""`compactor compact-topic` and `verify` without Java, as `serve` has it; paused topics, unsealed tails."""

from __future__ import annotations

from pathlib import Path

import pytest

import compactor.engines.spark
from api.cli.local.opening import open_topic
from api.components import open_environment
from api.settings.settings import Settings
from storage.model import TopicName
from tests.program import Program

COMPLETE = "Compaction of topic persistent://public/default/t complete. "


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting that a service may have, too; nothing asks for Spark."""
    monkeypatch.setenv("COMPACTOR_SPARK_MASTER", "in-process")
    monkeypatch.setattr(compactor.engines.spark, "open_session", None)


def paused(times: int) -> None:
    """`t` is paused so often from now on."""
    with open_environment(Settings.load()) as environment:
        control, topic = (
            environment.metadata.compaction_control,
            open_topic(environment, TopicName.parse("t")).record.id,
        )
        for _ in range(control.get(topic).paused, times):
            control.pause([topic])
        for _ in range(times, control.get(topic).paused):
            control.resume([topic])


def append(program: Program, value: str) -> None:
    program("produce", "t", "-", stdin=f'{{"key": "a", "value": "{value}"}}\n'.encode()).done()


def test_one_settings_file_serves_both(program: Program) -> None:
    append(program, "1")
    assert program("compact-topic", "--topic", "t", "--dry-run").done().stdout
    assert program("compact-topic", "--topic", "t").done().stdout == f"{COMPLETE}Compacted to ledger 2\n"
    assert program("verify", "t").done().stdout.splitlines()[-1] == "No differences"


def test_what_is_not_sealed_yet_is_new(program: Program) -> None:
    for value, result in (("1", "Compacted to ledger 2"), ("2", "Compacted to ledger 4")):
        append(program, value)
        assert program("compact-topic", "--topic", "t").done().stdout == f"{COMPLETE}{result}\n"
        again = program("compact-topic", "--topic", "t").done()
        assert again.stdout == f"{COMPLETE}Nothing to compact\n"
        assert again.stderr == "Nothing is new since the last run: no run was made.\n"


def test_a_paused_topic_is_a_conflict_whether_or_not_anything_is_new(program: Program) -> None:
    append(program, "1")
    for times in (1, 2):
        paused(times)
        answer = program("compact-topic", "--topic", "t").refused(4, "t is paused", "resume it")
        assert ("(2 times)" in answer) == (times == 2)
    paused(0)
    program("compact-topic", "--topic", "t").done()
    paused(1)
    program("compact-topic", "--topic", "t").refused(4, "t is paused")
    append(program, "2")
    program("compact-topic", "--topic", "t").refused(4, "t is paused")
    program("compact-topic", "--topic", "t", "--dry-run").done()
    (document,) = program("compact-topic", "--topic", "t", "--output", "json").messages
    assert document["exit_code"] == 4


def test_an_engine_that_the_master_excludes_is_refused(program: Program) -> None:
    append(program, "1")
    for engine in ("spark", "auto"):
        program("compact-topic", "--topic", "t", "--engine", engine).refused(5, f"--engine {engine}", "--spark-master")
    program("compact-topic", "--topic", "t", "--engine", "in-process").done()


def test_verify_refuses_the_store_of_another_database(program: Program, folder: Path) -> None:
    """There every object would count as lost, and the advice would be to give up what is whole."""
    append(program, "1")
    program("compact-topic", "--topic", "t").done()
    program("verify", "t", "--store", (folder / "other").as_uri()).refused(5, "has no uid")


def test_a_namespace_that_does_not_exist_is_an_error(program: Program) -> None:
    append(program, "1")
    program("compact-topic", "--namespace", "no/such").refused(3, "no/such does not exist")
