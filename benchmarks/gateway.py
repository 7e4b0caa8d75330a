"""Produce and read with Pulsar's own Java client: this service beside a real Pulsar standalone, on one machine.

Both acknowledge messages after a flush to the disk (Pulsar with journalSyncData=true). Each round does the same with
both in turn: produce at the maximum rate, produce at a fixed rate, read raw, compact, read compacted.
`java/pulsar/PulsarThroughput.java` describes the measurements. Needs Maven and a JDK of version 17 or newer.

    python -m benchmarks gateway --rounds 3
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx

from benchmarks import machine
from benchmarks.peers.artifacts import Artifacts, get_artifacts
from benchmarks.peers.contender import PeerFailed
from benchmarks.peers.pulsar import Pulsar
from tests.servers.compactor_service import SERVE, compactor_service

SHAPES = {100: 1_000_000, 1024: 200_000}
"""Number of messages by payload bytes."""
KEYS = 100_000
LATENCY_MESSAGES, LATENCY_RATE = 100_000, 20_000
_LIMIT_SECONDS = 600.0
OURS, PULSAR = "this service", "Pulsar standalone"


@dataclass
class Measured:
    """Figures by measurement and service, round by round."""

    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, figure: str, service: str, value: float) -> None:
        self.figures.setdefault(figure, {}).setdefault(service, []).append(value)

    def markdown(self) -> str:
        """Return a table with a line per measurement: medians, ranges, and the ratio to Pulsar."""
        lines = ["| measured | this service | Pulsar | ours / Pulsar's |", "|---|---:|---:|---:|"]
        for figure, values in self.figures.items():
            service, pulsar = values.get(OURS, []), values.get(PULSAR, [])
            ratio = f"{median(service) / median(pulsar):.2f}" if service and pulsar else ""
            lines.append(f"| {figure} | {_shown(service)} | {_shown(pulsar)} | {ratio} |")
        return "\n".join(lines)


def _shown(values: list[float]) -> str:
    if not values:
        return ""
    digits = 0 if median(values) >= 1000 else 1
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


@dataclass(frozen=True)
class Contender:
    """A started service. `http`: URL of its admin REST."""

    name: str
    url: str
    http: str


def measure(
    artifacts: Artifacts, contender: Contender, payload: int, messages: int, turn: int, measured: Measured
) -> None:
    """Run one round with one service."""

    def run(topic: str, *arguments: str) -> dict[str, float]:
        name = f"persistent://public/default/{topic}"
        lines = artifacts.run_client(contender.url, name, *arguments, limit=_LIMIT_SECONDS).splitlines()
        return dict(json.loads(next(line for line in lines if line.startswith("{"))))

    topic = f"b{payload}-{turn}"
    produced = run(topic, "produce", str(messages), str(payload), str(KEYS))
    measured.add(f"produce {payload} B, messages/s", contender.name, messages / produced["seconds"])
    paced = run(topic + "-paced", "latency", str(LATENCY_MESSAGES), str(payload), str(LATENCY_RATE))
    measured.add(f"p50 at {LATENCY_RATE:,}/s of {payload} B, ms", contender.name, paced["p50_ms"])
    measured.add(f"p99 at {LATENCY_RATE:,}/s of {payload} B, ms", contender.name, paced["p99_ms"])
    raw = run(topic, "read", str(messages))
    measured.add(f"read raw {payload} B, messages/s", contender.name, raw["messages"] / raw["seconds"])
    compact(contender, topic)
    compacted = run(topic, "read-compacted")
    measured.add(
        f"read compacted {payload} B, messages/s", contender.name, compacted["messages"] / compacted["seconds"]
    )


def compact(contender: Contender, topic: str) -> None:
    """Compact a topic and wait for the end. Raises PeerFailed."""
    path = f"{contender.http}/admin/v2/persistent/public/default/{topic}/compaction"
    httpx.put(path, timeout=60).raise_for_status()
    deadline = time.monotonic() + _LIMIT_SECONDS
    while (status := httpx.get(path, timeout=60).json()["status"]) != "SUCCESS":
        if status == "ERROR" or time.monotonic() > deadline:
            raise PeerFailed(f"{contender.name}: compacting {topic} ended as {status}")
        time.sleep(0.05)


def main(arguments: list[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the messages")
    parser.add_argument("--payload", type=int, choices=sorted(SHAPES), help="only messages of that size")
    parser.add_argument("--only", choices=("ours", "pulsar"))
    parser.add_argument("--folder", type=Path, help="where both keep their data; removed afterwards")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended and the folder is removed
    parent = Path(tempfile.mkdtemp(prefix="gateway-benchmark-", dir=options.folder))
    measured = Measured()
    try:
        with ExitStack() as running:
            artifacts = get_artifacts("pulsar", "PulsarThroughput", parent)
            starts: list[Callable[[], Contender]] = []
            if options.only != "pulsar":
                starts.append(lambda: _ours(running, parent))
            if options.only != "ours":
                starts.append(lambda: _pulsar(running, artifacts, parent))
            contenders = [start() for start in starts]
            for turn in range(options.rounds):
                for payload, messages in SHAPES.items():
                    if options.payload in (None, payload):
                        for contender in contenders if turn % 2 == 0 else contenders[::-1]:
                            measure(artifacts, contender, payload, int(messages * options.scale), turn, measured)
                print(f"round {turn + 1} of {options.rounds}\n\n{measured.markdown()}\n", file=sys.stderr)
        print(f"{machine.summary(machine.describe(parent))}\n\n{measured.markdown()}")
    except PeerFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(parent, ignore_errors=True)
    return 0


def _ours(running: ExitStack, parent: Path) -> Contender:
    folder = parent / "ours"
    folder.mkdir()
    service = running.enter_context(compactor_service(folder, command=SERVE))
    return Contender(OURS, service.broker_service_url, service.url)


def _pulsar(running: ExitStack, artifacts: Artifacts, parent: Path) -> Contender:
    pulsar = Pulsar(artifacts, parent / "pulsar", compression=False, limit=_LIMIT_SECONDS, flushes=True)
    running.callback(pulsar.stop)
    pulsar.start()
    return Contender(PULSAR, pulsar.url, pulsar.web_url)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
