"""`compactor topics trim`: what it prints and refuses; and what `gc` then does.

Which ledgers go is tests/unit/compactor/maintenance/test_retention.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import storage.clock
from tests.clients.cli.conftest import Compactor, write_lines
from tests.clocks import ManualClock

HOUR = 3_600_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """What the program takes for the machine's clock; it begins when the store's does."""
    clock = ManualClock(storage.clock.SystemClock().now_ms())
    monkeypatch.setattr(storage.clock, "SystemClock", lambda: clock)
    return clock


@pytest.fixture
def topic(compactor_command: Compactor, clock: ManualClock, folder: Path) -> str:
    """Ledgers that begin at offsets 0, 11 and 23; the topic ends at 40."""
    for length in (11, 12, 17):
        write_lines(folder / "in.jsonl", *({"key": f"k{n}", "value": f"{n}"} for n in range(length)))
        compactor_command("import", "users", "in.jsonl").done()
    return "users"


def offsets(compactor_command: Compactor, topic: str, *options: str) -> list[int]:
    return [line["offset"] for line in compactor_command("read", topic, *options).done().messages]


def gone(document: dict[str, Any]) -> list[tuple[int, int, str]]:
    return [(ledger["first_offset"], ledger["last_offset"], ledger["why"]) for ledger in document["ledgers"]]


def test_before_an_offset(compactor_command: Compactor, topic: str) -> None:
    """Worked example 7, as it is typed."""
    trim = ("topics", "trim", topic, "--before", "25")
    dry = compactor_command(*trim, "--dry-run", "--output", "json").done()
    (document,) = [json.loads(dry.stdout)]
    assert (document["dry_run"], document["start_offset"], document["held"]) == (True, 25, None)
    assert gone(document) == [(0, 10, "start offset"), (11, 22, "start offset")]
    assert dry.stderr.startswith("Would trim 2 ledgers, ")
    table = compactor_command(*trim, "--dry-run").done().stdout
    assert [line.split("│")[-2].strip() for line in table.splitlines()[3:5]] == ["start offset"] * 2
    assert offsets(compactor_command, topic) == list(range(40))
    wet = compactor_command(*trim, "--output", "json").done()
    assert json.loads(wet.stdout) == document | {"dry_run": False}
    assert wet.stderr == dry.stderr.replace("Would trim", "Trimmed")
    assert wet.stderr.endswith("of persistent://public/default/users; its messages begin at offset 25\n")
    assert offsets(compactor_command, topic) == list(range(25, 40))
    again = compactor_command(*trim, "--output", "json").done()
    assert gone(json.loads(again.stdout)) == []


def test_what_is_trimmed_goes_with_gc_after_its_delay(
    compactor_command: Compactor, topic: str, clock: ManualClock
) -> None:
    clock.advance(2 * HOUR)
    compactor_command("topics", "policies", topic, "--set", "file.delete.delay.ms=10m").done()
    compactor_command("topics", "trim", topic, "--before", "23").done()
    clock.advance(600_000 - 1)
    assert compactor_command("gc").done().stdout == ""
    clock.advance(1)
    dry = compactor_command("gc", "--dry-run").done()
    assert "2 trimmed ledgers" in dry.stderr
    assert len(dry.stdout.splitlines()) == 4
    wet = compactor_command("gc").done()
    assert wet.stdout == dry.stdout
    assert compactor_command("gc").done().stdout == ""
    assert offsets(compactor_command, topic) == list(range(23, 40))


def test_gc_removes_files_of_sealed_segments(
    compactor_command: Compactor, topic: str, clock: ManualClock, folder: Path
) -> None:
    compactor_command("produce", topic, "-", stdin=b'{"key": "k", "value": "v"}\n').done()
    compactor_command("topics", "policies", topic, "--set", "cleanup.policy=delete", "--set", "retention.ms=1h").done()
    clock.advance(HOUR + 1)
    trimmed = json.loads(compactor_command("topics", "trim", topic, "--output", "json").done().stdout)
    assert gone(trimmed)[-1] == (40, 40, "time"), "the open segment was rolled, sealed and trimmed"
    files = lambda: list((folder.parent / "data" / "log").rglob("*.log"))  # noqa: E731
    assert len(files()) == 1
    assert "sealed segment" not in compactor_command("gc", "--dry-run").done().stderr
    clock.advance(60_000)
    assert compactor_command("gc", "--dry-run").done().stderr.count("sealed") == 0
    assert "Removed the files of 1 sealed segment\n" in compactor_command("gc").done().stderr
    assert files() == []
    assert offsets(compactor_command, topic) == []


def test_a_cursor_holds_the_rest_and_is_named(compactor_command: Compactor, topic: str) -> None:
    compactor_command("cursor", "create", topic, "slow", "--at", "12").done()
    held = compactor_command("topics", "trim", topic, "--before", "30", "--output", "json")
    assert held.exit_code == 4
    document = json.loads(held.stdout)
    assert gone(document) == [(0, 10, "start offset")]
    assert document["start_offset"] == 12
    assert (document["held"]["cursor"], document["held"]["start_offset"]) == ("slow", 30)
    assert document["held"]["mark_delete_offset"] == 11
    assert [ledger["first_offset"] for ledger in document["held"]["ledgers"]] == [11]
    assert "The cursor slow, at " in held.stderr
    assert "(offset 11), holds 1 more ledger back" in held.stderr
    assert "--force" in held.stderr
    assert offsets(compactor_command, topic)[0] == 12
    forced = compactor_command("topics", "trim", topic, "--before", "30", "--force").done()
    assert "holds" not in forced.stderr
    assert offsets(compactor_command, topic)[0] == 30


def test_policies_that_are_held_back_are_no_failure(compactor_command: Compactor, topic: str) -> None:
    compactor_command("cursor", "create", topic, "slow", "--at", "earliest").done()
    compactor_command(
        "topics", "policies", topic, "--set", "cleanup.policy=delete", "--set", "retention.bytes=0"
    ).done()
    held = compactor_command("topics", "trim", topic).done()
    assert "The cursor slow, at nothing, holds 3 more ledgers back: let its reader acknowledge" in held.stderr
    assert held.stdout == "", "nothing went"
    assert offsets(compactor_command, topic) == list(range(40))


def test_nonsense_is_refused(compactor_command: Compactor, topic: str) -> None:
    for arguments, code, text in (
        (["users", "--before", "41"], 2, "from 0 to 40"),
        (["users", "--before", "soon"], 2, "neither an offset nor a message id"),
        (["users", "--before=-5"], 2, "neither an offset nor a message id"),
        (["nosuch"], 3, "nosuch"),
    ):
        compactor_command("topics", "trim", *arguments).refused(code, text)
    assert offsets(compactor_command, topic) == list(range(40))
    compactor_command("topics", "policies", topic, "--set", "cleanup.policy=compact").done()
    compactor_command("topics", "trim", topic, "--before", "3").refused(2, "cleanup policy compact", "--before")
