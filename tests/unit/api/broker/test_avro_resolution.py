"""Avro's resolution as a broker decides it, and the bounds of a comparison."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.broker.avro_resolution import DEFINITION_BYTES, DEPTH, MalformedDefinition, TooComplex, incompatibility, parse


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def of_type(kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": "f", "type": kind, **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def reads(reader: Any, writer: Any) -> bool:
    return not incompatibility(parse(json.dumps(reader).encode()), parse(json.dumps(writer).encode()))


RECURSIVE = record(of_type(["null", "R"], default=None))


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("long", "int", True),
        ("int", "long", False),
        ("bytes", "string", True),
        ("string", "bytes", True),
        (["null", "double"], "int", True),
        (["null", "int"], "string", False),
        ("int", ["int", "null"], False),
        (["int", "null"], ["null", "int"], True),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, False),
        (record(of_type("int")), record(of_type("int"), name="Other"), True),
        (record(of_type("int"), namespace="a"), record(of_type("int"), namespace="b"), True),
        (record(of_type("int")), record(), False),
        (record(of_type("int", default=1)), record(), True),
        (record(of_type("int", aliases=["g"])), record({"name": "g", "type": "int"}), True),
        (["null", record(of_type("int"))], record(of_type("int"), name="Other"), True),
        (["null", record(of_type("int"))], record(name="Other"), False),
        (enum("A"), enum("A", name="Other"), False),
        (enum("A", namespace="a"), enum("A", namespace="b"), True),
        (enum("A", aliases=["Other"]), enum("A", name="Other"), True),
        (enum("A"), enum("A", "B"), True),
        ({"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "F", "size": 2}, False),
        (RECURSIVE, RECURSIVE, True),
    ],
)
def test_what_a_reader_reads(reader: Any, writer: Any, expected: bool) -> None:
    assert reads(reader, writer) is expected


def test_a_misfit_names_the_field() -> None:
    inner = {"name": "inner", "type": record(of_type({"type": "array", "items": "int"}), name="Inner")}
    other = {"name": "inner", "type": record(of_type({"type": "array", "items": "string"}), name="Inner")}
    reader, writer = parse(json.dumps(record(inner)).encode()), parse(json.dumps(record(other)).encode())
    assert incompatibility(reader, writer) == "inner.f.items: string cannot be read as int"


@pytest.mark.parametrize(
    "definition",
    [b"{", b"\xff", b"5", b'{"type":"record","name":"R","fields":5}', b'{"type":{"type":5}}', b'["int","int"]'],
)
def test_what_is_no_definition(definition: bytes) -> None:
    with pytest.raises(MalformedDefinition):
        parse(definition)


@pytest.mark.parametrize(
    "definition",
    [
        b'{"type":"string","doc":"' + b"x" * DEFINITION_BYTES + b'"}',
        b'{"type":"array","items":' * (DEPTH + 1) + b'"int"' + b"}" * (DEPTH + 1),
    ],
)
def test_bounds_of_a_definition(definition: bytes) -> None:
    with pytest.raises(TooComplex):
        parse(definition)


def union_of(prefix: str, records: int) -> list[dict[str, Any]]:
    """A union whose records have a field of another name each."""
    return [record({"name": f"f{n}", "type": "int"}, name=f"{prefix}{n}") for n in range(records)]


def test_a_comparison_has_a_bound_of_pairs() -> None:
    same, other = (parse(json.dumps(union_of(prefix, 30)).encode()) for prefix in "uv")
    assert not incompatibility(same, same, max_steps=200)
    assert not incompatibility(same, other, max_steps=2_000)
    with pytest.raises(TooComplex, match="more than 200 pairs"):
        incompatibility(same, other, max_steps=200)
