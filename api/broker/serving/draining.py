"""Key hashes that have unacknowledged entries, each with its consumer (Pulsar's DrainingHashesTracker).

A hash stays with its consumer until all its entries are acknowledged or returned. A consumer that the selector names
meanwhile waits for that, so two consumers never have messages of one key at the same time.
"""

from __future__ import annotations

from collections import Counter

from api.broker.serving.consumer import Consumer


class DrainingHashes:
    """The consumer of each key hash that has unacknowledged entries, and their number."""

    def __init__(self) -> None:
        self._consumers: dict[int, Consumer] = {}
        self._entries: Counter[int] = Counter()

    def allows(self, key_hash: int, consumer: Consumer) -> bool:
        """Return whether an entry with this hash may be delivered to a consumer now: no other consumer has one."""
        return self._consumers.get(key_hash, consumer) is consumer

    def add_entry(self, key_hash: int, consumer: Consumer) -> None:
        """Add to the count of a hash's unacknowledged entries one that is delivered to a consumer, which then owns the
        hash."""
        self._consumers[key_hash] = consumer
        self._entries[key_hash] += 1

    def subtract_entry(self, key_hash: int) -> None:
        """Subtract from the count of a hash's unacknowledged entries one that was acknowledged or returned. After the
        last one any consumer may receive the hash."""
        if self._entries[key_hash] > 1:
            self._entries[key_hash] -= 1
        else:
            del self._entries[key_hash]
            self._consumers.pop(key_hash, None)
