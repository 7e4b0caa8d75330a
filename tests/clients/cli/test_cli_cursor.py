"""`compactor cursor`: where cursors are made and moved to, what is told of them, and what is refused (A4, R8, T1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from storage.clock import SystemClock
from storage.metadata.store import MetadataStore
from storage.model import MessageId, TopicName
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


def test_where_a_cursor_stands(compactor_command: Compactor, topic: str, ids: list[str]) -> None:
    """The message before the first one to deliver, by its exact id."""
    behind = MessageId.parse(ids[5])
    no_message = f"{behind.ledger_id}:{behind.entry_id + 100}"
    places = {
        "earliest": None,
        "latest": 8,
        "0": None,
        "1": 0,
        "6": 5,
        "9": 8,
        ids[0]: None,
        ids[3]: 2,
        ids[6]: 5,
        ids[8]: 7,
        no_message: 5,
        "999999999:0": 8,
    }
    compactor_command("cursor", "create", topic, "moved").done()
    for number, (place, offset) in enumerate(places.items()):
        compactor_command("cursor", "create", topic, f"c{number}", "--at", place).done()
        compactor_command("cursor", "reset", topic, "moved", "--to", place).done()
        for name in (f"c{number}", "moved"):
            shown = show(compactor_command, topic, name)
            assert shown["mark_delete_offset"] == offset, place
            assert shown["mark_delete"] == (None if offset is None else ids[offset])
            assert shown["backlog"] == 8 - (-1 if offset is None else offset)


def test_latest_is_the_default(compactor_command: Compactor, topic: str, ids: list[str]) -> None:
    made = compactor_command("cursor", "create", topic, "reports").done()
    assert made.stdout == (
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


def test_an_empty_topic(compactor_command: Compactor, topic: str, folder: Path) -> None:
    (folder / "bad.jsonl").write_text("no message")
    compactor_command("import", "empty", "bad.jsonl").refused(2, "bad.jsonl")
    for number, place in enumerate(("earliest", "latest", "0", "5:0")):
        compactor_command("cursor", "create", "empty", f"c{number}", "--at", place).done()
        shown = show(compactor_command, "empty", f"c{number}")
        assert (shown["mark_delete"], shown["backlog"]) == (None, 0)
    compactor_command("cursor", "create", "empty", "c", "--at", "1").refused(2, "offset 1", "its end, which is 0")
    assert compactor_command("cursor", "list", "nosuch").refused(3, "nosuch")


def test_what_is_refused(compactor_command: Compactor, topic: str) -> None:
    compactor_command("cursor", "create", topic, "c", "--at", "10").refused(2, "offset 10", "its end, which is 9")
    for place in ("yesterday", "-5", "1:2:3:4:5", "²"):
        compactor_command("cursor", "create", topic, "c", f"--at={place}").refused(2, place)
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


def test_where_raw_is_trimmed(
    compactor_command: Compactor, topic: str, ids: list[str], metadata: MetadataStore, in_process_engine: None
) -> None:
    """R4: earliest is the start of the compacted ledger. R8: without it, messages would be lost."""
    compactor_command("compact-topic", "--topic", topic).done()
    record = metadata.topics.get(TopicName.parse(topic))
    first, second = metadata.ledgers.of_topic(record.id)
    metadata.trimming.trim(record.id, 6, [first.ledger_id], force=False, keep_start=True)
    before_second = f"{second.ledger_id}:-1:-1"
    places = {"2": None, ids[2]: None, "6": (before_second, 5), ids[7]: (ids[6], 6), "latest": (ids[8], 8)}
    compactor_command("cursor", "create", topic, "c").done()
    for place, mark in places.items():
        compactor_command("cursor", "reset", topic, "c", "--to", place).done()
        shown = show(compactor_command, topic, "c")
        assert (shown["mark_delete"], shown["mark_delete_offset"]) == (mark or (None, None)), place
        assert shown["backlog"] == 3 - (mark[1] - 5 if mark else 0)
    metadata.trimming.trim(record.id, 9, [second.ledger_id], force=True, keep_start=True)
    compactor_command("cursor", "reset", topic, "c", "--to", "earliest").done()
    compactor_command("cursor", "reset", topic, "c", "--to", "latest").done()
    assert show(compactor_command, topic, "c")["mark_delete"] == ids[8], "nothing of the compacted ledger either"
    refused = compactor_command("cursor", "delete", topic, "__compaction")
    refused.refused(4, "raw messages", "only in compacted ledger", "force")
    assert show(compactor_command, topic, "__compaction")["mark_delete"] == ids[8]
    compactor_command("cursor", "delete", topic, "__compaction", "--force").done()
    compactor_command("cursor", "show", topic, "__compaction").refused(3, "__compaction")
    metadata.close()
