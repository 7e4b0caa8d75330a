"""Deliveries as a real broker makes them: redelivery counts, chunks, delays, permits, acknowledgements.

What the broker answered is recorded in tests/clients/behaviour; here the same is shown without a network.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.broker.serving import acknowledging, delayed as delayed_entries, dispatcher, pending_acks, waiting
from api.broker.serving.acknowledging import AckedEntry, unacked_mask
from api.broker.serving.consumer import Consumer, ConsumerOptions, SubscriptionType
from api.broker.serving.key_routing import HASH_SLOTS
from api.broker.serving.pending_acks import PendingAck
from api.pulsar.client_versions import returns_permits_for_hidden_slots
from storage.checksums import crc32c
from storage.entries.entry import MAGIC, U32
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.errors import Unavailable
from storage.model import EARLIEST, LATEST
from storage.topic import Topic
from tests.entries import batch
from tests.unit.api.broker.serving.consumers import (
    ALL,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    NotingChannel,
    Reader,
    entry,
    quiet,
    run,
)
from tests.unit.api.broker.serving.served_topic import append, opened, produce
from tests.workbench import Workbench


def message(sequence_id: int = 0, **fields: Any) -> bytes:
    """An entry of one message with any metadata."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, **fields).SerializeToString()
    body = U32.pack(len(metadata)) + metadata + b"v"
    return MAGIC + U32.pack(crc32c(body)) + body


@pytest.mark.parametrize("type_", [SHARED, KEY_SHARED])
def test_a_disconnect_is_no_redelivery(bench: Workbench, topic: Topic, type_: SubscriptionType) -> None:
    """G1: restarts of consumers sent healthy messages to the dead letter topic."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            for _ in range(3):
                reader = await Reader(served, "a", type_).join()
                assert reader.channel.redeliveries == {0: 0, 1: 0, 2: 0, 3: 0}
                await reader.leave()

    run(main())


@pytest.mark.parametrize(("type_", "count"), [(SHARED, 2), (KEY_SHARED, 2), (EXCLUSIVE, 0), (FAILOVER, 0)])
def test_what_a_consumer_asks_for_again_counts_until_the_last_one_leaves(
    bench: Workbench, topic: Topic, type_: SubscriptionType, count: int
) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 2) as served:
            reader = await Reader(served, "a", type_).join()
            await reader.nack(0)
            await reader.nack(0)
            assert reader.channel.redeliveries[0] == count
            await reader.leave()
            again = await Reader(served, "a", type_).join()
            assert again.channel.redeliveries == {0: 0, 1: 0}

    run(main())


def test_all_chunks_of_a_message_go_to_one_consumer(bench: Workbench, topic: Topic) -> None:
    """G2: with two shared consumers no chunked message arrived."""

    def chunk(uuid: str, number: int) -> bytes:
        return message(uuid=uuid, chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=3)

    async def main() -> None:
        async with opened(bench, topic) as served:
            first, second = [await Reader(served, name, SHARED).join() for name in "ab"]
            append(served, *(chunk(uuid, number) for number in range(3) for uuid in ("m", "n", "o", "q")))
            await quiet()
            for reader in (first, second):
                received = {number % 4 for number in reader.received}
                assert reader.received == sorted(number for number in range(12) if number % 4 in received)
            assert len(first.received) == len(second.received) == 6

    run(main())


def test_chunks_wait_for_their_consumer_and_hold_up_nothing_else(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            first = await Reader(served, "a", SHARED).join(permits=1)
            append(served, message(uuid="m", chunk_id=0, num_chunks_from_msg=3))
            await quiet()
            second = await Reader(served, "b", SHARED).join()
            append(served, *(message(uuid="m", chunk_id=number, num_chunks_from_msg=3) for number in (1, 2)), message())
            await quiet()
            assert (first.received, second.received) == ([0], [3])
            await first.flow(ALL)
            assert first.received == [0, 1, 2]
            await first.leave()
            assert second.received == [3, 0, 1, 2]

    run(main())


@pytest.mark.parametrize("type_", [SHARED, KEY_SHARED])
def test_delayed_entries_are_delivered_when_they_are_due(
    bench: Workbench, topic: Topic, type_: SubscriptionType
) -> None:
    """G22: they were delivered at once."""
    now = bench.clock.now_ms()

    def delayed(ms: int) -> bytes:
        return message(partition_key=b"k", deliver_at_time=now + ms)

    async def main() -> None:
        async with opened(bench, topic) as served:
            append(served, delayed(9_000), delayed(3_000), message(partition_key=b"k"), delayed(-1))
            reader = await Reader(served, "a", type_).join()
            subscription = reader.subscription
            assert subscription.dispatcher is not None
            assert (reader.received, subscription.dispatcher.delayed_count) == ([2, 3], 2)
            await reader.acknowledge(2, 3)
            await reader.leave()  # what waits is not acknowledged, so it is read again
            again = await Reader(served, "a", type_).join()
            assert again.received == []
            bench.clock.advance(3_000)
            again.subscription.wake()
            await quiet()
            assert again.received == [1]
            await again.nack(1)
            assert (again.received, again.channel.redeliveries) == ([1, 1], {1: 1})
            bench.clock.advance(6_000)
            again.subscription.wake()
            await quiet()
            assert again.received == [1, 1, 0]

    run(main())


def test_delayed_entries_that_are_due_together_are_delivered_in_order(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are queued some a step; nothing else wakes the loop in between."""
    monkeypatch.setattr(delayed_entries, "DUE_AT_ONCE", 2)
    due = bench.clock.now_ms() + 3_000

    async def main() -> None:
        async with opened(bench, topic) as served:
            append(served, *(message(deliver_at_time=due) for _ in range(7)))
            reader = await Reader(served, "a", SHARED).join()
            reader.channel.is_writable = False
            bench.clock.advance(3_000)
            reader.subscription.wake()
            await quiet()
            assert reader.received == []
            reader.channel.is_writable = True
            reader.subscription.wake()
            await quiet()
            assert (reader.received, reader.subscription.dispatcher.delayed_count) == (list(range(7)), 0)

    run(main())


