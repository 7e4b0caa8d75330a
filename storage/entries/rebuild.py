"""Rows of ledgers become entries again, as Pulsar's clients receive them: the inverse of decode.py.

An entry has the id, and in a batch the number of slots, that it had when it was produced, so every message has its id.
A slot without a row, because compaction dropped it, becomes a stub of six bytes with the flag for that (W2), and is not
in `live_mask`: the code that delivers the entry tells the client to skip it. Payloads are compressed again with the
codec that the entry had when it was produced (column `codec`), because a client refuses an entry larger than its
largest message, and a producer may send a compressed entry of any uncompressed size. Payloads that never were
decompressed stay as they are: chunks, encrypted messages, entries that are kept whole.

The rows of one entry may be in two consecutive tables; `EntryBuilder` keeps the last entry of a table until it is
complete.

Must not know: the source of rows, the receivers of entries.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.entries.compression import recompress
from storage.entries.encode import encode_entry
from storage.entries.entry import U32
from storage.entries.plain_messages import STUB, encode_plain_messages
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.ledger.rows import CompressionType, RowType

_UINT64 = (1 << 64) - 1
_MOST_RESTS = 64
"""The most different values of the column `metadata` in a table that is converted column by column."""
_SHARED_COLUMNS = (
    "offset", "ledger_id", "entry_id", "batch_index", "batch_size", "key", "key_base64", "publish_time",
    "producer", "sequence_id", "metadata", "codec",
)  # fmt: skip
_TABLE_COLUMNS = (
    "offset", "ledger_id", "entry_id", "batch_index", "batch_size", "key", "key_base64", "payload", "publish_time",
    "event_time", "producer", "sequence_id", "properties", "chunk_uuid", "chunk_index", "chunk_count", "codec", "slot",
    "metadata",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeliverableEntry:
    """An entry as it is delivered to a consumer.

    `offset`: of its first slot; `messages`: the number of its slots, one offset each; `data`: as a producer sends it,
    checksum, metadata and payload; `live_mask`: bit i is set if slot i is to be delivered. `batched`: its ids have
    batch indices.
    """

    ledger_id: int
    entry_id: int
    offset: int
    messages: int
    data: bytes
    live_mask: int
    batched: bool

    @property
    def end(self) -> int:
        """The offset after the entry's last slot."""
        return self.offset + self.messages


class EntryBuilder:
    """A builder of entries from tables (rows.SCHEMA) whose rows ascend by offset, from one table to the next, too."""

    def __init__(self) -> None:
        self._held: pa.Table | None = None

    def add(self, table: pa.Table) -> Iterator[DeliverableEntry]:
        """Yield the entries that are complete with the rows of `table` (at least one row), in order.

        The last entry is kept for the next call if more of its rows may follow.
        """
        if self._held is not None:
            table, self._held = pa.concat_tables([self._held, table]), None
        last = _entry_starts(table)[-1]
        whole = table.column("batch_index")[-1].as_py() >= table.column("batch_size")[-1].as_py() - 1
        if not whole:
            self._held = table.slice(last)
            table = table.slice(0, last)
        if len(table):
            yield from _build_entries(table)

    def remaining(self) -> Iterator[DeliverableEntry]:
        """Yield the entry that was kept, if there is one: the caller has no more rows."""
        held, self._held = self._held, None
        if held is not None:
            yield from _build_entries(held)


def _entry_starts(table: pa.Table) -> npt.NDArray[np.int64]:
    """Return the number of the first row of each entry in a table."""
    entry, ledger = table.column("entry_id").to_numpy(), table.column("ledger_id").to_numpy()
    changes = (entry[1:] != entry[:-1]) | (ledger[1:] != ledger[:-1])
    return np.concatenate(([0], np.flatnonzero(changes) + 1))


def _build_entries(table: pa.Table) -> Iterator[DeliverableEntry]:
    starts = _entry_starts(table)
    ends = np.append(starts[1:], len(table))
    if _has_only_plain_messages(table):
        yield from _build_plain_batches(table.combine_chunks(), starts, ends)
        return
    columns = [table.column(name).to_pylist() for name in _TABLE_COLUMNS]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = zip(*(column[start:end] for column in columns), strict=True)
        yield _build_entry([dict(zip(_TABLE_COLUMNS, values, strict=True)) for values in rows])


