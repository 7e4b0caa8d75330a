"""`compactor gc`: what it prints, refuses, and leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.cli.conftest import objects, write_lines
from tests.clocks import ManualClock
from tests.program import Program

HOUR = 3_600_000


@pytest.fixture
def replaced(program: Program, in_process_engine: None, clock: ManualClock, folder: Path) -> str:
    """A topic whose first compacted ledger was replaced an hour ago."""
    for number in range(2):
        write_lines(folder / "in.jsonl", *({"key": f"k{n}", "value": f"{number}"} for n in range(9)))
        program("import", "users", "in.jsonl").done()
        program("compact-topic", "--topic", "users").done()
    clock.advance(HOUR)
    return "users"


def test_a_dry_run_prints_what_a_run_then_deletes(
    program: Program, replaced: str, folder: Path, in_process_engine: None
) -> None:
    before = objects(folder)
    dry = program("gc", "--dry-run").done()
    assert objects(folder) == before
    assert "users: 1 index (" in dry.stderr
    assert "1 manifest (" in dry.stderr
    assert "1 replaced compacted ledger" in dry.stderr
    assert "Would delete 3 objects, " in dry.stderr
    wet = program("gc", "--yes").done()
    assert wet.stdout == dry.stdout
    assert wet.stderr == dry.stderr.replace("Would delete", "Deleted")
    assert before - objects(folder) == set(wet.stdout.splitlines())
    again = program("gc", "--yes").done()
    assert (again.stdout, again.stderr) == ("", "Deleted 0 objects, 0 B\n")
    read = program("read", replaced, "--read-compacted").done().messages
    assert {line["value"] for line in read} == {"1"}


def test_a_longer_grace_time_keeps_it(program: Program, replaced: str) -> None:
    assert program("gc", "--grace", "61m").done().stdout == ""
    assert program("gc", "--grace", "1h").done().stdout != ""


def test_the_setting_is_the_default_of_the_grace_time(
    program: Program, replaced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPACTOR_GC_GRACE", "61m")
    assert program("gc").done().stdout == ""
    assert program("gc", "--grace", "1h").done().stdout != ""


def test_one_topic(program: Program, replaced: str, history: str, clock: ManualClock) -> None:
    assert program("gc", "--topic", history).done().stdout == ""
    assert program("gc", "--topic", replaced, "--topic", replaced).done().stdout.count("\n") == 3


def test_a_manifest_that_is_lost_keeps_its_topic_and_no_other(
    program: Program, replaced: str, folder: Path, in_process_engine: None
) -> None:
    root = folder.parent / "data" / "objects"
    lost = sorted(name for name in objects(folder) if "/compacted/" in name)[-1]
    (root / lost).unlink()
    before = objects(folder)
    result = program("gc", "--yes")
    assert result.exit_code == 7
    assert result.stdout == ""
    assert lost in result.stderr.splitlines()[-1]
    assert objects(folder) == before
    program("gc", "--topic", replaced).refused(7, lost, "no garbage of persistent://public/default/users")


def test_topics_of_another_database_are_only_counted(
    program: Program, replaced: str, folder: Path, clock: ManualClock
) -> None:
    """The store of one data directory, checked with the database of another."""
    clock.advance(HOUR)
    before, store = objects(folder), f"file://{folder.parent / 'data' / 'objects'}"
    other = ("--data", str(folder.parent / "other"), "--store", store)
    program("db", "upgrade", *other[:2]).done()
    for refused in ((), ("--dry-run",), ("--unknown-topics", "--yes")):
        program("gc", *other, *refused).refused(5, "belongs to another database", "store adopt")
    program("store", "adopt", *other, "--yes").done()
    counted = program("gc", *other).done()
    assert counted.stdout == ""
    assert "unknown topic" in counted.stderr
    assert "--unknown-topics" in counted.stderr
    assert counted.stderr.endswith("Would delete 0 objects, 0 B\nNothing was deleted: give --yes\n")
    assert objects(folder) == before
    for asking in ((), ("--dry-run",)):
        answer = program("gc", *other, "--unknown-topics", *asking).done()
        assert answer.stdout.count("\n") == len(before)
    assert objects(folder) == before
    program("gc", *other, "--unknown-topics", "--yes").done()
    assert objects(folder) == set()
