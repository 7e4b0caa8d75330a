"""`compactor topics create` and `delete`: nothing goes without --yes, and then all of it does."""

from __future__ import annotations

from pathlib import Path

from tests.clients.cli.conftest import write_lines
from tests.program import Program


def test_a_topics_life(program: Program, folder: Path) -> None:
    name = "persistent://acme/shop/users"
    assert program("topics", "create", name, "--property", "owner=crm").done().stdout == (f"Topic {name} created\n")
    program("topics", "create", name).refused(4, "exists already")
    program("topics", "create", name, "--property", "owner").refused(2, "give NAME=VALUE")
    write_lines(folder / "in.jsonl", {"key": "a", "value": "1"}, {"key": "b", "value": "2"})
    program("import", name, "in.jsonl").done()
    for options in ((), ("--dry-run",), ("--force",)):
        answer = program("topics", "delete", name, *options).done()
        assert answer.stdout.startswith(f"Topic {name} would be deleted: 2 messages (")
        assert "give --yes" in answer.stderr
    program("topics", "delete", name, "--yes", "--dry-run").refused(2, "do not go together")
    assert len(program("read", name).done().messages) == 2
    assert program("topics", "delete", name, "--yes").done().stdout.startswith(f"Topic {name} deleted: 2 ")
    program("topics", "delete", name, "--yes").refused(3, "does not exist")
    program("read", name).refused(3, "does not exist")
    program("import", name, "in.jsonl").done()
    assert [line["offset"] for line in program("read", name).done().messages] == [0, 1]


def test_a_partitioned_topics_life(program: Program) -> None:
    program("topics", "create", "pt", "--partitions", "2").done()
    program("topics", "create", "pt-partition-2").done()
    program("import", "pt", "in.jsonl").refused(2)
    answer = program("topics", "delete", "pt", "--yes").done()
    assert answer.stdout.startswith("Topic persistent://public/default/pt of 2 partitions deleted: 0 messages")
    listed = program.json("topics", "list")
    assert [item["topic"] for item in listed] == ["persistent://public/default/pt-partition-2"]
