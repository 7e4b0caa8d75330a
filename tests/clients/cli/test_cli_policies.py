"""`compactor topics policies`, and the policies of a topic in `compactor compact-topic`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api.components import open_environment
from api.settings.settings import Settings
from storage.metadata.policy_store import BROKER
from storage.metadata.records import RunRecord
from storage.model import TopicName
from tests.clients.cli.conftest import Compactor, write_lines
from tests.program import Ran
from tests.workbench import store_policy


@pytest.fixture
def topic(compactor_command: Compactor, folder: Path) -> str:
    write_lines(
        folder / "in.jsonl", {"key": "k", "value": "1"}, {"key": None, "value": "n"}, {"key": "k", "value": None}
    )
    compactor_command("import", "t", "in.jsonl").done()
    return "t"


def shown(result: Ran) -> dict[str, Any]:
    """By name the value and its origin."""
    found: dict[str, Any] = json.loads(result.done().stdout)["policies"]
    return {name: (one["value"], one["origin"]) for name, one in found.items()}


def runs(topic: str) -> list[RunRecord]:
    with open_environment(Settings.load()) as environment:
        return environment.metadata.runs.of_topic(environment.metadata.topics.get(TopicName.parse(topic)).id, 100)


def test_the_nearest_scope_counts(compactor_command: Compactor, topic: str) -> None:
    def of_topic() -> tuple[Any, str]:
        return shown(compactor_command("topics", "policies", topic, "--output", "json"))["retention.bytes"]

    assert of_topic() == (-1, "default")
    broker = compactor_command("topics", "policies", "--broker", "--set", "retention.bytes=1K", "--output", "json")
    assert json.loads(broker.stdout)["broker"] is True
    assert shown(broker)["retention.bytes"] == of_topic() == (1024, "broker")
    namespace = ("topics", "policies", "--namespace", "public/default", "--output", "json")
    assert shown(compactor_command(*namespace))["retention.bytes"] == (1024, "broker")
    compactor_command(*namespace, "--set", "log.retention.bytes=2K").done()
    assert of_topic() == (2048, "namespace")
    compactor_command("topics", "policies", topic, "--set", "retention.bytes=3K").done()
    assert of_topic() == (3072, "topic")
    assert shown(compactor_command(*namespace))["retention.bytes"] == (2048, "namespace")
    compactor_command("topics", "policies", topic, "--remove", "retention.bytes").done()
    assert of_topic() == (2048, "namespace")


def test_a_table_for_people(compactor_command: Compactor, topic: str) -> None:
    given = ("--set", "cleanup.policy=delete,compact", "--set", "compaction.retain-null-key=true")
    table = compactor_command("topics", "policies", topic, *given).done().stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    assert ["cleanup.policy", "compact,delete", "topic"] in rows
    assert ["compaction.retain-null-key", "true", "topic"] in rows
    assert ["compaction.key-ttl.ms", "none", "default"] in rows


def test_a_value_that_cannot_be_read_is_shown_beside_what_counts_instead(
    compactor_command: Compactor, topic: str
) -> None:
    with open_environment(Settings.load()) as environment:
        store_policy(environment.metadata, BROKER, "segment.bytes", 7)
    rows = compactor_command("topics", "policies", topic).done().stdout.splitlines()
    (row,) = [row for row in rows if "segment.bytes" in row]
    assert "134217728" in row
    assert "default (the broker's 7 cannot be read)" in row


def test_a_topic_that_shall_be_compacted_has_its_cursor_from_then_on(
    compactor_command: Compactor, topic: str, in_process_engine: None
) -> None:
    """S9. It holds raw messages back until they are compacted; under `delete` there is none."""

    def cursors() -> list[str]:
        return [
            load["cursor"] for load in json.loads(compactor_command("cursor", "list", topic, "--output", "json").stdout)
        ]

    compactor_command("topics", "policies", topic, "--set", "cleanup.policy=delete").done()
    assert cursors() == []
    compactor_command("topics", "policies", topic, "--set", "cleanup.policy=compact,delete").done()
    assert cursors() == ["__compaction"]
    compactor_command("verify", topic).done()
    held = compactor_command("topics", "trim", topic, "--before", "1")
    assert held.exit_code == 4
    assert "The cursor __compaction, at nothing, holds" in held.stderr
    compactor_command("compact-topic", "--topic", topic).done()
    compactor_command("topics", "trim", topic, "--before", "1").done()


def test_lags_are_changed_together_in_whatever_order(compactor_command: Compactor, topic: str) -> None:
    for least, most in ((10, 20), (30, 40), (1, 2), (2, 2)):
        given = (f"min.compaction.lag.ms={least}", f"max.compaction.lag.ms={most}")
        for both in (given, given[::-1]):
            result = compactor_command(
                "topics", "policies", topic, *(part for item in both for part in ("--set", item)), "--output", "json"
            )
            assert shown(result)["min.compaction.lag.ms"] == (least, "topic")
            assert shown(result)["max.compaction.lag.ms"] == (most, "topic")


def test_nonsense_is_refused_and_changes_nothing(compactor_command: Compactor, topic: str) -> None:
    cases: list[tuple[list[str], int, tuple[str, ...]]] = [
        ([], 2, ("one of", "--namespace", "--broker")),
        (["t", "--broker"], 2, ("one of",)),
        (["--namespace", "public/default", "--broker"], 2, ("one of",)),
        (["t", "--set", "retention.ms"], 2, ("NAME=VALUE",)),
        (["t", "--set", "retention.mss=1"], 2, ("did you mean retention.ms?",)),
        (["t", "--set", "retention.bytes=5", "--set", "retention.ms=soon"], 2, ("retention.ms", "soon")),
        (["t", "--set", "retention.ms=5", "--remove", "log.retention.ms"], 2, ("both set and removed",)),
        (["t", "--remove", "nosuch"], 2, ("no policy 'nosuch'",)),
        (
            ["t", "--set", "retention.bytes=5", "--set", "min.compaction.lag.ms=3", "--set", "max.compaction.lag.ms=2"],
            2,
            ("min.compaction.lag.ms",),
        ),
        (["nosuch"], 3, ("nosuch",)),
        (["--namespace", "public"], 2, ("'public' is not a namespace",)),
    ]
    for arguments, code, parts in cases:
        compactor_command("topics", "policies", *arguments).refused(code, *parts)
    after = shown(compactor_command("topics", "policies", topic, "--output", "json"))
    assert {origin for _, origin in after.values()} == {"default"}


def test_a_run_takes_the_stored_policies_and_an_option_counts_before_them(
    compactor_command: Compactor, topic: str, in_process_engine: None
) -> None:
    compact = ("compact-topic", "--topic", topic)
    stored = ("--set", "delete.retention.ms=1h", "--set", "compaction.retain-null-key=true")
    compactor_command("topics", "policies", topic, *stored).done()
    first = compactor_command(*compact).done()
    assert "counts before" not in first.stderr
    assert "warning" not in first.stderr
    (run,) = runs(topic)
    assert (run.policies["tombstone_retention_ms"], run.policies["retain_null_key"]) == (3_600_000, True)
    read = compactor_command("read", topic, "--read-compacted").done().messages
    assert [(item["key"], item["value"]) for item in read] == [(None, "n"), ("k", None)]

    second = compactor_command(*compact, "--tombstone-retention", "2h", "--key-ttl", "9d").done()
    assert (
        "persistent://public/default/t: --tombstone-retention counts before the policy delete.retention.ms in this run"
        in second.stderr.splitlines()
    )
    assert second.stderr.count("counts before") == 1, "nobody has set a time to live"
    assert "warning" in second.stderr
    assert "(--tombstone-retention, --key-ttl)" in second.stderr
    assert runs(topic)[0].policies["tombstone_retention_ms"] == 7_200_000
    assert runs(topic)[0].policies["retain_null_key"] is True
    again = compactor_command(*compact, "--tombstone-retention", "2h", "--key-ttl", "9d").done()
    assert "Nothing to compact" in again.stdout

    third = compactor_command(*compact).done()
    assert "Compacted to ledger" in third.stdout
    assert "(--tombstone-retention, --key-ttl)" in third.stderr
    assert dict(runs(topic)[0].policies) == dict(run.policies)


def test_a_policy_that_changes_makes_a_run(compactor_command: Compactor, topic: str, in_process_engine: None) -> None:
    compact = ("compact-topic", "--topic", topic)
    compactor_command(*compact).done()
    assert "Nothing to compact" in compactor_command(*compact).done().stdout
    compactor_command("topics", "policies", "--namespace", "public/default", "--set", "delete.retention.ms=5").done()
    assert "Compacted to ledger" in compactor_command(*compact).done().stdout
    compactor_command("topics", "policies", "--broker", "--set", "delete.retention.ms=6").done()
    assert "Nothing to compact" in compactor_command(*compact).done().stdout
    assert len(runs(topic)) == 2


def test_topics_of_one_command_have_each_their_own(
    compactor_command: Compactor, topic: str, in_process_engine: None
) -> None:
    compactor_command("import", "other", "in.jsonl").done()
    compactor_command("topics", "policies", topic, "--set", "compaction.retain-null-key=true").done()
    compactor_command("compact-topic", "--all").done()
    kept = {name: runs(name)[0].statistics["messages_out"] for name in (topic, "other")}
    assert kept == {topic: 1, "other": 0}


def test_a_dry_run_takes_them_too(compactor_command: Compactor, topic: str, in_process_engine: None) -> None:
    compactor_command("topics", "policies", topic, "--set", "compaction.retain-null-key=true").done()
    (document,) = compactor_command("compact-topic", "--topic", topic, "--dry-run", "--output", "json").messages
    assert document["forecast"]["messages_out"] == 1
