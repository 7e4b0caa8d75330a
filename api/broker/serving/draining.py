"""Key hashes whose messages a consumer has and has not acknowledged (Pulsar's DrainingHashesTracker).

A hash stays with its consumer until all of its entries are acknowledged or given back: another consumer that the
selector names meanwhile waits, so messages of a key are never with two consumers at once.
"""

from __future__ import annotations

from collections import Counter

from api.broker.serving.consumer import Consumer


class DrainingHashes:
    """Hash → consumer, as long as entries of the hash are pending."""

    def __init__(self) -> None:
        self._consumers: dict[int, Consumer] = {}
        self._entries: Counter[int] = Counter()

    def allows(self, key_hash: int, consumer: Consumer) -> bool:
        """Return whether an entry of that hash may go to a consumer now."""
        return self._consumers.get(key_hash, consumer) is consumer

    def add(self, key_hash: int, consumer: Consumer) -> None:
        """Count an entry that was delivered."""
        self._consumers[key_hash] = consumer
        self._entries[key_hash] += 1

    def remove(self, key_hash: int) -> None:
        """Discount an entry that was acknowledged or given back."""
        if self._entries[key_hash] > 1:
            self._entries[key_hash] -= 1
        else:
            del self._entries[key_hash]
            self._consumers.pop(key_hash, None)

    def clear(self) -> None:
        """Forget all hashes."""
        self._consumers.clear()
        self._entries.clear()
