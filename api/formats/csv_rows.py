"""CSV with a header row, as the input of an import: RFC 4180, in UTF-8, plain or gzip.

All cells are texts: nothing is inferred. An empty cell without quotes is null, and a quoted one is an empty text, as in
PostgreSQL. An empty line is a row of nulls with `--key-field`, and left out without it. With `--key-field` the value is
the row as a JSON object of texts and nulls, or one column. Without it the columns are those of a message: `key` and
`value`, optional `publish_time`, `event_time` and `properties` (a JSON object of texts); `message_id` and `offset` are
not used.

A null or empty value of a row with a key would delete the key: it is refused, unless `--empty-values delete`. Memory:
some blocks of `BLOCK_BYTES`, which must hold the longest row.

Raises InvalidInput; InvalidRecord, which names the row: 1 is the first one after the header. Must not know: other
formats.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from api.formats.field_values import RowPositions, decode_column, field_list, message_table, parse_times
from api.formats.input_stream import STREAM_ERRORS, interrupt_read, open_input, source_name, stream_error_reason
from api.formats.inputs import InputOptions
from api.formats.key_value_lines import unescape_separator
from api.formats.row_json import json_rows
from storage.errors import InvalidInput, InvalidRecord
from storage.log.bulk_append import INPUT_SCHEMA

BLOCK_BYTES = 4 << 20
_MESSAGE_COLUMNS = frozenset({"key", "value", "publish_time", "event_time", "properties", "message_id", "offset"})
_POLL_SECONDS = 0.5
_ARROW_ROW = re.compile(r"Row #(\d+): ")
_REMEDY = "correct it and import it again; nothing of it was kept"


def read_csv_rows(file: str, options: InputOptions) -> Iterator[pa.Table]:
    """Yield the rows of a CSV file as tables of messages (INPUT_SCHEMA). Raises InvalidInput, InvalidRecord."""
    delimiter = unescape_separator("," if options.separator is None else options.separator)
    if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
        raise InvalidInput(f"the separator {delimiter!r} of CSV is not one character", r"give one: --separator '\t'")
    first = 1
    with open_input(file) as stream:
        for batch in _read_batches(file, stream, delimiter, options):
            rows = RowPositions(file, "row", first)
            table = pa.table(batch)
            yield (
                _messages_by_message_columns(rows, table, options)
                if options.key_field is None
                else _messages_by_key_field(rows, table, options)
            )
            first += len(batch)


def _read_batches(
    file: str, stream: io.BufferedIOBase, delimiter: str, options: InputOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a CSV stream as batches, all columns as texts. Raises InvalidRecord."""
    try:
        start = stream.read(BLOCK_BYTES)
        if not start.strip():
            return
        names = _read_header(file, start, delimiter, options)
        convert_options = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        parse_options = pyarrow.csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            ignore_empty_lines=options.key_field is None,  # else an empty cell of a single column would be lost
        )
        for batch in _read_in_thread(_PrefixedStream(start.lstrip(b"\r\n"), stream), parse_options, convert_options):
            if any(kind != pa.string() for kind in batch.schema.types):
                raise InvalidRecord(f"{source_name(file)} has a header that cannot be read", _REMEDY)
            yield batch
    except pa.ArrowInvalid as error:
        raise InvalidRecord(f"{source_name(file)}{_arrow_error_reason(error)}", _arrow_error_remedy(error)) from error
    except STREAM_ERRORS as error:
        raise InvalidRecord(f"{source_name(file)}: {stream_error_reason(error)}", _REMEDY) from error


