"""The assignment of entries: chunked messages and keys stay with their consumer, whatever the selector names."""

from __future__ import annotations

from api.broker.serving.assignment import Assignment
from api.broker.serving.consumer import Consumer, SubscriptionType
from api.broker.serving.key_routing import DeliveryHeader
from tests.unit.api.broker.serving.consumers import EXCLUSIVE, KEY_SHARED, SHARED, consumer

FIRST_CHUNK, SECOND_CHUNK = DeliveryHeader("m", chunk="m"), DeliveryHeader("m", chunk="m", is_last_chunk=True)


class Crowd:
    """Consumers of one type; those in `full` can receive nothing."""

    def __init__(self, type_: SubscriptionType, *names: str) -> None:
        self.consumers = [consumer(name, type_) for name in names]
        self.full: set[Consumer] = set()
        self.assignment = Assignment(self.consumers[0], -1, lambda item: item not in self.full)
        for item in self.consumers:
            self.assignment.add(item)

    def deliver(self, header: DeliveryHeader) -> Consumer:
        chosen = self.assignment.choose(header)
        assert chosen is not None
        self.assignment.note_delivered(header, chosen)
        return chosen


def test_the_chunks_of_a_message_wait_for_the_consumer_of_the_first_one() -> None:
    crowd = Crowd(SHARED, "a", "b")
    owner = crowd.deliver(FIRST_CHUNK)
    crowd.full.add(owner)
    assert crowd.assignment.choose(SECOND_CHUNK) is None
    assert not crowd.assignment.is_deliverable("m")
    assert crowd.assignment.is_deliverable("n")
    assert crowd.deliver(DeliveryHeader()) is not owner
    crowd.full.clear()
    assert crowd.deliver(SECOND_CHUNK) is owner
    crowd.full.add(owner)
    assert crowd.assignment.is_deliverable("m"), "the message is complete"


def test_the_chunks_of_a_consumer_that_left_begin_again_at_another_one() -> None:
    crowd = Crowd(SHARED, "a", "b")
    owner = crowd.deliver(FIRST_CHUNK)
    crowd.assignment.remove(owner)
    assert crowd.deliver(FIRST_CHUNK) is not owner
    assert owner not in crowd.assignment.consumers


def test_a_key_stays_with_its_consumer_until_its_entries_are_released() -> None:
    crowd = Crowd(KEY_SHARED, "a")
    first = crowd.consumers[0]
    for key_hash in range(0, 65_536, 1_024):
        crowd.deliver(DeliveryHeader(key_hash))
    second = consumer("b", KEY_SHARED)
    crowd.assignment.add(second)
    moved = [
        key_hash
        for key_hash in range(0, 65_536, 1_024)
        if crowd.assignment.choose(DeliveryHeader(key_hash)) is not first
    ]
    assert 0 < len(moved) < 64
    assert not crowd.assignment.is_deliverable(moved[0]), "the new consumer has to wait for the first one"
    crowd.assignment.note_entry_left_consumer(moved[0])
    assert crowd.assignment.choose(DeliveryHeader(moved[0])) is second


def test_one_consumer_receives_all_of_a_single_active_type() -> None:
    crowd = Crowd(EXCLUSIVE, "a")
    assert crowd.assignment.active is crowd.consumers[0]
    assert crowd.assignment.choose(DeliveryHeader()) is crowd.consumers[0]
    crowd.full.update(crowd.consumers)
    assert crowd.assignment.choose(DeliveryHeader()) is None
    assert not crowd.assignment.any_can_receive()
    assert Crowd(SHARED, "a").assignment.active is None
