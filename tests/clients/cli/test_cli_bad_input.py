"""Bad files: one clear line that names file, place and remedy, exit code 2, and nothing of the file kept."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.clients.cli.conftest import Compactor, write_lines
from tests.program import Ran

GOOD = b'{"key":"a","value":"1"}\n'

LINES = {
    "not JSON": (b"key,value", "not JSON"),
    "cut short": (b'{"key":"a","val', "not JSON"),
    "something behind": (GOOD.strip() + b" x", "trailing characters"),
    "empty": (b"", "the line is empty"),
    "blank": (b" \t", "the line is empty"),
    "array": (b'["a","1"]', "Expected `object`, got `array`"),
    "null": (b"null", "Expected `object`, got `null`"),
    "a number as key": (b'{"key":1,"value":"1"}', "`$.key`"),
    "an object as value": (b'{"key":"a","value":{}}', "`$.value`"),
    "no value": (b'{"key":"a"}', "missing required field `value`"),
    "no key": (b'{"value":"1"}', "missing required field `key`"),
    "unknown field": (b'{"key":"a","value":"1","time":1}', "unknown field `time`"),
    "a fraction as time": (b'{"key":"a","value":"1","event_time":1.5}', "`$.event_time`"),
    "true as time": (b'{"key":"a","value":"1","event_time":true}', "`$.event_time`"),
    "text as time": (b'{"key":"a","value":"1","publish_time":"2020-01-01"}', "`$.publish_time`"),
    "time beyond int64": (b'{"key":"a","value":"1","event_time":9223372036854775808}', "`$.event_time`"),
    "time beyond uint64": (b'{"key":"a","value":"1","publish_time":-99999999999999999999}', "publish_time"),
    "a number as property": (b'{"key":"a","value":"1","properties":{"p":1}}', "`$.properties"),
    "null as property": (b'{"key":"a","value":"1","properties":{"p":null}}', "`$.properties"),
    "invalid UTF-8": (b'{"key":"\xff","value":"1"}', "not UTF-8 text"),
    "lone surrogate": (b'{"key":"\\ud800","value":"1"}', "surrogate"),
    "UTF-16": ('{"key":"a","value":"1"}'.encode("utf-16-le"), "not JSON"),
}


@pytest.fixture
def refused_import(compactor_command: Compactor, history: str) -> Any:
    """Imports into a topic that has messages; asserts that it was refused and that the topic stayed as it was."""

    def run(file: str, *says: str, options: tuple[str, ...] = (), stdin: bytes = b"") -> Ran:
        before = compactor_command("topics", "stats", history, "--output", "json").done().stdout
        result = compactor_command("import", history, file, *options, stdin=stdin)
        result.refused(2, *says)
        assert compactor_command("topics", "stats", history, "--output", "json").done().stdout == before
        assert len(compactor_command("read", history).done().messages) == 6
        return result

    return run


@pytest.mark.parametrize(("line", "reason"), LINES.values(), ids=LINES)
def test_a_bad_line_is_named_and_nothing_is_kept(refused_import: Any, folder: Path, line: bytes, reason: str) -> None:
    (folder / "in.jsonl").write_bytes(GOOD * 2 + line + b"\n" + GOOD)
    refused_import("in.jsonl", "in.jsonl, line 3: ", reason, "nothing of it was kept")


def test_a_bad_line_of_standard_input_is_named(refused_import: Any) -> None:
    refused_import("-", "standard input, line 2: not JSON", stdin=GOOD + b"oops\n")


def test_a_bad_line_after_whole_ledgers_undoes_them(refused_import: Any, folder: Path) -> None:
    (folder / "in.jsonl").write_bytes(GOOD * 40_000 + b"oops\n")
    refused_import("in.jsonl", "in.jsonl, line 40001: ", options=("--ledger-size", "16K"))


@pytest.mark.parametrize(("field", "option"), [("key", "--key-encoding"), ("value", "--value-encoding")])
@pytest.mark.parametrize("text", ["YQ", "Y Q=", "a-_=", "ü"])
def test_undecodable_base64_is_named(refused_import: Any, folder: Path, field: str, option: str, text: str) -> None:
    write_lines(folder / "in.jsonl", {"key": "", "value": ""}, {"key": "YQ==", "value": "YQ=="} | {field: text})
    refused_import("in.jsonl", "in.jsonl, line 2: ", "is not base64", options=(option, "base64"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "checksum"])
def test_damaged_gzip(refused_import: Any, folder: Path, damage: str) -> None:
    packed = bytearray(gzip.compress(b"".join(b'{"key":"%d","value":"x"}\n' % n for n in range(1000))))
    if damage == "cut":
        del packed[-100:]
    elif damage == "flipped":
        packed[200] ^= 0xFF
    else:
        packed[-8] ^= 0xFF
    (folder / "in.jsonl.gz").write_bytes(packed)
    refused_import("in.jsonl.gz", "in.jsonl.gz, line ")


PARQUET_TABLES = {
    "no value": (pa.table({"key": ["a"]}), "no column value"),
    "neither": (pa.table({"k": ["a"]}), "no column key and no column value"),
    "one more": (pa.table({"key": ["a"], "value": ["1"], "time": [1]}), "no place for: time"),
    "key twice": (pa.table([["a"], ["b"], ["1"]], names=["key", "key", "value"]), "more than one column key"),
    "numbers as keys": (pa.table({"key": [1], "value": ["1"]}), "column key is int64"),
    "lists as values": (pa.table({"key": ["a"], "value": [["1"]]}), "column value is list"),
    "text as time": (pa.table({"key": ["a"], "value": ["1"], "event_time": ["x"]}), "column event_time is string"),
    "fractions as time": (pa.table({"key": ["a"], "value": ["1"], "event_time": [1.5]}), "event_time is double"),
    "time too large": (
        pa.table({"key": ["a"], "value": ["1"], "event_time": pa.array([2**63], pa.uint64())}),
        "column event_time is uint64",
    ),
    "seconds too large": (
        pa.table({"key": ["a"], "value": ["1"], "event_time": pa.array([0], pa.duration("s"))}),
        "column event_time is duration",
    ),
    "properties as text": (pa.table({"key": ["a"], "value": ["1"], "properties": ["p"]}), "properties is string"),
    "property without value": (
        pa.table(
            {
                "key": ["a"],
                "value": ["1"],
                "properties": pa.array([[("p", None)]], pa.map_(pa.string(), pa.string())),
            }
        ),
        "a property without a value",
    ),
}


@pytest.mark.parametrize(("table", "reason"), PARQUET_TABLES.values(), ids=PARQUET_TABLES)
def test_parquet_of_another_shape(refused_import: Any, folder: Path, table: pa.Table, reason: str) -> None:
    pq.write_table(table, folder / "in.parquet")
    refused_import("in.parquet", "in.parquet", reason, "give key and value (string or binary)")


@pytest.mark.parametrize("damage", ["empty", "cut", "lines", "flipped"])
def test_damaged_parquet(refused_import: Any, folder: Path, damage: str) -> None:
    file = folder / "in.parquet"
    rows = 300_000
    table = pa.table({"key": [str(number) for number in range(rows)], "value": ["x"] * rows})
    pq.write_table(table, file, row_group_size=50_000, use_dictionary=False)
    whole = bytearray(file.read_bytes())
    if damage == "empty":
        whole.clear()
    elif damage == "cut":
        del whole[len(whole) // 2 :]
    elif damage == "lines":
        whole[:] = GOOD
    else:  # the second half is damaged, after ledgers were made of the first
        whole[len(whole) // 2 : len(whole) // 2 + 5000] = bytes(5000)
    file.write_bytes(whole)
    refused_import("in.parquet", "in.parquet cannot be read as Parquet", options=("--ledger-size", "64K"))


def test_parquet_from_standard_input_is_refused(refused_import: Any) -> None:
    refused_import("-", "standard input", "name a file", options=("--input-format", "parquet"))


def test_encodings_do_not_apply_to_parquet(refused_import: Any, folder: Path) -> None:
    pq.write_table(pa.table({"key": ["a"], "value": ["1"]}), folder / "in.parquet")
    refused_import("in.parquet", "do not apply to Parquet", options=("--value-encoding", "base64"))


def test_files_that_cannot_be_read(refused_import: Any, folder: Path) -> None:
    (folder / "sub").mkdir()
    refused_import("sub", "sub is a directory")
    refused_import("missing.jsonl", "the file missing.jsonl does not exist")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(refused_import: Any, folder: Path) -> None:
    write_lines(folder / "secret.jsonl", {"key": "a", "value": "1"}).chmod(0)
    refused_import("secret.jsonl", "the file secret.jsonl may not be read")


def test_a_file_that_may_not_be_read(refused_import: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, for those who run tests as root."""
    write_lines(folder / "secret.jsonl", {"key": "a", "value": "1"})
    access = os.access
    monkeypatch.setattr(os, "access", lambda file, mode: file != "secret.jsonl" and access(file, mode))
    refused_import("secret.jsonl", "the file secret.jsonl may not be read")


