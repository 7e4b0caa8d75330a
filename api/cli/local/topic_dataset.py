"""The messages of a topic as a dataset of Arrow, which DuckDB scans with its columns and filters.

DuckDB takes a dataset of pyarrow, and asks its `scanner` for columns and a filter at each scan. A subclass answers
with a read of the pieces of a scan (storage/reading/scan.py): only the columns that the query needs are read of parts,
and a filter is applied by Arrow, row by row. Pieces are read again by each scan, all of one snapshot.

Columns beside those of `MESSAGE_COLUMNS`, for joins of the query that makes the table: `partition` (-1: the topic has
none), `key_bytes`, and `is_deletion`.

An error while rows are read ends the query as an error of DuckDB; `error` keeps the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from api.broker.schema_columns import Cells, SchemaColumns
from api.formats.message_tables import assemble_chunked_messages, message_id_texts, refuse_undecodable_entries
from storage.reading.scan import ScanPiece
from storage.topic import Topic

MESSAGE_COLUMNS = ("message_id", "offset", "key", "value", "publish_time", "event_time", "properties")
_TIME = pa.timestamp("ms", "UTC")
_OWN = {"partition": pa.int32(), "key_bytes": pa.binary(), "is_deletion": pa.bool_()}
_SOURCES: dict[str, tuple[str, ...]] = {
    "message_id": ("ledger_id", "entry_id", "batch_index"),
    "offset": ("offset",),
    "key": ("key", "offset"),
    "value": ("payload", "offset"),
    "publish_time": ("publish_time",),
    "event_time": ("event_time",),
    "properties": ("properties",),
    "partition": (),
    "key_bytes": ("key",),
    "is_deletion": ("key", "retained_at"),
}
"""The columns of rows that each column is made of, in a compacted ledger without chunks; beside `metadata`."""
_WHOLE: tuple[str, ...] = (
    "ledger_id", "entry_id", "batch_index", "offset", "key", "payload", "publish_time", "event_time", "properties",
    "chunk_uuid", "chunk_index", "chunk_count", "codec", "slot", "metadata",
)  # fmt: skip
"""The columns of rows of which chunked messages are made."""
_ENTRY_REMEDY = "export what is after it, with --since {next}, and query that; Pulsar clients and REST read the entry"


class OffsetSet:
    """A set of offsets from `first` to before `end`, which takes a bit for each offset between the two."""

    def __init__(self, first: int, end: int) -> None:
        self._first, self._end = first, end
        self._bits = np.zeros((end - first + 7) // 8, np.uint8)

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Add offsets, which must be between the bounds of the set."""
        places = offsets - self._first
        np.bitwise_or.at(self._bits, places >> 3, (1 << (places & 7)).astype(np.uint8))

    def contains(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the offsets that are in the set."""
        inside = (offsets >= self._first) & (offsets < self._end)
        places = np.where(inside, offsets - self._first, 0)
        bits = self._bits[places >> 3] if len(self._bits) else np.zeros(len(places), np.uint8)
        return inside & ((bits >> (places & 7).astype(np.uint8)) & 1).astype(np.bool_)


@dataclass(frozen=True)
class ScanSource:
    """The pieces of a scan of one topic or partition, in order. `may_have_chunks`: chunked messages may be among them.
    `newest`: the offsets of the messages with a key to return; None: all."""

    topic: Topic
    pieces: Sequence[ScanPiece]
    may_have_chunks: bool
    newest: OffsetSet | None = None


class RowsScanner:
    """A scanner of a dataset that reads in the caller's thread. pyarrow's own reads ahead in threads, which would go on
    after the end of a query."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the reader of the scan's record batches, which reads them on demand."""
        return self._reader


class TopicDataset(ds.Dataset):
    """An Arrow dataset of a topic's messages. `error`: the error that ended a scan; None: none did."""

    def __init__(self, sources: Sequence[ScanSource], columns: SchemaColumns) -> None:
        # Not `super().__init__`: pyarrow creates datasets by other means, and refuses it.
        self.error: Exception | None = None
        self._sources = sources
        self._columns = columns
        types = {"message_id": pa.string(), "offset": pa.int64(), "key": columns.key.type, "value": columns.value.type}
        types |= {"publish_time": _TIME, "event_time": _TIME, "properties": pa.map_(pa.string(), pa.string()), **_OWN}
        self._schema = pa.schema(list(types.items()))

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the dataset and their types."""
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: object) -> RowsScanner:
        """Return an object whose `to_reader` reads the columns (None: all) of the rows for which the filter is true."""
        chosen = self._schema.names if columns is None else list(columns)
        read = list(dict.fromkeys((*chosen, *self._filter_columns(filter)))) or ["offset"]
        batches = self._scan_batches(self._schema_of_columns(read), filter, chosen)
        return RowsScanner(
            pa.RecordBatchReader.from_batches(self._schema_of_columns(chosen), self._record_errors(batches))
        )

    def _schema_of_columns(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self._schema.field(name) for name in names])

    def _filter_columns(self, condition: Any) -> list[str]:
        """Return the columns that a filter expression names: those without which Arrow refuses it."""
        if condition is None:
            return []
        names = []
        for place, name in enumerate(self._schema.names):
            others = self._schema.remove(place)
            try:
                ds.Scanner.from_batches(others.empty_table().to_reader(), filter=condition)
            except pa.ArrowInvalid:
                names.append(name)
        return names

    def _record_errors(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            self.error = self.error or error
            raise

    def _scan_batches(self, schema: pa.Schema, condition: Any, chosen: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for source in self._sources:
            for batch in _message_batches(source, self._stored_columns(schema.names)):
                converted = self._convert_batch(batch, schema, source.topic.name.partition)
                if condition is None:
                    yield converted.select(chosen)
                else:
                    yield from pa.Table.from_batches([converted]).filter(condition).select(chosen).to_batches()

    def _stored_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the stored columns from which columns of the dataset are computed, in a compacted ledger without
        chunks."""
        sources = ["slot", "offset", *(source for name in names for source in _SOURCES[name])]
        decoded = {"key": self._columns.key, "value": self._columns.value}
        if any(decoded[name].needs_metadata for name in names if name in decoded):
            sources.append("metadata")
        return tuple(dict.fromkeys(sources))

    def _convert_batch(self, batch: pa.RecordBatch, schema: pa.Schema, partition: int) -> pa.RecordBatch:
        columns = [self._convert_column(batch, field, partition) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _convert_column(self, batch: pa.RecordBatch, field: pa.Field, partition: int) -> pa.Array:
        metadata = batch.column("metadata") if "metadata" in batch.schema.names else None
        match field.name:
            case "message_id":
                return message_id_texts(batch, partition)
            case "key":
                return self._columns.key.convert(Cells(batch.column("key"), batch.column("offset"), metadata))
            case "value":
                return self._columns.value.convert(Cells(batch.column("payload"), batch.column("offset"), metadata))
            case "partition":
                return pa.repeat(pa.scalar(partition, pa.int32()), len(batch))
            case "key_bytes":
                return batch.column("key")
            case "is_deletion":
                return _deletion_mask(batch)
        return batch.column(field.name).cast(field.type)


def _message_batches(source: ScanSource, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a scan source as batches that have at least the stored columns `columns`."""
    read = _WHOLE if source.may_have_chunks else columns
    tables = (table for piece in source.pieces for table in source.topic.tables(piece, read))
    batches = (batch for table in tables for batch in table.combine_chunks().to_batches())
    messages = refuse_undecodable_entries(batches, str(source.topic.name), _ENTRY_REMEDY)
    if source.may_have_chunks:
        messages = assemble_chunked_messages(messages, source.topic.name.partition)
    for batch in messages:
        chosen = batch if source.newest is None else batch.filter(_newest_or_keyless_mask(batch, source.newest))
        if len(chosen):
            yield chosen


def _newest_or_keyless_mask(batch: pa.RecordBatch, newest: OffsetSet) -> pa.Array:
    """Return a mask of the messages that are the newest of their keys, or have no key; others need not be decoded."""
    return pc.or_(batch.column("key").is_null(), pa.array(newest.contains(batch.column("offset").to_numpy())))


def _deletion_mask(batch: pa.RecordBatch) -> pa.Array:
    """Return a mask of the messages that delete their key. The compacted ledger has marked them, so payloads are not
    read."""
    if "retained_at" in batch.schema.names:
        return batch.column("retained_at").is_valid()
    is_empty = pc.equal(pc.coalesce(pc.binary_length(batch.column("payload")), 0), 0)
    return pc.and_(is_empty, batch.column("key").is_valid())
