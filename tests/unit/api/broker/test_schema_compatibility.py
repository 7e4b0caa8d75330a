"""The schemas that may follow a schema, by type."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from api.broker.avro_resolution import MalformedDefinition
from api.broker.schema_compatibility import Comparison, Definition, SchemaType, incompatibility, join_parts, split_parts
from api.pulsar.pulsar_api_pb2 import Schema


def avro(*fields: str, required: bool = False) -> bytes:
    kind: dict[str, Any] = {"type": "string"} if required else {"type": ["null", "string"], "default": None}
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": name, **kind} for name in fields]}).encode()


def native(root: str) -> bytes:
    files = base64.b64encode(b"x").decode()
    content = {"fileDescriptorSet": files, "rootMessageTypeName": root, "rootFileDescriptorName": "f"}
    return json.dumps(content).encode()


def pair(key: bytes, value: bytes, kinds: tuple[str, str] = ("AVRO", "AVRO")) -> Definition:
    properties = {f"{name}.schema.type": kind for name, kind in zip(("key", "value"), kinds, strict=True)}
    return Definition("KEY_VALUE", join_parts(key, value), properties)


def follows(new: Definition, old: Definition) -> bool:
    return not incompatibility(Comparison(new, old, old_reads_new=True))


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_definitions_of_avro_may_gain_an_optional_field(kind: str) -> None:
    old = Definition(kind, avro("a"))
    assert follows(Definition(kind, avro("a", "b")), old)
    assert not follows(Definition(kind, avro("a", "b", required=True)), old)


def test_key_and_value_follow_by_the_rules_of_their_types() -> None:
    old = pair(avro("a"), avro("x"))
    assert follows(pair(avro("a"), avro("x", "y")), old)
    assert follows(pair(avro("a", "b"), avro("x")), old)
    assert not follows(pair(avro("a"), avro("x", "y", required=True)), old)
    assert "its key: it is of type AVRO" in incompatibility(Comparison(pair(b"", avro("x"), ("STRING", "AVRO")), old))
    assert follows(pair(b"", avro("x", "y"), ("STRING", "JSON")), pair(b"", avro("x"), ("STRING", "JSON")))


def test_the_root_message_of_protobuf_stays() -> None:
    old = Definition("PROTOBUF_NATIVE", native("shop.Order"))
    assert follows(Definition("PROTOBUF_NATIVE", native("shop.Order") + b" "), old)
    assert not follows(Definition("PROTOBUF_NATIVE", native("shop.Invoice")), old)


def test_other_types_keep_their_type() -> None:
    assert follows(Definition("STRING", b""), Definition("STRING", b"old"))
    assert not follows(Definition("INT32", b""), Definition("STRING", b""))


@pytest.mark.parametrize(
    "schema",
    [
        Definition("AVRO", b"{"),
        Definition("PROTOBUF", b"syntax"),
        Definition("PROTOBUF_NATIVE", b"{}"),
        Definition("PROTOBUF_NATIVE", b"5"),
        Definition("KEY_VALUE", b"\0\0\0\x05abc"),
        Definition("KEY_VALUE", b"\xff\xff\xff\xff"),
        pair(b"{", b"", ("AVRO", "STRING")),
    ],
)
def test_a_malformed_definition(schema: Definition) -> None:
    with pytest.raises(MalformedDefinition):
        incompatibility(Comparison(schema))
    valid = pair(avro("a"), b"", ("AVRO", "STRING")) if schema.type == "KEY_VALUE" else Definition(schema.type, avro())
    if schema.type in ("AVRO", "PROTOBUF", "KEY_VALUE"):
        assert "the stored definition is not" in incompatibility(Comparison(valid, schema)) or schema.properties


def test_parts_are_joined_and_split() -> None:
    assert split_parts(join_parts(b"key", b"")) == (b"key", b"")


def test_types_are_those_of_the_protocol() -> None:
    protocol = {number: name.lower() for name, number in Schema.Type.items() if name != "AutoConsume"}
    names = {item.value: item.name.replace("_", "").lower() for item in SchemaType}
    assert protocol | {0: "none", 5: "boolean", 15: "keyvalue"} == names
