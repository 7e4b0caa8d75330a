"""Bounds of every command that a client sends: its bytes, its texts, its repeated fields and its numbers.

A command is checked twice. Before it is parsed, its size is compared with the bound of its type. A large command is
walked on the wire, field by field and without a copy, so a command full of small fields costs no more than
`STRUCTURE_BYTES` of them. After it is parsed, each field is compared with its bound. A text must be UTF-8, which
protobuf does not check. Both refusals name the command, the field and the limit.

A bound that a Pulsar broker has, too, is the broker's (`maxConsumerMetadataSize`). A test compares the table with the
protocol's definitions: every text, byte string and repeated field needs a bound. Must not know: connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from google.protobuf.message import Message

from api.pulsar.errors import Refused, ServerError
from api.pulsar.pulsar_api_pb2 import BaseCommand

FIELDS: Mapping[int, str] = {
    number: field.name for number, field in BaseCommand.DESCRIPTOR.fields_by_number.items() if number > 1
}
"""The name of the field that holds the message of a command, by the number of the command's type."""
KINDS: Mapping[str, BaseCommand.Type] = {
    "".join(word.capitalize() for word in name.split("_")): cast(BaseCommand.Type, kind)
    for name, kind in BaseCommand.Type.items()
}
"""The type of a command, by the name of its class in requests.py or responses.py: LOOKUP_RESPONSE is LookupResponse."""
STRUCTURE_BYTES = 16 << 10
"""The size of a command without the bytes of a schema. A command up to this size is parsed without a walk."""
METADATA_BYTES = 1_024
"""Keys and values of the metadata of a producer or consumer, like Pulsar's maxConsumerMetadataSize."""
PROPERTIES_BYTES = 4 << 10
SCHEMA_BYTES = 1 << 20
TOKEN_BYTES = 16 << 10
NAME_BYTES = 1_024
"""The size of any name. A topic's name has three parts of 255 bytes each; Pulsar bounds no other name."""
PATTERN_BYTES = 1_024
HASH_RANGES = 256
MESSAGE_IDS = 50_000
"""Message ids in one ACK or REDELIVER; Pulsar's clients group 1,000 acknowledgements."""
ACK_SET_WORDS = 4_096
"""Numbers of 64 bits, one bit a message: the largest batch has 262,144 messages."""
CONNECT = int(BaseCommand.CONNECT)
CONNECT_BYTES = 20 << 10
"""The size of a CONNECT frame: a token and some texts."""
_UNGROUPED_BYTES = 256
_GROUPED_BYTES = 512 << 10
_INT32, _INT64 = (1 << 31) - 1, (1 << 63) - 1
_SCHEMA_PROPERTIES_BYTES = 4 << 10


_Violation = tuple[str, ServerError]
"""The reason and the protocol's error of a field beyond its limit."""


class FieldLimit(Protocol):
    """The limit of one protobuf field."""

    def violation(self, value: Any, path: str) -> _Violation | None:
        """Return the reason and the error if a value exceeds the limit, else None. `path`: the field in errors."""


@dataclass(frozen=True)
class TextLimit:
    """The maximum size in bytes of a text, which must be UTF-8."""

    limit: int = NAME_BYTES

    def violation(self, value: str | bytes, path: str) -> _Violation | None:
        if not isinstance(value, str):
            return f"{path} is not UTF-8", ServerError.NotAllowedError
        if len(value) <= self.limit // 4 or len(value.encode()) <= self.limit:
            return None
        return _size_violation(path, len(value.encode()), self.limit, "bytes")


@dataclass(frozen=True)
class BytesLimit:
    """The maximum size of a field of bytes."""

    limit: int

    def violation(self, value: bytes, path: str) -> _Violation | None:
        return None if len(value) <= self.limit else _size_violation(path, len(value), self.limit, "bytes")


@dataclass(frozen=True)
class NumberLimit:
    """The maximum of an unsigned number."""

    limit: int

    def violation(self, value: int, path: str) -> _Violation | None:
        if value <= self.limit:
            return None
        return f"{path} is {value}, and above {self.limit}", ServerError.NotAllowedError


