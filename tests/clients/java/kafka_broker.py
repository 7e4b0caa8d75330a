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


_SECURE = """\
listeners=PLAINTEXT://{{address}}:{{port}},SECURE://{{address}}:{secure_port},CONTROLLER://{{address}}:{{controller_port}}
advertised.listeners=PLAINTEXT://{{address}}:{{port}},SECURE://{{address}}:{secure_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  user_{user}="{password}";
listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
"""
USER, PASSWORD = "mirror", "a-password-of-this-test"


@contextmanager
def kafka_broker(folder: Path, secure_port: int, certificate: Path, key: Path) -> Iterator[Kafka]:
    """Start one with its data in `folder`, and end it.

    `secure_port`: for TLS with that certificate, and SASL (PLAIN, SCRAM-SHA-512) with USER and PASSWORD.
    """
    keystore = folder / "broker.pem"
    keystore.write_text(key.read_text() + certificate.read_text())
    artifacts = Artifacts(VERSION, Path(java()), class_path(_HERE / "kafka-broker.lock"), "")
    secure = _SECURE.format(secure_port=secure_port, keystore=keystore, user=USER, password=PASSWORD)
    broker = Kafka(
        artifacts,
        1,
        folder / "kafka",
        False,
        _STARTS_WITHIN_SECONDS,
        heap=_HEAP,
        settings=_SETTINGS + secure,
        format_options=(f"--add-scram=SCRAM-SHA-512=[name={USER},password={PASSWORD}]",),
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
