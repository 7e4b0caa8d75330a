"""Two services on one database, one log directory and one store. One mirrors and is killed; the other goes on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from api.broker.mirroring import operations
from api.broker.mirroring.source import MirrorOptions, MirrorSource
from api.components import open_for_reading, open_for_writing
from api.settings.settings import Settings
from storage.environment import Environment
from storage.ledger.seek import SeekOffset
from storage.model import TopicName
from storage.owner import Owner
from storage.topic import Topic
from tests.clients.python.conftest import wait_for
from tests.kafka_batches import Batch, Record
from tests.kafka_server import FakeKafka, FakeTopic, Log, fake_kafka
from tests.servers.compactor_service import compactor_service

pytestmark = pytest.mark.slow
TOPIC = TopicName.parse("users")
PARTITIONS = (0, 1)
BATCHES, RECORDS = 50, 20


def grow(kafka: FakeKafka) -> None:
    """Append batches to each partition."""
    for number in PARTITIONS:
        for _ in range(BATCHES):
            first = kafka.topic.partitions[number].end
            values = [Record(offset, key=b"k", value=b"%d" % offset) for offset in range(first, first + RECORDS)]
            kafka.topic.append(number, Batch(values))


def partition(environment: Environment, number: int) -> Topic:
    return Topic(environment, environment.metadata.topics.get(TOPIC.of_partition(number)))


def stored(topic: Topic) -> list[int]:
    """The offsets in Kafka of the messages here."""
    reader = topic.snapshot_reader()
    return [offset for table in reader.raw(SeekOffset(0)) for offset in table.column("sequence_id").to_pylist()]


def test_another_service_goes_on_where_a_killed_one_ended(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path / "data"), spark_master="in-process")
    with ExitStack() as stack:
        kafka = stack.enter_context(fake_kafka(FakeTopic("users", [Log() for _ in PARTITIONS])))
        kafka.batches_of_fetch = 1  # so that it has more when its reader dies
        grow(kafka)
        with open_for_writing(settings) as environment:
            environment.metadata.tenancy.ensure_namespace(TOPIC)
            operations.add(environment, MirrorSource.parse(kafka.url, MirrorOptions()), TOPIC)
        services = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            service = compactor_service(tmp_path / name, COMPACTOR_DATA=settings.data)
            services.append(stack.enter_context(service))
        environment = stack.enter_context(open_for_reading(settings))

        def owner() -> int | None:
            """The process that mirrors the first partition."""
            lease = environment.metadata.leases.current(partition(environment, 0).record.id)
            parsed = None if lease is None else Owner.parse(lease.owner)
            return None if parsed is None else parsed.pid

        wait_for(lambda: owner() is not None and partition(environment, 0).snapshot_reader().end, seconds=60)
        (killed,) = [service for service in services if service.process.pid == owner()]
        killed.process.kill()
        killed.process.wait()
        grow(kafka)
        ends = [kafka.topic.partitions[number].end for number in PARTITIONS]

        def is_here() -> bool:
            return [partition(environment, number).snapshot_reader().end for number in PARTITIONS] == ends

        wait_for(is_here, seconds=60)
        assert owner() != killed.process.pid
        for number in PARTITIONS:
            assert stored(partition(environment, number)) == list(range(ends[number]))
