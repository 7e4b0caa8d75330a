"""Records as the product decodes them, in the form in which the oracles of kafka_batches.py have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from storage.kafka.located_records import SCHEMA
from storage.kafka.record_batch import read_batches
from storage.kafka.records import decode_batches
from tests.kafka_batches import text_properties


def decoded(data: bytes) -> list[tuple[Any, ...]]:
    """(offset, timestamp, key, value, properties) of each record of whole batches."""
    return rows_of(decode_batches(read_batches(data)))


def rows_of(tables: Iterable[pa.Table]) -> list[tuple[Any, ...]]:
    """The same of decoded tables, which are valid and not empty."""
    result: list[tuple[Any, ...]] = []
    for table in tables:
        assert table.schema == SCHEMA
        table.validate(full=True)
        assert len(table)
        result += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return result


def as_decoded(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows of an oracle, whose headers are texts, with properties instead of headers."""
    return [(*row[:4], text_properties(row[4])) for row in rows]
