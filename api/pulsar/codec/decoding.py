"""Frames become requests.

A command is checked against its bounds (limits.py) before it is parsed and again after, and must hold the message that
its type promises. What no client of the protocol sends raises MalformedFrame; a command beyond its bounds raises
LimitExceeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from google.protobuf.message import DecodeError

from api.broker.serving.acknowledging import AckedEntry
from api.pulsar.codec import limits, requests
from api.pulsar.frames import Frame, MalformedFrame
from api.pulsar.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandFlow,
    CommandGetSchema,
    CommandRedeliverUnacknowledgedMessages,
    CommandSend,
    CommandSubscribe,
    KeySharedMeta,
    KeyValue,
    MessageIdData,
    Schema,
)
from storage.metadata.schemas import SchemaRecord
from storage.model import MessageId

_SIGN = 1 << 63
_SCHEMA_VERSION_BYTES = 8


def decode_request(frame: Frame) -> Any:
    """Decode a frame. Return its request, an instance of a class of requests.py.

    Raise MalformedFrame for a frame without a valid command, and LimitExceeded for a command beyond its limits.
    """
    kind, data, entry = frame
    field = limits.FIELDS[kind]
    try:
        limits.check_bytes(kind, data)
        command = BaseCommand.FromString(data)
    except (DecodeError, limits.MalformedProtobuf) as error:
        raise MalformedFrame("a frame that holds no command") from error
    if command.type != kind or not command.HasField(field) or not command.IsInitialized():
        raise MalformedFrame("a command without a required field")
    message = getattr(command, field)
    limits.check_fields(kind, message)
    return _MAKERS[kind](message, entry)


def _decoder_by_field_names(request: type) -> Callable[[Any, bytes], Any]:
    """Return a function that converts a protobuf message to the class `request`, by the names of its fields."""
    names = [field.name for field in fields(request)]
    read = [_READERS.get(name) or attrgetter(name) for name in names]

    def make(message: Any, _: bytes) -> Any:
        return request(*[reader(message) for reader in read])

    return make


def _optional_field_reader(name: str, convert: Callable[[Any], Any] = lambda value: value) -> Callable[[Any], Any]:
    """Return a function that reads and converts a protobuf field, and returns None if the client left it out."""
    return lambda message: convert(getattr(message, name)) if message.HasField(name) else None


def _key_values_to_dict(items: Iterable[KeyValue]) -> dict[str, str]:
    return {item.key: item.value for item in items}


def _schema_record(schema: Schema) -> SchemaRecord:
    """Convert a protobuf schema to a record without a version yet (-1)."""
    return SchemaRecord(-1, int(schema.type), schema.name, schema.schema_data, _key_values_to_dict(schema.properties))


def _schema_version(message: CommandGetSchema) -> int | None:
    """Return the version that a client asks for; None: the newest; -1: bytes that are no version."""
    data = message.schema_version
    if not data:
        return None
    return int.from_bytes(data, "big") if len(data) == _SCHEMA_VERSION_BYTES else -1


def _message_id(data: MessageIdData) -> MessageId:
    return MessageId(
        _to_signed_int64(data.ledger_id), _to_signed_int64(data.entry_id), data.partition, data.batch_index
    )


def _to_signed_int64(number: int) -> int:
    """Convert a uint64 of the protocol to the signed number that Java clients mean."""
    return number - 2 * _SIGN if number >= _SIGN else number


def _sticky_ranges(message: CommandSubscribe) -> tuple[tuple[int, int], ...] | None:
    meta = message.key_shared_meta
    if not message.HasField("key_shared_meta") or meta.mode != KeySharedMeta.Sticky:
        return None
    return tuple((item.start, item.end) for item in meta.hash_ranges)


def _entries_to_redeliver(message: CommandRedeliverUnacknowledgedMessages) -> list[tuple[int, int]]:
    return [(item.ledger_id, item.entry_id) for item in message.message_ids]


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "consumer_epoch": _optional_field_reader("consumer_epoch"),
    "entries": _entries_to_redeliver,
    "message_id": _optional_field_reader("message_id", _message_id),
    "metadata": lambda message: _key_values_to_dict(message.metadata),
    "schema": _optional_field_reader("schema", _schema_record),
    "schema_version": _schema_version,
    "start_message_id": _optional_field_reader("start_message_id", _message_id),
    "sticky_ranges": _sticky_ranges,
    "supports_repl_dedup_by_lid_and_eid": lambda message: message.feature_flags.supports_repl_dedup_by_lid_and_eid,
    "subscription_properties": lambda message: _key_values_to_dict(message.subscription_properties),
    "topic_epoch": _optional_field_reader("topic_epoch"),
}
"""The fields whose values are not those of their message's field of the same name."""


def _decode_send(message: CommandSend, entry: bytes) -> requests.Send:
    return requests.Send(
        message.producer_id,
        message.sequence_id,
        message.highest_sequence_id,
        message.num_messages,
        bool(message.txnid_most_bits or message.txnid_least_bits or message.marker),
        entry,
    )


class _LazyAckedEntries:
    """The message ids of an ACK as a sequence of AckedEntry. A slice is converted when it is read."""

    def __init__(self, ids: Sequence[MessageIdData]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, part: slice) -> list[AckedEntry]:
        return [
            AckedEntry(
                item.ledger_id, item.entry_id, item.batch_index if item.HasField("batch_index") else -1, item.ack_set
            )
            for item in self._ids[part]
        ]


def _decode_ack(message: CommandAck, _: bytes) -> requests.Ack:
    return requests.Ack(
        message.consumer_id,
        message.request_id if message.HasField("request_id") else None,
        message.ack_type == CommandAck.Cumulative,
        bool(message.txnid_most_bits or message.txnid_least_bits),
        _LazyAckedEntries(message.message_id),
    )


def _decode_flow(message: CommandFlow, _: bytes) -> requests.Flow:
    return requests.Flow(message.consumer_id, message.message_permits)


REQUESTS: Mapping[int, type] = {
    kind: getattr(requests, name) for name, kind in limits.KINDS.items() if kind in limits.LIMITS
}
"""The requests that a client may send, by the number of their type."""
_MAKERS: Mapping[int, Callable[[Any, bytes], Any]] = {
    **{
        kind: _decoder_by_field_names(request)
        for kind, request in REQUESTS.items()
        if issubclass(request, requests.Command)
    },
    BaseCommand.SEND: _decode_send,
    BaseCommand.FLOW: _decode_flow,
    BaseCommand.ACK: _decode_ack,
}
