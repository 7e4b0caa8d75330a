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
from storage.entries.entry import MAGIC
from storage.entries.replicated import POSITION_PROPERTY
from storage.entries.source_position import position_of, with_position
from storage.errors import Unavailable
from storage.metadata.producer_sequences import ProducerSequences
from storage.metadata.stores import TopicStore
from storage.model import SourcePosition, SourceProgress
from storage.topic import Topic
from tests.frames import FrameParser, encoded
from tests.pulsar_entries import entry, metadata
from tests.unit.api.broker.serving.served_topic import POOLS, opened
from tests.unit.api.pulsar.fairness import Owner, receive, shared_state
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

    run_without_deadline = run_without_deadline_or_queue_limit = run_required = run


class Client(asyncio.Transport):
    """A client of the topic: it sends commands and keeps the answers."""

    def __init__(self, topic: PersistentTopic, **feature_flags: bool) -> None:
        super().__init__()
        self._parser = FrameParser()
        self.answers: list[BaseCommand] = []
        self._answered = asyncio.Event()
        context = SimpleNamespace(
            access=SimpleNamespace(verifier=None, needs_sql=lambda *_: False, require_any=lambda *_: None),
            settings=Settings(),
            max_message_size=5 << 20,
            clock=topic.clock,
            **shared_state(topic.clock, POOLS),
            server_version="test",
            topics=SimpleNamespace(get_or_open=self._topic_of(topic)),
        )
        self.connection = Connection(Owner(), cast(ServerContext, context), HANDLERS)
        self.connection.connection_made(self)
        connect = {"client_version": "t", "protocol_version": 20, "feature_flags": feature_flags}
        self.send(type=BaseCommand.CONNECT, connect=connect)

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
        receive(self.connection, b"".join(encoded(BaseCommand(**command), entry)))

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
def test_a_geo_replicator_without_positions_is_refused(bench: Workbench, topic: Topic, name: str) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            client = Client(served)
            client.request_producer(name)
            error = (await client.answer(BaseCommand.ERROR)).error
            assert error.error == ServerError.NotAllowedError
            assert name in error.message
            assert "positions" in error.message
            assert not len(served.producers)

    asyncio.run(main())


REPLICATOR = "pulsar.repl.us-east-->compactor"


class Replicator(Client):
    """A client of a broker that sends positions."""

    def __init__(self, topic: PersistentTopic, cluster: str = "us-east") -> None:
        super().__init__(topic, supports_repl_dedup_by_lid_and_eid=True)
        self._cluster = cluster

    async def create(self, **fields: object) -> None:
        self.request_producer(REPLICATOR.replace("us-east", self._cluster), **fields)
        await self.answer(BaseCommand.PRODUCER_SUCCESS)

    def replicate(self, position: str, sequence_id: int = 7, **fields: Any) -> None:
        described = metadata(replicated_from=self._cluster, **fields)
        described.properties.add(key=POSITION_PROPERTY, value=position)
        send = {"producer_id": 1, "sequence_id": sequence_id, "marker": "marker_type" in fields}
        self.send(entry(described, position.encode()), type=BaseCommand.SEND, send=send)

    async def positions(self, count: int) -> list[tuple[int, int, bool]]:
        """Return the sequence ids of the first receipts, and whether their entries were stored, not duplicates."""
        async with asyncio.timeout(30):
            while len(self.receipts) < count:
                await asyncio.sleep(0)
        receipts = [command.send_receipt for command in self.answers if command.type == BaseCommand.SEND_RECEIPT]
        return [
            (receipt.sequence_id, receipt.highest_sequence_id, receipt.message_id.ledger_id < 1 << 63)
            for receipt in receipts
        ]