@dataclass(frozen=True)
class KeyValueBytesLimit:
    """The maximum size of all keys and values of a field together."""

    limit: int
    error: ServerError = ServerError.NotAllowedError

    def violation(self, items: Iterable[Message], path: str) -> _Violation | None:
        size = 0
        for item in items:
            for part in ("key", "value"):
                text = getattr(item, part)
                if not isinstance(text, str):
                    return f"{path}.{part} is not UTF-8", ServerError.NotAllowedError
                size += len(text.encode())
        return None if size <= self.limit else _size_violation(path, size, self.limit, "bytes", self.error)


@dataclass(frozen=True)
class ItemCountLimit:
    """The maximum number of items of a repeated field."""

    limit: int

    def violation(self, items: Sequence[object], path: str) -> _Violation | None:
        return None if len(items) <= self.limit else _size_violation(path, len(items), self.limit, "items")


@dataclass(frozen=True)
class NestedMessageLimits:
    """The limits of the fields of a message inside a command."""

    fields: Mapping[str, FieldLimit]

    def violation(self, message: Message, path: str) -> _Violation | None:
        return _first_violation(message, self.fields, f"{path}.")


@dataclass(frozen=True)
class CommandLimits:
    """The limits of a type of command. `max_bytes`: its maximum size; None: a large one is checked field by field."""

    fields: Mapping[str, FieldLimit]
    max_bytes: int | None = None


_SCHEMA = NestedMessageLimits(
    {
        "name": TextLimit(),
        "schema_data": BytesLimit(SCHEMA_BYTES),
        "properties": KeyValueBytesLimit(_SCHEMA_PROPERTIES_BYTES),
    }
)
_MESSAGE_ID = NestedMessageLimits(
    {
        "ack_set": ItemCountLimit(ACK_SET_WORDS),
        "first_chunk_message_id": NestedMessageLimits({"ack_set": ItemCountLimit(ACK_SET_WORDS)}),
    }
)
_TOPIC: Mapping[str, FieldLimit] = {"topic": TextLimit()}
_ONLY_NUMBERS = CommandLimits({}, _UNGROUPED_BYTES)
_REQUEST = CommandLimits({})

