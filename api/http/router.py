"""The steps of a request through a route: permission, body, endpoint; in this order, and the same for all routes.

    permission   decided by the path alone (`api/http/access.py: permission_check`), before a byte of the body is read
    body         read up to `BODY_BYTES` unless the route reads it itself; a thread parses its JSON, within the bounds
                 of `api/http/json_bounds.py`, before FastAPI uses it
    endpoint     a function that is not a coroutine is called by a thread of the pool of the resource that it waits for
                 (`api/broker/threads.py`); the thread also serializes the answer

So no work whose size a caller chooses runs on the event loop, and a caller without permission costs next to nothing.

Every module of `api/rest` makes its router with `Routes("tag")`. A route declares what differs from these defaults:

    operation id   the name of the function, in camel case; its words are the `action` of the audit log
    summary        the first sentence of the function's docstring
    permission     the actions after the path, any of which is enough
    refusals       412 for a path with a tenant, 404 with a namespace, 507 for a route that waits for the store
    status         204 for a function that returns None
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import Request
from fastapi.routing import APIRoute
from fastapi.utils import create_model_field
from pydantic import BaseModel, TypeAdapter
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from api.broker.threads import WaitsFor
from api.http import json_bounds
from api.http.access import AuthAction, PermissionCheck, permission_check
from api.http.dependencies import broker_of, parse_body
from api.http.limits import BODY_BYTES, limit_body
from api.http.problems import RestException, refusal_responses
from api.http.query_parameters import KNOWN_QUERY

_WORDS = re.compile("[A-Z]+(?![a-z])|[A-Za-z][a-z]*")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_REQUEST: ContextVar[Request] = ContextVar("request")


class Route(APIRoute):
    """A route that checks the permission, then parses the body, then calls the endpoint: in a thread, unless it is a
    coroutine."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        waits_for: WaitsFor,
        responses: Mapping[int | str, dict[str, Any]],
        **options: Any,
    ) -> None:
        self.waits_for = waits_for
        if endpoint.__annotations__.get("return", "") in (None, "None"):
            options |= {"status_code": 204, "response_model": None}
        if not inspect.iscoroutinefunction(endpoint):
            endpoint = self._wrap_in_pool(endpoint)
        elif options.get("status_code") == 204:
            endpoint = _wrap_without_content(endpoint)
        super().__init__(path, endpoint, **options)
        # FastAPI would build a field for each route and status: 0.3 s of CPU at each start of a service.
        self.responses = dict(responses)
        self.response_fields = {
            status: _response_field(response["model"]) for status, response in responses.items() if "model" in response
        }

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request: it checks permissions, reads and parses the body, then calls
        FastAPI's handler."""
        permissions = [
            dependency.dependency
            for dependency in self.dependencies
            if isinstance(dependency.dependency, PermissionCheck)
        ]
        handle = self._get_handler_without(permissions)

        async def answer(request: Request) -> Response:
            for permission in permissions:
                await permission.check(request)
            if self.body_field is not None:
                limit_body(request.scope, BODY_BYTES)
                if _has_json_content_type(request):
                    await _parse_json_body(request)
            _REQUEST.set(request)
            return await handle(request)

        return answer

    def _get_handler_without(
        self, permissions: Collection[PermissionCheck]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, which does not resolve these permission checks: `answer` has made them.

        The checks remain in `dependant` for the OpenAPI document.
        """
        dependant = self.dependant
        others = [each for each in dependant.dependencies if each.call not in permissions]
        self.dependant = replace(dependant, dependencies=others)
        try:
            return super().get_route_handler()
        finally:
            self.dependant = dependant

    @functools.cached_property
    def _response_adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.response_model)

    def _wrap_in_pool(self, endpoint: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Return a coroutine function that calls the endpoint in a thread of the route's pool."""

        @functools.wraps(endpoint)
        async def call(**values: Any) -> Any:
            return await broker_of(_REQUEST.get()).pools[self.waits_for].run(self._call_and_respond, endpoint, values)

        return call

    def _call_and_respond(self, endpoint: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """Call an endpoint, and return its result as a response. A thread runs this."""
        result = endpoint(**values)
        if self.status_code == 204:
            return Response(status_code=204)
        if isinstance(result, Response) or self.response_model is None:
            return result
        checked = self._response_adapter.validate_python(result, from_attributes=True)
        content = self._response_adapter.dump_json(
            checked,
            by_alias=True,
            exclude_none=self.response_model_exclude_none,
            exclude_unset=self.response_model_exclude_unset,
        )
        response = values.get(self.dependant.response_param_name or "")  # in which an endpoint sets headers
        headers = response.headers if isinstance(response, Response) else None
        return Response(content, self.status_code or 200, headers, media_type="application/json")


@functools.cache
def _response_field(model: type[BaseModel]) -> Any:
    """Return FastAPI's description of a response body, for the OpenAPI document."""
    return create_model_field(model.__name__, model, mode="serialization")


def _summary(endpoint: Endpoint, operation_words: Sequence[str]) -> str:
    """Return the summary of an endpoint for the OpenAPI document: the first sentence of its docstring.

    A function inside another one serves several routes: its summary is the words of the operation id.
    """
    if endpoint.__qualname__ != endpoint.__name__:
        return " ".join(operation_words).title()
    text = " ".join((inspect.getdoc(endpoint) or "").split())
    return text.partition(". ")[0].removesuffix(".")


class Routes:
    """A collection of routes with a common prefix and tag. The module's docstring lists their defaults."""

    def __init__(self, tag: str = "", prefix: str = "/admin/v2", *, known_query: bool = False) -> None:
        """`known_query`: unknown query parameters are refused (`query_parameters.py`)."""
        self.routes: list[Route] = []
        self._tags = [tag] if tag else []
        self._prefix = prefix
        self._needs = [KNOWN_QUERY] if known_query else []

    def route(
        self,
        methods: str | Collection[str],
        path: str,
        *needs: Any,
        refuses: Collection[int] = (),
        waits_for: WaitsFor = WaitsFor.DATABASE,
        operation_id: str = "",
        responses: Mapping[int | str, dict[str, Any]] | None = None,
        **options: Any,
    ) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds its function as a route, and returns the function unchanged.

        `needs`: actions, any of which permits the call, and dependencies. `refuses`: statuses besides those that the
        path and `waits_for` imply. `responses` and `options`: FastAPI's.
        """
        actions = [need for need in needs if isinstance(need, AuthAction)]
        dependencies = [permission_check(*actions)] if actions else []
        dependencies += [need for need in needs if not isinstance(need, AuthAction)]
        statuses = sorted({*refuses, *_implied_statuses(path, waits_for)})

        def add(endpoint: Endpoint) -> Endpoint:
            operation = operation_id or to_camel(endpoint.__name__)
            words = _WORDS.findall(operation)
            self.routes.append(
                Route(
                    self._prefix + path,
                    endpoint,
                    waits_for=waits_for,
                    methods=[methods] if isinstance(methods, str) else sorted(methods),
                    tags=self._tags,
                    dependencies=[*dependencies, *self._needs],
                    operation_id=operation,
                    name="_".join(words).lower(),
                    summary=_summary(endpoint, words),
                    responses={**refusal_responses(*statuses), **(responses or {})},
                    **options,
                )
            )
            return endpoint

        return add

    def get(self, path: str, *needs: Any, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds its function as a route of GET; see `route`."""
        return self.route("GET", path, *needs, **options)

    def put(self, path: str, *needs: Any, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds its function as a route of PUT; see `route`."""
        return self.route("PUT", path, *needs, **options)

    def post(self, path: str, *needs: Any, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds its function as a route of POST; see `route`."""
        return self.route("POST", path, *needs, **options)

    def delete(self, path: str, *needs: Any, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds its function as a route of DELETE; see `route`."""
        return self.route("DELETE", path, *needs, **options)


def _implied_statuses(path: str, waits_for: WaitsFor) -> set[int]:
    """Return the error statuses that a route's path, and the resource that it waits for, imply."""
    statuses = {412} if "{tenant}" in path else set()
    if "{namespace}" in path:
        statuses.add(404)
    if waits_for in (WaitsFor.STORE, WaitsFor.WORK):
        statuses.add(507)
    return statuses


def _wrap_without_content(
    endpoint: Callable[..., Coroutine[Any, Any, None]],
) -> Callable[..., Coroutine[Any, Any, Response]]:
    @functools.wraps(endpoint)
    async def call(**values: Any) -> Response:
        await endpoint(**values)
        return Response(status_code=204)

    return call


async def _parse_json_body(request: Request) -> None:
    """Parse the body, so that `request.json()` returns its value. Raise RestException (400) for a body that is not JSON
    within the bounds."""
    if not await request.body():
        return
    try:
        value = await parse_body(request, json_bounds.parse_bounded_json)
    except json_bounds.JsonError as error:
        raise RestException(400, f"the body cannot be taken, {error}: {error.remedy}") from error
    request._json = value  # where Starlette keeps what it has parsed


def _has_json_content_type(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind.startswith("application/") and (kind == "application/json" or kind.endswith("+json"))
