"""The service's pools as serving uses them: a refusal is an error of the product, not an HTTP response."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from api.http.problems import RestException
from api.http.thread_pools import Pool
from storage.errors import Unavailable

Answer = TypeVar("Answer")


class PoolWorkers:
    """One pool. Raises Unavailable where the pool refuses."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def run(self, work: Callable[..., Answer], *arguments: object) -> Answer:
        """Return or raise what `work` does, called by a thread of the pool."""
        try:
            return await self._pool.run(work, *arguments)
        except RestException as error:
            raise Unavailable(str(error.detail), "try again", is_public=True) from error

    async def run_to_end(self, work: Callable[..., Answer], *arguments: object) -> Answer:
        """Do the same without the deadline."""
        try:
            return await self._pool.run_to_end(work, *arguments)
        except RestException as error:
            raise Unavailable(str(error.detail), "try again", is_public=True) from error
