"""Topics that stay where they are: Pulsar's geo-replication into this service, and a mirror of a topic in Kafka.

Beside an unmodified broker on the same machine, message by message of 100 bytes: the broker has all messages before the
measurement begins, and it ends when all are durable here. CPU seconds are those of the service's process, user and
system, without the process that seals rolled segments meanwhile, which has a column of its own. The second table has
the parts of that work, one after the other in one thread, on the same bytes: the rest are connections, event loops
and the threads' waiting for each other. Needs a JDK of version 17 or newer, and the brokers' libraries, as tests do.

    python -m benchmarks doors --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import httpx
import pulsar  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import create_conn
from aiokafka.protocol.produce import ProduceRequest

from benchmarks import machine
from benchmarks.log import batch_entry
from benchmarks.peers.broker import free_ports
from storage.clock import SystemClock
from storage.entries.encode import encode_entry
from storage.entries.entry import parse_metadata
from storage.entries.replicated import POSITION_PROPERTY, split_source
from storage.environment import Environment
from storage.kafka.record_batch import read_batches
from storage.kafka.record_entries import to_entries
from storage.kafka.records import locate_batches
from storage.log.directory import LogDirectory
from storage.log.topic_log import TopicLog
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.objects.registry import open_store
from tests.certificates import certificate
from tests.clients.java.broker import pulsar_broker, replicate_to
from tests.clients.java.kafka_broker import kafka_broker
from tests.kafka_batches import LZ4, NONE, Batch, Record, encode
from tests.servers.compactor_service import SERVE, RunningService, compactor_service

PAYLOAD_BYTES, KEYS = 100, 100_000
KAFKA_BATCH_BYTES, PULSAR_BATCH_MESSAGES = 16 << 10, 1_000
"""The defaults of the producers of both."""
_DISTINCT_BATCHES, _REPLICATED, _APPENDS = 512, 100, 8
_PRODUCING = 100
"""Requests to Kafka that are under way at once."""
_NO_LEADER_YET = (3, 5, 6)
"""Kafka's errors for a topic that was created just now."""
_LIMIT_SECONDS = 900.0
_POLL_SECONDS = 0.25
_QUIET_POLLS = 4
"""The times that the log is seen unchanged before its service is asked what it has stored."""
CODECS = {"uncompressed": NONE, "lz4": LZ4}


@dataclass
class Figures:
    """The figures of one line, round by round: messages a second and a CPU second, sealing's CPU seconds a million."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    sealing: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return " | ".join([_shown(self.cpu), _shown(self.wall), f"{median(self.sealing):.2f}"])


def _shown(values: Sequence[float]) -> str:
    return f"{median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"


@contextmanager
def _measured(
    figures: Figures, service: RunningService, log: Path, messages: int, stored: Callable[[], int]
) -> Iterator[None]:
    """Add the figures of what the block begins: it ends when so many messages are `stored`.

    The files of the log tell when the service has stopped writing; it is asked only then, because an answer costs it
    several milliseconds.
    """
    process = service.process.pid

    def used() -> tuple[float, float]:
        children = (machine.cpu_seconds(child).own for child, _ in machine.descendants(process))
        own = machine.cpu_seconds(process)
        return own.own, own.children + sum(children)

    own, sealing = after = used()
    started = time.time()
    deadline = time.monotonic() + _LIMIT_SECONDS
    yield
    written, quiet = 0.0, 0
    while quiet < _QUIET_POLLS or stored() < messages:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{stored()} of {messages} messages are stored after {_LIMIT_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
        before, written = written, max((path.stat().st_mtime for path in log.rglob("*.log")), default=0.0)
        quiet = quiet % _QUIET_POLLS + 1 if written == before else 0
        if quiet == 1:
            after = used()
    figures.wall.append(messages / (written - started))
    figures.cpu.append(messages / (after[0] - own))
    figures.sealing.append((after[1] - sealing) / messages * 1e6)


def _messages_in(rest: httpx.Client, topic: str) -> int:
    answer = rest.get(f"/admin/v2/persistent/{topic}/stats")
    return int(answer.json()["msgInCounter"]) if answer.is_success else 0


# Kafka


def kafka_batches(codec: int) -> list[tuple[bytes, int]]:
    """Return batches as a producer sends them, each with the number of its records."""
    rng = random.Random(7)
    size = KAFKA_BATCH_BYTES // (PAYLOAD_BYTES + 30)
    now = time.time_ns() // 1_000_000
    batches = []
    for first in range(0, _DISTINCT_BATCHES * size, size):
        keys = [b"key-%06d" % rng.randrange(KEYS) for _ in range(size)]
        values = [rng.randbytes(PAYLOAD_BYTES // 2).hex().encode() for _ in range(size)]
        records = [Record(first + at, now + at // 10, key, values[at]) for at, key in enumerate(keys)]
        batches.append((encode(Batch(records, codec=codec)), size))
    return batches


async def _produce_to_kafka(address: str, topic: str, batches: Sequence[tuple[bytes, int]], messages: int) -> int:
    """Create a topic, and send batches in turn; return the number of their records, at least `messages`."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()
    host, _, port = address.partition(":")
    connection = await create_conn(host, int(port), request_timeout_ms=60_000)

    async def error_of(data: bytes) -> int:
        data = bytes(8) + data[8:]  # the broker gives the offsets
        response = await connection.send(ProduceRequest(None, 1, 30_000, [(topic, [(0, data)])]))
        return int(response.topics[0][1][0][1])

    while (await error_of(batches[0][0])) in _NO_LEADER_YET:
        await asyncio.sleep(_POLL_SECONDS)
    sent, number = batches[0][1], 1
    while sent < messages:
        chosen = [batches[at % len(batches)] for at in range(number, number + _PRODUCING)]
        errors = set(await asyncio.gather(*(error_of(data) for data, _ in chosen))) - {0}
        assert not errors, f"Kafka refuses batches with the errors {errors}"
        sent, number = sent + sum(size for _, size in chosen), number + _PRODUCING
    connection.close()
    return sent


