"""Requests to Kafka's brokers: metadata of a topic, offsets, and batches as stored.

aiokafka has the framing, the types and the negotiation of versions. Its own Fetch ends at version 4, which names topics
and knows no start of a log; these requests are of the versions that name a topic by its id, so that a topic made again
under its name is never mistaken for the old one. Brokers have them since Kafka 3.1. Sources: Kafka's message formats
(MetadataRequest.json and so on), KIP-482, KIP-516.

Must not know: connections.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
    UnsignedVarInt32,
)

from storage.kafka.transactions import AbortedTransaction

EARLIEST, LATEST = -2, -1
"""Times of ListOffsets that stand for the ends of a log."""
NO_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC = 0, 1, 3
TOPIC_NOT_AUTHORIZED = 29
_CONSUMER, _READ_COMMITTED, _NO_SESSION, _FIRST_EPOCH, _UNKNOWN = -1, 1, 0, -1, -1
_NO_UUID = bytes(16)
_NO_TAGS: Mapping[int, bytes] = {}
_DIVERGING_EPOCH = 0
"""The tag of a fetched partition with the last common leader epoch and its end: later records differ at the source."""


class Uuid(AbstractType[bytes]):
    """Kafka's wire type of a UUID: 16 bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: io.BytesIO) -> bytes:
        return data.read(16)


class Records(CompactBytes):
    """Kafka's wire type of record batches, decoded as a view of the response, since a copy is expensive."""

    @classmethod
    def decode(cls, data: io.BytesIO) -> memoryview | None:
        size = UnsignedVarInt32.decode(data) - 1
        if size < 0:
            return None
        at = data.tell()
        if data.seek(size, io.SEEK_CUR) > len(whole := data.getvalue()):
            raise ValueError("an answer ends inside its batches")
        return memoryview(whole)[at : at + size]


class Tags(TaggedFields):
    """Kafka's wire type of tagged fields, which are optional: bytes by tag number. aiokafka encodes them wrongly."""

    @classmethod
    def encode(cls, value: Mapping[int, bytes]) -> bytes:
        fields = (
            UnsignedVarInt32.encode(tag) + UnsignedVarInt32.encode(len(data)) + data
            for tag, data in sorted(value.items())
        )
        return b"".join([UnsignedVarInt32.encode(len(value)), *fields])


_TAGS = ("tags", Tags)
_NAME = CompactString("utf-8")


def _topics_field(topic: tuple[str, Any], *fields: tuple[str, Any]) -> tuple[str, CompactArray]:
    """Return the definition of the field `topics` of a request or response: each topic with its partitions.

    `topic`: the field that names the topic. `fields`: those of a partition.
    """
    return "topics", CompactArray(topic, ("partitions", CompactArray(*fields, _TAGS)), _TAGS)


class MetadataResponse(Response):
    """Kafka's Metadata response: the brokers, and one topic with the leaders of its partitions."""

    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node_id", Int32), ("host", _NAME), ("port", Int32), ("rack", _NAME), _TAGS)),
        ("cluster_id", _NAME),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", _NAME),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        _TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class MetadataRequest(RequestStruct):
    """Kafka's Metadata request."""

    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("name", _NAME), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class ListOffsetsResponse(Response):
    """Kafka's ListOffsets response: an offset of each requested partition."""

    API_KEY = 2
    API_VERSION = 6
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        _topics_field(
            ("name", _NAME),
            ("partition", Int32),
            ("error_code", Int16),
            ("timestamp", Int64),
            ("offset", Int64),
            ("leader_epoch", Int32),
        ),
        _TAGS,
    )


class ListOffsetsRequest(RequestStruct):
    """Kafka's ListOffsets request."""

    FLEXIBLE_VERSION = True
    API_KEY = 2
    API_VERSION = 6
    RESPONSE_TYPE = ListOffsetsResponse
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        _topics_field(("name", _NAME), ("partition", Int32), ("leader_epoch", Int32), ("timestamp", Int64)),
        _TAGS,
    )


