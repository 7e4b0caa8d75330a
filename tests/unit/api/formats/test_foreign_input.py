"""Files of other systems as the input of an import: the messages that each becomes, and its refusals."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import api.formats.csv_rows
import api.formats.input_stream
from api.formats.inputs import EmptyValues, InputFormat, InputOptions, read_messages
from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidInput

DELETE = EmptyValues.DELETE


def read(file: Path, input_format: InputFormat | None = None, **options: Any) -> list[dict[str, Any]]:
    tables = list(read_messages(str(file), input_format, InputOptions(**options)))
    return [row for table in tables for row in table.to_pylist()]


def pairs(file: Path, input_format: InputFormat | None = None, **options: Any) -> list[tuple[bytes, bytes | None]]:
    return [(row["key"], row["payload"]) for row in read(file, input_format, **options)]


def refused(file: Path, *parts: str, input_format: InputFormat | None = None, **options: Any) -> None:
    with pytest.raises(InvalidInput) as error:
        read(file, input_format, **options)
    for part in parts:
        assert part in str(error.value)


def write(folder: Path, text: str | bytes, name: str = "in.jsonl") -> Path:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


# JSON objects


def test_whole_objects_are_values_byte_by_byte(tmp_path: Path) -> None:
    lines = ['{"id": 1.00 , "x":"ü"}', '{"x":1, "id":"a\\"\\u00fc"}', '{"id":true}', '{"id":12345678901234567890}']
    file = write(tmp_path, "\ufeff" + "\r\n".join(lines))
    keys = [b"1.00", 'a"ü'.encode(), b"true", b"12345678901234567890"]
    assert pairs(file, key_field="id") == list(zip(keys, (line.encode() for line in lines), strict=True))


def test_nested_fields_and_names_with_dots(tmp_path: Path) -> None:
    events = [{"user": {"id": 7, "a.b": "k"}, "after": {"x": 1}}, {"user": {"id": 8, "a.b": "l"}, "after": None}]
    file = write(tmp_path, "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
    assert pairs(file, key_field="user.id", value_field="after") == [(b"7", b'{"x":1}'), (b"8", None)]
    assert pairs(file, key_field="user.a\\.b", value_field="user.id") == [(b"k", b"7"), (b"l", b"8")]


def test_event_times(tmp_path: Path) -> None:
    values: list[tuple[Any, int | None]] = [
        (1700000000123, 1700000000123),
        ("1700000000123", 1700000000123),
        ("2026-01-01T02:00:00.123456789+02:00", 1767225600123),
        ("2026-01-01T00:00:00Z", 1767225600000),
        ("2026-01-01 00:00:00", 1767225600000),
        ("2026-01-01", 1767225600000),
        ("2025-12-31T19:00:00-05", 1767225600000),
        (None, None),
    ]
    lines = [json.dumps({"id": 1, "at": value}) for value, _ in values] + ['{"id":1}']
    rows = read(write(tmp_path, "\n".join(lines)), key_field="id", timestamp_field="at")
    assert [row["event_time"] for row in rows] == [*(time for _, time in values), None]
    assert [row["publish_time"] for row in rows] == [None] * len(rows)


@pytest.mark.parametrize(
    ("line", "options", "parts"),
    [
        ('{"x":1}', {}, ["it has no field id; it has x", "--key-field"]),
        ('{"id":{"a":1}}', {}, ["id is an object or a list", "--key-field id.NAME"]),
        ('{"id":[1]}', {}, ["id is an object or a list"]),
        ('{"id":null}', {}, ["id is null, and every row needs a key"]),
        ('{"id":1,"v":{"w":null}}', {"value_field": "v.x"}, ["it has no field v.x; it has id, v.w", "--value-field"]),
        ('{"id":1,"v":null}', {"value_field": "v.x"}, ["it has no field v.x; it has id, v"]),
        ('{"id":1,"v":3}', {"value_field": "v.x"}, ["v.x is not in it, because a member on the way is no object"]),
        ('{"id":1,"v":""}', {"value_field": "v"}, ["the value is empty", "--empty-values delete"]),
        ('{"id":1,"at":"soon"}', {"timestamp_field": "at"}, ["at is 'soon', which is not a time"]),
        ("", {}, ["the line is empty"]),
        ("[1]", {}, ["the line is no object", "jq -c '.[]'"]),
        ('{"id":1', {}, ["not JSON", "one JSON object a line"]),
        ('{"id":1} {"id":2}', {}, ["trailing characters"]),
        ('{"id":"\\ud800"}', {}, ["not JSON"]),
    ],
)
def test_a_bad_object_is_named(tmp_path: Path, line: str, options: dict[str, Any], parts: list[str]) -> None:
    good = '{"id":"1","v":{"x":1},"at":1}\n' * 2
    file = write(tmp_path, good + line + "\n" + good)
    refused(file, "in.jsonl, line 3: ", *parts, key_field="id", **options)


def test_objects_that_are_no_utf8(tmp_path: Path) -> None:
    refused(write(tmp_path, b'{"id":1}\n{"id":2,"x":"\xff"}\n'), "line 2: not UTF-8 text", key_field="id")


def test_empty_values_may_delete(tmp_path: Path) -> None:
    file = write(tmp_path, '{"id":1,"v":""}\n')
    assert pairs(file, key_field="id", value_field="v", empty_values=DELETE) == [(b"1", b"")]


def test_fields_in_base64(tmp_path: Path) -> None:
    file = write(tmp_path, '{"id":"/w==","v":"AP8="}\n')
    base64 = {"key_encoding": TextEncoding.BASE64, "value_encoding": TextEncoding.BASE64}
    assert pairs(file, key_field="id", value_field="v", **base64) == [(b"\xff", b"\0\xff")]
    refused(
        write(tmp_path, '{"id":"ü","v":""}\n'), "line 1: id is", "not base64", key_field="id", value_field="v", **base64
    )


def test_lines_that_do_not_fit_into_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.formats.input_stream, "BLOCK_BYTES", 16)
    lines = [json.dumps({"id": number, "x": "y" * (number * 7 % 50)}).encode() for number in range(20)]
    expected = [(b"%d" % number, line) for number, line in enumerate(lines)]
    assert pairs(write(tmp_path, b"\n".join(lines)), key_field="id") == expected
    assert pairs(write(tmp_path, gzip.compress(b"\n".join(lines) + b"\n")), key_field="id") == expected
    lines[17] = b"{}"
    refused(write(tmp_path, b"\n".join(lines)), "line 18: it has no field id", key_field="id")
    monkeypatch.setattr(api.formats.input_stream, "MAX_LINE_BYTES", 40)
    refused(write(tmp_path, b'{"id":1}\n' + b"x" * 60), "line 2: longer than 40 bytes", key_field="id")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"user":{"id":1},"at":2}', ["its fields are user.id, at", "--key-field user.id"]),
        ('{"topic":"t","partition":0,"offset":1,"key":"k","payload":"v"}', ["--input-format kcat"]),
        ("id,name", ["not JSON", "--input-format: csv, kcat or key-value"]),
        ('[{"key":"a"}]', ["must be an object, not a list", "jq -c '.[]'"]),
        ("{", ["not JSON", "jq -c ."]),
    ],
)
def test_an_error_about_a_message_names_the_option_that_helps(tmp_path: Path, line: str, parts: list[str]) -> None:
    refused(write(tmp_path, line), "line 1: ", *parts)


# CSV


def test_rows_of_csv_are_objects_of_texts(tmp_path: Path) -> None:
    file = write(tmp_path, 'id,name,note\r\n007,"Bob, ""Jr.""",\r\n1,"two\nlines",""\r\n', "in.csv")
    assert pairs(file, key_field="id") == [
        (b"007", b'{"id":"007","name":"Bob, \\"Jr.\\"","note":null}'),
        (b"1", b'{"id":"1","name":"two\\nlines","note":""}'),
    ]


