"""Avro's binary encoding: the same values as another implementation reads, and no attack gets far."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from api.broker.avro_resolution import parse
from api.broker.avro_values import DEPTH, STEPS, MalformedValue, decode

PERSON: dict[str, Any] = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "age", "type": ["null", "int"]},
        {"name": "id", "type": "long"},
        {"name": "ratio", "type": "double"},
        {"name": "small", "type": "float"},
        {"name": "is_old", "type": "boolean"},
        {"name": "photo", "type": "bytes"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "parent", "type": ["null", "Person"]},
        {"name": "born", "type": {"type": "int", "logicalType": "date"}},
    ],
}
VALUE: dict[str, Any] = {
    "name": "Ada", "age": None, "id": -(2**63), "ratio": 0.1, "small": 0.5, "is_old": True, "photo": b"\xff\x00",
    "hash": b"ab", "colour": "BLUE", "tags": ["x", "y"], "counts": {"a": 1, "b": -2}, "parent": None, "born": 5,
}  # fmt: skip
NESTED = json.dumps({"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}).encode()


def encoded(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


def test_a_record_with_every_type() -> None:
    value = VALUE | {"parent": VALUE | {"age": 40}}
    expected = {"photo": "\xff\x00", "hash": "ab"}
    decoded = decode(parse(json.dumps(PERSON).encode()), encoded(PERSON, value))
    assert decoded == value | expected | {"parent": VALUE | {"age": 40} | expected}


def test_blocks_with_their_size_in_bytes() -> None:
    schema = parse(b'{"type": "array", "items": "int"}')
    assert decode(schema, b"\x03\x04\x02\x04\x02\x06\x00") == [1, 2, 3]


@pytest.mark.parametrize(
    ("definition", "data", "reason"),
    [
        (b'"int"', b"", "it ends before"),
        (b'"int"', b"\x02\x00", "1 bytes follow"),
        (b'"long"', b"\xff" * 11, "more than 10 bytes"),
        (b'"string"', b"\x10abc", "it ends before"),
        (b'"string"', b"\x01", "it ends before"),
        (b'"string"', b"\x02\xff", "not UTF-8"),
        (b'["null", "int"]', b"\x08", "choice 4 of 2"),
        (b'{"type": "array", "items": "null"}', b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00", "more values"),
        (b'{"type": "map", "values": "null"}', b"\xfe\xff\xff\xff\x7f" + b"\x00" * 2 * STEPS, "more values"),
        (NESTED, b"\x02" * (DEPTH + 1), "deeper"),
    ],
)
def test_malformed_values_are_refused(definition: bytes, data: bytes, reason: str) -> None:
    with pytest.raises(MalformedValue, match=reason):
        decode(parse(definition), data)


def test_long_field_names_count() -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "f" * 1000, "type": "null"}]}
    schema = parse(json.dumps({"type": "array", "items": record}).encode())
    assert len(decode(schema, b"\x14\x00")) == 10
    with pytest.raises(MalformedValue, match="more values"):
        decode(schema, b"\xd0\x0f\x00")