def test_the_first_of_two_files_is_kept_when_the_second_is_bad(compactor_command: Compactor, folder: Path) -> None:
    (folder / "good.jsonl").write_bytes(GOOD * 2)
    (folder / "bad.jsonl").write_bytes(GOOD + b"oops\n")
    (folder / "never.jsonl").write_bytes(GOOD)
    result = compactor_command("import", "t", "good.jsonl", "bad.jsonl", "never.jsonl")
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first.startswith("good.jsonl: 2 messages")
    assert second.startswith("compactor: bad.jsonl, line 2: ")
    assert len(compactor_command("read", "t").done().messages) == 2


def test_all_files_are_looked_for_before_any_is_imported(compactor_command: Compactor, folder: Path) -> None:
    (folder / "good.jsonl").write_bytes(GOOD)
    compactor_command("import", "t", "good.jsonl", "missing.jsonl").refused(2, "missing.jsonl")
    compactor_command("topics", "stats", "t").refused(3, "persistent://public/default/t does not exist")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is empty"),
        ("a/b", "has 2 parts"),
        ("persistent://a/b", "has 2 parts"),
        ("persistent://a/b/c/d", "has 4 parts"),
        ("persistent:///b/c", "the tenant ''"),
        ("persistent://a b/c/d", "the tenant 'a b'"),
        ("persistent://a/ü/d", "the namespace"),
        ("line\nend", "control character"),
        ("x" * 256, "longer than 255 bytes"),
        ("non-persistent://public/default/t", "not a persistent topic"),
        ("kafka://a/b/c", "not a persistent topic"),
    ],
)
def test_bad_topic_names(compactor_command: Compactor, folder: Path, name: str, reason: str) -> None:
    for command in (
        ("import", name, "-"),
        ("read", name),
        ("compact-topic", "--topic", name),
        ("topics", "stats", name),
    ):
        compactor_command(*command).refused(2, reason)
    assert not (folder.parent / "data").exists(), "a bad name is known before anything is opened or made"


@pytest.mark.parametrize("size", ["", "0", "-1", "1.5M", "12Q", "1 M", "M", "1e6", "9" * 19, "１"])
def test_bad_ledger_sizes(compactor_command: Compactor, size: str) -> None:
    compactor_command("import", "t", "-", f"--ledger-size={size}").refused(2, "is not a size in bytes", "128M")


def test_the_help_of_a_refused_line_says_what_to_do(compactor_command: Compactor, folder: Path) -> None:
    """The whole line once, as a contract of its form: what, where, remedy."""
    (folder / "in.jsonl").write_bytes(b'{"key":"a","value":"1"}\n{"key":"a"}\n')
    assert compactor_command("import", "t", "in.jsonl").stderr == (
        "compactor: in.jsonl, line 2: Object missing required field `value`: "
        "correct the file and import it again; nothing of it was kept\n"
    )


def test_a_port_that_is_none(compactor_command: Compactor) -> None:
    for port in ("99999", "-1", "x"):
        compactor_command("serve", "--port", port).refused(2, "--port")
