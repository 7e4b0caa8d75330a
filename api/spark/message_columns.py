"""Conversion of the batches of a data frame to messages: the allowed columns and types. Without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MappingProxyType

import pyarrow as pa

from api.formats.parquet import cast_column
from storage.errors import InvalidRecord
from storage.log.bulk_append import SOURCE_SCHEMA

WRITTEN_TYPES = MappingProxyType(
    {
        "key": ("BINARY", "STRING"),
        "payload": ("BINARY", "STRING"),
        "event_time": ("TIMESTAMP", "BIGINT"),
        "publish_time": ("TIMESTAMP", "BIGINT"),
        "properties": ("MAP<STRING, STRING>",),
        "producer": ("STRING",),
        "sequence_id": ("BIGINT",),
    }
)
"""The columns that a write takes, with their types in Spark. A text is UTF-8, a number a time in milliseconds."""
TABLE_ROWS, _TABLE_BYTES = 65_536, 8 << 20
"""Batches are joined up to these: Spark's have 10,000 rows, and each table has a fixed cost."""


def message_tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join the batches of a data frame, and yield them as tables of messages (SOURCE_SCHEMA). Raises InvalidRecord."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(len(each) for each in held) >= TABLE_ROWS or sum(each.nbytes for each in held) >= _TABLE_BYTES:
            yield _to_message_table(held)
            held = []
    if any(len(batch) for batch in held):
        yield _to_message_table(held)


def _to_message_table(batches: list[pa.RecordBatch]) -> pa.Table:
    """Convert batches to one table of SOURCE_SCHEMA; missing columns are null. Raises InvalidRecord."""
    table = pa.Table.from_batches(batches)
    columns = []
    for field in SOURCE_SCHEMA:
        if field.name not in table.column_names:
            columns.append(pa.nulls(len(table), field.type))
            continue
        try:
            columns.append(cast_column(table.column(field.name), field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise InvalidRecord(
                f"the column {field.name} of a row holds what no message has ({error})",
                "properties need a value, and times must fit into 64 bits of milliseconds",
            ) from error
    return pa.table(columns, schema=SOURCE_SCHEMA)
