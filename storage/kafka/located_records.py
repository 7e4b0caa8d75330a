"""Records whose fields are located, and not copied: numbers as arrays, and the places of keys, values and headers.

They become an Arrow table, or entries (record_entries.py), for which no table is made.

Must not know: batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from storage.kafka.header_properties import LocatedHeaders, properties_of
from storage.slices import I64, Spans, slices

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
    ]
)
"""Columns of records. `properties`: their headers (header_properties.py)."""
NO_HEADERS = LocatedHeaders(*(np.empty(0, np.int64) for _ in range(5)))


@dataclass(frozen=True, slots=True)
class LocatedRecords:
    """Kafka records in order, with positions in `data` instead of copied keys and values; arrays have the shape (n,).
    `timestamps` below 0: none. A key or value of size -1 is null.

    `data`: the bytes of keys, values and headers, in the order of the records, up to `end`.
    """

    data: bytes
    end: int
    offsets: I64
    timestamps: I64
    keys: Spans
    values: Spans
    headers: LocatedHeaders

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.offsets)

    def part(self, first: int, end: int) -> LocatedRecords:
        """Return the records from row `first` to before row `end`."""
        rows = self.headers.rows
        start, stop = np.searchsorted(rows, (first, end)).tolist()
        headers = self.headers if not len(rows) else LocatedHeaders(*(column[start:stop] for column in self.headers))
        return replace(
            self,
            offsets=self.offsets[first:end],
            timestamps=self.timestamps[first:end],
            keys=Spans(self.keys.positions[first:end], self.keys.sizes[first:end]),
            values=Spans(self.values.positions[first:end], self.values.sizes[first:end]),
            headers=headers._replace(rows=headers.rows - first),
        )

    def since(self, offset: int) -> LocatedRecords:
        """Return the records whose offset is `offset` or larger; there may be none."""
        first = int(np.searchsorted(self.offsets, offset))
        return self.part(first, self.count) if first else self

    def first_empty_value_offset(self) -> int | None:
        """Return the offset of the first record that has a key and an empty value, but no null; None: there is none."""
        empty = np.flatnonzero((self.values.sizes == 0) & (self.keys.sizes >= 0))
        return int(self.offsets[empty[0]]) if len(empty) else None

    def keys_and_values(self) -> list[pa.Array]:
        """Return the keys, and the values, as arrays of bytes."""
        spans = (span._replace(null=span.sizes < 0) for span in (self.keys, self.values))
        return slices(pa.py_buffer(self.data), self.end, pa.binary(), *spans)

    def table(self) -> pa.Table:
        """Return the records as a table (SCHEMA)."""
        columns = [
            pa.array(self.offsets),
            pa.array(self.timestamps, mask=self.timestamps < 0),
            *self.keys_and_values(),
            properties_of(pa.py_buffer(self.data), self.end, self.count, self.headers),
        ]
        return pa.table(columns, schema=SCHEMA)


def records_from_rows(rows: Sequence[tuple[int, int | None, bytes | None, bytes | None]]) -> LocatedRecords:
    """Return located records without headers, made of rows (offset, timestamp, key, value); at least one row."""
    offsets, times, keys, values = zip(*rows, strict=True)
    pieces = [piece for pair in zip(keys, values, strict=True) for piece in pair]
    lengths = np.array([-1 if piece is None else len(piece) for piece in pieces], np.int64)
    ends = np.cumsum(np.maximum(lengths, 0))
    starts = ends - np.maximum(lengths, 0)
    return LocatedRecords(
        b"".join(piece or b"" for piece in pieces),
        int(ends[-1]),
        np.array(offsets, np.int64),
        np.array([-1 if time is None else time for time in times], np.int64),
        Spans(starts[::2], lengths[::2]),
        Spans(starts[1::2], lengths[1::2]),
        NO_HEADERS,
    )
