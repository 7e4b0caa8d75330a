"""Until when an owner counts as alive: one rule for leases, leadership, pins, runs, attempts, claims and services.

An owner says in a row that it is alive: until a time (a TTL), or at a time (a heartbeat). A process that checks
compares with its own clock. A time that is further in the future than `LONGEST_TERMS` of the longest TTL was written by
a clock that ran ahead: it says nothing, and its owner counts as dead. So a wrong clock holds nothing for longer than
that. An owner that lives all the same is fenced by its token, epoch or attempt, and begins again; it never works beside
the next one. An owner that is known to be a dead process of this machine is dead at once (storage/owner.py).
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import ColumnElement

from storage.owner import is_dead

LONGEST_TERMS = 10
LEASE_TTL_MS = 15_000
"""The TTL of a writer's lease."""
PIN_TTL_MS = 120_000
"""The longest TTL of a pin."""


class LivenessBounds(NamedTuple):
    """The times that count: later than `after`, at `until` at the latest."""

    after: int
    until: int

    def has(self, at: int) -> bool:
        """Whether a time counts."""
        return self.after < at <= self.until

    def where(self, column: ColumnElement[int]) -> ColumnElement[bool]:
        """The same, in SQL."""
        return (column > self.after) & (column <= self.until)


def expiring(longest_ttl_ms: int, now: int) -> LivenessBounds:
    """The ends of TTLs that are not over."""
    return LivenessBounds(now, now + LONGEST_TERMS * longest_ttl_ms)


def beating(dead_ms: int, now: int) -> LivenessBounds:
    """The heartbeats of owners that are alive; `dead_ms`: one whose heartbeat is that old is dead."""
    return LivenessBounds(now - dead_ms, now + LONGEST_TERMS * dead_ms)


def is_held(owner: str | None, expires_at: int, longest_ttl_ms: int, now: int) -> bool:
    """Whether an owner holds something now."""
    return owner is not None and expiring(longest_ttl_ms, now).has(expires_at) and not is_dead(owner)


def is_alive(owner: str, heartbeat_at: int, dead_ms: int, now: int) -> bool:
    """Whether an owner is alive now."""
    return beating(dead_ms, now).has(heartbeat_at) and not is_dead(owner)
