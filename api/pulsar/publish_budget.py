"""Entries that wait to be appended: bounded for each connection and for all connections of the service together.

A connection beyond its bound, or beyond that of all, handles no more requests until half of what may wait is appended.
For one event loop.
"""

from __future__ import annotations

from typing import Protocol

_REASON = "publishing"


class Holdable(Protocol):
    """A connection whose requests can be held back."""

    def hold_requests(self, reason: str) -> None:
        """Handle no request until `resume_requests` with the same reason."""

    def resume_requests(self, reason: str) -> None:
        """Handle requests again, unless there is another reason to hold them."""


class PublishBudget:
    """The limit for the bytes of entries of all connections that wait to be appended."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: set[PendingPublishes] = set()

    def add_and_check_full(self, pending: PendingPublishes, size: int) -> bool:
        """Add `size` bytes of a connection; a negative `size` is of entries that no longer wait.

        Return whether the limit is reached. Connections that have reached it are resumed when half of it is free.
        """
        self._bytes += size
        is_full = self._bytes >= self._max_bytes
        if is_full:
            self._held.add(pending)
        elif self._held and self._bytes <= self._max_bytes // 2:
            connections, self._held = self._held, set()
            for item in connections:
                item.resume_if_half_free()
        return is_full

    def cancel_resume(self, pending: PendingPublishes) -> None:
        """Do not resume a connection that has ended. Its bytes count until its entries are appended."""
        self._held.discard(pending)


class PendingPublishes:
    """The entries of one connection that wait to be appended, and their bounds."""

    def __init__(self, connection: Holdable, budget: PublishBudget, max_entries: int, max_bytes: int) -> None:
        self._connection = connection
        self._budget = budget
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries = 0
        self._bytes = 0

    def add(self, entries: int, size: int) -> None:
        """Add a number of entries and their bytes; negative numbers are entries that no longer wait.

        Hold the requests of the connection at its limits, or resume them.
        """
        self._entries += entries
        self._bytes += size
        is_full = self._budget.add_and_check_full(self, size)
        if self._entries >= self._max_entries or is_full or self._bytes >= self._max_bytes:
            self._connection.hold_requests(_REASON)
        else:
            self.resume_if_half_free()

    def resume_if_half_free(self) -> None:
        """Resume the requests of the connection if at most half of `max_entries` entries wait."""
        if self._entries <= self._max_entries // 2:
            self._connection.resume_requests(_REASON)