@pytest.mark.parametrize("deduplicates", [False, True])
def test_receipts_of_a_replicator_name_the_positions_at_the_source(
    bench: Workbench, topic: Topic, deduplicates: bool
) -> None:
    async def main() -> None:
        async with opened(bench, topic, deduplicates=deduplicates) as served:
            client = Replicator(served)
            connected = (await client.answer(BaseCommand.CONNECTED)).connected
            assert connected.feature_flags.supports_repl_dedup_by_lid_and_eid
            await client.create()
            for position in ("3:0", "3:1", "3:0"):
                client.replicate(position)
            client.replicate("3:2", sequence_id=5, marker_type=10)
            client.replicate("3:3")
            assert await client.positions(5) == [
                (3, 0, True), (3, 1, True), (3, 0, False), (5, 1 << 63, False), (3, 3, True),
            ]  # fmt: skip
            entries = served.tail.read(0) or []
            assert [message.payload for message in topic.messages()] == [b"3:0", b"3:1", b"3:3"]
            assert [dict(message.properties) for message in topic.messages()] == [{}] * 3
            assert [position_of(item.data) for item in entries] == [(3, 0), (3, 1), (3, 3)][: len(entries)]

    asyncio.run(main())


@pytest.mark.parametrize("deduplicates", [False, True])
def test_two_clusters_replicate_to_one_topic(bench: Workbench, topic: Topic, deduplicates: bool) -> None:
    """Each has its positions, which the other has, too; both go back when they connect to the next service."""
    receipts: list[list[tuple[int, int, bool]]] = []

    async def life(*positions: str) -> None:
        async with opened(bench, topic, deduplicates=deduplicates) as served:
            clients = [Replicator(served, cluster) for cluster in ("us-east", "eu-west")]
            for client in clients:
                await client.create()
            for position in positions:
                for client in clients:
                    client.replicate(position)
            receipts.extend([await client.positions(len(positions)) for client in clients])

    asyncio.run(life("3:0", "3:1", "3:0"))
    asyncio.run(life("3:1", "4:0"))
    first, second = [(3, 0, True), (3, 1, True), (3, 0, False)], [(3, 1, False), (4, 0, True)]
    assert receipts == [first, first, second, second]
    payloads = [message.payload for message in topic.messages()]
    assert sorted(payloads) == [b"3:0", b"3:0", b"3:1", b"3:1", b"4:0", b"4:0"]


def test_a_source_learns_of_entries_that_a_restored_log_lacks(bench: Workbench, topic: Topic) -> None:
    """Its later entries are not taken until it begins again: then all come, in order."""

    async def main() -> None:
        async with opened(bench, topic) as served:
            client = Replicator(served)
            await client.create()
            client.replicate("3:0")
            await client.positions(1)
        known = {"us-east": SourceProgress(SourcePosition(5, 1), 200)}
        bench.metadata.producer_sequences.store(topic.record.id, ProducerSequences(9, None, known))
        async with opened(bench, topic) as served:
            client = Replicator(served)
            await client.create()
            client.replicate("5:2")
            client.replicate("5:3")
            await client.answer(BaseCommand.CLOSE_PRODUCER)
            client.request_producer(REPLICATOR, request_id=2, epoch=1)
            error = (await client.answer(BaseCommand.ERROR)).error
            assert "entries after position 3:0 up to position 5:1 are missing" in error.message
            assert "replicationStartAt=earliest" in error.message
            bench.clock.advance(10_000)
            client.answers.clear()
            await client.create(request_id=3, epoch=2)
            for position in ("3:0", "3:1", "5:2"):
                client.replicate(position)
            assert await client.positions(3) == [(3, 0, False), (3, 1, True), (5, 2, True)]
            assert [message.payload for message in topic.messages()] == [b"3:0", b"3:1", b"5:2"]

    asyncio.run(main())


