"""Forwarded answers: the connection to the other service is released, whichever side ends it."""

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

from api.broker.refusals import NotTheOwner
from api.http.owner_proxy import OwnerProxy
from api.http.paths import encode_path_segment
from api.http.problems import RestException
from storage.metadata.records import ServiceRecord, TopicRecord
from storage.model import TopicName
from tests.certificates import certificate


class Answer(httpx.AsyncByteStream):
    """Knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"line"

    async def aclose(self) -> None:
        self.closed = True


def test_an_answer_that_nobody_takes_is_closed() -> None:
    """Its caller has gone before its first byte: a hundred of them would take all connections."""
    created = Answer()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=created))
    forwarding = OwnerProxy(1_000, transport)
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/x", "query_string": b"", "headers": []}

    async def disconnected() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        """Leads nowhere, as uvicorn's when its caller has gone, and lets others have their turn."""
        await asyncio.sleep(0)

    async def forwarded() -> None:
        response = await forwarding.forward(
            Request(scope, disconnected), ServiceRecord("n", "http://other", None, 0, 0)
        )
        await response(scope, disconnected, send)
        assert created.closed
        await forwarding.close()

    asyncio.run(forwarded())


async def exchanged(forwarding: OwnerProxy, url: str, target: str = "/x") -> tuple[int, str]:
    """Forward a request to a service. Return status and body of the answer."""
    path, _, query = target.partition("?")
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode()}

    async def never() -> Any:
        await asyncio.Event().wait()

    request = Request({**scope, "headers": []}, never)
    response = await forwarding.forward(request, ServiceRecord("n", url, None, 0, 0))
    parts: list[bytes] = []

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    await response(request.scope, never, send)
    await forwarding.close()
    return response.status_code, b"".join(parts).decode()


def forwarded(url: str, target: str = "/x", **options: Any) -> tuple[int, str]:
    """Forward a request through a proxy of its own. Return status and body of the answer."""
    return asyncio.run(exchanged(OwnerProxy(5_000, **options), url, target))


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


def test_a_service_of_a_private_authority_is_trusted_if_that_is_named(secure: tuple[str, str]) -> None:
    url, authority = secure
    status, answer = forwarded(url)
    assert (status, "tls.ca" in answer, "self-signed" in answer) == (503, True, True), answer
    assert forwarded(url, ca_file=authority) == (200, "there")


def test_requests_between_services_use_no_proxy(secure: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They carry the callers' tokens."""
    url, authority = secure
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert forwarded(url, ca_file=authority) == (200, "there")


def test_authorities_are_read_at_the_start_and_the_event_loop_reads_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, _ = certificate(tmp_path)
    made_by: list[threading.Thread] = []
    created = httpx.create_ssl_context

    def noted(**options: Any) -> ssl.SSLContext:
        made_by.append(threading.current_thread())
        return created(**options)

    monkeypatch.setattr(httpx, "create_ssl_context", noted)
    forwarding = OwnerProxy(1_000, ca_file=str(chain))
    chain.unlink()  # another one is being put in its place

    for proxy in (forwarding, OwnerProxy(1_000)):
        status, _ = asyncio.run(exchanged(proxy, "http://127.0.0.1:1"))
        assert status == 503
    at_the_start, later = made_by
    assert at_the_start is threading.main_thread()
    assert later is not threading.main_thread()


def test_why_another_service_gives_no_answer_is_told() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[Errno 111] Connection refused")

    status, answer = forwarded("http://other", transport=httpx.MockTransport(refuse))
    assert (status, "Connection refused" in answer) == (503, True)


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "%2E", "a.b"])
def test_a_name_of_dots_changes_no_path_on_its_way(name: str) -> None:
    targets: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        targets.append(request.url.raw_path)
        return httpx.Response(200, stream=Answer())

    target = f"/admin/v2/persistent/t/n/{name}/subscription/{name}?force=true"
    assert forwarded("http://other", target, transport=httpx.MockTransport(answer))[0] == 200
    (path,) = targets
    assert len(path.split(b"/")) == 9
    assert unquote(path.decode()) == unquote(target)


def test_names_of_dots_are_segments_of_a_path() -> None:
    assert [encode_path_segment(item) for item in (".", "..", "...", "a.b", "a/b")] == [
        "%2E",
        "%2E%2E",
        "%2E%2E%2E",
        "a.b",
        "a%2Fb",
    ]


@pytest.mark.parametrize(
    ("content", "reason"), [('{"reason": "wait for it"}', "wait for it"), ("[1]", "[1]"), ("a proxy", "a proxy")]
)
def test_an_owners_refusal_keeps_its_reason_and_its_time_to_wait(content: str, reason: str) -> None:
    answer = httpx.Response(503, text=content, headers={"Retry-After": "7"})
    sending = OwnerProxy(1_000, httpx.MockTransport(lambda _: answer))
    request = Request({"type": "http", "method": "DELETE", "path": "/x", "query_string": b"", "headers": []})
    owner = NotTheOwner(
        ServiceRecord("n", "http://other", None, 0, 0), TopicRecord(1, "0" * 32, TopicName.parse("t"), 0, 0, 0, 0, 0)
    )

    with pytest.raises(RestException) as raised:
        asyncio.run(sending.send_to_owner(request, owner, "GET", "stats"))

    assert (raised.value.status_code, raised.value.headers) == (503, {"Retry-After": "7"})
    assert raised.value.detail == f"{owner.topic.name}: {reason}"
