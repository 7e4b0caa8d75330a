"""A row as a message with all that its producer sent, for a view of single messages.

`storage.model.Message` is what a reader gets: key, payload, times and properties. A `StoredMessage` also has the
producer, its sequence id, the batch or chunk, compression, the version of the schema, and the names of encryption keys.
Each chunk is a message of its own here. Payloads may be cut, so that a page of large messages stays small.

Must not know: files, segments, sealing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from storage.entries.entry import parse_metadata
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.errors import InvalidRecord
from storage.ledger import rows
from storage.ledger.rows import CompressionType, RowType
from storage.model import MessageId


@dataclass(frozen=True)
class StoredMessage:
    """A row as a message with all that its producer sent. Times are milliseconds since the Unix epoch.

    `payload`: the first bytes, of `payload_size`; of a WHOLE_ENTRY, of the entry as it was sent. `batch_size`: the
    number of messages in its entry; 0: it is in no batch. `chunk_index` None: it is no chunk. `schema_version`: as the
    producer sent it; None: it sent none. `encryption_keys`: their names; empty: it is not encrypted.
    """

    offset: int
    message_id: MessageId
    kind: RowType
    key: bytes | None
    payload: bytes | None
    payload_size: int
    publish_time: int
    event_time: int | None
    producer: str | None
    sequence_id: int | None
    properties: tuple[tuple[str, str], ...]
    batch_size: int
    chunk_uuid: str | None
    chunk_index: int | None
    chunk_count: int | None
    compression: CompressionType
    schema_version: bytes | None = None
    encryption_keys: tuple[str, ...] = ()

    @property
    def is_tombstone(self) -> bool:
        """True if this message deletes its key."""
        return self.kind is RowType.MESSAGE and self.key is not None and not self.payload_size

    @property
    def is_cut(self) -> bool:
        """True if `payload` is cut: it has fewer than `payload_size` bytes."""
        return self.payload_size > len(self.payload or b"")


def stored_messages(batch: pa.RecordBatch, partition: int, payload_bytes: int) -> Iterator[StoredMessage]:
    """Yield the rows of a record batch (rows.SCHEMA) as messages, with at most `payload_bytes` of each payload."""
    payload = batch.column("payload")
    place = batch.schema.get_field_index("payload")
    cut = batch.set_column(place, rows.SCHEMA.field("payload"), pc.binary_slice(payload, 0, payload_bytes))
    sizes = pc.fill_null(pc.binary_length(payload), 0).to_pylist()
    for row, size in zip(cut.to_pylist(), sizes, strict=True):
        yield _stored_message(row, size, partition)


def _stored_message(row: Mapping[str, Any], size: int, partition: int) -> StoredMessage:
    metadata = _metadata_of_row(row)
    codec = row["codec"]
    return StoredMessage(
        row["offset"],
        MessageId(row["ledger_id"], row["entry_id"], partition, row["batch_index"]),
        RowType(row["slot"]),
        row["key"],
        row["payload"],
        size,
        row["publish_time"],
        row["event_time"],
        row["producer"],
        row["sequence_id"],
        tuple(row["properties"] or ()),
        row["batch_size"],
        row["chunk_uuid"],
        row["chunk_index"],
        row["chunk_count"],
        CompressionType(codec) if codec in CompressionType._value2member_map_ else CompressionType.NONE,
        metadata.schema_version if metadata.HasField("schema_version") else None,
        tuple(key.key for key in metadata.encryption_keys),
    )


def _metadata_of_row(row: Mapping[str, Any]) -> MessageMetadata:
    """Return the metadata of a row that no column holds; for an entry that is kept whole, the entry's metadata. Empty
    if it cannot be parsed."""
    if row["slot"] == int(RowType.WHOLE_ENTRY):
        with suppress(InvalidRecord):
            return parse_metadata(row["payload"] or b"")[0]
        return MessageMetadata()
    metadata = MessageMetadata()
    with suppress(DecodeError):
        metadata.MergeFromString(row["metadata"] or b"")
    return metadata
