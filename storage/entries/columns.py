"""Rows of a ledger, collected entry by entry in lists and turned into one Arrow table at the end.

Values that every message has are in a list of their own; a value of an entry is repeated by NumPy; rare values are
named by row. So a batched message costs three appends, and no Python object is created for a column that is the same in
all rows.

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
from storage.ledger import rows


@dataclass(frozen=True, slots=True)
class EntryFields:
    """The common fields of the rows of one entry. `producer` None: not known, and so no sequence id either.

    `batched`: its rows are the slots of a batch, from index 0. Otherwise its first row is the entry itself (index -1).
    """

    entry_id: int
    offset: int
    publish_time: int
    producer: str | None
    batched: bool
    batch_size: int
    codec: int = 0
    metadata: bytes | None = None


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """The chunk columns of one row."""

    uuid: str
    index: int
    count: int


class RowColumns:
    """The columns of the rows that were added."""

    def __init__(self) -> None:
        self._entries: list[EntryFields] = []
        self._counts: list[int] = []
        self._all = Messages()
        self._chunks: list[tuple[int, ChunkRow]] = []

    def add(self, entry: EntryFields, messages: Messages, chunk: ChunkRow | None = None) -> None:
        """Append the rows of one entry; `chunk`: of its single row."""
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
        """Return all rows (rows.SCHEMA)."""
        count = len(self._all.keys)
        counts = np.asarray(self._counts, dtype=np.int64)
        entry_of = np.repeat(np.arange(len(counts)), counts)
        first_of = np.cumsum(counts) - counts
        index = np.arange(count) - first_of[entry_of]
        batched = np.fromiter((entry.batched for entry in self._entries), dtype=bool, count=len(counts))
        chunk_rows = [row for row, _ in self._chunks]
        columns: dict[str, Any] = {
            "offset": self._each("offset")[entry_of] + index,
            "ledger_id": rows.constant(ledger_id, "ledger_id", count),
            "entry_id": self._each("entry_id")[entry_of],
            "batch_index": np.where((index > 0) | batched[entry_of], index, -1),
            "batch_size": self._each("batch_size")[entry_of],
            "key": self._all.keys,
            "key_base64": _flags(count, self._all.base64_keys),
            "payload": self._all.payloads,
            "publish_time": self._each("publish_time")[entry_of],
            "event_time": _sparse(count, self._all.event_times),
            "producer": _repeated([entry.producer for entry in self._entries], entry_of, pa.string()),
            "sequence_id": self._sequence_ids(entry_of),
            "properties": self._properties(count),
            "chunk_uuid": _scattered(count, chunk_rows, [chunk.uuid for _, chunk in self._chunks], pa.string()),
            "chunk_index": _scattered(count, chunk_rows, [chunk.index for _, chunk in self._chunks], pa.int32()),
            "chunk_count": _scattered(count, chunk_rows, [chunk.count for _, chunk in self._chunks], pa.int32()),
            "codec": self._each("codec")[entry_of],
            "slot": _filled(count, self._all.slots),
            "metadata": self._metadata(entry_of),
            "retained_at": rows.constant(None, "retained_at", count),
        }
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, rows.SCHEMA.field(name).type)
            for name, column in columns.items()
        ]
        return pa.table(arrays, schema=rows.SCHEMA)

    def _each(self, name: str) -> npt.NDArray[np.int64]:
        values = (getattr(entry, name) for entry in self._entries)
        return np.fromiter(values, dtype=np.int64, count=len(self._entries))

    def _sequence_ids(self, entry_of: npt.NDArray[np.int64]) -> pa.Array:
        unknown = np.fromiter((entry.producer is None for entry in self._entries), dtype=bool, count=len(self._entries))
        return pa.array(np.array(self._all.sequence_ids, dtype=np.uint64).view(np.int64), mask=unknown[entry_of])

    def _metadata(self, entry_of: npt.NDArray[np.int64]) -> pa.Array:
        values = [entry.metadata for entry in self._entries]
        chosen = entry_of.copy()
        for row, own in self._all.metadata:
            chosen[row] = len(values)
            values.append(own)
        return _repeated(values, chosen, pa.binary())

    def _properties(self, count: int) -> pa.Array:
        data_type = rows.SCHEMA.field("properties").type
        if not self._all.property_counts:
            return pa.nulls(count, data_type)
        having = np.zeros(count + 1, dtype=np.int32)
        for row, number in self._all.property_counts:
            having[row + 1] = number
        empty = np.append(having[1:] == 0, False)
        offsets = pa.array(np.cumsum(having, dtype=np.int32), pa.int32(), mask=empty)
        keys = pa.array(self._all.property_keys, pa.string())
        return pa.MapArray.from_arrays(offsets, keys, pa.array(self._all.property_values, pa.string()), data_type)


def _flags(count: int, chosen: list[int]) -> npt.NDArray[np.bool_]:
    flags = np.zeros(count, dtype=bool)
    flags[chosen] = True
    return flags


def _filled(count: int, pairs: list[tuple[int, int]]) -> npt.NDArray[np.int8]:
    values = np.zeros(count, dtype=np.int8)
    for row, value in pairs:
        values[row] = value
    return values


def _sparse(count: int, pairs: list[tuple[int, int]]) -> pa.Array:
    if not pairs:
        return pa.nulls(count, pa.int64())
    chosen = np.fromiter((row for row, _ in pairs), dtype=np.int64, count=len(pairs))
    numbers = np.fromiter((value for _, value in pairs), dtype=np.uint64, count=len(pairs))
    values, absent = np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool)
    values[chosen], absent[chosen] = numbers.view(np.int64), False
    return pa.array(values, mask=absent)


def _scattered(count: int, chosen: list[int], values: Sequence[object], data_type: pa.DataType) -> pa.Array:
    if not chosen:
        return pa.nulls(count, data_type)
    indices, absent = np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool)
    indices[chosen], absent[chosen] = np.arange(len(chosen)), False
    return pa.array(values, data_type).take(pa.array(indices, mask=absent))


def _repeated(values: list[Any], chosen: npt.NDArray[np.int64], data_type: pa.DataType) -> pa.Array:
    """Return the values that `chosen` selects, row by row."""
    if all(value is None for value in values):
        return pa.nulls(len(chosen), data_type)
    return pa.array(values, data_type).take(pa.array(chosen))
