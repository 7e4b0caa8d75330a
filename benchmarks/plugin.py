"""Compaction of a topic that stays in Pulsar: by the broker itself, and by the plug-in and this service.

One broker has two topics with the same messages, and the plug-in hands one of them to the service. Each is compacted,
and the broker's live heap is measured meanwhile: Pulsar's compactor holds the keys there. Then both are read with
readCompacted by Pulsar's Java client, round by round in the other order: right after the topic was loaded (cold: the
plug-in holds no page), and again (warm). Needs no JDK and no Maven: the broker is that of the tests.

    python -m benchmarks plugin --messages 1000000 --keys 100000 --rounds 5
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks import machine
from benchmarks.live_heap import HeapUse, watched_heap
from benchmarks.peers.contender import PeerFailed
from tests.clients.java.broker import LOCKS, VERSION
from tests.clients.java.compacting_broker import CompactingBroker, compacting_broker
from tests.clients.java.jvm import java
from tests.clients.java.maven import class_path
from tests.clients.java.plugin_jar import plugin_checks, plugin_jar

OURS, PULSAR = "plug-in", "Pulsar"
PAYLOAD = 100
_BATCH = 1_000
_READ_SECONDS = 600
_LOCKS = Path(__file__).resolve().parents[1] / "tests" / "clients" / "java"


@dataclass
class Compaction:
    """The compaction of one topic. CPU seconds: of the broker, and of the service."""

    seconds: float
    broker_cpu: float
    service_cpu: float
    heap: HeapUse


@dataclass
class Measured:
    """Figures by contender. `reads`: milliseconds by contender and "cold" or "warm", round by round; `cpu`: seconds of
    broker and service in all reads of a kind of both contenders. `messages`, `keys`: those that each read returned."""

    compactions: dict[str, Compaction] = field(default_factory=dict)
    reads: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    messages: set[int] = field(default_factory=set)
    keys: set[int] = field(default_factory=set)

    def read_ratio(self, kind: str) -> float:
        """Return how many times as fast as Pulsar's the plug-in's reads are: the median of the ratios of the rounds."""
        pairs = zip(self.reads[PULSAR, kind], self.reads[OURS, kind], strict=True)
        return median(pulsar / plugin for pulsar, plugin in pairs)

    def markdown(self) -> str:
        """Return a table with a line for each measurement."""
        lines = ["| measured | plug-in and service | Pulsar's compactor | ratio |", "|---|---:|---:|---:|"]

        def add(name: str, plugin: float, pulsar: float, digits: int) -> None:
            ratio = f"{plugin / pulsar:.2f}" if pulsar else ""
            lines.append(f"| {name} | {plugin:,.{digits}f} | {pulsar:,.{digits}f} | {ratio} |")

        plugin, pulsar = self.compactions[OURS], self.compactions[PULSAR]
        add("compaction, s", plugin.seconds, pulsar.seconds, 2)
        add("CPU of the broker, s", plugin.broker_cpu, pulsar.broker_cpu, 2)
        add("CPU of the service, s", plugin.service_cpu, pulsar.service_cpu, 2)
        add("growth of the broker's live heap, MiB", plugin.heap.growth / 2**20, pulsar.heap.growth / 2**20, 1)
        for kind in ("cold", "warm"):
            of_plugin, of_pulsar = self.reads[OURS, kind], self.reads[PULSAR, kind]
            cells = [f"{median(values):,.0f} ({min(values):,}–{max(values):,})" for values in (of_plugin, of_pulsar)]
            lines.append(f"| read compacted, {kind}, ms | {cells[0]} | {cells[1]} | {self.read_ratio(kind):.2f} |")
        return "\n".join(lines)


def measure(broker: CompactingBroker, classes: str, messages: int, keys: int, rounds: int) -> Measured:
    """Send the same messages to two topics of a broker, compact and read them. `classes`: class path of the reader."""
    rng = random.Random(1)
    chosen = [f"key-{rng.randrange(keys):09d}" for _ in range(messages)]
    topics = {PULSAR: broker.topic("public/default"), OURS: broker.topic()}
    for topic in topics.values():
        _send(broker, topic, chosen)
    measured = Measured()
    for name, topic in topics.items():
        measured.compactions[name] = _compact(broker, topic)
    command = [java(), "-Xmx1g", "-cp", classes, "compactor.pulsar.ReadCompacted"]
    command += [broker.broker.url, broker.broker.web_url, str(rounds), *topics.values()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_READ_SECONDS)
    if done.returncode:
        raise PeerFailed(f"the reader ended with {done.returncode}: {done.stderr[-1500:]}")
    names = {topic: name for name, topic in topics.items()}
    for line in done.stdout.splitlines():
        kind, topic, *numbers = line.split()
        if topic in names:
            count, distinct, milliseconds = map(int, numbers)
            measured.reads.setdefault((names[topic], kind), []).append(milliseconds)
            measured.messages.add(count)
            measured.keys.add(distinct)
    if measured.keys != {len(set(chosen))}:
        raise PeerFailed(f"readers received {measured.keys} keys, and {len(set(chosen))} were sent")
    return measured


def _send(broker: CompactingBroker, topic: str, keys: list[str]) -> None:
    payload = random.Random(2).randbytes(PAYLOAD)
    producer = broker.client.create_producer(
        topic, batching_enabled=True, batching_max_messages=_BATCH, block_if_queue_full=True
    )
    for key in keys:
        producer.send_async(payload, None, partition_key=key)
    producer.flush()
    producer.close()


def _compact(broker: CompactingBroker, topic: str) -> Compaction:
    processes = broker.broker.process(), broker.service.process.pid
    with watched_heap(processes[0]) as heap:
        before = [machine.cpu_seconds(process) for process in processes]
        begin = time.monotonic()
        broker.compact(topic)
        seconds = time.monotonic() - begin
        after = [machine.cpu_seconds(process) for process in processes]
    used = [sum(new) - sum(old) for new, old in zip(after, before, strict=True)]
    return Compaction(seconds, used[0], used[1], heap)


def main(arguments: list[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks plugin", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the data is; removed afterwards")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended and the folder is removed
    with tempfile.TemporaryDirectory(prefix="plugin-benchmark-", dir=options.folder) as parent:
        folder = Path(parent)
        described = machine.summary(machine.describe(folder))
        try:
            jar = plugin_jar(folder)
            classes = f"{plugin_checks(folder, jar)}:{jar}:{class_path(_LOCKS / LOCKS[VERSION])}"
            with compacting_broker(folder, VERSION, jar, is_direct=True) as broker:
                measured = measure(broker, classes, options.messages, options.keys, options.rounds)
        except PeerFailed as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
    print(f"{described}\n\n{measured.markdown()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