def _has_only_plain_messages(table: pa.Table) -> bool:
    """Return whether all rows are batched messages with only a key, a payload, an event time and a sequence id."""
    if table.column("properties").null_count < len(table) or pc.any(table.column("key_base64")).as_py():
        return False
    if pc.min(table.column("batch_index")).as_py() < 0 or pc.max(table.column("slot")).as_py() != RowType.MESSAGE:
        return False
    if table.column("sequence_id").null_count:
        return False
    rests = pc.unique(table.column("metadata"))
    return len(rests) <= _MOST_RESTS and not any(_encode_rest_fields(rest.as_py()) for rest in rests)


def _build_plain_batches(
    table: pa.Table, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Iterator[DeliverableEntry]:
    """Build the entries of a table of plain batched messages, whole columns at once. `starts`, `ends`: the rows of each
    entry."""
    index = table.column("batch_index").to_numpy().astype(np.int64)
    before = np.empty_like(index)
    before[1:] = index[:-1]
    before[starts] = -1
    times = table.column("event_time")
    at, data = encode_plain_messages(
        table.column("key").chunk(0),
        table.column("payload").chunk(0),
        None if times.null_count == len(times) else pc.fill_null(times, 0).to_numpy(),
        table.column("sequence_id").to_numpy(),
        index - before - 1,
    )
    first = table.select(_SHARED_COLUMNS).take(starts)
    shared = [first.column(name).to_pylist() for name in _SHARED_COLUMNS]
    edges = zip(starts.tolist(), ends.tolist(), at[starts].tolist(), at[ends].tolist(), strict=True)
    for number, (start, end, first_byte, end_byte) in enumerate(edges):
        row = {name: column[number] for name, column in zip(_SHARED_COLUMNS, shared, strict=True)}
        size = row["batch_size"]
        dropped = size - int(index[end - 1]) - 1
        payload = data[first_byte:end_byte].tobytes() + STUB * dropped
        metadata = _batch_metadata(row)
        slots = (1 << size) - 1 if end - start == size else sum(1 << slot for slot in index[start:end].tolist())
        offset = row["offset"] - int(index[start])
        encoded = _compress_and_encode(metadata, payload, row["codec"])
        yield DeliverableEntry(row["ledger_id"], row["entry_id"], offset, size, encoded, slots, True)


def _build_entry(rows: list[dict[str, Any]]) -> DeliverableEntry:
    first = rows[0]
    batched = first["batch_index"] >= 0 and first["slot"] == RowType.MESSAGE
    if not batched:
        messages = max(1, first["batch_size"])
        data = first["payload"] or b"" if first["slot"] == RowType.WHOLE_ENTRY else _encode_single_message(first)
        return DeliverableEntry(first["ledger_id"], first["entry_id"], first["offset"], messages, data, 1, False)
    live = 0
    for row in rows:
        live |= 1 << row["batch_index"]
    offset = first["offset"] - first["batch_index"]
    return DeliverableEntry(
        first["ledger_id"], first["entry_id"], offset, first["batch_size"], _encode_batch(rows), live, True
    )


def _entry_metadata(row: Mapping[str, Any], sequence_id: int) -> MessageMetadata:
    """Return the metadata that all messages of an entry have in common, from the row of one of them."""
    metadata = MessageMetadata()
    if row["metadata"]:
        metadata.MergeFromString(row["metadata"])
    metadata.ClearField("single_message_rest")
    metadata.producer_name = row["producer"] or ""
    metadata.sequence_id = sequence_id & _UINT64
    metadata.publish_time = row["publish_time"] & _UINT64
    return metadata


def _set_key(metadata: MessageMetadata, row: Mapping[str, Any]) -> None:
    if row["key"] is not None:
        metadata.partition_key = base64.b64encode(row["key"]) if row["key_base64"] else row["key"]
        if row["key_base64"]:
            metadata.partition_key_b64_encoded = True


def _encode_single_message(row: Mapping[str, Any]) -> bytes:
    """Encode an entry of one message, or of one chunk of a message, from its row; return its bytes."""
    metadata = _entry_metadata(row, row["sequence_id"] or 0)
    _set_key(metadata, row)
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
    if metadata.encryption_keys or row["slot"] == RowType.CHUNK:  # stored as it was sent
        if row["codec"] != CompressionType.NONE:
            metadata.compression = row["codec"]
        return encode_entry(metadata, payload)
    return _compress_and_encode(metadata, payload, row["codec"])


def _batch_metadata(row: Mapping[str, Any]) -> MessageMetadata:
    """Return the metadata of a batch, from the row of its first message, whose key clients give to the batch, too."""
    metadata = _entry_metadata(row, (row["sequence_id"] or 0) - row["batch_index"])
    _set_key(metadata, row)
    metadata.ClearField("null_partition_key")
    metadata.num_messages_in_batch = row["batch_size"]
    return metadata


def _encode_batch(rows: list[dict[str, Any]]) -> bytes:
    """Encode the entry of a batch from the rows of its messages; return its bytes. A slot without a row becomes a
    stub."""
    first = rows[0]
    metadata = _batch_metadata(first)
    rest, own = None, b""
    pieces: list[bytes] = []
    slot = 0
    for row in rows:
        index = row["batch_index"]
        if index > slot:
            pieces.append(STUB * (index - slot))
        slot = index + 1
        payload = row["payload"]
        if row["metadata"] != rest:  # most messages of a batch have the same
            rest = row["metadata"]
            own = _encode_rest_fields(rest)
        described = _encode_single_metadata(row, payload) + own
        pieces.append(U32.pack(len(described)))
        pieces.append(described)
        if payload:
            pieces.append(payload)
    pieces.append(STUB * (first["batch_size"] - slot))
    return _compress_and_encode(metadata, b"".join(pieces), first["codec"])


def _encode_rest_fields(rest: bytes | None) -> bytes:
    """Return the encoded fields of a message's SingleMessageMetadata that only the column `metadata` holds. `rest`: its
    value."""
    metadata = MessageMetadata.FromString(rest or b"")
    fields = b""
    if metadata.HasField("ordering_key"):
        fields += b"\x3a" + _encode_varint(len(metadata.ordering_key)) + metadata.ordering_key
    if metadata.null_partition_key:
        fields += b"\x50\x01"
    return fields + metadata.single_message_rest


def _encode_single_metadata(row: Mapping[str, Any], payload: bytes | None) -> bytes:
    """Encode the SingleMessageMetadata of a row from its columns; return its bytes. It is encoded by hand, as each
    message has one."""
    encoded = b""
    for name, value in row["properties"] or ():
        name, value = name.encode(), value.encode()
        item = b"\x0a" + _encode_varint(len(name)) + name + b"\x12" + _encode_varint(len(value)) + value
        encoded += b"\x0a" + _encode_varint(len(item)) + item
    key = row["key"]
    if key is not None:
        if row["key_base64"]:
            key = base64.b64encode(key)
        encoded += b"\x12" + _encode_varint(len(key)) + key
    encoded += b"\x18" + _encode_varint(len(payload) if payload else 0)
    if row["event_time"]:
        encoded += b"\x28" + _encode_varint(row["event_time"] & _UINT64)
    if key is not None and row["key_base64"]:
        encoded += b"\x30\x01"
    if row["sequence_id"] is not None:
        encoded += b"\x40" + _encode_varint(row["sequence_id"] & _UINT64)
    if payload is None:
        encoded += b"\x48\x01"
    return encoded


def _compress_and_encode(metadata: MessageMetadata, payload: bytes, codec: int) -> bytes:
    """Compress a payload, and encode it as an entry; return its bytes. An empty payload stays empty with every
    codec."""
    metadata.uncompressed_size = len(payload)
    if codec != CompressionType.NONE and payload:
        metadata.compression = codec
        payload = recompress(CompressionType(codec), payload)
    return encode_entry(metadata, payload)


def _encode_varint(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number]
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SMALL = [bytes((number,)) for number in range(0x80)]