def test_delayed_entries_that_are_due_and_have_no_consumer_take_bounded_memory(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that were due waited in the queue for the only consumer of their key: 75 bytes each, without a bound."""
    monkeypatch.setattr(delayed_entries, "DUE_AT_ONCE", 1)
    monkeypatch.setattr(waiting, "MAX_QUEUED", 5, raising=False)
    low, high = ((0, HASH_SLOTS // 2 - 1),), ((HASH_SLOTS // 2, HASH_SLOTS - 1),)
    due = bench.clock.now_ms() + 3_000

    async def main() -> None:
        async with opened(bench, topic) as served:
            first = await Reader(served, "a", KEY_SHARED, sticky_ranges=low).join()
            second = await Reader(served, "b", KEY_SHARED, sticky_ranges=high).join()
            append(served, message(partition_key=b"k"))
            await quiet()
            stuck, other = (first, second) if first.received else (second, first)
            await stuck.acknowledge(0)
            stuck.channel.is_writable = False
            append(served, *(message(partition_key=b"k", deliver_at_time=due) for _ in range(20)))
            await quiet()
            assert stuck.subscription.dispatcher is not None
            assert stuck.subscription.dispatcher.delayed_count == 20
            bench.clock.advance(3_000)
            other.subscription.wake()
            await quiet()
            assert stuck.subscription.dispatcher.delayed_count == 15
            stuck.channel.is_writable = True
            stuck.subscription.wake()
            await quiet()
            assert (stuck.received, stuck.subscription.dispatcher.delayed_count) == (list(range(21)), 0)

    run(main())


@pytest.mark.parametrize("type_", [EXCLUSIVE, FAILOVER])
def test_one_active_consumer_gets_delayed_entries_at_once(
    bench: Workbench, topic: Topic, type_: SubscriptionType
) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            append(served, message(deliver_at_time=bench.clock.now_ms() + 9_000), message())
            assert (await Reader(served, "a", type_).join()).received == [0, 1]

    run(main())


@pytest.mark.parametrize("returns", [False, True])
def test_permits_are_taken_for_what_the_client_gives_back(returns: bool) -> None:
    """G5: with a queue of 10, 185 MiB were pushed to a client that had read 300 messages."""
    reader = Consumer(NotingChannel(), ConsumerOptions("a", EXCLUSIVE, returns_permits_for_hidden_slots=returns), 0)
    reader.permits = 10
    pending = PendingAck((1, 0), 0, 0, 10, True, 0b11, reader)
    reader.send(entry(0, 10), pending, 0)
    assert (reader.permits, reader.unacked) == (0 if returns else 8, 2)


@pytest.mark.parametrize(
    ("version", "returns"),
    [
        ("Pulsar-Java-v4.2.4", False),
        ("Pulsar-Java-v3.0.3", False),
        ("Pulsar-Java-v3.0.2", True),
        ("Pulsar-Java-v2.11.4", False),
        ("Pulsar-Java-v2.8.1", True),
        ("Pulsar-CPP-v4.2.0", True),
        ("Pulsar-CPP-v3.8.0", True),
        ("Pulsar-Python-v3.13.0", True),
        ("Pulsar Go 0.16.0", True),
        ("another client", False),
    ],
)
def test_clients_are_told_apart_by_their_version(version: str, returns: bool) -> None:
    assert returns_permits_for_hidden_slots(version) == returns


def test_repeated_and_late_acknowledgements_read_nothing(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G6: each cost a read of the topic, 25 to 220 ms of CPU."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 6) as served:
            reader = await Reader(served, "a", SHARED).join()
            monkeypatch.setattr(Topic, "read", None)
            await reader.acknowledge(0, 2, 3)
            await reader.acknowledge(0, 2, 3)
            assert reader.consumer.acknowledged.messages == 3
            other = await Reader(served, "b", SHARED).join()
            await reader.leave()
            assert other.received == [1, 4, 5]
            late = [AckedEntry(reader.ledger_id, 1)]
            assert other.subscription.acknowledge(reader.consumer, late) == []
            assert other.subscription.position.backlog(6, 0) == 2

    run(main())


def test_an_unknown_acknowledgement_is_looked_up_and_too_many_are_refused(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(bench, topic, ["k"] * 6) as served:
            reader = await Reader(served, "a", SHARED).join(permits=2)
            ids = [AckedEntry(reader.ledger_id, number) for number in (0, 4, 5, 77)]
            unknown = reader.subscription.acknowledge(reader.consumer, ids)
            assert unknown == ids[1:]
            await reader.subscription.acks.acknowledge_by_lookup(reader.consumer, unknown, cumulative=False)
            assert reader.subscription.position.backlog(6, 0) == 3
            monkeypatch.setattr(acknowledging, "MAX_LOOKUPS", 2)
            with pytest.raises(Unavailable, match="wait to be looked up"):
                await reader.subscription.acks.acknowledge_by_lookup(reader.consumer, unknown, cumulative=False)

    run(main())


def test_every_other_message_of_a_batch_is_acknowledged_in_one_step(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic) as served:
            append(served, batch(*((b"k", b"v") for _ in range(100))), message())
            reader = await Reader(served, "a", SHARED).join(permits=100)
            even = int("01" * 50, 2)
            words = [even & (1 << 64) - 1, even >> 64]
            ack = AckedEntry(reader.ledger_id, 0, -1, words)
            assert reader.subscription.acknowledge(reader.consumer, [ack]) == []
            assert (reader.consumer.unacked, reader.subscription.position.backlog(101, 0)) == (50, 51)
            await reader.subscription.flush()
            await reader.leave()
            again = await Reader(served, "a", SHARED).join()
            assert again.consumer.unacked == 51

    run(main())


def test_an_ack_set_costs_no_more_than_its_entry_has_slots() -> None:
    """X1: a frame full of words took half an hour."""

    class Words(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("all words were read")

    words = Words([0b1011, -1, *range(1_000)])
    assert unacked_mask(words[:2], 70) == 0b1011 | ((1 << 6) - 1) << 64
    assert unacked_mask(list.__getitem__(words, slice(0, 1)), 2) == 0b11
    assert unacked_mask([], 5) == 0


@pytest.mark.parametrize("type_", [EXCLUSIVE, SHARED])
def test_the_acknowledgements_of_a_reader_count(bench: Workbench, topic: Topic, type_: SubscriptionType) -> None:
    """G15: they were delivered again after redelivery or failover."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 5) as served:
            reader = await Reader(served, "a", type_, durable=False).join()
            await reader.acknowledge(0, 1, 3)
            reader.subscription.redeliver(reader.consumer, [])
            await quiet()
            assert reader.received[5:] == [2, 4]

    run(main())


@pytest.mark.parametrize("leaves", [False, True])
def test_the_entries_of_a_consumer_are_returned_in_turns_of_the_loop_and_in_order(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """X6: a few bytes returned 50,000 entries in one step. Newer entries of a key are not delivered in between."""
    monkeypatch.setattr(dispatcher, "RETURNED_ENTRIES", 4)

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 10) as served:
            reader = await Reader(served, "a", KEY_SHARED).join(permits=10)
            other = await Reader(served, "b", KEY_SHARED).join() if leaves else reader
            reader.consumer.permits = other.consumer.permits = ALL
            reader.channel.received.clear()
            produce(served, ["k"] * 2)
            if leaves:
                reader.subscription.dispatcher.remove(reader.consumer)
            else:
                reader.subscription.redeliver(reader.consumer, [])
            assert len(reader.consumer.pending) == 6
            await quiet()
            assert not (leaves and reader.consumer.pending)
            assert other.received == list(range(12))

    run(main())


@pytest.mark.parametrize("skips", [False, True])
def test_many_acknowledged_entries_are_settled_in_turns_of_the_loop(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, skips: bool
) -> None:
    """X6: one cumulative acknowledgement, or a skip by REST, held the loop for 0.3 s. Its receipt follows the position;
    the counts of the consumer come later."""
    monkeypatch.setattr(pending_acks, "STEP_ENTRIES", 4)

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 20) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join()
            subscription, dispatcher = reader.subscription, reader.subscription.dispatcher
            cursor = subscription.position.current
            if skips:
                cursor.acknowledge_below(18)
                subscription.remove_acknowledged_pending()
            else:
                last = AckedEntry(reader.ledger_id, 17)
                assert not subscription.acknowledge(reader.consumer, [last], cumulative=True)
            assert cursor.acknowledged_to == 17
            assert (len(reader.consumer.pending), reader.consumer.unacked) == (16, 16)
            again = [AckedEntry(reader.ledger_id, number) for number in (15, 0, 10)]
            for cumulative in (False, True):
                assert not subscription.acknowledge(reader.consumer, again, cumulative=cumulative)
            turns = 0
            while len(reader.consumer.pending) > 2 and turns < 10:
                before = len(reader.consumer.pending)
                await asyncio.sleep(0)
                assert before - len(reader.consumer.pending) <= 4
                turns += 1
            await quiet()
            assert (sorted(reader.consumer.pending), reader.consumer.unacked) == (
                [(reader.ledger_id, 18), (reader.ledger_id, 19)],
                2,
            )
            if not skips:
                assert reader.consumer.acknowledged.messages == 18
            assert dispatcher is not None
            dispatcher.redeliver(reader.consumer, None)
            await quiet()
            assert reader.received[20:] == [18, 19]

    run(main())


