"""Which schema may follow which, by Pulsar's strategies."""

from __future__ import annotations

import json

import pytest

from api.gateway.pulsar_api_pb2 import Schema
from api.messaging.schemas import IncompatibleSchema, InvalidSchema, SchemaType, check_follows
from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName

TOPIC = TopicName.parse("t")


def avro(version: int, *fields: dict[str, object]) -> SchemaRecord:
    data = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "int"}, *fields]}
    return SchemaRecord(version, SchemaType.AVRO, "User", json.dumps(data).encode())


FIRST = avro(0)
OPTIONAL = avro(1, {"name": "town", "type": ["null", "string"], "default": None})
REQUIRED = avro(1, {"name": "town", "type": "string"})
TEXT = SchemaRecord(1, SchemaType.STRING, "text", b"")


def may_follow(strategy: str, new: SchemaRecord, *before: SchemaRecord) -> bool:
    try:
        check_follows(TOPIC, new, before, strategy)
    except (IncompatibleSchema, InvalidSchema):
        return False
    return True


@pytest.mark.parametrize(
    ("strategy", "optional", "required", "back", "text"),
    [
        ("ALWAYS_COMPATIBLE", True, True, True, True),
        ("ALWAYS_INCOMPATIBLE", False, False, False, False),
        ("FULL", True, False, False, False),
        ("UNDEFINED", True, False, False, False),
        ("FULL_TRANSITIVE", True, False, False, False),
        ("BACKWARD", True, False, True, False),
        ("BACKWARD_TRANSITIVE", True, False, True, False),
        ("FORWARD", True, True, False, False),
        ("FORWARD_TRANSITIVE", True, True, False, False),
    ],
)
def test_each_strategy(strategy: str, optional: bool, required: bool, back: bool, text: bool) -> None:
    assert may_follow(strategy, OPTIONAL, FIRST) is optional
    assert may_follow(strategy, REQUIRED, FIRST) is required
    assert may_follow(strategy, FIRST, REQUIRED) is back
    assert may_follow(strategy, TEXT, FIRST) is text
    assert may_follow(strategy, REQUIRED)


def test_what_is_no_definition_is_refused() -> None:
    assert not may_follow("FULL", SchemaRecord(-1, SchemaType.AVRO, "x", b"{"))


def test_transitive_strategies_ask_all_versions() -> None:
    newest = avro(2, {"name": "town", "type": "string", "default": ""})
    assert may_follow("BACKWARD", newest, avro(0, {"name": "town", "type": "int"}), FIRST)
    assert not may_follow("BACKWARD_TRANSITIVE", newest, avro(0, {"name": "town", "type": "int"}), FIRST)


def test_types_are_those_of_the_protocol() -> None:
    protocol = {number: name.lower() for name, number in Schema.Type.items() if name != "AutoConsume"}
    ours = {item.value: item.name.replace("_", "").lower() for item in SchemaType}
    assert protocol | {0: "none", 5: "boolean", 15: "keyvalue"} == ours
