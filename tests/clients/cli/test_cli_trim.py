"""`compactor topics trim`: what it prints and refuses; and what `gc` then does.

Which ledgers go is tests/unit/compactor/maintenance/test_retention.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.cli.conftest import write_lines
from tests.clocks import ManualClock
from tests.program import Program

HOUR = 3_600_000


@pytest.fixture
def topic(program: Program, clock: ManualClock, folder: Path) -> str:
    """Ledgers that begin at offsets 0, 11 and 23; the topic ends at 40."""
    for length in (11, 12, 17):
        write_lines(folder / "in.jsonl", *({"key": f"k{n}", "value": f"{n}"} for n in range(length)))
        program("import", "users", "in.jsonl").done()
    return "users"


def offsets(program: Program, topic: str, *options: str) -> list[int]:
    return [line["offset"] for line in program("read", topic, *options).done().messages]


def trimmed_ledgers(document: dict[str, Any]) -> list[tuple[int, int, str]]:
    return [(ledger["first_offset"], ledger["last_offset"], ledger["why"]) for ledger in document["ledgers"]]


def test_before_an_offset(program: Program, topic: str) -> None:
    """Worked example 7, as it is typed."""
    trim = ("topics", "trim", topic, "--before", "25")
    dry = program(*trim, "--dry-run", "--output", "json").done()
    (document,) = [json.loads(dry.stdout)]
    assert (document["dry_run"], document["start_offset"], document["held"]) == (True, 25, None)
    assert trimmed_ledgers(document) == [(0, 10, "start offset"), (11, 22, "start offset")]
    assert dry.stderr.startswith("Would trim 2 ledgers, ")
    table = program(*trim, "--dry-run").done().stdout
    assert [line.split("│")[-2].strip() for line in table.splitlines()[3:5]] == ["start offset"] * 2
    assert offsets(program, topic) == list(range(40))
    wet = program(*trim, "--yes", "--output", "json").done()
    assert json.loads(wet.stdout) == document | {"dry_run": False}
    assert wet.stderr == dry.stderr.replace("Would trim", "Trimmed")
    assert wet.stderr.endswith("of persistent://public/default/users; its raw messages begin at offset 25\n")
    assert offsets(program, topic) == list(range(25, 40))
    again = program(*trim, "--output", "json").done()
    assert trimmed_ledgers(json.loads(again.stdout)) == []


def test_what_is_trimmed_goes_with_gc_after_its_delay(program: Program, topic: str, clock: ManualClock) -> None:
    clock.advance(2 * HOUR)
    program("topics", "policies", topic, "--set", "file.delete.delay.ms=10m").done()
    program("topics", "trim", topic, "--before", "23", "--yes").done()
    clock.advance(600_000 - 1)
    assert program("gc", "--yes").done().stdout == ""
    clock.advance(1)
    dry = program("gc", "--dry-run").done()
    assert "2 trimmed ledgers" in dry.stderr
    assert len(dry.stdout.splitlines()) == 4
    wet = program("gc", "--yes").done()
    assert wet.stdout == dry.stdout
    assert program("gc", "--yes").done().stdout == ""
    assert offsets(program, topic) == list(range(23, 40))


def test_gc_removes_files_of_sealed_segments(program: Program, topic: str, clock: ManualClock, folder: Path) -> None:
    program("produce", topic, "-", stdin=b'{"key": "k", "value": "v"}\n').done()
    program("topics", "policies", topic, "--set", "cleanup.policy=delete", "--set", "retention.ms=1h").done()
    clock.advance(HOUR + 1)
    trimmed = program.json("topics", "trim", topic, "--yes")
    assert trimmed_ledgers(trimmed)[-1] == (40, 40, "time"), "the open segment was rolled, sealed and trimmed"
    files = lambda: list((folder.parent / "data" / "log").rglob("*.log"))  # noqa: E731
    assert len(files()) == 1
    assert "sealed segment" not in program("gc", "--dry-run").done().stderr
    clock.advance(60_000)
    assert program("gc", "--dry-run").done().stderr.count("sealed") == 0
    assert "Removed the files of 1 sealed segment\n" in program("gc", "--yes").done().stderr
    assert files() == []
    assert offsets(program, topic) == []


def test_a_cursor_holds_the_rest_and_is_named(program: Program, topic: str) -> None:
    program("cursor", "create", topic, "slow", "--at", "12").done()
    held = program("topics", "trim", topic, "--before", "30", "--yes", "--output", "json")
    assert held.exit_code == 4
    document = json.loads(held.stdout)
    assert trimmed_ledgers(document) == [(0, 10, "start offset")]
    assert document["start_offset"] == 12
    assert (document["held"]["cursor"], document["held"]["start_offset"]) == ("slow", 30)
    assert document["held"]["mark_delete_offset"] == 11
    assert [ledger["first_offset"] for ledger in document["held"]["ledgers"]] == [11]
    assert "The cursor slow, at " in held.stderr
    assert "(offset 11), holds 1 more ledger back" in held.stderr
    assert "--force" in held.stderr
    assert offsets(program, topic)[0] == 12
    forced = program("topics", "trim", topic, "--before", "30", "--force", "--yes").done()
    assert "holds" not in forced.stderr
    assert offsets(program, topic)[0] == 30


def test_policies_that_are_held_back_are_no_failure(program: Program, topic: str) -> None:
    program("cursor", "create", topic, "slow", "--at", "earliest").done()
    program("topics", "policies", topic, "--set", "cleanup.policy=delete", "--set", "retention.bytes=0").done()
    held = program("topics", "trim", topic, "--yes").done()
    assert (
        "The cursor slow, which has acknowledged nothing, holds 3 more ledgers back: let its reader acknowledge"
        in held.stderr
    )
    assert held.stdout == "", "nothing went"
    assert offsets(program, topic) == list(range(40))


def test_no_trim_while_the_compacted_ledger_cannot_be_read(
    program: Program, topic: str, folder: Path, in_process_engine: None
) -> None:
    """R8: raw has the only copy, from which the advised recovery makes it again; also the dry run."""
    program("compact-topic", "--topic", topic).done()
    compacted = program("read", topic, "--read-compacted").done().messages
    (part,) = (folder.parent / "data" / "objects").glob("topics/*/runs/*/part-*")
    part.unlink()
    name = f"persistent://public/default/{topic}"
    for option in ("--dry-run", "--yes"):
        refused = program("topics", "trim", topic, "--before", "23", option)
        refused.refused(7, "the compacted ledger ", part.name, f"`compactor cursor delete {name} __compaction`")
    assert offsets(program, topic) == list(range(40))
    program("cursor", "delete", topic, "__compaction").done()
    program("compact-topic", "--topic", topic).done()
    assert program("read", topic, "--read-compacted").done().messages == compacted
    program("topics", "trim", topic, "--before", "23", "--yes").done()
    assert offsets(program, topic) == list(range(23, 40))


def test_a_lost_compacted_ledger_is_given_up_by_force(
    program: Program, topic: str, folder: Path, in_process_engine: None
) -> None:
    program("compact-topic", "--topic", topic).done()
    (part,) = (folder.parent / "data" / "objects").glob("topics/*/runs/*/part-*")
    part.unlink()
    program("topics", "trim", topic, "--before", "23", "--yes", "--force").done()
    assert offsets(program, topic) == list(range(23, 40))


def test_where_raw_begins_after_compacted_ledgers_went(
    program: Program, topic: str, folder: Path, in_process_engine: None
) -> None:
    program("topics", "policies", topic, "--set", "cleanup.policy=compact").done()
    program("compact-topic", "--topic", topic).done()
    for option, count in (("--dry-run", 3), ("--yes", 3), ("--yes", 0)):
        trimmed = program("topics", "trim", topic, option, "--output", "json").done()
        document = json.loads(trimmed.stdout)
        assert (len(document["ledgers"]), document["start_offset"], document["first_offset"]) == (count, 0, 40)
        assert trimmed.stderr.endswith("; its raw messages begin at offset 40\n")
    assert len(offsets(program, topic, "--read-compacted")) == 17
    program("produce", topic, "-", stdin=b'{"key": "k", "value": "v"}\n').done()
    assert program.json("topics", "trim", topic)["first_offset"] == 40
