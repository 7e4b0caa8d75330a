"""How a request goes through a route: permission, body, threads; in this order, and the same for all.

    permission   from the path alone (`api/http/access.py: allowed`), before a byte of the body is read
    body         read up to `BODY_BYTES` unless the route reads it itself; its JSON is parsed by a thread, within the
                 bounds of `api/http/json_bounds.py`, before FastAPI sees it
    endpoint     one that is no coroutine is called by a thread of the pool of what it waits for
                 (`api/http/thread_pools.py`), which also makes the bytes of its answer

So nothing that a caller can make large runs on the event loop, and who may do nothing costs nothing. Every module of
`api/admin` makes its router with `Routes(…)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.responses import Response

from api.http import json_bounds
from api.http.access import Permission
from api.http.limits import BODY_BYTES, hold_body_to
from api.http.problems import Problem
from api.http.thread_pools import parse_body, pools_of, waited_for

_REQUEST: ContextVar[Request] = ContextVar("request")


class Route(APIRoute):
    """A route as the module's docstring has it."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(
            path, endpoint if inspect.iscoroutinefunction(endpoint) else self._in_pool(endpoint), **options
        )

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        permissions = [one.dependency for one in self.dependencies if isinstance(one.dependency, Permission)]

        async def answer(request: Request) -> Response:
            for permission in permissions:
                await permission.check(request)
            if self.body_field is not None:
                hold_body_to(request.scope, BODY_BYTES)
                if _is_json(request):
                    await _parse(request)
            _REQUEST.set(request)
            return await handle(request)

        return answer

    @functools.cached_property
    def _answers(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.response_model)

    def _in_pool(self, endpoint: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        waits = waited_for(endpoint)

        @functools.wraps(endpoint)
        async def call(**values: Any) -> Any:
            return await pools_of(_REQUEST.get())[waits].run(self._answer, endpoint, values)

        return call

    def _answer(self, endpoint: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """What an endpoint returns, as an answer. Runs in a thread."""
        found = endpoint(**values)
        if isinstance(found, Response) or self.response_model is None:
            return found
        checked = self._answers.validate_python(found, from_attributes=True)
        content = self._answers.dump_json(
            checked,
            by_alias=True,
            exclude_none=self.response_model_exclude_none,
            exclude_unset=self.response_model_exclude_unset,
        )
        given = values.get(self.dependant.response_param_name or "")  # in which an endpoint sets headers
        headers = given.headers if isinstance(given, Response) else None
        return Response(content, self.status_code or 200, headers, media_type="application/json")


class Routes(APIRouter):
    """A router whose routes are `Route`."""

    def __init__(self, prefix: str = "", tags: list[str] | None = None) -> None:
        super().__init__(prefix=prefix, tags=list(tags or ()), route_class=Route, redirect_slashes=False)


async def _parse(request: Request) -> None:
    """Let `request.json()` have its value. Raises Problem (400) for what is no JSON, or beyond the bounds."""
    if not await request.body():
        return
    try:
        value = await parse_body(request, json_bounds.load)
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"the request cannot be taken: its body is no JSON that is taken here: {error}") from error
    request._json = value  # where Starlette keeps what it has parsed


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind.startswith("application/") and (kind == "application/json" or kind.endswith("+json"))
