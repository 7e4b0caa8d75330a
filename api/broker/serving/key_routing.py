"""The part of an entry's metadata that decides its delivery: its group, its delivery time."""

from __future__ import annotations

from typing import NamedTuple

from api.broker.key_hashes import murmur3
from api.broker.serving.pending_acks import Group
from storage.entries.entry import parse_metadata
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.errors import InvalidRecord

HASH_SLOTS = 65_536
"""Key hashes of a key-shared subscription, as in Pulsar."""


class DeliveryHeader(NamedTuple):
    """The part of an entry's metadata that decides where and when it is delivered.

    `deliver_at`: milliseconds since the Unix epoch; 0: at once. `chunk`: the uuid of a chunked message, of which the
    entry is a part; empty: it is whole. `is_last_chunk`: no more of that message follows.
    """

    group: Group = None
    deliver_at: int = 0
    chunk: str = ""
    is_last_chunk: bool = False


def delivery_header(entry: bytes, by_key: bool) -> DeliveryHeader:
    """Return the part of an entry's metadata that decides its delivery. `by_key`: for a key-shared subscription, else
    for a shared one.

    The group is the hash slot of the key if `by_key`, else the uuid of a chunked message. An entry that cannot be
    parsed has the group 0 if `by_key`, else no group.
    """
    try:
        metadata, _ = parse_metadata(entry, checksum_verified=True)
    except InvalidRecord:
        return DeliveryHeader(0 if by_key else None)
    chunk = metadata.uuid if metadata.num_chunks_from_msg > 1 else ""
    group: Group = sticky_hash(metadata) if by_key else chunk or None
    return DeliveryHeader(
        group, metadata.deliver_at_time, chunk, bool(chunk) and metadata.chunk_id == metadata.num_chunks_from_msg - 1
    )


def sticky_hash(metadata: MessageMetadata) -> int:
    """Return the hash slot of an entry for key-shared consumers: that of its ordering key, else of its key. In a batch
    the first message counts.

    An entry without a key spreads by producer and sequence id, as in Pulsar (Commands.resolveStickyKey).
    """
    if metadata.HasField("ordering_key"):
        key = metadata.ordering_key
    elif metadata.HasField("partition_key"):
        key = metadata.partition_key
    else:
        key = f"{metadata.producer_name}-{metadata.sequence_id}".encode()
    return murmur3(key) % HASH_SLOTS
