"""The newest entries of a topic that this service writes, in memory: consumers that keep up read no file.

Entries are added when they are acknowledged to their producers (logs.py), with their positions, so every reader may see
them. A tail has no gap: an entry that does not continue it begins a new tail. When all tails together exceed their
budget, they lose their oldest entries, first the tail to which nothing was added for longest.

For the event loop alone. Must not know: connections, cursors.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from api.broker.serving.page_budget import entry_bytes
from storage.entries.rebuild import DeliverableEntry
from storage.log.segment import AppendResult

READ_BYTES = 4 << 20
"""The bytes that one read returns at most; one entry is returned whatever its size."""


class TailBudget:
    """The memory budget of the tails of all topics (Pulsar's managedLedgerCacheSizeMB)."""

    def __init__(self, limit: int) -> None:
        """Make an empty budget. `limit`: the bytes that all tails together may have."""
        self._limit = limit
        self._held: dict[Tail, int] = {}
        """The bytes of each tail that has any; the last one grew last."""
        self._all = 0

    def set_held_bytes(self, tail: Tail, size: int) -> None:
        """Set the bytes of a tail, which has grown. If the budget is exceeded, tails drop their oldest entries, this
        one last."""
        self.remove_tail(tail)
        self._held[tail] = size
        self._all += size
        while self._all > self._limit:
            oldest = next(iter(self._held))
            oldest.drop_oldest(self._all - self._limit)
            size = oldest.bytes
            self._all -= self._held[oldest] - size
            self._held[oldest] = size
            if not size:
                del self._held[oldest]

    def remove_tail(self, tail: Tail) -> None:
        """Remove a tail, which is empty now, and its bytes from the budget."""
        self._all -= self._held.pop(tail, 0)


class Tail:
    """The newest entries of one topic, in memory, for consumers that keep up."""

    def __init__(self, budget: TailBudget) -> None:
        self._budget = budget
        self._entries: list[DeliverableEntry] = []
        self._offsets: list[int] = []
        self.bytes = 0
        """The memory of all entries."""
        self.end = -1
        """The offset after the last entry that was added; -1: the tail is empty and has no position."""

    def append(self, appended: Sequence[tuple[bytes, AppendResult]]) -> None:
        """Add entries that were just appended to the log. Entries before the end of the tail are ignored."""
        for data, result in appended:
            first = result.first
            if first.offset < self.end:
                continue
            if first.offset != self.end:
                self.clear()
            entry = DeliverableEntry(
                first.message_id.ledger_id,
                first.message_id.entry_id,
                first.offset,
                result.messages,
                data,
                (1 << result.messages) - 1,
                first.message_id.batch_index >= 0,
            )
            self._entries.append(entry)
            self._offsets.append(first.offset)
            self.bytes += entry_bytes(entry)
            self.end = entry.end
        self._budget.set_held_bytes(self, self.bytes)

    def read(self, offset: int) -> list[DeliverableEntry] | None:
        """Return entries from an offset on, about `READ_BYTES` at most; empty: the offset is the end of the topic.

        None: the entries are not in memory.
        """
        if offset == self.end:
            return []
        at = bisect_left(self._offsets, offset)
        if at == len(self._offsets) or self._offsets[at] != offset:
            return None
        entries: list[DeliverableEntry] = []
        size = 0
        for entry in self._entries[at:]:
            if entries and size + len(entry.data) > READ_BYTES:
                break
            entries.append(entry)
            size += len(entry.data)
        return entries

    def clear(self) -> None:
        """Remove all entries from memory. The next entry that is added begins a new tail."""
        self._budget.remove_tail(self)
        self._entries, self._offsets, self.bytes, self.end = [], [], 0, -1

    def drop_oldest(self, min_bytes: int) -> None:
        """Remove the oldest entries from memory, of at least `min_bytes` bytes together."""
        count, rest = 0, self.bytes
        while count < len(self._entries) and self.bytes - rest < min_bytes:
            rest -= entry_bytes(self._entries[count])
            count += 1
        del self._entries[:count], self._offsets[:count]
        self.bytes = rest
