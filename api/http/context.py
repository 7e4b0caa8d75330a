"""Objects of the process that a request reaches through its application."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from fastapi import Request

from api.broker.threads import Pools, WaitsFor

Value = TypeVar("Value")
_PARSED_HERE_BYTES = 4 << 10
"""A body up to this size takes less time to parse than to hand to a thread."""


def pools_of(request: Request) -> Pools:
    """Return the thread pools of the service that received a request."""
    return cast(Pools, request.app.state.pools)


async def parse_body(request: Request, parse: Callable[[bytes], Value]) -> Value:
    """Return what `parse` makes of the request's body; a thread calls it if the body is large."""
    body = await request.body()
    if len(body) <= _PARSED_HERE_BYTES:
        return parse(body)
    return await pools_of(request)[WaitsFor.PARSING].run(parse, body)
