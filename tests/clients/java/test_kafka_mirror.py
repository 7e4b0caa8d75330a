"""Mirrors of an unmodified broker of Kafka: everything once and in order, whatever dies meanwhile.

Kafka's own view is that of a consumer with `read_committed`. One broker for the whole module; aiokafka is the client.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete

from benchmarks.peers.broker import free_ports
from benchmarks.peers.kafka import Kafka
from storage.kafka.header_properties import BASE64, NULL
from tests.certificates import certificate
from tests.clients.java.kafka_broker import PASSWORD, USER, kafka_broker
from tests.clients.java.service_lives import Lives
from tests.clients.python.conftest import Admin, compacted_values, wait_for
from tests.real_input import real_input

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2_400)]
CAUGHT_UP_WITHIN_SECONDS = 120
_NUMBERS = itertools.count()
Row = tuple[Any, ...]
"""Key, value, timestamp and properties of a message."""


@dataclass(frozen=True)
class SecureListener:
    """The broker's listener with TLS and SASL. `certificate`: its own authority."""

    port: int
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> SecureListener:
    return SecureListener(*free_ports(1), *certificate(tmp_path_factory.mktemp("tls")))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, secure: SecureListener) -> Iterator[Kafka]:
    folder = tmp_path_factory.mktemp("broker")
    with kafka_broker(folder, secure.port, secure.certificate, secure.key) as running:
        yield running


@pytest.fixture(scope="module")
def service_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that has the data of `service`."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def service(service_folder: Path) -> Iterator[Lives]:
    """A service for the tests that kill none."""
    with ExitStack() as stack:
        yield Lives(service_folder, stack, MIRROR_PASSWORD=PASSWORD)


@pytest.fixture
def topic() -> str:
    """A name that no other test has, of a topic on both sides."""
    return f"t{next(_NUMBERS)}"


@asynccontextmanager
async def _started(client: Any) -> Any:
    await client.start()
    try:
        yield client
    finally:
        await (client.stop if hasattr(client, "stop") else client.close)()


def _on_admin(broker: Kafka, work: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> Any:
    async def call() -> Any:
        async with _started(AIOKafkaAdminClient(bootstrap_servers=broker.address)) as admin:
            return await work(admin)

    return asyncio.run(call())


def _create(broker: Kafka, topic: str, partitions: int = 1, **settings: str) -> None:
    _on_admin(broker, lambda admin: admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings)]))


def _produce(broker: Kafka, topic: str, records: Sequence[dict[str, Any]], **options: Any) -> None:
    """Send records, each the arguments of `send`."""

    async def call() -> None:
        client = AIOKafkaProducer(bootstrap_servers=broker.address, linger_ms=5, **options)
        async with _started(client) as producer:
            for record in records:
                await producer.send(topic, **record)
            await producer.flush()

    asyncio.run(call())


def _in_kafka(broker: Kafka, topic: str, partition: int) -> list[Row]:
    """Return what a consumer with `read_committed` gets."""

    async def call() -> list[Row]:
        client = AIOKafkaConsumer(bootstrap_servers=broker.address, isolation_level="read_committed")
        rows: list[Row] = []
        async with _started(client) as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            end = (await consumer.end_offsets([place]))[place]
            while await consumer.position(place) < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    rows += [(item.key, item.value, item.timestamp, _properties(item.headers)) for item in records]
        return rows

    return asyncio.run(call())


def _properties(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, str]:
    """Return the properties that docs/importing.md promises, of headers with different names."""
    properties = {}
    for name, value in headers:
        if value is None:
            properties[name + NULL] = ""
        elif value == b"\xff":
            properties[name + BASE64] = "/w=="
        else:
            properties[name] = value.decode()
    return properties


