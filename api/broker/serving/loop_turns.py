"""Long walks on the event loop, in which other tasks have a turn after each so many items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


async def in_turns(items: Iterable[Item], at_once: int) -> AsyncIterator[Item]:
    """Yield the items; other tasks have a turn after each `at_once` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % at_once:
            await asyncio.sleep(0)


async def finish(step: Callable[[], bool], ended: Callable[[], object] = lambda: None) -> None:
    """Execute a step in each turn of the event loop, until it returns False: nothing remains. Then call `ended`.

    `ended` is also called after an error of a step, and after a cancellation. These are raised then; an error of
    `ended` is a note of them.
    """
    try:
        while step():
            await asyncio.sleep(0)
    except BaseException as error:
        try:
            ended()
        except Exception as later:
            error.add_note(f"the end of this work failed, too: {later!r}")
        raise
    ended()


def call_in_turns(calls: Iterator[Callable[[], object]], at_once: int) -> None:
    """Make `at_once` of the calls now, and `at_once` in each later turn of the event loop. Does not wait for them."""
    some = list(islice(calls, at_once))
    for call in some:
        call()
    if some:
        asyncio.get_running_loop().call_soon(call_in_turns, calls, at_once)
