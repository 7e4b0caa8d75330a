"""Access modes of producers, and what becomes of those that wait or are over a quota."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest

from api.broker.refusals import InvalidTopicEpoch, ProducerBusy, ProducerFenced, TopicNotServed
from api.broker.serving import producer as producer_module, topic as topic_module
from api.broker.serving.channel import Receipt
from api.broker.serving.consumer import Consumer, ConsumerOptions, SubscriptionType
from api.broker.serving.position import SubscribeRequest
from api.broker.serving.producer import AccessMode, Producer, ProducerOptions
from api.broker.serving.publishing import METADATA_BYTES, QueuedEntry
from api.broker.serving.topic import PersistentTopic
from storage.entries.encode import encode_message
from storage.errors import ChecksumMismatch, CompactorError, Fenced, InvalidRecord
from storage.topic import Topic
from tests.pulsar_entries import entry as pulsar_entry, metadata
from tests.unit.api.broker.serving.served_topic import opened
from tests.workbench import Workbench

SHARED, EXCLUSIVE = AccessMode.SHARED, AccessMode.EXCLUSIVE
WAITING, FENCING = AccessMode.WAIT_FOR_EXCLUSIVE, AccessMode.EXCLUSIVE_WITH_FENCING


class NotingChannel:
    """The only producer of a connection; it notes what its client is sent."""

    address, client_version = "127.0.0.1:1", "test"

    def __init__(self) -> None:
        self.is_disconnected = False
        self.receipts: list[int] = []
        self.errors: list[type[Exception]] = []
        self.waiting = 0

    @property
    def connection(self) -> NotingChannel:
        return self

    def add_queued(self, entries: int, size: int) -> None:
        self.waiting += entries

    def send_receipts(self, receipts: Sequence[Receipt]) -> None:
        self.receipts += [receipt.sequence_id for receipt in receipts]

    def send_error(self, sequence_id: int, error: InvalidRecord) -> None:
        self.errors.append(type(error))

    def disconnect(self) -> None:
        self.is_disconnected = True

    async def close_unless_alive(self) -> bool:
        return True


def add(
    topic: PersistentTopic, name: str, mode: AccessMode, topic_epoch: int | None = None
) -> tuple[Producer, asyncio.Future[None] | None]:
    producer = topic.new_producer(NotingChannel(), ProducerOptions(name, 1, access_mode=mode, topic_epoch=topic_epoch))
    return producer, topic.add_producer(producer)


def channel_of(producer: Producer) -> NotingChannel:
    assert isinstance(producer.channel, NotingChannel)
    return producer.channel


async def epoch_of(topic: PersistentTopic, name: str, mode: AccessMode, topic_epoch: int | None = None) -> int:
    """Add an exclusive producer, confirm it and remove it; return its epoch."""
    producer, _ = add(topic, name, mode, topic_epoch)
    await topic.producers.store_epoch(producer)
    topic.producers.remove(producer)
    assert producer.topic_epoch is not None
    return producer.topic_epoch


def refusal_of(
    topic: PersistentTopic, name: str, mode: AccessMode, topic_epoch: int | None = None
) -> type[CompactorError]:
    with pytest.raises(CompactorError) as refusal:
        add(topic, name, mode, topic_epoch)
    return type(refusal.value)


@pytest.fixture
def run(bench: Workbench, topic: Topic) -> Callable[[Callable[[PersistentTopic], Coroutine[Any, Any, None]]], None]:
    """Runs a test with the topic open."""

    def runs(test: Callable[[PersistentTopic], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with opened(bench, topic) as served:
                await test(served)

        asyncio.run(main())

    return runs


def test_who_may_be_beside_whom(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        shared, _ = add(topic, "a", SHARED)
        add(topic, "b", SHARED)
        assert refusal_of(topic, "b", SHARED) is ProducerBusy
        assert refusal_of(topic, "c", EXCLUSIVE) is ProducerFenced
        for other in topic.producers.active:
            topic.producers.remove(other)
        add(topic, "c", EXCLUSIVE)
        assert refusal_of(topic, "a", SHARED) is ProducerBusy
        assert shared.is_closed

    run(test)


def test_one_that_waits_gets_its_turn_and_one_that_has_gone_does_not(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        first, none = add(topic, "a", EXCLUSIVE)
        assert none is None
        leaving, its_turn = add(topic, "b", WAITING)
        last, turn = add(topic, "c", WAITING)
        assert its_turn is not None
        assert turn is not None
        topic.producers.remove(leaving)
        assert its_turn.cancelled()
        topic.producers.remove(first)
        await turn
        assert first.topic_epoch is not None
        assert last.topic_epoch is not None
        assert last.topic_epoch > first.topic_epoch
        assert topic.producers.active == [last]

    run(test)


def test_fencing_sends_all_others_away(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        first, _ = add(topic, "a", EXCLUSIVE)
        _, turn = add(topic, "b", WAITING)
        last, _ = add(topic, "c", FENCING)
        assert channel_of(first).is_disconnected
        assert turn is not None
        with pytest.raises(ProducerFenced):
            await turn
        assert topic.producers.active == [last]

    run(test)


def test_a_fenced_producer_stays_fenced_where_the_topic_is_opened_next(bench: Workbench, topic: Topic) -> None:
    async def first_service() -> tuple[int, int]:
        async with opened(bench, topic) as served:
            fenced = await epoch_of(served, "a", EXCLUSIVE)
            rightful = await epoch_of(served, "b", FENCING)
            assert refusal_of(served, "a", EXCLUSIVE, fenced) is ProducerFenced
            return fenced, rightful

    async def second_service(fenced: int, rightful: int) -> None:
        async with opened(bench, topic) as served:
            for mode in (EXCLUSIVE, WAITING, FENCING):
                assert refusal_of(served, "a", mode, fenced) is ProducerFenced
            assert await epoch_of(served, "b", EXCLUSIVE, rightful) == rightful
            assert await epoch_of(served, "c", EXCLUSIVE) > rightful

    fenced, rightful = asyncio.run(first_service())
    bench.clock.advance(-60_000)  # the clock of the next service may be late
    asyncio.run(second_service(fenced, rightful))


def test_an_exclusive_producer_is_none_whose_epoch_another_service_has_passed(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            producer, _ = add(served, "a", EXCLUSIVE)
            assert producer.topic_epoch is not None
            bench.metadata.topics.raise_producer_epoch(topic.record.id, producer.topic_epoch + 1)
            with pytest.raises(Fenced):
                await served.producers.store_epoch(producer)

    asyncio.run(main())


def test_a_topic_epoch_that_no_service_gave_is_refused(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        assert refusal_of(topic, "a", EXCLUSIVE, (1 << 64) - 1) is InvalidTopicEpoch

    run(test)


def test_a_topic_that_was_given_up_meanwhile_takes_nobody(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        await topic.close()
        assert refusal_of(topic, "a", SHARED) is TopicNotServed
        consumer = Consumer(cast(Any, None), ConsumerOptions("c", SubscriptionType.EXCLUSIVE), 0)
        with pytest.raises(TopicNotServed, match="look it up again"):
            await topic.find_or_create_subscription(consumer, SubscribeRequest("s"))

    run(test)


def test_producers_that_wait_for_their_turn_are_sent_away_when_the_topic_closes(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        exclusive, _ = add(topic, "a", EXCLUSIVE)
        turns = [add(topic, name, WAITING)[1] for name in ("b", "c")]
        await topic.close()
        assert [type(turn.exception()) for turn in turns if turn is not None] == [TopicNotServed, TopicNotServed]
        assert channel_of(exclusive).is_disconnected
        assert topic.producers.active == []

    run(test)


def test_a_name_is_taken_over_by_the_same_producer_of_a_connection_alone(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        channel = NotingChannel()
        first = topic.new_producer(channel, ProducerOptions("a", producer_id=1, epoch=0))
        topic.add_producer(first)
        for producer_id, epoch in ((2, 1), (1, 0)):
            with pytest.raises(ProducerBusy):
                topic.add_producer(topic.new_producer(channel, ProducerOptions("a", producer_id, epoch)))
        again = topic.new_producer(channel, ProducerOptions("a", producer_id=1, epoch=1))
        topic.add_producer(again)
        assert topic.producers.active == [again]
        assert first.is_closed

    run(test)


def test_producers_are_sent_away_while_the_topic_is_over_its_quota(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        sent_away, _ = add(topic, "a", SHARED)
        await topic.tick(1)
        assert topic.producers.active == [sent_away]
        topic.over_quota = lambda: cast(Any, "over")
        await topic.tick(1)
        assert topic.producers.active == []
        assert channel_of(sent_away).is_disconnected

    run(test)


def test_what_can_never_be_taken_is_refused_and_the_rest_goes_on(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        sender, _ = add(topic, "a", SHARED)
        entries = [encode_message(b"k", b"v", producer="a", sequence_id=n, publish_time=1) for n in range(3)]
        broken = entries[0][:-1] + b"w"
        for number, entry in enumerate((entries[0], b"no entry", entries[2])):
            topic.publishing.put(QueuedEntry(sender, number, 0, 1, entry))
        await topic.publishing.drain()
        client = channel_of(sender)
        assert client.receipts == [0, 2]
        assert client.errors == [InvalidRecord]
        topic.publishing.put(QueuedEntry(sender, 3, 0, 1, broken))
        topic.publishing.put(QueuedEntry(sender, 4, 0, 1, entries[2]))
        await topic.publishing.drain()
        assert client.errors[1:] == [ChecksumMismatch]
        assert channel_of(sender).is_disconnected

    run(test)


def test_a_topic_that_closes_sends_receipts_before_it_disconnects(run: Any) -> None:
    """Otherwise the client sends again what is stored."""

    async def test(topic: PersistentTopic) -> None:
        sender, _ = add(topic, "a", SHARED)
        channel, connected = channel_of(sender), []
        receive = channel.send_receipts

        def send_receipts(receipts: Sequence[Receipt]) -> None:
            connected.append(not channel.is_disconnected)
            receive(receipts)

        vars(channel)["send_receipts"] = send_receipts
        entries = [encode_message(b"k", b"v", producer="a", sequence_id=n, publish_time=1) for n in range(4)]
        for number in range(3):
            topic.publishing.put(QueuedEntry(sender, number, 0, 1, entries[number]))
        close = asyncio.create_task(topic.close())
        await asyncio.sleep(0)
        topic.publishing.put(QueuedEntry(sender, 3, 0, 1, entries[3]))
        await close
        assert channel.receipts == [0, 1, 2]
        assert connected
        assert all(connected)
        assert channel.is_disconnected

    run(test)


def test_an_entry_with_large_metadata_is_checked_by_the_log(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        sender, _ = add(topic, "a", SHARED)
        described = metadata()
        described.properties.add(key="k", value="v" * METADATA_BYTES)
        data = pulsar_entry(described)
        for number, entry in enumerate((data, data[:-1] + b"w")):
            topic.publishing.put(QueuedEntry(sender, number, 0, 1, entry))
        await topic.publishing.drain()
        assert (channel_of(sender).receipts, channel_of(sender).errors) == ([0], [ChecksumMismatch])

    run(test)


def test_a_wrong_checksum_stops_no_other_producer_of_the_group(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        (broken, _), (other, _) = add(topic, "a", SHARED), add(topic, "b", SHARED)
        entry = encode_message(b"k", b"v", producer="a", sequence_id=0, publish_time=1)
        topic.publishing.put(QueuedEntry(broken, 0, 0, 1, entry[:-1] + b"w"))
        topic.publishing.put(QueuedEntry(broken, 1, 0, 1, entry))
        for number in range(2):
            topic.publishing.put(QueuedEntry(other, number, 0, 1, entry))
        await topic.publishing.drain()
        assert channel_of(other).receipts == [0, 1]
        assert not channel_of(other).is_disconnected
        assert channel_of(broken).receipts == []
        assert channel_of(broken).is_disconnected

    run(test)


def test_a_topic_refuses_more_producers_than_the_limit(bench: Workbench, topic: Topic) -> None:
    """Pulsar's maxProducersPerTopic. A producer that replaces its earlier self is not one more."""

    async def main() -> None:
        async with opened(bench, topic, max_producers=2) as served:
            channel = NotingChannel()
            for name, epoch in (("a", 0), ("b", 0), ("b", 1)):
                served.add_producer(served.new_producer(channel, ProducerOptions(name, epoch=epoch)))
            with pytest.raises(ProducerBusy, match="reached max producers limit"):
                add(served, "c", SHARED)
            served.remove_producer(served.producers.active[0])
            add(served, "c", SHARED)

    asyncio.run(main())


