"""Access modes of producers, and what becomes of those that wait or are over a quota."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from api.gateway.commands import Refused
from api.gateway.connection import Connection
from api.gateway.consumers import Consumer
from api.gateway.producers import Producer
from api.gateway.pulsar_api_pb2 import CommandProducer, CommandSubscribe, ProducerAccessMode, ServerError
from api.gateway.topics import PersistentTopic
from storage.topic import Topic
from tests.unit.api.gateway.served_topic import opened
from tests.workbench import Workbench

SHARED, EXCLUSIVE = ProducerAccessMode.SharedAccess, ProducerAccessMode.ExclusiveAccess
WAITING, FENCING = ProducerAccessMode.WaitForExclusive, ProducerAccessMode.ExclusiveWithFencing


class ClosingConnection:
    """Notes which producers are sent away."""

    def __init__(self) -> None:
        self.closed: list[Producer] = []

    def close_producer(self, producer: Producer) -> None:
        self.closed.append(producer)
        producer.topic.remove_producer(producer)


def producer(topic: PersistentTopic, name: str, mode: ProducerAccessMode) -> tuple[Producer, CommandProducer]:
    wish = CommandProducer(topic=str(topic.name), producer_id=1, request_id=1, producer_access_mode=mode)
    return Producer(cast(Connection, ClosingConnection()), topic, wish, name), wish


def add(topic: PersistentTopic, name: str, mode: ProducerAccessMode) -> tuple[Producer, asyncio.Future[int] | None]:
    found, wish = producer(topic, name, mode)
    return found, topic.producers.add(found, wish)


def refusal_of(topic: PersistentTopic, name: str, mode: ProducerAccessMode) -> int:
    with pytest.raises(Refused) as refused:
        add(topic, name, mode)
    return refused.value.error


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
        assert refusal_of(topic, "b", SHARED) == ServerError.ProducerBusy
        assert refusal_of(topic, "c", EXCLUSIVE) == ServerError.ProducerFenced
        for other in topic.producers.all:
            topic.producers.remove(other)
        add(topic, "c", EXCLUSIVE)
        assert refusal_of(topic, "a", SHARED) == ServerError.ProducerBusy
        assert shared.is_closed

    run(test)


def test_one_that_waits_gets_its_turn_and_one_that_has_gone_does_not(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        first, none = add(topic, "a", EXCLUSIVE)
        assert none is None
        gone, its_turn = add(topic, "b", WAITING)
        last, turn = add(topic, "c", WAITING)
        assert its_turn is not None
        assert turn is not None
        topic.producers.remove(gone)
        assert its_turn.cancelled()
        before = topic.producers.epoch
        topic.producers.remove(first)
        assert before is not None
        assert await turn > before
        assert topic.producers.all == [last]

    run(test)


def test_fencing_sends_all_others_away(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        first, _ = add(topic, "a", EXCLUSIVE)
        _, turn = add(topic, "b", WAITING)
        last, _ = add(topic, "c", FENCING)
        assert cast(Any, first.connection).closed == [first]
        assert turn is not None
        with pytest.raises(Refused):
            await turn
        assert topic.producers.all == [last]

    run(test)


def test_a_topic_that_was_given_up_meanwhile_takes_nobody(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        await topic.close()
        assert refusal_of(topic, "a", SHARED) == ServerError.ServiceNotReady
        wish = CommandSubscribe(topic=str(topic.name), subscription="s", sub_type=0, consumer_id=1, request_id=1)
        consumer = Consumer(cast(Connection, ClosingConnection()), wish, -1, 0)
        with pytest.raises(Refused, match="look it up again"):
            await topic.subscribe(consumer, wish)

    run(test)


def test_producers_are_sent_away_while_the_topic_is_over_its_quota(run: Any) -> None:
    async def test(topic: PersistentTopic) -> None:
        sent_away, _ = add(topic, "a", SHARED)
        await topic.tick(1)
        assert topic.producers.all == [sent_away]
        topic.over_quota = lambda: cast(Any, "over")
        await topic.tick(1)
        assert topic.producers.all == []
        assert cast(Any, sent_away.connection).closed == [sent_away]

    run(test)
