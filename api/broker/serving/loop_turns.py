"""Long walks on the event loop, in which other tasks have a turn after each so many items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


async def in_turns(items: Iterable[Item], per_turn: int) -> AsyncIterator[Item]:
    """Yield the items, and let other tasks of the event loop have a turn after each `per_turn` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % per_turn:
            await asyncio.sleep(0)


async def repeat_while(step: Callable[[], bool], on_end: Callable[[], object] = lambda: None) -> None:
    """Call `step` once in each turn of the event loop, until it returns False. Then call `on_end`.

    `on_end` is also called after an error of a step, and after a cancellation. These are raised then; an error of
    `on_end` is a note of them.
    """
    try:
        while step():
            await asyncio.sleep(0)
    except BaseException as error:
        try:
            on_end()
        except Exception as later:
            error.add_note(f"the end of this work failed, too: {later!r}")
        raise
    on_end()


def call_in_turns(calls: Iterator[Callable[[], object]], per_turn: int) -> None:
    """Call the first `per_turn` functions of `calls` now, and `per_turn` in each later turn of the event loop. Return
    without waiting for those."""
    some = list(islice(calls, per_turn))
    for call in some:
        call()
    if some:
        asyncio.get_running_loop().call_soon(call_in_turns, calls, per_turn)
