"""Contenders that keep the newest row of each key: DuckDB, Polars, Spark SQL.

Each reads our rows objects and writes all columns with zstd level 1, without the tombstones, in any order. Each has as
many threads as this job (`THREADS`) and a warm-up. The ways of each are the best of several. Slower ones are left out:
DuckDB's `arg_max` of whole rows (7 to 15 times the semi-join), and Polars' `unique` on its streaming engine, ordered or
not (twice the time of the in-memory engine).
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import Rewrite

THREADS = 2

_DUCKDB = {
    "DuckDB semi-join": """
        SELECT r.* FROM read_parquet({sources}) r
        SEMI JOIN (SELECT max("offset") AS newest FROM read_parquet({sources}) WHERE key IS NOT NULL GROUP BY key) n
        ON r."offset" = n.newest WHERE octet_length(r.payload) > 0""",
    "DuckDB window": """
        SELECT * EXCLUDE (place) FROM (
            SELECT *, row_number() OVER (PARTITION BY key ORDER BY "offset" DESC) AS place
            FROM read_parquet({sources}) WHERE key IS NOT NULL)
        WHERE place = 1 AND octet_length(payload) > 0""",
}


def start_duckdb() -> dict[str, Rewrite]:
    """Return DuckDB's rewrites, which share a connection."""
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads = {THREADS}")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute("SET enable_progress_bar = false")

    def rewrite(query: str) -> Rewrite:
        def run(sources: list[str], target: Path) -> None:
            listed = "[" + ", ".join(f"'{source}'" for source in sources) + "]"
            connection.execute(f"SET temp_directory = '{target}/spill'")
            connection.execute(
                f"COPY ({query.format(sources=listed)}) TO '{target}/all.parquet' "
                "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
            )

        return run

    return {name: rewrite(query) for name, query in _DUCKDB.items()}


def start_polars() -> dict[str, Rewrite]:
    """Return Polars' rewrites. POLARS_MAX_THREADS must be in the environment before the import."""
    import polars as pl

    assert pl.thread_pool_size() == THREADS

    zstd: dict[str, Any] = {"compression": "zstd", "compression_level": 1}

    def semi_join(sources: list[str]) -> pl.LazyFrame:
        rows = pl.scan_parquet(sources)
        newest = rows.filter(pl.col("key").is_not_null()).group_by("key").agg(pl.col("offset").max()).select("offset")
        return rows.join(newest, on="offset", how="semi").filter(_has_payload(pl))

    def unique(sources: list[str]) -> pl.LazyFrame:
        rows = pl.scan_parquet(sources).filter(pl.col("key").is_not_null())
        return rows.unique(subset="key", keep="last", maintain_order=True).filter(_has_payload(pl))

    def in_memory(query: Callable[[list[str]], pl.LazyFrame]) -> Rewrite:
        def run(sources: list[str], target: Path) -> None:
            query(sources).collect(engine="in-memory").write_parquet(target / "all.parquet", **zstd)

        return run

    def streaming(sources: list[str], target: Path) -> None:
        rows = semi_join(sources)
        rows.sink_parquet(target / "all.parquet", maintain_order=False, engine="streaming", **zstd)

    return {
        "Polars semi-join, streaming": streaming,
        "Polars semi-join": in_memory(semi_join),
        "Polars unique": in_memory(unique),
    }


def _has_payload(pl: Any) -> Any:
    """Return the condition that a row is no tombstone."""
    return pl.col("payload").bin.size() > 0


_SPARK = {
    "Spark semi-join": """
        SELECT /*+ BROADCAST(n) */ r.* FROM ledger_rows r
        LEFT SEMI JOIN (SELECT max(offset) AS newest FROM ledger_rows WHERE key IS NOT NULL GROUP BY key) n
        ON r.offset = n.newest WHERE length(r.payload) > 0""",
    "Spark window": """
        SELECT {columns} FROM (
            SELECT *, row_number() OVER (PARTITION BY key ORDER BY offset DESC) AS place
            FROM ledger_rows WHERE key IS NOT NULL)
        WHERE place = 1 AND length(payload) > 0""",
}


def start_spark() -> dict[str, Rewrite]:
    """Return Spark SQL's rewrites, in a session like this job's, with shuffle partitions for two cores."""
    from compactor.engines.spark import SparkSettings, open_session

    folder = tempfile.mkdtemp(prefix="benchmarks-spark-")
    session = open_session(SparkSettings(Path(folder) / "spark.log", f"local[{THREADS}]"))

    def stop() -> None:
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)

    def rewrite(query: str) -> Rewrite:
        def run(sources: list[str], target: Path) -> None:
            stored = sum(os.path.getsize(source) for source in sources)
            session.conf.set("spark.sql.shuffle.partitions", str(max(THREADS, -(-stored // (128 << 20)))))
            rows = session.read.parquet(*sources)
            rows.createOrReplaceTempView("ledger_rows")
            result = session.sql(query.format(columns=", ".join(rows.columns)))
            writer = result.write.option("compression", "zstd").option("parquet.compression.codec.zstd.level", "1")
            writer.parquet(str(target / "spark"))

        return run

    return {name: rewrite(query) for name, query in _SPARK.items()}


@dataclass(frozen=True)
class Family:
    """Ways of one engine. They share a process, and the best of them counts."""

    name: str
    start: Callable[[], dict[str, Rewrite]]
    ways: tuple[str, ...]


FAMILIES = (
    Family("DuckDB", start_duckdb, ("DuckDB semi-join", "DuckDB window")),
    Family("Polars", start_polars, ("Polars semi-join, streaming", "Polars semi-join", "Polars unique")),
    Family("Spark", start_spark, ("Spark semi-join", "Spark window")),
)
