"""Decoding of a payload by the schema of its topic, for display.

    AVRO                            the value, as JSON
    BOOLEAN, INT8 to DOUBLE         a number, in the byte order of Pulsar's clients
    DATE to LOCAL_DATE_TIME         a date or time, in ISO 8601, UTC
    KEY_VALUE                       both parts by their own types; of SEPARATED encoding the key is the message's
    JSON, STRING, NONE, BYTES       texts and bytes describe themselves
    PROTOBUF, PROTOBUF_NATIVE       not decoded

Definitions and payloads come from clients: a definition is parsed up to `DEFINITION_BYTES`, and `avro_values.py` bounds
the values. Pure.

Sources: the schemas of Pulsar's Java client (`org.apache.pulsar.client.impl.schema`), KeyValueSchemaInfo.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from api.broker import avro_resolution, avro_values
from api.broker.avro_resolution import MalformedDefinition, TooComplex
from api.broker.avro_values import MalformedValue
from api.broker.schema_compatibility import split_parts
from api.broker.schemas import type_name
from storage.metadata.schemas import SchemaRecord

DEFINITION_BYTES = 64 << 10
SELF_DESCRIBED = ("NONE", "BYTES", "STRING", "JSON")
"""Types whose payload is shown as it is."""
_LENGTH = struct.Struct(">i")
_NANOS = 10**9


class NotDecoded(ValueError):
    """A payload cannot be decoded by its schema. The message names the reason."""


def decode_to_text(schema: SchemaRecord, payload: bytes, key: bytes | None) -> str:
    """Decode a payload by its schema to a text for display: a string itself, any other value as indented JSON.

    `key`: the message's key, for a KEY_VALUE schema of SEPARATED encoding; None: it has none. Raise NotDecoded.
    """
    value = decode_to_value(schema, payload, key)
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def decode_to_value(schema: SchemaRecord, payload: bytes, key: bytes | None) -> Any:
    """Decode a payload by its schema to a Python value that JSON can hold. Raise NotDecoded.

    `key`: the message's key, for a KEY_VALUE schema of SEPARATED encoding; None: it has none.
    """
    try:
        return _decode_value(type_name(schema.type), schema.data, schema.properties, payload, key)
    except (MalformedValue, MalformedDefinition, TooComplex, struct.error, ValueError, OverflowError) as error:
        raise NotDecoded(str(error)[:500]) from error
    except RecursionError as error:
        raise NotDecoded("its definition is nested too deep") from error


def _decode_value(
    kind: str, definition: bytes, properties: Mapping[str, str], payload: bytes, key: bytes | None
) -> Any:
    if kind == "AVRO":
        return avro_values.decode(_parse_definition(definition), payload)
    if kind == "KEY_VALUE":
        return _decode_key_value(definition, properties, payload, key)
    if kind in SELF_DESCRIBED:
        return payload.decode()
    if kind not in _FIXED:
        raise NotDecoded(f"values of type {kind} are not decoded here")
    layout, convert = _FIXED[kind]
    if len(payload) != layout.size:
        raise NotDecoded(f"it has {len(payload)} bytes, and a value of type {kind} has {layout.size}")
    return convert(*layout.unpack(payload))


def _parse_definition(definition: bytes) -> Any:
    if len(definition) > DEFINITION_BYTES:
        raise NotDecoded(f"its definition has {len(definition):,} bytes, and {DEFINITION_BYTES:,} are read here")
    return avro_resolution.parse(definition)


def _decode_key_value(definition: bytes, properties: Mapping[str, str], payload: bytes, key: bytes | None) -> Any:
    definitions = dict(zip(("key", "value"), split_parts(definition), strict=True))
    if properties.get("kv.encoding.type") == "SEPARATED":
        parts: dict[str, bytes | None] = {"key": key, "value": payload}
    else:
        key_part, rest = _split_part(payload)
        value_part, rest = _split_part(rest)
        if rest:
            raise NotDecoded(f"{len(rest)} bytes follow key and value")
        parts = {"key": key_part, "value": value_part}
    return {name: _decode_part(name, definitions[name], properties, data) for name, data in parts.items()}


def _decode_part(name: str, definition: bytes, properties: Mapping[str, str], data: bytes | None) -> Any:
    kind = properties.get(f"{name}.schema.type") or "BYTES"
    if kind == "KEY_VALUE":
        raise NotDecoded(f"its {name} is a pair itself")
    if data is None:
        return None
    return data.decode("latin-1") if kind == "BYTES" else _decode_value(kind, definition, {}, data, None)


def _split_part(data: bytes) -> tuple[bytes | None, bytes]:
    """Split off the first part of an INLINE key-value payload: return it, or None for the length -1, and the rest."""
    (length,) = _LENGTH.unpack_from(data)
    rest = data[_LENGTH.size :]
    if length == -1:
        return None, rest
    if not 0 <= length <= len(rest):
        raise NotDecoded("it ends before its parts do")
    return rest[:length], rest[length:]


def _timestamp_text(milliseconds: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds")


def _instant_text(seconds: int, nanoseconds: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}+00:00"


def _date_text(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def _time_text(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, _NANOS)
    minutes, second = divmod(seconds, 60)
    return f"{time(minutes // 60, minutes % 60, second)}.{fraction:09}"


def _identity(value: Any) -> Any:
    return value


_FIXED: Mapping[str, tuple[struct.Struct, Callable[..., Any]]] = {
    "BOOLEAN": (struct.Struct(">?"), _identity),
    "INT8": (struct.Struct(">b"), _identity),
    "INT16": (struct.Struct(">h"), _identity),
    "INT32": (struct.Struct(">i"), _identity),
    "INT64": (struct.Struct(">q"), _identity),
    "FLOAT": (struct.Struct(">f"), _identity),
    "DOUBLE": (struct.Struct(">d"), _identity),
    "DATE": (struct.Struct(">q"), _timestamp_text),
    "TIME": (struct.Struct(">q"), _timestamp_text),
    "TIMESTAMP": (struct.Struct(">q"), _timestamp_text),
    "INSTANT": (struct.Struct(">qi"), _instant_text),
    "LOCAL_DATE": (struct.Struct(">q"), _date_text),
    "LOCAL_TIME": (struct.Struct(">q"), _time_text),
    "LOCAL_DATE_TIME": (struct.Struct(">qq"), lambda days, nanos: f"{_date_text(days)}T{_time_text(nanos)}"),
}
