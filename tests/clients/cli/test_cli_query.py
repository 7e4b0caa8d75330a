"""`compactor query`: SQL over a topic, the forms of its result, and its refusals."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import api.cli.main
from api.broker.schema_compatibility import SchemaType, join_parts
from api.cli.local.opening import open_topic
from api.components import open_environment
from api.settings.settings import Settings
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.errors import Unavailable
from storage.ledger.rows import RowType
from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName
from storage.reading.scan import ScanPiece
from storage.topic import Topic
from tests import chunked
from tests.clients.cli.conftest import BASE64, write_lines
from tests.program import Program

JSONL = ("--format", "jsonl")
CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "fields": [
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "age", "type": "int"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "since", "type": {"type": "int", "logicalType": "date"}},
    ],
}


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compactions run without Spark."""
    monkeypatch.setenv("COMPACTOR_COMPACTION_ENGINE", "in-process")


def make_users(program: Program) -> str:
    """A topic with a compacted ledger and a tail: a is 3, b is deleted in the tail, c is new, d is deleted before."""

    def append(*pairs: tuple[str | None, str | None]) -> None:
        lines = "".join(json.dumps({"key": key, "value": value}) + "\n" for key, value in pairs)
        program("produce", "users", "-", stdin=lines.encode()).done()

    append(("a", "1"), ("b", "1"), ("d", "1"), ("a", "2"), ("d", None))
    program("compact-topic", "--topic", "users").done()
    append(("a", "3"), ("b", None), ("c", '{"n": 1}'), (None, "no key"))
    return "users"


