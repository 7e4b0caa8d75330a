"""`python -m benchmarks.compaction`: this job beside DuckDB, Polars and Spark SQL, on the same sealed ledgers.

The benchmark generates data, imports it through the product's own path (timed), and lets every contender compact it in
turn, round by round (A B C, A B C, …) after one warm-up each. Every output is compared with this job's: in the warm-up
with payloads, in each round by the number of rows and the sum of offsets. Outputs are deleted at once, and the disk is
synchronized (`sync`) between runs, so that no contender pays for the write-back of another.

This job has the disadvantage that only it keeps the offset order, writes a key index and checksums, verifies, and has
all data on the disk (fsync) when its time ends. Lines "without" show the cost of that.

All files are in one temporary folder (`--folder`), which is deleted at the end unless `--keep`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.agreement import Fingerprint, check, fingerprint
from benchmarks.child import Child, ContenderFailed
from benchmarks.contenders import FAMILIES, THREADS
from benchmarks.data import STANDARD, Shape, write_parquet
from benchmarks.table import Row, best_ratios, markdown

if TYPE_CHECKING:
    from benchmarks.this_job import ThisJob
    from storage.objects.local import LocalStore
    from storage.topic import Topic

OURS = "this job"
GOALS = {
    "1m": [("DuckDB", 0.7)],
    "10m": [("DuckDB", 0.8), ("Spark semi-join", 5.0)],
    "30m": [("DuckDB", 1.5)],
}
"""Minimum ratio of a contender's time to this job's, by standard shape (issue 3)."""
IMPORT_GOAL = 500_000
_WITHOUT = "without"
_NAMES = [_WITHOUT, *(family.name for family in FAMILIES)]


@dataclass
class Result:
    """Results of one shape."""

    shape: Shape
    rows: list[Row] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    phases: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)

    def row(self, name: str, family: str) -> Row:
        """Return the line of that name, or add it."""
        for row in self.rows:
            if row.name == name:
                return row
        self.rows.append(Row(name, family))
        return self.rows[-1]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return 0 if all outputs agree, whatever the speed."""
    options = _options(arguments)
    os.environ["POLARS_MAX_THREADS"] = str(THREADS)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_repository()), os.environ.get("PYTHONPATH")]))
    folder = Path(tempfile.mkdtemp(prefix="compaction-benchmark-", dir=options.folder))
    description = machine.describe(folder)
    _say(machine.summary(description))
    results = {}
    try:
        with _session(folder) as engine:
            for name, shape in _shapes(options).items():
                results[name] = _measure(shape, folder / name, options, engine)
                _report(name, results[name])
    finally:
        if options.keep:
            _say(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        document = {"machine": description, "results": {name: _document(result) for name, result in results.items()}}
        Path(options.json).write_text(json.dumps(document, indent=1, default=str) + "\n")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction", description=__doc__.split("\n\n")[0])
    parser.add_argument("--standard", choices=[*STANDARD, "all"], help="a standard shape, instead of the four below")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--payload", type=int, default=100, help="bytes of each value")
    parser.add_argument("--keys", type=int, default=30_000)
    parser.add_argument("--distribution", choices=["uniform", "zipf"], default="uniform")
    parser.add_argument("--compressible", action="store_true", help="values of which half compresses")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ledger-size", default="128M", help="logical bytes of a ledger")
    parser.add_argument("--contenders", default=",".join(_NAMES), help="beside this job, of: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write everything there too")
    parser.add_argument("--folder", help="where to work; default: the system's temporary folder")
    parser.add_argument("--keep", action="store_true", help="leave data and ledgers there")
    options = parser.parse_args(arguments)
    options.contenders = [name for name in options.contenders.split(",") if name]
    if unknown := set(options.contenders) - set(_NAMES):
        parser.error(f"no contender {', '.join(sorted(unknown))}; there are: {', '.join(_NAMES)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def _shapes(options: argparse.Namespace) -> dict[str, Shape]:
    if options.standard:
        return STANDARD if options.standard == "all" else {options.standard: STANDARD[options.standard]}
    return {"own": Shape(options.messages, options.payload, options.keys, options.distribution, options.compressible)}


@contextlib.contextmanager
def _session(folder: Path) -> Iterator[Any]:
    """Open a warm engine of `local[2]` with a driver heap of 2 GiB."""
    from compactor.engines.spark import SparkEngine, SparkSettings, open_session

    session = open_session(SparkSettings(folder / "spark.log", f"local[{THREADS}]"))
    try:
        engine = SparkEngine(session)
        engine.warm_up()
        yield engine
    finally:
        session.stop()


def _measure(shape: Shape, folder: Path, options: argparse.Namespace, engine: Any) -> Result:
    """Generate the data, import it, time every contender, and clean up."""
    from api.components import open_environment
    from api.settings.settings import Settings
    from benchmarks.this_job import ThisJob, source_files

    folder.mkdir()
    result = Result(shape)
    with open_environment(Settings(data=str(folder / "data"))) as environment:
        topic = _import(result, folder, options, environment)
        store: LocalStore = environment.store  # type: ignore[assignment]
        job = ThisJob(environment, store, engine, topic)
        _compare(result, job, source_files(topic, store), folder / "output", options)
    if not options.keep:
        shutil.rmtree(folder)
    return result


def _import(result: Result, folder: Path, options: argparse.Namespace, environment: Any) -> Topic:
    """Import the data once per round, at most three times. The last topic stays."""
    from api.cli.kit.quantity_parsers import parse_bytes
    from benchmarks.importing import delete_objects, import_parquet

    ledger_bytes = parse_bytes("--ledger-size", options.ledger_size, least=1)
    file, warm_up = folder / "input.parquet", folder / "warm-up.parquet"
    _say(f"making {result.shape}")
    write_parquet(result.shape, file)
    write_parquet(Shape(1000, 10, 100), warm_up)
    delete_objects(environment.store, import_parquet(environment, "warm-up", warm_up, ledger_bytes).topic)
    row = result.row("import of Parquet, sealed and indexed", "import")
    rounds = min(options.rounds, 3)
    for number in range(rounds):
        os.sync()
        imported = import_parquet(environment, f"import-{number}", file, ledger_bytes)
        row.seconds.append(imported.seconds)
        _say(f"import: {imported.messages / imported.seconds:,.0f} messages/s, {imported.ledgers} ledgers")
        if number < rounds - 1:
            delete_objects(environment.store, imported.topic)
    result.sizes = {
        "input": file.stat().st_size,
        "stored": imported.stored_bytes,
        "messages": imported.messages,
        "ledgers": imported.ledgers,
    }
    if not options.keep:
        file.unlink()
    return imported.topic


def _compare(result: Result, job: ThisJob, sources: list[str], output: Path, options: argparse.Namespace) -> None:
    """Run all contenders round by round. Round 0 is the warm-up."""
    from benchmarks.this_job import WAYS, peak_memory

    families = [family for family in FAMILIES if family.name in options.contenders]
    children = {family.name: Child(family.start) for family in families}
    expected: Fingerprint | None = None
    for name in WAYS if _WITHOUT in options.contenders else [OURS]:
        result.row(name, OURS)
    for family in families:
        for way in family.ways:
            result.row(way, family.name)
    try:
        for number in range(options.rounds + 1):
            for row in result.rows:
                if row.failure or row.family == "import":
                    continue
                os.sync()
                if row.family == OURS:
                    compacted = job.compact(WAYS[row.name])
                    seconds, files = compacted.seconds, compacted.files
                    if row.name == OURS:
                        if number:
                            result.phases.append({"seconds": seconds, **compacted.run.statistics})
                        result.sizes["output"] = int(str(compacted.run.statistics["bytes_written"]))
                        # only the full run counts; the others do less
                        result.memory = {
                            name: max(size, result.memory.get(name, 0)) for name, size in peak_memory().items()
                        }
                else:
                    output.mkdir()
                    try:
                        seconds = children[row.family].run(row.name, sources, output)
                    except ContenderFailed as failure:
                        row.failure = str(failure)
                        _say(f"{row.name} failed: {failure}")
                        shutil.rmtree(output)
                        continue
                    files = sorted(map(str, output.rglob("*.parquet")))
                actual = fingerprint(files, with_payloads=number == 0)
                expected = expected or actual
                check(row.name, actual, expected)
                if row.family == OURS:
                    job.forget()
                else:
                    shutil.rmtree(output)
                if number:
                    row.seconds.append(seconds)
                _say(f"{'warm-up' if number == 0 else f'round {number}'}: {row.name} {seconds:.2f} s")
        for family in families:
            result.memory[f"{family.name} (process)"] = children[family.name].peak_bytes()
        assert expected is not None
        result.sizes["survivors"] = expected.rows
    finally:
        for child in children.values():
            child.stop()


def _report(name: str, result: Result) -> None:
    """Print the table and the figures below it."""
    base = result.row(OURS, OURS)
    sizes = result.sizes
    print(f"\n### {result.shape}\n")
    print(markdown(result.rows, base, result.shape.messages))
    print(
        f"\n{sizes['messages']:,} messages in {sizes['ledgers']} ledgers, {sizes['stored'] / 2**20:,.0f} MiB with "
        f"indexes; {sizes['survivors']:,} survivors, {sizes['output'] / 2**20:,.0f} MiB."
    )
    phases = {
        phase: median(int(statistics[phase]) for statistics in result.phases)
        for phase in ("snapshot_ms", "phase_one_ms", "phase_two_ms", "verify_ms", "publish_ms")
    }
    print("Phases, median: " + ", ".join(f"{phase[:-3].replace('_', ' ')} {ms:.0f} ms" for phase, ms in phases.items()))
    print("Peak resident: " + ", ".join(f"{part} {size / 2**20:,.0f} MiB" for part, size in result.memory.items()))
    rate = result.shape.messages / median(result.row("import of Parquet, sealed and indexed", "import").seconds)
    print(f"Import: {rate:,.0f} messages/s" + (f" (goal {IMPORT_GOAL:,} of 100 B)" if name in GOALS else ""))
    for contender, goal in GOALS.get(name, []):
        rows = [row for row in result.rows if contender in (row.name, row.family)]
        families = {row.family for row in rows}
        ratio = [item for family in families for item in best_ratios(rows, family, base)]
        if ratio:
            verdict = "reached" if median(ratio) >= goal else "MISSED"
            print(f"{contender}: {median(ratio):.2f} × this job's time (goal {goal}: {verdict})")
    sys.stdout.flush()


def _document(result: Result) -> dict[str, Any]:
    base = result.row(OURS, OURS)
    return {
        "shape": result.shape.as_dict(),
        "sizes": result.sizes,
        "peak_resident_bytes": result.memory,
        "runs": result.phases,
        "contenders": [vars(row) for row in result.rows],
        "best_ratio": {family.name: best_ratios(result.rows, family.name, base) for family in FAMILIES},
    }


def _repository() -> Path:
    return Path(__file__).resolve().parent.parent


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