def test_one_column_of_csv_is_the_value(tmp_path: Path) -> None:
    file = write(tmp_path, gzip.compress(b"\xef\xbb\xbfid\tat\tv\n1\t5\tx\n2\t\t\n"), "in.csv.gz")
    rows = read(
        file, key_field="id", value_field="v", timestamp_field="at", separator="\\t", empty_values=EmptyValues.DELETE
    )
    assert [(row["key"], row["payload"], row["event_time"]) for row in rows] == [(b"1", b"x", 5), (b"2", None, None)]


def test_messages_in_csv(tmp_path: Path) -> None:
    text = 'key,value,publish_time,properties,offset\n,v,7,"{""p"":""q""}",0\n"",,,,1\n'
    rows = read(write(tmp_path, text, "in.csv"), empty_values=DELETE)
    assert rows == [
        {"key": None, "payload": b"v", "publish_time": 7, "event_time": None, "properties": [("p", "q")]},
        {"key": b"", "payload": None, "publish_time": None, "event_time": None, "properties": None},
    ]


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("id,v\n1,2\n", {}, ["no column key and no column value; it has id, v", "--key-field id"]),
        ("key,value,x\n1,2,3\n", {}, ["columns that no message has; it has key, value, x", "--key-field key"]),
        ("id,v\n1,2\n", {"key_field": "k"}, ["no column k; it has id, v", "--key-field", "--separator"]),
        ("id,id\n1,2\n", {"key_field": "id"}, ["more than one column id"]),
        ("id,v\n1,2\n3\n", {"key_field": "id"}, ["in.csv, row 2: Expected 2 columns, got 1", "--separator"]),
        ("\nid,v\n1,2\n,3\n", {"key_field": "id"}, ["row 2: id is null"]),
        ("id,v\n1,2\n3,\n", {"key_field": "id", "value_field": "v"}, ["row 2: the value is empty", "delete"]),
        ('id,v\n1,2\n3,""\n', {"key_field": "id", "value_field": "v"}, ["row 2: the value is empty"]),
        ("key,value\na,\n", {}, ["row 1: the value is empty"]),
        ("id,v\n1,now\n", {"key_field": "id", "timestamp_field": "v"}, ["row 1: v is 'now', which is not a time"]),
        ("key,value,properties\na,b,{}\nc,d,[]\n", {}, ["row 2: properties is '[]'"]),
        ("id,v\n1,2\n", {"key_field": "id", "separator": "ab"}, ["'ab' of CSV is not one character"]),
    ],
)
def test_a_bad_row_of_csv_is_named(tmp_path: Path, text: str, options: dict[str, Any], parts: list[str]) -> None:
    refused(write(tmp_path, text, "in.csv"), *parts, **options)


