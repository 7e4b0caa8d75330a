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
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.ledger.rows import CompressionType, RowType

_STUB = U32.pack(4) + b"\x18\x00\x20\x01"
"""A slot whose message was dropped: a payload of no bytes, and the flag `compacted_out`."""
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
    """An entry for a consumer.

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
        """The offset after its last slot."""
        return self.offset + self.messages


class EntryBuilder:
    """A builder of entries from tables (rows.SCHEMA) whose rows ascend by offset, from one table to the next, too."""

    def __init__(self) -> None:
        self._held: pa.Table | None = None

    def add(self, table: pa.Table) -> Iterator[DeliverableEntry]:
        """Yield the entries that `table` (at least one row) completes, in order.

        An entry that it begins is kept for the next call.
        """
        if self._held is not None:
            table, self._held = pa.concat_tables([self._held, table]), None
        last = _starts(table)[-1]
        whole = table.column("batch_index")[-1].as_py() >= table.column("batch_size")[-1].as_py() - 1
        if not whole:
            self._held = table.slice(last)
            table = table.slice(0, last)
        if len(table):
            yield from _entries(table)

    def remaining(self) -> Iterator[DeliverableEntry]:
        """Yield the entry that was kept, if there is one: no more of its rows follow."""
        held, self._held = self._held, None
        if held is not None:
            yield from _entries(held)


def _starts(table: pa.Table) -> npt.NDArray[np.int64]:
    """Return the first row of each entry."""
    entry, ledger = table.column("entry_id").to_numpy(), table.column("ledger_id").to_numpy()
    changes = (entry[1:] != entry[:-1]) | (ledger[1:] != ledger[:-1])
    return np.concatenate(([0], np.flatnonzero(changes) + 1))


def _entries(table: pa.Table) -> Iterator[DeliverableEntry]:
    starts = _starts(table)
    ends = np.append(starts[1:], len(table))
    if _is_plain(table):
        yield from _plain_batches(table.combine_chunks(), starts, ends)
        return
    columns = [table.column(name).to_pylist() for name in _TABLE_COLUMNS]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = zip(*(column[start:end] for column in columns), strict=True)
        yield _rebuilt([dict(zip(_TABLE_COLUMNS, values, strict=True)) for values in rows])


def _is_plain(table: pa.Table) -> bool:
    """Return whether all rows are batched messages with only a key, a payload, an event time and a sequence id."""
    if table.column("properties").null_count < len(table) or pc.any(table.column("key_base64")).as_py():
        return False
    if pc.min(table.column("batch_index")).as_py() < 0 or pc.max(table.column("slot")).as_py() != RowType.MESSAGE:
        return False
    if table.column("sequence_id").null_count:
        return False
    rests = pc.unique(table.column("metadata"))
    return len(rests) <= _MOST_RESTS and not any(_own_fields(rest.as_py()) for rest in rests)


def _plain_batches(
    table: pa.Table, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Iterator[DeliverableEntry]:
    """Yield entries of rows that `_is_plain`, column by column: whole columns become their messages at once."""
    index = table.column("batch_index").to_numpy().astype(np.int64)
    before = np.empty_like(index)
    before[1:] = index[:-1]
    before[starts] = -1
    messages = _messages(table, index - before - 1)
    at = np.frombuffer(messages.buffers()[1], np.int64)[: len(table) + 1].tolist()
    data = messages.buffers()[2].to_pybytes() if len(table) else b""
    first = table.take(starts)
    shared = [first.column(name).to_pylist() for name in _SHARED_COLUMNS]
    live = index.tolist()
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        row = {name: column[number] for name, column in zip(_SHARED_COLUMNS, shared, strict=True)}
        size = row["batch_size"]
        dropped = size - live[end - 1] - 1
        payload = data[at[start] : at[end]] + _STUB * dropped
        metadata = _batch_metadata(row)
        slots = (1 << size) - 1 if end - start == size else sum(1 << slot for slot in live[start:end])
        offset = row["offset"] - live[start]
        encoded = _compressed(metadata, payload, row["codec"])
        yield DeliverableEntry(row["ledger_id"], row["entry_id"], offset, size, encoded, slots, True)


def _messages(table: pa.Table, gaps: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Return the bytes of each row in its batch: stubs for the slots before it that have no row, then the message."""
    keys, payloads = table.column("key").chunk(0), table.column("payload").chunk(0)
    key_bytes = _lengths(keys)
    payload_bytes = _lengths(payloads)
    back = _Pieces(len(table))  # the bytes after the key: the rest of the metadata
    back.add_byte(0x18)
    back.add_varints(payload_bytes)
    times = table.column("event_time")
    if times.null_count < len(times):
        numbers = pc.fill_null(times, 0).to_numpy()
        back.add_byte(0x28, numbers != 0)
        back.add_varints(numbers, numbers != 0)
    back.add_byte(0x40)
    back.add_varints(table.column("sequence_id").to_numpy())
    if payloads.null_count:
        nulls = pc.is_null(payloads).to_numpy(zero_copy_only=False)
        back.add_byte(0x48, nulls)
        back.add_byte(0x01, nulls)
    front = _Pieces(len(table))  # the bytes before it
    has_key = pc.is_valid(keys).to_numpy(zero_copy_only=False)
    sizes = back.lengths + np.where(has_key, 1 + _varint_lengths(key_bytes) + key_bytes, 0)
    front.add_stubs(gaps)
    for shift in (24, 16, 8, 0):
        front.add_byte(sizes >> shift & 0xFF)
    front.add_byte(0x12, has_key)
    front.add_varints(key_bytes, has_key)
    parts = [front.array(), _large(keys), back.array(), _large(payloads)]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()), null_handling="replace")


