"""Messages as tables for a user's files: one row a message, with the columns that an import takes.

Columns: `message_id` in Pulsar's form, `offset`, `key` and `value` (text, or bytes where the encoding is base64),
`publish_time`, `event_time` (milliseconds since 1970) and `properties`.

Raises InvalidInput for a key or value that is not UTF-8. Must not know: files, formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from api.formats.text_encoding import TextEncoding
from storage.entries.chunk_assembler import ChunkAssembler, assemble_chunks, row_messages
from storage.errors import InvalidInput
from storage.ledger import rows
from storage.ledger.rows import RowType

BATCH_BYTES = 32 << 20
_IDS = ("ledger_id", "entry_id", "batch_index", "offset")
_COLUMNS = (*_IDS, "key", "payload", "event_time", "publish_time", "properties")
_MESSAGE_SCHEMA = pa.schema([rows.SCHEMA.field(name) for name in _COLUMNS])


def output_schema(key_encoding: TextEncoding, value_encoding: TextEncoding) -> pa.Schema:
    """Return the schema of a table of messages: an encoding of UTF-8 makes a column of strings, base64 one of bytes."""
    types = {"key": key_encoding, "value": value_encoding}
    return pa.schema(
        [
            ("message_id", pa.string()),
            ("offset", pa.int64()),
            *((n, pa.string() if e is TextEncoding.UTF8 else pa.binary()) for n, e in types.items()),
            ("publish_time", pa.int64()),
            ("event_time", pa.int64()),
            ("properties", pa.map_(pa.string(), pa.string())),
        ]
    )


def assemble_chunked_messages(
    batches: Iterator[pa.RecordBatch], partition: int, assembler: ChunkAssembler | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches without chunks unchanged, and others with each chunked message in place of its last chunk.

    `assembler`: has the chunks of incomplete messages after the last batch.
    """
    assembler = assembler or ChunkAssembler()
    for batch in batches:
        if not pc.any(pc.equal(batch.column("slot"), int(RowType.CHUNK))).as_py():
            yield batch
            continue
        rows: list[dict[str, Any]] = []
        size = 0
        for item in assemble_chunks(row_messages(iter([batch]), partition), assembler):
            rows.append(
                {"ledger_id": item.message_id.ledger_id, "entry_id": item.message_id.entry_id}
                | {"batch_index": item.message_id.batch_index, "properties": list(item.properties.items()) or None}
                | {name: getattr(item, name) for name in ("offset", "key", "payload", "publish_time", "event_time")}
            )
            size += len(item.payload or b"")
            if size >= BATCH_BYTES:  # compressed messages grow to many times their stored size
                yield pa.RecordBatch.from_pylist(rows, schema=_MESSAGE_SCHEMA)
                rows, size = [], 0
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_MESSAGE_SCHEMA)


def output_table(batch: pa.RecordBatch, schema: pa.Schema, partition: int) -> pa.Table:
    """Return messages as a table of `output_schema`. Raises InvalidInput for a text that is not UTF-8."""
    created = {"message_id": message_id_texts(batch, partition), "value": batch.column("payload")}
    columns = []
    for field in schema:
        column = created[field.name] if field.name in created else batch.column(field.name)
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise InvalidInput(
                f"a {field.name} is not UTF-8 text ({str(error).splitlines()[0]})",
                f"choose --{field.name}-encoding base64",
            ) from error
    return pa.table(columns, schema=schema)


def refuse_undecodable_entries(batches: Iterator[pa.RecordBatch], name: str, remedy: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of the topic `name` unchanged, as long as each row is a message or a chunk.

    Raises InvalidInput for an entry that is encrypted or cannot be decoded, since it would lose its key. `remedy`: with
    `{next}` for the next offset.
    """
    for batch in batches:
        row = pc.index(batch.column("slot"), int(RowType.WHOLE_ENTRY)).as_py()
        if row >= 0:
            offset = batch.column("offset")[row].as_py()
            raise InvalidInput(
                f"offset {offset} of {name} is no message but an entry that is encrypted or cannot be decoded",
                remedy.format(next=offset + 1),
            )
        yield batch


def message_id_texts(batch: pa.RecordBatch, partition: int) -> pa.Array:
    """Return the message ids of rows as texts, in Pulsar's form."""
    ledger, entry, index = (batch.column(name).cast(pa.string()) for name in ("ledger_id", "entry_id", "batch_index"))
    text = pc.binary_join_element_wise(ledger, entry, str(partition), ":")
    in_batch = pc.binary_join_element_wise(text, index, ":")
    return pc.if_else(pc.greater_equal(batch.column("batch_index"), 0), in_batch, text)
