"""The selectors of consumers: pure decisions, without a loop and without a topic."""

from __future__ import annotations

from collections import Counter

import pytest

from api.broker.refusals import IncompatibleKeySharedConsumer
from api.broker.serving.consumer import Consumer, SubscriptionType
from api.broker.serving.key_routing import sticky_hash
from api.broker.serving.selection import (
    HASH_SLOTS,
    ChunkAssignments,
    ConsistentHash,
    RoundRobin,
    SingleActive,
    StickyRanges,
)
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from tests.unit.api.broker.serving.consumers import consumer

FAILOVER, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED


def yes(_: Consumer) -> bool:
    return True


def test_the_active_consumer_goes_by_priority_then_name_then_partition() -> None:
    selector = SingleActive(1)
    low = consumer("a", FAILOVER, priority=1)
    selector.add(low)
    assert selector.active is low
    several = [consumer(name, FAILOVER) for name in "cbd"]
    for item in several:
        selector.add(item)
    assert selector.active is several[0], "the second by name of the first priority, for partition 1"
    selector.remove(several[0])
    assert selector.active is several[2]
    assert selector.select(0, lambda _: False) is None


def test_consumers_take_turns_and_lower_priorities_get_what_the_others_cannot_take() -> None:
    selector = RoundRobin()
    first, second, low = consumer("a"), consumer("b"), consumer("c", priority=1)
    for item in (low, first, second):
        selector.add(item)
    assert [selector.select(0, yes) for _ in range(4)] == [first, second, first, second]
    assert selector.select(0, lambda item: item is not first) is second
    assert selector.select(0, lambda item: item is low) is low
    selector.remove(first)
    selector.remove(second)
    selector.remove(second)
    assert selector.select(0, yes) is low


def test_few_hashes_move_when_a_consumer_joins() -> None:
    selector = ConsistentHash()
    several = [consumer(name, KEY_SHARED) for name in "abc"]
    for item in several:
        selector.add(item)
    before = [selector.select(number, yes) for number in range(0, HASH_SLOTS, 16)]
    joined = consumer("d", KEY_SHARED)
    selector.add(joined)
    after = [selector.select(number, yes) for number in range(0, HASH_SLOTS, 16)]
    assert all(new is old or new is joined for old, new in zip(before, after, strict=True))
    assert min(Counter(item.name for item in after if item).values()) > len(after) / 10
    selector.remove(joined)
    assert [selector.select(number, yes) for number in range(0, HASH_SLOTS, 16)] == before


def test_sticky_ranges_are_checked_against_their_neighbours_and_themselves() -> None:
    selector = StickyRanges()
    low = consumer("low", KEY_SHARED, sticky_ranges=((0, 99), (200, 299)))
    selector.check_compatible(low)
    selector.add(low)
    for ranges in (((50, 60),), ((99, 150),), ((100, 199), (150, 160)), ((100, 400),)):
        with pytest.raises(IncompatibleKeySharedConsumer, match="overlaps"):
            selector.check_compatible(consumer("x", KEY_SHARED, sticky_ranges=ranges))
    with pytest.raises(IncompatibleKeySharedConsumer, match="another key-shared mode"):
        selector.check_compatible(consumer("x", KEY_SHARED))
    middle = consumer("middle", KEY_SHARED, sticky_ranges=((100, 199),))
    selector.check_compatible(middle)
    selector.add(middle)
    assert [selector.select(number, yes) for number in (0, 99, 100, 199, 200, 299, 300)] == [
        low, low, middle, middle, low, low, None,
    ]  # fmt: skip
    selector.remove(low)
    assert selector.select(0, yes) is None


def test_a_consumer_of_ranges_does_not_fit_the_ring() -> None:
    with pytest.raises(IncompatibleKeySharedConsumer, match="another key-shared mode"):
        ConsistentHash().check_compatible(consumer("x", KEY_SHARED, sticky_ranges=((0, 1),)))


def test_the_chunks_of_a_message_stay_with_a_consumer_until_the_last() -> None:
    chunks, first, second = ChunkAssignments(), consumer("a"), consumer("b")
    chunks.note("m", first, is_last=False)
    chunks.note("n", second, is_last=False)
    assert (chunks.get("m"), chunks.get("n"), chunks.get("other")) == (first, second, None)
    chunks.remove(second)
    assert chunks.get("n") is None
    chunks.note("m", first, is_last=True)
    assert chunks.get("m") is None


def test_an_entry_without_a_key_spreads_by_producer_and_sequence() -> None:
    hashes = {
        sticky_hash(MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)) for number in range(50)
    }
    assert len(hashes) > 40
    same = [sticky_hash(MessageMetadata(producer_name="p", sequence_id=7, publish_time=at)) for at in (1, 2)]
    assert same[0] == same[1]


def test_the_ordering_key_comes_before_the_key() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key=b"k")
    by_key = sticky_hash(metadata)
    metadata.ordering_key = b"o"
    assert sticky_hash(metadata) != by_key
    other = MessageMetadata(producer_name="q", sequence_id=2, publish_time=1, ordering_key=b"o")
    assert sticky_hash(metadata) == sticky_hash(other)


def test_the_ring_is_the_same_however_its_consumers_came_and_went() -> None:
    several = [consumer(str(number), KEY_SHARED) for number in range(20)]
    by_hand, at_once = ConsistentHash(), ConsistentHash()
    for item in several:
        by_hand.add(item)
        at_once.add(item)
    for item in several[::2]:
        by_hand.remove(item)
    at_once.remove(*several[::2], consumer("unknown", KEY_SHARED))
    chosen = [at_once.select(number, yes) for number in range(0, HASH_SLOTS, 16)]
    assert chosen == [by_hand.select(number, yes) for number in range(0, HASH_SLOTS, 16)]
    assert set(chosen) == set(several[1::2])
    at_once.remove(*several)
    assert at_once.select(0, yes) is None


def test_a_consumer_that_cannot_receive_is_asked_once_until_it_may_be_able_to() -> None:
    """64 entries asked 64,000 times with 1,000 consumers of which one had permits: 20 ms in one step."""
    selector, several, calls = RoundRobin(), [consumer(str(number)) for number in range(1_000)], Counter[Consumer]()
    receptive = {several[-1]}

    def can_receive(item: Consumer) -> bool:
        calls[item] += 1
        return item in receptive

    for item in several:
        selector.add(item)
    assert selector.any_can_receive(can_receive)
    for _ in range(64):
        assert selector.select(0, can_receive) is several[-1]
    assert calls.total() < 1_100
    receptive.add(several[3])
    selector.recheck_consumers()
    assert [selector.select(0, can_receive) for _ in range(3)] == [several[3], several[-1], several[3]]
    assert calls.total() < 2_200


def test_consumers_that_leave_together_are_followed_by_one_election() -> None:
    selector, several = SingleActive(0), [consumer(f"{number:03}", FAILOVER) for number in range(100)]
    for item in several:
        selector.add(item)
    selector.remove(*several[:99], several[0])
    assert selector.active is several[99]
    selector.remove(*several)
    assert selector.active is None
