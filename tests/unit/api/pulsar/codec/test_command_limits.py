"""Bounds of commands: complete for the protocol's definitions, checked before a large command is parsed."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from api.pulsar.codec import limits
from api.pulsar.codec.decoding import REQUESTS, decode_request
from api.pulsar.codec.limits import (
    LIMITS,
    BytesLimit,
    FieldLimit,
    ItemCountLimit,
    KeyValueBytesLimit,
    LimitExceeded,
    NestedMessageLimits,
    TextLimit,
)
from api.pulsar.frames import Frame, MalformedFrame
from api.pulsar.handlers.table import HANDLERS
from api.pulsar.pulsar_api_pb2 import BaseCommand, ServerError

SUBSCRIBE = {"topic": "t", "subscription": "s", "sub_type": 1, "consumer_id": 1, "request_id": 5}
SCHEMA = {"name": "n", "schema_data": b"", "type": 4}
UNBOUNDED = {"ack.message_id", "redeliver_unacknowledged_messages.message_ids"}
"""Items that are bounded by the bytes of their command alone."""


def unbounded(message: Any, bounds: Any, path: str) -> list[str]:
    """Fields of a message that may be large and have no bound of their kind."""
    missing = []
    for field in message.fields:
        bound: FieldLimit | None = bounds.get(field.name)
        where = f"{path}.{field.name}"
        if field.is_repeated:
            is_bound = isinstance(bound, KeyValueBytesLimit | ItemCountLimit)
        elif field.type == FieldDescriptor.TYPE_STRING:
            is_bound = isinstance(bound, TextLimit)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            is_bound = isinstance(bound, BytesLimit)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            nested = bound.fields if isinstance(bound, NestedMessageLimits) else {}
            if "first_chunk_message_id" not in path:  # of a chunk there is no other first one
                missing += unbounded(field.message_type, nested, where)
            is_bound = True
        else:
            is_bound = True
        if not is_bound:
            missing.append(where)
    return missing


def test_every_command_of_a_client_has_bounds() -> None:
    assert LIMITS.keys() == REQUESTS.keys()
    assert set(REQUESTS.values()) == HANDLERS.keys()


def test_every_field_that_may_be_large_has_a_bound() -> None:
    missing = []
    for kind, bounds in LIMITS.items():
        field = BaseCommand.DESCRIPTOR.fields_by_number[kind]
        missing += unbounded(field.message_type, bounds.fields, field.name)
    assert missing == []


def command(name: str, **fields: Any) -> BaseCommand:
    kind = {"lookup_topic": "LOOKUP", "partition_metadata": "PARTITIONED_METADATA"}.get(name, name.upper())
    return BaseCommand(type=BaseCommand.Type.Value(kind), **{name: fields})


def decode(sent: BaseCommand) -> Any:
    return decode_request(Frame(sent.type, sent.SerializeToString(), b""))


@pytest.mark.parametrize(
    ("sent", "reason", "error"),
    [
        (
            command("subscribe", **SUBSCRIBE, metadata=[{"key": "k", "value": "v" * 1_024}]),
            "SUBSCRIBE: metadata has 1025 bytes, and at most 1024 are allowed",
            ServerError.MetadataError,
        ),
        (
            command("subscribe", **SUBSCRIBE, subscription_properties=[{"key": "k", "value": "v" * (1 << 20)}]),
            "SUBSCRIBE: subscription_properties has 10485",
            ServerError.NotAllowedError,
        ),
        (
            command("subscribe", **SUBSCRIBE, metadata=[{"key": "", "value": ""}] * 500_000),
            "SUBSCRIBE: with metadata the command has more than 16384 bytes besides",
            ServerError.NotAllowedError,
        ),
        (
            command(
                "subscribe",
                **SUBSCRIBE,
                key_shared_meta={"mode": 1, "hash_ranges": [{"start": n, "end": n} for n in range(257)]},
            ),
            "SUBSCRIBE: key_shared_meta.hash_ranges has 257 items, and at most 256 are allowed",
            ServerError.NotAllowedError,
        ),
        (
            command("subscribe", **{**SUBSCRIBE, "start_message_rollback_duration_sec": 1 << 40}),
            "SUBSCRIBE: start_message_rollback_duration_sec is 1099511627776, and above 2147483647",
            ServerError.NotAllowedError,
        ),
        (
            command("get_or_create_schema", topic="t", request_id=5, schema={**SCHEMA, "schema_data": bytes(2 << 20)}),
            "GET_OR_CREATE_SCHEMA: schema.schema_data has 2097152 bytes, and at most 1048576 are allowed",
            ServerError.NotAllowedError,
        ),
        (
            command("lookup_topic", topic="a" * (5 << 20), request_id=5),
            "LOOKUP: topic has 5242880 bytes, and at most 1024 are allowed",
            ServerError.NotAllowedError,
        ),
    ],
    ids=lambda item: item.split(" ", 3)[1] if isinstance(item, str) else "",
)
def test_a_refusal_names_command_field_and_limit(sent: BaseCommand, reason: str, error: ServerError) -> None:
    with pytest.raises(LimitExceeded) as refused:
        decode(sent)
    assert refused.value.message.startswith(reason)
    assert (refused.value.error, refused.value.request_id) == (error, 5)


def test_a_large_command_is_refused_without_being_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = 0
    read = limits.read_field

    def counted(*arguments: Any) -> Any:
        nonlocal fields
        fields += 1
        return read(*arguments)

    monkeypatch.setattr(limits, "read_field", counted)
    for content in (b"\x52\x04\x0a\x00\x12\x00", b"\x62\x00", b"\x20\x01"):
        inner = content * (1 << 18)
        data = b"\x08\x04\x22" + _length(len(inner)) + inner
        fields = 0
        with pytest.raises(LimitExceeded):
            decode_request(Frame(BaseCommand.SUBSCRIBE, data, b""))
        assert fields <= limits.MAX_FIELDS + 10
    for data in (b"\x08\x04" * (1 << 20), b"\x08\x04" + b"\x22\x00" * (1 << 20)):
        fields = 0
        with pytest.raises(LimitExceeded):
            decode_request(Frame(BaseCommand.SUBSCRIBE, data, b""))
        assert fields <= limits.MAX_FIELDS + 10


def _length(size: int) -> bytes:
    return bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21))


def test_what_clients_send_passes() -> None:
    schema = {**SCHEMA, "schema_data": bytes(900_000)}
    for sent in (
        command("subscribe", **SUBSCRIBE, metadata=[{"key": "k", "value": "v" * 1_000}], schema=schema),
        command("ack", consumer_id=1, ack_type=0, message_id=[{"ledger_id": 1, "entry_id": n} for n in range(1_000)]),
        command("flow", consumer_id=1, message_permits=1_000),
        command("connect", client_version="c", auth_data=b"t" * limits.TOKEN_BYTES),
    ):
        assert isinstance(decode(sent), REQUESTS[sent.type])


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    data = b"\x08\x17\xba\x01\x06\x0a\x02\xff\xfe\x10\x05"
    with pytest.raises(LimitExceeded, match="LOOKUP: topic is not UTF-8"):
        decode_request(Frame(BaseCommand.LOOKUP, data, b""))


@pytest.mark.parametrize("data", [b"\x08\x04\x22" + b"\xff" * (1 << 20), b"\x08\x04" + b"\x80" * (1 << 20)])
def test_what_is_no_protobuf_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_request(Frame(BaseCommand.SUBSCRIBE, data, b""))
