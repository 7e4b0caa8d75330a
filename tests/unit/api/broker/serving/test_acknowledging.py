"""Acknowledgements: slots of batches, and entries that are looked up in the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from api.broker.serving import acknowledging
from api.broker.serving.acknowledging import AckedEntry, AckedMessages, acked_messages
from api.broker.serving.position import SubscribeRequest
from api.broker.serving.subscription import Subscription
from storage.model import EARLIEST, LogPosition, MessageId
from storage.topic import Topic
from tests.unit.api.broker.serving.consumers import ALL, SHARED, Reader, consumer
from tests.unit.api.broker.serving.served_topic import opened
from tests.workbench import Workbench


def slots_of(count: int) -> list[tuple[int, LogPosition]]:
    """Return the slots of a batch at the offset 7."""
    return [(slot, LogPosition(7 + slot, MessageId(1, 0, -1, slot))) for slot in range(count)]


def words(bits: int) -> Sequence[int]:
    """Return an acknowledgement set: the slots that stay."""
    return [bits >> shift & ((1 << 64) - 1) for shift in range(0, bits.bit_length(), 64)]


@pytest.mark.parametrize("cumulative", [False, True])
def test_a_late_acknowledgement_of_slots_names_their_offsets(cumulative: bool) -> None:
    slots = slots_of(5)
    acked = acked_messages(slots, AckedEntry(1, 0, -1, words(0b01001)), cumulative)
    assert acked == (8, 0b1011, slots[4][1])
    assert acked_messages(slots, AckedEntry(1, 0, -1, words(0b11111)), cumulative) is None
    whole = acked_messages(slots, AckedEntry(1, 0, 2), cumulative)
    assert whole is not None
    assert whole.last.offset == (9 if cumulative else 11)


def test_a_late_acknowledgement_of_a_large_batch_is_looked_up_by_a_thread(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other slot of 262,144 cost 1.6 s of the event loop; an eighth of them takes the same way."""
    every_other = AckedEntry(1, 0, -1, words(int("10" * (1 << 14), 2)))
    acked = acked_messages(slots_of(1 << 15), every_other, False)

    def looked_up(_slots: object, _ack: AckedEntry, _cumulative: bool) -> AckedMessages | None:
        return acked

    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            request = SubscribeRequest("s", start=EARLIEST)
            subscription = Subscription(served, request, served.close_subscription)
            await subscription.open(request)
            monkeypatch.setattr(acknowledging, "acked_messages", looked_up)
            await subscription.acks.acknowledge_by_lookup(consumer("a"), [every_other], cumulative=False)
            assert subscription.position.backlog(7 + (1 << 15), 7) == 1 << 14

    asyncio.run(main())


def test_an_entry_that_is_delivered_before_its_late_acknowledgement_is_looked_up_is_not_read(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X6: a client acknowledged 3,000 copies of before an unload: the service read for a minute at a backlog of 0."""
    reads: list[MessageId] = []
    read = Topic.read

    def note(self: Topic, start: MessageId, *options: Any) -> Any:
        reads.append(start)
        return read(self, start, *options)

    monkeypatch.setattr(Topic, "read", note)

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 20) as served:
            reader = await Reader(served, "a", SHARED).join(permits=0)
            acks = reader.subscription.acks
            late = [AckedEntry(reader.ledger_id, number) for number in range(20)]
            unknown = reader.subscription.acknowledge(reader.consumer, late)
            assert unknown == late
            first = asyncio.create_task(acks.acknowledge_by_lookup(reader.consumer, unknown[:1], cumulative=False))
            others = asyncio.create_task(acks.acknowledge_by_lookup(reader.consumer, unknown[1:], cumulative=False))
            reader.consumer.add_permits(ALL, 0)
            reader.subscription.wake()
            while len(reader.received) < 19:
                await asyncio.sleep(0)
            assert not reader.subscription.acknowledge(reader.consumer, late[1:10])
            await asyncio.gather(first, others)
            assert len(reads) <= 3
            cursor = reader.subscription.position.cursor
            assert cursor is not None
            assert (cursor.acknowledged_to, reader.consumer.unacked) == (19, 0)

    asyncio.run(main())


def test_mark_delete_follows_acknowledgements_out_of_order_after_the_cursor_was_reset_by_another_process(
    bench: Workbench, topic: Topic
) -> None:
    """It is known up to a higher offset then, of the earlier position."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            reader = await Reader(served, "a", SHARED).join()
            await reader.acknowledge(0, 1, 2, 3)
            await reader.leave()
            bench.metadata.cursors.reset(topic.record.id, "s", None)
            again = await Reader(served, "b", SHARED).join()
            assert again.received == [0, 1, 2, 3]
            await again.acknowledge(3, 2, 1)
            await again.acknowledge(0)
            mark = again.subscription.position.current.mark_delete
            assert mark is not None
            assert mark.offset == 3

    asyncio.run(main())
