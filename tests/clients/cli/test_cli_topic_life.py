"""`compactor topics create` and `delete`: nothing goes without --yes, and then all of it does."""

from __future__ import annotations

import json
from pathlib import Path

from tests.clients.cli.conftest import Compactor, write_lines


def test_a_topics_life(compactor_command: Compactor, folder: Path) -> None:
    name = "persistent://acme/shop/users"
    assert compactor_command("topics", "create", name, "--property", "owner=crm").done().stdout == (
        f"Topic {name} created\n"
    )
    compactor_command("topics", "create", name).refused(4, "exists already")
    compactor_command("topics", "create", name, "--property", "owner").refused(2, "give NAME=VALUE")
    write_lines(folder / "in.jsonl", {"key": "a", "value": "1"}, {"key": "b", "value": "2"})
    compactor_command("import", name, "in.jsonl").done()
    for options in ((), ("--dry-run",), ("--force",)):
        answer = compactor_command("topics", "delete", name, *options).done()
        assert answer.stdout.startswith(f"Topic {name} would be deleted: 2 messages (")
        assert "give --yes" in answer.stderr
    compactor_command("topics", "delete", name, "--yes", "--dry-run").refused(2, "do not go together")
    assert len(compactor_command("read", name).done().messages) == 2
    assert compactor_command("topics", "delete", name, "--yes").done().stdout.startswith(f"Topic {name} deleted: 2 ")
    compactor_command("topics", "delete", name, "--yes").refused(3, "does not exist")
    compactor_command("read", name).refused(3, "does not exist")
    compactor_command("import", name, "in.jsonl").done()
    assert [line["offset"] for line in compactor_command("read", name).done().messages] == [0, 1]


def test_a_partitioned_topics_life(compactor_command: Compactor) -> None:
    compactor_command("topics", "create", "pt", "--partitions", "2").done()
    compactor_command("topics", "create", "pt-partition-2").done()
    compactor_command("import", "pt", "in.jsonl").refused(2)
    answer = compactor_command("topics", "delete", "pt", "--yes").done()
    assert answer.stdout.startswith("Topic persistent://public/default/pt of 2 partitions deleted: 0 messages")
    listed = json.loads(compactor_command("topics", "list", "--output", "json").done().stdout)
    assert [item["topic"] for item in listed] == ["persistent://public/default/pt-partition-2"]
