"""Command `python -m benchmarks.peers`: one sitting per shape, the tables on stdout.

Needs Maven, a JDK of version 17 or newer, Linux, and disk: 1 GB for --small, 14 GB for the largest shape of `all`,
40 GB for 50m-keys. The exit code is 0 if all contenders kept the same messages, whatever the speed; 1 if one did not,
or failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks import machine
from benchmarks.data import STANDARD, Shape
from benchmarks.peers import kafka, pulsar, steady
from benchmarks.peers.artifacts import Artifacts, get_artifacts
from benchmarks.peers.contender import Contender, PeerFailed
from benchmarks.peers.records import Disagreement
from benchmarks.peers.report import markdown, verdicts
from benchmarks.peers.sitting import Sat, folder_for, sit
from benchmarks.peers.this_job import ThisJob
from benchmarks.peers.this_service import ThisService

SHAPES = {
    "1m": STANDARD["1m"],
    "10m": STANDARD["10m"],
    "10m-keys": replace(STANDARD["10m"], keys=10_000_000),
    "50m-keys": replace(STANDARD["10m"], messages=50_000_000, keys=50_000_000),
}
_SMALL = Shape(100_000, 100, 10_000)
_COMPRESSED = "-compressed"
ALL = ["1m", "10m", "10m-keys", f"1m{_COMPRESSED}", f"10m{_COMPRESSED}"]
GOALS = {
    "1m": {"Kafka": 1.5, "Pulsar": 7.0},
    "10m": {"Kafka": 3.5, "Pulsar": 12.0},
    f"1m{_COMPRESSED}": {"Kafka": 2.0, "Pulsar": 2.0},
    f"10m{_COMPRESSED}": {"Kafka": 2.0, "Pulsar": 2.0},
}
"""Minimum ratio of the fastest contender of a family to this job, by shape (issue 4)."""

CLIENTS = {"Kafka": kafka.CLIENT, "Pulsar": pulsar.CLIENT}
"""Name of our Java class for the messages of each peer."""

_LARGEST_BYTES = 14 << 30


def run(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = _options(arguments)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # runs the handlers that end processes and delete the folder
    _make_importable()
    parent = Path(tempfile.mkdtemp(prefix="peers-benchmark-", dir=options.folder))
    failed = False
    try:
        free = shutil.disk_usage(parent).free
        if free < _LARGEST_BYTES and not options.small:
            _say(f"only {free >> 30} GiB are free in {parent}; the largest shape may need {_LARGEST_BYTES >> 30}")
        _say(machine.summary(machine.describe(parent)))
        artifacts = {peer: get_artifacts(peer.lower(), CLIENTS[peer], parent) for peer in options.peers}
        for name in _names(options):
            with folder_for(name, parent, options.keep) as folder:
                if options.steady:
                    _steady(name, folder, options, artifacts)
                    continue
                sat = _sit(name, folder, options, artifacts)
            _report(name, sat, options.rounds)
            failed = failed or any(line.failure for line in sat.lines)
    except (PeerFailed, Disagreement) as error:
        _say(f"error: {error}")
        return 1
    finally:
        if options.keep:
            _say(f"kept {parent}")
        else:
            shutil.rmtree(parent, ignore_errors=True)
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="This job beside the compaction of Apache Kafka and Apache Pulsar.",
    )
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument(
        "--standard", choices=[*SHAPES, "all"], help="all: 1m, 10m, 10m-keys, then 1m and 10m compressed"
    )
    shapes.add_argument("--small", action="store_true", help="100,000 messages, as a test of the benchmark (default)")
    parser.add_argument(
        "--compression", action="store_true", help="LZ4 in the brokers, values of which half compresses"
    )
    parser.add_argument(
        "--steady", action="store_true", help="messages by clients, rounds of new messages, beside Kafka's cleaner"
    )
    parser.add_argument("--shares", default="0.01,0.1", help="shares of new messages with --steady: %(default)s")
    parser.add_argument("--distribution", choices=("uniform", "zipf"), default="uniform", help="of the keys")
    parser.add_argument("--engines", default="auto", help="engines of this service with --steady: %(default)s")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cleaners", help="cleaner threads of Kafka's brokers; default: 1 and as many as cores")
    parser.add_argument("--peers", default=",".join(CLIENTS), help="of: %(default)s")
    parser.add_argument("--limit", type=float, default=600, help="seconds that any one step may take: %(default)s")
    parser.add_argument("--folder", help="where to work; default: the system's temporary folder")
    parser.add_argument("--keep", action="store_true", help="leave data and logs there")
    options = parser.parse_args(arguments)
    options.peers = [peer for peer in options.peers.split(",") if peer]
    options.small = options.small or not options.standard
    if unknown := set(options.peers) - set(CLIENTS):
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are: {', '.join(CLIENTS)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.compression and options.standard == "all":
        parser.error("--standard all includes the compressed shapes")
    return options


def _names(options: argparse.Namespace) -> list[str]:
    """Return the names of the shapes to measure."""
    if options.standard == "all":
        return ALL
    return [("small" if options.small else options.standard) + (_COMPRESSED if options.compression else "")]


def _sit(name: str, folder: Path, options: argparse.Namespace, artifacts: Mapping[str, Artifacts]) -> Sat:
    plain = name.removesuffix(_COMPRESSED)
    compression = plain != name
    shape = replace(SHAPES.get(plain, _SMALL), compressible=compression)
    contenders: list[Contender] = [ThisJob(_cores(), folder / "this-job", options.limit)]
    contenders += _brokers(folder, options, artifacts, compression)
    return sit(shape, contenders, options.rounds, folder, _say)


def _brokers(
    folder: Path, options: argparse.Namespace, artifacts: Mapping[str, Artifacts], compression: bool
) -> list[Contender]:
    """Return the brokers of the chosen peers."""
    cleaners = {int(threads) for threads in options.cleaners.split(",")} if options.cleaners else {1, _cores()}
    brokers: list[Contender] = []
    if kafka_artifacts := artifacts.get("Kafka"):
        brokers += [
            kafka.Kafka(kafka_artifacts, threads, folder / f"kafka-{threads}", compression, options.limit)
            for threads in sorted(cleaners)
        ]
    if pulsar_artifacts := artifacts.get("Pulsar"):
        brokers.append(pulsar.Pulsar(pulsar_artifacts, folder / "pulsar", compression, options.limit))
    return brokers


def _steady(name: str, folder: Path, options: argparse.Namespace, artifacts: Mapping[str, Artifacts]) -> None:
    """Measure the steady state of one shape and print its table."""
    compression = name.endswith(_COMPRESSED)
    shape = replace(
        SHAPES.get(name.removesuffix(_COMPRESSED), _SMALL), compressible=compression, distribution=options.distribution
    )
    client = artifacts.get("Pulsar") or get_artifacts("pulsar", CLIENTS["Pulsar"], folder)
    contenders: list[Contender] = [
        ThisService(client, folder / f"service-{engine}", options.limit, _cores(), engine)
        for engine in options.engines.split(",")
    ]
    contenders += _brokers(folder, options, artifacts, compression)
    peer = next((contender.name for contender in reversed(contenders) if contender.family == "Kafka"), "")
    plan = steady.stages(shape, [float(share) for share in options.shares.split(",")], options.rounds)
    survivors = steady.measure(plan, contenders, folder, _say)
    print(f"\n### Steady state: {shape}\n")
    print(steady.markdown(plan, peer))
    print(
        f"\nRounds: {options.rounds} of each share. At the end {survivors}, the same for all. Peer: {peer or 'none'}."
    )
    sys.stdout.flush()


def _report(name: str, sat: Sat, rounds: int) -> None:
    codec = ", LZ4 in the brokers" if name.endswith(_COMPRESSED) else ", uncompressed in the brokers"
    print(f"\n### {sat.shape}{codec}\n")
    print(markdown(sat.lines, sat.shape.messages))
    print(f"\nRounds: {rounds}. {sat.survivors}, the same for all that have a time.")
    for line in sat.lines:
        if line.remark and not line.failure:
            print(f"{line.name}: {line.remark}")
    for verdict in verdicts(sat.lines, GOALS.get(name, {})):
        print(verdict)
    sys.stdout.flush()


def _make_importable() -> None:
    """Add the repository to PYTHONPATH for child processes; Spark's Python workers start in another folder."""
    repository = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [repository, os.environ.get("PYTHONPATH")]))


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