@pytest.fixture(scope="module")
def shared_users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a topic as `make_users` makes it, which no test changes."""
    data = tmp_path_factory.mktemp("users")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPACTOR_DATA", str(data))
        patch.setenv("COMPACTOR_COMPACTION_ENGINE", "in-process")
        make_users(Program("compactor", api.cli.main.main, tmp_path_factory.mktemp("stdin"), patch))
    return data


@pytest.fixture
def users(shared_users: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COMPACTOR_DATA", str(shared_users))
    return "users"


def add_schema(topic: str, version: int, kind: str, definition: Any, **properties: str) -> None:
    data = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
    named = {name.replace("_", "."): value for name, value in properties.items()}
    with open_environment(Settings.load()) as environment:
        schema = SchemaRecord(version, int(SchemaType[kind]), topic, data, named)
        environment.metadata.schemas.add(TopicName.parse(topic), schema, version)


def append_rows(topic: str, *rows: chunked.Row) -> None:
    with open_environment(Settings.load()) as environment:
        chunked.append(environment, open_topic(environment, TopicName.parse(topic)), rows)  # type: ignore[arg-type]


def encoded(definition: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, definition, value)
    return stream.getvalue()


def of_version(version: int) -> bytes:
    return MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, schema_version=version.to_bytes(8, "big")
    ).SerializeToString()


# The table


def test_the_newest_value_of_each_key_and_the_raw_messages(program: Program, users: str) -> None:
    pairs = 'select key, value, "offset" from topic order by "offset"'
    assert program("query", users, pairs, *JSONL).done().messages == [
        {"key": "a", "value": "3", "offset": 5},
        {"key": "c", "value": '{"n": 1}', "offset": 7},
        {"key": None, "value": "no key", "offset": 8},
    ]
    raw = program("query", users, f"{pairs}; ", "--raw", *JSONL).done().messages
    assert [(row["key"], row["value"]) for row in raw] == [
        ("a", "1"), ("b", "1"), ("d", "1"), ("a", "2"), ("d", None),
        ("a", "3"), ("b", None), ("c", '{"n": 1}'), (None, "no key"),
    ]  # fmt: skip
    own_name = "select value->>'n' as n from users join topic using (key) where users.key = 'c'"
    assert program(
        "query", users, "-", *JSONL, stdin=own_name.replace("value", "users.value").encode()
    ).done().messages == [{"n": "1"}]


def test_the_columns(program: Program, folder: Path) -> None:
    write_lines(
        folder / "in.jsonl",
        {"key": "a", "value": "1", "event_time": 5, "publish_time": 1_700_000_000_123, "properties": {"p": "q"}},
        {"key": "b", "value": "1", "publish_time": 1_700_000_000_124, "properties": {}},
    )
    program("import", "t", "in.jsonl").done()
    (row, other) = program("query", "t", "select * from topic", *JSONL).done().messages
    assert row == {
        "message_id": row["message_id"],
        "offset": 0,
        "key": "a",
        "value": "1",
        "publish_time": "2023-11-14 22:13:20.123000+00:00",
        "event_time": "1970-01-01 00:00:00.005000+00:00",
        "properties": {"p": "q"},
    }
    assert other["event_time"] is None
    assert program("read", "t").messages[0]["message_id"] == row["message_id"]
    later = "select key from topic where publish_time > '2023-11-14 22:13:20.123' and properties['p'] is null"
    assert program("query", "t", later, *JSONL).done().messages == [{"key": "b"}]


def test_partitions_are_one_table(program: Program) -> None:
    program("topics", "create", "t", "--partitions", "2").done()
    for partition in range(2):
        program("produce", f"t-partition-{partition}", "-", stdin=b'{"key":"a","value":"%d"}' % partition).done()
    program("compact-topic", "--topic", "t-partition-1").done()
    program("produce", "t-partition-1", "-", stdin=b'{"key":"a","value":"2"}').done()
    rows = program("query", "t", "select value, message_id from t order by value", *JSONL).done().messages
    assert [(row["value"], row["message_id"].split(":")[2]) for row in rows] == [("0", "0"), ("2", "1")]


def test_bytes(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", {"key": "/w==", "value": "AP8="})
    program("import", "t", "in.jsonl", *BASE64).done()
    program("query", "t", "select key from topic").refused(
        2, "the key at offset 0 is not UTF-8", "--key-encoding base64"
    )
    assert program("query", "t", "select count(*) n from topic", *JSONL).done().messages == [{"n": 1}]
    visible = program("query", "t", "select key, value, hex(value) x from topic", *BASE64, *JSONL).done().messages
    assert visible == [{"key": "/w==", "value": "AP8=", "x": "00FF"}]


def test_an_entry_that_is_no_message_ends_a_query(program: Program) -> None:
    users = make_users(program)
    program("topics", "roll", users, "--seal").done()
    append_rows(users, chunked.message(None, b"\xff", slot=int(RowType.WHOLE_ENTRY)))
    program("query", users, "select 1 from topic").refused(
        2, "offset 9 of persistent://public/default/users is no message"
    )


# Schemas


def test_values_of_avro_are_structs_of_the_newest_version(program: Program) -> None:
    program("topics", "create", "t").done()
    older = {**CUSTOMER, "fields": [*CUSTOMER["fields"][1:], {"name": "gone", "type": "string"}]}  # type: ignore[index]
    add_schema("t", 0, "AVRO", older)
    add_schema("t", 1, "AVRO", CUSTOMER)
    first = encoded(older, {"age": 40, "tags": ["x"], "since": 0, "gone": "y"})
    second = encoded(CUSTOMER, {"name": "Ada", "age": 36, "tags": [], "since": 1})
    append_rows(
        "t",
        chunked.message(b"a", first, metadata=of_version(0)),
        chunked.message(b"b", second, metadata=of_version(1)),
        chunked.message(b"c", second),
    )
    rows = program("query", "t", "select key, value.* from t order by key", *JSONL).done().messages
    assert rows == [
        {"key": "a", "name": None, "age": 40, "tags": ["x"], "since": "1970-01-01"},
        {"key": "b", "name": "Ada", "age": 36, "tags": [], "since": "1970-01-02"},
        {"key": "c", "name": "Ada", "age": 36, "tags": [], "since": "1970-01-02"},
    ]
    assert program(
        "query", "t", "select sum(value.age) s, typeof(any_value(value.since)) d from t", *JSONL
    ).messages == [{"s": 112, "d": "DATE"}]
    append_rows("t", chunked.message(b"d", b"\x07"))
    program("query", "t", "select value from t").refused(
        2, "offset 3 cannot be decoded as AVRO", "--value-encoding base64"
    )
    program("query", "t", "select count(*) from t").done()
    append_rows("t", chunked.message(b"d", second), chunked.message(b"e", second, metadata=of_version(7)))
    program("query", "t", "select value from t").refused(2, "offset 5 names version 7 of the schema")


def test_values_of_json_are_structs(program: Program) -> None:
    fields = [*CUSTOMER["fields"][:2], {"name": "by", "type": {"type": "map", "values": "long"}}]  # type: ignore[index]
    program("topics", "create", "t").done()
    add_schema("t", 0, "JSON", {"type": "record", "name": "C", "fields": fields})
    lines = [{"key": "a", "value": '{"age": 3, "by": {"x": 1}, "more": 1}'}, {"key": "b", "value": '{"name": "Ada"}'}]
    program("produce", "t", "-", stdin="".join(json.dumps(line) + "\n" for line in lines).encode()).done()
    sql = "select key, value.name, value.age, value.by, value.by->>'x' x from t order by key"
    assert program("query", "t", sql, *JSONL).done().messages == [
        {"key": "a", "name": None, "age": 3, "by": {"x": 1}, "x": "1"},
        {"key": "b", "name": "Ada", "age": None, "by": None, "x": None},
    ]
    program("produce", "t", "-", stdin=b'{"key": "a", "value": null}').done()
    raw = program("query", "t", "select value.age from t where key = 'a'", "--raw", *JSONL).done().messages
    assert raw == [{"age": 3}, {"age": None}]
    program("produce", "t", "-", stdin=b'{"key": "c", "value": "x"}').done()
    program("query", "t", "select value.age from t").refused(2, "Malformed JSON", "choose --value-encoding base64")
    search = 'select "offset" from t where not json_valid(decode(value))'
    assert program("query", "t", search, *JSONL, "--value-encoding", "base64").done().messages == [{"offset": 3}]


def test_keys_and_values_of_a_pair(program: Program) -> None:
    program("topics", "create", "t").done()
    names = {"kv_encoding_type": "SEPARATED", "key_schema_type": "INT32", "value_schema_type": "AVRO"}
    add_schema("t", 0, "KEY_VALUE", join_parts(b"", json.dumps(CUSTOMER).encode()), **names)
    value = encoded(CUSTOMER, {"name": "Ada", "age": 36, "tags": [], "since": 1})
    append_rows("t", chunked.message((7).to_bytes(4, "big"), value))
    sql = "select key + 1 as k, value.name from topic where key = 7"
    assert program("query", "t", sql, *JSONL).done().messages == [{"k": 8, "name": "Ada"}]


def test_keys_of_avro_are_read_by_the_version_that_messages_name(program: Program, folder: Path) -> None:
    """In the compacted ledger and after it."""
    key = {"type": "record", "name": "K", "fields": [{"name": "id", "type": "int"}]}
    newer = {**key, "fields": [{"name": "country", "type": "string", "default": "GB"}, *key["fields"]]}
    names = {"kv_encoding_type": "SEPARATED", "key_schema_type": "AVRO", "value_schema_type": "STRING"}
    program("topics", "create", "t").done()
    for version, definition in enumerate((key, newer)):
        add_schema("t", version, "KEY_VALUE", join_parts(json.dumps(definition).encode(), b""), **names)
    append_rows("t", chunked.message(encoded(key, {"id": 1}), b"x", metadata=of_version(0)))
    program("compact-topic", "--topic", "t").done()
    second = encoded(newer, {"id": 2, "country": "FI"})
    append_rows("t", chunked.message(second, b"y", metadata=of_version(1)))
    rows = program("query", "t", "select key.*, value from t order by key.id", *JSONL).done().messages
    assert rows == [{"country": "GB", "id": 1, "value": "x"}, {"country": "FI", "id": 2, "value": "y"}]


# The result


def test_forms_of_a_result(program: Program, users: str) -> None:
    sql = """select * from (values
        (1::hugeint, 1.50::decimal(4, 2), 'a,"b', '', null, date '2026-01-31', [1, 2], 'NaN'::double, '{"x": 1}'::json))
        t(i, d, s, e, n, day, l, f, j)"""
    row = {"i": 1, "d": "1.50", "s": 'a,"b', "e": "", "n": None, "day": "2026-01-31", "l": [1, 2], "f": None}
    assert program("query", users, sql, *JSONL).done().messages == [row | {"j": {"x": 1}}]
    csv = program("query", users, sql, "--format", "csv", "--to", "out.csv").done()
    assert csv.stderr == "out.csv: 1 row\n"
    assert Path("out.csv").read_text() == (
        '"i","d","s","e","n","day","l","f","j"\n"1","1.50","a,""b","",,"2026-01-31","[1,2]",,"{""x"": 1}"\n'
    )
    program("query", users, sql, "--format", "parquet", "--to", "out.parquet").done()
    assert pq.read_table("out.parquet").column("s").to_pylist() == ['a,"b']
    table = program("query", users, "select key, value from topic where key is null").done().stdout
    assert "null" in table
    assert "no key" in table
    empty = program("query", users, "select key from topic where false", "--format", "csv").done()
    assert empty.stdout == '"key"\n'
    assert program("query", users, f"select {2**80} as large", *JSONL).done().stdout == f'{{"large":{2**80}}}\n'


def test_a_result_that_fails_leaves_no_file(program: Program, users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of reading is the command's own, also after the first rows of the result."""
    tables = Topic.tables

    def failing_after_a_table(self: Topic, piece: ScanPiece, columns: Sequence[str]) -> Iterator[pa.Table]:
        yield from tables(self, piece, columns)
        raise Unavailable("the store is away", "try again")

    sql = "select 1 as a, 2 as a"
    for name in ("jsonl", "parquet"):
        program("query", users, sql, "--format", name, "--to", "out").refused(2, "more than one column a", "AS")
    failing = "select error('late') from range(200000) r where r.range = 199999"
    program("query", users, failing, *JSONL, "--to", "out").refused(2, "the SQL failed", "late")
    monkeypatch.setattr(Topic, "tables", failing_after_a_table)
    joined = "select value from topic, range(100000) r"
    for name in ("jsonl", "parquet"):
        program("query", users, joined, "--raw", "--format", name, "--to", "out").refused(
            6, "the store is away: try again"
        )
    assert list(Path().iterdir()) == []


