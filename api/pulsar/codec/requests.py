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
    """A command of the protocol."""


@dataclass(frozen=True)
class Request(Command):
    """A request whose response names it."""

    request_id: int


@dataclass(frozen=True)
class Connect(Command):
    """The first request of a client. `supports_repl_dedup_by_lid_and_eid`: its replicators send positions."""

    client_version: str
    protocol_version: int
    auth_method_name: str
    auth_data: bytes
    original_principal: str
    supports_repl_dedup_by_lid_and_eid: bool = False


@dataclass(frozen=True)
class Ping(Command):
    """A test whether the peer answers."""


@dataclass(frozen=True)
class Pong(Command):
    """The answer to PING."""


@dataclass(frozen=True)
class AuthResponse(Command):
    """A new token, which the service never asks for."""


@dataclass(frozen=True)
class Lookup(Request):
    """A question which service owns a topic."""

    topic: str
    original_principal: str
    advertised_listener_name: str


@dataclass(frozen=True)
class PartitionedMetadata(Request):
    """A question how many partitions a topic has."""

    topic: str
    original_principal: str
    metadata_auto_creation_enabled: bool


@dataclass(frozen=True)
class GetTopicsOfNamespace(Request):
    """A question which topics a namespace has."""

    namespace: str
    mode: int


@dataclass(frozen=True)
class WatchTopicList(Request):
    """A watcher of the topics of a namespace that a pattern matches."""

    watcher_id: int
    namespace: str
    topics_pattern: str


@dataclass(frozen=True)
class WatchTopicListClose(Request):
    """The end of a watcher."""

    watcher_id: int


@dataclass(frozen=True)
class Producer(Request):
    """A new producer."""

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
    """An entry of a producer. `is_transactional`: it belongs to a transaction, or marks the end of one."""

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    num_messages: int
    is_transactional: bool
    entry: bytes


@dataclass(frozen=True)
class CloseProducer(Request):
    """The end of a producer."""

    producer_id: int


@dataclass(frozen=True)
class Subscribe(Request):
    """A new consumer. `sticky_ranges`: first and last key hash of each range that a key-shared consumer asks for; None:
    any."""

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
    """Permits of a consumer for more messages."""

    consumer_id: int
    message_permits: int


class AckedEntries(Protocol):
    """The entries that a command acknowledges; they are read a part at a time, since a command may name 50,000."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> Sequence[AckedEntry]: ...


class Ack(NamedTuple):
    """An acknowledgement. `request_id` None: the client expects no response."""

    consumer_id: int
    request_id: int | None
    is_cumulative: bool
    is_transactional: bool
    entries: AckedEntries


@dataclass(frozen=True)
class RedeliverUnacknowledgedMessages(Command):
    """Messages to deliver again. `entries`: ledger id and entry id of each; empty: all of the consumer."""

    consumer_id: int
    consumer_epoch: int | None
    entries: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Unsubscribe(Request):
    """The end of the consumer's subscription."""

    consumer_id: int
    force: bool


@dataclass(frozen=True)
class Seek(Request):
    """A new position of a subscription. `message_id` None: the position is a time."""

    consumer_id: int
    message_publish_time: int
    message_id: MessageId | None


@dataclass(frozen=True)
class CloseConsumer(Request):
    """The end of a consumer."""

    consumer_id: int


@dataclass(frozen=True)
class GetLastMessageId(Request):
    """A question for the last message of the consumer's topic."""

    consumer_id: int


@dataclass(frozen=True)
class ConsumerStats(Request):
    """A question for rates and counts of a consumer."""

    consumer_id: int


@dataclass(frozen=True)
class GetSchema(Request):
    """A question for a schema. `schema_version` None: the newest; -1: one that no topic has."""

    topic: str
    schema_version: int | None


@dataclass(frozen=True)
class GetOrCreateSchema(Request):
    """A schema that the topic stores, unless it has it."""

    topic: str
    schema: SchemaRecord


class NewTxn(Request):
    """A new transaction."""


class AddPartitionToTxn(Request):
    """Partitions of a transaction."""


class AddSubscriptionToTxn(Request):
    """Subscriptions of a transaction."""


class EndTxn(Request):
    """The end of a transaction."""


class TcClientConnectRequest(Request):
    """A request to connect to a transaction coordinator."""
