"""Long walks on the event loop, in which other tasks have a turn after each so many items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

Item = TypeVar("Item")


async def in_turns(items: Iterable[Item], at_once: int) -> AsyncIterator[Item]:
    """Yield the items; other tasks have a turn after each `at_once` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % at_once:
            await asyncio.sleep(0)
