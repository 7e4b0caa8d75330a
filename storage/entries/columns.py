"""Rows of a ledger: the messages of entries as one Arrow table.

The messages are collected entry by entry in lists (`RowColumns`), or were decoded together (`batch_table`). A value of
an entry is repeated by NumPy; rare values are named by row. So no Python object is created for a column that is the
same in all rows.

Must not know: the encoding of an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.entries.batch import Messages
from storage.entries.bulk_batch import BatchColumns
from storage.ledger import rows
from storage.model import SourcePosition


@dataclass(frozen=True, slots=True)
class EntryFields:
    """The fields that all rows of one entry have in common. `producer` None: not known, and so no sequence id either.

    `batched`: its rows are the slots of a batch, from index 0. Otherwise its first row is the entry itself (index -1).
    `source`: the position of a replicated entry at its source.
    """

    entry_id: int
    offset: int
    publish_time: int
    producer: str | None
    batched: bool
    batch_size: int
    codec: int = 0
    metadata: bytes | None = None
    source: SourcePosition | None = None


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """The place of a chunk in its message: the uuid of the chunked message, the index of the chunk from 0, and the
    number of chunks."""

    uuid: str
    index: int
    count: int


_CHUNK_COLUMNS = ("chunk_uuid", "chunk_index", "chunk_count")


class RowColumns:
    """A builder of ledger rows, column by column: `add` appends the rows of an entry, `table` returns all rows."""

    def __init__(self) -> None:
        self._entries: list[EntryFields] = []
        self._counts: list[int] = []
        self._all = Messages()
        self._chunks: list[tuple[int, ChunkRow]] = []

    def __len__(self) -> int:
        """Return the number of rows that were added."""
        return len(self._all.keys)

    def add(self, entry: EntryFields, messages: Messages, chunk: ChunkRow | None = None) -> None:
        """Append the rows of one entry, one for each of `messages`. `chunk`: the chunk that its single row is; None: it
        is none."""
        first, whole = len(self._all.keys), self._all
        self._entries.append(entry)
        self._counts.append(len(messages.keys))
        if chunk is not None:
            self._chunks.append((first, chunk))
        whole.keys += messages.keys
        whole.payloads += messages.payloads
        whole.sequence_ids += messages.sequence_ids
        whole.property_keys += messages.property_keys
        whole.property_values += messages.property_values
        whole.base64_keys += [first + row for row in messages.base64_keys]
        whole.event_times += [(first + row, value) for row, value in messages.event_times]
        whole.slots += [(first + row, value) for row, value in messages.slots]
        whole.property_counts += [(first + row, value) for row, value in messages.property_counts]
        whole.metadata += [(first + row, value) for row, value in messages.metadata]

    def table(self, ledger_id: int) -> pa.Table:
        """Return all rows that were added as a table (rows.SCHEMA) of the ledger `ledger_id`."""
        count, messages = len(self), self._all
        chunk_rows = [row for row, _ in self._chunks]
        return _rows_table(
            ledger_id,
            self._entries,
            self._counts,
            messages.metadata,
            {
                "key": messages.keys,
                "key_base64": _row_mask(count, messages.base64_keys),
                "payload": messages.payloads,
                "event_time": _int64_or_null(count, messages.event_times),
                "sequence_id": np.array(messages.sequence_ids, dtype=np.uint64).view(np.int64),
                "properties": _properties_column(
                    count,
                    np.array([row for row, number in messages.property_counts for _ in range(number)], dtype=np.int64),
                    pa.array(messages.property_keys, pa.string()),
                    pa.array(messages.property_values, pa.string()),
                ),
                "chunk_uuid": _values_or_null(
                    count, chunk_rows, [chunk.uuid for _, chunk in self._chunks], pa.string()
                ),
                "chunk_index": _values_or_null(
                    count, chunk_rows, [chunk.index for _, chunk in self._chunks], pa.int32()
                ),
                "chunk_count": _values_or_null(
                    count, chunk_rows, [chunk.count for _, chunk in self._chunks], pa.int32()
                ),
                "slot": _int8_or_zero(count, messages.slots),
            },
        )


def batch_table(ledger_id: int, entries: Sequence[EntryFields], batches: BatchColumns) -> pa.Table:
    """Return the messages of batches that were decoded together as a table (rows.SCHEMA). `entries`: the fields of each
    batch's entry, in order."""
    count = len(batches.keys)
    slots = np.where(batches.compacted_out, np.int8(rows.RowType.COMPACTED_OUT), np.int8(rows.RowType.MESSAGE))
    return _rows_table(
        ledger_id,
        entries,
        [entry.batch_size for entry in entries],
        [],
        {
            "key": batches.keys,
            "key_base64": np.zeros(count, dtype=bool),
            "payload": batches.payloads,
            "event_time": _null_for_zero(batches.event_times),
            "sequence_id": batches.sequence_ids,
            "properties": _properties_column(
                count, batches.property_rows, batches.property_keys, batches.property_values
            ),
            **{name: pa.nulls(count, rows.SCHEMA.field(name).type) for name in _CHUNK_COLUMNS},
            "slot": slots,
        },
    )


