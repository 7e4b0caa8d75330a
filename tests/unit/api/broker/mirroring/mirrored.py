"""A mirror in this process: a broker of Kafka in a thread, a store, and the service of mirrors that runs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from api.broker.broker import Broker
from api.broker.mirroring import operations, service, session
from api.broker.mirroring.service import MirrorService
from api.broker.mirroring.source import MirrorOptions, MirrorSource
from api.broker.opening import open_broker
from api.broker.serving.topic_registry import TopicRegistry
from api.observability.logs import LogThrottle
from api.settings.settings import Settings
from storage.ledger.seek import SeekOffset
from storage.model import TopicName
from storage.topic import Topic
from tests.kafka_batches import Record
from tests.kafka_server import FakeKafka, FakeTopic, Log, fake_kafka

TOPIC = TopicName.parse("users")


def records(first: int, count: int) -> list[Record]:
    """Records with consecutive offsets; each value is its offset."""
    return [Record(offset, 1_700_000_000_000 + offset, b"k", b"%d" % offset) for offset in range(first, first + count)]


class Mirrored:
    """A mirror of `kafka.topic`, which `serving` runs."""

    def __init__(self, broker: Broker, kafka: FakeKafka) -> None:
        self.broker = broker
        self.kafka = kafka
        self.mirrors = broker.environment.metadata.mirrors

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Serving]:
        """Run the mirrors meanwhile."""
        registry = TopicRegistry(self.broker, LogThrottle(self.broker.environment.clock, logging.getLogger()))
        registry.register_callbacks()
        mirroring = MirrorService(self.broker, registry)
        try:
            yield Serving(mirroring, registry)
        finally:
            await mirroring.close()
            registry.refuse_new_topics()
            await registry.close()

    async def mirror_to_end(self) -> None:
        """Mirror all that the source has."""
        async with self.serving() as serving:
            await serving.until(lambda: serving.mirroring.is_at_end(TOPIC))

    def stored(self, partition: int = 0) -> list[int]:
        """The offsets in Kafka of the messages of a partition here."""
        environment = self.broker.environment
        reader = Topic(environment, environment.metadata.topics.get(TOPIC.of_partition(partition))).snapshot_reader()
        return [number for table in reader.raw(SeekOffset(0)) for number in table.column("sequence_id").to_pylist()]


class Serving:
    """The service of mirrors while it runs."""

    def __init__(self, mirroring: MirrorService, registry: TopicRegistry) -> None:
        self.mirroring = mirroring
        self.registry = registry

    async def until(self, done: Callable[[], object]) -> None:
        """Let time pass for the mirrors until something is so."""
        async with asyncio.timeout(10):
            while not done():
                await self.mirroring.tick()
                await asyncio.sleep(0.01)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A broker with a topic of one partition."""
    with fake_kafka(FakeTopic("users", [Log()])) as broker:
        yield broker


@contextmanager
def opened(data: Path, kafka: FakeKafka, *, is_new: bool = True) -> Iterator[Mirrored]:
    """Open a store; a new one gets a mirror of `kafka.topic`."""
    settings = Settings(data=str(data), spark_master="in-process", compaction_automatic=False)
    with open_broker(settings) as broker, broker.running_without_compactions():
        if is_new:
            broker.environment.metadata.tenancy.ensure_namespace(TOPIC)
            operations.add(broker.environment, MirrorSource.parse(kafka.url, MirrorOptions()), TOPIC)
        yield Mirrored(broker, kafka)


@pytest.fixture
def mirrored(tmp_path: Path, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirrored]:
    """A mirror that tries again at once."""
    hurry(monkeypatch)
    with opened(tmp_path / "data", kafka) as mirror:
        yield mirror


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mirrors try again, and report, at once."""
    for module, name in (
        (service, "_FIRST_RETRY_SECONDS"),
        (service, "_LAST_RETRY_SECONDS"),
        (service, "REPORT_SECONDS"),
        (session, "_TAKE_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.01)
