"""A topic's Iceberg table as other programs read it, and its rows by the topic's own reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import polars
import pyarrow as pa
from pyiceberg.table import StaticTable

from storage.ledger.manifest import Manifest, read_manifest
from storage.table.table_writer import object_uri
from storage.topic import Topic
from tests.workbench import Workbench, compacted_ledger, compacted_only

os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"

Rows: TypeAlias = list[tuple[Any, ...]]
COLUMNS = (
    "offset",
    "ledger_id",
    "entry_id",
    "batch_index",
    "key",
    "payload",
    "publish_time",
    "event_time",
    "properties",
)


def by_pyiceberg(uri: str, snapshot_id: int | None = None) -> Rows:
    """The rows that pyiceberg reads, now or in a snapshot."""
    return rows_of(StaticTable.from_metadata(uri).scan(snapshot_id=snapshot_id).to_arrow())


def by_polars(uri: str, snapshot_id: int | None = None) -> Rows:
    """The rows that polars reads with its own Parquet reader."""
    scan = polars.scan_iceberg(uri, snapshot_id=snapshot_id, reader_override="native")
    return rows_of(scan.collect().to_arrow())


READERS: dict[str, Callable[..., Rows]] = {"pyiceberg": by_pyiceberg, "polars": by_polars}


def rows_of(table: pa.Table) -> Rows:
    """The rows of a table, ascending by offset."""
    columns = {name: table.column(name).to_pylist() for name in COLUMNS}
    columns["properties"] = [sorted(_pairs(each)) for each in columns["properties"]]
    return sorted(zip(*columns.values(), strict=True), key=lambda row: row[0])


def _pairs(properties: Any) -> list[tuple[str, str]]:
    """A map's pairs, which polars has as a list of structs."""
    return [tuple(pair.values()) if isinstance(pair, dict) else pair for pair in properties or ()]


def expected(topic: Topic) -> Rows:
    """The rows of the table of a topic that was just compacted, by the topic's own reader."""
    return [
        (
            message.offset,
            message.message_id.ledger_id,
            message.message_id.entry_id,
            message.message_id.batch_index,
            message.key,
            message.payload,
            message.publish_time,
            message.event_time,
            sorted(message.properties.items()),
        )
        for message in compacted_only(topic)
        if message.key is None or message.payload
    ]


def manifest_of(bench: Workbench, topic: Topic) -> Manifest:
    return read_manifest(bench.store, compacted_ledger(topic).manifest)


def table_uri(bench: Workbench, topic: Topic) -> str:
    """The URI of the metadata of the topic's table, which must exist."""
    stored = compacted_ledger(topic).table_metadata
    assert stored is not None
    return object_uri(bench.store, stored.name)
