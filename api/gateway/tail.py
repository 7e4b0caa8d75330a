"""The newest entries of a topic that this service writes, in memory: consumers that keep up need no file.

Entries come in as they are acknowledged (api/messaging/topic_logs.py), with their places, so what is here is what any
reader may see. It is one piece without a gap; what does not continue it begins a new one. The oldest go first when the
bytes exceed the bound, which all topics of a service share.

For the event loop alone. Must not know: connections, cursors.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from storage.entries.rebuild import DeliverableEntry
from storage.log.segment import AppendResult

READ_BYTES = 4 << 20
"""What one read gives at most, and at least one entry."""


class TailBudget:
    """Bytes that the tails of all topics may hold (Pulsar's managedLedgerCacheSizeMB)."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0


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
            self._bytes += len(data)
            self._budget.held += len(data)
            self.end = entry.end
        self._shrink()

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
        self._budget.held -= self._bytes
        self._entries, self._offsets, self._bytes, self.end = [], [], 0, -1

    def _shrink(self) -> None:
        gone = 0
        while gone < len(self._entries) and self._budget.held > self._budget.most:
            size = len(self._entries[gone].data)
            self._bytes -= size
            self._budget.held -= size
            gone += 1
        if gone:
            del self._entries[:gone], self._offsets[:gone]
