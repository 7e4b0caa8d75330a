"""Selectors: the consumer of a subscription that an entry is delivered to. They only keep consumers and decide.

SingleActive      exclusive, failover: one of the first priority, chosen by the number of the partition
RoundRobin        shared: in turn, those of the first priority that can receive a message
ConsistentHash    key-shared: by the hash of the key; few keys move when consumers change
StickyRanges      key-shared: in the ranges of hashes that consumers request
ChunkAssignments  all chunks of a message are delivered to one consumer (Pulsar's SharedConsumerAssignor)
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from operator import itemgetter
from typing import Protocol

import numpy as np

from api.broker.key_hashes import murmur3
from api.broker.refusals import IncompatibleKeySharedConsumer
from api.broker.serving.consumer import Consumer, SubscriptionType
from api.broker.serving.key_routing import HASH_SLOTS

RING_POINTS = 100
"""Points of each consumer in the ring (Pulsar's subscriptionKeySharedConsistentHashingReplicaPoints)."""
_NUMBER_BITS = 32
"""A point of the ring is one integer: its hash, and the number of its consumer in the low bits."""
MAX_CHUNKED = 10_000
"""Chunked messages of one subscription that may be partly delivered; the oldest is removed first."""

CanReceive = Callable[[Consumer], bool]


class Selector(Protocol):
    """The consumers of one subscription, and the rule that selects the consumer for an entry."""

    def check_compatible(self, consumer: Consumer) -> None:
        """Raise IncompatibleKeySharedConsumer for a consumer that does not fit the others."""

    def add(self, consumer: Consumer) -> None:
        """Add a consumer to those among which `select` chooses."""

    def remove(self, *consumers: Consumer) -> None:
        """Remove several consumers in one step. Unknown ones are ignored."""

    def select(self, key_hash: int, can_receive: CanReceive) -> Consumer | None:
        """Return the consumer for an entry whose key has that hash; None: it cannot be delivered now."""


class SingleActive:
    """The selector for exclusive and failover subscriptions: one active consumer receives all entries. Failover
    consumers of partitions spread: by priority, then by name, then by partition."""

    def __init__(self, partition: int) -> None:
        self._partition = max(partition, 0)
        self._ranking: list[tuple[int, str, int, Consumer]] = []
        """Priority, name, number of the join, consumer; ascending."""
        self._joined = 0
        self.active: Consumer | None = None

    def check_compatible(self, consumer: Consumer) -> None:
        """Accept any consumer."""

    def add(self, consumer: Consumer) -> None:
        self._joined += 1
        insort(self._ranking, (consumer.options.priority, consumer.name, self._joined, consumer))
        self._elect()

    def remove(self, *consumers: Consumer) -> None:
        leaving = set(consumers)
        self._ranking = [item for item in self._ranking if item[3] not in leaving]
        self._elect()

    def select(self, key_hash: int, can_receive: CanReceive) -> Consumer | None:
        return self.active if self.active is not None and can_receive(self.active) else None

    def _elect(self) -> None:
        """Set `active` to the consumer of the first priority that the partition's number selects; None: there is
        none."""
        if not self._ranking:
            self.active = None
            return
        first_priority = bisect_right(self._ranking, self._ranking[0][0], key=itemgetter(0))
        self.active = self._ranking[self._partition % first_priority][3]


class RoundRobin:
    """The selector for shared subscriptions: consumers take turns; one of a lower priority receives only while none of
    a higher one can.

    A consumer that cannot receive is not asked again before `recheck_consumers`, so a choice costs the same with any
    number of them.
    """

    def __init__(self) -> None:
        self._levels: dict[int, _PriorityLevel] = {}
        self._order: list[int] = []

    def check_compatible(self, consumer: Consumer) -> None:
        """Accept any consumer."""

    def add(self, consumer: Consumer) -> None:
        self._levels.setdefault(consumer.options.priority, _PriorityLevel()).add(consumer)
        self._order = sorted(self._levels)

    def remove(self, *consumers: Consumer) -> None:
        leaving = set(consumers)
        for priority in {consumer.options.priority for consumer in consumers} & self._levels.keys():
            self._levels[priority].remove(leaving)
            if self._levels[priority].is_empty:
                del self._levels[priority]
        self._order = sorted(self._levels)

    def recheck_consumers(self) -> None:
        """Reset what is known of consumers that could not receive: the next choice asks all of them again."""
        for level in self._levels.values():
            level.recheck_consumers()

    def any_can_receive(self, can_receive: CanReceive) -> bool:
        """Return whether some consumer can receive a message now. No consumer has its turn by this."""
        return any(self._levels[priority].next(can_receive) is not None for priority in self._order)

    def select(self, key_hash: int, can_receive: CanReceive) -> Consumer | None:
        for priority in self._order:
            level = self._levels[priority]
            number = level.next(can_receive)
            if number is not None:
                return level.take_turn(number)
        return None


class _PriorityLevel:
    """The consumers of one priority of a shared subscription, numbered in the order in which they joined."""

    def __init__(self) -> None:
        self._consumers: dict[int, Consumer] = {}
        self._candidates: list[int] = []
        """The numbers of those that were not seen unable to receive since `recheck_consumers`; ascending."""
        self._joined = 0
        self._turn = 0
        """The number of the consumer that had the last turn."""

    @property
    def is_empty(self) -> bool:
        return not self._consumers

    def add(self, consumer: Consumer) -> None:
        self._joined += 1
        self._consumers[self._joined] = consumer
        self._candidates.append(self._joined)

    def remove(self, leaving: set[Consumer]) -> None:
        self._consumers = {number: item for number, item in self._consumers.items() if item not in leaving}
        self._candidates = [number for number in self._candidates if number in self._consumers]

    def recheck_consumers(self) -> None:
        if len(self._candidates) < len(self._consumers):
            self._candidates = list(self._consumers)

    def next(self, can_receive: CanReceive) -> int | None:
        """Return the number of the next consumer in turn that can receive a message; None: none can."""
        at = bisect_right(self._candidates, self._turn)
        while self._candidates:
            at %= len(self._candidates)
            if can_receive(self._consumers[self._candidates[at]]):
                return self._candidates[at]
            del self._candidates[at]
        return None

    def take_turn(self, number: int) -> Consumer:
        """Note that the consumer of this number has its turn now, and return that consumer."""
        self._turn = number
        return self._consumers[number]


class ConsistentHash:
    """The selector for key-shared subscriptions that divides the hashes itself, by a ring of points: a consumer has the
    hashes before each of its points, back to the point before."""

    def __init__(self) -> None:
        self._ring = np.empty(0, np.int64)
        """The points, ascending: the hash, then the number of the consumer in `_NUMBER_BITS`."""
        self._consumers: dict[int, Consumer] = {}
        """Consumers, by the number of their join."""
        self._joined = 0

    def check_compatible(self, consumer: Consumer) -> None:
        if consumer.options.sticky_ranges is not None:
            raise _other_mode_error(consumer)

    def add(self, consumer: Consumer) -> None:
        self._joined += 1
        self._consumers[self._joined] = consumer
        hashes = (
            murmur3(f"{consumer.name} {self._joined} {number}".encode()) % HASH_SLOTS for number in range(RING_POINTS)
        )
        points = np.sort(np.fromiter((_ring_point(item, self._joined) for item in hashes), np.int64, RING_POINTS))
        self._ring = np.insert(self._ring, self._ring.searchsorted(points), points)

    def remove(self, *consumers: Consumer) -> None:
        leaving = set(consumers)
        numbers = [number for number, item in self._consumers.items() if item in leaving]
        if numbers:
            for number in numbers:
                del self._consumers[number]
            self._ring = self._ring[~np.isin(self._ring % (1 << _NUMBER_BITS), numbers)]

    def select(self, key_hash: int, can_receive: CanReceive) -> Consumer | None:
        if not self._consumers:
            return None
        point = int(self._ring[self._ring.searchsorted(_ring_point(key_hash, 0)) % len(self._ring)])
        consumer = self._consumers[point % (1 << _NUMBER_BITS)]
        return consumer if can_receive(consumer) else None


class StickyRanges:
    """The selector for key-shared subscriptions whose consumers request ranges of hashes. Ranges do not overlap;
    entries with a hash in no range wait."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Consumer]] = []
        """First hash, last hash, consumer; ascending."""

    def check_compatible(self, consumer: Consumer) -> None:
        if consumer.options.sticky_ranges is None:
            raise _other_mode_error(consumer)
        before: tuple[int, int] | None = None
        for first, last in sorted(consumer.options.sticky_ranges):
            if before is not None and first <= before[1]:
                raise _overlap_error(consumer, (first, last), f"{before[0]}-{before[1]}, which it asks for, too")
            before = first, last
            at = bisect_right(self._ranges, last, key=itemgetter(0)) - 1
            if at >= 0 and self._ranges[at][1] >= first:
                low, high, other = self._ranges[at]
                raise _overlap_error(consumer, (first, last), f"{low}-{high} of {other.name}")

    def add(self, consumer: Consumer) -> None:
        self._ranges += [(first, last, consumer) for first, last in consumer.options.sticky_ranges or ()]
        self._ranges.sort(key=itemgetter(0))

    def remove(self, *consumers: Consumer) -> None:
        leaving = set(consumers)
        self._ranges = [item for item in self._ranges if item[2] not in leaving]

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
        """Note the consumer to which a chunk of a message was delivered: it receives the next chunks, too. `is_last`:
        the message is complete, and is removed.

        At most `MAX_CHUNKED` messages are kept; beyond, the oldest one is removed.
        """
        if is_last:
            self._consumers.pop(uuid, None)
            return
        if uuid not in self._consumers and len(self._consumers) >= MAX_CHUNKED:
            del self._consumers[next(iter(self._consumers))]
        self._consumers[uuid] = consumer

    def remove(self, *consumers: Consumer) -> None:
        """Remove consumers. Their partly delivered chunked messages begin again with another consumer."""
        leaving = set(consumers)
        self._consumers = {uuid: item for uuid, item in self._consumers.items() if item not in leaving}

    def clear(self) -> None:
        """Remove the consumers of all chunked messages."""
        self._consumers.clear()


def selector_for(first: Consumer, partition: int) -> Selector:
    """Return the selector for a subscription whose first consumer is `first`. It is not added to the selector.

    `partition`: the number of the topic's partition; -1: the topic is no partition.
    """
    if first.type is SubscriptionType.SHARED:
        return RoundRobin()
    if first.type is SubscriptionType.KEY_SHARED:
        return ConsistentHash() if first.options.sticky_ranges is None else StickyRanges()
    return SingleActive(partition)


def _ring_point(key_hash: int, number: int) -> int:
    """Return a point of the ring as one integer: a hash, and the number of a consumer in the low bits."""
    return key_hash << _NUMBER_BITS | number


def _other_mode_error(consumer: Consumer) -> IncompatibleKeySharedConsumer:
    return IncompatibleKeySharedConsumer(
        f"the consumer {consumer.name} asks for another key-shared mode than the subscription's consumers",
        "use the same mode for all consumers of a subscription",
    )


def _overlap_error(consumer: Consumer, requested: tuple[int, int], taken: str) -> IncompatibleKeySharedConsumer:
    return IncompatibleKeySharedConsumer(
        f"the range {requested[0]}-{requested[1]} of {consumer.name} overlaps {taken}", "ask for ranges that are free"
    )
