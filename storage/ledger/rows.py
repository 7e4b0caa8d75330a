"""The rows of a ledger: one Arrow and Parquet schema for sealed ledgers and compacted parts, and its encoding.

One row is one message, or one entry that passes whole (`slot`). Rows ascend by offset; ids and offsets agree in order.
A row group holds at most `GROUP_ROWS` rows and about `GROUP_BYTES` bytes, so that one without survivors is never read
and Arrow's 32-bit offsets never overflow. All columns of every row are kept through compaction (W1).

Column by column in docs/format.md, whose table a test compares with the schema.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.model import MessageId

FORMAT_VERSION = 1
UNPLACED_VERSION = 2
"""The format version of a sealed ledger that was written before its place in the topic was known: its offsets count
from 0, and its ledger id is 0."""
GROUP_ROWS = 65_536
GROUP_BYTES = 2 << 20
"""Small enough that a decoded row group stays in a core's cache: measured 1.5 times as fast as 8 MiB."""
MAX_ROWS = 2**32 - 1
"""Rows and span of offsets of one ledger or part stay below 2³², so that 32-bit relative offsets and bitmaps serve."""
LEDGER_ROWS = 2_000_000
"""A bulk import begins a new ledger after that many rows, however small: each costs about 250 bytes while sealed."""
MAX_MESSAGE_BYTES = 256 << 20
"""The most logical bytes of one message; keeps a row group far below the 2 GiB that Arrow's binary columns hold."""


class RowType(IntEnum):
    """The content of a row (column `slot`)."""

    MESSAGE = 0
    """A message, alone or of a batch."""
    COMPACTED_OUT = 1
    """A batch's slot whose message was already dropped by its producer or an earlier log; never delivered (W2)."""
    WHOLE_ENTRY = 2
    """An entry that is encrypted or cannot be decoded, kept as it was sent (P8)."""
    CHUNK = 3
    """One chunk of a chunked message (P10)."""
    MARKER = 4
    """A broker's marker (transaction, replication); never delivered."""


class CompressionType(IntEnum):
    """Compression of the entry of a message (column `codec`), by Pulsar's numbers."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("batch_index", pa.int32(), nullable=False),
        pa.field("batch_size", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("key_base64", pa.bool_(), nullable=False),
        pa.field("payload", pa.binary()),
        pa.field("publish_time", pa.int64(), nullable=False),
        pa.field("event_time", pa.int64()),
        pa.field("producer", pa.string()),
        pa.field("sequence_id", pa.int64()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("chunk_uuid", pa.string()),
        pa.field("chunk_index", pa.int32()),
        pa.field("chunk_count", pa.int32()),
        pa.field("codec", pa.int8(), nullable=False),
        pa.field("slot", pa.int8(), nullable=False),
        pa.field("metadata", pa.binary()),
        pa.field("retained_at", pa.int64()),
        pa.field("source_ledger_id", pa.int64()),
        pa.field("source_entry_id", pa.int64()),
    ]
)
"""Schema of the tables that readers get, and of rows objects, which also have field ids (FILE_SCHEMA)."""

FIELD_IDS = {
    "offset": 1,
    "ledger_id": 2,
    "entry_id": 3,
    "batch_index": 4,
    "batch_size": 5,
    "key": 6,
    "key_base64": 7,
    "payload": 8,
    "publish_time": 9,
    "event_time": 10,
    "producer": 11,
    "sequence_id": 12,
    "properties": 13,
    "properties.key": 14,
    "properties.value": 15,
    "chunk_uuid": 16,
    "chunk_index": 17,
    "chunk_count": 18,
    "codec": 19,
    "slot": 20,
    "metadata": 21,
    "retained_at": 22,
    "source_ledger_id": 23,
    "source_entry_id": 24,
}
"""Parquet's field id of each column, and of the leaves of the map, as an Iceberg table names them. An id is never
given to another column."""


def _with_field_id(field: pa.Field, name: str) -> pa.Field:
    return field.with_metadata({b"PARQUET:field_id": b"%d" % FIELD_IDS[name]})


def _file_field(field: pa.Field) -> pa.Field:
    if field.name == "properties":
        key, value = (
            _with_field_id(leaf, f"properties.{leaf.name}") for leaf in (field.type.key_field, field.type.item_field)
        )
        field = pa.field(field.name, pa.map_(key, value), field.nullable)
    return _with_field_id(field, field.name)


FILE_SCHEMA = pa.schema([_file_field(field) for field in SCHEMA])
"""SCHEMA with field ids, for writers of rows objects."""
ARROW_SCHEMA = {b"ARROW:schema": base64.b64encode(SCHEMA.serialize())}
"""Metadata of a rows object by which readers with Arrow get SCHEMA. FILE_SCHEMA would be 1.9 KB longer there."""

SOURCE_COLUMNS = ("source_ledger_id", "source_entry_id")
"""Columns of the position of a replicated entry at its source."""

_LEAVES = tuple(
    name if name != "properties" else f"properties.key_value.{part}"
    for name in SCHEMA.names
    for part in (("key", "value") if name == "properties" else ("",))
)
"""Names of Parquet's columns."""
_BYTES_COLUMNS = ("key", "payload", "metadata")
_DELTA_COLUMNS = (
    "offset",
    "ledger_id",
    "entry_id",
    "batch_index",
    "batch_size",
    "publish_time",
    "event_time",
    "sequence_id",
    "chunk_index",
    "chunk_count",
    "retained_at",
    *SOURCE_COLUMNS,
)

