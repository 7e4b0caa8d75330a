"""Deliveries to consumers: over a real log and real cursors, on channels that note each entry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from api.broker.refusals import IncompatibleKeySharedConsumer
from api.broker.serving import dispatcher as dispatcher_module, redelivery, subscription as subscription_module
from api.broker.serving.acknowledging import AckedEntry
from api.broker.serving.consumer import SubscriptionType
from api.broker.serving.key_routing import delivery_header
from storage.cursor import Cursor
from storage.errors import Unavailable
from storage.metadata.records import READ_COMPACTED_PROPERTY
from storage.model import EARLIEST, LATEST
from storage.topic import Topic
from tests.unit.api.broker.serving.consumers import ALL, EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Reader, quiet, run
from tests.unit.api.broker.serving.served_topic import opened, produce
from tests.workbench import Workbench


def owner(readers: Sequence[Reader], entry_id: int) -> Reader:
    """Return the only reader that has received an entry."""
    (reader,) = [reader for reader in readers if entry_id in reader.received]
    return reader


def test_exclusive_in_order_and_as_many_as_there_are_permits(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 10) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join(permits=3)
            assert reader.received == [0, 1, 2]
            await reader.flow(4)
            assert reader.received == list(range(7))

    run(main())


def test_a_consumer_whose_socket_is_full_gets_nothing_and_others_do(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, []) as served:
            slow, fast = await Reader(served, "a", SHARED).join(), await Reader(served, "b", SHARED).join()
            slow.channel.is_writable = False
            produce(served, ["k"] * 10)
            await quiet()
            assert (slow.received, fast.received) == ([], list(range(10)))

    run(main())


def test_failover_goes_by_priority_then_name(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            low = await Reader(served, "a", FAILOVER, priority=1).join()
            assert low.received == [0, 1, 2, 3]
            await low.acknowledge(0)
            high = await Reader(served, "z", FAILOVER).join()
            assert high.received == [1, 2, 3]
            assert high.channel.active == [True]
            assert low.channel.active == [True, False]
            await high.leave()
            assert low.received[4:] == [1, 2, 3]

    run(main())


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_partitions_spread_over_failover_consumers(bench: Workbench, index: int) -> None:
    async def main() -> None:
        async with opened(bench, bench.topic(f"t-partition-{index}"), []) as served:
            readers = [await Reader(served, name, FAILOVER).join() for name in "cab"]
            produce(served, ["k"])
            await quiet()
            assert owner(readers, 0).consumer.name == "abc"[index % 3]

    run(main())


def test_what_comes_back_goes_to_whoever_takes_it_and_counts(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            first = await Reader(served, "a", SHARED).join()
            await first.acknowledge(1)
            second = await Reader(served, "b", SHARED).join()
            first.channel.is_writable = False
            await first.nack(2)
            assert second.received == [2]
            assert second.channel.redeliveries == {2: 1}
            await first.leave()
            assert second.received == [2, 0, 3]

    run(main())


@pytest.mark.parametrize("entry_ids", [(), (0, 0, 1, 2)])
def test_what_is_asked_for_again_while_it_is_returned_counts_once(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, entry_ids: Sequence[int]
) -> None:
    """A client sends a message that was redelivered too often to its dead letter topic."""
    monkeypatch.setattr(dispatcher_module, "RETURNED_ENTRIES", 1)

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 3) as served:
            reader = await Reader(served, "a", SHARED).join()
            for _ in range(2):
                keys = [(reader.ledger_id, entry_id) for entry_id in entry_ids]
                reader.subscription.redeliver(reader.consumer, keys)
            await quiet()
            assert reader.received == [0, 1, 2, 0, 1, 2]
            assert reader.channel.redeliveries == {0: 1, 1: 1, 2: 1}

    run(main())


def test_shared_consumers_get_no_more_than_can_be_remembered(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "MAX_PENDING", 3)

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 6) as served:
            reader = await Reader(served, "a", SHARED).join()
            assert reader.received == [0, 1, 2]
            await reader.nack(1)
            assert reader.received == [0, 1, 2, 1]
            await reader.acknowledge(0, 2)
            assert reader.received[4:] == [3, 4]

    run(main())


def test_the_first_consumer_that_comes_back_receives_what_others_left(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most that can be pending had been delivered: they must not keep the new dispatcher from reading them."""
    monkeypatch.setattr(subscription_module, "MAX_PENDING", 3)

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            reader = await Reader(served, "a", SHARED).join()
            assert reader.received == [0, 1, 2]
            reader.subscription.remove_consumers(
                reader.consumer
            )  # its connection ends, and another one subscribes before the topic notices
            again = await Reader(served, "b", SHARED).join()
            assert again.received == [0, 1, 2]
            await again.acknowledge(0, 1, 2)
            assert again.received == [0, 1, 2, 3]

    run(main())