LIMITS: Mapping[int, CommandLimits] = {
    BaseCommand.CONNECT: CommandLimits(
        {
            "client_version": TextLimit(),
            "auth_data": BytesLimit(TOKEN_BYTES),
            "auth_method_name": TextLimit(),
            "proxy_to_broker_url": TextLimit(),
            "original_principal": TextLimit(),
        },
        CONNECT_BYTES,
    ),
    BaseCommand.PING: _ONLY_NUMBERS,
    BaseCommand.PONG: _ONLY_NUMBERS,
    BaseCommand.LOOKUP: CommandLimits(
        {**_TOPIC, "original_principal": TextLimit(), "advertised_listener_name": TextLimit()},
    ),
    BaseCommand.PARTITIONED_METADATA: CommandLimits({**_TOPIC, "original_principal": TextLimit()}),
    BaseCommand.GET_TOPICS_OF_NAMESPACE: CommandLimits(
        {"namespace": TextLimit(), "topics_pattern": TextLimit(PATTERN_BYTES), "topics_hash": TextLimit()}
    ),
    BaseCommand.WATCH_TOPIC_LIST: CommandLimits(
        {"namespace": TextLimit(), "topics_pattern": TextLimit(PATTERN_BYTES), "topics_hash": TextLimit()}
    ),
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: _REQUEST,
    BaseCommand.PRODUCER: CommandLimits(
        {
            **_TOPIC,
            "producer_name": TextLimit(),
            "initial_subscription_name": TextLimit(),
            "metadata": KeyValueBytesLimit(METADATA_BYTES, ServerError.MetadataError),
            "schema": _SCHEMA,
        }
    ),
    BaseCommand.SEND: _ONLY_NUMBERS,
    BaseCommand.CLOSE_PRODUCER: _REQUEST,
    BaseCommand.SUBSCRIBE: CommandLimits(
        {
            **_TOPIC,
            "subscription": TextLimit(),
            "consumer_name": TextLimit(),
            "metadata": KeyValueBytesLimit(METADATA_BYTES, ServerError.MetadataError),
            "subscription_properties": KeyValueBytesLimit(PROPERTIES_BYTES),
            "schema": _SCHEMA,
            "start_message_id": _MESSAGE_ID,
            "start_message_rollback_duration_sec": NumberLimit(_INT32),
            "key_shared_meta": NestedMessageLimits({"hash_ranges": ItemCountLimit(HASH_RANGES)}),
        }
    ),
    BaseCommand.FLOW: CommandLimits({"message_permits": NumberLimit(_INT32)}, _UNGROUPED_BYTES),
    BaseCommand.ACK: CommandLimits({"message_id": ItemCountLimit(MESSAGE_IDS)}, _GROUPED_BYTES),
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: CommandLimits(
        {"message_ids": ItemCountLimit(MESSAGE_IDS)}, _GROUPED_BYTES
    ),
    BaseCommand.UNSUBSCRIBE: _REQUEST,
    BaseCommand.SEEK: CommandLimits({"message_id": _MESSAGE_ID, "message_publish_time": NumberLimit(_INT64)}),
    BaseCommand.CLOSE_CONSUMER: _REQUEST,
    BaseCommand.GET_LAST_MESSAGE_ID: _REQUEST,
    BaseCommand.CONSUMER_STATS: _REQUEST,
    BaseCommand.GET_SCHEMA: CommandLimits({**_TOPIC, "schema_version": BytesLimit(NAME_BYTES)}),
    BaseCommand.GET_OR_CREATE_SCHEMA: CommandLimits({**_TOPIC, "schema": _SCHEMA}),
    BaseCommand.AUTH_RESPONSE: CommandLimits(
        {
            "client_version": TextLimit(),
            "response": NestedMessageLimits({"auth_method_name": TextLimit(), "auth_data": BytesLimit(TOKEN_BYTES)}),
        },
        CONNECT_BYTES,
    ),
    BaseCommand.NEW_TXN: _REQUEST,
    BaseCommand.ADD_PARTITION_TO_TXN: _REQUEST,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: _REQUEST,
    BaseCommand.END_TXN: _REQUEST,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: _REQUEST,
}
"""Every command that a client may send. The ids in ACK and REDELIVER are bounded by the bytes of the command alone: a
check of each id would cost more than the parser."""


class LimitExceeded(Refused):
    """The refusal of a command that exceeds a limit. `request_id` None: no response is possible."""

    def __init__(self, kind: int, reason: str, request_id: int | None, error: ServerError) -> None:
        super().__init__(error, f"{BaseCommand.Type.Name(BaseCommand.Type.ValueType(kind))}: {reason}")
        self.request_id = request_id


class MalformedProtobuf(Exception):
    """The error of bytes that are not valid protobuf."""


def check_bytes(kind: int, data: bytes) -> None:
    """Check the size and the encoded fields of a command before it is parsed. `kind`: the number of its type.

    Raise LimitExceeded and MalformedProtobuf.
    """
    limits = LIMITS[kind]
    if limits.max_bytes is not None:
        if len(data) > limits.max_bytes:
            reason = f"the command has {len(data)} bytes, and at most {limits.max_bytes} are allowed"
            raise LimitExceeded(kind, reason, None, ServerError.NotAllowedError)
    elif len(data) > STRUCTURE_BYTES:
        _WireChecker(kind).check(memoryview(data))


def check_fields(kind: int, message: Message) -> None:
    """Check each field of a parsed command. `kind`: the number of its type. Raise LimitExceeded."""
    violation = _first_violation(message, LIMITS[kind].fields, "")
    if violation is not None:
        raise LimitExceeded(kind, violation[0], getattr(message, "request_id", None), violation[1])


def _first_violation(message: Message, fields: Mapping[str, FieldLimit], path: str) -> _Violation | None:
    """Return the violation of the first field that exceeds its limit; None: no field does."""
    for name, bound in fields.items():
        violation = bound.violation(getattr(message, name), path + name)
        if violation is not None:
            return violation
    return None


