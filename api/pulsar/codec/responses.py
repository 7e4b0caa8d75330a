"""Responses to clients, and commands that the service sends by itself, as values.

Names of classes and fields are those of Pulsar's protocol (PulsarApi.proto), so `encoding.py` writes them by name. A
field that is None is left out. The receipts of a group are one tuple, which is made faster; MESSAGE has no class at all
(docs/decisions/0013).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from api.broker.serving.channel import Receipt
from api.pulsar.codec.requests import Command
from api.pulsar.errors import ServerError
from storage.metadata.schemas import SchemaRecord
from storage.model import MessageId

LOOKUP_CONNECT = 1
PARTITIONS_SUCCESS = 0


@dataclass(frozen=True)
class Reply(Command):
    """A response with the id of its request."""

    request_id: int


class Success(Reply):
    """The response to a request that has succeeded and asks for no data."""


@dataclass(frozen=True)
class Connected(Command):
    """The response to CONNECT."""

    server_version: str
    protocol_version: int
    max_message_size: int
    feature_flags: Mapping[str, bool]


@dataclass(frozen=True)
class Failure(Reply):
    """The response that refuses a request.

    `request`: the class of the request, which decides the type of the response; None: an ERROR.
    """

    error: ServerError
    message: str
    request: type | None = None


@dataclass(frozen=True)
class LookupResponse(Reply):
    """The response with the URLs of the service that owns a topic, without and with TLS; None: it has no such port."""

    broker_service_url: str | None
    broker_service_url_tls: str | None
    response: int = LOOKUP_CONNECT
    authoritative: bool = True


@dataclass(frozen=True)
class PartitionedMetadataResponse(Reply):
    """The response with the number of a topic's partitions; 0: the topic is not partitioned."""

    partitions: int
    response: int = PARTITIONS_SUCCESS


@dataclass(frozen=True)
class GetTopicsOfNamespaceResponse(Reply):
    """The response with the topics of a namespace."""

    topics: Iterable[str]


@dataclass(frozen=True)
class WatchTopicListSuccess(Reply):
    """The response to a new watcher: the topics that match its pattern, and Pulsar's hash of that list."""

    watcher_id: int
    topic: Iterable[str]
    topics_hash: str


@dataclass(frozen=True)
class WatchTopicUpdate(Command):
    """The notice that other topics match a watcher's pattern: new ones, deleted ones, and the hash of the new list."""

    watcher_id: int
    new_topics: Iterable[str]
    deleted_topics: Iterable[str]
    topics_hash: str


@dataclass(frozen=True)
class ProducerSuccess(Reply):
    """The response to the creation of a producer.

    `producer_ready`: the producer may send; otherwise it waits until it becomes the exclusive one.
    """

    producer_name: str
    last_sequence_id: int
    schema_version: bytes
    topic_epoch: int | None
    producer_ready: bool


class SendReceipts(NamedTuple):
    """The receipts of several durable entries of one producer: a SEND_RECEIPT for each."""

    producer_id: int
    receipts: Sequence[Receipt]


@dataclass(frozen=True)
class SendError(Command):
    """SEND_ERROR: the refusal of an entry that a producer has sent."""

    producer_id: int
    sequence_id: int
    error: ServerError
    message: str


@dataclass(frozen=True)
class ActiveConsumerChange(Command):
    """The notice that a failover consumer becomes the active one, or is no longer the active one."""

    consumer_id: int
    is_active: bool


@dataclass(frozen=True)
class AckResponse(Reply):
    """The response to an acknowledgement that asks for one."""

    consumer_id: int
    error: ServerError | None = None
    message: str | None = None


@dataclass(frozen=True)
class GetLastMessageIdResponse(Reply):
    """The response with the id of a topic's last message, and the position of the consumer's subscription."""

    last_message_id: MessageId
    consumer_mark_delete_position: MessageId


@dataclass(frozen=True)
class ConsumerStatsResponse(Reply):
    """The response with rates and counts of a consumer."""

    msg_rate_out: float
    msg_throughput_out: float
    msg_rate_redeliver: float
    message_ack_rate: float
    consumer_name: str
    available_permits: int
    unacked_messages: int
    address: str
    type: str


@dataclass(frozen=True)
class GetSchemaResponse(Reply):
    """The response with a version of a topic's schema."""

    schema: SchemaRecord
    schema_version: bytes


@dataclass(frozen=True)
class GetOrCreateSchemaResponse(Reply):
    """The response with the version of the topic's schema that equals the client's."""

    schema_version: bytes


Response = Command | SendReceipts
"""What the service sends; of the commands in requests.py, PING, PONG, CLOSE_PRODUCER and CLOSE_CONSUMER."""