@pytest.mark.parametrize("type_", [SHARED, KEY_SHARED])
def test_a_shared_consumer_gets_more_when_it_has_acknowledged(
    bench: Workbench, topic: Topic, type_: SubscriptionType
) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 100, max_unacked_messages=70) as served:
            reader = await Reader(served, "a", type_).join()
            assert reader.received == list(range(70))
            await reader.acknowledge(3, 4)
            assert reader.received == list(range(72))

    run(main())


def test_key_shared_keeps_a_key_with_who_has_messages_of_it(bench: Workbench, topic: Topic) -> None:
    keys = [f"k{number % 40}" for number in range(40)]

    async def main() -> None:
        async with opened(bench, topic, keys) as served:
            first = await Reader(served, "a", KEY_SHARED).join()
            second = await Reader(served, "b", KEY_SHARED).join()
            produce(served, keys)
            await quiet()
            moved = [number for number in range(40) if number + 40 not in first.received]
            assert 5 < len(moved) < 35
            assert second.received == []
            await first.acknowledge(*moved[:3])
            assert second.received == [number + 40 for number in moved[:3]]
            await first.acknowledge(*(number for number in range(40) if number not in moved[:3]))
            assert sorted(second.received) == [number + 40 for number in moved]
            assert second.received == sorted(second.received[:3]) + sorted(second.received[3:])

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
                await reader.acknowledge(*reader.received)
            readers.append(await Reader(served, "d", KEY_SHARED).join())
            produce(served, keys)
            await quiet()
            after = [owner(readers, number + 300) for number in range(300)]
            assert all(count > 30 for count in (after.count(reader) for reader in readers))
            assert all(new is old or new is readers[3] for old, new in zip(before, after, strict=True))

    run(main())


@pytest.mark.parametrize("searched_groups", [1, 1_000])
def test_key_shared_delivers_what_comes_back_before_what_follows_it(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, searched_groups: int
) -> None:
    """A consumer that has no permits must not turn the order of its keys round, nor hold up others' keys."""
    monkeypatch.setattr(redelivery, "SEARCHED_GROUPS", searched_groups)
    keys = [f"k{number}" for number in range(20)] * 2

    async def main() -> None:
        async with opened(bench, topic, keys[:20]) as served:
            first = await Reader(served, "a", KEY_SHARED).join()
            second = await Reader(served, "b", KEY_SHARED).join()
            await first.nack(*range(20))
            assert sorted(first.received[20:] + second.received) == list(range(20))
            kept, others = first.received[20:], list(second.received)
            assert kept
            assert others
            first.consumer.permits = 0
            await first.nack(*kept)
            await second.nack(*others)
            assert sorted(second.received[len(others) :]) == sorted(
                others
            )  # though the lowest of all waits for the first
            produce(served, keys[20:])
            await quiet()
            first.channel.received.clear()
            await first.flow(ALL)
            for number in kept:
                assert first.received.index(number) < first.received.index(number + 20)

    run(main())


