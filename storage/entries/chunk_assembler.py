"""Rows as messages, and chunked messages assembled: chunks in, one message out at its last chunk (P10).

Chunks with one uuid, key and count are one message if they come in order: chunk 0 begins it, and begins it again if it
is repeated (a producer that restarts uses its uuids again); each next one continues it; the last one ends it. Any other
chunk is a stray, a repeat or one after a gap, and is dropped. Pulsar's consumers do the same. The assembled message has
the payloads joined, id, offset and publish time of its last chunk, event time and properties of its first. Incomplete
messages are never delivered.

`storage/ledger/chunk_table.py: assemble` is the same rule over records; a test keeps the two equal.

Memory: pending messages are bounded in number and bytes (MAX_PENDING, MAX_PENDING_BYTES). Beyond the limits the one
that began first is dropped, counted and logged: the reader then misses that message, as Pulsar's readers do. A
decompressed message is bounded, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from storage.entries.compression import Undecodable, decompress
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.ledger.rows import CompressionType, RowType
from storage.model import Message, MessageId

_log = logging.getLogger(__name__)

MAX_PENDING = 100
"""The default limit of a reader's chunked messages that are incomplete at the same time (Pulsar's consumers: 10)."""
MAX_PENDING_BYTES = 512 << 20
"""The default for their payload bytes; a message of more is never delivered."""
_ROWS = 1024
_ROWS_BYTES = 1 << 20
"""The limits of rows that become messages together: their number, and their bytes if it is more than one row."""


@dataclass
class _IncompleteMessage:
    """A chunked message that is not complete yet: its chunks so far, and the `bytes` of their payloads."""

    chunks: list[Message] = field(default_factory=list)
    bytes: int = 0


class ChunkAssembler:
    """An assembler of chunked messages, from chunks that are added in order. `dropped_messages`: the number of
    incomplete messages that were dropped because of the limits."""

    def __init__(self, max_messages: int = MAX_PENDING, max_bytes: int = MAX_PENDING_BYTES) -> None:
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._pending: dict[tuple[str | None, bytes | None, int | None], _IncompleteMessage] = {}
        self._bytes = 0
        self.dropped_messages = 0

    @property
    def oldest_incomplete(self) -> Message | None:
        """The first chunk of the incomplete message that began first; None: no message is incomplete."""
        return next(iter(self._pending.values())).chunks[0] if self._pending else None

    def oldest_incomplete_since(self, publish_time: int) -> Message | None:
        """Return the first chunk of the oldest incomplete message that began at `publish_time` (ms) or later; None:
        there is none."""
        firsts = (pending.chunks[0] for pending in self._pending.values())
        return next((first for first in firsts if first.publish_time >= publish_time), None)

    def add(self, chunk: Message) -> Message | None:
        """Add the next chunk of any chunked message; return the whole message if this chunk completes it, otherwise
        None."""
        identity = (chunk.chunk_uuid, chunk.key, chunk.chunk_count)
        if chunk.chunk_index == 0:
            self._remove_pending(identity)
            self._pending[identity] = _IncompleteMessage()
        pending = self._pending.get(identity)
        if pending is None or chunk.chunk_index != len(pending.chunks):
            return None
        pending.chunks.append(chunk)
        if len(pending.chunks) == chunk.chunk_count:
            self._remove_pending(identity)
            return join_chunks(pending.chunks)
        pending.bytes += len(chunk.payload or b"")
        self._bytes += len(chunk.payload or b"")
        while len(self._pending) > self._max_messages or self._bytes > self._max_bytes:
            self._drop_oldest()
        return None

    def _drop_oldest(self) -> None:
        identity = next(iter(self._pending))
        first = self._pending[identity].chunks[0]
        self._remove_pending(identity)
        self.dropped_messages += 1
        _log.warning(
            "dropped the chunked message %s, which began at %s: more than %d messages or %d bytes were incomplete",
            identity[0], first.message_id, self._max_messages, self._max_bytes,
        )  # fmt: skip

    def _remove_pending(self, identity: tuple[str | None, bytes | None, int | None]) -> None:
        pending = self._pending.pop(identity, None)
        self._bytes -= pending.bytes if pending else 0


def assemble_messages(batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[Message]:
    """Yield the messages in record batches of rows (rows.SCHEMA); a chunked message is assembled, and yielded at its
    last chunk (P10)."""
    return assemble_chunks(row_messages(batches, partition))


def row_messages(batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[Message]:
    """Yield each row of record batches (rows.SCHEMA) as a message; a chunk of a chunked message is a message of its
    own.

    Up to 1,024 rows are converted at once, fewer if they are large.
    """
    for batch in batches:
        step = max(1, min(_ROWS, len(batch) * _ROWS_BYTES // max(1, batch.nbytes)))
        for first in range(0, len(batch), step):
            for row in batch.slice(first, step).to_pylist():
                yield Message(
                    message_id=MessageId(row["ledger_id"], row["entry_id"], partition, row["batch_index"]),
                    offset=row["offset"],
                    key=row["key"],
                    payload=row["payload"],
                    publish_time=row["publish_time"],
                    event_time=row["event_time"],
                    properties=dict(row["properties"] or ()),
                    **chunk_fields(row),
                )


def assemble_chunks(messages: Iterable[Message], assembler: ChunkAssembler | None = None) -> Iterator[Message]:
    """Yield messages in order; a chunked message is assembled from its chunks, and yielded once, at its last chunk.
    `assembler` None: a new one is used."""
    assembler = assembler or ChunkAssembler()
    for message in messages:
        whole = assembler.add(message) if message.is_chunk else message
        if whole is not None:
            yield whole


def join_chunks(chunks: Sequence[Message]) -> Message:
    """Join the chunks of one message into the message, and decompress its payload. `chunks`: all of its chunks, in
    order.

    The payload is None if no chunk has one. A few bytes may claim any size: a payload of more than MAX_PENDING_BYTES is
    returned as it is stored, and so is one that cannot be decompressed (P8).
    """
    payloads = [chunk.payload for chunk in chunks if chunk.payload is not None]
    payload = b"".join(payloads) if payloads else None
    if payload and chunks[0].chunk_codec and chunks[0].chunk_size <= MAX_PENDING_BYTES:
        with suppress(Undecodable):  # then it is returned as stored, like an entry that cannot be decoded (P8)
            payload = decompress(CompressionType(chunks[0].chunk_codec), payload, chunks[0].chunk_size)
    return replace(
        chunks[-1],
        payload=payload,
        event_time=chunks[0].event_time,
        properties=chunks[0].properties,
        chunk_uuid=None,
        chunk_index=None,
        chunk_count=None,
        chunk_codec=0,
        chunk_size=0,
    )


def chunk_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chunk fields of a `Message` by name, from a row; empty if the row is no chunk of a message.

    A row of slot CHUNK without uuid, or with an impossible number, is none: it passes whole, like an entry that cannot
    be decoded.
    """
    uuid, index, count = row["chunk_uuid"], row["chunk_index"], row["chunk_count"]
    if row["slot"] != int(RowType.CHUNK) or uuid is None or index is None or count is None or not 0 <= index < count:
        return {}
    fields = {"chunk_uuid": uuid, "chunk_index": index, "chunk_count": count}
    if row["codec"]:
        rest = MessageMetadata()
        with suppress(DecodeError):
            rest.MergeFromString(row["metadata"] or b"")
        if not rest.encryption_keys:  # else the payload is a ciphertext, and stays one
            fields |= {"chunk_codec": row["codec"], "chunk_size": rest.uncompressed_size}
    return fields