def _read_in_thread(
    stream: _PrefixedStream, parse_options: pyarrow.csv.ParseOptions, convert_options: pyarrow.csv.ConvertOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of Arrow's CSV reader, which runs in a thread: Arrow lets no signal end its wait for a pipe."""
    with ThreadPoolExecutor(1, thread_name_prefix="csv") as pool:
        try:
            opened = pool.submit(
                pyarrow.csv.open_csv,
                stream,
                read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
                parse_options=parse_options,
                convert_options=convert_options,
            )
            reader = iter(_wait_for_result(opened))
            while (batch := _wait_for_result(pool.submit(next, reader, None))) is not None:
                yield batch
        finally:
            stream.interrupt_read()


def _wait_for_result(future: Future[Any]) -> Any:
    """Wait for a future, and return its result. The wait is divided, so that a signal right before it ends it soon."""
    while not wait([future], _POLL_SECONDS).done:
        pass
    return future.result()


def _arrow_error_reason(error: pa.ArrowInvalid) -> str:
    """Return the row and the reason of an error of Arrow's CSV reader, as the end of a message. Arrow counts the header
    as row 1."""
    text = str(error).splitlines()[0][:300]
    match = _ARROW_ROW.search(text)
    return f": {text}" if match is None else f", row {int(match[1]) - 1}: {text[match.end() :]}"


def _arrow_error_remedy(error: pa.ArrowInvalid) -> str:
    if "columns, got" in str(error):
        return f"quote cells that have separators or ends of lines, or name the --separator; {_REMEDY}"
    if "straddl" in str(error):
        limit = f"{BLOCK_BYTES >> 20} MiB"
        return f"a row has at most {limit}; a quote that is not closed makes one row of the rest; {_REMEDY}"
    return _REMEDY


def _read_header(file: str, start: bytes, delimiter: str, options: InputOptions) -> list[str]:
    """Return the names of the columns. Raises InvalidRecord if the import needs a column that is missing."""
    try:
        text = start.decode("utf-8-sig", errors="ignore")
        names = next(row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row)
    except (csv.Error, StopIteration) as error:
        raise InvalidRecord(f"{source_name(file)} has no header row ({error})", _REMEDY) from error
    twice = sorted(name for name, times_ in Counter(names).items() if times_ > 1)
    if twice:
        raise InvalidRecord(f"{source_name(file)} has more than one column {field_list(twice)}", "rename them")
    if options.key_field is None:
        _check_message_columns(file, names)
    for option, name in (
        ("--key-field", options.key_field),
        ("--value-field", options.value_field),
        ("--timestamp-field", options.timestamp_field),
    ):
        if name is not None and name not in names:
            raise InvalidRecord(
                f"{source_name(file)} has no column {name}; it has {field_list(names)}",
                f"name another one with {option}, or the --separator of the file",
            )
    return names


def _check_message_columns(file: str, names: list[str]) -> None:
    missing = [name for name in ("key", "value") if name not in names]
    unknown = sorted(set(names) - _MESSAGE_COLUMNS)
    if missing or unknown:
        reason = f"no column {' and no column '.join(missing)}" if missing else "columns that no message has"
        raise InvalidRecord(
            f"{source_name(file)} has {reason}; it has {field_list(names)}",
            f"name the column of the key, as in --key-field {names[0]}, or the --separator of the file",
        )


def _messages_by_key_field(rows: RowPositions, table: pa.Table, options: InputOptions) -> pa.Table:
    key, value, time = options.key_field, options.value_field, options.timestamp_field
    assert key is not None
    keys = decode_column(rows, _combined_column(table, key), options.key_encoding, key)
    event_times = None if time is None else parse_times(rows, _combined_column(table, time), time)
    if value is None:
        payloads = json_rows(rows.file, table)
    else:
        payloads = decode_column(rows, _combined_column(table, value), options.value_encoding, value)
        _refuse_keys_without_value(rows, keys, payloads, options)
    return message_table(rows, keys, payloads, event_times, options.refuses_empty_values, key)


def _messages_by_message_columns(rows: RowPositions, table: pa.Table, options: InputOptions) -> pa.Table:
    keys = decode_column(rows, _combined_column(table, "key"), options.key_encoding, "key")
    payloads = decode_column(rows, _combined_column(table, "value"), options.value_encoding, "value")
    _refuse_keys_without_value(rows, keys, payloads, options)
    columns = [keys, payloads]
    for name in ("publish_time", "event_time"):
        present = name in table.column_names
        columns.append(
            parse_times(rows, _combined_column(table, name), name) if present else pa.nulls(len(table), pa.int64())
        )
    columns.append(_properties_column(rows, table))
    return pa.table(columns, schema=INPUT_SCHEMA)


def _refuse_keys_without_value(rows: RowPositions, keys: pa.Array, payloads: pa.Array, options: InputOptions) -> None:
    """Raise InvalidRecord for a row with a key and a null or empty value, unless such a value may delete the key."""
    if options.refuses_empty_values:
        is_empty = pc.equal(pc.coalesce(pc.binary_length(payloads), 0), 0)
        rows.raise_for_first(
            pc.and_(is_empty, pc.is_valid(keys)),
            "the value is empty, which deletes the key here",
            "import with --empty-values delete if it may delete its key; nothing of it was kept",
        )


def _properties_column(rows: RowPositions, table: pa.Table) -> pa.Array:
    kind = INPUT_SCHEMA.field("properties").type
    if "properties" not in table.column_names or table.column("properties").null_count == len(table):
        return pa.nulls(len(table), kind)
    decode = msgspec.json.Decoder(dict[str, str]).decode

    def convert(texts: pa.Array) -> pa.Array:
        try:
            return pa.array([None if t is None else list(decode(t).items()) for t in texts.to_pylist()], kind)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from error

    return rows.convert(_combined_column(table, "properties"), convert, "properties", "a JSON object of texts")


def _combined_column(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


class _PrefixedStream(io.RawIOBase):
    """A stream of bytes that were already read, then of the rest of another stream.

    No read ends with a CR, except at the end of the stream: Arrow takes an LF that begins a block for the second half
    of an end of a line, also inside of a quoted cell, and drops it.
    """

    def __init__(self, start: bytes, stream: io.BufferedIOBase) -> None:
        self._start = start
        self._stream = stream

    def interrupt_read(self) -> None:
        """Interrupt another thread that waits for bytes of this stream."""
        interrupt_read(self._stream)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data, self._start = (self._start, b"") if size < 0 else (self._start[:size], self._start[size:])
        if not data or data == b"\r":
            data += self._stream.read(size if size < 0 else max(size - len(data), 1))
        if len(data) > 1 and data.endswith(b"\r"):
            data, self._start = data[:-1], b"\r" + self._start
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