def test_csv_that_is_no_utf8_or_no_rows(tmp_path: Path) -> None:
    refused(write(tmp_path, b"id,v\n1,\xff\n", "in.csv"), "in.csv, row 1: ", "invalid UTF8", key_field="id")
    assert pairs(write(tmp_path, "", "in.csv"), key_field="id") == []
    assert pairs(write(tmp_path, "id,v\n", "in.csv"), key_field="id") == []


def test_an_empty_line_of_csv_is_a_row_of_nulls(tmp_path: Path) -> None:
    refused(write(tmp_path, 'id\na\n\n""\nb', "in.csv"), "in.csv, row 2: id is null", key_field="id")
    refused(write(tmp_path, "\r\nid,v\r\na,1\r\n\r\nb,2\r\n", "in.csv"), "row 2: id is null", key_field="id")
    assert pairs(write(tmp_path, "\nkey,value\na,1\n\nb,2\n\n", "in.csv")) == [(b"a", b"1"), (b"b", b"2")]


def test_rows_of_csv_in_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.formats.csv_rows, "BLOCK_BYTES", 64)
    rows = [f'{number},"a\nb{number}"' for number in range(40)]
    file = write(tmp_path, "\n".join(["id,v", *rows]), "in.csv")
    expected = [(b"%d" % number, b"a\nb%d" % number) for number in range(40)]
    assert pairs(file, key_field="id", value_field="v") == expected
    file = write(tmp_path, "\r\n".join(["id,v", *(row.replace("\n", "\r\n") for row in rows)]), "in.csv")
    crlf = [(key, value.replace(b"\n", b"\r\n")) for key, value in expected]
    for size in range(32, 64):  # so that blocks end inside of ends of lines
        monkeypatch.setattr(api.formats.csv_rows, "BLOCK_BYTES", size)
        assert pairs(file, key_field="id", value_field="v") == crlf
    file = write(tmp_path, "\n".join(["id,v", *rows, ",x"]), "in.csv")
    refused(file, "row 41: id is null", key_field="id", value_field="v")
    file = write(tmp_path, "\n".join(["id,v", '1,"a', *["2,b"] * 99]), "in.csv")
    refused(file, "in.csv", "a quote that is not closed", key_field="id", value_field="v")


