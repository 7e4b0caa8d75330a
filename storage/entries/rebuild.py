"""Rows of ledgers become entries again, as Pulsar's clients take them: the inverse of decode.py.

An entry has the id, and in a batch the number of slots, that it had when it was produced, so every message has its id.
A slot that is not among the rows, because compaction dropped it, is a stub of six bytes that says so (W2), and is not
`live`: whoever hands the entry on tells the client to pass over it. Payloads are not compressed again, except where
they never were decompressed: chunks, encrypted messages, entries that are kept whole.

The rows of one entry may stand in two tables that follow each other; `EntryBuilder` keeps the last entry of a table
back until it is complete.

Must not know: where rows come from, who gets entries.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from storage.checksums import crc32c
from storage.entries.entry import MAGIC, U32
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.ledger.rows import CompressionType, RowType

_STUB = U32.pack(4) + b"\x18\x00\x20\x01"
"""A slot whose message was dropped: a payload of no bytes, and the flag `compacted_out`."""
_UINT64 = (1 << 64) - 1
_TABLE_COLUMNS = (
    "offset", "ledger_id", "entry_id", "batch_index", "batch_size", "key", "key_base64", "payload", "publish_time",
    "event_time", "producer", "sequence_id", "properties", "chunk_uuid", "chunk_index", "chunk_count", "codec", "slot",
    "metadata",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeliverableEntry:
    """An entry for a consumer.

    `offset`: of its first slot; `messages`: its slots, one offset each; `data`: as a producer sends it, checksum,
    metadata and payload; `live`: bit i is set if slot i is to be delivered. `batched`: its ids have batch indices.
    """

    ledger_id: int
    entry_id: int
    offset: int
    messages: int
    data: bytes
    live: int
    batched: bool

    @property
    def end(self) -> int:
        """The offset behind its last slot."""
        return self.offset + self.messages

    def from_offset(self, offset: int) -> int:
        """`live` without the slots before an offset."""
        return self.live if offset <= self.offset else self.live >> (offset - self.offset) << (offset - self.offset)


class EntryBuilder:
    """Makes entries of tables (rows.SCHEMA) that ascend."""

    def __init__(self) -> None:
        self._held: list[dict[str, Any]] = []

    def add(self, table: pa.Table) -> Iterator[DeliverableEntry]:
        """The entries that `table` completes, in order."""
        columns = [table.column(name).to_pylist() for name in _TABLE_COLUMNS]
        held = self._held
        for values in zip(*columns, strict=True):
            row = dict(zip(_TABLE_COLUMNS, values, strict=True))
            if held and (row["entry_id"] != held[-1]["entry_id"] or row["ledger_id"] != held[-1]["ledger_id"]):
                yield _rebuilt(held)
                held = []
            held.append(row)
        self._held = held
        if held and held[-1]["batch_index"] >= held[-1]["batch_size"] - 1:
            yield from self.rest()

    def rest(self) -> Iterator[DeliverableEntry]:
        """The entry that was kept back, if there is one: no more of it comes."""
        held, self._held = self._held, []
        if held:
            yield _rebuilt(held)


def _rebuilt(rows: list[dict[str, Any]]) -> DeliverableEntry:
    first = rows[0]
    batched = first["batch_index"] >= 0 and first["slot"] == RowType.MESSAGE
    if not batched:
        messages = max(1, first["batch_size"])
        data = first["payload"] or b"" if first["slot"] == RowType.WHOLE_ENTRY else _single(first)
        return DeliverableEntry(first["ledger_id"], first["entry_id"], first["offset"], messages, data, 1, False)
    live = 0
    for row in rows:
        live |= 1 << row["batch_index"]
    offset = first["offset"] - first["batch_index"]
    return DeliverableEntry(
        first["ledger_id"], first["entry_id"], offset, first["batch_size"], _batch(rows), live, True
    )


def _metadata(row: Mapping[str, Any], sequence_id: int) -> MessageMetadata:
    """What all messages of an entry share, from the row of one."""
    metadata = MessageMetadata()
    if row["metadata"]:
        metadata.MergeFromString(row["metadata"])
    metadata.ClearField("single_message_rest")
    metadata.producer_name = row["producer"] or ""
    metadata.sequence_id = sequence_id & _UINT64
    metadata.publish_time = row["publish_time"] & _UINT64
    return metadata


def _single(row: Mapping[str, Any]) -> bytes:
    """An entry of one message, or of a chunk of one."""
    metadata = _metadata(row, row["sequence_id"] or 0)
    if row["key"] is not None:
        metadata.partition_key = base64.b64encode(row["key"]) if row["key_base64"] else row["key"]
        if row["key_base64"]:
            metadata.partition_key_b64_encoded = True
    for name, value in row["properties"] or ():
        metadata.properties.add(key=name, value=value)
    if row["event_time"]:
        metadata.event_time = row["event_time"] & _UINT64
    payload = row["payload"]
    if payload is None:
        metadata.null_value = True
        payload = metadata.encrypted_null_value
        metadata.ClearField("encrypted_null_value")
    if row["slot"] == RowType.CHUNK:
        metadata.uuid = row["chunk_uuid"]
        metadata.chunk_id = row["chunk_index"]
        metadata.num_chunks_from_msg = row["chunk_count"]
    if metadata.encryption_keys or row["slot"] == RowType.CHUNK:  # stored as it came
        if row["codec"] != CompressionType.NONE:
            metadata.compression = row["codec"]
    else:
        metadata.uncompressed_size = len(payload)
    return _entry(metadata, payload)


def _batch(rows: list[dict[str, Any]]) -> bytes:
    """An entry of a batch; slots without a row are stubs."""
    first = rows[0]
    metadata = _metadata(first, (first["sequence_id"] or 0) - first["batch_index"])
    metadata.ClearField("ordering_key")
    metadata.ClearField("null_partition_key")
    metadata.num_messages_in_batch = first["batch_size"]
    rest, own = None, b""
    pieces: list[bytes] = []
    slot = 0
    for row in rows:
        index = row["batch_index"]
        if index > slot:
            pieces.append(_STUB * (index - slot))
        slot = index + 1
        payload = row["payload"]
        if row["metadata"] != rest:  # most messages of a batch have the same
            rest = row["metadata"]
            own = _own_fields(rest)
        described = _described(row, payload) + own
        pieces.append(U32.pack(len(described)))
        pieces.append(described)
        if payload:
            pieces.append(payload)
    pieces.append(_STUB * (first["batch_size"] - slot))
    payload = b"".join(pieces)
    metadata.uncompressed_size = len(payload)
    return _entry(metadata, payload)


def _own_fields(rest: bytes | None) -> bytes:
    """What the column `metadata` holds of one message of a batch, as fields of its SingleMessageMetadata."""
    metadata = MessageMetadata.FromString(rest or b"")
    found = b""
    if metadata.HasField("ordering_key"):
        found += b"\x3a" + _varint(len(metadata.ordering_key)) + metadata.ordering_key
    if metadata.null_partition_key:
        found += b"\x50\x01"
    return found + metadata.single_message_rest


def _described(row: Mapping[str, Any], payload: bytes | None) -> bytes:
    """The SingleMessageMetadata of a row: written by hand, as each message has one."""
    found = b""
    for name, value in row["properties"] or ():
        name, value = name.encode(), value.encode()
        item = b"\x0a" + _varint(len(name)) + name + b"\x12" + _varint(len(value)) + value
        found += b"\x0a" + _varint(len(item)) + item
    key = row["key"]
    if key is not None:
        if row["key_base64"]:
            key = base64.b64encode(key)
        found += b"\x12" + _varint(len(key)) + key
    found += b"\x18" + _varint(len(payload) if payload else 0)
    if row["event_time"]:
        found += b"\x28" + _varint(row["event_time"] & _UINT64)
    if key is not None and row["key_base64"]:
        found += b"\x30\x01"
    if row["sequence_id"] is not None:
        found += b"\x40" + _varint(row["sequence_id"] & _UINT64)
    if payload is None:
        found += b"\x48\x01"
    return found


def _entry(metadata: MessageMetadata, payload: bytes) -> bytes:
    described = metadata.SerializeToString()
    body = b"".join((U32.pack(len(described)), described, payload))
    return MAGIC + U32.pack(crc32c(body)) + body


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number]
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


_SMALL = [bytes((number,)) for number in range(0x80)]