def _here(rest: httpx.Client, topic: str, partition: int) -> list[Row]:
    """Return the messages of a partition here."""
    options = {"stream": "true", "keyEncoding": "base64", "valueEncoding": "base64"}
    path = f"/admin/v2/persistent/public/default/{topic}-partition-{partition}/messages"
    answer = rest.get(path, params=options)
    assert answer.is_success, answer.text
    rows = []
    for line in answer.text.splitlines():
        message = json.loads(line)
        key, value = (_decoded(message.get(name)) for name in ("key", "value"))
        rows.append((key, value, message["event_time"], message.get("properties", {})))
    return rows


def _decoded(text: str | None) -> bytes | None:
    from base64 import b64decode

    return None if text is None else b64decode(text)


def _add(rest: httpx.Client, broker: Kafka, topic: str, **options: Any) -> None:
    body = {"source": f"kafka://{broker.address}/{topic}", **options}
    answer = rest.put(f"/admin/v2/persistent/public/default/{topic}/mirror", json=body)
    assert answer.is_success, answer.text


def _mirror(rest: httpx.Client, topic: str) -> dict[str, Any]:
    document: dict[str, Any] = rest.get(f"/admin/v2/persistent/public/default/{topic}/mirror").json()
    return document


def _resume(rest: httpx.Client, topic: str, **options: Any) -> None:
    assert rest.post(f"/admin/v2/persistent/public/default/{topic}/mirror/resume", json=options).is_success


def _wait_until_equal(broker: Kafka, rest: httpx.Client, topic: str, partitions: int) -> None:
    for partition in range(partitions):
        expected = _in_kafka(broker, topic, partition)

        def is_here(partition: int = partition, expected: list[Row] = expected) -> bool:
            return _has(rest, topic, partition, len(expected))

        wait_for(is_here, seconds=CAUGHT_UP_WITHIN_SECONDS)
        assert _here(rest, topic, partition) == expected


def _has(rest: httpx.Client, topic: str, partition: int, count: int) -> bool:
    """Return whether a partition here has as many messages."""
    path = f"/admin/v2/persistent/public/default/{topic}-partition-{partition}/messages"
    answer = rest.get(path, params={"start": str(count - 1), "limit": "1", "valueEncoding": "base64"})
    return answer.is_success and bool(answer.text)


@contextmanager
def _stopped(broker: Kafka) -> Iterator[None]:
    """Stop the broker, and start it again on its data after the block."""
    broker.stop()
    yield
    broker.launch()


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.soak)])
def test_everything_once_and_in_order_through_kills(tmp_path: Path, broker: Kafka, topic: str, kills: int) -> None:
    """The service is killed; in between, the broker is restarted and a partition added."""
    rng = random.Random(7)
    partitions, sent = 2, 0
    _create(broker, topic, partitions)
    with ExitStack() as stack:
        lives = Lives(tmp_path, stack)
        _add(lives.rest, broker, topic)
        for kill in range(kills):
            records = []
            for _ in range(2_000):
                headers = [("n", str(sent).encode())] if sent % 900 == 0 else []
                value = None if sent % 70 == 0 else b"value %d" % sent
                place = {"key": b"k%d" % (sent % 50), "partition": sent % partitions}
                records.append({"value": value, "headers": headers, **place})
                sent += 1
            name = f"public/default/{topic}-partition-{rng.randrange(partitions)}"
            stored = lives.entries(name)
            _produce(broker, topic, records)
            wait_for(lambda name=name, stored=stored: lives.entries(name) > stored, seconds=60)
            lives.kill()
            if kill == kills // 3:
                partitions += 1
                new = {topic: NewPartitions(partitions)}
                _on_admin(broker, lambda admin, new=new: admin.create_partitions(new))
            if kill == kills // 2:
                with _stopped(broker):
                    lives.start()
            else:
                lives.start()
        _wait_until_equal(broker, lives.rest, topic, partitions)


