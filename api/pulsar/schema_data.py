"""Schemas as the protocol has them; what they mean is in api/broker/schemas.py."""

from __future__ import annotations

from api.pulsar.pulsar_api_pb2 import Schema
from storage.metadata.schemas import SchemaRecord

_VERSION_BYTES = 8


def has_schema(schema: Schema) -> bool:
    """Whether a client states one: bytes and `auto` are none."""
    return bool(schema.type) and schema.type != Schema.AutoConsume


def schema_record(schema: Schema) -> SchemaRecord:
    """A client's schema, of no version yet."""
    properties = {item.key: item.value for item in schema.properties}
    return SchemaRecord(-1, int(schema.type), schema.name, schema.schema_data, properties)


def schema_data(schema: SchemaRecord) -> Schema:
    """A schema as clients take it."""
    found = Schema(name=schema.name, schema_data=schema.data, type=Schema.Type.Name(schema.type))
    for key, value in schema.properties.items():
        found.properties.add(key=key, value=value)
    return found


def version_bytes(schema: SchemaRecord) -> bytes:
    """Its version: a number of 64 bits, the highest byte first."""
    return schema.version.to_bytes(_VERSION_BYTES, "big")


def version_of(data: bytes) -> int | None:
    """The version that a client asks for; None: the newest. One that no schema has: -1."""
    if not data:
        return None
    return int.from_bytes(data, "big") if len(data) == _VERSION_BYTES else -1
