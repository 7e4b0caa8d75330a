"""Payloads by the schema of their topic, as Pulsar's clients encode them."""

from __future__ import annotations

import json
import struct

import pytest

from api.broker.schema_compatibility import SchemaType, join_parts
from api.broker.schema_values import DEFINITION_BYTES, NotDecoded, decode_to_text
from storage.metadata.schemas import SchemaRecord


def schema(kind: str, data: bytes = b"", **properties: str) -> SchemaRecord:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return SchemaRecord(0, int(SchemaType[kind]), "s", data, named)


@pytest.mark.parametrize(
    ("kind", "payload", "text"),
    [
        ("BOOLEAN", b"\x01", "true"),
        ("INT8", b"\xff", "-1"),
        ("INT16", struct.pack(">h", -2), "-2"),
        ("INT32", struct.pack(">i", 70_000), "70000"),
        ("INT64", struct.pack(">q", -(2**63)), str(-(2**63))),
        ("FLOAT", struct.pack(">f", 0.5), "0.5"),
        ("DOUBLE", struct.pack(">d", 0.1), "0.1"),
        ("TIMESTAMP", struct.pack(">q", 1_700_000_000_123), "2023-11-14T22:13:20.123+00:00"),
        ("INSTANT", struct.pack(">qi", 1_700_000_000, 5), "2023-11-14T22:13:20.000000005+00:00"),
        ("LOCAL_DATE", struct.pack(">q", 19_675), "2023-11-14"),
        ("LOCAL_TIME", struct.pack(">q", 3_600_000_000_001), "01:00:00.000000001"),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 0, 1), "1970-01-01T00:00:00.000000001"),
        ("STRING", "ä".encode(), "ä"),
    ],
)
def test_primitive_types(kind: str, payload: bytes, text: str) -> None:
    assert decode_to_text(schema(kind), payload, None) == text


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        ("INT32", b"123", "it has 3 bytes"),
        ("TIMESTAMP", b"\x7f" * 8, "."),
        ("LOCAL_TIME", b"\x7f" * 8, "."),
        ("INSTANT", b"\x7f" * 12, "."),
        ("PROTOBUF_NATIVE", b"x", "PROTOBUF_NATIVE are not decoded"),
        ("STRING", b"\xff", "utf-8"),
        ("AVRO", b"x", "."),
        ("KEY_VALUE", b"x", "."),
    ],
)
def test_other_payloads_are_not_decoded(kind: str, payload: bytes, reason: str) -> None:
    with pytest.raises(NotDecoded, match=reason):
        decode_to_text(schema(kind), payload, None)


def test_an_avro_record() -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    definition = json.dumps(record).encode()
    assert json.loads(decode_to_text(schema("AVRO", definition), b"\x06abc", None)) == {"a": "abc"}
    with pytest.raises(NotDecoded, match=f"{len(definition) + DEFINITION_BYTES:,} bytes"):
        decode_to_text(schema("AVRO", definition + b" " * DEFINITION_BYTES), b"\x06abc", None)


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_a_key_and_a_value(encoding: str) -> None:
    definition = join_parts(b"", b'"int"')
    pair = schema(
        "KEY_VALUE", definition, key_schema_type="STRING", value_schema_type="AVRO", kv_encoding_type=encoding
    )
    payload = b"\x00\x00\x00\x01k\x00\x00\x00\x01\x54" if encoding == "INLINE" else b"\x54"
    assert json.loads(decode_to_text(pair, payload, b"k")) == {"key": "k", "value": 42}
    if encoding == "INLINE":
        empty = b"\x00\x00\x00\x01k" + b"\xff" * 4
        assert json.loads(decode_to_text(pair, empty, None)) == {"key": "k", "value": None}
        for damaged in (payload[:-1], payload + b"x", b"\x7f"):
            with pytest.raises(NotDecoded):
                decode_to_text(pair, damaged, None)
