"""Output formats of `compactor export`. A new format is added here.

A writer takes tables of messages (message_tables.py) and writes them to a file that is only appended to, such as an
`ObjectWriter`. Each output is an input of `compactor import`. In text, base64 carries bytes; CSV has null as an empty
cell and an empty text in quotes, and properties as a JSON object. Memory: a table.

Raises the errors of the file. Must not know: topics, stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from api.formats.field_values import encode_column
from api.formats.row_json import json_rows, json_values
from api.formats.text_encoding import TextEncoding


class ExportFormat(StrEnum):
    """Names of output formats; each is the end of a file's name, too."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"


class MessageWriter(Protocol):
    """A writer of messages to one file."""

    def write(self, table: pa.Table) -> None:
        """Write the messages of a table to the file."""

    def write_end(self) -> None:
        """Write the end of the file, such as a footer. The caller closes the file itself."""


def open_writer(output_format: ExportFormat, stream: IO[bytes], schema: pa.Schema) -> MessageWriter:
    """Return a writer of message tables to a stream in a format. `schema`: of the tables."""
    return _WRITERS[output_format](stream, schema)


def _binary_as_base64(table: pa.Table) -> pa.Table:
    """Return a table with its columns of bytes as base64 texts."""
    for index, field in enumerate(table.schema):
        if pa.types.is_binary(field.type):
            texts = encode_column(table.column(index).combine_chunks(), TextEncoding.BASE64)
            table = table.set_column(index, field.name, texts)
    return table


class _ParquetWriter:
    def __init__(self, stream: IO[bytes], schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(
            stream, schema, compression="zstd", use_dictionary=False, column_encoding=_PARQUET_ENCODINGS
        )

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def write_end(self) -> None:
        self._writer.close()


class _JsonLinesWriter:
    def __init__(self, stream: IO[bytes], schema: pa.Schema) -> None:
        self._stream = stream

    def write(self, table: pa.Table) -> None:
        lines = json_rows("the export", _binary_as_base64(table))
        for start in range(0, len(lines), _LINES):
            self._stream.write(b"\n".join((*lines.slice(start, _LINES).to_pylist(), b"")))

    def write_end(self) -> None:
        return


class _CsvWriter:
    def __init__(self, stream: IO[bytes], schema: pa.Schema) -> None:
        texts = [field.with_type(pa.int64() if field.type == pa.int64() else pa.string()) for field in schema]
        self._writer = pyarrow.csv.CSVWriter(stream, pa.schema(texts))

    def write(self, table: pa.Table) -> None:
        index = table.schema.get_field_index("properties")
        column = table.column(index).combine_chunks()
        properties = json_values("the export", "properties", column) if column.null_count < len(column) else column
        text = pc.cast(properties, pa.string()) if pa.types.is_binary(properties.type) else pa.nulls(len(table))
        self._writer.write(_binary_as_base64(table.set_column(index, "properties", text.cast(pa.string()))))

    def write_end(self) -> None:
        self._writer.close()


_LINES = 16_384
_PARQUET_ENCODINGS = {
    "message_id": "DELTA_BYTE_ARRAY",
    "offset": "DELTA_BINARY_PACKED",
    "publish_time": "DELTA_BINARY_PACKED",
    "event_time": "DELTA_BINARY_PACKED",
}
"""Encodings of columns that ascend; the file has half the size of one with dictionaries."""
_WRITERS: Mapping[ExportFormat, Callable[[IO[bytes], pa.Schema], MessageWriter]] = {
    ExportFormat.PARQUET: _ParquetWriter,
    ExportFormat.JSONL: _JsonLinesWriter,
    ExportFormat.CSV: _CsvWriter,
}
