"""`compactor topics create` and `delete`: nothing goes without --yes, and then all of it does."""

from __future__ import annotations

from pathlib import Path

from api.components import open_environment
from api.settings.settings import Settings
from storage.model import TopicName
from tests.clients.cli.conftest import write_lines
from tests.program import Program


def test_a_topics_life(program: Program, folder: Path) -> None:
    name = "persistent://acme/shop/users"
    assert program("topics", "create", name, "--property", "owner=crm").done().stdout == (f"Topic {name} created\n")
    program("topics", "create", name).refused(4, "exists already")
    program("topics", "create", "persistent://acme/lab/users").done()
    listed = program("topics", "list", "acme/shop", "--output", "json").done().json
    assert [document["topic"] for document in listed] == [name]
    program("topics", "list", "acme/none").refused(3, "acme/none does not exist")
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


def test_a_dry_run_counts_unsealed_messages_and_names_the_writer_that_prevents_it(
    program: Program, folder: Path
) -> None:
    write_lines(folder / "in.jsonl", {"key": "a", "value": "1"}, {"key": "b", "value": "2"})
    program("produce", "open", "in.jsonl").done()
    dry_run = program("topics", "delete", "open").done()
    assert "would be deleted: 2 messages (" in dry_run.stdout
    assert "give --yes" in dry_run.stderr
    with open_environment(Settings.load()) as environment:
        topic = environment.metadata.topics.get(TopicName.parse("open"))
        lease = environment.metadata.leases.acquire(topic.id, "there:4711:cafe", 60_000)
    dry_run = program("topics", "delete", "open").done()
    assert "--yes would be refused: there:4711:cafe is writing to" in dry_run.stderr
    assert "give --force" in dry_run.stderr
    assert "refused" not in program("topics", "delete", "open", "--force").done().stderr
    program("topics", "delete", "open", "--yes").refused(4, "there:4711:cafe is writing to")
    with open_environment(Settings.load()) as environment:
        environment.metadata.leases.release(lease)
    assert "deleted: 2 messages (" in program("topics", "delete", "open", "--yes").done().stdout


def test_a_partitioned_topics_life(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", {"key": "a", "value": "1"})
    program("topics", "create", "pt", "--partitions", "2").done()
    for words in (("topics", "create", "pt-partition-2"), ("import", "pt-partition-2", "in.jsonl")):
        program(*words).refused(2, "pt has 2 partitions")
    program("topics", "policies", "pt-partition-1", "--set", "retention.bytes=5").refused(2, "is a partition")
    program("topics", "policies", "pt", "--set", "retention.bytes=5").done()
    answer = program("topics", "delete", "pt", "--yes").done()
    assert answer.stdout.startswith("Topic persistent://public/default/pt of 2 partitions deleted: 0 messages")
    assert program.json("topics", "list") == []