# kcat -J


def kcat(**fields: Any) -> str:
    line = {"topic": "t", "partition": 2, "offset": 5, "tstype": "create", "ts": 9, "broker": 1, "key": "k"}
    return json.dumps(line | {"payload": "v"} | fields) + "\n"


def test_lines_of_kcat(tmp_path: Path) -> None:
    text = kcat(headers=["a", "1", "a", None]) + kcat(offset=6, key=None, payload={"x": 1}, ts=-1, headers={"h": ["2"]})
    rows = read(write(tmp_path, text), InputFormat.KCAT)
    assert rows == [
        {"key": b"k", "payload": b"v", "publish_time": 9, "event_time": 9}
        | {"properties": [("a", "1"), ("a;null", "")], "producer": "kafka:t-2", "sequence_id": 5},
        {"key": None, "payload": b'{"x": 1}', "publish_time": None, "event_time": None}
        | {"properties": [("h", "2")], "producer": "kafka:t-2", "sequence_id": 6},
    ]
    deletions = read(write(tmp_path, kcat(payload=None) + kcat(payload="")), InputFormat.KCAT, empty_values=DELETE)
    assert [row["payload"] for row in deletions] == [None, b""]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (kcat(payload=""), ["the value is empty", "--empty-values delete"]),
        (kcat(payload=None, payload_error="no schema"), ["kcat could not decode the record (no schema)"]),
        (kcat(headers=["a"]), ["headers are not names and values in turn"]),
        ('{"key":"a","value":"1"}\n', ["no line of kcat -J"]),
        ("\n", ["the line is empty"]),
        ("% Reached end\n", ["not JSON"]),
    ],
)
def test_a_bad_line_of_kcat_is_named(tmp_path: Path, line: str, parts: list[str]) -> None:
    refused(write(tmp_path, kcat() + line + kcat()), "line 2: ", *parts, input_format=InputFormat.KCAT)


def test_bytes_of_kcat_that_are_no_text(tmp_path: Path) -> None:
    line = kcat().encode().replace(b'"v"', b'"\xff"')
    refused(write(tmp_path, line), "line 1: not UTF-8 text", "kafka-segments", input_format=InputFormat.KCAT)


# Lines of key and value


def test_lines_of_key_and_value(tmp_path: Path) -> None:
    file = write(tmp_path, b"a:1\r\n:x:y\nb: \xff\n")
    assert pairs(file, InputFormat.KEY_VALUE) == [(b"a", b"1"), (b"", b"x:y"), (b"b", b" \xff")]
    file = write(tmp_path, "a\t1\nb\t\n")
    tab = {"separator": "\\t"}
    assert pairs(file, InputFormat.KEY_VALUE, empty_values=DELETE, **tab) == [(b"a", b"1"), (b"b", b"")]
    refused(file, "line 1: it has no separator ':'", "--separator", input_format=InputFormat.KEY_VALUE)
    refused(file, "line 2: the value is empty", input_format=InputFormat.KEY_VALUE, **tab)
    refused(file, "the separator is empty", input_format=InputFormat.KEY_VALUE, separator="")


# Parquet of any columns

STAMP = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
KEYS = [
    (pa.array([7], pa.int32()), b"7"),
    (pa.array([2**64 - 1], pa.uint64()), b"18446744073709551615"),
    (pa.array([1.5]), b"1.5"),
    (pa.array([True]), b"true"),
    (pa.array(["ü"]), "ü".encode()),
    (pa.array([b"\xff"]), b"\xff"),
    (pa.array(["d"]).dictionary_encode(), b"d"),
    (pa.array([date(2026, 1, 31)]), b"2026-01-31"),
    (pa.array([STAMP], pa.timestamp("us", "Europe/Berlin")), b"2026-01-31 12:00:00.123456Z"),
    (pa.array([STAMP.replace(tzinfo=None)], pa.timestamp("ms")), b"2026-01-31 12:00:00.123"),
    (pa.array([Decimal("1.50")]), b"1.50"),
    (pa.array([UUID(int=255).bytes], pa.uuid()), b"00000000-0000-0000-0000-0000000000ff"),
]