class _Pieces:
    """Short byte strings, one for each of `rows` rows, built a field at a time."""

    def __init__(self, rows: int) -> None:
        self._fields: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8] | None]] = []
        self.lengths = np.zeros(rows, np.int64)

    def add_byte(self, value: int | npt.NDArray[np.int64], where: npt.NDArray[np.bool_] | None = None) -> None:
        """Add a byte to the rows of the mask `where`."""
        matrix = np.empty((len(self.lengths), 1), np.uint8)
        matrix[:, 0] = value
        lengths = np.ones(len(matrix), np.int64) if where is None else where.astype(np.int64)
        self._add(lengths, matrix)

    def add_varints(self, numbers: npt.NDArray[np.int64], where: npt.NDArray[np.bool_] | None = None) -> None:
        """Add numbers in protobuf's encoding to the rows of the mask `where`."""
        rest = numbers.astype(np.uint64)
        lengths = _varint_lengths(rest)
        matrix = np.empty((len(rest), int(lengths.max(initial=1))), np.uint8)
        for place in range(matrix.shape[1]):
            matrix[:, place] = (rest & np.uint64(0x7F)) | np.where(lengths > place + 1, np.uint64(0x80), np.uint64(0))
            rest >>= np.uint64(7)
        self._add(lengths if where is None else np.where(where, lengths, 0), matrix)

    def add_stubs(self, counts: npt.NDArray[np.int64]) -> None:
        """Add a number of slots without a message to each row."""
        self._add(counts * len(_STUB), None)

    def _add(self, lengths: npt.NDArray[np.int64], matrix: npt.NDArray[np.uint8] | None) -> None:
        self._fields.append((lengths, matrix))
        self.lengths = self.lengths + lengths

    def array(self) -> pa.LargeBinaryArray:
        """Return the strings."""
        offsets = np.concatenate(([0], np.cumsum(self.lengths)))
        data = self._of_one_length()
        if data is None:
            data = self._of_different_lengths(offsets)
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self.lengths), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data)]
        )

    def _of_one_length(self) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of strings whose fields have one length each; else None."""
        columns = []
        for lengths, matrix in self._fields:
            length = int(lengths[0]) if len(lengths) else 0
            if not (lengths == length).all() or (matrix is None and length):
                return None
            if matrix is not None and length:
                columns.append(matrix[:, :length])
        return np.concatenate(columns, axis=1).reshape(-1) if columns else None

    def _of_different_lengths(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return the bytes of strings that begin at `offsets`."""
        data = np.empty(int(offsets[-1]), np.uint8)
        at = offsets[:-1].copy()
        for lengths, matrix in self._fields:
            if matrix is None:
                stubs = np.frombuffer(_STUB * (int(lengths.max(initial=0)) // len(_STUB)), np.uint8)
                for row in np.flatnonzero(lengths).tolist():
                    data[at[row] : at[row] + lengths[row]] = stubs[: lengths[row]]
            else:
                for place in range(matrix.shape[1]):
                    filled = lengths > place
                    data[at[filled] + place] = matrix[filled, place]
            at += lengths
        return data


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0).to_numpy(), dtype=np.int64)


