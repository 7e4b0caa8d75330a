"""Selectors: the consumer of a subscription that an entry is delivered to. They only keep consumers and decide.

SingleActive      exclusive, failover: one of the first priority, chosen by the number of the partition
RoundRobin        shared: in turn, those of the first priority that can receive a message
ConsistentHash    key-shared: by the hash of the key; few keys move when consumers change
StickyRanges      key-shared: in the ranges of hashes that consumers request
ChunkAssignments  all chunks of a message are delivered to one consumer (Pulsar's SharedConsumerAssignor)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from operator import itemgetter
from typing import Protocol

from api.broker.key_hashes import murmur3
from api.broker.refusals import ConsumerNotAssigned
from api.broker.serving.consumer import Consumer, SubscriptionType
from api.broker.serving.key_routing import HASH_SLOTS

RING_POINTS = 100
"""Points of each consumer in the ring (Pulsar's subscriptionKeySharedConsistentHashingReplicaPoints)."""
MAX_CHUNKED = 10_000
"""Chunked messages of one subscription that may be partly delivered; the oldest is forgotten first."""

CanReceive = Callable[[Consumer], bool]


class Selector(Protocol):
    """The consumers of one subscription, and the choice among them."""

    def check(self, consumer: Consumer) -> None:
        """Raise ConsumerNotAssigned for a consumer that does not fit the others."""

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer. An unknown one is ignored."""

    def select(self, key_hash: int, can_receive: CanReceive) -> Consumer | None:
        """Return the consumer for an entry whose key has that hash; None: it cannot be delivered now."""


class SingleActive:
    """One active consumer. Failover consumers of partitions spread: by priority, then by name, then by partition."""

    def __init__(self, partition: int) -> None:
        self._partition = max(partition, 0)
        self._consumers: list[Consumer] = []
        self.active: Consumer | None = None

    def check(self, consumer: Consumer) -> None:
        """Accept any consumer."""

    def add(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)
        self._elect()

    def remove(self, consumer: Consumer) -> None:
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            self._elect()

    def select(self, key_hash: int, can_receive: CanReceive) -> Consumer | None:
        return self.active if self.active is not None and can_receive(self.active) else None

    def _elect(self) -> None:
        best = min((item.options.priority for item in self._consumers), default=0)
        equal = sorted((item for item in self._consumers if item.options.priority == best), key=lambda item: item.name)
        self.active = equal[self._partition % len(equal)] if equal else None


class RoundRobin:
    """Any consumer, in turn; one of a lower priority only while none of a higher one can receive a message."""

    def __init__(self) -> None:
        self._levels: dict[int, list[Consumer]] = {}
        self._order: list[int] = []
        self._turns: dict[int, int] = {}

    def check(self, consumer: Consumer) -> None:
        """Accept any consumer."""

    def add(self, consumer: Consumer) -> None:
        self._levels.setdefault(consumer.options.priority, []).append(consumer)
        self._order = sorted(self._levels)

    def remove(self, consumer: Consumer) -> None:
        level = self._levels.get(consumer.options.priority, [])
        if consumer in level:
            level.remove(consumer)
            if not level:
                del self._levels[consumer.options.priority]
                self._turns.pop(consumer.options.priority, None)
                self._order.remove(consumer.options.priority)

    def select(self, key_hash: int, can_receive: CanReceive) -> Consumer | None:
        for priority in self._order:
            level = self._levels[priority]
            turn = self._turns.get(priority, 0)
            for step in range(len(level)):
                consumer = level[(turn + step) % len(level)]
                if can_receive(consumer):
                    self._turns[priority] = (turn + step + 1) % len(level)
                    return consumer
        return None


class ConsistentHash:
    """A ring of points: a consumer has the hashes before each of its points, back to the point before."""

    def __init__(self) -> None:
        self._ring: list[tuple[int, int, Consumer]] = []
        self._joined = 0

    def check(self, consumer: Consumer) -> None:
        if consumer.options.sticky_ranges is not None:
            raise _other_mode(consumer)

    def add(self, consumer: Consumer) -> None:
        self._joined += 1
        for number in range(RING_POINTS):
            point = murmur3(f"{consumer.name} {self._joined} {number}".encode()) % HASH_SLOTS
            insort(self._ring, (point, self._joined, consumer), key=itemgetter(0, 1))

    def remove(self, consumer: Consumer) -> None:
        self._ring = [item for item in self._ring if item[2] is not consumer]

    def select(self, key_hash: int, can_receive: CanReceive) -> Consumer | None:
        if not self._ring:
            return None
        consumer = self._ring[bisect_left(self._ring, key_hash, key=itemgetter(0)) % len(self._ring)][2]
        return consumer if can_receive(consumer) else None


class StickyRanges:
    """Ranges that consumers request. They do not overlap; entries with a hash in no range wait."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Consumer]] = []
        """First hash, last hash, consumer; ascending."""

    def check(self, consumer: Consumer) -> None:
        if consumer.options.sticky_ranges is None:
            raise _other_mode(consumer)
        before: tuple[int, int] | None = None
        for first, last in sorted(consumer.options.sticky_ranges):
            if before is not None and first <= before[1]:
                raise _overlap(consumer, (first, last), f"{before[0]}-{before[1]}, which it asks for, too")
            before = first, last
            at = bisect_right(self._ranges, last, key=itemgetter(0)) - 1
            if at >= 0 and self._ranges[at][1] >= first:
                low, high, other = self._ranges[at]
                raise _overlap(consumer, (first, last), f"{low}-{high} of {other.name}")

    def add(self, consumer: Consumer) -> None:
        for first, last in consumer.options.sticky_ranges or ():
            insort(self._ranges, (first, last, consumer), key=itemgetter(0))

    def remove(self, consumer: Consumer) -> None:
        self._ranges = [item for item in self._ranges if item[2] is not consumer]

    def select(self, key_hash: int, can_receive: CanReceive) -> Consumer | None:
        at = bisect_right(self._ranges, key_hash, key=itemgetter(0)) - 1
        if at < 0 or self._ranges[at][1] < key_hash:
            return None
        consumer = self._ranges[at][2]
        return consumer if can_receive(consumer) else None


class ChunkAssignments:
    """The consumer of each partly delivered chunked message, by the message's uuid."""

    def __init__(self) -> None:
        self._consumers: dict[str, Consumer] = {}

    def get(self, uuid: str) -> Consumer | None:
        """Return the consumer that has the first chunks; None: any consumer may receive them."""
        return self._consumers.get(uuid)

    def note(self, uuid: str, consumer: Consumer, is_last: bool) -> None:
        """Note that a chunk was delivered to a consumer."""
        if is_last:
            self._consumers.pop(uuid, None)
            return
        if uuid not in self._consumers and len(self._consumers) >= MAX_CHUNKED:
            del self._consumers[next(iter(self._consumers))]
        self._consumers[uuid] = consumer

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer. Its partly delivered chunked messages begin again with another consumer."""
        self._consumers = {uuid: item for uuid, item in self._consumers.items() if item is not consumer}

    def clear(self) -> None:
        """Remove all messages."""
        self._consumers.clear()


def selector_for(first: Consumer, partition: int) -> Selector:
    """Return the selector of a subscription whose first consumer is `first`, of a topic's partition; -1: of none."""
    if first.type is SubscriptionType.SHARED:
        return RoundRobin()
    if first.type is SubscriptionType.KEY_SHARED:
        return ConsistentHash() if first.options.sticky_ranges is None else StickyRanges()
    return SingleActive(partition)


def _other_mode(consumer: Consumer) -> ConsumerNotAssigned:
    return ConsumerNotAssigned(
        f"the consumer {consumer.name} asks for another key-shared mode than the subscription's consumers",
        "use the same mode for all consumers of a subscription",
    )


def _overlap(consumer: Consumer, requested: tuple[int, int], taken: str) -> ConsumerNotAssigned:
    return ConsumerNotAssigned(
        f"the range {requested[0]}-{requested[1]} of {consumer.name} overlaps {taken}", "ask for ranges that are free"
    )
