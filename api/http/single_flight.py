"""One piece of work for all who ask for it at once: what nobody needs a token for must not cost more when many ask.

It is made once at a time; who asks meanwhile waits for the next one, which begins after they asked, and shares it. So
an answer is never older than its request, and a flood of them has one thread, not all. For the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from api.http.thread_pools import Pool

Answer = TypeVar("Answer")


class SingleFlight(Generic[Answer]):
    """Who asks, and what is made for them. An error is told to all who share it."""

    def __init__(self, pool: Pool) -> None:
        """`pool`: whose threads make it."""
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
            self._next = None  # who comes from now on might get what is older than their request
            return await self._pool.run(make)