def _large(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_binary())


def _varint_lengths(numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    rest = numbers.astype(np.uint64)
    lengths = np.ones(len(rest), np.int64)
    for bits in range(7, 64, 7):
        longer = rest >= np.uint64(1 << bits)
        if not longer.any():
            break
        lengths += longer
    return lengths


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
    """Return the common metadata of all messages of an entry, from the row of one."""
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


def _single(row: Mapping[str, Any]) -> bytes:
    """Return an entry of one message, or of a chunk of one."""
    metadata = _metadata(row, row["sequence_id"] or 0)
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
    return _compressed(metadata, payload, row["codec"])


def _batch_metadata(row: Mapping[str, Any]) -> MessageMetadata:
    """Return the metadata of a batch, from the row of its first message, whose keys clients give to the batch, too."""
    metadata = _metadata(row, (row["sequence_id"] or 0) - row["batch_index"])
    _set_key(metadata, row)
    metadata.ClearField("null_partition_key")
    metadata.num_messages_in_batch = row["batch_size"]
    return metadata


def _batch(rows: list[dict[str, Any]]) -> bytes:
    """Return an entry of a batch; slots without a row are stubs."""
    first = rows[0]
    metadata = _batch_metadata(first)
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
    return _compressed(metadata, b"".join(pieces), first["codec"])


def _own_fields(rest: bytes | None) -> bytes:
    """Return the fields of a message's SingleMessageMetadata that the column `metadata` holds."""
    metadata = MessageMetadata.FromString(rest or b"")
    fields = b""
    if metadata.HasField("ordering_key"):
        fields += b"\x3a" + _varint(len(metadata.ordering_key)) + metadata.ordering_key
    if metadata.null_partition_key:
        fields += b"\x50\x01"
    return fields + metadata.single_message_rest


def _described(row: Mapping[str, Any], payload: bytes | None) -> bytes:
    """Return the SingleMessageMetadata of a row: encoded by hand, as each message has one."""
    encoded = b""
    for name, value in row["properties"] or ():
        name, value = name.encode(), value.encode()
        item = b"\x0a" + _varint(len(name)) + name + b"\x12" + _varint(len(value)) + value
        encoded += b"\x0a" + _varint(len(item)) + item
    key = row["key"]
    if key is not None:
        if row["key_base64"]:
            key = base64.b64encode(key)
        encoded += b"\x12" + _varint(len(key)) + key
    encoded += b"\x18" + _varint(len(payload) if payload else 0)
    if row["event_time"]:
        encoded += b"\x28" + _varint(row["event_time"] & _UINT64)
    if key is not None and row["key_base64"]:
        encoded += b"\x30\x01"
    if row["sequence_id"] is not None:
        encoded += b"\x40" + _varint(row["sequence_id"] & _UINT64)
    if payload is None:
        encoded += b"\x48\x01"
    return encoded


def _compressed(metadata: MessageMetadata, payload: bytes, codec: int) -> bytes:
    """Return an entry of an uncompressed payload. An empty payload stays empty with every codec."""
    metadata.uncompressed_size = len(payload)
    if codec != CompressionType.NONE and payload:
        metadata.compression = codec
        payload = recompress(CompressionType(codec), payload)
    return encode_entry(metadata, payload)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number]
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SMALL = [bytes((number,)) for number in range(0x80)]