def test_statements_before_the_query_prepare_it(program: Program, users: str) -> None:
    """PIVOT is several statements of DuckDB."""
    sql = "create temp table own as select key from topic; insert into own values ('z'); select count(*) n from own;"
    assert program("query", users, sql, *JSONL).done().messages == [{"n": 4}]
    pivot = "pivot (select key, value from topic where key = 'a') on key using any_value(value)"
    assert program("query", users, pivot, *JSONL).done().messages == [{"a": "3"}]


# Refusals


def test_errors_in_sql_are_one_line(program: Program, users: str) -> None:
    program("query", users, "select nam from topic").refused(
        2, "nam", 'the table is "topic" and "users", with the columns message_id, "offset", key, ', "publish_time"
    )
    program("query", users, "selec").refused(2, "the SQL failed: Parser Error")
    for first in ("select 1", "from topic", "describe topic", "values (1)"):
        program("query", users, f"{first}; select 2").refused(2, "more than one query", "UNION ALL")
    program("query", users, " ").refused(2, "the SQL is empty")
    program("query", "nosuch", "select 1").refused(3, "nosuch")
    program("query", users, "select 1", "--to", "x").refused(2, "a table is for people")
    program("query", users, "select 1", "--memory-limit", "1K").refused(2, "--memory-limit")


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('secret.csv')",
        "select * from 'secret.csv'",
        "copy (select 1) to 'out.csv'",
        "attach 'other.db'",
        "set enable_external_access = true",
        "set memory_limit = '20GB'",
        "select * from sys",
        "install httpfs",
    ],
)
def test_sql_reaches_nothing_but_the_topic(program: Program, users: str, folder: Path, sql: str) -> None:
    (folder / "secret.csv").write_text("a\n1\n")
    is_permitted = sql.startswith("set") or sql.endswith("sys")
    remedy = 'the table is "topic"' if is_permitted else "choose --external-access"
    program("query", users, sql).refused(2, "the SQL failed", remedy)
    assert [file.name for file in folder.iterdir()] == ["secret.csv"]