_SAMPLE_BYTES = 256 << 10
_LEAST_GAIN = 0.1
_SHORT_BYTES = 36
"""PLAIN adds four bytes for the length of a value; they are a tenth of shorter values, and zstd removes them."""


def parquet_writer_options(sample: pa.Table) -> dict[str, Any]:
    """Return the arguments of `pyarrow.parquet.ParquetWriter` for a rows object that begins with `sample` (SCHEMA).

    Keys, payloads and metadata that compression would shorten by less than a tenth are stored as they are, and so are
    integers that are stored as differences: a codec takes more time than the rest of their encoding, and saves about a
    byte of a row.
    """
    plain = {name for name in _BYTES_COLUMNS if not _is_compressible(sample.column(name))}
    plain.update(_DELTA_COLUMNS)
    compressed = [name for name in _LEAVES if name not in plain]
    return {
        "compression": {**dict.fromkeys(compressed, "zstd"), **dict.fromkeys(plain, "none")},
        "compression_level": dict.fromkeys(compressed, 1),
        "use_dictionary": False,
        "write_statistics": [name for name in SCHEMA.names if name not in _BYTES_COLUMNS],
        "column_encoding": {
            **dict.fromkeys(_DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
            **dict.fromkeys(_BYTES_COLUMNS, "PLAIN"),
        },
        "store_schema": False,  # ARROW_SCHEMA is added instead
        "write_batch_size": GROUP_ROWS,  # a column of a row group is one page
    }


def _is_compressible(column: pa.ChunkedArray) -> bool:
    """Return whether zstd shortens a column of bytes by a tenth, by its first bytes; True for one without bytes."""
    values = contiguous_array(column)
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1] if len(values) else [0]
    total = int(bounds[-1] - bounds[0])
    if total < _SHORT_BYTES * len(values) or not total:
        return True
    size = min(total, _SAMPLE_BYTES)
    compressed = pa.Codec("zstd", compression_level=1).compress(data.slice(int(bounds[0]), size))
    return bool(compressed.size < (1 - _LEAST_GAIN) * size)


def constant_column(value: Any, name: str, length: int) -> pa.Array:
    """Return a column of SCHEMA, of `length` rows, that holds `value` in every row. `name`: of the column."""
    data_type = SCHEMA.field(name).type
    return pa.nulls(length, data_type) if value is None else pa.repeat(pa.scalar(value, data_type), length)


def contiguous_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def message_id(table: pa.Table | pa.RecordBatch, row: int, partition: int = -1) -> MessageId:
    """Return the id of row number `row` of `table` (SCHEMA, or its id columns), in partition `partition`."""
    ledger, entry, index = (table.column(name)[row].as_py() for name in ("ledger_id", "entry_id", "batch_index"))
    return MessageId(ledger, entry, partition, index)


class TableCutter:
    """A cutter of tables into pieces of at most `max_rows` rows and `max_bytes` bytes.

    A row that is larger than `max_bytes` is a piece of its own.
    """

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._pending: list[pa.Table] = []
        self._rows = self._bytes = 0

    @property
    def pending_bytes(self) -> int:
        """The bytes of the rows that are in no piece yet."""
        return self._bytes

    def add(self, table: pa.Table, sizes: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
        """Add the rows of `table`, of `sizes` bytes each; yield the pieces that are full."""
        first = 0
        while first < len(table):
            filled = np.cumsum(sizes[first : first + self._max_rows - self._rows])
            take = int(np.searchsorted(filled, self._max_bytes - self._bytes, "right"))
            if take == 0 and not self._pending:
                take = 1
            if take:
                self._pending.append(table.slice(first, take))
                self._rows += take
                self._bytes += int(filled[take - 1])
                first += take
            if first < len(table) or self._rows >= self._max_rows:
                yield from self.remaining()

    def remaining(self) -> Iterator[pa.Table]:
        """Yield the rows that are in no piece yet as one piece; nothing if there are none."""
        if self._pending:
            piece = pa.concat_tables(self._pending)
            self._pending, self._rows, self._bytes = [], 0, 0
            yield piece


def logical_sizes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the bytes of key, payload and properties of each row, shape (n,): the unit of thresholds (S1)."""
    total = np.zeros(len(rows), dtype=np.int64)
    for name in ("key", "payload"):
        total += _value_lengths(rows.column(name))
    properties = rows.column("properties")
    if properties.null_count < len(properties):
        total += _property_sizes(properties)
    return total


def _value_lengths(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return the bytes of each value, 0 for null, shape (n,)."""
    # Imported here: commands that read no rows start in a twentieth less time.
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.binary_length(values), 0)
    return np.asarray(lengths.to_numpy(), dtype=np.int64)


def _property_sizes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    sizes = []
    for chunk in column.chunks:
        spans = np.asarray(chunk.offsets.to_numpy(), dtype=np.int64)
        first, last = (int(spans[0]), int(spans[-1])) if len(spans) else (0, 0)
        texts = np.zeros(last - first + 1, dtype=np.int64)
        for items in (chunk.keys, chunk.items):
            texts[1:] += np.cumsum(_value_lengths(items.slice(first, last - first)))
        sizes.append(texts[spans[1:] - first] - texts[spans[:-1] - first])
    return np.concatenate(sizes) if sizes else np.empty(0, dtype=np.int64)
