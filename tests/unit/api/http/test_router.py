"""The way of a request through a route: permission before the body, a bounded body, a pool for each kind of wait."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import Body, Depends, Request
from fastapi.dependencies.models import Dependant

from api.app import ROUTERS
from api.broker.threads import WaitsFor
from api.http.access import AuthAction, PermissionCheck
from api.http.router import Routes
from api.http.tokens import create_token
from api.rest.models import int64_body
from api.settings.settings import Settings
from tests.asgi import TestClient, access_of, application

SECRET = bytes(32)
router = Routes(prefix="")
JSON = {"Content-Type": "application/json"}


@router.put("/things", AuthAction.SUPERUSER)
def put_things(things: Annotated[dict[str, Any], Body()]) -> int:
    """Return their number."""
    return len(things)


@router.put("/number", AuthAction.SUPERUSER)
def put_number(number: Annotated[int, Depends(int64_body)]) -> int:
    return number


@router.get("/threads/database", AuthAction.ANYONE)
def database_thread() -> str:
    return threading.current_thread().name


@router.get("/threads/store", AuthAction.ANYONE, waits_for=WaitsFor.STORE)
def store_thread() -> str:
    return threading.current_thread().name


@router.post("/stream", AuthAction.ANYONE)
async def stream(request: Request) -> int:
    return len(await request.body())


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = application(router, access_of(SECRET, "ops"), Settings(auth_enabled=True))
    return TestClient(app, raise_server_exceptions=False)


def bearing(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {create_token(SECRET, role, {})}", **JSON}


@pytest.mark.parametrize("path", ["/things", "/number"])
def test_the_body_of_a_role_without_permission_is_not_read(client: TestClient, path: str) -> None:
    def body() -> Iterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    assert client.put(path, content=body(), headers=bearing("other")).status_code == 403


def test_a_permission_is_checked_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The route checks it; FastAPI has the dependency only for the OpenAPI document."""
    checks: list[PermissionCheck] = []
    check = PermissionCheck.check

    async def count(self: PermissionCheck, request: Request) -> None:
        checks.append(self)
        await check(self, request)

    monkeypatch.setattr(PermissionCheck, "check", count)
    assert client.put("/things", content=b"{}", headers=bearing("ops")).status_code == 200
    assert client.put("/things", content=b"{}", headers=bearing("other")).status_code == 403
    route = next(route for route in router.routes if route.path == "/things")
    assert [each.call for each in route.dependant.dependencies] == checks[:1] == checks[1:]


@pytest.mark.parametrize("path", ["/things", "/number"])
def test_a_body_that_produces_nothing_is_small(client: TestClient, path: str) -> None:
    large = b'"' + b"x" * (1 << 20) + b'"'
    for content in (large, iter([large])):
        answer = client.put(path, content=content, headers=bearing("ops"))
        assert (answer.status_code, "1024 KiB" in answer.json()["reason"]) == (413, True)
    assert client.post("/stream", content=large, headers=bearing("ops")).json() == len(large)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", "nested more than 64 deep: nest it less"),
        (b'{"a":[' + b"1," * 30_000 + b"1]}", "more than 20000 values: send less at once"),
        (b'{"a":', "it is not JSON from line 1, column 6 on: correct it"),
        (b'{"a":"\xff"}', "it is not UTF-8 text: correct it"),
        (b'{"a":' + b"1" * 5_000 + b"}", "it has a number of too many digits: correct it"),
    ],
)
def test_a_body_has_few_values_none_of_them_deep(client: TestClient, body: bytes, reason: str) -> None:
    answer = client.put("/things", content=body, headers=bearing("ops"))
    assert (answer.status_code, reason in answer.json()["reason"]) == (400, True), answer.text
    assert client.put("/things", content=b'{"a":[[1,2]]}', headers=bearing("ops")).json() == 1
    many = b"{" + b",".join(b'"%d":1' % number for number in range(9_000)) + b"}"
    assert client.put("/things", content=many, headers=bearing("ops")).json() == 9_000


def test_endpoints_run_in_the_threads_of_what_they_wait_for(client: TestClient) -> None:
    for what in ("database", "store"):
        assert client.get(f"/threads/{what}", headers=bearing("ops")).json() == f"{what}-pool"


def dependencies(dependant: Dependant) -> Iterator[Any]:
    for dependency in dependant.dependencies:
        yield dependency.call
        yield from dependencies(dependency)


def test_no_dependency_of_a_route_is_called_by_threads_beside_the_pools() -> None:
    """Starlette's threads have no bounds of ours."""
    statuses = {
        dependency for router in ROUTERS for route in router.routes for dependency in dependencies(route.dependant)
    }
    assert statuses
    functions = {item if inspect.isroutine(item) else type(item).__call__ for item in statuses}
    assert {function.__name__ for function in functions if not inspect.iscoroutinefunction(function)} == set()


def test_a_route_is_named_by_its_operation() -> None:
    """The audit log shows the name."""
    visible_routes = [route for item in ROUTERS for route in item.routes if route.include_in_schema]
    assert len({route.operation_id for route in visible_routes}) == len(visible_routes)
    names = {route.operation_id: (route.name, route.summary) for route in visible_routes}
    assert names["setNamespaceMessageTTL"] == ("set_namespace_message_ttl", "Set Namespace Message Ttl")
    assert names["createTopic"] == ("create_topic", "Create a topic without partitions")
