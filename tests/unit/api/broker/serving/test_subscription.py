"""A subscription: repeated compacted reads, located marks, moves by other doors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from api.broker.refusals import ConsumerBusy
from api.broker.serving import acknowledging
from api.broker.serving.acknowledging import AckedEntry
from api.broker.serving.consumer import SubscriptionType
from api.broker.serving.position import SubscribeRequest
from storage.cursor import Cursor
from storage.model import EARLIEST
from storage.positions import StartPosition, StartTime
from storage.reading.entry_reader import EntryReader
from storage.topic import Topic
from tests.unit.api.broker.serving.consumers import NotingChannel, consumer
from tests.unit.api.broker.serving.served_topic import AtOnce, opened
from tests.workbench import Workbench


def test_what_a_compacted_consumer_asks_for_again_is_read_as_a_continuation(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: it has delivered messages, whose deletes a compaction may have dropped meanwhile."""

    async def main() -> None:
        async with opened(bench, topic, ["k", "l"]) as served:
            reading = consumer("a", SubscriptionType.EXCLUSIVE, read_compacted=True)
            reading.permits = 10
            subscription = await served.find_or_create_subscription(
                reading, SubscribeRequest("r", False, True, EARLIEST)
            )
            seen: list[bool] = []
            entry_reader = served.storage.entry_reader

            def noting(start: StartPosition, compacted: bool, resumes: bool) -> EntryReader:
                seen.append(resumes)
                return entry_reader(start, compacted, resumes)

            monkeypatch.setattr(served.storage, "entry_reader", noting)
            assert subscription.dispatcher is not None
            subscription.dispatcher.add(reading)
            await quiet()
            subscription.dispatcher.redeliver(reading, None)
            await quiet()
            assert seen == [False, True]
            channel = cast(NotingChannel, reading.channel)
            assert channel.received == [0, 1, 0, 1]

    asyncio.run(main())


def test_a_mark_that_was_located_is_written_without_another_acknowledgement(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it holds back trimming for as long as nothing is acknowledged."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 5) as served:
            reading = consumer("a")
            reading.permits = 10
            subscription = await served.find_or_create_subscription(reading, SubscribeRequest("s", start=EARLIEST))
            assert subscription.dispatcher is not None
            subscription.dispatcher.add(reading)
            await quiet()
            acks = [AckedEntry(*pending.entry_key) for pending in reading.pending.values()]
            monkeypatch.setattr(acknowledging, "MAX_ACKED_IDS", 2)  # those of the last entries are dropped
            subscription.acknowledge(reading, acks[:0:-1])
            subscription.acknowledge(reading, acks[:1])
            for _ in range(3):
                served.cursor_writer.start_scheduled_writes()
                await quiet()
            mark = bench.metadata.cursors.get(topic.record.id, "s").mark_delete
            assert mark is not None
            assert mark.offset == 4

    asyncio.run(main())


class Hanging(AtOnce):
    """Threads of a store that does not answer."""

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.Event().wait()

    run_without_deadline = run


def test_moves_and_deletions_by_rest_wait_for_no_thread_of_the_store(bench: Workbench, topic: Topic) -> None:
    """Threads of the store wait for `reset`, and those of the database for `prepare_subscription_deletion`: if
    these waited for the store, directly or by a seek before them, requests of one client would hold all threads."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 3) as served:
            reading = consumer("a", SubscriptionType.EXCLUSIVE)
            reading.permits = 10
            subscription = await served.find_or_create_subscription(reading, SubscribeRequest("s", start=EARLIEST))
            assert subscription.dispatcher is not None
            subscription.dispatcher.add(reading)
            await quiet()
            acked = [AckedEntry(*pending.entry_key) for pending in reading.pending.values()]
            subscription.acknowledge(reading, acked)
            store, served.store = served.store, Hanging()
            seeking = asyncio.create_task(subscription.seek(StartTime(0)))
            await quiet()
            fenced = subscription.position.current
            assert isinstance(fenced, Cursor)
            await within_turns(subscription.replace_fenced_cursor(fenced))
            assert subscription.position.current is not fenced
            await within_turns(subscription.reset(None))
            assert subscription.position.current.mark_delete is None
            await within_turns(served.prepare_subscription_deletion(subscription, force=True))
            assert served.subscriptions == {}
            seeking.cancel()
            served.store = store

    asyncio.run(main())


async def within_turns(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that waits for nothing that hangs."""
    task = asyncio.create_task(work)
    await quiet()
    assert task.done()
    await task


async def quiet() -> None:
    """Until nothing goes on: there are no threads, so every step is the loop's."""
    for _ in range(400):
        await asyncio.sleep(0)


def test_a_subscription_refuses_more_consumers_than_the_limit(bench: Workbench, topic: Topic) -> None:
    """Pulsar's maxConsumersPerSubscription: without it a change of consumers takes any time."""

    async def main() -> None:
        async with opened(bench, topic, max_consumers=2) as served:
            several = [consumer(name) for name in "abc"]
            for item in several[:2]:
                subscription = await served.find_or_create_subscription(item, SubscribeRequest("s"))
                assert subscription.dispatcher is not None
                subscription.dispatcher.add(item)
            with pytest.raises(ConsumerBusy, match="reached max consumers limit"):
                await served.find_or_create_subscription(several[2], SubscribeRequest("s"))
            await served.find_or_create_subscription(several[2], SubscribeRequest("other"))
            subscription.remove_consumers(several[0])
            await served.find_or_create_subscription(several[2], SubscribeRequest("s"))

    asyncio.run(main())
