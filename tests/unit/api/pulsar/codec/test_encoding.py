"""Responses on the wire: by the names of the protocol, each refusal by the response of its request."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from api.broker.serving.channel import Receipt
from api.pulsar.codec import requests, responses
from api.pulsar.codec.encoding import encode_delivery, encode_response
from api.pulsar.codec.responses import Failure, Reply, SendReceipts
from api.pulsar.errors import ServerError
from api.pulsar.pulsar_api_pb2 import BaseCommand
from storage.entries.rebuild import DeliverableEntry
from storage.entries.source_position import with_position
from storage.metadata.schemas import SchemaRecord
from storage.model import EARLIEST, MessageId, SourcePosition
from tests.frames import FrameParser
from tests.pulsar_entries import brokers, entry, metadata

VALUES: dict[str, Any] = {
    "int": 7,
    "int | None": 7,
    "float": 0.5,
    "str": "text",
    "str | None": "text",
    "bytes": b"data",
    "bool": True,
    "Iterable[str]": ("a", "b"),
    "Mapping[str, bool]": {"supports_topic_watchers": True},
    "MessageId": MessageId(3, 4, 5, 6),
    "SchemaRecord": SchemaRecord(0, 1, "s", b"d", {"k": "v"}),
    "ServerError": ServerError.MetadataError,
    "ServerError | None": ServerError.MetadataError,
}
BY_NAME = [
    *(kind for kind in Reply.__subclasses__() if kind is not Failure),
    *(responses.Connected, responses.WatchTopicUpdate, responses.SendError, responses.ActiveConsumerChange),
    *(requests.Ping, requests.Pong, requests.CloseProducer, requests.CloseConsumer),
]


def wire(response: Any) -> Any:
    """Return the message of a response as a client reads it."""
    ((command, _),) = FrameParser().feed(encode_response(response))
    return getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[command.type].name)


@pytest.mark.parametrize("response", BY_NAME, ids=lambda kind: kind.__name__)
def test_every_field_is_sent_under_its_name(response: Any) -> None:
    fields = dataclasses.fields(response)
    values = {field.name: VALUES[field.type] for field in fields if field.default in (None, dataclasses.MISSING)}
    message = wire(response(**values))
    assert {field.name for field, _ in message.ListFields()} == {field.name for field in fields}


def test_a_message_id_is_written_as_java_reads_it() -> None:
    message = wire(responses.GetLastMessageIdResponse(1, MessageId(3, 4, 5), EARLIEST))
    assert (message.last_message_id.partition, message.last_message_id.HasField("batch_index")) == (5, False)
    assert message.consumer_mark_delete_position.ledger_id == (1 << 64) - 1


def test_each_receipt_of_a_group_has_a_frame_of_its_own() -> None:
    receipts = [Receipt(7, 9, MessageId(3, 4, 5)), Receipt(10, 0, EARLIEST), Receipt(11, 0, MessageId(3, 5, 5, 2))]
    sent = [command.send_receipt for command, _ in FrameParser().feed(encode_response(SendReceipts(2, receipts)))]
    assert [(receipt.producer_id, receipt.sequence_id, receipt.highest_sequence_id) for receipt in sent] == [
        (2, 7, 9),
        (2, 10, 0),
        (2, 11, 0),
    ]
    assert [receipt.HasField("highest_sequence_id") for receipt in sent] == [True, False, False]
    ids = [receipt.message_id for receipt in sent]
    assert [(data.ledger_id, data.entry_id, data.partition, data.batch_index) for data in ids] == [
        (3, 4, 5, -1),
        ((1 << 64) - 1, (1 << 64) - 1, -1, -1),
        (3, 5, 5, 2),
    ]


@pytest.mark.parametrize(
    ("live", "ack_set"),
    [((1 << 70) - 1, []), (0b101, [0b101]), (1 << 63 | 1, [1 - (1 << 63)]), (1 << 64, [0, 1])],
)
def test_a_message_names_the_slots_to_deliver_unless_all_are(live: int, ack_set: list[int]) -> None:
    entry = DeliverableEntry(1, 2, 0, 70, b"data", live, True)
    ((command, sent),) = FrameParser().feed(b"".join(encode_delivery(1, entry, live, 0, -1, None)))
    message = command.message
    assert (list(message.ack_set), sent) == (ack_set, b"data")
    assert not message.message_id.HasField("partition")
    assert not message.HasField("consumer_epoch")


@pytest.mark.parametrize(
    ("request_type", "field"),
    [
        (None, "error"),
        (requests.Subscribe, "error"),
        (requests.Lookup, "lookup_topic_response"),
        (requests.PartitionedMetadata, "partition_metadata_response"),
        (requests.GetSchema, "get_schema_response"),
        (requests.GetOrCreateSchema, "get_or_create_schema_response"),
        (requests.ConsumerStats, "consumer_stats_response"),
        (requests.EndTxn, "end_txn_response"),
        (requests.TcClientConnectRequest, "tc_client_connect_response"),
    ],
)
def test_a_refusal_has_the_type_that_its_request_expects(request_type: type | None, field: str) -> None:
    failure = responses.Failure(9, ServerError.MetadataError, "no", request_type)
    ((command, _),) = FrameParser().feed(encode_response(failure))
    assert command.HasField(field)
    message = getattr(command, field)
    assert message.request_id == 9
    code = message.error_code if hasattr(message, "error_code") else message.error
    assert code == ServerError.MetadataError


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_source_position_leaves_the_service_with_no_entry(size: int) -> None:
    plain = entry(metadata(), bytes(size))
    for stored, expected in ((with_position(plain, SourcePosition(7, 3)), plain), (brokers(plain), brokers(plain))):
        delivered = DeliverableEntry(3, 4, 0, 1, stored, 1, False)
        ((_, sent),) = FrameParser().feed(b"".join(encode_delivery(1, delivered, 1, 0, -1, None)))
        assert sent == expected
