"""Which consumer gets which message: over a real log and real cursors, to connections that only note what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, cast

import pytest

from api.gateway import subscriptions
from api.gateway.commands import Refused
from api.gateway.connection import Connection
from api.gateway.consumers import Consumer
from api.gateway.dispatch import hash_of
from api.gateway.pulsar_api_pb2 import BaseCommand, CommandSubscribe, KeySharedMeta, MessageIdData
from api.gateway.topics import PersistentTopic
from storage.errors import Unavailable
from storage.metadata.records import READ_COMPACTED_PROPERTY
from storage.model import EARLIEST
from storage.topic import Topic
from tests.unit.api.gateway.served_topic import opened, produce
from tests.workbench import Workbench

EXCLUSIVE, SHARED = CommandSubscribe.Exclusive, CommandSubscribe.Shared
FAILOVER, KEY_SHARED = CommandSubscribe.Failover, CommandSubscribe.KeyShared
ALL = 1_000
"""Permits for more than any test sends."""


class NotingConnection:
    """Notes the entry ids that each consumer gets; takes no more when `is_writable` is cleared."""

    def __init__(self) -> None:
        self.is_writable = True
        self.got: list[int] = []
        self.redeliveries: dict[int, int] = {}
        self.active: list[bool] = []
        self.is_closed = False

    def send(self, command: BaseCommand, _: bytes) -> None:
        entry_id = command.message.message_id.entry_id
        self.got.append(entry_id)
        self.redeliveries[entry_id] = command.message.redelivery_count

    def tell_active(self, consumer: Consumer, is_active: bool) -> None:
        self.active.append(is_active)

    def close_consumer(self, consumer: Consumer) -> None:
        self.is_closed = True


class Reader:
    """A consumer, and what it got."""

    def __init__(self, topic: PersistentTopic, name: str, sub_type: CommandSubscribe.SubType, **wish: Any) -> None:
        self.connection = NotingConnection()
        self.wish = CommandSubscribe(
            topic=str(topic.name), subscription="s", sub_type=sub_type, consumer_id=1, request_id=1, consumer_name=name,
            initial_position=CommandSubscribe.Earliest, durable=True, **wish,
        )  # fmt: skip
        self.consumer = Consumer(cast(Connection, self.connection), self.wish, -1, 0)
        self._topic = topic

    async def join(self, permits: int = ALL) -> Reader:
        self.consumer.permits = permits
        subscription = await self._topic.subscribe(self.consumer, self.wish)
        assert subscription.dispatcher is not None
        subscription.dispatcher.add(self.consumer)
        await quiet()
        return self

    async def leave(self) -> None:
        await self._topic.remove_consumer(self.consumer)
        await quiet()

    async def flow(self, permits: int) -> None:
        self.consumer.permits += permits
        self._dispatcher.wake()
        await quiet()

    async def acknowledge(self, *entry_ids: int) -> None:
        assert self.consumer.subscription is not None
        ids = [MessageIdData(ledger_id=self.ledger_id, entry_id=entry_id) for entry_id in entry_ids]
        assert not self.consumer.subscription.acknowledge(self.consumer, ids)
        await quiet()

    async def give_back(self, *entry_ids: int) -> None:
        """Negative acknowledgements."""
        assert self.consumer.subscription is not None
        pending = self.consumer.subscription.pending
        self._dispatcher.redeliver(self.consumer, [pending[self.ledger_id, entry_id] for entry_id in entry_ids])
        await quiet()

    @property
    def ledger_id(self) -> int:
        assert self.consumer.subscription is not None
        return next(ledger_id for ledger_id, _ in self.consumer.subscription.pending)

    @property
    def _dispatcher(self) -> Any:
        assert self.consumer.subscription is not None
        return self.consumer.subscription.dispatcher

    @property
    def got(self) -> list[int]:
        return self.connection.got


async def quiet() -> None:
    """Until nothing goes on: there are no threads, so every step is the loop's."""
    for _ in range(400):
        await asyncio.sleep(0)


def owner(readers: Sequence[Reader], entry_id: int) -> Reader:
    """Who got it."""
    (found,) = [reader for reader in readers if entry_id in reader.got]
    return found


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_exclusive_in_order_and_as_many_as_there_are_permits(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 10) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join(permits=3)
            assert reader.got == [0, 1, 2]
            await reader.flow(4)
            assert reader.got == list(range(7))

    run(main())


def test_a_consumer_whose_socket_is_full_gets_nothing_and_others_do(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, []) as served:
            slow, fast = await Reader(served, "a", SHARED).join(), await Reader(served, "b", SHARED).join()
            slow.connection.is_writable = False
            produce(served, ["k"] * 10)
            await quiet()
            assert (slow.got, fast.got) == ([], list(range(10)))

    run(main())