def test_records_of_all_kinds(broker: Kafka, service: Lives, topic: str) -> None:
    """Null and binary keys, tombstones, headers, timestamps, large values."""
    _create(broker, topic)
    kinds: list[dict[str, Any]] = [
        {"key": None, "value": b"no key"},
        {"key": b"\xff\x00", "value": b"a key that is no text"},
        {"key": b"", "value": b"an empty key"},
        {"key": b"gone", "value": None},
        {"key": None, "value": b""},
        {"key": b"h", "value": b"headers", "headers": [("a", b"text"), ("b", b"\xff"), ("c", None)]},
        {"key": b"t", "value": b"an old one", "timestamp_ms": 5},
        {"key": b"large", "value": b"x" * 900_000},
    ]
    _produce(broker, topic, kinds * 3, compression_type="gzip")
    _add(service.rest, broker, topic)
    _wait_until_equal(broker, service.rest, topic, 1)


def test_an_empty_value_stops_the_mirror_until_it_may_delete(broker: Kafka, service: Lives, topic: str) -> None:
    _create(broker, topic, **{"compression.type": "zstd"})
    _produce(broker, topic, [{"key": b"k", "value": value} for value in (b"before", b"", b"after")])
    _add(service.rest, broker, topic)
    wait_for(lambda: _mirror(service.rest, topic)["state"] == "failed", seconds=60)
    assert _mirror(service.rest, topic)["error"].startswith(
        f"{topic}-0: the record at offset 1 has a key and an empty value: a value for Kafka, a deletion here"
    )
    _resume(service.rest, topic, emptyValues="delete")
    wait_for(lambda: _has(service.rest, topic, 0, 3), seconds=60)
    assert [row[:2] for row in _here(service.rest, topic, 0)] == [(b"k", b"before"), (b"k", b""), (b"k", b"after")]


def test_aborted_transactions_are_left_out(broker: Kafka, service: Lives, topic: str) -> None:
    async def transact() -> None:
        producers = [
            AIOKafkaProducer(bootstrap_servers=broker.address, transactional_id=f"{topic}-{number}")
            for number in range(2)
        ]
        for producer in producers:
            await producer.start()
        for number in range(12):
            for producer in producers:
                await producer.begin_transaction()
            for item in range(5):
                for place, producer in enumerate(producers):
                    await producer.send_and_wait(topic, b"%d %d %d" % (number, place, item), key=b"k%d" % item)
            for place, producer in enumerate(producers):
                aborts = (number + place) % 3 == 0
                await (producer.abort_transaction if aborts else producer.commit_transaction)()
        for producer in producers:
            await producer.stop()

    _create(broker, topic)
    _add(service.rest, broker, topic)
    asyncio.run(transact())
    _wait_until_equal(broker, service.rest, topic, 1)
    assert len(_here(service.rest, topic, 0)) == 80


def test_a_gap_at_the_source_stops_the_mirror_until_it_is_accepted(broker: Kafka, service: Lives, topic: str) -> None:
    def delete(admin: AIOKafkaAdminClient) -> Awaitable[Any]:
        return admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=70)})

    _create(broker, topic)
    _produce(broker, topic, [{"key": b"k", "value": b"%d" % number} for number in range(40)])
    _add(service.rest, broker, topic)
    _wait_until_equal(broker, service.rest, topic, 1)
    assert service.rest.post(f"/admin/v2/persistent/public/default/{topic}/mirror/pause").is_success
    stats = f"/admin/v2/persistent/public/default/{topic}-partition-0/stats"
    wait_for(lambda: not service.rest.get(stats).json()["publishers"], seconds=60)
    _produce(broker, topic, [{"key": b"k", "value": b"%d" % number} for number in range(40, 90)])
    _on_admin(broker, delete)
    _resume(service.rest, topic)
    wait_for(lambda: _mirror(service.rest, topic)["state"] == "failed", seconds=60)
    error = _mirror(service.rest, topic)["error"]
    assert error.startswith(f"{topic}-0: Kafka has removed the records from offset 40 to 69 before they were mirrored")
    assert len(_here(service.rest, topic, 0)) == 40
    _resume(service.rest, topic, acceptGaps=True)
    wait_for(lambda: _has(service.rest, topic, 0, 60), seconds=60)
    assert [row[1] for row in _here(service.rest, topic, 0)] == [b"%d" % n for n in (*range(40), *range(70, 90))]