@pytest.mark.parametrize(("column", "text"), KEYS, ids=[str(column.type) for column, _ in KEYS])
def test_a_key_of_any_type_is_a_text(tmp_path: Path, column: pa.Array, text: bytes) -> None:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ms":
        column = pa.array([STAMP.replace(tzinfo=None, microsecond=123000)], pa.timestamp("ms"))
    pq.write_table(pa.table({"id": column, "v": ["x"]}), tmp_path / "in.parquet")
    assert pairs(tmp_path / "in.parquet", key_field="id", value_field="v") == [(text, b"x")]
    assert pairs(tmp_path / "in.parquet", key_field="v", value_field="id") == [(b"x", text)]


def test_rows_of_parquet_are_json(tmp_path: Path) -> None:
    row = {
        "id": 1,
        "f": float("nan"),
        "s": 'ü"',
        "at": STAMP,
        "d": Decimal("1.50"),
        "in": {"list": [1, None], "at": STAMP, "b": b"x"},
        "map": [("p", "q")],
        "none": None,
    }
    stamp = pa.timestamp("us", "UTC")
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("f", pa.float64()),
            ("s", pa.string()),
            ("at", stamp),
            ("d", pa.decimal128(5, 2)),
            ("in", pa.struct([("list", pa.list_(pa.int32())), ("at", stamp), ("b", pa.binary())])),
            ("map", pa.map_(pa.string(), pa.string())),
            ("none", pa.int8()),
        ]
    )
    pq.write_table(pa.Table.from_pylist([row], schema), tmp_path / "in.parquet")
    [(key, value)] = pairs(tmp_path / "in.parquet", key_field="id")
    assert (key, json.loads(value or b"")) == (
        b"1",
        {"id": 1, "f": None, "s": 'ü"', "at": "2026-01-31 12:00:00.123456Z", "d": "1.50"}
        | {"in": {"list": [1, None], "at": "2026-01-31 12:00:00.123456Z", "b": "x"}, "map": {"p": "q"}, "none": None},
    )
    inner = pairs(tmp_path / "in.parquet", key_field="in.b", value_field="in", timestamp_field="at")
    assert inner == [(b"x", b'{"list":[1,null],"at":"2026-01-31 12:00:00.123456Z","b":"x"}')]
    assert read(tmp_path / "in.parquet", key_field="id", timestamp_field="at")[0]["event_time"] == 1769860800123


def test_nulls_of_parquet(tmp_path: Path) -> None:
    file = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": [1, 2], "v": ["x", None], "n": [{"a": 1}, None]}), file)
    assert pairs(file, key_field="id", value_field="v") == [(b"1", b"x"), (b"2", None)]
    assert pairs(file, key_field="id", value_field="n") == [(b"1", b'{"a":1}'), (b"2", None)]
    refused(file, "row 2: v is null", key_field="v")
    refused(file, "column n is struct", "with a dot", key_field="n")
    refused(file, "has no column n.b; it has id, v, n", "--key-field", key_field="n.b")
    refused(file, "no column key and no column value; it has id, v, n", "--key-field")
    pq.write_table(pa.table({"id": [1], "b": [b"\xff"]}), file)
    refused(file, "column b is binary, which has no JSON", "--value-field", key_field="id")


# Options


@pytest.mark.parametrize(
    ("input_format", "options", "parts"),
    [
        (InputFormat.KCAT, {"key_field": "k"}, ["--key-field does not apply to the format kcat"]),
        (InputFormat.JSONL, {"separator": ","}, ["--separator does not apply to the format jsonl"]),
        (InputFormat.JSONL, {"value_field": "v"}, ["--value-field needs --key-field"]),
        (InputFormat.CSV, {"timestamp_field": "v"}, ["--timestamp-field needs --key-field"]),
        (InputFormat.CSV, {"key_field": "k", "value_encoding": TextEncoding.BASE64}, ["name a --value-field"]),
        (InputFormat.JSONL, {"key_field": "a..b"}, ["has an empty name"]),
    ],
)
def test_options_that_do_not_apply(
    tmp_path: Path, input_format: InputFormat, options: dict[str, Any], parts: list[str]
) -> None:
    refused(write(tmp_path, "{}\n"), *parts, input_format=input_format, **options)


