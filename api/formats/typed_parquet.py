"""Parquet of any columns, as the input of an import: `--key-field`.

A column is named as it is, or a member of a struct with dots (`user.id`). Keys of any type but nested ones are texts
(field_values.py has their form). The value is a column, as text, or as JSON if it is nested, or the row as JSON
(row_json.py). A null value of a row with a key deletes it. Memory: some row groups of the file's own size.

Raises InvalidInput, InvalidRecord. Must not know: other formats.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from api.formats.field_values import RowPositions, field_list, message_table, parse_times, values_as_text_bytes
from api.formats.inputs import InputOptions
from api.formats.parquet import read_parquet_batches
from api.formats.row_json import json_rows, json_values
from storage.errors import InvalidRecord


def read_typed_parquet(file: str, options: InputOptions) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file as tables of messages (INPUT_SCHEMA). Raises InvalidInput, InvalidRecord."""
    assert options.key_field is not None
    first = 1
    for batch in read_parquet_batches(file, lambda schema: _check_columns(file, schema, options)):
        rows, table = RowPositions(file, "row", first), pa.table(batch)
        keys = _key_column(rows, table, options.key_field)
        time = options.timestamp_field
        event_times = None if time is None else parse_times(rows, _require_column(table, time), time)
        yield message_table(
            rows,
            keys,
            _value_column(file, table, options),
            event_times,
            options.refuses_empty_values,
            options.key_field,
        )
        first += len(table)


def _check_columns(file: str, schema: pa.Schema, options: InputOptions) -> None:
    """Raise InvalidRecord for a chosen column that the file does not have."""
    for option, name in (
        ("--key-field", options.key_field),
        ("--value-field", options.value_field),
        ("--timestamp-field", options.timestamp_field),
    ):
        if name is not None and _find_column(schema.empty_table(), name) is None:
            raise InvalidRecord(
                f"{file} has no column {name}; it has {field_list(schema.names)}", f"name another one with {option}"
            )


def _key_column(rows: RowPositions, table: pa.Table, name: str) -> pa.Array:
    column = _require_column(table, name)
    try:
        return values_as_text_bytes(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidRecord(
            f"{rows.file}: column {name} is {column.type}, which is no key",
            "name a column of texts, bytes, numbers, dates or times, or a member of a struct, with a dot",
        ) from error


def _value_column(file: str, table: pa.Table, options: InputOptions) -> pa.Array:
    if options.value_field is None:
        return json_rows(file, table)
    column = _require_column(table, options.value_field)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return json_values(file, options.value_field, column) if pa.types.is_nested(kind) else values_as_text_bytes(column)


def _require_column(table: pa.Table, name: str) -> pa.Array:
    column = _find_column(table, name)
    assert column is not None
    return column.combine_chunks()


def _find_column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    """Return a column, or a member of a column of structs by a dotted name; None: there is none."""
    if name in table.column_names:
        return table.column(name)
    column, _, rest = name.partition(".")
    if not rest or column not in table.column_names:
        return None
    value = table.column(column)
    for part in rest.split("."):
        if not pa.types.is_struct(value.type) or value.type.get_field_index(part) < 0:
            return None
        value = pc.struct_field(value, part)
    return value
