"""Messages to entries, as Pulsar's clients send them: one message, or a batch, with the checksum in front.

A key that is UTF-8 is sent as text, any other in base64 (P10: its identity is its bytes either way). A null payload
sets the flag `null_value` and has no bytes. An event time of 0 equals none, and is read back as none.

Errors: InvalidRecord for a message or a batch that is larger than an entry may be.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

import pyarrow as pa

from storage.checksums import crc32c, extend_crc32c
from storage.entries.compression import compress
from storage.entries.entry import MAGIC, MAX_BATCH_MESSAGES, U32
from storage.entries.pulsar_metadata_pb2 import MessageMetadata, SingleMessageMetadata
from storage.errors import InvalidRecord
from storage.ledger.rows import MAX_MESSAGE_BYTES, CompressionType

_UINT64 = (1 << 64) - 1

Properties = Iterable[tuple[str, str]]


def encode_message(
    key: bytes | None,
    payload: bytes | None,
    *,
    producer: str,
    sequence_id: int,
    publish_time: int,
    event_time: int | None = None,
    properties: Properties = (),
    codec: CompressionType = CompressionType.NONE,
) -> bytes:
    """Encode one message, which is in no batch, as an entry; return its bytes. Times in ms.

    Raises InvalidRecord for a payload that is too large. `payload` None: a null value. `event_time` None or 0: the
    message has none.
    """
    metadata = _entry_metadata(producer, sequence_id, publish_time)
    _set_message_fields(metadata, key, payload, event_time, properties)
    return _compress_and_encode(metadata, payload or b"", codec)


def encode_batch(
    table: pa.Table,
    *,
    producer: str,
    first_sequence_id: int,
    publish_time: int,
    codec: CompressionType = CompressionType.NONE,
) -> bytes:
    """Encode the messages of a table (bulk_append.INPUT_SCHEMA, at least one row) as a batch in one entry; return its
    bytes.

    A batch has one publish time (ms), that of the argument; the table's are not read. Sequence ids ascend by one.
    Raises InvalidRecord for more than MAX_BATCH_MESSAGES messages, or for too many bytes.
    """
    assert len(table), "a batch holds at least one message"
    if len(table) > MAX_BATCH_MESSAGES:
        raise InvalidRecord(
            f"a batch of {len(table)} messages is too large", f"a batch holds at most {MAX_BATCH_MESSAGES}; cut it"
        )
    metadata = _entry_metadata(producer, first_sequence_id, publish_time)
    metadata.num_messages_in_batch = len(table)
    metadata.highest_sequence_id = (first_sequence_id + len(table) - 1) & _UINT64
    columns = (table.column(name).to_pylist() for name in ("key", "payload", "event_time", "properties"))
    pieces: list[bytes] = []
    for number, (key, payload, event_time, properties) in enumerate(zip(*columns, strict=True)):
        if not number and key is not None:
            # as Pulsar's clients do: a broker that distributes entries by key uses the first
            metadata.partition_key, metadata.partition_key_b64_encoded = _encode_key(key)
        single = SingleMessageMetadata(
            payload_size=len(payload or b""), sequence_id=(first_sequence_id + number) & _UINT64
        )
        _set_message_fields(single, key, payload, event_time, properties or ())
        described = single.SerializeToString()
        pieces += (U32.pack(len(described)), described, payload or b"")
    return _compress_and_encode(metadata, b"".join(pieces), codec)


def _entry_metadata(producer: str, sequence_id: int, publish_time: int) -> MessageMetadata:
    return MessageMetadata(
        producer_name=producer, sequence_id=sequence_id & _UINT64, publish_time=publish_time & _UINT64
    )


def _set_message_fields(
    target: MessageMetadata | SingleMessageMetadata,
    key: bytes | None,
    payload: bytes | None,
    event_time: int | None,
    properties: Properties,
) -> None:
    for name, value in properties:
        target.properties.add(key=name, value=value)
    if key is not None:
        target.partition_key, target.partition_key_b64_encoded = _encode_key(key)
    if event_time:
        target.event_time = event_time & _UINT64
    if payload is None:
        target.null_value = True


def _encode_key(key: bytes) -> tuple[bytes, bool]:
    try:
        key.decode()
    except UnicodeDecodeError:
        return base64.b64encode(key), True
    return key, False


def _compress_and_encode(metadata: MessageMetadata, payload: bytes, codec: CompressionType) -> bytes:
    if len(payload) > MAX_MESSAGE_BYTES:
        raise InvalidRecord(
            f"an entry of producer {metadata.producer_name!r} has {len(payload)} bytes",
            f"an entry holds at most {MAX_MESSAGE_BYTES} bytes; send less at once",
        )
    metadata.uncompressed_size = len(payload)
    if codec != CompressionType.NONE:
        metadata.compression = int(codec)
    return encode_entry(metadata, compress(codec, payload))


def encode_entry(metadata: MessageMetadata, payload: bytes | memoryview) -> bytes:
    """Encode metadata and a payload as an entry, with its checksum in front; return its bytes. The payload is
    compressed already as the metadata states."""
    described = metadata.SerializeToString()
    head = U32.pack(len(described)) + described
    return b"".join((MAGIC, U32.pack(extend_crc32c(crc32c(head), payload)), head, payload))
