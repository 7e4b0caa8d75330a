"""`compactor import`: what it takes, and that it comes out again as it went in."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.components import open_environment
from api.settings.settings import Settings
from storage.errors import LeaseHeld
from storage.metadata.liveness import LEASE_TTL_MS
from storage.model import TopicName
from tests.clients.cli.conftest import BASE64, content, write_lines
from tests.program import Program

MESSAGES = [
    {"key": "a", "value": "1", "event_time": 5, "publish_time": 9, "properties": {"p": "q", "": "ü"}},
    {"key": None, "value": "no key", "publish_time": 0},
    {"key": "", "value": "empty key", "event_time": 0, "publish_time": -(2**63)},
    {"key": "a", "value": None, "publish_time": 2**40},
    {"key": "b", "value": "", "publish_time": 3},
    {"key": None, "value": None, "publish_time": 3},
    {"key": "line\nend \0 \x1b[31m", "value": '"quoted" \\ 🎉', "publish_time": 4},
]


def test_json_lines_come_out_as_they_went_in(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", *MESSAGES)
    imported = program("import", "t", "in.jsonl").done()
    assert imported.raw_stdout == b"", "an import has no data to give"
    assert imported.stderr.startswith("in.jsonl: 7 messages, ")
    assert content(program("read", "t").done().messages) == MESSAGES


def test_a_message_of_the_far_future_is_taken_only_where_that_is_allowed(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", {"key": "a", "value": "1", "publish_time": 2**63 - 1})
    refused = program("import", "t", "in.jsonl")
    refused.refused(2, "in.jsonl: the publish time 9223372036854775807 of a message is")
    program("topics", "policies", "--broker", "--set", "message.timestamp.after.max.ms=none").done()
    program("import", "t", "in.jsonl").done()
    assert [message["publish_time"] for message in program("read", "t").done().messages] == [2**63 - 1]


def test_an_output_is_an_input(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", *MESSAGES)
    program("import", "t", "in.jsonl").done()
    first = program("read", "t").done()
    (folder / "again.jsonl").write_bytes(first.raw_stdout)
    program("import", "again", "again.jsonl").done()
    assert content(program("read", "again").done().messages) == content(first.messages)


def test_a_byte_order_mark_is_passed_over(program: Program, folder: Path) -> None:
    (folder / "in.jsonl").write_bytes(b'\xef\xbb\xbf{"key":"a","value":"1"}\n')
    program("import", "t", "in.jsonl").done()
    assert [message["key"] for message in program("read", "t").done().messages] == ["a"]


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.whatever"])
def test_gzip_is_known_by_its_content(program: Program, folder: Path, name: str) -> None:
    lines = "".join(json.dumps(message) + "\n" for message in MESSAGES)
    (folder / name).write_bytes(gzip.compress(lines[:200].encode()) + gzip.compress(lines[200:].encode()))
    program("import", "t", name).done()
    assert content(program("read", "t").done().messages) == MESSAGES


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input(program: Program, pack: Any) -> None:
    packed = pack(b'{"key":"a","value":"1"}\r\n{"key":"b","value":"2"}')
    imported = program("import", "t", "-", stdin=packed).done()
    assert imported.stderr.startswith("standard input: 2 messages, 4 B in 1 ledger (")
    assert [message["key"] for message in program("read", "t").messages] == ["a", "b"]


def test_a_pipe_is_a_file_too(program: Program, folder: Path) -> None:
    """`compactor import t <(zcat dump.gz)`."""
    os.mkfifo(folder / "pipe")
    writer = threading.Thread(target=lambda: (folder / "pipe").write_bytes(b'{"key":"a","value":"1"}\n'))
    writer.start()
    program("import", "t", "pipe").done()
    writer.join()
    assert len(program("read", "t").messages) == 1


def test_an_empty_file_is_no_messages(program: Program) -> None:
    """And no topic, if none existed."""
    stderr = program("import", "t", "-").done().stderr
    assert stderr.startswith("standard input: 0 messages, 0 B in 0 ledg")
    assert stderr.endswith("t does not exist: without messages it is not created\n")
    program("topics", "stats", "t").refused(3, "does not exist")
    program("topics", "create", "t").done()
    program("import", "t", "-").done()
    assert program("read", "t").done().raw_stdout == b""


def test_an_error_in_the_second_file_names_the_first(program: Program, folder: Path) -> None:
    (folder / "one.csv").write_text("key,value\na,1\n")
    (folder / "two.csv").write_text("key,value\na,\n")
    stderr = program("import", "t", "one.csv", "two.csv").stderr
    assert "; the files before it, up to one.csv, are imported: leave them out then\n" in stderr


def test_several_files_in_one_call_keep_their_order(program: Program, folder: Path) -> None:
    write_lines(folder / "one.jsonl", {"key": "a", "value": "1"})
    pq.write_table(pa.table({"key": ["a", "b"], "value": ["2", "3"]}), folder / "two.parquet")
    result = program("import", "t", "one.jsonl", "two.parquet", "-", stdin=b'{"key":"z","value":"9"}').done()
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == [
        "one.jsonl",
        "two.parquet",
        "standard input",
        "The topic persistent",
    ]
    assert result.stderr.endswith("persistent://public/default/t did not exist: it was created\n")
    read = program("read", "t").messages
    assert [item["value"] for item in read] == ["1", "2", "3", "9"]
    assert [item["offset"] for item in read] == [0, 1, 2, 3]
    ledgers = [int(item["message_id"].split(":")[0]) for item in read]
    assert ledgers == sorted(ledgers)
    assert len(set(ledgers)) == 3


def test_ledger_size_cuts_ledgers(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", *({"key": "k", "value": "v" * 1023} for _ in range(10)))
    result = program("import", "t", "in.jsonl", "--ledger-size", "4K").done()
    assert "10 messages, 10.0 KiB in 3 ledgers" in result.stderr
    ids = [message["message_id"] for message in program("read", "t").messages]
    entries = [int(item.split(":")[1]) for item in ids]
    assert entries == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_base64_carries_any_bytes(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", {"key": "/w==", "value": "AP/+"}, {"key": "YQ==", "value": ""})
    program("import", "t", "in.jsonl", *BASE64).done()
    read = program("read", "t", *BASE64).done()
    assert [(message["key"], message["value"]) for message in read.messages] == [("/w==", "AP/+"), ("YQ==", "")]
    program("import", "again", "-", *BASE64, stdin=read.raw_stdout).done()
    assert content(program("read", "again", *BASE64).messages) == content(read.messages)
    program("read", "t").refused(2, "the key of message", "is not UTF-8 text", "--key-encoding base64")
    program("read", "t", "--key-encoding", "base64").refused(2, "the value of", "--value-encoding base64")


def test_encodings_are_independent(program: Program) -> None:
    program("import", "t", "-", "--value-encoding", "base64", stdin=b'{"key":"a","value":"/w=="}').done()
    read = program("read", "t", "--value-encoding", "base64").done().messages
    assert (read[0]["key"], read[0]["value"]) == ("a", "/w==")


KEYS, VALUES = ["a", None, ""], ["1", "2", None]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.binary()),
    ],
    ids=str,
)
def test_parquet_strings_and_bytes_of_every_kind(program: Program, folder: Path, kind: pa.DataType) -> None:
    table = pa.table({"key": pa.array(KEYS).cast(kind), "value": pa.array(VALUES).cast(kind)})
    pq.write_table(table, folder / "in.parquet")
    program("import", "t", "in.parquet").done()
    read = program("read", "t").done().messages
    assert [(item["key"], item["value"]) for item in read] == list(zip(KEYS, VALUES, strict=True))


def test_parquet_with_every_optional_column(program: Program, folder: Path) -> None:
    table = pa.table(
        {
            "properties": pa.array([[("p", "q")], None], pa.map_(pa.string(), pa.string())),
            "event_time": pa.array(
                [datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=UTC), None], pa.timestamp("us", "UTC")
            ),
            "publish_time": pa.array([7, 8], pa.int32()),
            "key": ["a", "b"],
            "value": [b"1", b"2"],
        }
    )
    pq.write_table(table, folder / "in.parquet")
    program("import", "t", "in.parquet").done()
    assert content(program("read", "t").messages) == [
        {"key": "a", "value": "1", "publish_time": 7, "event_time": 1577836800123, "properties": {"p": "q"}},
        {"key": "b", "value": "2", "publish_time": 8},
    ]


def test_what_people_have(program: Program, folder: Path) -> None:
    (folder / "events.jsonl").write_text('{"user":{"id":7},"at":"2026-01-01T00:00:00Z"}\n')
    program("import", "t", "events.jsonl", "--key-field", "user.id", "--timestamp-field", "at").done()
    (folder / "table.csv").write_text("id,name\n7,Ann\n")
    program("import", "t", "table.csv", "--key-field", "id", "--value-field", "name").done()
    line = b'{"topic":"t","partition":0,"offset":3,"ts":9,"headers":["h","1"],"key":"7","payload":null}\n'
    program("import", "t", "-", "--input-format", "kcat", stdin=line).done()
    program("import", "t", "-", "--input-format", "key-value", "--separator", "=", stdin=b"7=a=b\n").done()
    pq.write_table(pa.table({"id": [7], "n": [1.5]}), folder / "table.parquet")
    program("import", "t", "table.parquet", "--key-field", "id").done()
    read = program("read", "t").done().messages
    assert {item["key"] for item in read} == {"7"}
    values = ['{"user":{"id":7},"at":"2026-01-01T00:00:00Z"}', "Ann", None, "a=b", '{"id":7,"n":1.5}']
    assert [item["value"] for item in read] == values
    assert [item.get("event_time") for item in read] == [1767225600000, None, 9, None, None]
    assert read[2]["properties"] == {"h": "1"}


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("in.jsonl", '{"user":{"id":1}}\n', "--key-field user.id"),
        ("in.csv", "id,name\n1,Ann\n", "--key-field id"),
        ("in.txt", "a:1\n", "--input-format"),
    ],
)
def test_a_refused_import_names_the_option_and_leaves_no_topic(
    program: Program, folder: Path, name: str, content: str, remedy: str
) -> None:
    (folder / name).write_text(content)
    program("import", "t", name).refused(2, name, remedy)
    assert program("topics", "list", "--output", "json").done().raw_stdout.strip() in (b"", b"[]")


def test_publish_time_is_now_where_none_is_given(program: Program, folder: Path) -> None:
    pq.write_table(pa.table({"key": ["a", "b"], "value": ["1", "2"]}), folder / "in.parquet")
    program("import", "t", "in.parquet").done()
    first, second = program("read", "t").messages
    assert first["publish_time"] == second["publish_time"] > 1_700_000_000_000
    assert "event_time" not in first


def test_the_format_can_be_told(program: Program, folder: Path) -> None:
    pq.write_table(pa.table({"key": ["a"], "value": ["1"]}), folder / "no-suffix")
    program("import", "t", "no-suffix", "--input-format", "parquet").done()
    write_lines(folder / "lines.parquet", {"key": "b", "value": "2"})
    program("import", "t", "lines.parquet", "--input-format", "jsonl").done()
    assert [message["key"] for message in program("read", "t").messages] == ["a", "b"]


def test_short_and_full_topic_names_are_one_topic(program: Program) -> None:
    line = b'{"key":"a","value":"1"}'
    for name in ("t", "persistent://public/default/t"):
        program("import", name, "-", stdin=line).done()
    assert len(program("read", "t").messages) == 2
    program("topics", "create", "persistent://tenant/ns/t", "--partitions", "4").done()
    program("import", "persistent://tenant/ns/t-partition-3", "-", stdin=line).done()
    read = program("read", "persistent://tenant/ns/t-partition-3").messages
    assert read[0]["message_id"].split(":")[1:] == ["0", "3"]


def test_files_of_one_import_share_one_lease(program: Program, folder: Path) -> None:
    """So another import cannot append between them."""
    for name in ("one.jsonl", "two.jsonl"):
        write_lines(folder / name, {"key": "a", "value": "1"})
    program("import", "t", "one.jsonl", "two.jsonl").done()
    with open_environment(Settings.load()) as environment:
        record = environment.metadata.topics.get(TopicName.parse("t"))
        assert environment.metadata.leases.acquire(record.id, "me", 1).token == 2


@pytest.mark.parametrize("command", ["import", "produce"])
def test_a_topic_that_is_deleted_while_a_writer_waits_is_created_again(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The command that created the topic, and had its lease, failed and deleted it."""
    write_lines(folder / "in.jsonl", {"key": "a", "value": "1"})
    with open_environment(Settings.load()) as environment:
        record = environment.metadata.tenancy.ensure_topic(TopicName.parse("t"))
        environment.metadata.leases.acquire(record.id, "otherhost:4711:cafe", LEASE_TTL_MS)

        def reporter(max_seconds: int) -> Callable[[LeaseHeld], object]:
            return lambda held: environment.metadata.tenancy.delete_topic(record.id)

        for module in ("append_target", "produce_command"):
            monkeypatch.setattr(f"api.cli.local.{module}.lease_wait_reporter", reporter)
        result = program(command, "t", "in.jsonl").done()
    assert result.stderr.endswith("persistent://public/default/t did not exist: it was created\n")
    assert [message["value"] for message in program("read", "t").messages] == ["1"]
