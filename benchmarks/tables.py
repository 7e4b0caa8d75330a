"""`python -m benchmarks.tables`: what a table of Iceberg costs a run, and a scan of Spark's data source beside Parquet.

Runs: topics with no table and with one of each format version have the same messages, every key once, and take turns
with the same share of new messages. Scan: the compacted ledger of the topic without a table by the data source, and
its parts by `spark.read.parquet`, in turns; Spark makes rows of the columns and drops them.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any
from unittest import mock

from api.spark.data_source import CompactorDataSource
from benchmarks.bench_session import Session, say, session
from benchmarks.data import Shape
from compactor.run.plan import RunPolicies
from storage.ledger.manifest import read_manifest
from storage.model import TopicName
from storage.table import table_writer
from storage.topic import Topic
from tests.workbench import compacted_ledger, ensure_topic

KINDS = {"no table": None, "version 3": 3, "version 2": 2}
SCHEMAS = {
    "key and payload": "key BINARY, payload BINARY",
    "all columns": CompactorDataSource({}).schema().replace("`", ""),
}
SHARE = 0.01


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return 0 whatever the speed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--payload", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scan-only", action="store_true", help="leave out the runs with new messages")
    parser.add_argument("--folder", help="where to work; default: the system's temporary folder")
    options = parser.parse_args(arguments)
    base = Shape(options.keys, options.payload, options.keys, "each")
    with session(options.folder) as bench:
        kinds = list(KINDS)[:1] if options.scan_only else list(KINDS)
        topics = {kind: ensure_topic(bench.environment, TopicName.parse(kind.replace(" ", "-"))) for kind in kinds}
        for kind, topic in topics.items():
            bench.append(topic, base)
            say(f"{kind}: {compact(bench, topic, kind)}")
        scan(bench, topics["no table"], options.rounds)
        if not options.scan_only:
            measure_runs(bench, topics, base, options.rounds)
    return 0


def compact(bench: Session, topic: Topic, kind: str) -> dict[str, Any]:
    """Compact a topic. Return the statistics of the run, with `seconds` of wall time, and `table_cpu`."""
    with _counting_cpu() as spent:
        bench.engine.warm_up()
        os.sync()
        started = time.perf_counter()
        outcome = bench.compactor.compact(topic.name, RunPolicies(table_format_version=KINDS[kind]))
        seconds = time.perf_counter() - started
    assert outcome.run is not None
    return {"seconds": seconds, "table_cpu": sum(spent), **outcome.run.statistics}


@contextmanager
def _counting_cpu() -> Iterator[list[float]]:
    """Collect the CPU seconds of this process, whose threads do nothing else, in each write of a table."""
    spent: list[float] = []
    write_table = table_writer.write_table

    def write(*arguments: Any) -> Any:
        started = time.process_time()
        table = write_table(*arguments)
        spent.append(time.process_time() - started)
        return table

    with mock.patch.object(table_writer, "write_table", write):
        yield spent


def measure_runs(bench: Session, topics: dict[str, Topic], base: Shape, rounds: int) -> None:
    """Print a row for each kind of table: runs with a share of new messages, in turns, each time in another order."""
    print(f"\n### {base.keys:,} keys of {base.payload_bytes} bytes, then {SHARE:.0%} new, {rounds} rounds\n")
    print("| table | run, s (min – max) | of no table, median of rounds | first metadata, kB | CPU s | objects |")
    print("|---|---|---|---|---|---|")
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in topics}
    for number in range(rounds):
        fresh = replace(base, messages=int(base.keys * SHARE), distribution="uniform", seed=2 + number)
        order = list(topics)
        for kind in order[number % len(order) :] + order[: number % len(order)]:
            bench.append(topics[kind], fresh)
            runs[kind].append(compact(bench, topics[kind], kind))
            say(f"{kind}, round {number}: {runs[kind][-1]}")
    for kind, done in runs.items():
        seconds = [run["seconds"] for run in done]
        ratios = [run["seconds"] / other["seconds"] for run, other in zip(done, runs["no table"], strict=True)]
        table = read_manifest(bench.environment.store, compacted_ledger(topics[kind]).manifest).table
        print(
            f"| {kind} | {median(seconds):.2f} ({min(seconds):.2f} – {max(seconds):.2f}) | {median(ratios):.2f} "
            f"| {done[0].get('table_bytes', 0) / 1000:.0f} | {done[0]['table_cpu']:.2f} "
            f"| {len(table.objects) if table else 0} |",
            flush=True,
        )


def scan(bench: Session, topic: Topic, rounds: int) -> None:
    """Print a row for each choice of columns: the data source beside Parquet."""
    from pyspark.sql import SparkSession

    from api.spark import register

    spark = SparkSession.getActiveSession()
    assert spark is not None
    register(spark)
    manifest = read_manifest(bench.environment.store, compacted_ledger(topic).manifest)
    files = [f"{bench.environment.store.url}/{part.rows.stored.name}" for part in manifest.parts]
    print(f"### {manifest.messages:,} compacted messages in {len(files)} parts, {rounds} rounds\n")
    print("| scan | data source, s (min – max) | Parquet, s (min – max) | ratio of rounds (min – max) |")
    print("|---|---|---|---|", flush=True)
    for name, schema in SCHEMAS.items():
        source = spark.read.format("compactor").option("data", str(bench.folder / "data")).schema(schema)
        columns = re.findall(r"(\w+) [A-Z]", schema)
        frames = {
            "data source": source.option("readCompacted", "true").load(str(topic.name)),
            "Parquet": spark.read.parquet(*files).select(*columns),
        }
        taken: dict[str, list[float]] = {way: [] for way in frames}
        for number in range(rounds + 1):
            for way in list(frames)[:: -1 if number % 2 else 1]:
                started = time.perf_counter()
                frames[way].write.format("noop").mode("overwrite").save()
                seconds = time.perf_counter() - started
                say(f"{name}, {way}, round {number}: {seconds:.2f} s")
                if number:  # the first round warms up
                    taken[way].append(seconds)
        ratios = [source / parquet for source, parquet in zip(*taken.values(), strict=True)]
        cells = [f"{median(each):.2f} ({min(each):.2f} – {max(each):.2f})" for each in (*taken.values(), ratios)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
