"""The rows of a part that the table does not show, as positions in the part, and the part's statistics.

Hidden are superseded rows, retained tombstones, and rows that are no message by themselves (column `slot`): whole
entries, chunks, markers. Bitmaps of superseded rows have offsets, delete files have positions. Where the offsets of a
row group are dense, one gives the other; elsewhere only its column of offsets is read, without the rest of its bytes,
so without their checksum. Errors in it are found by other means: it has the number of rows and the bounds that the
footer states, it ascends, and it has every superseded offset. Likewise with the column of tombstones' times, by its
rows, nulls and bounds.

Errors: ObjectMissing, ObjectDamaged, other errors of the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage.advice import damaged_object_advice
from storage.ahead import run_ahead
from storage.errors import ObjectDamaged
from storage.ledger import rows
from storage.ledger.rows_file import LoadedRange, RowsReader
from storage.objects.interface import ObjectStore
from storage.slices import I64
from storage.table.schema import NUMBERS, SHOWN


def positions_of_unshown_rows(store: ObjectStore, reader: RowsReader) -> BitMap:
    """Return the positions of retained tombstones, and of rows that are no message by themselves.

    Reads nothing of row groups whose statistics tell it. Where only tombstones are hidden, it reads only the column of
    their times; elsewhere, all of the row group.
    """
    hidden = BitMap()
    starts = _first_positions(reader)
    with_tombstones, mixed = [], []
    for number, group in enumerate(reader.groups):
        slots = {reader.least(number, "slot"), reader.greatest(number, "slot")}
        if slots == {int(rows.RowType.MESSAGE)}:
            if reader.least(number, "retained_at") is not None:
                with_tombstones.append(number)
        elif len(slots) == 1 and None not in slots:
            hidden.add_range(int(starts[number]), int(starts[number]) + group.rows)
        else:
            mixed.append(number)
    for number, column in zip(
        with_tombstones, _read_column(store, reader, "retained_at", with_tombstones), strict=True
    ):
        hidden |= _positions_of_mask(np.asarray(column.is_valid()), starts[number])
    reader.announce_row_groups(mixed, ahead=True)
    for number in mixed:
        table = reader.read(number, ["slot", "retained_at"])
        mask = table.column("slot").to_numpy() != rows.RowType.MESSAGE
        hidden |= _positions_of_mask(mask | np.asarray(table.column("retained_at").is_valid()), starts[number])
    return hidden


def _positions_of_mask(mask: npt.NDArray[np.bool_], start: np.int64) -> BitMap:
    return BitMap((np.flatnonzero(mask) + start).astype(np.uint32))


def positions_of_offsets(store: ObjectStore, reader: RowsReader, offsets: I64) -> BitMap:
    """Return the positions of rows by their offsets, which ascend. Raises ObjectDamaged if one has no row."""
    positions = BitMap()
    starts = _first_positions(reader)
    firsts = np.searchsorted(offsets, [group.first_offset for group in reader.groups], "left").tolist()
    ends = np.searchsorted(offsets, [group.last_offset for group in reader.groups], "right").tolist()
    if sum(ends) - sum(firsts) != len(offsets):
        raise _wrong_column_error(reader, "offset")
    spans = {number: span for number, span in enumerate(zip(firsts, ends, strict=True)) if span[0] < span[1]}
    sparse = [number for number in spans if _has_gaps(reader, number)]
    columns = _read_offset_columns(store, reader, sparse)
    for number, (first, end) in spans.items():
        requested = offsets[first:end]
        if _has_gaps(reader, number):
            present = next(columns)
            within = np.searchsorted(present, requested)
            if np.any(present[np.minimum(within, len(present) - 1)] != requested):
                raise _wrong_column_error(reader, "offset")
        else:
            within = requested - reader.groups[number].first_offset
        positions |= BitMap((within + starts[number]).astype(np.uint32))
    return positions


def _has_gaps(reader: RowsReader, number: int) -> bool:
    group = reader.groups[number]
    return group.last_offset - group.first_offset + 1 != group.rows


def _read_offset_columns(store: ObjectStore, reader: RowsReader, groups: list[int]) -> Iterator[I64]:
    """Yield the offsets of all rows of row groups, in order."""
    for column in _read_column(store, reader, "offset", groups):
        offsets = np.asarray(column.to_numpy(), dtype=np.int64)
        if np.any(offsets[1:] <= offsets[:-1]):
            raise _wrong_column_error(reader, "offset")
        yield offsets


def _read_column(store: ObjectStore, reader: RowsReader, name: str, groups: list[int]) -> Iterator[pa.ChunkedArray]:
    """Read one column of row groups, without the others, and yield it for each, in order.

    Raises ObjectDamaged if the column differs from the statistics in the footer.
    """
    window = LoadedRange(reader.stored.size)
    file = pq.ParquetFile(pa.PythonFile(window, mode="r"), metadata=reader.metadata, pre_buffer=False)
    chunks = [_column_chunk(reader, number, name) for number in groups]
    reads = (
        partial(store.get, reader.stored.name, chunk.data_page_offset, chunk.total_compressed_size) for chunk in chunks
    )
    for number, chunk, data in zip(groups, chunks, run_ahead(reads, store.concurrent_requests), strict=True):
        window.load(memoryview(data), chunk.data_page_offset)
        try:
            column = file.read_row_group(number, columns=[name], use_threads=False).column(name)
        except (OSError, pa.ArrowException) as error:
            raise _wrong_column_error(reader, name) from error
        known, bounds = chunk.statistics, pc.min_max(column).as_py()
        expected = (reader.groups[number].rows, known.null_count, known.min, known.max)
        if (len(column), column.null_count, bounds["min"], bounds["max"]) != expected:
            raise _wrong_column_error(reader, name)
        yield column


def _column_chunk(reader: RowsReader, number: int, name: str) -> Any:
    group = reader.metadata.row_group(number)
    return next(
        group.column(position) for position in range(group.num_columns) if group.column(position).path_in_schema == name
    )


def _first_positions(reader: RowsReader) -> I64:
    """Return the position of the first row of each row group."""
    counts = np.array([0, *(group.rows for group in reader.groups)], dtype=np.int64)
    return np.cumsum(counts)[:-1]


def _wrong_column_error(reader: RowsReader, column: str) -> ObjectDamaged:
    name = reader.stored.name
    return ObjectDamaged(
        f"the column {column} of {name} is not what its footer and its deleted rows state",
        damaged_object_advice(name),
        is_public=True,
    )


def part_statistics(reader: RowsReader) -> dict[str, Any]:
    """Return the statistics of a part for its entry in a manifest, by the footer.

    Sizes, counts and nulls of the table's columns, by field id, bounds of its numbers, and the starts of row groups.
    """
    sizes: dict[int, int] = {}
    counts: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, int] = {}
    upper: dict[int, int] = {}
    starts = []
    for number in range(reader.metadata.num_row_groups):
        group = reader.metadata.row_group(number)
        columns = [group.column(position) for position in range(group.num_columns)]
        starts.append(min(column.dictionary_page_offset or column.data_page_offset for column in columns))
        for column in columns:
            name = column.path_in_schema.replace(".key_value.", ".")
            if name.partition(".")[0] not in SHOWN:
                continue
            field_id = rows.FIELD_IDS[name]
            sizes[field_id] = sizes.get(field_id, 0) + column.total_compressed_size
            counts[field_id] = counts.get(field_id, 0) + column.num_values
            known = column.statistics
            if known is None:
                continue
            if known.has_null_count:
                nulls[field_id] = nulls.get(field_id, 0) + known.null_count
            if name in NUMBERS and known.has_min_max:
                lower[field_id] = min(lower.get(field_id, known.min), known.min)
                upper[field_id] = max(upper.get(field_id, known.max), known.max)
    widths = {rows.FIELD_IDS[name]: 8 if kind == "long" else 4 for name, kind in NUMBERS.items()}
    return {
        "column_sizes": _key_value_pairs(sizes),
        "value_counts": _key_value_pairs(counts),
        "null_value_counts": _key_value_pairs(nulls),
        "lower_bounds": _key_value_pairs(
            {key: value.to_bytes(widths[key], "little", signed=True) for key, value in lower.items()}
        ),
        "upper_bounds": _key_value_pairs(
            {key: value.to_bytes(widths[key], "little", signed=True) for key, value in upper.items()}
        ),
        "split_offsets": starts,
    }


def _key_value_pairs(values: dict[int, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in sorted(values.items())]
