"""`compactor read`, `get`, `topics`, `store`, `db`, `compact-topic`: what they print."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from storage.objects.local import LocalStore
from tests.clients.cli.conftest import BASE64, write_lines
from tests.program import Program


def ids(result_lines: list[dict[str, object]]) -> list[object]:
    return [line["message_id"] for line in result_lines]


def test_json_lines_have_the_documented_fields_in_order(program: Program, history: str) -> None:
    read = program("read", history).done()
    assert read.stderr == "", "data alone needs no talk"
    first, second = read.stdout.splitlines()[:2]
    assert first == (
        '{"message_id":"1:0:-1","offset":0,"key":"a","value":"1","publish_time":9,"event_time":5,"properties":{"p":"q"}}'
    )
    assert list(json.loads(second)) == ["message_id", "offset", "key", "value", "publish_time"]
    assert "значение 🎉" in read.stdout, "text is not escaped"


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        ("1:3", [3, 4, 5]),
        ("1:3:-1:0", [4, 5]),  # a message inside a batch comes after the whole entry of that id
        ("1:5:7", [5]),  # the partition takes no part in the order
        ("0:99:-1", [0, 1, 2, 3, 4, 5]),
        ("4", [4, 5]),
    ],
)
def test_from(program: Program, history: str, start: str, offsets: list[int]) -> None:
    assert [message["offset"] for message in program("read", history, "--from", start).done().messages] == offsets


def test_limit(program: Program, history: str) -> None:
    for limit, count in ((0, 0), (1, 1), (5, 5), (6, 6), (7, 6)):
        assert len(program("read", history, "--limit", str(limit)).done().messages) == count
    read = program("read", history, "--from", "1:4", "--limit", "1").done().messages
    assert ids(read) == ["1:4:-1"]


def test_the_table(program: Program, history: str) -> None:
    lines = program("read", history, "--output", "table").done().stdout.splitlines()
    assert len(lines) == 3 + 6 + 1
    for column in ("message id", "offset", "key", "value", "publish time", "event time"):
        assert column in lines[1]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines[3:-1]]
    assert cells[0] == ["1:0:-1", "0", "a", "1", "9", "5"]
    assert cells[3][2:4] == ["a", "null"]
    assert cells[4][2:4] == ["c", ""]


def test_a_table_understands_nothing_in_a_message(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", {"key": "[bold]k[/bold] :smile:", "value": "a\nb\x1b[2J\x07" + "x" * 300})
    program("import", "t", "in.jsonl").done()
    table = program("read", "t", "--output", "table").done().stdout
    assert "[bold]k[/bold] :smile:" in table
    assert "a\\nb\\x1b[2J\\x07" + "x" * 300 in table, "escaped, on one line, not cut"


def test_parquet_out_and_in_again(program: Program, history: str, folder: Path) -> None:
    result = program("read", history, "--output", "parquet", "out.parquet").done()
    assert result.raw_stdout == b""
    assert result.stderr == "out.parquet: 6 messages\n"
    table = pq.read_table(folder / "out.parquet")
    assert table.schema.names == ["message_id", "offset", "key", "value", "publish_time", "event_time", "properties"]
    assert table.column("message_id").to_pylist()[:2] == ["1:0:-1", "1:1:-1"]
    assert [str(table.schema.field(name).type) for name in ("key", "value")] == ["string", "string"]
    program("import", "again", "out.parquet").done()
    first, second = (program("read", topic).messages for topic in (history, "again"))
    assert [item | {"message_id": ""} for item in first] == [item | {"message_id": ""} for item in second]


def test_parquet_to_standard_output(program: Program, history: str, folder: Path) -> None:
    """N18: it became a file named `-`."""
    result = program("read", history, "--output", "parquet", "-").done()
    assert result.stderr == "standard output: 6 messages\n"
    assert pq.read_table(io.BytesIO(result.raw_stdout)).num_rows == 6
    assert not (folder / "-").exists()


def test_parquet_of_bytes(program: Program, folder: Path) -> None:
    program("import", "t", "-", "--value-encoding", "base64", stdin=b'{"key":"a","value":"/w=="}').done()
    out = ("--output", "parquet", "out.parquet")
    program("read", "t", *out).refused(2, "a value is not UTF-8 text", "--value-encoding base64")
    assert not (folder / "out.parquet").exists(), "half a file is not left behind"
    program("read", "t", *out, "--value-encoding", "base64").done()
    assert pq.read_table(folder / "out.parquet").column("value").to_pylist() == [b"\xff"]


def test_a_file_that_was_there_is_replaced_by_a_whole_one_or_stays(program: Program, folder: Path) -> None:
    program("import", "t", "-", "--value-encoding", "base64", stdin=b'{"key":"a","value":"/w=="}').done()
    (folder / "out.parquet").write_text("of yesterday")
    out = ("--output", "parquet", "out.parquet")
    before = sorted(folder.iterdir())
    program("read", "t", *out).refused(2, "a value is not UTF-8 text")
    assert (folder / "out.parquet").read_text() == "of yesterday"
    program("read", "t", *out, "--value-encoding", "base64").done()
    assert pq.read_table(folder / "out.parquet").num_rows == 1
    assert sorted(folder.iterdir()) == before, "nothing half written is beside it"


def test_read_compacted(program: Program, history: str, folder: Path, in_process_engine: None) -> None:
    raw = program("read", history).messages
    never = program("read", history, "--read-compacted").done().messages
    assert never == raw, "R3: never compacted reads raw"
    result = program("compact-topic", "--topic", history).done()
    assert result.stdout == ("Compaction of topic persistent://public/default/t complete. Compacted to ledger 2\n")
    assert "6 new messages, 4 index records read, 2 live keys, 2 deleted" in result.stderr
    assert "2 survivors in 1 part" in result.stderr
    compacted = program("read", history, "--read-compacted").done().messages
    assert compacted == [raw[1], raw[5]]
    assert program("read", history).messages == raw

    again = program("compact-topic", "--topic", history).done()
    assert again.stdout == "Compaction of topic persistent://public/default/t complete. Nothing to compact\n"

    write_lines(folder / "more.jsonl", {"key": "b", "value": None}, {"key": "d", "value": "4"})
    program("import", history, "more.jsonl").done()
    tail = program("read", history).messages[6:]
    assert program("read", history, "--read-compacted").messages == [raw[1], raw[5], *tail]
    assert program("read", history, "--read-compacted", "--limit", "3").messages == [raw[1], raw[5], tail[0]]
    program("compact-topic", "--topic", history).done()
    assert program("read", history, "--read-compacted").messages == [raw[5], tail[1]]
    late = program("read", history, "--read-compacted", "--from", str(tail[1]["message_id"])).messages
    assert late == [tail[1]]


def test_retain_null_key(program: Program, history: str, in_process_engine: None) -> None:
    raw = program("read", history).messages
    program("compact-topic", "--topic", history, "--retain-null-key").done()
    assert program("read", history, "--read-compacted").messages == [raw[1], raw[2], raw[5]]
    program("compact-topic", "--topic", history).done()
    assert program("read", history, "--read-compacted").messages == [raw[1], raw[5]], "a policy changed"


def test_compacting_an_empty_topic(program: Program, in_process_engine: None) -> None:
    program("topics", "create", "t").done()
    result = program("compact-topic", "--topic", "t").done()
    assert "Nothing to compact" in result.stdout
    assert "no messages" in result.stderr


def test_topics_list(program: Program, history: str, folder: Path) -> None:
    long = "persistent://tenant/namespace/" + "x" * 200
    program("import", long, "history.jsonl", "--ledger-size", "4").done()
    table = program("topics", "list").done()
    assert table.stderr == ""
    assert long in table.stdout, "a name is not cut"
    assert (
        program("topics", "list", "--output", "json").done().stdout
        == json.dumps(
            [
                {
                    "topic": "persistent://public/default/t",
                    "ledgers": 1,
                    "messages": 6,
                    "logical_bytes": 38,
                    "unsealed_messages": 0,
                    "compacted_ledger": None,
                },
                {
                    "topic": long,
                    "ledgers": 4,
                    "messages": 6,
                    "logical_bytes": 38,
                    "unsealed_messages": 0,
                    "compacted_ledger": None,
                },
            ],
            indent=2,
        )
        + "\n"
    )


def test_topics_list_counts_what_is_not_sealed_yet(program: Program, history: str) -> None:
    program("produce", history, "history.jsonl").done()
    [topic] = program.json("topics", "list")
    assert (topic["messages"], topic["unsealed_messages"], topic["ledgers"]) == (12, 6, 1)
    assert topic["logical_bytes"] > 38
    assert "12" in program("topics", "list").done().lines[3].split()


def test_topics_stats(program: Program, history: str, in_process_engine: None) -> None:
    before = program.json("topics", "stats", history)
    assert before["raw"]["messages"] == before["backlog"]["messages"] == 6
    assert before["compacted"] is before["last_run"] is None
    program("compact-topic", "--topic", history).done()
    after = program.json("topics", "stats", history)
    assert after["raw"] == before["raw"]
    assert after["backlog"] == {"ledgers": 0, "messages": 0, "logical_bytes": 0}
    assert after["compacted"]["ledger"] == 2
    assert after["compacted"]["messages"] == 2
    assert (after["compacted"]["horizon"], after["compacted"]["horizon_offset"]) == ("1:5:-1", 5)
    assert (after["last_run"]["status"], after["last_run"]["error"]) == ("SUCCESS", None)
    assert after["last_message_id"] == after["last_compacted_message_id"] == "1:5:-1"
    lines = program("topics", "stats", history).done().stdout.splitlines()
    fields = dict(line.split(maxsplit=1) for line in lines)
    assert fields["topic"] == "persistent://public/default/t"
    assert fields["compacted.messages"] == "2"
    assert fields["last_run.error"] == "-"


def test_store_check(program: Program, folder: Path) -> None:
    result = program("store", "check").done()
    assert result.stdout.splitlines()[-1].endswith("/data/objects can serve as object store")
    assert all(line.startswith("ok ") for line in result.stdout.splitlines()[:-1])
    assert result.stderr == ""
    assert not [path for path in (folder.parent / "data").rglob("*") if path.is_file()]


def test_store_check_of_a_store_that_breaks_a_promise(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "list", lambda *_: iter(()))
    result = program("store", "check")
    assert result.exit_code == 5
    assert "BROKEN  list after write: " in result.stdout
    assert "ok      conditional put: " in result.stdout
    assert "fails its check: list after write" in result.stderr


def test_store_check_beside_a_database(program: Program, history: str, folder: Path) -> None:
    result = program("store", "check").done()
    assert "identity: not the store of another database" in result.stdout
    assert result.stderr == ""
    unreachable = program("store", "check", "--database", "postgresql://reader@127.0.0.1:1/none").done()
    assert unreachable.stdout.splitlines()[-1].endswith("can serve as object store")
    assert "identity" not in unreachable.stdout
    assert "Not tested whether the store is that of the database" in unreachable.stderr


def test_db_upgrade(program: Program, folder: Path) -> None:
    for _ in range(2):
        result = program("db", "upgrade").done()
        assert result.stdout.endswith("/data/metadata.db has the newest schema\n")
        assert result.stderr == ""
    other = f"sqlite:///{folder}/other.db"
    program("topics", "list", "--database", other).refused(5, "other.db does not exist", "compactor db upgrade")
    program("db", "upgrade", "--database", other).done()
    assert program("topics", "list", "--database", other, "--output", "json").done().stdout == "[]\n"


# --- get: which message is the newest of a key is the unit tests' of key lookups -----------------------------------

NO_VALUE = 8


@pytest.fixture
def users(program: Program, in_process_engine: None, folder: Path) -> str:
    """alice has a value, bob was deleted, "" is a key, one key is not text; compacted, then appended to."""
    lines = [
        {"key": "alice", "value": "0"},
        {"key": "bob", "value": "1"},
        {"key": "", "value": "empty"},
        {"key": "alice", "value": "2", "event_time": 5, "publish_time": 9, "properties": {"p": "q"}},
        {"key": "bob", "value": None},
    ]
    write_lines(folder / "a.jsonl", *lines)
    write_lines(folder / "b.jsonl", {"key": "/wAB", "value": "//4="})
    program("import", "users", "a.jsonl").done()
    program("import", "users", "b.jsonl", *BASE64).done()
    program("compact-topic", "--topic", "users").done()
    write_lines(folder / "c.jsonl", {"key": "carol", "value": "new"})
    program("import", "users", "c.jsonl").done()
    return "users"


def test_get_shows_the_message_that_read_shows(program: Program, users: str) -> None:
    result = program("get", users, "alice").done()
    assert result.stderr == ""
    lines = program("read", users, "--limit", "5").done().stdout.splitlines()
    (expected,) = (line for line in lines if '"value":"2"' in line)
    assert result.stdout == expected + "\n"
    assert result.messages[0]["properties"] == {"p": "q"}
    table = program("get", users, "alice", "--output", "table").done().stdout.splitlines()
    assert [cell.strip() for cell in table[3].strip("│").split("│")][2:] == ["alice", "2", "9", "5"]
    assert program("get", users, "").done().messages[0]["value"] == "empty"


def test_keys_and_values_that_are_no_text(program: Program, users: str) -> None:
    (message,) = program("get", users, "/wAB", *BASE64).done().messages
    assert (message["key"], message["value"]) == ("/wAB", "//4=")
    program("get", users, "/wAB", *BASE64[:2]).refused(2, "is not UTF-8 text", "--value-encoding base64")


def test_no_value_is_an_exit_code_of_its_own(program: Program, users: str) -> None:
    for key in ("bob", "unknown"):
        refused = program("get", users, key)
        refused.refused(NO_VALUE, f"'{key}'", "persistent://public/default/users", "no value")
    program("get", "nosuch", "k").refused(3, "nosuch")
