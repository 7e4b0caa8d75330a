"""Files that are no input: the error names file, place and reason. That nothing of a file is kept is
tests/clients/cli/test_cli_bad_input.py."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.formats.inputs import InputFormat, InputOptions, read_messages
from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidInput

GOOD = b'{"key":"a","value":"1"}\n'

LINES = {
    "not JSON": (b"key,value", "not JSON"),
    "cut short": (b'{"key":"a","val', "not JSON"),
    "something behind": (GOOD.strip() + b" x", "trailing characters"),
    "empty": (b"", "the line is empty"),
    "blank": (b" \t", "the line is empty"),
    "array": (b'["a","1"]', "the line must be an object, not a list"),
    "null": (b"null", "the line must be an object, not null"),
    "a number as key": (
        b'{"key":1,"value":"1"}',
        "key must be a text or null, not a whole number; keys and values are text: quote it",
    ),
    "an object as value": (b'{"key":"a","value":{}}', "value must be a text or null, not an object"),
    "no value": (b'{"key":"a"}', "missing required field `value`"),
    "no key": (b'{"value":"1"}', "missing required field `key`"),
    "unknown field": (b'{"key":"a","value":"1","time":1}', "unknown field `time`; a line has key, value, event_time"),
    "object for a value": (b'{"key":"a","value":{"x":1}}', "; keys and values are text: quote it"),
    "a fraction as time": (
        b'{"key":"a","value":"1","event_time":1.5}',
        "event_time must be a whole number or null, not a fraction",
    ),
    "true as time": (
        b'{"key":"a","value":"1","event_time":true}',
        "event_time must be a whole number or null, not true or false",
    ),
    "text as time": (
        b'{"key":"a","value":"1","publish_time":"2020-01-01"}',
        "publish_time must be a whole number or null, not a text",
    ),
    "time beyond int64": (
        b'{"key":"a","value":"1","event_time":9223372036854775808}',
        "event_time must be a whole number <= 9223372036854775807",
    ),
    "time beyond uint64": (b'{"key":"a","value":"1","publish_time":-99999999999999999999}', "publish_time"),
    "a number as property": (
        b'{"key":"a","value":"1","properties":{"p":1}}',
        "a value of properties must be a text, not a whole number",
    ),
    "null as property": (
        b'{"key":"a","value":"1","properties":{"p":null}}',
        "a value of properties must be a text, not null",
    ),
    "invalid UTF-8": (b'{"key":"\xff","value":"1"}', "not UTF-8 text"),
    "lone surrogate": (b'{"key":"\\ud800","value":"1"}', "surrogate"),
    "UTF-16": ('{"key":"a","value":"1"}'.encode("utf-16-le"), "not JSON"),
}


def refused(
    file: Path | str,
    *parts: str,
    input_format: InputFormat | None = None,
    key: TextEncoding = TextEncoding.UTF8,
    value: TextEncoding = TextEncoding.UTF8,
) -> None:
    """Asserts that reading the file is an error with these parts."""
    with pytest.raises(InvalidInput) as error:
        list(read_messages(str(file), input_format, InputOptions(key_encoding=key, value_encoding=value)))
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(("line", "reason"), LINES.values(), ids=LINES)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(GOOD * 2 + line + b"\n" + GOOD)
    refused(file, "line 3: ", reason, "nothing of it was kept")


@pytest.mark.parametrize("text", ["YQ", "Y Q=", "a-_=", "ü"])
def test_undecodable_base64_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(f'{{"key":"YQ==","value":"YQ=="}}\n{{"key":"{text}","value":"{text}"}}\n')
    refused(file, "line 2: ", "is not base64", key=TextEncoding.BASE64)
    refused(file, "line 2: ", "is not base64", value=TextEncoding.BASE64)


@pytest.mark.parametrize("damage", ["cut", "flipped", "checksum"])
def test_damaged_gzip(tmp_path: Path, damage: str) -> None:
    packed = bytearray(gzip.compress(b"".join(b'{"key":"%d","value":"x"}\n' % n for n in range(1000))))
    if damage == "cut":
        del packed[-100:]
    elif damage == "flipped":
        packed[200] ^= 0xFF
    else:
        packed[-8] ^= 0xFF
    file = tmp_path / "in.jsonl.gz"
    file.write_bytes(packed)
    refused(file, "in.jsonl.gz, line ")


PARQUET_TABLES = {
    "no value": (pa.table({"key": ["a"]}), "no column value"),
    "neither": (pa.table({"k": ["a"]}), "no column key and no column value"),
    "one more": (
        pa.table({"key": ["a"], "value": ["1"], "time": [1]}),
        "has columns that no field of a message holds: time",
    ),
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
def test_parquet_of_another_shape(tmp_path: Path, table: pa.Table, reason: str) -> None:
    pq.write_table(table, tmp_path / "in.parquet")
    refused(tmp_path / "in.parquet", "in.parquet", reason, "give key and value (string or binary)")


@pytest.mark.parametrize("damage", ["empty", "cut", "lines"])
def test_damaged_parquet(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "in.parquet"
    pq.write_table(pa.table({"key": ["a"] * 100, "value": ["x"] * 100}), file)
    whole = file.read_bytes()
    file.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "lines": GOOD}[damage])
    refused(file, "in.parquet cannot be read as Parquet")


def test_what_does_not_apply_to_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"key": ["a"], "value": ["1"]}), tmp_path / "in.parquet")
    refused(tmp_path / "in.parquet", "--value-encoding does not apply to the format parquet", value=TextEncoding.BASE64)
    refused("-", "standard input", "name a file", input_format=InputFormat.PARQUET)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    refused(tmp_path / "sub", "sub is a directory")
    refused(tmp_path / "missing.jsonl", "missing.jsonl does not exist")
    (tmp_path / "secret.jsonl").write_bytes(GOOD)
    monkeypatch.setattr("os.access", lambda file, mode: False)
    refused(tmp_path / "secret.jsonl", "secret.jsonl may not be read")
