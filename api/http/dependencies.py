"""Dependencies of routes besides HTTP's own state: the broker and the parsed body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar, cast

from fastapi import Depends, Request

from api.broker import broker
from api.broker.threads import WaitsFor

Value = TypeVar("Value")
_PARSED_HERE_BYTES = 4 << 10
"""A body up to this size takes less time to parse than to hand to a thread."""


def broker_of(request: Request) -> broker.Broker:
    """Return the broker of the process that received a request."""
    return cast(broker.Broker, request.app.state.broker)


async def _broker(request: Request) -> broker.Broker:
    return broker_of(request)


Broker = Annotated[broker.Broker, Depends(_broker)]
"""A route's parameter: the broker. Its dependency is async, so FastAPI calls it without a thread."""


async def parse_body(request: Request, parse: Callable[[bytes], Value]) -> Value:
    """Parse the request's body with `parse`, and return its result; a thread parses a large body."""
    body = await request.body()
    if len(body) <= _PARSED_HERE_BYTES:
        return parse(body)
    return await broker_of(request).pools[WaitsFor.PARSING].run(parse, body)