def test_an_entry_that_cannot_be_stored_stops_its_replicator(bench: Workbench, topic: Topic) -> None:
    """No later entry is stored before it, and its next creation is refused with the reason; others go on."""

    async def main() -> None:
        async with opened(bench, topic) as served:
            client, other = Replicator(served), Client(served)
            await client.create()
            other.request_producer("other")
            client.replicate("3:0")
            client.replicate("nonsense")
            client.replicate("3:2")
            await client.answer(BaseCommand.CLOSE_PRODUCER)
            client.request_producer(REPLICATOR, request_id=2, epoch=1)
            error = (await client.answer(BaseCommand.ERROR)).error
            assert "'nonsense'" in error.message
            await other.answer(BaseCommand.PRODUCER_SUCCESS)
            other.publish("other", 0)
            await other.answer(BaseCommand.SEND_RECEIPT)
            bench.clock.advance(10_000)
            client.answers.clear()
            await client.create(request_id=3, epoch=2)
            client.replicate("3:1")
            await client.positions(1)
            payloads = [message.payload for message in topic.messages()]
            assert [payload for payload in payloads if payload != b"3:0"] == [b"v", b"3:1"]

    asyncio.run(main())


@pytest.mark.parametrize("size", [9_000, 12_000])
def test_an_entry_that_the_log_refuses_stops_its_replicator(bench: Workbench, topic: Topic, size: int) -> None:
    """It is larger than the topic allows, with 10 KiB of metadata on top."""
    bench.set_policies(topic, **{"max.message.bytes": 1})

    async def main() -> None:
        async with opened(bench, topic) as served:
            client = Replicator(served)
            await client.create()
            client.replicate("3:0")
            client.replicate("3:1", schema_version=b"x" * size)
            client.replicate("3:2")
            if size < 10 << 10:
                assert [place[:2] for place in await client.positions(3)] == [(3, 0), (3, 1), (3, 2)]
                return
            await client.answer(BaseCommand.CLOSE_PRODUCER)
            client.request_producer(REPLICATOR, request_id=2, epoch=1)
            assert "larger than the limit" in (await client.answer(BaseCommand.ERROR)).error.message
            assert [message.payload for message in topic.messages()] == [b"3:0"]

    asyncio.run(main())


def test_a_damaged_entry_is_sent_again(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            client = Replicator(served)
            await client.create()
            client.send(MAGIC + bytes(20), type=BaseCommand.SEND, send={"producer_id": 1, "sequence_id": 1})
            await client.answer(BaseCommand.CLOSE_PRODUCER)
            client.answers.clear()
            await client.create(request_id=2, epoch=1)

    asyncio.run(main())


@pytest.mark.parametrize(
    "name",
    ["__change_events", "__change_events-partition-0", "__transaction_buffer_snapshot", "t-s__transaction_pending_ack"],
)
def test_a_system_topic_of_a_source_is_left_out(bench: Workbench, topic: Topic, name: str) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            client = Replicator(served)
            client.request_producer(REPLICATOR, topic=f"persistent://public/default/{name}")
            error = (await client.answer(BaseCommand.ERROR)).error
            assert (error.error, name in error.message) == (ServerError.NotAllowedError, True)
            client.request_producer("a", topic=f"persistent://public/default/{name}", request_id=2, producer_id=2)
            await client.answer(BaseCommand.PRODUCER_SUCCESS)

    asyncio.run(main())


def test_a_producer_cannot_pose_as_a_source(bench: Workbench, topic: Topic) -> None:
    """A position that it puts in front of its entry does not count."""

    async def main() -> None:
        async with opened(bench, topic) as served:
            client = Client(served)
            client.request_producer("a")
            await client.answer(BaseCommand.PRODUCER_SUCCESS)
            forged = with_position(entry(metadata(replicated_from="us-east"), b"v"), SourcePosition(99, 0))
            client.send(forged, type=BaseCommand.SEND, send={"producer_id": 1, "sequence_id": 1})
            await client.answer(BaseCommand.SEND_RECEIPT)
            (scan,) = topic.producer_sequences(0)
            assert not scan.sources

    asyncio.run(main())


def test_a_number_used_again_with_a_higher_epoch_ends_its_earlier_producer(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            client = Client(served)
            for epoch, name in enumerate("ABC"):
                client.answers.clear()
                client.request_producer(name, epoch=epoch)
                await client.answer(BaseCommand.PRODUCER_SUCCESS)
                assert [producer.name for producer in served.producers.active] == [name]
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
