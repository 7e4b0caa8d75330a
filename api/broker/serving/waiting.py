"""Entries of a shared or key-shared subscription that were read and wait for their delivery.

    returned    delivered before; a consumer left or asked for it again
    held        no consumer could take it when it was read, and its group (redelivery.py) must stay in order
    delayed     its delivery time has not come (delayed.py)

An entry waits as an offset and a group. Held entries keep their content while `HELD_BYTES` admit it; every other one is
read again when it is delivered, with the entries after it, as the replay page. `release_memory` drops all content at
any time.

For the event loop alone. Must not know: consumers, the topic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from api.broker.serving.delayed import DelayedEntries
from api.broker.serving.page_budget import entry_bytes
from api.broker.serving.pending_acks import Group, PendingAck
from api.broker.serving.redelivery import WaitingOffsets
from storage.entries.rebuild import DeliverableEntry

MAX_HELD = 2_000
"""Entries that may be held while others are delivered."""
MAX_QUEUED = 200_000
"""Entries that may wait for a consumer. Beyond, no entry is read, and delayed ones that are due stay in bitmaps."""
HELD_BYTES = 4 << 20
"""Bytes of held entries that stay in memory."""


class WaitingEntries:
    """The entries of one subscription that were read and wait for their delivery."""

    def __init__(self) -> None:
        self.queue = WaitingOffsets()
        self._returned: dict[int, PendingAck] = {}
        self._held: dict[int, DeliverableEntry | None] = {}
        """By offset; None: it is read again."""
        self._held_bytes = 0
        self._ack_starts: dict[int, int] = {}
        """For an entry whose acknowledgement begins before its own offset: where."""
        self.delayed = DelayedEntries()
        self._replay: Sequence[DeliverableEntry] = ()
        self._replay_bytes = 0

    @property
    def bytes(self) -> int:
        """The memory of the entries that are kept with their content."""
        return self._replay_bytes + self._held_bytes

    @property
    def is_full(self) -> bool:
        """True if no more entries may be read until some of the waiting ones are delivered."""
        return self.delayed.is_full or len(self._held) >= MAX_HELD or self._is_queue_full

    @property
    def _is_queue_full(self) -> bool:
        return len(self.queue) >= MAX_QUEUED

    @property
    def next_due_ms(self) -> int | None:
        """The time in ms at which `queue_due` can queue an entry; None: none, before some are delivered."""
        return None if self._is_queue_full else self.delayed.next_due_ms

    def add_returned(self, pending: PendingAck) -> None:
        """Add an entry that its consumer has returned, for its next delivery."""
        self._returned[pending.offset] = pending
        self.queue.add(pending.offset, pending.group)

    def add_held(self, entry: DeliverableEntry, group: Group, ack_start: int) -> None:
        """Add an entry that no consumer can receive now. Its acknowledgement begins at the offset `ack_start`."""
        self._note_ack_start(entry.offset, ack_start)
        fits = self._held_bytes + len(entry.data) <= HELD_BYTES
        self._held[entry.offset] = entry if fits else None
        self._held_bytes += len(entry.data) if fits else 0
        self.queue.add(entry.offset, group)

    def add_delayed(self, offset: int, due_ms: int, ack_start: int) -> None:
        """Add an entry that is delivered from a time on. Its acknowledgement begins at the offset `ack_start`."""
        self._note_ack_start(offset, ack_start)
        self.delayed.add(due_ms, offset)

    def queue_due(self, now_ms: int) -> None:
        """Move delayed entries whose delivery time has come to the queue, as many as one step of the event loop may
        take."""
        for offset in () if self._is_queue_full else self.delayed.pop_due(now_ms):
            self.queue.add(offset, None)

    def ack_start(self, offset: int) -> int:
        """Return the offset at which the acknowledgement of a waiting entry begins, at or before its own."""
        return self._ack_starts.get(offset, offset)

    def entries_in_memory(self, offset: int) -> Sequence[DeliverableEntry]:
        """Return the entry at an offset, and entries after it that are in memory; empty: it is not in memory."""
        content = self._held.get(offset)
        if content is not None:
            return [content]
        at = bisect_left(self._replay, offset, key=lambda entry: entry.offset)
        if at < len(self._replay) and self._replay[at].offset == offset:
            return self._replay[at:]
        return ()

    def set_replay_page(self, entries: Sequence[DeliverableEntry]) -> None:
        """Keep a page of entries that was read for redelivery, in place of the previous one."""
        self._replay, self._replay_bytes = entries, sum(map(entry_bytes, entries))

    def drop(self, offset: int) -> PendingAck | None:
        """Remove a waiting entry that is delivered, acknowledged or not in the topic any more.

        Return its earlier delivery; None: it was not delivered before.
        """
        self.queue.remove(offset)
        self._ack_starts.pop(offset, None)
        content = self._held.pop(offset, None)
        if content is not None:
            self._held_bytes -= len(content.data)
        if not len(self.queue):
            self.set_replay_page(())
        return self._returned.pop(offset, None)

    def cancel_redelivery(self, offset: int) -> None:
        """Remove the waiting entry at an offset if a consumer has returned it, because it was acknowledged before its
        next delivery."""
        if offset in self._returned:
            self.drop(offset)

    def release_memory(self) -> None:
        """Drop the content of all waiting entries from memory; it is read again when it is needed."""
        self.set_replay_page(())
        self._held = dict.fromkeys(self._held)
        self._held_bytes = 0

    def clear(self) -> None:
        """Remove all waiting entries."""
        self.release_memory()
        self.queue.clear()
        self._returned.clear()
        self._held.clear()
        self._ack_starts.clear()
        self.delayed.clear()

    def _note_ack_start(self, offset: int, ack_start: int) -> None:
        if ack_start < offset:
            self._ack_starts[offset] = ack_start