def _rows_table(
    ledger_id: int,
    entries: Sequence[EntryFields],
    sizes: Sequence[int],
    metadata: Sequence[tuple[int, bytes]],
    columns: dict[str, Any],
) -> pa.Table:
    """Return the rows of `entries` as a table (rows.SCHEMA). `sizes`: the number of rows of each entry.

    `columns`: the columns whose values differ within an entry; `metadata`: of the rows that have some of their own.
    """
    counts = np.asarray(sizes, dtype=np.int64)
    length = int(counts.sum())
    entry_of = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(length, dtype=np.int32) - np.repeat((np.cumsum(counts) - counts).astype(np.int32), counts)
    batched = np.fromiter((entry.batched for entry in entries), dtype=bool, count=len(counts))
    unknown = np.fromiter((entry.producer is None for entry in entries), dtype=bool, count=len(counts))

    def each(name: str) -> Any:
        """Return a column of one number of each entry, repeated for its rows."""
        values = [getattr(entry, name) for entry in entries]
        if len(set(values)) == 1:
            return rows.constant_column(values[0], name, length)
        return np.repeat(np.array(values, rows.SCHEMA.field(name).type.to_pandas_dtype()), counts)

    columns |= {
        "offset": np.repeat(np.array([entry.offset for entry in entries], np.int64), counts) + index,
        "ledger_id": rows.constant_column(ledger_id, "ledger_id", length),
        "entry_id": each("entry_id"),
        "batch_index": index if batched.all() else np.where((index > 0) | batched[entry_of], index, np.int32(-1)),
        "batch_size": each("batch_size"),
        "publish_time": each("publish_time"),
        "producer": _select_values([entry.producer for entry in entries], entry_of, pa.string()),
        "sequence_id": pa.array(columns["sequence_id"], mask=unknown[entry_of] if unknown.any() else None),
        "codec": each("codec"),
        "metadata": _metadata_column([entry.metadata for entry in entries], entry_of, metadata),
        "retained_at": rows.constant_column(None, "retained_at", length),
        **_source_columns([entry.source for entry in entries], counts),
    }
    arrays = []
    for field in rows.SCHEMA:
        column = columns[field.name]
        arrays.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
    return pa.table(arrays, schema=rows.SCHEMA)


def _source_columns(sources: list[SourcePosition | None], counts: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """Return the columns of the positions that entries have at their source; null for an entry without one. `counts`:
    the number of rows of each entry."""
    if not any(sources):
        length = int(counts.sum())
        return {name: rows.constant_column(None, name, length) for name in rows.SOURCE_COLUMNS}
    numbers = np.array([source or (0, 0) for source in sources], np.int64)
    absent = np.repeat(np.fromiter((source is None for source in sources), bool, len(sources)), counts)
    return {
        name: pa.array(np.repeat(numbers[:, column], counts), mask=absent)
        for column, name in enumerate(rows.SOURCE_COLUMNS)
    }


def _metadata_column(
    values: list[bytes | None], entry_of: npt.NDArray[np.int64], own: Sequence[tuple[int, bytes]]
) -> pa.Array:
    chosen = entry_of.copy() if own else entry_of
    for row, value in own:
        chosen[row] = len(values)
        values.append(value)
    return _select_values(values, chosen, pa.binary())


def _properties_column(count: int, property_rows: npt.NDArray[np.int64], keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return the column of properties of `count` rows; null for a row without any. `property_rows`: the row of each
    property, ascending."""
    data_type = rows.SCHEMA.field("properties").type
    if not len(property_rows):
        return pa.nulls(count, data_type)
    having = np.bincount(property_rows, minlength=count)
    offsets = np.append(0, np.cumsum(having)).astype(np.int32)
    empty = np.append(having == 0, False)
    return pa.MapArray.from_arrays(pa.array(offsets, mask=empty), keys, values, data_type)


def _null_for_zero(values: npt.NDArray[np.int64]) -> pa.Array:
    """Return numbers as an array, with null in the place of 0."""
    return pa.array(values, mask=values == 0) if values.any() else pa.nulls(len(values), pa.int64())


def _row_mask(count: int, chosen: list[int]) -> npt.NDArray[np.bool_]:
    flags = np.zeros(count, dtype=bool)
    flags[chosen] = True
    return flags


def _int8_or_zero(count: int, pairs: list[tuple[int, int]]) -> npt.NDArray[np.int8]:
    values = np.zeros(count, dtype=np.int8)
    for row, value in pairs:
        values[row] = value
    return values


def _int64_or_null(count: int, pairs: list[tuple[int, int]]) -> pa.Array:
    if not pairs:
        return pa.nulls(count, pa.int64())
    chosen = np.fromiter((row for row, _ in pairs), dtype=np.int64, count=len(pairs))
    numbers = np.fromiter((value for _, value in pairs), dtype=np.uint64, count=len(pairs))
    values, absent = np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool)
    values[chosen], absent[chosen] = numbers.view(np.int64), False
    return pa.array(values, mask=absent)


def _values_or_null(count: int, chosen: list[int], values: Sequence[object], data_type: pa.DataType) -> pa.Array:
    if not chosen:
        return pa.nulls(count, data_type)
    indices, absent = np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool)
    indices[chosen], absent[chosen] = np.arange(len(chosen)), False
    return pa.array(values, data_type).take(pa.array(indices, mask=absent))


def _select_values(values: list[Any], chosen: npt.NDArray[np.int64], data_type: pa.DataType) -> pa.Array:
    """Return the values at the indices `chosen`, one for each row, as an array."""
    if len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0], data_type), len(chosen))
    return pa.array(values, data_type).take(pa.array(chosen))
