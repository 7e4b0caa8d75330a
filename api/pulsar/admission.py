"""How much a role may ask for at once: requests that are under way, and threads of the service that work for them.

A request beyond the bounds is answered TooManyRequests, as a Pulsar broker answers one beyond
maxConcurrentLookupRequest. Of each pool one role uses at most a quarter of the threads; its other requests wait for
them here, in order, and not in the pool's queue, which others use too. Must not know: commands, connections.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from api.broker.threads import WaitsFor
from api.pulsar.errors import Refused, ServerError
from storage.errors import Unavailable

Answer = TypeVar("Answer")
MOST_OF_CONNECTION = 5_000
"""Requests of one connection that are under way; Pulsar's clients have as many lookups at once."""
MOST_OF_ROLE = 10_000
_PART_OF_THREADS = 4


class Threads(Protocol):
    """Threads of one kind, as api/broker/threads.py has them."""

    @property
    def size(self) -> int:
        """The most threads that there are."""

    async def run(self, work: Callable[..., Answer], *arguments: object) -> Answer:
        """Return what `work` returns. Raises Unavailable."""

    async def run_to_end(self, work: Callable[..., Answer], *arguments: object) -> Answer:
        """As `run`, without a deadline."""


class _GatedThreads:
    """The part of a pool's threads that one role may use."""

    def __init__(self, threads: Threads, timeout_ms: int) -> None:
        self.size = max(1, threads.size // _PART_OF_THREADS)
        self._threads = threads
        self._gate = asyncio.Semaphore(self.size)
        self._timeout_ms = timeout_ms

    async def run(self, work: Callable[..., Answer], *arguments: object) -> Answer:
        await self._enter()
        try:
            return await self._threads.run(work, *arguments)
        finally:
            self._gate.release()

    async def run_to_end(self, work: Callable[..., Answer], *arguments: object) -> Answer:
        await self._enter()
        try:
            return await self._threads.run_to_end(work, *arguments)
        finally:
            self._gate.release()

    async def _enter(self) -> None:
        if not self._gate.locked():
            await self._gate.acquire()
            return
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._gate.acquire()
        except TimeoutError:
            raise Unavailable(
                f"other requests of the role have held its threads for {self._timeout_ms} ms",
                "try again",
                is_public=True,
            ) from None


class RoleThreads(Mapping[WaitsFor, Threads]):
    """The threads that one role may use, by what they wait for."""

    def __init__(self, pools: Mapping[WaitsFor, Threads], timeout_ms: int) -> None:
        self._gated = {what: _GatedThreads(threads, timeout_ms) for what, threads in pools.items()}

    def __getitem__(self, what: WaitsFor) -> Threads:
        return self._gated[what]

    def __iter__(self) -> Iterator[WaitsFor]:
        return iter(self._gated)

    def __len__(self) -> int:
        return len(self._gated)


class Admission:
    """The requests of all connections of a service. For one event loop."""

    def __init__(self, pools: Mapping[WaitsFor, Threads], timeout_ms: int, max_lookups: int) -> None:
        """`timeout_ms`: how long a request waits for a thread of its role."""
        self._pools = pools
        self._timeout_ms = timeout_ms
        self._max_lookups = max_lookups
        self._lookups = 0
        self._of_role: Counter[str] = Counter()
        self._threads: WeakValueDictionary[str, RoleThreads] = WeakValueDictionary()

    def threads(self, role: str) -> RoleThreads:
        """Return the threads of a role; all of its connections share them."""
        threads = self._threads.get(role)
        if threads is None:
            self._threads[role] = threads = RoleThreads(self._pools, self._timeout_ms)
        return threads

    def enter(self, role: str, is_lookup: bool) -> None:
        """Count a request. Raises Refused (TooManyRequests)."""
        if self._of_role[role] >= MOST_OF_ROLE:
            raise Refused(
                ServerError.TooManyRequests,
                f"{MOST_OF_ROLE} requests of {role} are under way: wait for answers before you send more",
            )
        if is_lookup and self._lookups >= self._max_lookups:
            raise Refused(
                ServerError.TooManyRequests,
                f"{self._max_lookups} lookups are under way, and no more are allowed: try again, or raise "
                "broker.max-concurrent-lookups",
            )
        self._of_role[role] += 1
        self._lookups += is_lookup

    def leave(self, role: str, is_lookup: bool) -> None:
        """Count a request that has its answer."""
        self._lookups -= is_lookup
        self._of_role[role] -= 1
        if not self._of_role[role]:
            del self._of_role[role]
