"""An entry as Pulsar's producers send it and its brokers store it: the content of its metadata, without its payload.

    [0x0e02, size, broker entry metadata] [0x0e01, CRC32C] size, MessageMetadata, payload

Numbers are big-endian; the first part is a broker's own and is skipped, but for a source position
(source_position.py). A client may omit the second, which is checked if it is present: it covers everything after it.
`inspect` is on the path of every append, so it reads the metadata once and never decodes a payload. An entry that it
accepts may still turn out to be undecodable (decode.py); but the number of its offsets is decided here, finally.

Raises InvalidRecord and nothing else, for any bytes.

Must not know: segments, rows, files. Sources: Pulsar's Commands.parseMessageMetadata, ConsumerImpl.messageReceived.
"""

from __future__ import annotations

import base64
import binascii
from struct import (
    Struct,
    error as StructError,  # noqa: N812
)
from typing import NamedTuple

from google.protobuf.message import DecodeError

from storage.checksums import crc32c
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.entries.source_position import position_of
from storage.errors import ChecksumMismatch, InvalidRecord
from storage.ledger import rows
from storage.model import SourcePosition

MAGIC = b"\x0e\x01"
BROKER_MAGIC = b"\x0e\x02"
U32 = Struct(">I")
MAX_BATCH_MESSAGES = 1 << 18
"""More messages than this in one entry are a mistake or an attack: each takes an offset and a row."""
SMALLEST_IN_BATCH = 6
"""The least bytes of a message in a batch: the size of its metadata, and in that the size of its payload."""

_SIGN = 1 << 63
_COPIED_BYTES = 1 << 12
_REMEDY = "send entries as Pulsar's clients encode them; nothing of this one was kept"


class EntryHeader(NamedTuple):
    """The header of an entry, from its metadata. Times: milliseconds since the Unix epoch.

    `messages`: the number of its offsets, 1 if it is encrypted. `logical_bytes`: the logical bytes
    (`rows.logical_sizes`) of its rows once it is sealed: exact for a message that is not in a batch, an upper bound for
    a batch. `stored_bytes`: the bytes of its payload as it was sent; `payload_bytes`: uncompressed. `codec`: the
    compression that `stored_bytes` have, 0 for a payload that is kept as it is. `key`: of a message that is not in a
    batch; None: no key, or a batch. `marker`: a broker's own entry, which no reader gets. `source`: the position of a
    replicated entry at its source.
    """

    messages: int
    batched: bool
    publish_time: int
    logical_bytes: int
    encrypted: bool
    producer: str
    sequence_id: int
    key: bytes | None
    payload_bytes: int
    marker: bool = False
    stored_bytes: int = 0
    codec: int = 0
    source: SourcePosition | None = None


class ParsedMetadata(NamedTuple):
    """The parsed metadata of an entry. `payload_at`: the position of the payload in the entry's bytes."""

    metadata: MessageMetadata
    payload_at: int


