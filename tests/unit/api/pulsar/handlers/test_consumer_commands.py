"""Requests of consumers, in a session that only notes what is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from api.broker.serving.acknowledging import AckedEntry
from api.broker.serving.consumer import ConsumerOptions, SubscriptionType
from api.broker.serving.pending_acks import STEP_SLOTS
from api.broker.serving.position import SubscribeRequest
from api.broker.serving.topic import PersistentTopic
from api.pulsar.codec.requests import Ack, CloseConsumer
from api.pulsar.codec.responses import AckResponse, Response
from api.pulsar.handlers import consumers
from api.pulsar.handlers.consumers import ACKS_AT_ONCE
from api.pulsar.session import ConnectedConsumer, Session
from storage.entries.rebuild import DeliverableEntry
from storage.model import EARLIEST
from storage.topic import Topic
from tests.unit.api.broker.serving.consumers import entry
from tests.unit.api.broker.serving.served_topic import opened
from tests.workbench import Workbench


class NotingSession:
    """Holds, and tasks that were begun; it begins none when `is_full` is set."""

    def __init__(self) -> None:
        self.consumers: dict[int, ConnectedConsumer] = {}
        self.channel = self
        self.is_writable = True
        self.holds: set[str] = set()
        self.tasks: list[asyncio.Task[Any]] = []
        self.is_full = False

    def send(self, _: Response) -> None:
        pass

    def deliver(self, *_: object) -> None:
        pass

    def hold_requests(self, reason: str) -> None:
        self.holds.add(reason)

    def resume_requests(self, reason: str) -> None:
        self.holds.discard(reason)

    def cancel_creation(self, *_: object) -> None:
        pass

    def begin(self, _: object, work: Coroutine[Any, Any, Any]) -> bool:
        if self.is_full:
            work.close()
        else:
            self.tasks.append(asyncio.create_task(work))
        return not self.is_full


async def joined(session: NotingSession, topic: PersistentTopic) -> ConnectedConsumer:
    """Return a shared consumer of the session, number 1, that receives nothing yet."""
    options = ConsumerOptions("a", SubscriptionType.SHARED, 1)
    connected = ConnectedConsumer(cast(Session, session), topic, options, None)
    connected.subscription = await topic.find_or_create_subscription(
        connected.consumer, SubscribeRequest("s", start=EARLIEST)
    )
    session.consumers[1] = connected
    return connected


def test_many_acknowledgements_are_taken_in_pieces_and_nothing_overtakes_them(bench: Workbench, topic: Topic) -> None:
    """50,000 in one command held the event loop for 0.6 s."""

    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            session = NotingSession()
            connected = await joined(session, served)
            reading, subscription = connected.consumer, connected.subscription
            count = 3 * ACKS_AT_ONCE + 1
            for offset in range(count):
                subscription.deliver(reading, entry(offset), 1, offset, None)
            request = Ack(1, None, False, False, [AckedEntry(1, offset) for offset in range(count)])
            session.is_full = True
            consumers.ack(cast(Session, session), request)
            assert (len(reading.pending), session.holds) == (count, set()), "a refused request has no effect"
            session.is_full = False
            consumers.ack(cast(Session, session), request)
            assert (len(reading.pending), session.holds) == (count, {"acknowledging"})
            await asyncio.gather(*session.tasks)
            assert (len(reading.pending), session.holds) == (0, set())

    asyncio.run(main())


@pytest.mark.parametrize("event", ["disconnect", "seek", "restart"])
def test_all_entries_of_a_request_are_acknowledged_although_their_consumer_leaves(
    bench: Workbench, topic: Topic, event: str
) -> None:
    """The rest of the request was dropped, and yet it had a receipt. After a seek it is about the earlier position."""

    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            session = NotingSession()
            connected = await joined(session, served)
            subscription, count = connected.subscription, 3 * ACKS_AT_ONCE
            assert subscription.dispatcher is not None
            subscription.dispatcher.add(connected.consumer)
            for offset in range(count):
                subscription.deliver(connected.consumer, entry(offset), 1, offset, None)
            acks = [AckedEntry(1, offset) for offset in range(count)]
            consumers.ack(cast(Session, session), Ack(1, 7, False, False, acks))
            if event == "seek":
                await subscription.reset(None)
            elif event == "restart":  # the end of a seek, in the turn before the request's task
                subscription.restart()
            else:
                subscription.disconnect()
            assert bool(session.consumers) is (event == "restart")
            assert await asyncio.gather(*session.tasks) == [AckResponse(7, 1)]
            acknowledged = subscription.position.current.acknowledged_mask(0, count).bit_count()
            assert acknowledged == (count if event == "disconnect" else 0)

    asyncio.run(main())


def test_a_step_acknowledges_a_bounded_number_of_slots(bench: Workbench, topic: Topic) -> None:
    """X6: 809 bytes that acknowledged one message of each of 100 batches held the event loop for 2 s."""

    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            session = NotingSession()
            connected = await joined(session, served)
            reading, subscription = connected.consumer, connected.subscription
            messages, count = 1 << 18, 10
            for number in range(count):
                batch = DeliverableEntry(1, number, number * messages, messages, b"", (1 << messages) - 1, True)
                subscription.deliver(reading, batch, batch.live_mask, batch.offset, None)
            acknowledged = [0]

            def note(*_: object) -> None:
                acknowledged[-1] += 1

            subscription.position.current.acknowledge_slots = note  # type: ignore[method-assign]
            acks = [AckedEntry(1, number, -1, [1]) for number in range(count)]
            consumers.ack(cast(Session, session), Ack(1, None, False, False, acks))
            while not all(task.done() for task in session.tasks):
                acknowledged.append(0)
                await asyncio.sleep(0)
            assert sum(acknowledged) == count
            assert max(acknowledged) * messages <= STEP_SLOTS + messages
            assert session.holds == set()

    asyncio.run(main())


def test_a_close_that_is_refused_changes_nothing(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            session = NotingSession()
            connected = await joined(session, served)
            subscription = connected.subscription
            assert subscription.dispatcher is not None
            subscription.dispatcher.add(connected.consumer)
            session.is_full = True
            consumers.close(cast(Session, session), CloseConsumer(5, 1))
            assert (session.consumers, len(subscription.consumers)) == ({1: connected}, 1)
            session.is_full = False
            consumers.close(cast(Session, session), CloseConsumer(6, 1))
            await asyncio.gather(*session.tasks)
            assert (session.consumers, len(subscription.consumers)) == ({}, 0)

    asyncio.run(main())