def _size_violation(
    path: str, count: int, limit: int, unit: str, error: ServerError = ServerError.NotAllowedError
) -> _Violation:
    return f"{path} has {count} {unit}, and at most {limit} are allowed", error


_FIELD_BYTES = 8
"""The size that a field counts besides its content, because even an empty field takes time to read."""
MAX_FIELDS = STRUCTURE_BYTES // _FIELD_BYTES
_PAIR_BYTES = 16
"""The largest overhead of a key and its value on the wire while both are small."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class _WireChecker:
    """A check of the encoded fields of a large command before it is parsed, up to `MAX_FIELDS` fields."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._structure = self._fields = 0
        self._violation: _Violation | None = None
        self._request_id: int | None = None

    def check(self, data: memoryview) -> None:
        """Check an encoded command. Raise LimitExceeded and MalformedProtobuf."""
        at = 0
        while at < len(data):
            number, at, size, _ = read_field(data, at)
            if number == self._kind and size is not None:
                self._count_field(0, f"field {number}")
                parent = BaseCommand.DESCRIPTOR.fields_by_number[number]
                self._check_message(data[at : at + size], parent, LIMITS[number].fields, "")
            else:
                self._count_field(size or 0, f"field {number}")
            at += size or 0
            if self._may_stop:
                break
        if self._violation is not None:
            reason, error = self._violation
            raise LimitExceeded(self._kind, reason, self._request_id, error)

    @property
    def _may_stop(self) -> bool:
        """Return whether the check may stop: a violation is known, and the request id unless fields are too many."""
        return self._violation is not None and (self._request_id is not None or self._fields > MAX_FIELDS)

    def _check_message(self, data: memoryview, parent: Any, bounds: Mapping[str, FieldLimit], path: str) -> None:
        at = 0
        while at < len(data) and not self._may_stop:
            number, at, size, value = read_field(data, at)
            field = parent.message_type.fields_by_number.get(number)
            name = path + (f"field {number}" if field is None else field.name)
            bound = None if field is None else bounds.get(field.name)
            if size is None:
                self._count_field(0, name)
                if name == "request_id":
                    self._request_id = value
                continue
            if isinstance(bound, BytesLimit):
                self._count_field(0, name)
                if size > bound.limit:
                    self._violation = self._violation or _size_violation(name, size, bound.limit, "bytes")
            elif isinstance(bound, NestedMessageLimits):
                self._count_field(0, name)
                self._check_message(data[at : at + size], field, bound.fields, f"{name}.")
            else:
                if isinstance(bound, TextLimit | KeyValueBytesLimit) and size > bound.limit + _PAIR_BYTES:
                    error = bound.error if isinstance(bound, KeyValueBytesLimit) else ServerError.NotAllowedError
                    self._violation = self._violation or _size_violation(name, size, bound.limit, "bytes", error)
                self._count_field(size, name)
            at += size

    def _count_field(self, size: int, name: str) -> None:
        self._structure += size + _FIELD_BYTES
        self._fields += 1
        if self._structure > STRUCTURE_BYTES and self._violation is None:
            reason = f"with {name} the command has more than {STRUCTURE_BYTES} bytes besides those of a schema"
            self._violation = reason, ServerError.NotAllowedError


class WireField(NamedTuple):
    """An encoded field of protobuf. `start`, `size`: the position and length of its content.

    For a varint, `start` is the position after it, `size` is None, and `varint` is its value; otherwise that is 0.
    """

    number: int
    start: int
    size: int | None
    varint: int


def read_field(data: memoryview, at: int) -> WireField:
    """Return the encoded protobuf field that begins at position `at`. Raise MalformedProtobuf."""
    tag, at = _read_varint(data, at)
    number, wire_type = tag >> 3, tag & 7
    if wire_type == _VARINT:
        value, at = _read_varint(data, at)
        return WireField(number, at, None, value)
    if wire_type == _LENGTH:
        size, at = _read_varint(data, at)
    else:
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type, len(data))
    if at + size > len(data):
        raise MalformedProtobuf
    return WireField(number, at, size, 0)


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    end = min(len(data), at + _LONGEST_VARINT)
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MalformedProtobuf
