"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks NAME …` runs one.

`--record ID` also stores the printed table in benchmarks/results.json (results.py).
"""

from __future__ import annotations

import datetime
import importlib
import io
import sys
from contextlib import redirect_stdout
from typing import TextIO

from benchmarks import results

BENCHMARKS = {
    "compaction": "this job beside DuckDB, Polars and Spark SQL on the same ledgers; the import of Parquet",
    "merging": "how often rows are written again, and how much garbage stays, by the policy of merging parts",
    "incremental": "a run on a compacted topic of which little is new, beside the full run",
    "latency": "runs on an S3 server with time added to each request, beside a local directory",
    "growth": "ten times the messages and fifty times the keys: time and memory",
    "topics": "a thousand small topics in one job, and a small one by itself",
    "log": "appends, group commit and reading of unsealed segments, beside plain writes and flushes of the same bytes",
    "appends": "a thousand topics that append at the same moment, with a disk that takes 80 ms for a flush",
    "sealing": "entries of the log to a sealed ledger, on one core",
    "cursors": "acknowledgements a second, by how many share a transaction",
    "checks": "the leader's regular check of 100,000 topics of which 100 are due, in CPU seconds",
    "tables": "runs with and without an Iceberg table, in turns; a scan of Spark's data source beside plain Parquet",
    "service": "how soon the service answers, and stats and status with 10,000 topics and 100,000 ledgers",
    "plugin": "compaction and compacted reads of a real Pulsar broker, by itself and by the plug-in for brokers",
    "gateway": "produce and read with Pulsar's Java client, beside a real Apache Pulsar standalone",
    "doors": "Pulsar's geo-replication and a mirror of Kafka into this service, beside their brokers",
    "peers": "this job beside the compaction of real Apache Kafka and Apache Pulsar brokers",
}


def main(arguments: list[str]) -> int:
    """Run a benchmark and return the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [options]; NAME --help shows the options")
        print("--record ID keeps its table in benchmarks/results.json\n")
        for name, text in BENCHMARKS.items():
            print(f"    {name:12} {text}")
        return 0
    name, *rest = arguments
    if name not in BENCHMARKS:
        print(f"no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    benchmark = importlib.import_module(f"benchmarks.{name}")
    if "--record" not in rest:
        return int(benchmark.main(rest))
    place = rest.index("--record")
    if place + 1 == len(rest):
        print("--record needs an id, as compaction/10m", file=sys.stderr)
        return 2
    identifier, rest = rest[place + 1], rest[:place] + rest[place + 2 :]
    printed = _Copy(sys.stdout)
    with redirect_stdout(printed):
        code = int(benchmark.main(rest))
    if code == 0:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        kept = results.record(identifier, printed.getvalue(), today, " ".join([name, *rest]))
        print(f"recorded: {', '.join(kept)}; run python -m benchmarks.results", file=sys.stderr)
    return code


class _Copy(io.StringIO):
    """A stream that stores the text that it forwards."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._stream.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