def measure_mirror(folder: Path, messages: int, rounds: int) -> dict[str, Figures]:
    """Mirror topics of one partition, and return the figures by codec."""
    figures = {codec: Figures() for codec in CODECS}
    with ExitStack() as stack:
        secure = certificate(folder)
        broker = stack.enter_context(kafka_broker(folder, free_ports(1)[0], *secure))
        service = stack.enter_context(_service(folder))
        rest = stack.enter_context(httpx.Client(base_url=service.url, timeout=60))
        for turn in range(rounds):
            for codec, number in CODECS.items():
                topic = f"{codec}-{turn}"
                sent = asyncio.run(_produce_to_kafka(broker.address, topic, kafka_batches(number), messages))
                stored = partial(_messages_in, rest, f"public/default/{topic}-partition-0")
                with _measured(figures[codec], service, _log(folder), sent, stored):
                    body = {"source": f"kafka://{broker.address}/{topic}"}
                    rest.put(f"/admin/v2/persistent/public/default/{topic}/mirror", json=body).raise_for_status()
                rest.delete(f"/admin/v2/persistent/public/default/{topic}/mirror").raise_for_status()
    return figures


# Pulsar


def _produce_to_pulsar(url: str, topic: str, messages: int) -> None:
    rng = random.Random(7)
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=PULSAR_BATCH_MESSAGES,
        batching_max_publish_delay_ms=50,
        block_if_queue_full=True,
        max_pending_messages=20_000,
    )
    for _ in range(messages):
        payload = rng.randbytes(PAYLOAD_BYTES // 2).hex().encode()
        producer.send_async(payload, lambda *_: None, partition_key=f"key-{rng.randrange(KEYS):06}")
    producer.flush()
    client.close()


def measure_replication(folder: Path, messages: int, rounds: int) -> Figures:
    """Replicate topics, each of a namespace that the broker replicates from then on."""
    figures = Figures()
    with ExitStack() as stack:
        broker = stack.enter_context(pulsar_broker(folder, replicationStartAt="earliest"))
        service = stack.enter_context(_service(folder))
        rest = stack.enter_context(httpx.Client(base_url=service.url, timeout=60))
        source = stack.enter_context(httpx.Client(base_url=broker.web_url, timeout=60))
        replicate_to(source, "compactor", service.url, service.broker_service_url, "first")
        for turn in range(rounds):
            namespace = f"public/r{turn}"
            rest.put(f"/admin/v2/namespaces/{namespace}").raise_for_status()
            source.put(f"/admin/v2/namespaces/{namespace}", json={}).raise_for_status()
            _produce_to_pulsar(broker.url, f"persistent://{namespace}/t", messages)
            stored = partial(_messages_in, rest, f"{namespace}/t")
            with _measured(figures, service, _log(folder), messages, stored):
                clusters = ["standalone", "compactor"]
                source.post(f"/admin/v2/namespaces/{namespace}/replication", json=clusters).raise_for_status()
    return figures


@contextmanager
def _service(folder: Path) -> Iterator[RunningService]:
    place = folder / "service"
    place.mkdir()
    unlimited = {"COMPACTOR_LIMITS_REQUESTS_PER_SECOND": "0"}
    with compactor_service(place, command=SERVE, **unlimited) as service:
        yield service


def _log(folder: Path) -> Path:
    return folder / "service" / "data" / "log"


# Where the time goes


class Parts:
    """CPU seconds of this process for the parts of the work, for a million messages."""

    def __init__(self, folder: Path) -> None:
        clock = SystemClock()
        metadata = MetadataStore(f"sqlite:///{folder / 'metadata.db'}", clock)
        metadata.upgrade()
        store = open_store((folder / "objects").as_uri())
        self._environment = Environment(metadata, store, clock, LogDirectory(folder / "log"))
        self.seconds: dict[tuple[str, str], list[float]] = {}

    @contextmanager
    def _part(self, door: str, part: str, messages: int) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds.setdefault((door, part), []).append((time.process_time() - started) / messages * 1e6)

    def measure(self, turn: int) -> None:
        """Measure all parts once."""
        for codec, number in CODECS.items():
            batches, door = kafka_batches(number), f"Kafka, {codec}"
            messages = sum(size for _, size in batches)
            data = b"".join(batch for batch, _ in batches)
            with self._part(door, "read batches, compare checksums", messages):
                read = list(read_batches(data))
            with self._part(door, "locate records and their fields", messages):
                located = list(locate_batches(read))
            with self._part(door, "encode entries", messages):
                now = time.time_ns() // 1_000_000
                entries = [entry.data for part in located for entry in to_entries(part, "kafka:c:t-0", now)]
            self._append(door, f"{codec}-{turn}", entries, messages)
        sent = replicated_entries()
        messages = len(sent) * PULSAR_BATCH_MESSAGES
        with self._part("Pulsar", "take the position, compare and compute checksums", messages):
            entries = [split_source(entry)[1] for entry in sent]
        self._append("Pulsar", f"pulsar-{turn}", entries, messages)

    def _append(self, door: str, name: str, entries: Sequence[bytes], messages: int) -> None:
        """Append entries `_APPENDS` times to a topic whose segment is open."""
        topic = self._environment.metadata.tenancy.ensure_topic(TopicName.parse(name))
        acknowledged = threading.Semaphore(0)
        with TopicLog(self._environment, topic, name) as log:
            log.append(entries[0])
            with self._part(door, "append and flush", _APPENDS * messages):
                for entry in [*entries] * _APPENDS:
                    log.submit(entry, lambda _: acknowledged.release())
                for _ in range(_APPENDS * len(entries)):
                    acknowledged.acquire()

    def markdown(self) -> str:
        """Return the table of the medians."""
        lines = ["| door | part | CPU seconds for a million messages |", "|---|---|---:|"]
        lines += [f"| {door} | {part} | {median(values):.2f} |" for (door, part), values in self.seconds.items()]
        return "\n".join(lines)


def replicated_entries() -> list[bytes]:
    """Return batches as a replicator sends them."""
    plain = batch_entry(PULSAR_BATCH_MESSAGES, PAYLOAD_BYTES)
    entries = []
    for number in range(_REPLICATED):
        described, payload_at = parse_metadata(plain)
        described.replicated_from = "standalone"
        described.properties.add(key=POSITION_PROPERTY, value=f"3:{number}")
        entries.append(encode_entry(described, plain[payload_at:]))
    return entries


def main(arguments: list[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks doors", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of each topic")
    parser.add_argument("--only", choices=("kafka", "pulsar", "parts"))
    parser.add_argument("--folder", type=Path, help="where brokers and service keep their data; removed afterwards")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended and the folder is removed
    parent = Path(tempfile.mkdtemp(prefix="doors-benchmark-", dir=chosen.folder))
    lines: dict[str, Figures] = {}
    try:
        print(machine.summary(machine.describe(parent)), end="\n\n")
        if chosen.only in (None, "pulsar"):
            figures = measure_replication(_folder(parent, "pulsar"), chosen.messages, chosen.rounds)
            lines["Pulsar's replication"] = figures
        if chosen.only in (None, "kafka"):
            by_codec = measure_mirror(_folder(parent, "kafka"), chosen.messages, chosen.rounds)
            lines |= {f"Kafka mirror, {codec}": figures for codec, figures in by_codec.items()}
        if lines:
            print("| door | messages for a CPU second of the service | messages/s beside its broker "
                  "| CPU seconds of sealing for a million |")  # fmt: skip
            print("|---|---:|---:|---:|")
            print("".join(f"| {door} | {figures} |\n" for door, figures in lines.items()))
        if chosen.only in (None, "parts"):
            parts = Parts(_folder(parent, "parts"))
            for turn in range(chosen.rounds + 1):
                parts.measure(turn)
                if not turn:
                    parts.seconds.clear()  # the warm-up
            print(parts.markdown())
    finally:
        shutil.rmtree(parent, ignore_errors=True)
    return 0


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder
