"""`compactor topics policies`, and the policies of a topic in `compactor compact-topic`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api.components import open_environment
from api.settings.settings import Settings
from storage.metadata.policy_store import BROKER
from tests.clients.cli.conftest import runs, write_lines
from tests.program import Program, Ran
from tests.workbench import store_policy


@pytest.fixture
def topic(program: Program, folder: Path) -> str:
    write_lines(
        folder / "in.jsonl", {"key": "k", "value": "1"}, {"key": None, "value": "n"}, {"key": "k", "value": None}
    )
    program("import", "t", "in.jsonl").done()
    return "t"


def values_of(result: Ran) -> dict[str, Any]:
    """Return value and origin by name."""
    policies: dict[str, Any] = json.loads(result.done().stdout)["policies"]
    return {name: (policy["value"], policy["origin"]) for name, policy in policies.items()}


def test_the_nearest_scope_counts(program: Program, topic: str) -> None:
    def of_topic() -> tuple[Any, str]:
        return values_of(program("topics", "policies", topic, "--output", "json"))["retention.bytes"]

    assert of_topic() == (-1, "default")
    broker = program("topics", "policies", "--broker", "--set", "retention.bytes=1K", "--output", "json")
    assert json.loads(broker.stdout)["broker"] is True
    assert values_of(broker)["retention.bytes"] == of_topic() == (1024, "broker")
    namespace = ("topics", "policies", "--namespace", "public/default", "--output", "json")
    assert values_of(program(*namespace))["retention.bytes"] == (1024, "broker")
    program(*namespace, "--set", "log.retention.bytes=2K").done()
    assert of_topic() == (2048, "namespace")
    program("topics", "policies", topic, "--set", "retention.bytes=3K").done()
    assert of_topic() == (3072, "topic")
    assert values_of(program(*namespace))["retention.bytes"] == (2048, "namespace")
    program("topics", "policies", topic, "--remove", "retention.bytes").done()
    assert of_topic() == (2048, "namespace")


def test_a_table_for_people(program: Program, topic: str) -> None:
    options = ("--set", "cleanup.policy=delete,compact", "--set", "compaction.retain-null-key=true")
    table = program("topics", "policies", topic, *options).done().stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    assert ["cleanup.policy", "compact,delete", "topic"] in rows
    assert ["compaction.retain-null-key", "true", "topic"] in rows
    assert ["compaction.key-ttl.ms", "none", "default"] in rows


def test_a_value_that_cannot_be_read_is_shown_beside_what_counts_instead(program: Program, topic: str) -> None:
    with open_environment(Settings.load()) as environment:
        store_policy(environment.metadata, BROKER, "segment.bytes", 7)
    rows = program("topics", "policies", topic).done().stdout.splitlines()
    (row,) = [row for row in rows if "segment.bytes" in row]
    assert "33554432" in row
    assert "default (the broker's 7 cannot be read)" in row


def test_a_topic_that_shall_be_compacted_has_its_cursor_from_then_on(
    program: Program, topic: str, in_process_engine: None
) -> None:
    """S9. It holds raw messages back until they are compacted; under `delete` there is none."""

    def cursors() -> list[str]:
        return [load["cursor"] for load in program.json("cursor", "list", topic)]

    program("topics", "policies", topic, "--set", "cleanup.policy=delete").done()
    assert cursors() == []
    program("topics", "policies", topic, "--set", "cleanup.policy=compact,delete").done()
    assert cursors() == ["__compaction"]
    program("verify", topic).done()
    held = program("topics", "trim", topic, "--before", "1", "--yes")
    assert held.exit_code == 4
    assert "The cursor __compaction, which has acknowledged nothing, holds" in held.stderr
    program("compact-topic", "--topic", topic).done()
    program("topics", "trim", topic, "--before", "1", "--yes").done()


def test_lags_are_changed_together_in_whatever_order(program: Program, topic: str) -> None:
    for least, highest in ((10, 20), (30, 40), (1, 2), (2, 2)):
        assignments = (f"min.compaction.lag.ms={least}", f"max.compaction.lag.ms={highest}")
        for both in (assignments, assignments[::-1]):
            result = program(
                "topics", "policies", topic, *(part for item in both for part in ("--set", item)), "--output", "json"
            )
            assert values_of(result)["min.compaction.lag.ms"] == (least, "topic")
            assert values_of(result)["max.compaction.lag.ms"] == (highest, "topic")


def test_a_run_takes_the_stored_policies_and_an_option_counts_before_them(
    program: Program, topic: str, in_process_engine: None
) -> None:
    compact = ("compact-topic", "--topic", topic)
    stored = ("--set", "delete.retention.ms=1h", "--set", "compaction.retain-null-key=true")
    program("topics", "policies", topic, *stored).done()
    first = program(*compact).done()
    assert "counts before" not in first.stderr
    assert "warning" not in first.stderr
    (run,) = runs(topic)
    assert (run.policies["tombstone_retention_ms"], run.policies["retain_null_key"]) == (3_600_000, True)
    read = program("read", topic, "--read-compacted").done().messages
    assert [(item["key"], item["value"]) for item in read] == [(None, "n"), ("k", None)]

    second = program(*compact, "--tombstone-retention", "2h", "--key-ttl", "9d").done()
    assert (
        "persistent://public/default/t: --tombstone-retention counts before the policy delete.retention.ms in this run"
        in second.stderr.splitlines()
    )
    assert second.stderr.count("counts before") == 1, "no time to live is set"
    assert "warning" in second.stderr
    assert "(--tombstone-retention, --key-ttl)" in second.stderr
    assert runs(topic)[0].policies["tombstone_retention_ms"] == 7_200_000
    assert runs(topic)[0].policies["retain_null_key"] is True
    again = program(*compact, "--tombstone-retention", "2h", "--key-ttl", "9d").done()
    assert "Nothing to compact" in again.stdout

    third = program(*compact).done()
    assert "Compacted to ledger" in third.stdout
    assert "(--tombstone-retention, --key-ttl)" in third.stderr
    assert dict(runs(topic)[0].policies) == dict(run.policies)


def test_a_policy_that_changes_makes_a_run(program: Program, topic: str, in_process_engine: None) -> None:
    compact = ("compact-topic", "--topic", topic)
    program(*compact).done()
    assert "Nothing to compact" in program(*compact).done().stdout
    program("topics", "policies", "--namespace", "public/default", "--set", "delete.retention.ms=5").done()
    assert "Compacted to ledger" in program(*compact).done().stdout
    program("topics", "policies", "--broker", "--set", "delete.retention.ms=6").done()
    assert "Nothing to compact" in program(*compact).done().stdout
    assert len(runs(topic)) == 2


def test_topics_of_one_command_have_each_their_own(program: Program, topic: str, in_process_engine: None) -> None:
    program("import", "other", "in.jsonl").done()
    program("topics", "policies", topic, "--set", "compaction.retain-null-key=true").done()
    program("compact-topic", "--all").done()
    kept = {name: runs(name)[0].statistics["messages_out"] for name in (topic, "other")}
    assert kept == {topic: 1, "other": 0}


def test_a_dry_run_takes_them_too(program: Program, topic: str, in_process_engine: None) -> None:
    program("topics", "policies", topic, "--set", "compaction.retain-null-key=true").done()
    (document,) = program("compact-topic", "--topic", topic, "--dry-run", "--output", "json").messages
    assert document["forecast"]["messages_out"] == 1
