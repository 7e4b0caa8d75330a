"""Rows of a table as JSON objects, one text a row.

Texts, numbers, booleans, lists, structs and maps are those of JSON; NaN and infinities are null. Dates, timestamps,
decimals and UUIDs are texts, as field_values.py has them, also inside of lists and structs. Bytes must be UTF-8.

Raises InvalidRecord for a column that has no JSON. Must not know: files, formats.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from api.formats.field_values import is_text_or_binary, values_as_text_bytes
from storage.errors import InvalidRecord


def json_rows(file: str, table: pa.Table) -> pa.Array:
    """Return each row as the bytes of a JSON object, with the members in the order of the columns.

    Raises InvalidRecord, which names the file and the column.
    """
    columns = {
        name: _json_compatible_column(file, name, table.column(name).combine_chunks()) for name in table.column_names
    }
    frame = pl.DataFrame(pl.from_arrow(pa.table(columns)))
    texts = frame.select(pl.struct(pl.all()).struct.json_encode()).to_series()
    return texts.to_arrow().cast(pa.binary())


def json_values(file: str, name: str, column: pa.Array) -> pa.Array:
    """Return each value of a column as the bytes of its JSON; null stays null. Raises as `json_rows`."""
    frame = pl.DataFrame(pl.from_arrow(pa.table({"v": _json_compatible_column(file, name, column)})))
    objects = frame.select(pl.struct(pl.all()).struct.json_encode()).to_series().to_arrow().cast(pa.binary())
    texts = pc.binary_slice(objects, len('{"v":'), -1)
    return pc.if_else(pc.is_null(column), pa.scalar(None, pa.binary()), texts)


def _json_compatible_column(file: str, name: str, column: pa.Array) -> pa.Array:
    """Convert a column to types that JSON has; other values become texts. Raises InvalidRecord."""
    kind = column.type
    try:
        if not pa.types.is_nested(kind):
            return column if _is_json_scalar(kind) else values_as_text_bytes(column).cast(pa.string())
        return column.cast(_json_type(kind, with_zones=True)).cast(_json_type(kind, with_zones=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no JSON"
        raise InvalidRecord(
            f"{file}: column {name} is {kind}, which has no JSON ({reason})",
            "name the column of the value: --value-field",
        ) from error


def _is_json_scalar(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null, pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in tests) or kind in (pa.float32(), pa.float64())


def _json_type(kind: pa.DataType, *, with_zones: bool) -> pa.DataType:
    """Return the type that JSON has for a type. `with_zones`: a timestamp with a zone stays one, of UTC."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_json_type(field.type, with_zones=with_zones)) for field in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _json_type(kind.item_type, with_zones=with_zones))
    if pa.types.is_nested(kind):
        return pa.list_(_json_type(kind.value_type, with_zones=with_zones))
    if pa.types.is_dictionary(kind):
        return _json_type(kind.value_type, with_zones=with_zones)
    if with_zones and pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if with_zones and not is_text_or_binary(kind):
        return kind
    return kind if _is_json_scalar(kind) else pa.string()
