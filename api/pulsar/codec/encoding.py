"""Responses become frames.

encode_response(response)      one frame, in two pieces if its entry is large: it is not copied then
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.pulsar.codec import limits, requests
from api.pulsar.codec.responses import Failure, Response, SendReceipts
from api.pulsar.frames import FramePieces, build_frame
from api.pulsar.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    MessageIdData,
    Schema,
)
from storage.entries.rebuild import DeliverableEntry
from storage.entries.source_position import without_position
from storage.metadata.schemas import SchemaRecord
from storage.model import MessageId

_UINT64 = (1 << 64) - 1


def encode_response(response: Response) -> bytes:
    """Encode a response as the bytes of a frame, and SendReceipts as the bytes of a frame for each receipt."""
    if isinstance(response, SendReceipts):
        return _encode_send_receipts(response)
    command = _failure_command(response) if isinstance(response, Failure) else _command_by_field_names(response)
    return build_frame(command.SerializeToString())[0]


def encode_delivery(
    consumer_id: int,
    entry: DeliverableEntry,
    live_mask: int,
    redelivery_count: int,
    partition: int,
    consumer_epoch: int | None,
) -> FramePieces:
    """Encode an entry for a consumer as a MESSAGE frame in two pieces; the second is empty unless the entry is large.

    `live_mask`: a bit for each message of the entry, set where the message is delivered. `partition`: the topic's
    number among the partitions; -1: the topic is no partition. `consumer_epoch` None: left out.
    """
    command = BaseCommand(type=BaseCommand.MESSAGE)
    message = command.message
    message.consumer_id = consumer_id
    message_id = message.message_id
    message_id.ledger_id, message_id.entry_id = entry.ledger_id, entry.entry_id
    if partition >= 0:
        message_id.partition = partition
    if redelivery_count:
        message.redelivery_count = redelivery_count
    if live_mask.bit_count() != entry.messages:
        message.ack_set.extend(_ack_set(live_mask, entry.messages))
    if consumer_epoch is not None:
        message.consumer_epoch = consumer_epoch
    return build_frame(command.SerializeToString(), without_position(entry.data))


def _ack_set(live_mask: int, messages: int) -> list[int]:
    """Convert a mask of the messages of a batch to the words of a java.util.BitSet: 64 bits each, signed."""
    words = []
    for first in range(0, messages, 64):
        word = live_mask >> first & _UINT64
        words.append(word - _UINT64 - 1 if word >> 63 else word)
    while words and not words[-1]:
        words.pop()
    return words


def _encode_send_receipts(response: SendReceipts) -> bytes:
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    written = command.send_receipt
    written.producer_id = response.producer_id
    data = written.message_id
    frames = []
    for sequence_id, highest_sequence_id, message_id in response.receipts:
        written.sequence_id = sequence_id
        if highest_sequence_id:
            written.highest_sequence_id = highest_sequence_id
        else:
            written.ClearField("highest_sequence_id")
        data.Clear()
        _write_message_id(data, message_id)
        frames.append(build_frame(command.SerializeToString())[0])
    return b"".join(frames)


def _write_message_id(data: MessageIdData, message_id: MessageId) -> None:
    """Write a message id into the protobuf message `data`; the id `earliest` is -1:-1."""
    data.ledger_id, data.entry_id = message_id.ledger_id & _UINT64, message_id.entry_id & _UINT64
    if message_id.partition >= 0:
        data.partition = message_id.partition
    if message_id.batch_index >= 0:
        data.batch_index = message_id.batch_index


def _command_by_field_names(response: Any) -> BaseCommand:
    """Convert a response to a protobuf command, by the names of its class and fields."""
    kind = limits.KINDS[type(response).__name__]
    values = {name: _protobuf_value(value) for name, value in vars(response).items()}
    return BaseCommand(type=kind, **{limits.FIELDS[kind]: values})


def _protobuf_value(value: Any) -> Any:
    """Convert a field's value to protobuf: a message id or a schema becomes a message, other values stay."""
    if isinstance(value, MessageId):
        data = MessageIdData()
        _write_message_id(data, value)
        return data
    if isinstance(value, SchemaRecord):
        schema = Schema(name=value.name, schema_data=value.data, type=Schema.Type.Name(value.type))
        for key, text in value.properties.items():
            schema.properties.add(key=key, value=text)
        return schema
    return value


def _failure_command(response: Failure) -> BaseCommand:
    """Convert a refusal to the response that a client expects for that type of request, or to ERROR."""
    kind, result, error, message = _FAILURES.get(response.request, _ERROR)
    values = {"request_id": response.request_id, error: response.error, message: response.message, **result}
    return BaseCommand(type=kind, **{limits.FIELDS[kind]: values})


_Form = tuple[BaseCommand.Type, Mapping[str, int], str, str]
_ERROR: _Form = (BaseCommand.ERROR, {}, "error", "message")
_LOOKUP_FAILED = {"response": CommandLookupTopicResponse.Failed}
_PARTITIONS_FAILED = {"response": CommandPartitionedTopicMetadataResponse.Failed}
_CODE = ("error_code", "error_message")
_FAILURES: Mapping[type | None, _Form] = {
    requests.Lookup: (BaseCommand.LOOKUP_RESPONSE, _LOOKUP_FAILED, "error", "message"),
    requests.PartitionedMetadata: (BaseCommand.PARTITIONED_METADATA_RESPONSE, _PARTITIONS_FAILED, "error", "message"),
    requests.GetSchema: (BaseCommand.GET_SCHEMA_RESPONSE, {}, *_CODE),
    requests.GetOrCreateSchema: (BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, {}, *_CODE),
    requests.ConsumerStats: (BaseCommand.CONSUMER_STATS_RESPONSE, {}, *_CODE),
    requests.NewTxn: (BaseCommand.NEW_TXN_RESPONSE, {}, "error", "message"),
    requests.AddPartitionToTxn: (BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE, {}, "error", "message"),
    requests.AddSubscriptionToTxn: (BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, {}, "error", "message"),
    requests.EndTxn: (BaseCommand.END_TXN_RESPONSE, {}, "error", "message"),
    requests.TcClientConnectRequest: (BaseCommand.TC_CLIENT_CONNECT_RESPONSE, {}, "error", "message"),
}
"""Requests whose refusal has a type of its own: that type, its result, and its fields of error and message."""
