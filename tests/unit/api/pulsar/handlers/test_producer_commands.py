"""Answers to PRODUCER and SEND, frame by frame, over a real topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from api.broker.serving.topic import PersistentTopic
from api.broker.threads import Pools, WaitsFor
from api.pulsar import pending_requests, session
from api.pulsar.connection import Connection
from api.pulsar.context import ServerContext
from api.pulsar.handlers.table import HANDLERS
from api.pulsar.pulsar_api_pb2 import BaseCommand, ProducerAccessMode, ServerError
from api.settings.settings import Settings
from storage.entries.encode import encode_message
from storage.errors import Unavailable
from storage.metadata.stores import TopicStore
from storage.topic import Topic
from tests.frames import FrameParser, encoded
from tests.unit.api.broker.serving.served_topic import POOLS, opened
from tests.unit.api.pulsar.fairness import Owner, shared_state
from tests.workbench import Workbench


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no client answer a PING, and threads append all entries."""
    monkeypatch.setattr(session, "LIVENESS_SECONDS", 0)
    monkeypatch.setattr("api.broker.serving.topic.LOOP_ENTRIES", 0)


class GatedPool:
    """Log threads that append only while the gate is open."""

    size = 1

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await self.gate.wait()
        return work(*arguments)

    run_without_deadline = run_queued = run_required = run


class Client(asyncio.Transport):
    """A client of the topic: it sends commands and keeps the answers."""

    def __init__(self, topic: PersistentTopic) -> None:
        super().__init__()
        self._parser = FrameParser()
        self.answers: list[BaseCommand] = []
        self._answered = asyncio.Event()
        context = SimpleNamespace(
            access=SimpleNamespace(verifier=None, needs_sql=lambda *_: False, require=lambda *_: None),
            settings=Settings(),
            max_message_size=5 << 20,
            clock=topic.clock,
            **shared_state(topic.clock, POOLS),
            server_version="test",
            topics=SimpleNamespace(get_or_open=self._topic_of(topic)),
        )
        self.connection = Connection(Owner(), cast(ServerContext, context), HANDLERS)
        self.connection.connection_made(self)
        self.send(type=BaseCommand.CONNECT, connect={"client_version": "t", "protocol_version": 20})

    @staticmethod
    def _topic_of(topic: PersistentTopic) -> Callable[..., Any]:
        async def find(*_: object) -> PersistentTopic:
            return topic

        return find

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.answers += [frame.command for frame in self._parser.feed(bytes(data))]
        self._answered.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def send(self, entry: bytes = b"", **command: object) -> None:
        self.connection.data_received(b"".join(encoded(BaseCommand(**command), entry)))

    def request_producer(self, name: str, **fields: object) -> None:
        producer = {"topic": "persistent://public/default/t", "producer_id": 1, "request_id": 1, "producer_name": name}
        self.send(type=BaseCommand.PRODUCER, producer=producer | fields)

    async def answer(self, kind: int) -> BaseCommand:
        """Return the first answer of that type, when it has come."""
        async with asyncio.timeout(30):
            while True:
                for command in self.answers:
                    if command.type == kind:
                        return command
                self._answered.clear()
                await self._answered.wait()

    async def last_sequence_id(self) -> int:
        return (await self.answer(BaseCommand.PRODUCER_SUCCESS)).producer_success.last_sequence_id

    def publish(self, name: str, sequence_id: int) -> None:
        entry = encode_message(b"k", b"v", producer=name, sequence_id=sequence_id, publish_time=1)
        send = {"producer_id": 1, "sequence_id": sequence_id, "num_messages": 1}
        self.send(entry, type=BaseCommand.SEND, send=send)

    @property
    def receipts(self) -> list[tuple[int, bool]]:
        """The sequence id of each receipt, and whether its entry was stored, not a duplicate."""
        receipts = [command.send_receipt for command in self.answers if command.type == BaseCommand.SEND_RECEIPT]
        return [(receipt.sequence_id, receipt.message_id.entry_id < 1 << 63) for receipt in receipts]


@asynccontextmanager
async def deduplicating(bench: Workbench, storage: Topic) -> AsyncIterator[tuple[PersistentTopic, GatedPool]]:
    """The topic, which deduplicates, and the pool through which it appends."""
    pool = GatedPool()
    pools = cast(Pools, {**POOLS, WaitsFor.LOG: pool})
    async with opened(bench, storage, deduplicates=True, pools=pools) as topic:
        yield topic, pool