def inspect(entry: bytes) -> EntryHeader:
    """Parse the metadata of an entry, and return the header; the payload is not decoded.

    Raises InvalidRecord for a malformed entry and an implausible count or size; ChecksumMismatch for a wrong checksum.
    """
    metadata, payload_at = parse_metadata(entry)
    producer = metadata.producer_name
    if not isinstance(producer, str):  # protobuf gives bytes that are not UTF-8 as they are
        raise _invalid_entry_error("its producer's name is not UTF-8")
    encrypted = len(metadata.encryption_keys) > 0
    batched = metadata.HasField("num_messages_in_batch")
    stored = len(entry) - payload_at
    is_chunk = metadata.num_chunks_from_msg > 1
    codec = 0 if encrypted or is_chunk else metadata.compression
    payload_bytes = metadata.uncompressed_size if codec else stored
    if payload_bytes > rows.MAX_MESSAGE_BYTES:
        raise InvalidRecord(
            f"an entry of producer {producer!r} has {payload_bytes} bytes",
            f"an entry holds at most {rows.MAX_MESSAGE_BYTES} bytes, uncompressed; nothing of it was kept",
        )
    messages = 1
    if batched and not encrypted:
        messages = metadata.num_messages_in_batch
        if not 1 <= messages <= min(MAX_BATCH_MESSAGES, payload_bytes // SMALLEST_IN_BATCH):
            raise _invalid_entry_error(f"it claims {messages} messages in {payload_bytes} bytes")
    key = None if batched else _unbatched_key(metadata)
    marker = metadata.HasField("marker_type")
    if marker:
        logical_bytes = stored
    elif batched:
        logical_bytes = len(entry) if encrypted else payload_bytes - SMALLEST_IN_BATCH * messages
    else:
        logical_bytes = payload_bytes if is_chunk or not metadata.null_value else 0
        if key is not None:
            logical_bytes += len(key)
        for item in metadata.properties:
            logical_bytes += _utf8_length(item.key) + _utf8_length(item.value)
    return EntryHeader(
        messages,
        batched,
        signed(metadata.publish_time),
        logical_bytes,
        encrypted,
        producer,
        signed(metadata.sequence_id),
        key,
        payload_bytes,
        marker,
        stored,
        codec,
        position_of(entry),
    )


def claimed_metadata_bytes(entry: bytes) -> int:
    """Return the size in bytes that an entry claims for its metadata, without a check; 0: the entry ends before that
    number."""
    try:
        at = 6 + U32.unpack_from(entry, 2)[0] if entry.startswith(BROKER_MAGIC) else 0
        at += 6 if entry.startswith(MAGIC, at) else 0
        return int(U32.unpack_from(entry, at)[0])
    except StructError:
        return 0


def parse_metadata(entry: bytes, checksum_verified: bool = False) -> ParsedMetadata:
    """Parse the metadata of an entry; return the metadata, and the position of the payload.

    `checksum_verified`: the entry's checksum was verified before, and is not verified again. Raises InvalidRecord,
    ChecksumMismatch.
    """
    at = 0
    try:
        if entry.startswith(BROKER_MAGIC):
            at = 6 + U32.unpack_from(entry, 2)[0]
        if entry.startswith(MAGIC, at):
            at += 6
            if not checksum_verified and _crc32c_of_rest(entry, at) != U32.unpack_from(entry, at - 4)[0]:
                raise _invalid_entry_error("its checksum is not that of its bytes", ChecksumMismatch)
        end = at + 4 + U32.unpack_from(entry, at)[0]
    except StructError as error:
        raise _invalid_entry_error(f"it ends after {len(entry)} bytes, before its metadata") from error
    if end > len(entry):
        raise _invalid_entry_error(f"its metadata ends at byte {end} of {len(entry)}")
    try:
        metadata = MessageMetadata.FromString(entry[at + 4 : end])
    except DecodeError as error:
        raise _invalid_entry_error("its metadata is not a MessageMetadata") from error
    if not metadata.IsInitialized():
        raise _invalid_entry_error("its metadata leaves out what it must hold")
    return ParsedMetadata(metadata, end)


def decode_key(key: bytes, in_base64: bool) -> bytes:
    """Return the bytes of a partition key, decoded if it is in base64 (P10). Raises ValueError if it is not valid
    base64.

    `in_base64`: the key's mark; a key without it is returned as it is. Padding may be missing, as Java allows.
    """
    return base64.b64decode(key + b"=" * (-len(key) % 4), validate=True) if in_base64 else key


def signed(unsigned: int) -> int:
    """Convert an unsigned 64-bit number to the signed one with the same bits, as Java's clients interpret a uint64."""
    return unsigned - 2 * _SIGN if unsigned >= _SIGN else unsigned


def _crc32c_of_rest(entry: bytes, at: int) -> int:
    # a slice of a small one costs less than a view of it
    return crc32c(entry[at:] if len(entry) < _COPIED_BYTES else memoryview(entry)[at:])


def _unbatched_key(metadata: MessageMetadata) -> bytes | None:
    if not metadata.HasField("partition_key"):
        return None
    try:
        return decode_key(metadata.partition_key, metadata.partition_key_b64_encoded)
    except binascii.Error as error:
        raise _invalid_entry_error("its key is marked as base64 and is not") from error


def _utf8_length(text: str | bytes) -> int:
    return len(text.encode() if isinstance(text, str) else text)  # protobuf gives bytes that are not UTF-8 as they are


def _invalid_entry_error(what: str, kind: type[InvalidRecord] = InvalidRecord) -> InvalidRecord:
    return kind(f"an entry cannot be taken: {what}", _REMEDY)
