"""`compactor cursor`: where cursors are made and moved to, what is told of them, and what is refused (A4, R8, T1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from storage.clock import SystemClock
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clients.cli.conftest import Compactor, write_lines


@pytest.fixture
def topic(compactor_command: Compactor, history: str, folder: Path) -> str:
    """Offsets 0 to 5 in one ledger, 6 to 8 in another."""
    write_lines(folder / "more.jsonl", *({"key": "d", "value": str(number)} for number in range(3)))
    compactor_command("import", history, "more.jsonl").done()
    return history


@pytest.fixture
def ids(compactor_command: Compactor, topic: str) -> list[str]:
    return [message["message_id"] for message in compactor_command("read", topic).done().messages]


@pytest.fixture
def metadata(folder: Path) -> MetadataStore:
    return MetadataStore(f"sqlite:///{folder.parent / 'data' / 'metadata.db'}", SystemClock())


def show(compactor_command: Compactor, topic: str, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(compactor_command("cursor", "show", topic, name, "--output", "json").stdout)
    return shown


def test_a_cursor_is_created_and_moved_to_a_position(compactor_command: Compactor, topic: str, ids: list[str]) -> None:
    """Which message a position stands for: tests/unit/storage/reading/test_positions.py."""
    compactor_command("cursor", "create", topic, "c", "--at", "earliest").done()
    for position, offset in (("6", 5), ("earliest", None), (ids[3], 2)):
        compactor_command("cursor", "reset", topic, "c", "--to", position).done()
        shown = show(compactor_command, topic, "c")
        assert shown["mark_delete_offset"] == offset
        assert shown["mark_delete"] == (None if offset is None else ids[offset])
        assert shown["backlog"] == 8 - (-1 if offset is None else offset)


def test_latest_is_the_default(compactor_command: Compactor, topic: str, ids: list[str]) -> None:
    created = compactor_command("cursor", "create", topic, "reports").done()
    assert created.stdout == (
        f"Cursor reports of topic persistent://public/default/t created, mark-delete {ids[8]} (offset 8)\n"
    )
    again = compactor_command("cursor", "create", topic, "reports", "--at", "earliest")
    again.refused(4, "has a cursor 'reports' already")
    assert show(compactor_command, topic, "reports")["mark_delete_offset"] == 8
    assert show(compactor_command, topic, "reports")["properties"] == {}


def test_a_compacted_reader_holds_tombstones(compactor_command: Compactor, topic: str, metadata: MetadataStore) -> None:
    compactor_command("cursor", "create", topic, "raw", "--at", "2").done()
    compactor_command("cursor", "create", topic, "compacted", "--at", "4", "--read-compacted").done()
    assert show(compactor_command, topic, "compacted")["properties"] == {"readCompacted": "true"}
    assert metadata.cursors.compacted_floor(metadata.topics.get(TopicName.parse(topic)).id) == 3
    metadata.close()


def test_list_and_show(compactor_command: Compactor, topic: str, ids: list[str], metadata: MetadataStore) -> None:
    compactor_command("cursor", "create", topic, "b", "--at", "1", "--read-compacted").done()
    compactor_command("cursor", "create", topic, "a", "--at", "earliest").done()
    topic_id = metadata.topics.get(TopicName.parse(topic)).id
    life = metadata.cursors.load(topic_id, "b", 1 << 20).incarnation
    metadata.cursors.merge(topic_id, "b", life, None, {0: BitMap([3, 4, 7])})
    metadata.close()
    documents = json.loads(compactor_command("cursor", "list", topic, "--output", "json").done().stdout)
    stored = documents[1].pop("stored_bytes")
    assert 0 < stored < 100
    assert documents[1] == {
        "cursor": "b",
        "mark_delete": ids[0],
        "mark_delete_offset": 0,
        "backlog": 5,
        "ranges": 2,
        "acknowledged_above": 3,
        "properties": {"readCompacted": "true"},
    }
    assert (documents[0]["cursor"], documents[0]["mark_delete"], documents[0]["backlog"]) == ("a", None, 9)
    lines = compactor_command("cursor", "list", topic).done().stdout.splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines[3:5]]
    assert rows == [["a", "-", "-", "9", "0", "-"], ["b", ids[0], "0", "5", "2", "readCompacted=true"]]
    shown = compactor_command("cursor", "show", topic, "b").done().stdout
    assert dict(line.split(maxsplit=1) for line in shown.splitlines()) == {
        "cursor": "b",
        "mark_delete": ids[0],
        "mark_delete_offset": "0",
        "backlog": "5",
        "ranges": "2",
        "acknowledged_above": "3",
        "stored_bytes": str(stored),
        "properties": "readCompacted=true",
    }


def test_what_is_refused(compactor_command: Compactor, topic: str) -> None:
    compactor_command("cursor", "create", topic, "c", "--at", "10").refused(2, "offset 10", "its end, which is 9")
    compactor_command("cursor", "create", topic, "c", "--at=-5").refused(2, "-5")
    compactor_command("cursor", "list", "nosuch").refused(3, "nosuch")
    compactor_command("cursor", "create", topic, "").refused(2, "cursor name")
    for command in (("show", topic, "c"), ("reset", topic, "c", "--to", "0"), ("delete", topic, "c")):
        compactor_command("cursor", *command).refused(3, "no cursor 'c'")
    assert json.loads(compactor_command("cursor", "list", topic, "--output", "json").done().stdout) == []


def test_the_horizon_is_shown_and_stays(
    compactor_command: Compactor, topic: str, ids: list[str], in_process_engine: None
) -> None:
    """A4."""
    compactor_command("cursor", "create", topic, "__compaction").refused(2, "__compaction", "horizon")
    compactor_command("compact-topic", "--topic", topic).done()
    before = show(compactor_command, topic, "__compaction")
    assert (before["mark_delete"], before["backlog"]) == (ids[8], 0)
    for place in ("earliest", "latest", "3"):
        compactor_command("cursor", "reset", topic, "__compaction", "--to", place).refused(2, "__compaction")
    compactor_command("cursor", "create", topic, "__compaction", "--at", "3").refused(2, "__compaction")
    assert show(compactor_command, topic, "__compaction") == before
    compactor_command("cursor", "delete", topic, "__compaction").done()
    compactor_command("cursor", "show", topic, "__compaction").refused(3, "__compaction")


def test_a_compacted_ledger_without_its_raw_messages_is_kept(
    compactor_command: Compactor, topic: str, ids: list[str], metadata: MetadataStore, in_process_engine: None
) -> None:
    """R8: without it, messages would be lost."""
    compactor_command("compact-topic", "--topic", topic).done()
    record = metadata.topics.get(TopicName.parse(topic))
    ledgers = [ledger.ledger_id for ledger in metadata.ledgers.of_topic(record.id)]
    metadata.trimming.trim(record.id, 9, ledgers, force=True, keep_start=True)
    metadata.close()
    refused = compactor_command("cursor", "delete", topic, "__compaction")
    refused.refused(4, "raw messages", "only in compacted ledger", "force")
    assert show(compactor_command, topic, "__compaction")["mark_delete"] == ids[8]
    compactor_command("cursor", "delete", topic, "__compaction", "--force").done()
    compactor_command("cursor", "show", topic, "__compaction").refused(3, "__compaction")