@pytest.mark.parametrize(("mode", "closes"), [(SHARED, False), (WAITING, False), (WAITING, True)])
def test_many_producers_learn_in_turns_of_the_loop_that_another_takes_the_topic_or_it_closes(
    run: Any, monkeypatch: pytest.MonkeyPatch, mode: AccessMode, closes: bool
) -> None:
    """4,000 that waited for their turn occupied the service for 0.5 s."""
    monkeypatch.setattr(producer_module, "PRODUCERS_AT_ONCE", 10)

    async def test(topic: PersistentTopic) -> None:
        others = [add(topic, f"p{number}", mode) for number in range(50)]
        informed = [0]

        def note() -> None:
            informed.append(
                sum(channel_of(other).is_disconnected or (turn is not None and turn.done()) for other, turn in others)
            )

        if closes:
            work = asyncio.create_task(topic.close())
        else:
            last, _ = add(topic, "last", FENCING)
            assert topic.producers.active == [last]
            note()
        for _ in range(10):
            await asyncio.sleep(0)
            note()
        assert max(after - before for before, after in pairwise(informed)) <= 11
        assert informed[-1] == 50
        assert all(turn.exception() for _, turn in others if turn is not None)
        if closes:
            await work

    run(test)


def test_a_producer_that_leaves_while_others_are_informed_stops_nothing(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "PRODUCERS_AT_ONCE", 1)

    async def test(topic: PersistentTopic) -> None:
        turns = [turn for number in range(5) if (turn := add(topic, f"p{number}", WAITING)[1]) is not None]
        add(topic, "last", FENCING)
        turns[1].cancel()  # as the task that awaits it does when its connection ends
        for _ in range(10):
            await asyncio.sleep(0)
        assert [turn.cancelled() for turn in turns] == [False, True, False, False]
        assert all(isinstance(turn.exception(), ProducerFenced) for turn in turns if not turn.cancelled())

    run(test)


@pytest.mark.parametrize("closes", [True, False])
def test_many_producers_are_disconnected_in_turns_of_the_loop(
    run: Any, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    monkeypatch.setattr(topic_module, "CLIENTS_AT_ONCE", 10)

    async def test(topic: PersistentTopic) -> None:
        for number in range(50):
            add(topic, f"p{number}", SHARED)
        topic.over_quota = lambda: cast(Any, "over")
        work = asyncio.create_task(topic.close() if closes else topic.tick(1))
        counts = [50]
        while not work.done():
            await asyncio.sleep(0)
            counts.append(len(topic.producers))
        assert max(before - after for before, after in pairwise(counts)) == 10
        assert counts[-1] == 0

    run(test)