def test_a_topic_made_again_stops_the_mirror(broker: Kafka, service: Lives, topic: str) -> None:
    _create(broker, topic)
    _produce(broker, topic, [{"key": b"k", "value": b"old"}])
    _add(service.rest, broker, topic)
    _wait_until_equal(broker, service.rest, topic, 1)
    _on_admin(broker, lambda admin: admin.delete_topics([topic]))
    _create(broker, topic)
    _produce(broker, topic, [{"key": b"k", "value": b"new"}] * 5)
    wait_for(lambda: _mirror(service.rest, topic)["state"] == "failed", seconds=60)
    assert f"{topic} in Kafka was deleted and created again" in _mirror(service.rest, topic)["error"]
    path = f"/admin/v2/persistent/public/default/{topic}/mirror"
    assert service.rest.delete(path).is_success
    answer = service.rest.put(path, json={"source": f"kafka://{broker.address}/{topic}"})
    assert answer.status_code == 409
    assert f"has messages of a topic {topic} that was deleted in Kafka and created again" in answer.text
    assert [row[1] for row in _here(service.rest, topic, 0)] == [b"old"]


def test_real_input_is_compacted_to_its_tree(broker: Kafka, service: Lives, service_folder: Path, topic: str) -> None:
    """From Kafka's client to the tree, by a mirror, and by an import of the broker's segments."""
    source, partitions = real_input(), 3
    _create(broker, topic, partitions)
    _produce(broker, topic, [{"key": key.encode(), "value": value} for key, value in source.messages])
    _add(service.rest, broker, topic)

    def is_here() -> bool:
        parts = _mirror(service.rest, topic)["partitions"]
        return sum(part["next_offset"] or 0 for part in parts) == len(source.changes)

    wait_for(is_here, seconds=CAUGHT_UP_WITHIN_SECONDS)
    assert _compacted(service, topic, partitions) == source.tree

    imported = f"{topic}-files"
    path = f"/admin/v2/persistent/public/default/{imported}/partitions"
    assert service.rest.put(path, json=partitions).is_success
    folders = [str(broker.folder / "logs" / f"{topic}-{number}") for number in range(partitions)]
    command = [sys.executable, "-m", "api.cli.main", "import", imported, *folders, "--format", "kafka-segments"]
    environment = {"COMPACTOR_DATA": str(service_folder / "data"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert _compacted(service, imported, partitions) == source.tree


def _compacted(service: Lives, topic: str, partitions: int) -> dict[bytes, bytes]:
    """Compact all partitions of a topic, and return the values of their keys."""
    values: dict[bytes, bytes] = {}
    for number in range(partitions):
        name = f"public/default/{topic}-partition-{number}"
        Admin(service.service.url).compact(f"persistent://{name}")
        values |= compacted_values(service.rest, name)
    return values


def test_tls_and_sasl(broker: Kafka, service: Lives, secure: SecureListener, topic: str) -> None:
    _create(broker, topic)
    _produce(broker, topic, [{"key": b"k", "value": b"%d" % number} for number in range(9)])
    options = {"source": f"kafka://127.0.0.1:{secure.port}/{topic}", "tls": True, "tlsCa": str(secure.certificate)}
    login = {"sasl": "PLAIN", "username": USER, "passwordFrom": "env:MIRROR_PASSWORD"}
    path = f"/admin/v2/persistent/public/default/{topic}/mirror"
    for change, status, reason in (
        ({"tlsCa": ""}, 503, "is not accepted"),
        ({"tls": False, "tlsCa": ""}, 503, "does not answer"),
        ({"username": "another"}, 503, "refuses the user 'another' by PLAIN"),
        ({"sasl": "SCRAM-SHA-256"}, 503, "refuses the user 'mirror' by SCRAM-SHA-256"),
    ):
        answer = service.rest.put(path, json={**options, **login, **change})
        assert (answer.status_code, reason in answer.text) == (status, True), answer.text
    for name, mechanism in ((topic, "PLAIN"), (f"{topic}-scram", "SCRAM-SHA-512")):
        answer = service.rest.put(path.replace(topic, name), json={**options, **login, "sasl": mechanism})
        assert answer.is_success, answer.text
        wait_for(lambda name=name: _has(service.rest, name, 0, 9), seconds=60)
        assert _here(service.rest, name, 0) == _in_kafka(broker, topic, 0)
    for text in (service.rest.get("/admin/v2/mirrors").text, service.service.log.read_text()):
        assert PASSWORD not in text


def test_a_compacted_source(broker: Kafka, service: Lives, topic: str) -> None:
    """Gaps of a cleaner are no gaps of a mirror, before and while it runs."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
    _create(broker, topic, **settings)

    sent = itertools.count()

    def produce(count: int) -> int:
        """Send the next numbers, and return the number of all."""
        numbers = list(itertools.islice(sent, count))
        _produce(broker, topic, [{"key": b"k%d" % (number % 9), "value": b"%d" % number} for number in numbers])
        return numbers[-1] + 1

    def is_cleaned() -> bool:
        """Each append may close a segment, which the cleaner needs."""
        return produce(9) > len(_in_kafka(broker, topic, 0))

    def check() -> int:
        """Compare the newest numbers here with all that were sent."""
        count = produce(9)
        wait_for(lambda: _here(service.rest, topic, 0)[-1][1] == b"%d" % (count - 1), seconds=60)
        values = [int(row[1]) for row in _here(service.rest, topic, 0)]
        assert values == sorted(set(values))
        assert values[-9:] == list(range(count - 9, count))
        return count - len(values)

    produce(100)
    wait_for(is_cleaned, seconds=120)
    _add(service.rest, broker, topic)
    wait_for(lambda: _has(service.rest, topic, 0, 1), seconds=60)
    missing = check()
    assert missing > 0
    produce(100)
    assert check() >= missing
    assert _mirror(service.rest, topic)["state"] == "running"


def test_the_commands_of_the_page_work_as_they_stand(
    tmp_path: Path, broker: Kafka, service: Lives, service_folder: Path, topic: str
) -> None:
    """Those of docs/keep-your-cluster.md: the compacted view here is the newest value of each key in Kafka."""
    _create(broker, topic)
    records = [{"key": b"k%d" % (number % 7), "value": b"%d" % number} for number in range(40)]
    _produce(broker, topic, records)
    page = (Path(__file__).parents[3] / "docs" / "keep-your-cluster.md").read_text(encoding="utf-8")
    section = page.partition("\n## Kafka: a mirror\n")[2].partition("\n## ")[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    commands = [line.replace("localhost:9092", broker.address).replace("users", topic) for line in lines]
    assert [command.split()[0] for command in commands] == ["compactor"] * 2 + ["compactor-admin", "compactor"] + [
        "compactor-admin"
    ]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "COMPACTOR_DATA": str(service_folder / "data"),
        "COMPACTOR_ADMIN_URL": service.service.url,
    }

    def run(command: str) -> str:
        done = subprocess.run(command, shell=True, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    run(commands[0])
    wait_for(lambda: _has(service.rest, topic, 0, len(records)), seconds=CAUGHT_UP_WITHIN_SECONDS)
    assert topic in run(commands[1])
    run(commands[2])
    newest = {f"k{number % 7}": str(number) for number in range(40)}
    read = [json.loads(line) for line in run(commands[3]).splitlines()]
    assert {message["key"]: message["value"] for message in read} == newest
    assert len(read) == len(newest)
    run(commands[4])
