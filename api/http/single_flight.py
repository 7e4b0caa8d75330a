"""One call for all requests that need its answer at once: what needs no token must not cost more when many ask.

One call runs at a time; a request that comes meanwhile waits for the next call, which begins later, and shares it. So
an answer is never older than its request, and a flood of requests holds one thread, not all. For the tasks of one
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from api.http.thread_pools import Pool

Answer = TypeVar("Answer")


class SingleFlight(Generic[Answer]):
    """The requests that wait, and the call that answers them. All that share a call get its error."""

    def __init__(self, pool: Pool) -> None:
        """`pool`: whose threads call."""
        self._pool = pool
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[Answer] | None = None

    async def answer(self, make: Callable[[], Answer]) -> Answer:
        """What `make` gives, called by a thread."""
        if self._next is None:
            self._next = asyncio.create_task(self._made(make))
        return await asyncio.shield(self._next)

    async def _made(self, make: Callable[[], Answer]) -> Answer:
        async with self._lock:
            self._next = None  # a later request might get what is older than itself
            return await self._pool.run(make)
