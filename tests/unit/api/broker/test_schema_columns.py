"""Keys and values as columns by the schema of their topic: structures, hostile definitions and payloads."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from api.broker.schema_columns import JSON, Cells, Column, schema_columns
from api.broker.schema_compatibility import SchemaType, join_parts
from api.formats.text_encoding import TextEncoding
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.errors import InvalidInput
from storage.metadata.schemas import SchemaRecord

UTF8, BASE64 = TextEncoding.UTF8, TextEncoding.BASE64


def schema(kind: str, definition: Any = b"", version: int = 0, **properties: str) -> SchemaRecord:
    data = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return SchemaRecord(version, int(SchemaType[kind]), "s", data, named)


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def column(*versions: SchemaRecord) -> Column:
    return schema_columns(versions, UTF8, UTF8).value


def values(of: Column, *payloads: bytes | None) -> list[Any]:
    cells = Cells(pa.array(payloads, pa.binary()), pa.array(range(len(payloads)), pa.int64()))
    converted = of.convert(cells)
    assert converted.type == of.type
    return list(converted.to_pylist())


def documents(of: Column, *payloads: bytes | None) -> list[Any]:
    return [None if text is None else json.loads(text) for text in values(of, *payloads)]


def avro(definition: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, definition, value)
    return stream.getvalue()


EVERY_TYPE = record(
    ("n", "null"),
    ("b", "boolean"),
    ("i", ["null", "int"]),
    ("f", "float"),
    ("s", {"type": "string"}),
    ("y", "bytes"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("e2", "E"),
    ("x", {"type": "fixed", "name": "x.X", "size": 2}),
    ("l", {"type": "array", "items": record(("v", "long"), name="V")}),
    ("m", {"type": "map", "values": "V"}),
    ("u", ["string", "long"]),
    ("day", {"type": "int", "logicalType": "date"}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("clock", {"type": "int", "logicalType": "time-millis"}),
    ("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
    ("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("large", {"type": "bytes", "logicalType": "decimal", "precision": 60}),
    ("id", {"type": "string", "logicalType": "uuid"}),
    ("odd", {"type": "long", "logicalType": "unheard-of"}),
)
VALUE = {
    "n": None, "b": True, "i": None, "f": float("nan"), "s": "ü", "y": b"\0\xff", "e": "B", "e2": "A", "x": b"xy",
    "l": [{"v": 2**62}], "m": {"k": {"v": 1}}, "u": 3, "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "clock": time(1, 2, 3, 4000),
    "local": datetime(2026, 1, 31, 12), # noqa: DTZ001
    "d": Decimal("1.50"), "large": Decimal(7),
    "id": UUID(int=1), "odd": 5,
}  # fmt: skip


def test_every_type_of_avro() -> None:
    decoded = column(schema("AVRO", EVERY_TYPE))
    assert decoded.structure == {
        "n": JSON, "b": "BOOLEAN", "i": "BIGINT", "f": "DOUBLE", "s": "VARCHAR", "y": "VARCHAR", "e": "VARCHAR",
        "e2": "VARCHAR", "x": "VARCHAR", "l": [{"v": "BIGINT"}], "m": JSON, "u": JSON, "day": "DATE",
        "at": "TIMESTAMPTZ", "clock": "TIME", "local": "TIMESTAMP", "d": "DECIMAL(9,2)", "large": "VARCHAR",
        "id": "UUID", "odd": "BIGINT",
    }  # fmt: skip
    (document, none) = documents(decoded, avro(EVERY_TYPE, VALUE), None)
    assert none is None
    assert document == {
        "n": None, "b": True, "i": None, "f": None, "s": "ü", "y": "AP8=", "e": "B", "e2": "A", "x": "eHk=",
        "l": [{"v": 2**62}], "m": {"k": {"v": 1}}, "u": 3, "day": "2026-01-31", "at": "2026-01-31T12:00:00Z",
        "clock": "01:02:03.004000", "local": "2026-01-31T12:00:00", "d": "1.50", "large": "7",
        "id": str(UUID(int=1)), "odd": 5,
    }  # fmt: skip


def test_logical_types_of_json_stay_json() -> None:
    """A client may write a time as a number or as a text."""
    decoded = column(schema("JSON", EVERY_TYPE))
    assert (decoded.structure["day"], decoded.structure["d"], decoded.structure["s"]) == (JSON, JSON, "VARCHAR")
    assert values(decoded, b'{"s": "x"}') == ['{"s": "x"}']


@pytest.mark.parametrize(
    ("definition", "value", "structure"),
    [
        (
            record(("v", "long"), ("next", ["null", "R"])),
            {"v": 1, "next": {"v": 2, "next": None}},
            {"v": "BIGINT", "next": JSON},
        ),
        (record(("l", {"type": "array", "items": "null"})), {"l": [None, None]}, {"l": [JSON]}),
        (record(("l", {"type": "array", "items": record(name="Empty")})), {"l": [{}]}, {"l": [JSON]}),
        (record(("a", "int"), ("A", "int")), {"a": 1, "A": 2}, JSON),
        ("string", "x", "VARCHAR"),
        ({"type": "array", "items": "int"}, [1], ["BIGINT"]),
    ],
)  # fmt: skip
def test_definitions_that_no_struct_has(definition: Any, value: Any, structure: Any) -> None:
    decoded = column(schema("AVRO", definition))
    assert decoded.structure == structure
    assert documents(decoded, avro(definition, value)) == [value]


def test_names_that_java_gives() -> None:
    """fastavro refuses a dollar sign."""
    definition = record(("v", "long"), name="Outer$Inner")
    decoded = column(schema("AVRO", definition))
    assert decoded.structure == {"v": "BIGINT"}
    assert documents(decoded, b"\x02") == [{"v": 1}]


def test_definitions_that_repeat_their_types_without_end_are_bounded() -> None:
    inner: Any = record(("a", "int"), ("b", "int"), name="T0")
    for depth in range(1, 40):
        inner = record(("a", inner), ("b", f"T{depth - 1}"), name=f"T{depth}")
    assert len(json.dumps(column(schema("AVRO", inner)).structure)) < 1_000_000


@pytest.mark.parametrize(
    ("definition", "payload"),
    [
        (record(("l", {"type": "array", "items": "null"})), avro("long", 2**40) + b"\0"),
        (record(("next", ["null", "R"])), b"\x02" * 100_000 + b"\0"),
        (record(("s", "string")), avro("long", 2**40)),
        (record(("s", "string")), b"\x02x\0"),
        (record(("s", "string")), b"\x02\xff"),
        (record(("u", ["null", "int"])), b"\x08"),
        (record(("t", {"type": "long", "logicalType": "timestamp-millis"})), avro("long", 2**62)),
    ],
)
def test_hostile_payloads_are_errors_with_their_offset(definition: Any, payload: bytes) -> None:
    decoded = column(schema("AVRO", definition))
    with pytest.raises(InvalidInput, match=r"value at offset 1 cannot be decoded as AVRO by version 0 .*\([^)]"):
        values(decoded, None, payload)


@pytest.mark.parametrize("definition", [b"", b"{", {"type": "object", "properties": {}}, b"\xff"])
@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_a_definition_that_is_not_avro_decodes_nothing(kind: str, definition: Any) -> None:
    decoded = column(schema(kind, definition))
    assert (decoded.structure, values(decoded, b"x")) == (None, ["x"])


@pytest.mark.parametrize("kind", ["STRING", "NONE", "PROTOBUF", "PROTOBUF_NATIVE"])
def test_types_that_describe_themselves(kind: str) -> None:
    assert values(column(schema(kind)), b"x", None, b"") == ["x", None, ""]
    with pytest.raises(InvalidInput, match="the value at offset 1 is not UTF-8"):
        values(column(schema(kind)), b"x", b"\xff")


def test_primitive_types() -> None:
    assert values(column(schema("INT32")), b"\xff\xff\xff\xfe", None) == [-2, None]
    assert values(column(schema("BOOLEAN")), b"\x01") == [True]
    assert values(column(schema("LOCAL_DATE")), (19_675).to_bytes(8, "big")) == ["2023-11-14"]
    with pytest.raises(InvalidInput, match="offset 0 cannot be decoded as INT64"):
        values(column(schema("INT64")), b"\0")


def pair(encoding: str, **properties: str) -> SchemaRecord:
    names = {"kv_encoding_type": encoding, "key_schema_type": "INT8", "value_schema_type": "AVRO", **properties}
    return schema("KEY_VALUE", join_parts(b"", json.dumps(record(("v", "int"))).encode()), **names)


def test_a_key_that_cannot_be_decoded_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"the key at offset 0 cannot be decoded as INT8.*--key-encoding base64"):
        values(schema_columns([pair("SEPARATED")], UTF8, UTF8).key, b"xx")


def test_pairs() -> None:
    both = schema_columns([pair("SEPARATED")], UTF8, UTF8)
    assert values(both.key, b"\x07") == [7]
    assert (documents(both.value, b"\x02"), both.value.structure) == ([{"v": 1}], {"v": "BIGINT"})
    inline = schema_columns([pair("INLINE")], UTF8, UTF8)
    assert inline.value.structure == JSON
    assert documents(inline.value, b"\0\0\0\x01\x07\0\0\0\x01\x02") == [{"key": 7, "value": {"v": 1}}]
    assert values(inline.key, b"k") == ["k"]


@pytest.mark.parametrize(
    "versions", [[], [schema("AVRO", EVERY_TYPE)], [schema("INT8")], [pair("SEPARATED")], [pair("INLINE")]]
)
def test_base64_decodes_nothing(versions: Sequence[SchemaRecord]) -> None:
    columns = schema_columns(versions, BASE64, BASE64)
    for each in (columns.key, columns.value):
        assert (values(each, b"\xff", b"", None), each.structure) == ([b"\xff", b"", None], None)


def test_a_version_of_another_type_is_an_error() -> None:
    decoded = column(schema("STRING"), schema("AVRO", record(("v", "int")), version=1))
    sent = MessageMetadata(producer_name="", sequence_id=0, publish_time=0, schema_version=bytes(8)).SerializeToString()
    cells = Cells(pa.array([b"\x02"], pa.binary()), pa.array([5], pa.int64()), pa.array([sent], pa.binary()))
    with pytest.raises(InvalidInput, match="offset 5 cannot be decoded as STRING by version 0"):
        decoded.convert(cells)
