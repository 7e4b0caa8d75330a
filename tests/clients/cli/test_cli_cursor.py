"""`compactor cursor`: where cursors are created and moved to, their reports, and refusals (A4, R8, T1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from storage.clock import SystemClock
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clients.cli.conftest import write_lines
from tests.cursors import merge
from tests.program import Program


@pytest.fixture
def topic(program: Program, history: str, folder: Path) -> str:
    """Offsets 0 to 5 in one ledger, 6 to 8 in another."""
    write_lines(folder / "more.jsonl", *({"key": "d", "value": str(number)} for number in range(3)))
    program("import", history, "more.jsonl").done()
    return history


@pytest.fixture
def ids(program: Program, topic: str) -> list[str]:
    return [message["message_id"] for message in program("read", topic).done().messages]


@pytest.fixture
def metadata(folder: Path) -> MetadataStore:
    return MetadataStore(f"sqlite:///{folder.parent / 'data' / 'metadata.db'}", SystemClock())


def show(program: Program, topic: str, name: str) -> dict[str, Any]:
    document: dict[str, Any] = program.json("cursor", "show", topic, name)
    return document


def test_a_cursor_is_created_and_moved_to_a_position(program: Program, topic: str, ids: list[str]) -> None:
    """The message of each position is tested in tests/unit/storage/reading/test_position_text.py."""
    program("cursor", "create", topic, "c", "--at", "earliest").done()
    for position, offset in (("6", 5), ("earliest", None), (ids[3], 2)):
        program("cursor", "reset", topic, "c", "--to", position).done()
        document = show(program, topic, "c")
        assert document["mark_delete_offset"] == offset
        assert document["mark_delete"] == (None if offset is None else ids[offset])
        assert document["backlog"] == 8 - (-1 if offset is None else offset)


def test_latest_is_the_default(program: Program, topic: str, ids: list[str]) -> None:
    created = program("cursor", "create", topic, "reports").done()
    assert created.stdout == (
        f"Cursor reports of topic persistent://public/default/t created, mark-delete {ids[8]} (offset 8)\n"
    )
    again = program("cursor", "create", topic, "reports", "--at", "earliest")
    again.refused(4, "has a cursor 'reports' already")
    assert show(program, topic, "reports")["mark_delete_offset"] == 8
    assert show(program, topic, "reports")["properties"] == {}


def test_a_compacted_reader_holds_tombstones(program: Program, topic: str, metadata: MetadataStore) -> None:
    program("cursor", "create", topic, "raw", "--at", "2").done()
    program("cursor", "create", topic, "compacted", "--at", "4", "--read-compacted").done()
    assert show(program, topic, "compacted")["properties"] == {"readCompacted": "true"}
    assert metadata.cursors.slowest_compacted_reader_offset(metadata.topics.get(TopicName.parse(topic)).id) == 3
    metadata.close()


def test_list_and_show(program: Program, topic: str, ids: list[str], metadata: MetadataStore) -> None:
    program("cursor", "create", topic, "b", "--at", "1", "--read-compacted").done()
    program("cursor", "create", topic, "a", "--at", "earliest").done()
    topic_id = metadata.topics.get(TopicName.parse(topic)).id
    life = metadata.cursors.load(topic_id, "b", 1 << 20).incarnation
    merge(metadata, topic_id, "b", life, None, {0: BitMap([3, 4, 7])})
    metadata.close()
    documents = program.json("cursor", "list", topic)
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
    lines = program("cursor", "list", topic).done().stdout.splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines[3:5]]
    assert rows == [["a", "-", "-", "9", "0", "-"], ["b", ids[0], "0", "5", "2", "readCompacted=true"]]
    output = program("cursor", "show", topic, "b").done().stdout
    assert dict(line.split(maxsplit=1) for line in output.splitlines()) == {
        "cursor": "b",
        "mark_delete": ids[0],
        "mark_delete_offset": "0",
        "backlog": "5",
        "ranges": "2",
        "acknowledged_above": "3",
        "stored_bytes": str(stored),
        "properties": "readCompacted=true",
    }


def test_the_horizon_is_shown_and_stays(program: Program, topic: str, ids: list[str], in_process_engine: None) -> None:
    """A4."""
    program("cursor", "create", topic, "__compaction").refused(2, "__compaction", "horizon")
    program("compact-topic", "--topic", topic).done()
    before = show(program, topic, "__compaction")
    assert (before["mark_delete"], before["backlog"]) == (ids[8], 0)
    for place in ("earliest", "latest", "3"):
        program("cursor", "reset", topic, "__compaction", "--to", place).refused(2, "__compaction")
    program("cursor", "create", topic, "__compaction", "--at", "3").refused(2, "__compaction")
    assert show(program, topic, "__compaction") == before
    program("cursor", "delete", topic, "__compaction").done()
    program("cursor", "show", topic, "__compaction").refused(3, "__compaction")


def test_a_compacted_ledger_without_its_raw_messages_is_kept(
    program: Program, topic: str, ids: list[str], metadata: MetadataStore, in_process_engine: None
) -> None:
    """R8: without it, messages would be lost."""
    program("compact-topic", "--topic", topic).done()
    record = metadata.topics.get(TopicName.parse(topic))
    ledgers = [ledger.ledger_id for ledger in metadata.ledgers.of_topic(record.id)]
    metadata.trimming.trim(record.id, 9, ledgers, force=True, keep_start=True)
    metadata.close()
    refused = program("cursor", "delete", topic, "__compaction")
    refused.refused(4, "raw messages", "only in compacted ledger", "force")
    assert show(program, topic, "__compaction")["mark_delete"] == ids[8]
    program("cursor", "delete", topic, "__compaction", "--force").done()
    program("cursor", "show", topic, "__compaction").refused(3, "__compaction")


@pytest.mark.parametrize("suffix", [".parquet", ".index"])
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_compacted_ledger_that_raw_cannot_replace_is_kept(
    program: Program, topic: str, folder: Path, in_process_engine: None, suffix: str, is_missing: bool
) -> None:
    """R8: the next run would fail at the lost object, and the compacted ledger has the only copy."""
    program("compact-topic", "--topic", topic).done()
    compacted = program("read", topic, "--read-compacted").done().messages
    first, last = sorted((folder.parent / "data" / "objects").glob(f"topics/*/ledgers/*{suffix}"))
    content = first.read_bytes()
    first.unlink()
    if not is_missing:
        first.write_bytes(content[:-1])
    refused = program("cursor", "delete", topic, "__compaction")
    refused.refused(4, "raw messages", "from offset 0 to 5 cannot be read", first.name, "__compaction", "--force")
    assert last.name not in refused.stderr
    assert program("read", topic, "--read-compacted").done().messages == compacted
    program("cursor", "create", topic, "other").done()
    program("cursor", "delete", topic, "other").done()
    program("cursor", "delete", topic, "__compaction", "--force").done()
    program("cursor", "show", topic, "__compaction").refused(3, "__compaction")


def test_a_compaction_cursor_without_a_compacted_ledger_is_deleted(
    program: Program, topic: str, folder: Path, metadata: MetadataStore
) -> None:
    metadata.cursors.ensure(metadata.topics.get(TopicName.parse(topic)).id, "__compaction")
    metadata.close()
    for lost in (folder.parent / "data" / "objects").glob("topics/*/ledgers/*"):
        lost.unlink()
    program("cursor", "delete", topic, "__compaction").done()
