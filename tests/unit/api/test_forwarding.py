"""Forwarded answers: the connection to the other service is given back, whoever goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from api.forwarding import Forwarding
from storage.metadata.control_records import ServiceRecord
from tests.workbench import Workbench


class Answer(httpx.AsyncByteStream):
    """Knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"line"

    async def aclose(self) -> None:
        self.closed = True


def test_an_answer_that_nobody_takes_is_closed(bench: Workbench) -> None:
    """Its caller has gone before its first byte: a hundred of them would take all connections."""
    made = Answer()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=made))
    forwarding = Forwarding(bench.metadata, bench.clock, bench.log, 1_000, transport)
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/x", "query_string": b"", "headers": []}

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        """Leads nowhere, as uvicorn's when its caller has gone, and lets others have their turn."""
        await asyncio.sleep(0)

    async def forwarded() -> None:
        response = await forwarding.forward(Request(scope, gone), ServiceRecord("n", "http://other", None, 0, 0))
        await response(scope, gone, send)
        assert made.closed
        await forwarding.close()

    asyncio.run(forwarded())


def test_what_goes_between_services_goes_through_no_proxy(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It carries the callers' tokens."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")

    async def scenario() -> bool:
        forwarding = Forwarding(bench.metadata, bench.clock, bench.log, 1_000)
        client = forwarding._of_this_loop()
        await forwarding.close()
        return client.trust_env

    assert not asyncio.run(scenario())
