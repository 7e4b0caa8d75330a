"""An unmodified broker of Kafka, from the libraries of `kafka-broker.lock`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.artifacts import Artifacts
from benchmarks.peers.kafka import Kafka
from tests.clients.java.jvm import OPTIONS, java
from tests.clients.java.maven import class_path

VERSION = "4.3.1"
_HERE = Path(__file__).resolve().parent
_HEAP = (*OPTIONS, "-Xmx512m", "-XX:-UsePerfData")
_SETTINGS = """\
auto.create.topics.enable=false
num.network.threads=1
num.io.threads=2
num.recovery.threads.per.data.dir=1
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=500
log.segment.delete.delay.ms=0
"""
_STARTS_WITHIN_SECONDS = 240


@contextmanager
def kafka_broker(folder: Path, settings: str = "") -> Iterator[Kafka]:
    """Start one with its data in `folder`, and end it. `settings`: more lines for its file."""
    artifacts = Artifacts(VERSION, Path(java()), class_path(_HERE / "kafka-broker.lock"), "")
    lines = _SETTINGS + settings
    broker = Kafka(artifacts, 1, folder / "kafka", False, _STARTS_WITHIN_SECONDS, heap=_HEAP, settings=lines)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
