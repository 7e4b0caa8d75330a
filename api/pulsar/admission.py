"""Bounds of a role: its requests that are under way, and the threads of the service that work for them.

A request beyond the bounds is refused as TooManyRequests, as a Pulsar broker refuses one beyond
maxConcurrentLookupRequest. One role uses at most a quarter of the threads of each pool. Its other requests wait in
order in this module; they do not fill the pool's queue, which all roles share. Must not know: commands, connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from weakref import WeakValueDictionary

from api.broker.shares import Shares
from api.broker.threads import LimitedWorkers, WaitsFor, Workers
from api.pulsar.errors import Refused, ServerError

MAX_OF_CONNECTION = 5_000
"""Requests of one connection that are under way; Pulsar's clients send as many lookups at once."""
MAX_OF_ROLE = 10_000
_PART_OF_THREADS = 4
_WAITED_FOR = "other requests of the role"


class ThreadPool(Workers, Protocol):
    """A pool of threads that wait for one resource. `size`: the number of threads."""

    @property
    def size(self) -> int: ...


class RoleThreads(dict[WaitsFor, Workers]):
    """The threads that one role may use, by the resource for which they wait."""


class Admission:
    """Admission control: limits requests and threads of each role, over all connections of a service.

    For one event loop.
    """

    def __init__(self, pools: Mapping[WaitsFor, ThreadPool], timeout_ms: int, max_lookups: int) -> None:
        """`timeout_ms`: the time that a request waits for a thread of its role."""
        self._pools = pools
        self._seconds = timeout_ms / 1000
        self._max_lookups = max_lookups
        self._lookups = 0
        self._of_role = Shares[str]()
        self._threads: WeakValueDictionary[str, RoleThreads] = WeakValueDictionary()

    def threads(self, role: str) -> RoleThreads:
        """Return the threads of a role, which all of its connections share."""
        threads = self._threads.get(role)
        if threads is None:
            self._threads[role] = threads = RoleThreads(
                (kind, LimitedWorkers(pool, max(1, pool.size // _PART_OF_THREADS), self._seconds, _WAITED_FOR))
                for kind, pool in self._pools.items()
            )
        return threads

    def admit(self, role: str, is_lookup: bool) -> None:
        """Count a request that begins. Raise Refused (TooManyRequests) at the bound of the role, or of all lookups.

        `release` must follow once, unless this raises.
        """
        if self._of_role[role] >= MAX_OF_ROLE:
            raise Refused(
                ServerError.TooManyRequests,
                f"{MAX_OF_ROLE} requests of {role} are under way: wait for responses before you send more",
            )
        if is_lookup and self._lookups >= self._max_lookups:
            raise Refused(
                ServerError.TooManyRequests,
                f"{self._max_lookups} lookups are under way, and no more are allowed: try again, or raise "
                "broker.max-concurrent-lookups",
            )
        self._of_role[role] += 1
        self._lookups += is_lookup

    def release(self, role: str, is_lookup: bool) -> None:
        """Subtract a request that `admit` has counted, after its response was sent."""
        self._lookups -= is_lookup
        self._of_role.add(role, -1)
