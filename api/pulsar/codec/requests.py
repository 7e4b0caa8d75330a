"""Requests of clients, as values.

Names of classes and fields are those of Pulsar's protocol (PulsarApi.proto), so `decoding.py` fills most of them by
name; where a value of this project fits better (a message id, a schema, a mapping), the field has that. A field that
the client left out has the protocol's default, or is None. SEND, FLOW and ACK are tuples, which are made faster
(docs/decisions/0013).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from api.broker.serving.acknowledging import AckedEntry
from storage.metadata.schemas import SchemaRecord
from storage.model import MessageId

AT_EARLIEST = 1
"""The `initial_position` of a subscription that begins at the first message; others begin after the last one."""
ONLY_NON_PERSISTENT = 1
"""The `mode` of a client that asks for the non-persistent topics of a namespace alone."""


@dataclass(frozen=True)
class Command:
    """A command of Pulsar's binary protocol."""


@dataclass(frozen=True)
class Request(Command):
    """A command with a request id, which the response repeats."""

    request_id: int


@dataclass(frozen=True)
class Connect(Command):
    """CONNECT, the first command of a client.

    `supports_repl_dedup_by_lid_and_eid`: its replicators send the position of each entry at the source.
    """

    client_version: str
    protocol_version: int
    auth_method_name: str
    auth_data: bytes
    original_principal: str
    supports_repl_dedup_by_lid_and_eid: bool = False


@dataclass(frozen=True)
class Ping(Command):
    """PING: a test whether the peer is alive."""


@dataclass(frozen=True)
class Pong(Command):
    """PONG: the answer to PING."""


@dataclass(frozen=True)
class AuthResponse(Command):
    """AUTH_RESPONSE: a new token of the client, for which the service never asks."""


@dataclass(frozen=True)
class Lookup(Request):
    """A request for the service that owns a topic."""

    topic: str
    original_principal: str
    advertised_listener_name: str


@dataclass(frozen=True)
class PartitionedMetadata(Request):
    """A request for the number of partitions of a topic."""

    topic: str
    original_principal: str
    metadata_auto_creation_enabled: bool


@dataclass(frozen=True)
class GetTopicsOfNamespace(Request):
    """A request for the topics of a namespace."""

    namespace: str
    mode: int


@dataclass(frozen=True)
class WatchTopicList(Request):
    """A request to watch the topics of a namespace that match a pattern."""

    watcher_id: int
    namespace: str
    topics_pattern: str


@dataclass(frozen=True)
class WatchTopicListClose(Request):
    """A request to end a watch of topics."""

    watcher_id: int


@dataclass(frozen=True)
class Producer(Request):
    """A request to create a producer."""

    producer_id: int
    topic: str
    producer_name: str
    epoch: int
    encrypted: bool
    producer_access_mode: int
    txn_enabled: bool
    initial_subscription_name: str
    topic_epoch: int | None
    metadata: Mapping[str, str]
    schema: SchemaRecord | None


class Send(NamedTuple):
    """SEND: an entry that a producer publishes.

    `is_transactional`: the entry belongs to a transaction, or marks the end of one.
    """

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    num_messages: int
    is_transactional: bool
    entry: bytes


@dataclass(frozen=True)
class CloseProducer(Request):
    """CLOSE_PRODUCER: a request to close a producer, or the notice that the service has closed a producer."""

    producer_id: int


@dataclass(frozen=True)
class Subscribe(Request):
    """A request to create a consumer of a subscription.

    `sticky_ranges`: first and last key hash of each range that a key-shared consumer asks for; None: any.
    """

    consumer_id: int
    topic: str
    subscription: str
    sub_type: int
    consumer_name: str
    priority_level: int
    durable: bool
    read_compacted: bool
    initial_position: int
    start_message_rollback_duration_sec: int
    force_topic_creation: bool
    start_message_id: MessageId | None
    consumer_epoch: int | None
    metadata: Mapping[str, str]
    subscription_properties: Mapping[str, str]
    schema: SchemaRecord | None
    sticky_ranges: tuple[tuple[int, int], ...] | None


class Flow(NamedTuple):
    """FLOW: a consumer permits the service to send it more messages."""

    consumer_id: int
    message_permits: int


class AckedEntries(Protocol):
    """A sequence of acknowledged entries. It is read slice by slice, since a command may name 50,000 entries."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> Sequence[AckedEntry]: ...


class Ack(NamedTuple):
    """ACK: a consumer acknowledges entries. `request_id` None: the client expects no response."""

    consumer_id: int
    request_id: int | None
    is_cumulative: bool
    is_transactional: bool
    entries: AckedEntries


@dataclass(frozen=True)
class RedeliverUnacknowledgedMessages(Command):
    """A request to deliver messages again. `entries`: ledger id and entry id of each; empty: all of the consumer."""

    consumer_id: int
    consumer_epoch: int | None
    entries: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Unsubscribe(Request):
    """A request to delete the consumer's subscription. `force`: also if it has other consumers."""

    consumer_id: int
    force: bool


@dataclass(frozen=True)
class Seek(Request):
    """A request to move a subscription to a message; if `message_id` is None, to a publish time."""

    consumer_id: int
    message_publish_time: int
    message_id: MessageId | None


@dataclass(frozen=True)
class CloseConsumer(Request):
    """CLOSE_CONSUMER: a request to close a consumer, or the notice that the service has closed a consumer."""

    consumer_id: int


@dataclass(frozen=True)
class GetLastMessageId(Request):
    """A request for the id of the last message of the consumer's topic."""

    consumer_id: int


@dataclass(frozen=True)
class ConsumerStats(Request):
    """A request for the rates and counts of a consumer."""

    consumer_id: int


@dataclass(frozen=True)
class GetSchema(Request):
    """A request for a schema of a topic. `schema_version` None: the newest; -1: one that no topic has."""

    topic: str
    schema_version: int | None


@dataclass(frozen=True)
class GetOrCreateSchema(Request):
    """A request to store a schema of a topic, unless the topic has that schema already."""

    topic: str
    schema: SchemaRecord


class NewTxn(Request):
    """A request to begin a transaction, which the service refuses."""


class AddPartitionToTxn(Request):
    """A request to add partitions to a transaction, which the service refuses."""


class AddSubscriptionToTxn(Request):
    """A request to add subscriptions to a transaction, which the service refuses."""


class EndTxn(Request):
    """A request to commit or abort a transaction, which the service refuses."""


class TcClientConnectRequest(Request):
    """A request to connect to a transaction coordinator, which the service refuses."""
