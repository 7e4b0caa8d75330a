"""Tests that are coroutines: each runs in an event loop of its own, for a minute at most."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

Arguments = ParamSpec("Arguments")


def in_event_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """Decorates a test."""

    @functools.wraps(test)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 60))

    return run
