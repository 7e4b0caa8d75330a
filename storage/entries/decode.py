"""Entries of the log become rows of a ledger: one row for each message, or one for an entry that cannot be decoded.

Invariants: an entry has exactly as many rows as offsets, so offsets stay dense; no stored byte is lost; no entry,
however damaged, makes the decoding fail (P8).

| entry | rows |
|---|---|
| a message, or a batch | slot MESSAGE; in a batch a message that was compacted out before: COMPACTED_OUT (W2) |
| a chunk (P10) | slot CHUNK; its payload as stored, as the whole message was compressed before it was cut |
| an encrypted message | slot MESSAGE, the payload its ciphertext, or null if its null_value flag is set (P5) |
| an encrypted batch | slot WHOLE_ENTRY, one row, the payload all bytes of the entry |
| a marker | slot MARKER, its payload as stored, never delivered |
| an entry that cannot be decoded | slot WHOLE_ENTRY, then COMPACTED_OUT rows for the other offsets that it took |

Must not know: files, segments, sealing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage.entries.batch import Messages, collect_properties, split_batch
from storage.entries.bulk_batch import Batch, decode_batches
from storage.entries.columns import ChunkRow, EntryFields, RowColumns, batch_table
from storage.entries.compression import Undecodable, decompress
from storage.entries.entry import EntryHeader, decode_key, parse_metadata
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.entries.source_position import without_position
from storage.errors import InvalidRecord
from storage.ledger.rows import CompressionType, RowType

_CODECS = {int(codec): codec for codec in CompressionType}
_COLUMN_FIELDS = ("producer_name", "sequence_id", "publish_time", "single_message_rest", "encrypted_null_value")
_PAYLOAD_FIELDS = (
    "partition_key",
    "partition_key_b64_encoded",
    "compression",
    "event_time",
    "null_value",
    "num_messages_in_batch",
)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry of the log: its id, its first offset, its bytes, and the header that `inspect` returned for them."""

    entry_id: int
    offset: int
    data: bytes
    header: EntryHeader


@dataclass(frozen=True, slots=True)
class _ParsedBatch:
    """A batch whose metadata is parsed and whose payload is uncompressed. `fields`: the fields of its entry; `rest`:
    the metadata that goes with each of its messages."""

    fields: EntryFields
    batch: Batch
    rest: MessageMetadata


def unpack(entries: Sequence[StoredEntry], ledger_id: int) -> pa.Table:
    """Decode entries that follow each other in one ledger; return their messages as a table (rows.SCHEMA)."""
    return pa.concat_tables(unpack_in_blocks(entries, ledger_id))


def unpack_in_blocks(entries: Sequence[StoredEntry], ledger_id: int) -> Iterator[pa.Table]:
    """Decode entries as `unpack` does, and yield one table for each block of neighbouring entries, at least one table.

    A caller that uses each table before the next finds it in a core's cache.
    """
    batches = {number: batch for number, entry in enumerate(entries) if (batch := _try_parse_batch(entry)) is not None}
    numbers = list(batches)
    first = first_batch = 0
    for block in decode_batches([decoded.batch for decoded in batches.values()]):
        end = numbers[block.end] if block.end < len(numbers) else len(entries)
        decoded = {numbers[first_batch + at] for at in np.flatnonzero(block.decoded).tolist()}
        columns = RowColumns()
        for number in range(first, end):
            if number not in decoded:
                try:
                    _add_entry(columns, entries[number], batches.get(number))
                except (InvalidRecord, Undecodable):
                    _add_undecoded_entry(columns, entries[number])
        if block.columns is None:
            yield columns.table(ledger_id)
        else:
            table = batch_table(ledger_id, [batches[number].fields for number in sorted(decoded)], block.columns)
            yield _merge_by_offset(table, columns.table(ledger_id)) if len(columns) else table
        first, first_batch = end, block.end


def _merge_by_offset(table: pa.Table, other: pa.Table) -> pa.Table:
    """Return the rows of two tables as one table, ascending by offset."""
    both = pa.concat_tables([table, other])
    return both.take(np.argsort(both.column("offset").to_numpy()))


def _try_parse_batch(entry: StoredEntry) -> _ParsedBatch | None:
    """Parse the entry of a batch; return None for any other entry, and for one that cannot be decoded."""
    header = entry.header
    if not header.batched or header.encrypted or header.marker:
        return None
    try:
        return _parse_batch(entry, *parse_metadata(entry.data, checksum_verified=True))
    except (InvalidRecord, Undecodable):
        return None


def _parse_batch(entry: StoredEntry, metadata: MessageMetadata, payload_at: int) -> _ParsedBatch:
    if metadata.num_chunks_from_msg > 1:
        raise Undecodable("a batch is no chunk; the size that a chunk claims was not checked (entry.py)")
    codec = _codec_of(metadata)
    stored = memoryview(entry.data)[payload_at:]
    data = stored if codec == CompressionType.NONE else decompress(codec, bytes(stored), metadata.uncompressed_size)
    batch = Batch(data, entry.header.messages, metadata.sequence_id, metadata.event_time)
    # The batch's own metadata goes with each of its messages. A key and an ordering key are each message's own.
    _clear_fields(metadata, *_COLUMN_FIELDS, *_PAYLOAD_FIELDS, "uncompressed_size", "ordering_key")
    rest = metadata.SerializePartialToString() or None
    fields = _entry_fields(entry, batched=True, batch_size=batch.count, codec=codec, metadata=rest)
    return _ParsedBatch(fields, batch, metadata)


