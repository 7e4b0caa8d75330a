"""Produce and read with Pulsar's own Java client: this service beside a real Pulsar standalone, on one machine.

Both acknowledge what is flushed to the disk (Pulsar with journalSyncData=true). Each round does the same with one and
then the other, in turn: produce as fast as it goes, produce at a fixed rate, read raw, compact, read compacted.
`java/pulsar/PulsarThroughput.java` says what is measured. Needs Maven and a JDK of version 17 or newer.

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
from tests.servers.compactor_service import compactor_service

SHAPES = {100: 1_000_000, 1024: 200_000}
"""By payload bytes: messages."""
KEYS = 100_000
LATENCY_MESSAGES, LATENCY_RATE = 100_000, 20_000
_LIMIT_SECONDS = 600.0
OURS, PULSAR = "this service", "Pulsar standalone"


@dataclass
class Measured:
    """Figures of both, by what was measured: a list by name, round by round."""

    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, what: str, name: str, value: float) -> None:
        self.figures.setdefault(what, {}).setdefault(name, []).append(value)

    def markdown(self) -> str:
        """A line for each thing measured: medians, ranges, and ours as a multiple of Pulsar's."""
        lines = ["| measured | this service | Pulsar | ours / Pulsar's |", "|---|---:|---:|---:|"]
        for what, found in self.figures.items():
            ours, theirs = found.get(OURS, []), found.get(PULSAR, [])
            ratio = f"{median(ours) / median(theirs):.2f}" if ours and theirs else ""
            lines.append(f"| {what} | {_shown(ours)} | {_shown(theirs)} | {ratio} |")
        return "\n".join(lines)


def _shown(values: list[float]) -> str:
    if not values:
        return ""
    digits = 0 if median(values) >= 1000 else 1
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


@dataclass(frozen=True)
class Contender:
    """A service that is up. `http`: its admin REST."""

    name: str
    url: str
    http: str


def measure(
    artifacts: Artifacts, contender: Contender, payload: int, messages: int, turn: int, found: Measured
) -> None:
    """One round with one of them."""

    def run(topic: str, *arguments: str) -> dict[str, float]:
        where = f"persistent://public/default/{topic}"
        lines = artifacts.run_client(contender.url, where, *arguments, limit=_LIMIT_SECONDS).splitlines()
        return dict(json.loads(next(line for line in lines if line.startswith("{"))))

    topic = f"b{payload}-{turn}"
    produced = run(topic, "produce", str(messages), str(payload), str(KEYS))
    found.add(f"produce {payload} B, messages/s", contender.name, messages / produced["seconds"])
    paced = run(topic + "-paced", "latency", str(LATENCY_MESSAGES), str(payload), str(LATENCY_RATE))
    found.add(f"p50 at {LATENCY_RATE:,}/s of {payload} B, ms", contender.name, paced["p50_ms"])
    found.add(f"p99 at {LATENCY_RATE:,}/s of {payload} B, ms", contender.name, paced["p99_ms"])
    raw = run(topic, "read", str(messages))
    found.add(f"read raw {payload} B, messages/s", contender.name, raw["messages"] / raw["seconds"])
    compact(contender, topic)
    compacted = run(topic, "read-compacted")
    found.add(f"read compacted {payload} B, messages/s", contender.name, compacted["messages"] / compacted["seconds"])


def compact(contender: Contender, topic: str) -> None:
    """Compact a topic and wait for it. Raises PeerFailed."""
    path = f"{contender.http}/admin/v2/persistent/public/default/{topic}/compaction"
    httpx.put(path, timeout=60).raise_for_status()
    deadline = time.monotonic() + _LIMIT_SECONDS
    while (status := httpx.get(path, timeout=60).json()["status"]) != "SUCCESS":
        if status == "ERROR" or time.monotonic() > deadline:
            raise PeerFailed(f"{contender.name}: compacting {topic} ended as {status}")
        time.sleep(0.05)


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the messages")
    parser.add_argument("--payload", type=int, choices=sorted(SHAPES), help="only messages of that size")
    parser.add_argument("--only", choices=("ours", "pulsar"))
    parser.add_argument("--folder", type=Path, help="where both keep their data; removed afterwards")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended and the folder is removed
    parent = Path(tempfile.mkdtemp(prefix="gateway-benchmark-", dir=options.folder))
    found = Measured()
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
                            measure(artifacts, contender, payload, int(messages * options.scale), turn, found)
                print(f"round {turn + 1} of {options.rounds}\n\n{found.markdown()}\n", file=sys.stderr)
        print(f"{machine.summary(machine.describe(parent))}\n\n{found.markdown()}")
    except PeerFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(parent, ignore_errors=True)
    return 0


def _ours(running: ExitStack, parent: Path) -> Contender:
    folder = parent / "ours"
    folder.mkdir()
    service = running.enter_context(compactor_service(folder))
    return Contender(OURS, service.broker_service_url, service.url)


def _pulsar(running: ExitStack, artifacts: Artifacts, parent: Path) -> Contender:
    pulsar = Pulsar(artifacts, parent / "pulsar", compression=False, limit=_LIMIT_SECONDS, flushes=True)
    running.callback(pulsar.stop)
    pulsar.start()
    return Contender(PULSAR, pulsar.url, pulsar.web_url)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
