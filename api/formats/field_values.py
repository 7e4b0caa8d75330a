"""Fields and columns of people's data as keys, payloads and event times of messages, by columns.

Every type has one text. Strings and bytes are taken as they are. Numbers are decimal; floats are the shortest text that
gives the same number. Booleans are `true` and `false`; dates are `2020-01-31`. Timestamps are
`2020-01-31 12:00:00.123456`, with the digits of their unit; if they have a zone they are in UTC, with a `Z` at the end.
Decimals keep their scale; UUIDs are in their usual form.

Times are numbers, in milliseconds since 1970, or texts in ISO 8601, of UTC if they name no zone.

Raises InvalidRecord, which names file and row. Must not know: files, formats.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from api.formats.input_stream import REMEDY, source_name
from api.formats.text_encoding import TextEncoding, to_bytes
from storage.errors import InvalidRecord
from storage.log.bulk_append import INPUT_SCHEMA

_SHOWN_FIELDS = 12
_HAS_ZONE = r"\d:\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


@dataclass(frozen=True)
class RowPositions:
    """Positions of consecutive rows in a file, for error messages. `noun`: line or row; `first`: the number of the
    first row."""

    file: str
    noun: str
    first: int

    def row_error(self, index: int, reason: str, remedy: str = REMEDY) -> InvalidRecord:
        """Return an InvalidRecord about a row, which the caller raises."""
        return InvalidRecord(f"{source_name(self.file)}, {self.noun} {self.row_number(index)}: {reason}", remedy)

    def row_number(self, index: int) -> int:
        """Return the number of a row in its file. `index`: its index among these rows."""
        return self.first + index

    def raise_for_first(self, is_wrong: pa.Array, reason: str, remedy: str = REMEDY) -> None:
        """Raise InvalidRecord for the first row whose mask is true; return if there is none."""
        mask = pc.fill_null(is_wrong, False).to_numpy(zero_copy_only=False)
        if mask.any():
            raise self.row_error(int(np.argmax(mask)), reason, remedy)

    def convert(self, column: pa.Array, convert: Callable[[pa.Array], pa.Array], name: str, form: str) -> pa.Array:
        """Return the converted column. Raises InvalidRecord for the first value that cannot be converted."""
        try:
            return convert(column)
        except (*_ARROW_ERRORS, ValueError):
            for index in range(len(column)):
                try:
                    convert(column.slice(index, 1))
                except (*_ARROW_ERRORS, ValueError) as error:
                    text = str(column[index].as_py())[:60]
                    raise self.row_error(index, f"{name} is {text!r}, which is not {form}") from error
            raise


@dataclass(frozen=True)
class ScatteredRowPositions(RowPositions):
    """Positions of rows of a file that are not consecutive. `indices`: the distance of each from the row `first`."""

    indices: Sequence[int]

    def row_number(self, index: int) -> int:
        """Return the number of a row in its file. `index`: its index among these rows."""
        return self.first + self.indices[index]


def field_list(names: list[str]) -> str:
    """Return names of fields as a comma-separated list for an error, cut after twelve names."""
    more = f" and {len(names) - _SHOWN_FIELDS} more" if len(names) > _SHOWN_FIELDS else ""
    return f"{', '.join(names[:_SHOWN_FIELDS])}{more}"


def message_table(
    rows: RowPositions,
    keys: pa.Array,
    payloads: pa.Array,
    event_times: pa.Array | None,
    refuses_empty: bool,
    key_name: str = "the key",
) -> pa.Table:
    """Combine columns to a table of messages (INPUT_SCHEMA), each with a key.

    Raises InvalidRecord for a row without a key, and, if `refuses_empty`, with an empty value.
    """
    rows.raise_for_first(pc.is_null(keys), f"{key_name} is null, and every row needs a key", REMEDY)
    if refuses_empty:
        refuse_keys_with_empty_value(rows, keys, payloads)
    absent = {"publish_time": None, "event_time": event_times, "properties": None}
    columns = [keys.cast(pa.binary()), payloads.cast(pa.binary())]
    for field in list(INPUT_SCHEMA)[2:]:
        column = absent[field.name]
        columns.append(pa.nulls(len(keys), field.type) if column is None else column)
    return pa.table(columns, schema=INPUT_SCHEMA)


def refuse_keys_with_empty_value(rows: RowPositions, keys: pa.Array, payloads: pa.Array) -> None:
    """Raise InvalidRecord for the first row that has a key and an empty value, not null."""
    empty = pc.and_(pc.fill_null(pc.equal(pc.binary_length(payloads), 0), False), pc.is_valid(keys))
    rows.raise_for_first(
        empty,
        "the value is empty, which deletes the key here",
        "import with --empty-values delete if it may delete its key; nothing of it was kept",
    )


def values_as_text_bytes(column: pa.Array) -> pa.Array:
    """Convert a column of any type but nested ones to the bytes of its values as text. Raises Arrow's errors."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return values_as_text_bytes(column.cast(kind.value_type))
    if kind == pa.uuid():
        return pa.array([None if value is None else str(value) for value in column.to_pylist()]).cast(pa.binary())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit, "UTC"))
    if pa.types.is_nested(kind):
        raise pa.ArrowTypeError("nested")
    if is_text_or_binary(kind):
        return column.cast(pa.binary())
    return column.cast(pa.string()).cast(pa.binary())