class FetchResponse(Response):
    """Kafka's Fetch response: record batches by partition, as the broker stores them."""

    API_KEY = 1
    API_VERSION = 13
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        _topics_field(
            ("topic_id", Uuid),
            ("partition", Int32),
            ("error_code", Int16),
            ("high_watermark", Int64),
            ("last_stable_offset", Int64),
            ("log_start_offset", Int64),
            ("aborted", CompactArray(("producer_id", Int64), ("first_offset", Int64), _TAGS)),
            ("preferred_read_replica", Int32),
            ("records", Records),
        ),
        _TAGS,
    )


class FetchRequest(RequestStruct):
    """Kafka's Fetch request."""

    FLEXIBLE_VERSION = True
    API_KEY = 1
    API_VERSION = 13
    RESPONSE_TYPE = FetchResponse
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("max_wait_ms", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
        _topics_field(
            ("topic_id", Uuid),
            ("partition", Int32),
            ("leader_epoch", Int32),
            ("fetch_offset", Int64),
            ("last_fetched_epoch", Int32),
            ("log_start_offset", Int64),
            ("max_bytes", Int32),
        ),
        ("forgotten_topics", CompactArray(("topic_id", Uuid), ("partitions", CompactArray(Int32)), _TAGS)),
        ("rack_id", _NAME),
        _TAGS,
    )


@dataclass(frozen=True)
class TopicRequest:
    """A request of one fixed version, in the form that aiokafka's connection sends."""

    struct: RequestStruct

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> RequestStruct:
        """Return the request if the broker supports its version; otherwise raise NotImplementedError.

        `versions`: the oldest and newest supported version by API key.
        """
        oldest, newest = versions.get(self.struct.API_KEY, (0, -1))
        if not oldest <= self.struct.API_VERSION <= newest:
            raise NotImplementedError(f"version {self.struct.API_VERSION} of request {self.struct.API_KEY}")
        return self.struct


class FetchedPartition(NamedTuple):
    """One partition of a Fetch response. `records`: record batches, of which the last may be incomplete. `common_end`:
    the offset from which on the source has replaced records that were fetched earlier; None: it has not."""

    number: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[AbortedTransaction]
    records: bytes | memoryview
    common_end: int | None = None


class FetchPosition(NamedTuple):
    """The next offset to fetch from a partition, and the leader epoch of the batch before; -1: unknown."""

    offset: int
    epoch: int = _UNKNOWN


def metadata_request(topic: str) -> TopicRequest:
    """Return a Metadata request for a topic and the brokers. It does not create the topic."""
    return TopicRequest(MetadataRequest([(_NO_UUID, topic, _NO_TAGS)], False, False, _NO_TAGS))


def offsets_request(topic: str, partition: int, time: int) -> TopicRequest:
    """Return a ListOffsets request for one partition. `time`: EARLIEST or LATEST."""
    partitions = [(partition, _UNKNOWN, time, _NO_TAGS)]
    return TopicRequest(ListOffsetsRequest(_CONSUMER, 0, [(topic, partitions, _NO_TAGS)], _NO_TAGS))


def fetch_request(
    topic_id: bytes, positions: Mapping[int, FetchPosition], max_bytes: int, max_wait_ms: int
) -> TopicRequest:
    """Return a Fetch request for batches of some partitions from their positions on.

    The response has at most `max_bytes`, but at least one batch if there is one.
    """
    partitions = [
        (partition, _UNKNOWN, offset, epoch, _UNKNOWN, max_bytes, _NO_TAGS)
        for partition, (offset, epoch) in positions.items()
    ]
    head = _CONSUMER, max_wait_ms, 1, max_bytes, _READ_COMMITTED, _NO_SESSION, _FIRST_EPOCH
    return TopicRequest(FetchRequest(*head, [(topic_id, partitions, _NO_TAGS)], [], "", _NO_TAGS))


def fetched_partitions(response: Any) -> list[FetchedPartition]:
    """Convert a FetchResponse to a list with one item for each partition."""
    result = []
    for _, partitions, _ in response.topics:
        for number, error_code, high, stable, start, aborted, _, records, tags in partitions:
            transactions = [AbortedTransaction(first, producer) for producer, first, _ in aborted or ()]
            diverging = tags.get(_DIVERGING_EPOCH)
            common_end = None if diverging is None else struct.unpack_from(">iq", diverging)[1]
            result.append(
                FetchedPartition(number, error_code, high, stable, start, transactions, records or b"", common_end)
            )
    return result
