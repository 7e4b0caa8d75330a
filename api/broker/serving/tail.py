"""The newest entries of a topic that this service writes, in memory: consumers that keep up need no file.

Entries come in as they are acknowledged (api/broker/serving/logs.py), with their places, so what is here is what any
reader may see. It is one piece without a gap; what does not continue it begins a new one. When all tails of a service
have more bytes than they may, the oldest entries go first of the topic to which nothing came for longest.

For the event loop alone. Must not know: connections, cursors.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from api.broker.serving.page_budget import entry_bytes
from storage.entries.rebuild import DeliverableEntry
from storage.log.segment import AppendResult

READ_BYTES = 4 << 20
"""What one read gives at most, and at least one entry."""


class TailBudget:
    """Bytes that the tails of all topics may hold (Pulsar's managedLedgerCacheSizeMB)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Tail, int] = {}
        """The bytes of each tail that has any; last the one that got some last."""
        self._all = 0

    def hold(self, tail: Tail, size: int) -> None:
        """A tail got entries, and has so many bytes now. Tails shrink until all fit, it last."""
        self.release(tail)
        self._held[tail] = size
        self._all += size
        while self._all > self._most:
            oldest = next(iter(self._held))
            left = oldest.shrink(self._all - self._most)
            self._all -= self._held[oldest] - left
            self._held[oldest] = left
            if not left:
                del self._held[oldest]

    def release(self, tail: Tail) -> None:
        """A tail has nothing any more."""
        self._all -= self._held.pop(tail, 0)


class Tail:
    """The newest entries of one topic."""

    def __init__(self, budget: TailBudget) -> None:
        self._budget = budget
        self._entries: list[DeliverableEntry] = []
        self._offsets: list[int] = []
        self._bytes = 0
        self.end = -1
        """The offset behind the last entry that was taken; -1: none was."""

    def append(self, appended: Sequence[tuple[bytes, AppendResult]]) -> None:
        """Take entries that were appended together. What is older than what is here is left out."""
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
            self._bytes += entry_bytes(entry)
            self.end = entry.end
        self._budget.hold(self, self._bytes)

    def read(self, offset: int) -> list[DeliverableEntry] | None:
        """The entries from an offset on, none if that is the end; None: they are not here."""
        if offset == self.end:
            return []
        at = bisect_left(self._offsets, offset)
        if at == len(self._offsets) or self._offsets[at] != offset:
            return None
        found: list[DeliverableEntry] = []
        size = 0
        for entry in self._entries[at:]:
            if found and size + len(entry.data) > READ_BYTES:
                break
            found.append(entry)
            size += len(entry.data)
        return found

    def clear(self) -> None:
        """Hold nothing, and know no end."""
        self._budget.release(self)
        self._entries, self._offsets, self._bytes, self.end = [], [], 0, -1

    def shrink(self, size: int) -> int:
        """Let go of the oldest entries, of so many bytes at least; the bytes that are left."""
        gone, left = 0, self._bytes
        while gone < len(self._entries) and self._bytes - left < size:
            left -= entry_bytes(self._entries[gone])
            gone += 1
        del self._entries[:gone], self._offsets[:gone]
        self._bytes = left
        return left