async def _turns() -> None:
    """Let all tasks run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_producer_that_reconnects_learns_of_entries_that_are_still_being_appended(
    bench: Workbench, topic: Topic
) -> None:
    async def main() -> None:
        async with deduplicating(bench, topic) as (served, pool):
            first = Client(served)
            first.request_producer("A")
            assert await first.last_sequence_id() == -1
            pool.gate.clear()
            first.publish("A", 0)
            await _turns()  # it is being appended
            first.connection.connection_lost(None)
            second = Client(served)
            second.request_producer("A")
            await _turns()
            pool.gate.set()
            assert await second.last_sequence_id() == 0
            second.publish("A", 1)
            await second.answer(BaseCommand.SEND_RECEIPT)
            assert second.receipts == [(1, True)]

    asyncio.run(main())


def test_a_producer_of_another_name_does_not_wait_for_the_queue(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with deduplicating(bench, topic) as (served, pool):
            first, second = Client(served), Client(served)
            first.request_producer("A")
            assert await first.last_sequence_id() == -1
            pool.gate.clear()
            first.publish("A", 0)
            second.request_producer("B")
            assert await second.last_sequence_id() == -1
            pool.gate.set()

    asyncio.run(main())


def test_a_producer_whose_epoch_cannot_be_stored_is_refused_and_holds_up_no_other(
    bench: Workbench, topic: Topic
) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            first, second = Client(served), Client(served)
            with patch.object(
                TopicStore, "raise_producer_epoch", side_effect=Unavailable("the database hangs", "wait")
            ):
                first.request_producer("A", producer_access_mode=ProducerAccessMode.ExclusiveAccess)
                assert (await first.answer(BaseCommand.ERROR)).error.error == ServerError.ServiceNotReady
            second.request_producer("B", producer_access_mode=ProducerAccessMode.ExclusiveAccess)
            success = (await second.answer(BaseCommand.PRODUCER_SUCCESS)).producer_success
            assert success.topic_epoch == bench.metadata.topics.producer_epoch(topic.record.id)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["pulsar.repl.us-east", "pulsar.repl.us-east-->compactor"])
def test_a_geo_replicator_is_refused(bench: Workbench, topic: Topic, name: str) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            client = Client(served)
            client.request_producer(name)
            error = (await client.answer(BaseCommand.ERROR)).error
            assert error.error == ServerError.NotAllowedError
            assert name in error.message
            assert "replication" in error.message
            assert not len(served.producers)

    asyncio.run(main())


def test_a_number_used_again_with_a_higher_epoch_ends_its_earlier_producer(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            client = Client(served)
            for epoch, name in enumerate("ABC"):
                client.answers.clear()
                client.request_producer(name, epoch=epoch)
                await client.answer(BaseCommand.PRODUCER_SUCCESS)
                assert [producer.name for producer in served.producers.all] == [name]
            client.connection.connection_lost(None)
            assert not len(served.producers)
            assert served.idle_since is not None

    asyncio.run(main())


def test_a_close_that_is_refused_changes_nothing(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            client = Client(served)
            client.request_producer("A")
            await client.answer(BaseCommand.PRODUCER_SUCCESS)
            with monkeypatch.context() as full:
                full.setattr(pending_requests, "MAX_OF_CONNECTION", 0)
                client.send(type=BaseCommand.CLOSE_PRODUCER, close_producer={"producer_id": 1, "request_id": 2})
            assert (await client.answer(BaseCommand.ERROR)).error.error == ServerError.TooManyRequests
            client.publish("A", 0)
            await client.answer(BaseCommand.SEND_RECEIPT)
            client.connection.connection_lost(None)
            assert not len(served.producers)

    asyncio.run(main())


def test_the_initial_subscription_of_a_producer_begins_at_the_first_message(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["a", "b"]) as served:
            client = Client(served)
            client.request_producer("A", initial_subscription_name="s")
            await client.answer(BaseCommand.PRODUCER_SUCCESS)
            assert bench.metadata.cursors.get(topic.record.id, "s").mark_delete is None

    asyncio.run(main())