def test_failover_goes_by_priority_then_name(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            low = await Reader(served, "a", FAILOVER, priority_level=1).join()
            assert low.got == [0, 1, 2, 3]
            await low.acknowledge(0)
            high = await Reader(served, "z", FAILOVER).join()
            assert high.got == [1, 2, 3]
            assert high.connection.active == [True]
            assert low.connection.active == [True, False]
            await high.leave()
            assert low.got[4:] == [1, 2, 3]

    run(main())


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_partitions_spread_over_failover_consumers(bench: Workbench, index: int) -> None:
    async def main() -> None:
        async with opened(bench, bench.topic(f"t-partition-{index}"), []) as served:
            readers = [await Reader(served, name, FAILOVER).join() for name in "cab"]
            produce(served, ["k"])
            await quiet()
            assert owner(readers, 0).wish.consumer_name == "abc"[index % 3]

    run(main())


def test_what_comes_back_goes_to_whoever_takes_it_and_counts(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            first = await Reader(served, "a", SHARED).join()
            await first.acknowledge(1)
            second = await Reader(served, "b", SHARED).join()
            first.connection.is_writable = False
            await first.give_back(2)
            assert second.got == [2]
            assert second.connection.redeliveries == {2: 1}
            await first.leave()
            assert second.got == [2, 0, 3]

    run(main())


def test_shared_consumers_get_no_more_than_can_be_remembered(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MOST_PENDING", 3)

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 6) as served:
            reader = await Reader(served, "a", SHARED).join()
            assert reader.got == [0, 1, 2]
            await reader.give_back(1)
            assert reader.got == [0, 1, 2, 1]
            await reader.acknowledge(0, 2)
            assert reader.got[4:] == [3, 4]

    run(main())


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
def test_a_shared_consumer_gets_more_when_it_has_acknowledged(
    bench: Workbench, topic: Topic, sub_type: CommandSubscribe.SubType
) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 100, max_unacked_messages=70) as served:
            reader = await Reader(served, "a", sub_type).join()
            assert reader.got == list(range(70))
            await reader.acknowledge(3, 4)
            assert reader.got == list(range(72))

    run(main())


def test_key_shared_keeps_a_key_with_who_has_messages_of_it(bench: Workbench, topic: Topic) -> None:
    keys = [f"k{number % 40}" for number in range(40)]

    async def main() -> None:
        async with opened(bench, topic, keys) as served:
            first = await Reader(served, "a", KEY_SHARED).join()
            second = await Reader(served, "b", KEY_SHARED).join()
            produce(served, keys)
            await quiet()
            moved = [number for number in range(40) if number + 40 not in first.got]
            assert 5 < len(moved) < 35
            assert second.got == []
            await first.acknowledge(*moved[:3])
            assert second.got == [number + 40 for number in moved[:3]]
            await first.acknowledge(*(number for number in range(40) if number not in moved[:3]))
            assert sorted(second.got) == [number + 40 for number in moved]
            assert second.got == sorted(second.got[:3]) + sorted(second.got[3:])

    run(main())


def test_few_keys_move_when_a_key_shared_consumer_joins(bench: Workbench, topic: Topic) -> None:
    keys = [f"k{number}" for number in range(300)]

    async def main() -> None:
        async with opened(bench, topic, []) as served:
            readers = [await Reader(served, name, KEY_SHARED).join() for name in "abc"]
            produce(served, keys)
            await quiet()
            before = [owner(readers, number) for number in range(300)]
            for reader in readers:
                await reader.acknowledge(*reader.got)
            readers.append(await Reader(served, "d", KEY_SHARED).join())
            produce(served, keys)
            await quiet()
            after = [owner(readers, number + 300) for number in range(300)]
            assert all(count > 30 for count in (after.count(reader) for reader in readers))
            assert all(new is old or new is readers[3] for old, new in zip(before, after, strict=True))

    run(main())


def test_key_shared_delivers_what_comes_back_before_what_follows_it(bench: Workbench, topic: Topic) -> None:
    """A consumer that has no permits must not turn the order of its keys round, nor hold up others' keys."""
    keys = [f"k{number}" for number in range(20)] * 2

    async def main() -> None:
        async with opened(bench, topic, keys[:20]) as served:
            first = await Reader(served, "a", KEY_SHARED).join()
            second = await Reader(served, "b", KEY_SHARED).join()
            await first.give_back(*range(20))
            assert sorted(first.got[20:] + second.got) == list(range(20))
            mine, others = first.got[20:], list(second.got)
            assert mine
            assert others
            first.consumer.permits = 0
            await first.give_back(*mine)
            await second.give_back(*others)
            assert second.got[len(others) :] == sorted(others)  # though the lowest of all waits for the first
            produce(served, keys[20:])
            await quiet()
            first.connection.got.clear()
            await first.flow(ALL)
            for number in mine:
                assert first.got.index(number) < first.got.index(number + 20)

    run(main())


def test_sticky_ranges_are_kept_and_may_not_overlap(bench: Workbench, topic: Topic) -> None:
    def sticky(*ranges: tuple[int, int]) -> KeySharedMeta:
        found = KeySharedMeta(mode=KeySharedMeta.Sticky)
        for start, end in ranges:
            found.hash_ranges.add(start=start, end=end)
        return found

    async def main() -> None:
        async with opened(bench, topic, []) as served:
            low = await Reader(served, "a", KEY_SHARED, key_shared_meta=sticky((0, 32767))).join()
            high = await Reader(served, "b", KEY_SHARED, key_shared_meta=sticky((32768, 65535))).join()
            with pytest.raises(Refused, match="overlaps"):
                await Reader(served, "c", KEY_SHARED, key_shared_meta=sticky((100, 200))).join()
            with pytest.raises(Refused, match="another key-shared mode"):
                await Reader(served, "d", KEY_SHARED).join()
            produce(served, [f"k{number}" for number in range(50)])
            await quiet()
            hashes = [hash_of(entry) for entry in served.storage.entry_reader(EARLIEST).read()]
            assert low.got == [number for number in range(50) if hashes[number] <= 32767]
            assert high.got == [number for number in range(50) if hashes[number] > 32767]

    run(main())


def test_a_reader_at_latest_gets_what_comes_after_it_subscribed(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 3) as served:
            reader = Reader(served, "r", EXCLUSIVE)
            reader.wish.durable, reader.wish.initial_position = False, CommandSubscribe.Latest
            await reader.join(permits=0)
            produce(served, ["k"] * 2)
            await reader.flow(ALL)
            assert reader.got == [3, 4]

    run(main())


def test_a_seek_that_fails_leaves_the_subscription_where_it_was(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join()
            await reader.acknowledge(0)
            subscription = served.subscriptions["s"]

            def failing(*_: Any) -> Any:
                raise Unavailable("the store does not answer", "wait")

            monkeypatch.setattr(subscription, "_sought", failing)
            with pytest.raises(Unavailable):
                await subscription.seek(EARLIEST)
            assert reader.connection.is_closed
            await reader.leave()
            again = await Reader(served, "a", EXCLUSIVE).join()
            assert again.got == [1, 2, 3]

    run(main())


def test_acknowledgements_during_a_seek_do_not_undo_it(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join()
            subscription = served.subscriptions["s"]
            ledger_id = reader.ledger_id
            seeking = asyncio.create_task(subscription.seek(EARLIEST))
            await asyncio.sleep(0)
            last = MessageIdData(ledger_id=ledger_id, entry_id=3)
            assert subscription.acknowledge_to(reader.consumer, last)
            assert subscription.acknowledge(reader.consumer, [last]) == []
            await subscription.acknowledge_found_to(reader.consumer, last)
            await seeking
            await reader.leave()
            again = await Reader(served, "a", EXCLUSIVE).join()
            assert again.got == [0, 1, 2, 3]

    run(main())


def test_a_cursor_that_was_moved_is_taken_up_again_once(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            await Reader(served, "a", EXCLUSIVE).join()
            subscription = served.subscriptions["s"]
            before = subscription.cursor
            assert before is not None
            await asyncio.gather(subscription.reopen(before), subscription.reopen(before))
            after = subscription.cursor
            assert after is not before
            await subscription.reopen(before)
            assert subscription.cursor is after

    run(main())


def test_receipts_that_wait_together_share_a_flush(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join()
            subscription = served.subscriptions["s"]
            assert subscription.cursor is not None
            flushes: list[int] = []
            flush = subscription.cursor.flush
            monkeypatch.setattr(subscription.cursor, "flush", lambda: (flushes.append(1), flush()))
            await reader.acknowledge(0, 1)
            await asyncio.gather(*(subscription.flush(for_receipt=True) for _ in range(10)))
            assert 1 <= len(flushes) <= 2
            assert bench.metadata.cursors.get(topic.record.id, "s").mark_delete.offset == 1  # type: ignore[union-attr]

    run(main())


def test_failover_reads_as_its_active_consumer_wants(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            first = await Reader(served, "a", FAILOVER).join()
            await Reader(served, "b", FAILOVER, read_compacted=True).join()
            subscription = served.subscriptions["s"]
            assert not subscription.read_compacted
            await first.leave()
            assert subscription.read_compacted
            properties = bench.metadata.cursors.get(topic.record.id, "s").properties
            assert properties[READ_COMPACTED_PROPERTY] == "true"

    run(main())
