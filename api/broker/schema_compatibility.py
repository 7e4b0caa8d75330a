"""Compatibility of two versions of a schema, by type, as Pulsar's broker decides it.

    AVRO, JSON, PROTOBUF   the definition is Avro's (`avro_resolution.py`)
    PROTOBUF_NATIVE        the full name of the root message stays the same
    KEY_VALUE              the types of key and value stay the same, and each follows by the rules of its type
    all others             always compatible

Source: `SchemaCompatibilityCheck` and its classes, `SchemaDataValidator`. Definitions come from clients and may be
anything; a comparison is bounded, and is one call without input or output, so that it can run in a process of its own
(`schema_processes.py`). Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from api.broker import avro_resolution
from api.broker.avro_resolution import STEPS, MalformedDefinition, TooComplex


class SchemaType(IntEnum):
    """Pulsar's types of schemas, by their numbers in its protocol and their names in its admin REST API."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20


AVRO_DEFINED = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
"""Types whose definition is Avro's."""
DEFINED = AVRO_DEFINED | {SchemaType.PROTOBUF_NATIVE, SchemaType.KEY_VALUE}
"""Types whose definition is read."""
_LENGTH = struct.Struct(">i")


@dataclass(frozen=True)
class Definition:
    """The part of a schema that a comparison needs. `type`: the name of a member of SchemaType, or BYTES."""

    type: str
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """A comparison of the version `new` with an earlier one, `old`; without `old`, a check that `new` is a definition.

    `new_reads_old`: a reader with `new` must read data of `old`; `old_reads_new`: the reverse.
    """

    new: Definition
    old: Definition | None = None
    new_reads_old: bool = True
    old_reads_new: bool = False

    @property
    def size(self) -> int:
        """Return the number of bytes of both definitions."""
        return len(self.new.data) + (0 if self.old is None else len(self.old.data))


def incompatibility(comparison: Comparison, max_steps: int = STEPS) -> str:
    """Return the reason why the new version of a schema is incompatible with the old one; empty: it is compatible.

    `max_steps`: the limit of compared pairs of types. Raises MalformedDefinition if the new version cannot be parsed,
    TooComplex, RecursionError.
    """
    new, old = comparison.new, comparison.old
    if old is not None and new.type != old.type:
        return f"it is of type {old.type}, the new one of type {new.type}"
    match new.type:
        case "AVRO" | "JSON" | "PROTOBUF":
            return _avro_incompatibility(comparison, max_steps)
        case "PROTOBUF_NATIVE":
            return _protobuf_incompatibility(new, old)
        case "KEY_VALUE":
            return _key_value_incompatibility(comparison, max_steps)
    return ""


def _avro_incompatibility(comparison: Comparison, max_steps: int) -> str:
    new = avro_resolution.parse(comparison.new.data)
    if comparison.old is None:
        return ""
    try:
        old = avro_resolution.parse(comparison.old.data)
    except MalformedDefinition as error:
        return f"the stored definition is not Avro: {error}"
    except TooComplex as error:
        raise TooComplex(f"the stored one cannot be compared: {error}") from error
    if comparison.new_reads_old and (problem := avro_resolution.incompatibility(new, old, max_steps)):
        return f"the new one cannot read what it describes: {problem}"
    if comparison.old_reads_new and (problem := avro_resolution.incompatibility(old, new, max_steps)):
        return f"it cannot read what the new one describes: {problem}"
    return ""


def _protobuf_incompatibility(new: Definition, old: Definition | None) -> str:
    root = _root_message_name(new.data)
    if old is None:
        return ""
    try:
        before = _root_message_name(old.data)
    except MalformedDefinition as error:
        return f"the stored definition is not Protobuf: {error}"
    return "" if root == before else f"its root message is {before[:100]}, that of the new one {root[:100]}"


def _root_message_name(data: bytes) -> str:
    """Return the full name of the root message of a ProtobufNativeSchemaData. Raises MalformedDefinition."""
    if len(data) > avro_resolution.DEFINITION_BYTES:
        raise TooComplex(f"it has {len(data)} bytes, and {avro_resolution.DEFINITION_BYTES} are allowed")
    try:
        content = json.loads(data)
        name, files = content["rootMessageTypeName"], content["fileDescriptorSet"]
        base64.b64decode(files, validate=True)
    except (ValueError, binascii.Error, KeyError, TypeError) as error:
        raise MalformedDefinition("it has no rootMessageTypeName, or no fileDescriptorSet in base64") from error
    if not isinstance(name, str) or not name:
        raise MalformedDefinition("its rootMessageTypeName is no name")
    return name


def _key_value_incompatibility(comparison: Comparison, max_steps: int) -> str:
    new = _key_and_value_definitions(comparison.new)
    try:
        old = {} if comparison.old is None else _key_and_value_definitions(comparison.old)
    except MalformedDefinition as error:
        return f"the stored definition is not that of key and value: {error}"
    for name, part in new.items():
        question = Comparison(part, old.get(name), comparison.new_reads_old, comparison.old_reads_new)
        try:
            problem = "" if part.type == "KEY_VALUE" else incompatibility(question, max_steps)
        except MalformedDefinition as error:
            raise MalformedDefinition(f"its {name}: {error}") from error
        if problem:
            return f"its {name}: {problem}"
    return ""


def _key_and_value_definitions(schema: Definition) -> dict[str, Definition]:
    """Return the definitions `key` and `value` of a KEY_VALUE schema. Raises MalformedDefinition."""
    return {
        name: Definition(schema.properties.get(f"{name}.schema.type") or "BYTES", data)
        for name, data in zip(("key", "value"), split_parts(schema.data), strict=True)
    }


def split_parts(data: bytes) -> tuple[bytes, bytes]:
    """Split the bytes of a KEY_VALUE schema into the definitions of key and value. Raises MalformedDefinition.

    Each definition follows its length in four bytes.
    """
    key, rest = _split_part(data, "key")
    value, _ = _split_part(rest, "value")
    return key, value


def join_parts(key: bytes, value: bytes) -> bytes:
    """Join the definitions of key and value to the bytes of a KEY_VALUE schema, as `split_parts` reads them."""
    return _LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value


def _split_part(data: bytes, name: str) -> tuple[bytes, bytes]:
    """Return the definition at the start of `data`, after its length in four bytes; and the rest of `data`."""
    start = _LENGTH.size
    length = _LENGTH.unpack_from(data)[0] if len(data) >= start else -1
    if not 0 <= length <= len(data) - start:
        raise MalformedDefinition(f"it ends before the definition of its {name}")
    return data[start : start + length], data[start + length :]