def test_sticky_ranges_are_kept_and_may_not_overlap(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, []) as served:
            low = await Reader(served, "a", KEY_SHARED, sticky_ranges=((0, 32767),)).join()
            high = await Reader(served, "b", KEY_SHARED, sticky_ranges=((32768, 65535),)).join()
            with pytest.raises(IncompatibleKeySharedConsumer, match="overlaps"):
                await Reader(served, "c", KEY_SHARED, sticky_ranges=((100, 200),)).join()
            with pytest.raises(IncompatibleKeySharedConsumer, match="another key-shared mode"):
                await Reader(served, "d", KEY_SHARED).join()
            produce(served, [f"k{number}" for number in range(50)])
            await quiet()
            hashes = [
                cast(int, delivery_header(entry.data, True).group)
                for entry in served.storage.entry_reader(EARLIEST).read()
            ]
            assert low.received == [number for number in range(50) if hashes[number] <= 32767]
            assert high.received == [number for number in range(50) if hashes[number] > 32767]

    run(main())


def test_a_reader_at_latest_gets_what_comes_after_it_subscribed(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 3) as served:
            reader = await Reader(served, "r", EXCLUSIVE, durable=False, start=LATEST).join(permits=0)
            produce(served, ["k"] * 2)
            await reader.flow(ALL)
            assert reader.received == [3, 4]

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

            monkeypatch.setattr(Cursor, "reset", failing)
            with pytest.raises(Unavailable):
                await subscription.seek(EARLIEST)
            assert reader.channel.is_closed
            await reader.leave()
            again = await Reader(served, "a", EXCLUSIVE).join()
            assert again.received == [1, 2, 3]

    run(main())


def test_acknowledgements_during_a_seek_do_not_undo_it(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join()
            subscription = served.subscriptions["s"]
            ledger_id = reader.ledger_id
            seeking = asyncio.create_task(subscription.seek(EARLIEST))
            await asyncio.sleep(0)
            last = AckedEntry(ledger_id, 3)
            assert not subscription.acknowledge(reader.consumer, [last], cumulative=True)
            assert subscription.acknowledge(reader.consumer, [last]) == []
            await subscription.acks.acknowledge_by_lookup(reader.consumer, [last], cumulative=True)
            await seeking
            await reader.leave()
            again = await Reader(served, "a", EXCLUSIVE).join()
            assert again.received == [0, 1, 2, 3]

    run(main())


def test_a_cursor_that_was_moved_is_taken_up_again_once(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            await Reader(served, "a", EXCLUSIVE).join()
            subscription = served.subscriptions["s"]
            before = subscription.position.current
            assert isinstance(before, Cursor)
            await asyncio.gather(subscription.replace_fenced_cursor(before), subscription.replace_fenced_cursor(before))
            after = subscription.position.current
            assert after is not before
            await subscription.replace_fenced_cursor(before)
            assert subscription.position.current is after

    run(main())


def test_receipts_that_wait_together_share_a_flush(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join()
            flushes: list[int] = []
            merge = bench.metadata.cursors.merge
            monkeypatch.setattr(bench.metadata.cursors, "merge", lambda updates: (flushes.append(1), merge(updates))[1])
            await reader.acknowledge(0, 1)
            await asyncio.gather(*(reader.subscription.flush() for _ in range(10)))
            assert 1 <= len(flushes) <= 2
            assert bench.metadata.cursors.get(topic.record.id, "s").mark_delete.offset == 1  # type: ignore[union-attr]

    run(main())


def test_failover_reads_as_its_active_consumer_wants(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            first = await Reader(served, "a", FAILOVER).join()
            await Reader(served, "b", FAILOVER, read_compacted=True).join()
            subscription = served.subscriptions["s"]
            assert not subscription.position.read_compacted
            await first.leave()
            assert subscription.position.read_compacted
            properties = bench.metadata.cursors.get(topic.record.id, "s").properties
            assert properties[READ_COMPACTED_PROPERTY] == "true"

    run(main())
