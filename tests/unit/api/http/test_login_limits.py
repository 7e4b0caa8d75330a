"""Limits of logging in: places, bytes and seconds of its own, so that unknown callers hold up no other request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from api.http.access import LOGIN, LOGOUT, Caller
from api.http.limits import RequestLimitMiddleware
from api.http.login_limits import BODY_BYTES, PLACES, PLACES_OF_ADDRESS, bounded_body
from api.http.problems import RestException
from api.settings.settings import Settings
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop

Send = Callable[[Any], Awaitable[None]]


def part(size: int, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * size, "more_body": more}


def receiver(*messages: dict[str, Any]) -> Callable[[], Awaitable[Any]]:
    """Return a receiver of these messages, which waits forever afterwards."""
    rest = list(messages)

    async def receive() -> Any:
        if not rest:
            await asyncio.Event().wait()
        return rest.pop(0)

    return receive


async def read(receive: Callable[[], Awaitable[Any]]) -> int:
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    return size


@pytest.mark.parametrize("size", [0, BODY_BYTES])
@in_event_loop
async def test_a_small_body_is_read(size: int) -> None:
    assert await read(bounded_body(receiver(part(size, more=True), part(0)))) == size


@in_event_loop
async def test_a_body_has_a_bound_of_bytes_and_of_seconds() -> None:
    for messages, seconds, status in (
        ((part(BODY_BYTES, more=True), part(1)), 600.0, 413),
        ((part(1, more=True),), 0.0, 408),
    ):
        with pytest.raises(RestException) as refused:
            await read(bounded_body(receiver(*messages), seconds))
        assert refused.value.status_code == status


class Door:
    """A limiter before an application that reads bodies."""

    def __init__(self, **settings: Any) -> None:
        async def application(scope: Any, receive: Any, send: Send) -> None:
            size = await read(receive)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"size", str(size).encode())]})

        self._limiter = RequestLimitMiddleware(application, Settings(**settings), ManualClock())

    async def ask(
        self, path: str, *body: dict[str, Any], address: str = "a", verb: str = "POST", length: int = 1
    ) -> int:
        """Send a request, and return the status of its answer."""
        statuses: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {
            "type": "http",
            "method": verb,
            "path": path,
            "headers": [(b"content-length", str(length).encode())],
            "state": {"caller": Caller(address, refusal_reason="no token")},
        }
        await self._limiter(scope, receiver(*body), send)
        return statuses[0]

    async def begin(self, path: str, count: int, **options: Any) -> list[asyncio.Task[int]]:
        """Begin requests whose body does not end."""
        tasks = [asyncio.create_task(self.ask(path, part(1, more=True), **options)) for _ in range(count)]
        await asyncio.sleep(0)
        return tasks


@in_event_loop
async def test_requests_that_log_in_take_no_place_of_others() -> None:
    door = Door(limits_requests_at_once=2, limits_bodies_bytes=1, limits_body_bytes=1, limits_requests_per_second=0.0)
    held = await door.begin(LOGIN, PLACES_OF_ADDRESS - 1) + await door.begin(LOGOUT, 1)
    assert await door.ask("/other", part(0), verb="GET", length=0) == 200
    assert await door.ask(LOGIN, part(1)) == 503
    assert await door.ask(LOGIN, part(1), address="b") == 200
    for number in range(PLACES // PLACES_OF_ADDRESS - 1):
        held += await door.begin(LOGIN, PLACES_OF_ADDRESS, address=f"c{number}")
    assert await door.ask(LOGIN, part(1), address="b") == 503
    for task in held:
        task.cancel()
    await asyncio.wait(held)
    assert await door.ask(LOGIN, part(1)) == 200


@in_event_loop
async def test_a_large_form_is_refused_by_its_length() -> None:
    door = Door()
    assert await door.ask(LOGIN, length=BODY_BYTES + 1) == 413
    assert await door.ask("/other", length=1) == 401
