"""Loads of producers' sequence ids (deduplication.py): at most one of a topic at a time, however often it is opened.

A load may read objects, and a thread that waits for an object that hangs cannot be stopped. So callers wait for the
load in progress instead of starting another one: a topic occupies one thread at most, and leaves the others to other
topics. For one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from api.broker.serving.deduplication import Deduplication

Run = Callable[[Callable[[], None]], Awaitable[None]]
"""Calls a function in a thread for loads."""


class SequenceLoads:
    """The loads of producers' sequence ids of all topics that a process serves: at most one of a topic at a time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._running: dict[int, tuple[Deduplication, asyncio.Task[None]]] = {}

    async def load(self, topic_id: int, deduplication: Deduplication) -> None:
        """Load the sequence ids of a topic's producers, unless they are loaded, and wait for that. A load in progress
        is shared.

        Raises the error of the load; a later call loads again.
        """
        while not deduplication.is_loaded:
            loading, task = self._running.get(topic_id, (None, None))
            if task is not None and loading is not deduplication:  # the topic was opened before, and closed
                await asyncio.wait({task})
                continue
            if task is None:
                task = asyncio.create_task(self._load(topic_id, deduplication))
                task.add_done_callback(_retrieve_error)
                self._running[topic_id] = deduplication, task
            await asyncio.shield(task)

    async def _load(self, topic_id: int, deduplication: Deduplication) -> None:
        """Load the sequence ids of a topic by a thread, and end the topic's load in progress."""
        try:
            await self._run(deduplication.load)
        finally:
            del self._running[topic_id]


def _retrieve_error(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a load that has ended, so that asyncio does not log it: perhaps no request waits for the
    load any more."""
    if not task.cancelled():
        task.exception()
