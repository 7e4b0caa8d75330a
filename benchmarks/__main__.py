"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks NAME …` runs one."""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = {
    "compaction": "this job beside DuckDB, Polars and Spark SQL on the same ledgers; the import of Parquet",
    "incremental": "a run on a compacted topic of which little is new, beside the full run",
    "growth": "ten times the messages and fifty times the keys: time and memory",
    "topics": "a thousand small topics in one job, and a small one by itself",
    "log": "appends, group commit and reading of unsealed segments, beside plain writes and flushes of the same bytes",
    "sealing": "entries of the log to a sealed ledger, on one core",
    "cursors": "acknowledgements a second, by how many share a transaction",
    "service": "how soon the service answers, and stats and status with 10,000 topics and 100,000 ledgers",
    "gateway": "produce and read with Pulsar's Java client, beside a real Apache Pulsar standalone",
    "peers": "this job beside the compaction of real Apache Kafka and Apache Pulsar brokers",
}


def main(arguments: list[str]) -> int:
    """The exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [options]; NAME --help shows the options\n")
        for name, what in BENCHMARKS.items():
            print(f"    {name:12} {what}")
        return 0
    name, *rest = arguments
    if name not in BENCHMARKS:
        print(f"no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"benchmarks.{name}").main(rest))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
