"""A subscription: late acknowledgements, what is located beside, compacted readers that connect again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from api.broker.serving.consumer import SubscriptionType
from api.broker.serving.subscription import AckedEntry, SubscribeRequest, Subscription
from storage.cursor import Cursor
from storage.errors import StateMayBeStale, Unavailable
from storage.model import EARLIEST, LogPosition, MessageId
from storage.positions import StartOffset, StartPosition
from storage.reading.entry_reader import EntryReader
from storage.topic import Topic
from tests.unit.api.broker.serving.consumers import NotingChannel, consumer
from tests.unit.api.broker.serving.served_topic import AtOnce, opened
from tests.workbench import Workbench


def slots_of(count: int) -> list[tuple[int, LogPosition]]:
    """Return the slots of a batch at the offset 7."""
    return [(slot, LogPosition(7 + slot, MessageId(1, 0, -1, slot))) for slot in range(count)]


def words(bits: int) -> Sequence[int]:
    """Return an acknowledgement set: the slots that stay."""
    return [bits >> shift & ((1 << 64) - 1) for shift in range(0, bits.bit_length(), 64)]


@pytest.mark.parametrize("cumulative", [False, True])
def test_a_late_acknowledgement_of_slots_names_their_offsets(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, cumulative: bool
) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            subscription = Subscription(served, SubscribeRequest("s", start=EARLIEST), served.remove_subscription)
            monkeypatch.setattr(subscription, "_positions_of", lambda _: slots_of(5))
            acked = subscription._messages_of(AckedEntry(1, 0, -1, words(0b01001)), cumulative)
            assert acked == (8, 0b1011, slots_of(5)[4][1])
            assert subscription._messages_of(AckedEntry(1, 0, -1, words(0b11111)), cumulative) is None
            whole = subscription._messages_of(AckedEntry(1, 0, 2), cumulative)
            assert whole is not None
            assert whole.last.offset == (9 if cumulative else 11)

    asyncio.run(main())


def test_a_late_acknowledgement_of_a_large_batch_is_looked_up_by_a_thread(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other slot of 262,144 cost 1.6 s of the event loop."""

    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            request = SubscribeRequest("s", start=EARLIEST)
            subscription = Subscription(served, request, served.remove_subscription)
            await subscription.open(request)
            monkeypatch.setattr(subscription, "_positions_of", lambda _: slots_of(1 << 18))
            every_other = AckedEntry(1, 0, -1, words(int("10" * (1 << 17), 2)))
            acked = subscription._messages_of(every_other, False)
            monkeypatch.setattr(subscription, "_messages_of", lambda *_: acked)
            await subscription.look_up(consumer("a"), [every_other], cumulative=False)
            assert subscription.backlog(7 + (1 << 18), 7) == 1 << 17

    asyncio.run(main())


def test_a_reader_that_connects_again_still_does_so_after_its_read_could_not_be_opened(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: a store that fails once must not cost the deletes that a compaction has dropped."""

    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            request = SubscribeRequest("r", False, True, StartOffset(0), resumes=True)
            subscription = Subscription(served, request, served.remove_subscription)
            seen: list[bool] = []

            def entry_reader(_start: StartPosition, _compacted: bool, resumes: bool) -> EntryReader:
                seen.append(resumes)
                if len(seen) == 1:
                    raise Unavailable("the store does not answer", "wait")
                if len(seen) == 3:
                    raise StateMayBeStale("deletes are gone", "read again")
                return cast(EntryReader, None)

            monkeypatch.setattr(served.storage, "entry_reader", entry_reader)
            with pytest.raises(Unavailable):
                subscription.open_reader(StartOffset(0))
            subscription.open_reader(StartOffset(0))
            subscription._resumes = True
            with pytest.raises(StateMayBeStale):
                subscription.open_reader(StartOffset(0))
            subscription.open_reader(StartOffset(0))
            assert seen == [True, True, True, False]
            subscription._resumes = True
            await subscription.seek(0)
            subscription.open_reader(StartOffset(0))
            assert seen[4:] == [False], "it asked for that place"

    asyncio.run(main())


def test_what_a_compacted_consumer_asks_for_again_is_read_as_a_continuation(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: it has delivered messages, whose deletes a compaction may have dropped meanwhile."""

    async def main() -> None:
        async with opened(bench, topic, ["k", "l"]) as served:
            reading = consumer("a", SubscriptionType.EXCLUSIVE, read_compacted=True)
            reading.permits = 10
            subscription = await served.subscribe(reading, SubscribeRequest("r", False, True, EARLIEST))
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


def test_a_mark_that_was_located_is_written_without_another_acknowledgement(bench: Workbench, topic: Topic) -> None:
    """Else it holds back trimming for as long as nothing is acknowledged."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 5) as served:
            reading = consumer("a")
            reading.permits = 10
            subscription = await served.subscribe(reading, SubscribeRequest("s", start=EARLIEST))
            assert subscription.dispatcher is not None
            subscription.dispatcher.add(reading)
            await quiet()
            acks = [AckedEntry(*pending.entry_key) for pending in reading.pending.values()]
            subscription.acknowledge(reading, acks[1:])
            subscription._acked_ids.clear()
            subscription.acknowledge(reading, acks[:1])
            for _ in range(3):
                served.cursor_writer.write_noted()
                await quiet()
            mark = bench.metadata.cursors.get(topic.record.id, "s").mark_delete
            assert mark is not None
            assert mark.offset == 4

    asyncio.run(main())


class Hanging(AtOnce):
    """Threads of a store that does not answer."""

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.Event().wait()

    run_to_end = run


def test_moves_and_deletions_by_rest_wait_for_no_thread_of_the_store(bench: Workbench, topic: Topic) -> None:
    """Threads of the store wait for `reset`, and those of the database for `end_subscription`: if these waited for the
    store, directly or by a seek before them, requests of one client would hold all threads."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 3) as served:
            reading = consumer("a", SubscriptionType.EXCLUSIVE)
            reading.permits = 10
            subscription = await served.subscribe(reading, SubscribeRequest("s", start=EARLIEST))
            assert subscription.dispatcher is not None
            subscription.dispatcher.add(reading)
            await quiet()
            acked = [AckedEntry(*pending.entry_key) for pending in reading.pending.values()]
            subscription.acknowledge(reading, acked)
            store, served.store = served.store, Hanging()
            seeking = asyncio.create_task(subscription.seek(0))
            await quiet()
            fenced = subscription.position
            assert isinstance(fenced, Cursor)
            await within_turns(subscription.reopen(fenced))
            assert subscription.position is not fenced
            await within_turns(subscription.reset(None))
            assert subscription.position.mark_delete is None
            await within_turns(served.end_subscription(subscription, force=True))
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
