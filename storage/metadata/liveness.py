"""Liveness of owners: one rule for leases, leadership, pins, runs, attempts, claims and services.

An owner stores in a row that it is alive: until a time (a TTL), or at a time (a heartbeat). A process that checks
compares with its own clock. A time that is further in the future than `LONGEST_TERMS` of the longest TTL was written by
a clock that ran ahead: it proves nothing, and its owner counts as dead. So a wrong clock holds nothing for longer than
that. If such an owner lives, it is fenced by its token, epoch or attempt, and begins again; it never works beside its
successor. An owner that is known to be a dead process of this machine is dead at once (storage/owner.py).
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
    """A range of times: later than `after`, at `until` at the latest."""

    after: int
    until: int

    def contains(self, at: int) -> bool:
        """Return whether a time is in the range."""
        return self.after < at <= self.until

    def condition(self, column: ColumnElement[int]) -> ColumnElement[bool]:
        """Return the condition, in SQL, that a column's time is in the range."""
        return (column > self.after) & (column <= self.until)


def live_expiry_bounds(longest_ttl_ms: int, now: int) -> LivenessBounds:
    """Return the range of the ends of TTLs that are not over. `longest_ttl_ms`: the longest TTL of such rows."""
    return LivenessBounds(now, now + LONGEST_TERMS * longest_ttl_ms)


def live_heartbeat_bounds(dead_ms: int, now: int) -> LivenessBounds:
    """Return the range of heartbeats of live owners; `dead_ms`: an owner whose heartbeat is that old is dead."""
    return LivenessBounds(now - dead_ms, now + LONGEST_TERMS * dead_ms)


def is_held(owner: str | None, expires_at: int, longest_ttl_ms: int, now: int) -> bool:
    """Return whether `owner` holds a row now: its TTL is not over, and it is not known to be dead.

    `owner` None: the row is free. `expires_at`: the end of its TTL.
    """
    return owner is not None and live_expiry_bounds(longest_ttl_ms, now).contains(expires_at) and not is_dead(owner)


def is_alive(owner: str, heartbeat_at: int, dead_ms: int, now: int) -> bool:
    """Return whether `owner` is alive now: its last heartbeat is young enough, and it is not known to be dead."""
    return live_heartbeat_bounds(dead_ms, now).contains(heartbeat_at) and not is_dead(owner)