@pytest.mark.parametrize("event", ["redeliver", "leave", "seek"])
def test_what_happens_while_acknowledged_entries_are_settled(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    monkeypatch.setattr(pending_acks, "STEP_ENTRIES", 2)

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 20) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join()
            subscription = reader.subscription
            last = AckedEntry(reader.ledger_id, 15)
            assert not subscription.acknowledge(reader.consumer, [last], cumulative=True)
            reader.channel.received.clear()
            if event == "redeliver":
                subscription.redeliver(reader.consumer, [])
                await quiet()
            else:
                if event == "seek":
                    await subscription.seek(EARLIEST)
                await reader.leave()
                reader = await Reader(served, "b", EXCLUSIVE).join()
            expected = list(range(20)) if event == "seek" else [16, 17, 18, 19]
            assert reader.received == expected
            assert sorted(entry_id for _, entry_id in reader.consumer.pending) == expected
            assert reader.consumer.unacked == len(expected)

    run(main())


@pytest.mark.parametrize("start", [EARLIEST, LATEST])
def test_the_mark_delete_position_is_always_known(bench: Workbench, topic: Topic, start: Any) -> None:
    """S3."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 5) as served:
            reader = await Reader(served, "a", EXCLUSIVE, durable=False, start=start).join(permits=0)
            before = reader.subscription.position.mark_delete_or_start_id
            assert before.entry_id == (-1 if start == EARLIEST else 4)
            if start == LATEST:
                produce(served, ["k"])
                await reader.flow(ALL)
                assert reader.subscription.position.mark_delete_or_start_id.entry_id == 4
                await reader.acknowledge(5)
                assert reader.subscription.position.mark_delete_or_start_id.entry_id == 5

    run(main())


def test_a_consumer_that_acknowledges_a_part_of_a_batch_gets_more(bench: Workbench, topic: Topic) -> None:
    async def main() -> None:
        async with opened(bench, topic, max_unacked_messages=10) as served:
            append(served, batch(*((b"k", b"v") for _ in range(10))), message(), message())
            reader = await Reader(served, "a", SHARED).join()
            assert reader.received == [0]
            reader.subscription.acknowledge(reader.consumer, [AckedEntry(reader.ledger_id, 0, -1, [0b1])])
            await quiet()
            assert reader.received == [0, 1, 2]

    run(main())
