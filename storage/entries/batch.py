"""The messages of one batch: its uncompressed bytes become lists with one value for each message.

    for each message: size, SingleMessageMetadata, payload

Every batched message passes this loop once, so it parses the layout that producers write by hand: properties, then a
key, each shorter than 128 bytes, then fields that are numbers. Any other layout (a longer key, a field of another kind,
an unknown one, another order) goes to protobuf, and a property test holds the two equal.

Raises Undecodable and nothing else, for any bytes. A batch is all or nothing.

Must not know: entries, offsets, Arrow.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from struct import error as StructError  # noqa: N812

from google.protobuf.message import DecodeError

from storage.entries.compression import Undecodable
from storage.entries.entry import U32, decode_key
from storage.entries.field_tags import (
    BASE64,
    COMPACTED_OUT,
    EVENT_TIME,
    KEY,
    MORE,
    NULL_VALUE,
    PAYLOAD_SIZE,
    PROPERTY,
    PROPERTY_KEY,
    PROPERTY_VALUE,
    SEQUENCE_ID,
)
from storage.entries.pulsar_metadata_pb2 import MessageMetadata, SingleMessageMetadata
from storage.ledger.rows import RowType

_SINGLE_FIELDS = tuple(known.name for known in SingleMessageMetadata.DESCRIPTOR.fields)
_LONGEST_SHIFT = 63
"""Numbers of 10 bytes, which may be too large, go to protobuf."""
_UNREADABLE = (IndexError, StructError, ValueError, DecodeError)
"""The errors of bytes that are not of the expected layout."""


@dataclass(slots=True)
class Messages:
    """The decoded fields of messages, as lists. `keys`, `payloads` and `sequence_ids` have one value for each message;
    the other lists name only the rows that have a value.

    Numbers are as on the wire, unsigned. `property_counts`: (message, the number of its own `properties`), ascending.
    """

    keys: list[bytes | None] = field(default_factory=list)
    payloads: list[bytes | None] = field(default_factory=list)
    sequence_ids: list[int] = field(default_factory=list)
    base64_keys: list[int] = field(default_factory=list)
    event_times: list[tuple[int, int]] = field(default_factory=list)
    slots: list[tuple[int, int]] = field(default_factory=list)
    property_counts: list[tuple[int, int]] = field(default_factory=list)
    property_keys: list[str] = field(default_factory=list)
    property_values: list[str] = field(default_factory=list)
    metadata: list[tuple[int, bytes]] = field(default_factory=list)
    """The rest of the metadata of messages that have some of their own."""


def split_batch(
    data: bytes,
    count: int,
    sequence_id: int,
    event_time: int,
    batch_metadata: MessageMetadata,
    protobuf_only: bool = False,
) -> Messages:
    """Decode the payload of a batch into its `count` messages. Raises Undecodable unless `data` holds exactly these.

    `sequence_id`, `event_time`: the batch's, for messages without their own; `batch_metadata`: the remaining metadata
    of the batch.
    """
    if not protobuf_only:
        with suppress(*_UNREADABLE):  # another layout may be read beyond its end
            return _parse_messages(data, count, sequence_id, event_time, batch_metadata, known_layout=True)
    try:
        return _parse_messages(data, count, sequence_id, event_time, batch_metadata, known_layout=False)
    except _UNREADABLE as error:
        raise Undecodable(f"a batch of {count} messages is damaged: {error}") from error


def _parse_messages(
    data: bytes, count: int, batch_sequence_id: int, batch_event_time: int, rest: MessageMetadata, known_layout: bool
) -> Messages:
    messages = Messages()
    keys, payloads, sequence_ids = messages.keys, messages.payloads, messages.sequence_ids
    property_keys, property_values = messages.property_keys, messages.property_values
    size_at = U32.unpack_from
    position = 0
    for row in range(count):
        at = position + 4
        end = at + size_at(data, position)[0]
        known = known_layout
        key: bytes | None = None
        payload_size, sequence_id, event_time, in_base64, is_null, dropped = -1, batch_sequence_id, -1, 0, 0, 0
        before = len(property_keys)
        while at < end and data[at] == PROPERTY and known:
            value_at = at + 4 + data[at + 3]
            if _is_plain_property(data, at, value_at):
                property_keys.append(data[at + 4 : value_at].decode())
                at += 2 + data[at + 1]
                property_values.append(data[value_at + 2 : at].decode())
            else:
                known = False
        if at < end and data[at] == KEY:
            length = data[at + 1]
            known &= length < MORE
            key = data[at + 2 : at + 2 + length]
            at += 2 + length
        while at < end and known:
            tag, value = data[at], data[at + 1]
            at += 2
            if value >= MORE:
                value &= 0x7F
                shift = 7
                while (byte := data[at]) >= MORE:
                    value |= (byte & 0x7F) << shift
                    shift += 7
                    at += 1
                value |= byte << shift
                at += 1
                known = shift < _LONGEST_SHIFT
            if tag == PAYLOAD_SIZE:
                payload_size = value
                known &= value < 1 << 31
            elif tag == SEQUENCE_ID:
                sequence_id = value
            elif tag == BASE64:
                in_base64 = value
            elif tag == EVENT_TIME:
                event_time = value
            elif tag == NULL_VALUE:
                is_null = value
            elif tag == COMPACTED_OUT:
                dropped = value
            else:
                known = False
        if not known or at != end:
            del property_keys[before:], property_values[before:]
            single = SingleMessageMetadata.FromString(data[position + 4 : end])
            if not single.IsInitialized():
                raise Undecodable(f"message {row} of a batch lacks required metadata")
            key = single.partition_key if single.HasField("partition_key") else None
            payload_size, dropped, is_null = single.payload_size, single.compacted_out, single.null_value
            in_base64 = single.partition_key_b64_encoded
            sequence_id = single.sequence_id if single.HasField("sequence_id") else batch_sequence_id
            event_time = single.event_time if single.HasField("event_time") else -1
            collect_properties(single, property_keys, property_values)
            own = _encode_message_rest(single, rest)
            if own is not None:
                messages.metadata.append((row, own))
        position = end + payload_size
        if payload_size < 0:
            raise Undecodable(f"message {row} of a batch does not state its size")
        if in_base64 and key is not None:
            key = decode_key(key, True)
            messages.base64_keys.append(row)
        keys.append(key)
        payloads.append(None if is_null or dropped else data[end:position])
        sequence_ids.append(sequence_id)
        if dropped:
            messages.slots.append((row, RowType.COMPACTED_OUT))
        if event_time < 0:
            event_time = batch_event_time
        if event_time:
            messages.event_times.append((row, event_time))
        if len(property_keys) > before:
            messages.property_counts.append((row, len(property_keys) - before))
    if position != len(data):  # also if a message ends after the batch
        raise Undecodable(f"a batch of {count} messages has {len(data)} bytes, its messages {position}")
    return messages


def _is_plain_property(data: bytes, at: int, value_at: int) -> bool:
    """Return whether the bytes at `at` are a property as producers encode it: only a key and a value, each with its
    length in one byte. `value_at`: the position where its value must begin."""
    return (
        data[at + 1] < MORE
        and data[at + 2] == PROPERTY_KEY
        and data[value_at] == PROPERTY_VALUE
        and value_at + 2 + data[value_at + 1] == at + 2 + data[at + 1]
    )


def collect_properties(
    metadata: MessageMetadata | SingleMessageMetadata, property_keys: list[str], property_values: list[str]
) -> None:
    """Append the keys and values of a message's properties to two lists. Raises Undecodable if any of them is not
    UTF-8."""
    for item in metadata.properties:
        # protobuf gives bytes that are not UTF-8 as they are
        if not isinstance(item.key, str) or not isinstance(item.value, str):
            raise Undecodable("a property is not UTF-8")
        property_keys.append(item.key)
        property_values.append(item.value)


def _encode_message_rest(single: SingleMessageMetadata, rest: MessageMetadata) -> bytes | None:
    """Return the metadata of one message that no column holds, merged into that of its batch, as protobuf bytes; None:
    the message has none of its own. `rest`: the batch's metadata."""
    own = MessageMetadata()
    if single.HasField("ordering_key"):
        own.ordering_key = single.ordering_key
    if single.HasField("null_partition_key"):
        own.null_partition_key = single.null_partition_key
    for name in _SINGLE_FIELDS:
        single.ClearField(name)
    unknown = single.SerializePartialToString()
    if unknown:
        own.single_message_rest = unknown
    if not own.ListFields():
        return None
    whole = MessageMetadata()
    whole.CopyFrom(rest)
    whole.MergeFrom(own)
    return whole.SerializePartialToString()
