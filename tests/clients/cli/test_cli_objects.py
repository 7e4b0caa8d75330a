"""`compactor topics objects`: what another reader of Parquet may open to get the raw ledgers of one topic."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from api.cli.local.objects_command import object_location
from api.settings.settings import Settings
from api.spark.topic_write import TopicWrite
from storage.log.bulk_append import SOURCE_SCHEMA
from storage.model import TopicName
from tests.program import Program


def imported(program: Program, folder: Path, topic: str, *keys: str) -> None:
    (folder / "lines.jsonl").write_text("".join(f'{{"key": "{key}", "value": "v"}}\n' for key in keys))
    program("import", topic, "lines.jsonl").done()


def keys(lines: list[str]) -> list[bytes]:
    return [key for line in lines for key in pq.read_table(line, columns=["key"])["key"].to_pylist()]


def test_the_ledgers_of_one_topic_and_no_other_objects(program: Program, folder: Path, tmp_path: Path) -> None:
    imported(program, folder, "users", "a", "b")
    imported(program, folder, "users", "c")
    imported(program, folder, "others", "x")
    first = program("topics", "objects", "users").done()
    attempt = Path(first.lines[0])
    attempt.with_name(f"{1:020}-{'0' * 32}.parquet").write_bytes(attempt.read_bytes())  # of an attempt that failed
    assert len(list((tmp_path / "data" / "objects").rglob("*.parquet"))) == 4
    listed = program("topics", "objects", "users").done()
    assert keys(listed.lines) == [b"a", b"b", b"c"]
    assert listed.stderr == ""
    documents = program("topics", "objects", "users", "--output", "json").done().json
    assert [document["object"] for document in documents] == listed.lines
    assert [(item["first_offset"], item["last_offset"], item["messages"]) for item in documents] == [
        (0, 1, 2),
        (2, 2, 1),
    ]
    assert all(Path(item["object"]).stat().st_size == item["bytes"] for item in documents)
    program("topics", "trim", "users", "--before", "2", "--yes").done()
    assert keys(program("topics", "objects", "users").done().lines) == [b"c"]


def test_rows_that_a_trim_removed_and_messages_that_are_not_sealed_are_named(program: Program, folder: Path) -> None:
    imported(program, folder, "users", "a", "b")
    program("topics", "trim", "users", "--before", "1", "--yes").done()
    assert (
        "offsets below 1: the first ledger still holds their rows"
        in program("topics", "objects", "users").done().stderr
    )
    (folder / "more.jsonl").write_text('{"key": "c", "value": "v"}\n')
    program("produce", "users", "more.jsonl").done()
    assert "1 segment of persistent://public/default/users not sealed" in program("topics", "objects", "users").stderr


def test_objects_that_tasks_wrote_have_a_base_of_their_offsets(program: Program, folder: Path, tmp_path: Path) -> None:
    imported(program, folder, "users", "a", "b")
    settings = Settings(data=str(tmp_path / "data"))
    write = TopicWrite.begin(settings, TopicName.parse("users"))
    messages = pa.Table.from_pylist([{"key": b"c"}, {"key": b"d"}], SOURCE_SCHEMA)
    write.commit(settings, write.write_task([messages], 0))
    listed = program("topics", "objects", "users").done()
    assert keys(listed.lines) == [b"a", b"b", b"c", b"d"]
    assert listed.stderr.startswith("1 object that Spark wrote: the columns offset and ledger_id count from 0 there")
    documents = program("topics", "objects", "users", "--output", "json").done().json
    assert [item["offset_base"] for item in documents] == [0, 2]
    offsets = [pq.read_table(item["object"])["offset"].to_pylist() for item in documents]
    assert offsets == [[0, 1], [0, 1]]


def test_the_location_in_another_store_is_its_url() -> None:
    assert (
        object_location("s3://bucket/prefix", "topics/x/ledgers/1.parquet")
        == "s3://bucket/prefix/topics/x/ledgers/1.parquet"
    )
    assert object_location("file:///a%20b/objects", "topics/x") == "/a b/objects/topics/x"
