"""Forwarded answers: the connection to the other service is given back, whoever goes away."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from starlette.requests import Request

from api.forwarding import Forwarding
from api.paths import segment
from storage.metadata.control_records import ServiceRecord
from tests.certificates import certificate
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


def forwarded(bench: Workbench, url: str, target: str = "/x", **options: Any) -> tuple[int, str]:
    """Status and body of what comes of a request that is forwarded there."""
    assert bench.log is not None
    log = bench.log
    path, _, query = target.partition("?")
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode()}

    async def never() -> Any:
        await asyncio.Event().wait()

    async def scenario() -> tuple[int, str]:
        forwarding = Forwarding(bench.metadata, bench.clock, log, 5_000, **options)
        request = Request({**scope, "headers": []}, never)
        response = await forwarding.forward(request, ServiceRecord("n", url, None, 0, 0))
        parts: list[bytes] = []

        async def send(message: Any) -> None:
            parts.append(message.get("body", b""))

        await response(request.scope, never, send)
        await forwarding.close()
        return response.status_code, b"".join(parts).decode()

    return asyncio.run(scenario())


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """URL and certificate of a service whose authority is its own."""
    chain, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"there")

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", str(chain)
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_service_of_a_private_authority_is_trusted_if_that_is_named(
    bench: Workbench, secure: tuple[str, str]
) -> None:
    url, authority = secure
    status, said = forwarded(bench, url)
    assert (status, "tls.ca" in said, "self-signed" in said) == (503, True, True), said
    assert forwarded(bench, url, ca_file=authority) == (200, "there")


def test_why_another_service_gives_no_answer_is_told(bench: Workbench) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[Errno 111] Connection refused")

    status, said = forwarded(bench, "http://other", transport=httpx.MockTransport(refuse))
    assert (status, "Connection refused" in said) == (503, True)


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "%2E", "a.b"])
def test_a_name_of_dots_changes_no_path_on_its_way(bench: Workbench, name: str) -> None:
    asked: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path)
        return httpx.Response(200, stream=Answer())

    target = f"/admin/v2/persistent/t/n/{name}/subscription/{name}?force=true"
    assert forwarded(bench, "http://other", target, transport=httpx.MockTransport(answer))[0] == 200
    (path,) = asked
    assert len(path.split(b"/")) == 9
    assert unquote(path.decode()) == unquote(target)


def test_names_of_dots_are_segments_of_a_path() -> None:
    assert [segment(one) for one in (".", "..", "...", "a.b", "a/b")] == ["%2E", "%2E%2E", "%2E%2E%2E", "a.b", "a%2Fb"]