def test_files_may_be_read_if_they_are_asked_for(program: Program, users: str, folder: Path) -> None:
    (folder / "names.csv").write_text("key,name\na,Ada\n")
    sql = "select name, value from topic join 'names.csv' using (key)"
    assert program("query", users, sql, "--external-access", *JSONL).done().messages == [{"name": "Ada", "value": "3"}]


def test_a_query_spills_beyond_its_memory(program: Program, users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond both memory and disk it ends with an error that names the option."""
    rows = "select r.range::varchar || repeat('x', 100) x from range(700000) r order by x limit 690000"
    sql = f"select max(x) x from ({rows})"
    program("query", users, sql, "--memory-limit", "64M", *JSONL).done()
    program("query", users, "select list(r.range) from range(8000000) r", "--memory-limit", "64M").refused(
        6, "67,108,864 bytes of memory", "--memory-limit"
    )


def test_a_signal_ends_a_query(program: Program, users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While DuckDB executes, in a query that would take hours."""
    tables, sent = Topic.tables, []

    def signalling(self: Topic, piece: ScanPiece, columns: Sequence[str]) -> Iterator[pa.Table]:
        if not sent:
            sent.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # the program handles it from its start on
        yield from tables(self, piece, columns)

    monkeypatch.setattr(Topic, "tables", signalling)
    before = signal.getsignal(signal.SIGTERM)
    try:
        ran = program("query", users, "select sum(sin(r.range)) from topic, range(100000000000) r", "--raw")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (ran.exit_code, ran.raw_stdout) == (130, b""), ran.stderr


def test_without_duckdb_the_command_says_what_to_install(
    program: Program, users: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    program("query", users, "select 1").refused(5, "queries need DuckDB", "pip install duckdb", "[query]")


def test_an_older_duckdb_is_refused(program: Program, users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be installed for Iceberg tables, whose extension it has."""
    monkeypatch.setattr(duckdb, "__version__", "1.5.5")
    program("query", users, "select 1").refused(
        5, "DuckDB 2 or newer, and 1.5.5 is installed", "pip install 'duckdb>=2'"
    )


def test_columns_that_a_query_does_not_need_are_not_read(program: Program) -> None:
    """A key that is no text fails only a query that shows it."""
    users = make_users(program)
    program("topics", "roll", users, "--seal").done()
    append_rows(users, chunked.message(b"\xff", b"x"))
    program("query", users, "select value from topic").done()
    program("query", users, "select key from topic").refused(2, "the key at offset 9 is not UTF-8")
