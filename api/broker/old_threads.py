"""Threads that wait for database, log or store, as operations use them; and a bound for each topic.

`LimitedWorkers` keeps an object of one topic that hangs from taking all threads of the service: calls for the topic
wait for each other, those for other topics do not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from storage.errors import Unavailable

Answer = TypeVar("Answer")


class Workers(Protocol):
    """Threads for one kind of waiting."""

    async def run(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """Return or raise what `work` does, called by a thread. Raises Unavailable: no thread is free in time."""

    async def run_to_end(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """Do the same without a deadline: for work that must not run beside what comes next."""


class LimitedWorkers:
    """Workers of which at most `most` calls are under way at once. For one event loop."""

    def __init__(self, workers: Workers, most: int, seconds: float) -> None:
        """`seconds`: the time that a call waits for its turn."""
        self._workers = workers
        self._turns = asyncio.Semaphore(most)
        self._seconds = seconds

    async def run(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        await self._take_turn()
        try:
            return await self._workers.run(work, *arguments)
        finally:
            self._turns.release()

    async def run_to_end(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        await self._take_turn()
        try:
            return await self._workers.run_to_end(work, *arguments)
        finally:
            self._turns.release()

    async def _take_turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()  # at once
            return
        try:
            await asyncio.wait_for(self._turns.acquire(), self._seconds)
        except TimeoutError as error:
            raise Unavailable(
                f"other reads of the topic have not ended within {self._seconds:g} s", "try again", is_public=True
            ) from error