def _add_entry(columns: RowColumns, entry: StoredEntry, decoded: _ParsedBatch | None) -> None:
    """Append the rows of an entry to `columns`. Raises InvalidRecord or Undecodable; then no row was appended."""
    if decoded is not None:
        batch = decoded.batch
        messages = split_batch(bytes(batch.data), batch.count, batch.sequence_id, batch.event_time, decoded.rest)
        columns.add(decoded.fields, messages)
        return
    metadata, payload_at = parse_metadata(entry.data, checksum_verified=True)
    if metadata.HasField("marker_type"):
        _add_marker(columns, entry, metadata, payload_at)
    elif entry.header.batched:  # encrypted, or it cannot be decoded
        _add_undecoded_entry(columns, entry)
    else:
        _add_message(columns, entry, metadata, payload_at)


def _add_message(columns: RowColumns, entry: StoredEntry, metadata: MessageMetadata, payload_at: int) -> None:
    codec = _codec_of(metadata)
    is_chunk = metadata.num_chunks_from_msg > 1
    opaque = is_chunk or entry.header.encrypted
    stored = entry.data[payload_at:]
    messages = Messages(sequence_ids=[metadata.sequence_id])
    if metadata.HasField("partition_key"):
        messages.keys.append(_decode_message_key(metadata))
        messages.base64_keys += [0] * metadata.partition_key_b64_encoded
    else:
        messages.keys.append(None)
    is_null = metadata.null_value and not is_chunk
    if opaque and not stored and not is_null:
        raise Undecodable("a ciphertext or a chunk without a byte would read as a tombstone")
    messages.payloads.append(
        None if is_null else stored if opaque else decompress(codec, stored, metadata.uncompressed_size)
    )
    if metadata.event_time:
        messages.event_times.append((0, metadata.event_time))
    collect_properties(metadata, messages.property_keys, messages.property_values)
    if messages.property_keys:
        messages.property_counts.append((0, len(messages.property_keys)))
    chunk = _chunk_row(metadata) if is_chunk else None
    _clear_fields(metadata, *_COLUMN_FIELDS, *_PAYLOAD_FIELDS, "properties")
    if chunk is not None:
        messages.slots.append((0, RowType.CHUNK))
        _clear_fields(metadata, "uuid", "chunk_id", "num_chunks_from_msg")
    if not opaque:
        _clear_fields(metadata, "uncompressed_size")
    if entry.header.encrypted and is_null and stored:
        metadata.encrypted_null_value = stored
    rest = metadata.SerializePartialToString() or None
    columns.add(_entry_fields(entry, codec=codec, metadata=rest), messages, chunk)


def _add_marker(columns: RowColumns, entry: StoredEntry, metadata: MessageMetadata, payload_at: int) -> None:
    sequence_id = metadata.sequence_id
    _clear_fields(metadata, *_COLUMN_FIELDS)
    rest = metadata.SerializePartialToString() or None
    _add_row_and_fillers(columns, entry, entry.data[payload_at:], RowType.MARKER, sequence_id, rest)


def _add_undecoded_entry(columns: RowColumns, entry: StoredEntry) -> None:
    sequence_id = entry.header.sequence_id & ((1 << 64) - 1)
    _add_row_and_fillers(columns, entry, without_position(entry.data), RowType.WHOLE_ENTRY, sequence_id, None)


def _add_row_and_fillers(
    columns: RowColumns, entry: StoredEntry, payload: bytes, slot: RowType, sequence_id: int, rest: bytes | None
) -> None:
    count = entry.header.messages
    messages = Messages(keys=[None] * count, payloads=[None] * count, sequence_ids=[sequence_id] * count)
    messages.payloads[0] = payload
    messages.slots.append((0, slot))
    messages.slots += [(row, RowType.COMPACTED_OUT) for row in range(1, count)]
    columns.add(_entry_fields(entry, batch_size=count if count > 1 else 0, metadata=rest), messages)


def _entry_fields(
    entry: StoredEntry,
    *,
    batched: bool = False,
    batch_size: int = 0,
    codec: CompressionType = CompressionType.NONE,
    metadata: bytes | None = None,
) -> EntryFields:
    """Return the fields that all rows of an entry have in common."""
    header = entry.header
    fields = (header.publish_time, header.producer, batched, batch_size, int(codec), metadata, header.source)
    return EntryFields(entry.entry_id, entry.offset, *fields)


def _codec_of(metadata: MessageMetadata) -> CompressionType:
    codec = _CODECS.get(metadata.compression)
    if codec is None:
        raise Undecodable(f"compression {metadata.compression} is not known")
    return codec


def _decode_message_key(metadata: MessageMetadata) -> bytes:
    try:
        return decode_key(metadata.partition_key, metadata.partition_key_b64_encoded)
    except ValueError as error:
        raise Undecodable("a key is marked as base64 and is not") from error


def _chunk_row(metadata: MessageMetadata) -> ChunkRow:
    uuid, index, count = metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg
    if not metadata.HasField("uuid") or not isinstance(uuid, str) or not 0 <= index < count:
        raise Undecodable(f"chunk {index} of {count} does not name its message")
    return ChunkRow(uuid, index, count)


def _clear_fields(metadata: MessageMetadata, *names: str) -> None:
    for name in names:
        metadata.ClearField(name)
