"""Formats of the rows of a query: lines of JSON, CSV, Parquet.

Numbers are those of JSON, also those with more than 64 bits; decimals with a scale, dates, times, UUIDs and intervals
are texts, bytes are base64, NaN and infinities are null. Columns of JSON are JSON inside of a line. CSV has null as an
empty cell and an empty text in quotes, and nested values as JSON.

Memory: a batch. Raises InvalidInput, and the errors of the file. Must not know: queries.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from storage.errors import InvalidInput

_JSON = {b"ARROW:extension:name": b"arrow.json"}
"""Metadata of a field whose texts are JSON."""
_CSV_ROWS = 10_000


@dataclass(frozen=True)
class ResultRows:
    """The rows of a query. `schema`: of the batches, with JSON marked (`mark_as_json`)."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def mark_as_json(field: pa.Field) -> pa.Field:
    """Return an Arrow field of texts marked as JSON."""
    return field.with_metadata(_JSON)


def write_json_lines(stream: IO[bytes], result: ResultRows) -> int:
    """Write each row as a JSON object, and return their number. Raises InvalidInput for two columns of one name."""
    check_unique_names(result.schema)
    encoder = msgspec.json.Encoder(enc_hook=str)
    count = 0
    for row in json_compatible_rows(result):
        stream.write(encoder.encode(dict(zip(result.schema.names, row, strict=True))) + b"\n")
        count += 1
    return count


def write_csv(stream: IO[bytes], result: ResultRows, display: Callable[[str], str] = str) -> int:
    """Write a header line and a line for each row as CSV; return the number of rows.

    `display`: returns a text in the form to write, for instance escaped.
    """
    schema = pa.schema([(name, pa.string()) for name in result.schema.names])
    count = 0
    rows = json_compatible_rows(result)
    with pyarrow.csv.CSVWriter(stream, schema) as writer:
        while some := list(islice(rows, _CSV_ROWS)):
            texts = [[None if text is None else display(text) for text in map(cell_text, row)] for row in some]
            columns = [pa.array(column, pa.string()) for column in zip(*texts, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            count += len(some)
    return count


def write_parquet_rows(target: str | IO[bytes], result: ResultRows) -> int:
    """Write rows as Parquet, and return their number. Raises InvalidInput for two columns of one name."""
    check_unique_names(result.schema)
    count = 0
    with pq.ParquetWriter(target, result.schema, compression="zstd") as writer:
        for batch in result.batches:
            writer.write_batch(batch)
            count += len(batch)
    return count


def check_unique_names(schema: pa.Schema) -> None:
    """Raise InvalidInput if two columns have one name."""
    twice = [name for name, times in Counter(schema.names).items() if times > 1]
    if twice:
        raise InvalidInput(f"the result has more than one column {twice[0]}", "name them apart, with AS")


def json_compatible_rows(result: ResultRows) -> Iterator[tuple[Any, ...]]:
    """Yield each row as a tuple of Python values that can be encoded as JSON."""
    for batch in result.batches:
        columns = [
            _json_compatible_values(column, field) for column, field in zip(batch.columns, result.schema, strict=True)
        ]
        yield from zip(*columns, strict=True)


def cell_text(value: Any) -> str | None:
    """Return a value of `json_compatible_rows` as the text of a cell; None: null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    if isinstance(value, bool | dict | list):
        return msgspec.json.encode(value, enc_hook=str).decode()
    return str(value)


def _json_compatible_values(column: pa.Array, field: pa.Field) -> list[Any]:
    try:
        values = column.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"the column {field.name} has a time that is in no calendar ({error})",
            "write it as Parquet, or select epoch_ms of it",
        ) from error
    return [_json_compatible_value(value, field) for value in values]


def _json_compatible_value(value: Any, field: pa.Field) -> Any:
    kind = field.type
    match value:
        case str() if field.metadata == _JSON:
            return msgspec.Raw(value.encode())
        case None | str() | bool() | int():
            return value
        case Decimal():
            return _integer_as_json(value) if value.as_tuple().exponent == 0 else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case float():
            return value if math.isfinite(value) else None
        case dict() if pa.types.is_struct(kind):
            return {name: _json_compatible_value(inner, kind.field(name)) for name, inner in value.items()}
        case dict():
            return {str(name): _json_compatible_value(inner, kind.item_field) for name, inner in value.items()}
        case list():
            return [_json_compatible_value(item, kind.value_field) for item in value]
    return str(value)


def _integer_as_json(value: Decimal) -> Any:
    number = int(value)
    return number if -(2**63) <= number < 2**63 else msgspec.Raw(str(number).encode())
