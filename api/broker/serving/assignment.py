"""The assignment of entries to the consumers of one subscription: by selector, owners of key hashes and partly
delivered chunked messages.

The selector names a consumer (selection.py). Two rules come first: an entry that continues a chunked message is for the
consumer of the first chunk, and an entry waits while another consumer has unacknowledged ones of its key
(draining.py).

For the event loop alone. Must not know: entries that wait, the topic.
"""

from __future__ import annotations

from collections.abc import Callable

from api.broker.serving.consumer import Consumer, SubscriptionType
from api.broker.serving.draining import DrainingHashes
from api.broker.serving.key_routing import DeliveryHeader
from api.broker.serving.pending_acks import Group
from api.broker.serving.selection import ChunkAssignments, RoundRobin, SingleActive, selector_for


class Assignment:
    """The consumers of one subscription, and the choice of the consumer for each entry."""

    def __init__(self, first: Consumer, partition: int, can_receive: Callable[[Consumer], bool]) -> None:
        """Make an assignment without consumers. `first`: the first consumer, whose type and key-shared mode later ones
        share; it is not added. `can_receive` returns whether a consumer may be sent a message now."""
        self.consumers: list[Consumer] = []
        self._selector = selector_for(first, partition)
        self._by_key = first.type is SubscriptionType.KEY_SHARED
        self._can_receive = can_receive
        self._hash_owners = DrainingHashes()
        self._chunks = ChunkAssignments()

    @property
    def active(self) -> Consumer | None:
        """The consumer that receives all messages; None: there is none, or the type is not a single active one."""
        return self._selector.active if isinstance(self._selector, SingleActive) else None

    def check_compatible(self, consumer: Consumer) -> None:
        """Raise IncompatibleKeySharedConsumer for a consumer that does not fit the others."""
        self._selector.check_compatible(consumer)

    def add(self, consumer: Consumer) -> None:
        """Add a consumer to those that entries are assigned to."""
        self.consumers.append(consumer)
        self._selector.add(consumer)

    def remove(self, *consumers: Consumer) -> None:
        """Remove several consumers in one step, with their chunked messages. Unknown ones are ignored."""
        leaving = set(consumers)
        self.consumers = [item for item in self.consumers if item not in leaving]
        self._selector.remove(*consumers)
        self._chunks.remove(*consumers)

    def recheck_consumers(self) -> None:
        """Reset what is known of consumers that could not receive: the next choice asks all of them again."""
        if isinstance(self._selector, RoundRobin):
            self._selector.recheck_consumers()

    def any_can_receive(self) -> bool:
        """Return whether some consumer may be sent a message now."""
        if isinstance(self._selector, RoundRobin):
            return self._selector.any_can_receive(self._can_receive)
        return any(map(self._can_receive, self.consumers))

    def choose(self, header: DeliveryHeader) -> Consumer | None:
        """Return the consumer to which an entry may be delivered now; None: the entry has to wait."""
        if header.chunk and not self._by_key:
            owner = self._chunks.get(header.chunk)
            if owner is not None:
                return owner if self._can_receive(owner) else None
        key_hash = header.group if isinstance(header.group, int) else 0
        consumer = self._selector.select(key_hash, self._can_receive)
        if consumer is not None and self._by_key and not self._hash_owners.allows(key_hash, consumer):
            return None
        return consumer

    def is_deliverable(self, group: Group) -> bool:
        """Return whether a consumer can receive entries of a group now."""
        if isinstance(group, str):
            owner = self._chunks.get(group)
            return self.any_can_receive() if owner is None else self._can_receive(owner)
        if isinstance(group, int):
            return self.choose(DeliveryHeader(group)) is not None
        return self.any_can_receive()

    def note_delivered(self, header: DeliveryHeader, consumer: Consumer) -> None:
        """Note that an entry is delivered to a consumer, which also gets the next entries of its key or chunked
        message."""
        if header.chunk and not self._by_key:
            self._chunks.note(header.chunk, consumer, header.is_last_chunk)
        if self._by_key and isinstance(header.group, int):
            self._hash_owners.add_entry(header.group, consumer)

    def note_entry_left_consumer(self, group: Group) -> None:
        """Note that a consumer has lost an entry of a group: it was acknowledged, returned or dropped. After the last
        one of a key another consumer may receive the key."""
        if self._by_key and isinstance(group, int):
            self._hash_owners.subtract_entry(group)

    def clear_partial_chunks(self) -> None:
        """Drop the assignments of partly delivered chunked messages to consumers: all entries are read again."""
        self._chunks.clear()
