"""Offsets that wait to be delivered: again, or after they were passed over because no consumer could take them.

Entries of a group (the hash of a key, the uuid of a chunked message) go in the order of their offsets: the first one
blocks those after it. Groups do not block each other. What waits is an offset and a group; the entry is read when it
goes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import islice

from api.broker.serving.pending_acks import Group

SEARCHED_GROUPS = 1_000
"""Groups that one search looks at: those of 65,536 keys would hold the event loop for 100 ms."""


class RedeliveryQueue:
    """Offsets by group, lowest first."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}
        """By offset."""
        self._offsets: dict[Group, list[int]] = {}
        """A heap for each group; offsets that were removed are still in it until they come to its top. The groups that
        a search has looked at are last."""
        self._searched = 0

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, offset: int) -> bool:
        return offset in self._groups

    def add(self, offset: int, group: Group) -> None:
        """Add an offset; one that waits already is left alone."""
        if offset not in self._groups:
            self._groups[offset] = group
            if group not in self._offsets:
                self._offsets[group] = []
                self.search_again()
            heapq.heappush(self._offsets[group], offset)

    def remove(self, offset: int) -> None:
        """Remove an offset; one that does not wait is ignored."""
        group = self._groups.pop(offset, None)
        heap = self._offsets.get(group)
        if heap is not None:
            self._clean(group, heap)

    def regroup(self, offset: int, group: Group) -> bool:
        """Move an offset that waits without a group into one. Return whether it was moved."""
        if group is None or self._groups.get(offset, group) is not None:
            return False
        self.remove(offset)
        self.add(offset, group)
        return True

    def blocks(self, group: Group) -> bool:
        """Return whether an entry of that group has to wait for others of it."""
        return group is not None and group in self._offsets

    def is_next(self, offset: int) -> bool:
        """Return whether an offset waits, and is the lowest of its group."""
        if offset not in self._groups:
            return False
        group = self._groups[offset]
        return group is None or self._offsets[group][0] == offset

    def next(self, can_go: Callable[[Group], bool]) -> int | None:
        """Return the lowest offset of the groups that can go, of `SEARCHED_GROUPS` at a time; None: there is none, or
        `is_searching`: the next call continues."""
        groups = list(islice(self._offsets, SEARCHED_GROUPS))
        offset = min((self._offsets[group][0] for group in groups if can_go(group)), default=None)
        self._searched = 0 if offset is not None else self._searched + len(groups)
        if self.is_searching:
            for group in groups:
                self._offsets[group] = self._offsets.pop(group)
        return offset

    @property
    def is_searching(self) -> bool:
        """Whether the last search has not looked at all groups."""
        return 0 < self._searched < len(self._offsets)

    def search_again(self) -> None:
        """Look at all groups again: one may be able to go now."""
        self._searched = 0

    def clear(self) -> None:
        """Forget all."""
        self._groups.clear()
        self._offsets.clear()
        self.search_again()

    def _clean(self, group: Group, heap: list[int]) -> None:
        """Keep a waiting offset at the top of the heap."""
        while heap and self._groups.get(heap[0], _ABSENT) != group:
            heapq.heappop(heap)
        if not heap:
            del self._offsets[group]
            self.search_again()


_ABSENT = object()
