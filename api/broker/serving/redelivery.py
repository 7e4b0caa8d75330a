"""The queue of offsets that wait for a delivery: again, or for the first time if no consumer could receive them.

Entries of a group (the hash of a key, the uuid of a chunked message) are delivered in the order of their offsets: the
first one blocks those after it. Groups do not block each other. The queue holds offsets and groups, not entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import islice

from api.broker.serving.pending_acks import Group

SEARCHED_GROUPS = 1_000
"""Groups that one search checks: 65,536 would occupy the event loop for 100 ms."""


class WaitingOffsets:
    """Offsets of entries that wait for a consumer, by group, lowest first."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}
        """By offset."""
        self._offsets: dict[Group, list[int]] = {}
        """A heap for each group. A removed offset stays in it until it comes to the top. Groups that a search has
        checked are moved to the end."""
        self._searched = 0

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, offset: int) -> bool:
        return offset in self._groups

    def add(self, offset: int, group: Group) -> None:
        """Add the offset of an entry that waits for a consumer. One that waits already keeps its group."""
        if offset not in self._groups:
            self._groups[offset] = group
            if group not in self._offsets:
                self._offsets[group] = []
                self.recheck_groups()
            heapq.heappush(self._offsets[group], offset)

    def remove(self, offset: int) -> None:
        """Remove the offset of an entry from those that wait for a consumer. An unknown one is ignored."""
        group = self._groups.pop(offset, None)
        heap = self._offsets.get(group)
        if heap is not None:
            self._clean(group, heap)

    def set_group_if_missing(self, offset: int, group: Group) -> bool:
        """Move an offset that waits without a group into one. Return whether it was moved."""
        if group is None or self._groups.get(offset, group) is not None:
            return False
        self.remove(offset)
        self.add(offset, group)
        return True

    def blocks(self, group: Group) -> bool:
        """Return whether a new entry of that group has to wait until earlier ones are delivered."""
        return group is not None and group in self._offsets

    def is_next(self, offset: int) -> bool:
        """Return whether an offset waits, and is the lowest of its group."""
        if offset not in self._groups:
            return False
        group = self._groups[offset]
        return group is None or self._offsets[group][0] == offset

    def next(self, is_deliverable: Callable[[Group], bool]) -> int | None:
        """Return the lowest waiting offset of the groups for which `is_deliverable` is true, among the next
        `SEARCHED_GROUPS` groups.

        None: no group of them is deliverable; while `has_unchecked_groups`, the next call checks more groups.
        """
        groups = list(islice(self._offsets, SEARCHED_GROUPS))
        offset = min((self._offsets[group][0] for group in groups if is_deliverable(group)), default=None)
        self._searched = 0 if offset is not None else self._searched + len(groups)
        if self.has_unchecked_groups:
            for group in groups:
                self._offsets[group] = self._offsets.pop(group)
        return offset

    @property
    def has_unchecked_groups(self) -> bool:
        """True while the search for a deliverable offset has not checked all groups."""
        return 0 < self._searched < len(self._offsets)

    def recheck_groups(self) -> None:
        """Let the search for a deliverable offset check all groups again, because one may be deliverable now."""
        self._searched = 0

    def clear(self) -> None:
        """Remove all waiting offsets."""
        self._groups.clear()
        self._offsets.clear()
        self.recheck_groups()

    def _clean(self, group: Group, heap: list[int]) -> None:
        """Remove offsets that do not wait any more from the top of a group's heap, and the group if its heap is
        empty."""
        while heap and self._groups.get(heap[0], _ABSENT) != group:
            heapq.heappop(heap)
        if not heap:
            del self._offsets[group]
            self.recheck_groups()


_ABSENT = object()
