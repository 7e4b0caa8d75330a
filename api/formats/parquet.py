"""Parquet, input and output: one message per row.

Input: columns `key` and `value` (string or binary), optional `event_time` and `publish_time` (integer milliseconds, or
timestamps, which are truncated to milliseconds), optional `properties` (map of strings). Output: the same columns,
`message_id` and `offset`, which an import accepts and ignores. Any other column is an error, because its content would
be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from api.formats.field_values import RowPositions, field_list, is_text_or_binary, refuse_keys_with_empty_value
from api.formats.inputs import EmptyValues, InputOptions
from api.formats.message_tables import BATCH_BYTES, assemble_chunked_messages, output_schema, output_table
from api.formats.output_file import atomic_output_file
from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidInput, InvalidRecord
from storage.log.bulk_append import INPUT_SCHEMA

_BATCH_ROWS = 65_536
_SOURCES = {"key": "key", "payload": "value", "event_time": "event_time", "publish_time": "publish_time"}
_SOURCES["properties"] = "properties"
_UNUSED = {"message_id", "offset"}
_REMEDY = (
    "give key and value (string or binary), optional event_time, publish_time (ms) and properties (map of strings)"
)


def read_import_parquet(file: str, options: InputOptions) -> Iterator[pa.Table]:
    """Yield the messages of a Parquet file to import, some rows at a time, as tables of INPUT_SCHEMA.

    Raises InvalidInput for standard input, InvalidRecord for a file that is not of this form.
    """
    first = 1
    for batch in read_parquet_batches(file, lambda schema: _check_columns(file, schema)):
        table = _input_table(file, pa.table(batch))
        if options.empty_values is EmptyValues.REFUSE:
            keys, payloads = (table.column(name).combine_chunks() for name in ("key", "payload"))
            refuse_keys_with_empty_value(RowPositions(file, "row", first), keys, payloads)
        first += len(table)
        yield table


def read_parquet_batches(file: str, check: Callable[[pa.Schema], None]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, some at a time, after `check` of its schema.

    Raises InvalidInput for standard input, InvalidRecord for a file that is no Parquet, and the errors of `check`.
    """
    if file == "-":
        raise InvalidInput("Parquet cannot be read from standard input", "name a file")
    try:
        with pq.ParquetFile(file, pre_buffer=False) as source:
            check(source.schema_arrow)
            yield from source.iter_batches(_rows_per_batch(source.metadata), use_threads=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise InvalidRecord(
            f"{file} cannot be read as Parquet ({_first_error_line(error)})",
            "check that it is a whole Parquet file; nothing of it was kept",
        ) from error


def _rows_per_batch(metadata: Any) -> int:
    """Return the number of rows of a Parquet file to read at once. It is smaller for large rows."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return min(_BATCH_ROWS, max(1, BATCH_BYTES // max(1, row_bytes)))


def _check_columns(file: str, schema: Any) -> None:
    missing = {"key", "value"} - set(schema.names)
    if missing:
        raise InvalidRecord(
            f"{file} has no column {' and no column '.join(sorted(missing))}; it has {field_list(schema.names)}",
            f"{_REMEDY}; or name the column of the key: --key-field",
        )
    twice = sorted(name for name, times in Counter(schema.names).items() if times > 1)
    if twice:
        raise InvalidRecord(f"{file} has more than one column {', '.join(twice)}", _REMEDY)
    unknown = sorted(set(schema.names) - set(_SOURCES.values()) - _UNUSED)
    if unknown:
        raise InvalidRecord(
            f"{file} has columns that no field of a message holds: {', '.join(unknown)}",
            f"{_REMEDY}; or name the column of the key, to take rows of any columns: --key-field key",
        )


def _input_table(file: str, table: pa.Table) -> pa.Table:
    columns = []
    for field in INPUT_SCHEMA:
        source = _SOURCES[field.name]
        if source not in table.column_names:
            columns.append(pa.nulls(len(table), field.type))
            continue
        column = table.column(source)
        try:
            columns.append(cast_column(column, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise InvalidRecord(
                f"{file}: column {source} is {_type_name(column.type)} ({_first_error_line(error)})", _REMEDY
            ) from error
    return pa.table(columns, schema=INPUT_SCHEMA)


def cast_column(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast a column to the type of a field of messages. Raises ArrowInvalid, ArrowNotImplementedError,
    ArrowTypeError."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_binary(target) and not (is_text_or_binary(kind) or pa.types.is_null(kind)):
        raise pa.ArrowTypeError("not string or binary")
    if pa.types.is_timestamp(kind):
        # Finer units are truncated to milliseconds. Seconds may overflow, which must be an error.
        return column.cast(pa.timestamp("ms", kind.tz), safe=kind.unit in ("s", "ms")).cast(target)
    if pa.types.is_int64(target) and not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise pa.ArrowTypeError("not integer or timestamp")
    cast = column.cast(target)
    if pa.types.is_map(target) and any(chunk.items.null_count for chunk in cast.chunks):
        raise pa.ArrowTypeError("a property without a value")
    return cast


def _type_name(kind: pa.DataType) -> str:
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _first_error_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def write_parquet(
    file: str,
    batches: Iterator[pa.RecordBatch],
    partition: int,
    key_encoding: TextEncoding,
    value_encoding: TextEncoding,
    limit: int | None = None,
) -> int:
    """Write messages (`rows.SCHEMA`) to a file and return their number. `file` `-`: standard output.

    `limit`: maximum number of messages; a chunked message counts as one (P10). An encoding of UTF-8 makes a column of
    strings, base64 a column of bytes. Raises InvalidInput, StorageFull.
    """
    schema = output_schema(key_encoding, value_encoding)
    count = 0
    with atomic_output_file(file) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for batch in assemble_chunked_messages(batches, partition) if limit != 0 else ():
            taken = batch if limit is None else batch.slice(0, limit - count)
            writer.write_table(output_table(taken, schema, partition))
            count += len(taken)
            if count == limit:
                break
    return count