def is_text_or_binary(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is one of texts or bytes."""
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    views = (pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in (*kinds, *views))


def decode_column(rows: RowPositions, column: pa.Array, encoding: TextEncoding, name: str) -> pa.Array:
    """Decode a column of texts to the bytes that they encode. Raises InvalidRecord for a text that is not of that
    encoding."""
    if encoding is TextEncoding.UTF8:
        return column.cast(pa.binary())

    def convert(texts: pa.Array) -> pa.Array:
        values = [None if text is None else to_bytes(text, encoding) for text in texts.cast(pa.string()).to_pylist()]
        return pa.array(values, pa.binary())

    return rows.convert(column, convert, name, "base64")


def encode_column(column: pa.Array, encoding: TextEncoding) -> pa.Array:
    """Encode a column of bytes as texts. Raises ArrowInvalid for bytes that are not UTF-8, if the encoding is UTF-8."""
    if encoding is TextEncoding.UTF8:
        return column.cast(pa.string())
    return pa.array(
        [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()], pa.string()
    )


def parse_times(rows: RowPositions, column: pa.Array, name: str) -> pa.Array:
    """Convert a column of times to milliseconds since 1970. Raises InvalidRecord for a value that is no time."""
    return rows.convert(
        column, _to_milliseconds, name, "a time: whole milliseconds since 1970, or ISO 8601 as 2020-01-31T12:00:00Z"
    )


def _to_milliseconds(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _to_milliseconds(column.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        # Finer units are truncated to milliseconds. Seconds may overflow, which must be an error.
        return column.cast(pa.timestamp("ms", kind.tz), safe=kind.unit in ("s", "ms")).cast(pa.int64())
    if pa.types.is_date(kind):
        return column.cast(pa.timestamp("ms")).cast(pa.int64())
    if is_text_or_binary(kind):
        return _parse_time_texts(column.cast(pa.string()))
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise pa.ArrowTypeError("not a time")
    return column.cast(pa.int64())


def _parse_time_texts(texts: pa.Array) -> pa.Array:
    is_number = pc.match_substring_regex(texts, r"^-?\d+$")
    has_zone = pc.match_substring_regex(texts, _HAS_ZONE)
    micros = pc.replace_substring_regex(texts, r"([.,]\d{6})\d+", r"\1")
    absent = pa.scalar(None, pa.string())
    numbers = pc.if_else(is_number, texts, absent).cast(pa.int64())
    zoned = pc.if_else(has_zone, micros, absent).cast(pa.timestamp("us", "UTC"))
    plain = pc.if_else(pc.or_(is_number, has_zone), absent, micros).cast(pa.timestamp("us"))
    stamps = [column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64()) for column in (zoned, plain)]
    return pc.coalesce(numbers, *stamps)