def test_empty_values_of_messages_are_refused_if_that_is_chosen(tmp_path: Path) -> None:
    file = write(tmp_path, '{"key":"a","value":""}\n')
    assert pairs(file) == [(b"a", b"")]
    refused(file, "line 1: the value is empty", empty_values=EmptyValues.REFUSE)
    pq.write_table(pa.table({"key": ["a"], "value": [""]}), tmp_path / "in.parquet")
    refused(tmp_path / "in.parquet", "row 1: the value is empty", empty_values=EmptyValues.REFUSE)


# Events of Debezium


def event(op: str | None, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    return {"before": before, "after": after, **({} if op is None else {"op": op}), **more}


ADA, GRACE = {"id": 1, "name": "Ada"}, {"id": 2, "name": "Grace"}
CHANGES = [
    event("r", after=ADA, ts_ms=1),
    event("c", after=GRACE, ts_ms=2),
    event("u", before=ADA, after={**ADA, "name": "ä"}, ts_ms=3),
    event("d", before=GRACE, ts_ms=4),
]


def debezium(file: Path, **options: Any) -> list[dict[str, Any]]:
    return read(file, InputFormat.DEBEZIUM, **{"key_field": "id", **options})


@pytest.mark.parametrize("with_schema", [False, True])
def test_changes_of_debezium(tmp_path: Path, with_schema: bool) -> None:
    """With schemas or without, and with the tombstones that follow deletions."""
    wrapped = [{"schema": {"type": "struct"}, "payload": change} if with_schema else change for change in CHANGES]
    tombstone = '{"schema": null, "payload": null}' if with_schema else "null"
    lines = [json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in wrapped]
    file = write(tmp_path, "\n".join((*lines, tombstone, lines[1], "")))
    rows = debezium(file, timestamp_field="ts_ms")
    assert [(row["key"], row["payload"], row["event_time"]) for row in rows] == [
        (b"1", b'{"id":1,"name":"Ada"}', 1),
        (b"2", b'{"id":2,"name":"Grace"}', 2),
        (b"1", '{"id":1,"name":"ä"}'.encode(), 3),
        (b"2", None, 4),
        (b"2", b'{"id":2,"name":"Grace"}', 2),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (event("t"), "has the op 't', which changes no row"),
        (event(None, after=ADA), "the event has no op"),
        (event("d"), "the op is 'd', and before is no row"),
        (event("u", before=ADA), "the op is 'u', and after is no row"),
        (event("c", after="{}"), "the op is 'c', and after is no row: let the connector write whole rows as objects"),
        (event("c", after={"name": "x"}), "it has no field id; it has name"),
        (event("c", after={"id": None}), "id is null"),
        ([1], "no event of Debezium"),
        ({"id": 1}, "the event has no op: import rows of flattened events (ExtractNewRecordState) with --input-format"),
    ],
)
def test_what_is_no_change_of_a_row(tmp_path: Path, line: Any, reason: str) -> None:
    """The error names the line, also after tombstones."""
    file = write(tmp_path, f"{json.dumps(CHANGES[0])}\nnull\n{json.dumps(line)}\n")
    refused(file, "line 3: ", reason, input_format=InputFormat.DEBEZIUM, key_field="id")


def test_options_of_debezium(tmp_path: Path) -> None:
    file = write(tmp_path, "null\n")
    assert debezium(file) == []
    refused(file, "name the column with --key-field", input_format=InputFormat.DEBEZIUM)
    refused(file, "--value-field", input_format=InputFormat.DEBEZIUM, key_field="id", value_field="x")
    refused(write(tmp_path, "{"), "line 1: not JSON", input_format=InputFormat.DEBEZIUM, key_field="id")
