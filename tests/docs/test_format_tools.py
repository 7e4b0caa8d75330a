"""DuckDB, Polars and Spark read a rows object as docs/format.md says that they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from compactor.engines.engine import Engine
from storage.ledger import rows
from storage.ledger.rows_file import RowsWriter
from storage.objects.interface import ObjectStore
from tests.docs.format_reader import block
from tests.sealed import new_id


def some_of_everything() -> list[dict[str, Any]]:
    """Rows with nulls, ends of ranges, several row groups and payloads of both encodings."""
    plain = {
        "ledger_id": 9,
        "batch_index": -1,
        "batch_size": 0,
        "publish_time": 1_700_000_000_000,
        "codec": 0,
        "slot": 0,
    }
    drawn = []
    for number in range(25):
        row = dict.fromkeys(rows.SCHEMA.names) | plain | {"offset": 2**40 + 3 * number, "entry_id": number}
        row |= {"key": b"\x00\xff%d" % (number % 20), "payload": b"\xfe" * number, "key_base64": number % 2 == 0}
        if number % 3 == 0:
            row |= {"event_time": -number, "sequence_id": 2**62, "producer": "p\u00fc", "metadata": b"\x08\x01"}
            row |= {"properties": [("a", "1"), ("\U0001f600", "")], "codec": 4}
        if number % 3 == 1:
            row |= {"key": None, "payload": None, "properties": [], "slot": 3}
            row |= {
                "chunk_uuid": "u",
                "chunk_index": number,
                "chunk_count": 2**31 - 1,
                "batch_index": 2,
                "batch_size": 3,
            }
        drawn.append(row)
    return drawn


@pytest.fixture(scope="module", params=["small payloads", "large payloads"])
def plain_file(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, object_store: ObjectStore
) -> Any:
    """A rows object as a file, and its rows with properties as a dict."""
    drawn = some_of_everything()
    if request.param == "large payloads":
        for row in drawn:
            row["payload"] = None if row["payload"] is None else row["payload"] * 4_000
    name = f"rows/{new_id()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 10)
        table = pa.Table.from_pylist(drawn, schema=rows.SCHEMA)
        with RowsWriter(object_store, name) as writer:
            writer.write(table, rows.logical_sizes(table))
    path = tmp_path_factory.mktemp("plain") / "ledger.parquet"
    path.write_bytes(object_store.get(name))
    for row in drawn:
        row["properties"] = None if row["properties"] is None else dict(row["properties"])
    return path, drawn


def test_duckdb_reads_rows_as_they_are(plain_file: tuple[Path, list[dict[str, Any]]]) -> None:
    path, drawn = plain_file
    with duckdb.connect() as connection:
        result = connection.execute('SELECT * FROM read_parquet(?) ORDER BY "offset"', [str(path)])
        columns = [column[0] for column in result.description]
        rows = [dict(zip(columns, row, strict=True)) for row in result.fetchall()]
    assert rows == drawn


def test_the_query_for_duckdb_gives_the_newest_of_each_key(plain_file: tuple[Path, list[dict[str, Any]]]) -> None:
    path, drawn = plain_file
    with duckdb.connect() as connection:
        rows = connection.execute(block("sql").replace("ledger.parquet", str(path))).fetchall()
    newest = {row["key"]: row["offset"] for row in drawn if row["slot"] == 0 and row["key"] is not None}
    assert {(row[5], row[0]) for row in rows} == set(newest.items())
    assert len(newest) < sum(row["slot"] == 0 for row in drawn)


def test_polars_reads_rows_as_they_are(plain_file: tuple[Path, list[dict[str, Any]]]) -> None:
    path, drawn = plain_file
    frame = polars.read_parquet(path)
    assert frame.columns == rows.SCHEMA.names
    assert frame.to_dicts() == drawn


@pytest.mark.slow
def test_spark_reads_rows_as_they_are(plain_file: tuple[Path, list[dict[str, Any]]], spark_engine: Engine) -> None:
    path, drawn = plain_file
    session = SparkSession.builder.getOrCreate()  # the one that spark_engine started
    frame = session.read.parquet(str(path))
    types = dict(frame.dtypes)
    assert (types["codec"], types["slot"], types["properties"]) == ("tinyint", "tinyint", "map<string,string>")
    rows = [row.asDict() for row in frame.orderBy("offset").collect()]
    for row in rows:
        row |= {name: None if row[name] is None else bytes(row[name]) for name in ("key", "payload", "metadata")}
    assert rows == drawn
