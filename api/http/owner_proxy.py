"""Forwarding of requests to the service that owns their topic (`api/broker/ownership.py`), once.

A request that was forwarded is marked by a header and is not forwarded again. Headers go along, the caller's
Authorization too, and bodies as they come, both ways; if the other service breaks off, so does the answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.http.paths import kept
from api.http.problems import RestException, answer
from storage.metadata.records import ServiceRecord
from storage.owner import Owner

if TYPE_CHECKING:
    # Imported with the first request that is sent: it takes a while, and most services start without sending any.
    import httpx

FORWARDED = "x-compactor-forwarded"
"""The header that names the process by which a request was forwarded."""
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_PASSED = _HOP_BY_HOP | {"host", "origin"}
"""Of the two that name this service, one was compared with the other here (`api/http/limits.py`)."""
_CONNECT_SECONDS = 5.0
MOST_CONNECTIONS = 512
_KEPT_CONNECTIONS = 20
_CAUSE_CHARACTERS = 200


class OwnerProxy:
    """A client of other services that passes requests on to them. For the tasks of one event loop at a time."""

    def __init__(
        self,
        timeout_ms: int,
        transport: httpx.AsyncBaseTransport | None = None,
        ca_file: str = "",
        connections: int = MOST_CONNECTIONS,
    ) -> None:
        """`transport`: as httpx has it; `ca_file`: certificates that others' are checked with, besides the usual ones;
        `connections`: requests that are forwarded at once."""
        self._seconds = timeout_ms / 1000
        self._transport = transport
        self._most = connections
        # The file may be gone, or half written, when the first request is sent.
        self._trusted = _trusted(ca_file) if ca_file else None
        self._owner = Owner.current()
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    async def forward(self, request: Request, service: ServiceRecord) -> Response:
        """The other service's answer, as it comes."""
        if FORWARDED in request.headers:
            return self._not_again(request, service)
        client = await self._of_this_loop()
        import httpx  # the client's thread has loaded it

        length = request.headers.get("content-length")
        has_body = length not in (None, "0") or "transfer-encoding" in request.headers
        created = client.build_request(
            request.method,
            _url(service, request.scope),
            headers=self._headers(request.headers.items()),
            content=request.stream() if has_body else None,
        )
        try:
            response = await client.send(created, stream=True)
        except httpx.HTTPError as error:
            return answer(503, _reason(service, error), {"Retry-After": "1"})
        headers = {name: value for name, value in response.headers.items() if name.lower() not in _HOP_BY_HOP}
        return _Passed(response, headers)

    async def send(
        self,
        request: Request,
        service: ServiceRecord,
        method: str,
        target: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """A part of a request, sent to another path there. `headers`: instead of the request's own of those names.

        Raises RestException (503).
        """
        if FORWARDED in request.headers:
            raise RestException(
                503, f"{service.name} does not have the topic that it was asked for", {"Retry-After": "1"}
            )
        client = await self._of_this_loop()
        import httpx  # the client's thread has loaded it

        url = f"{service.url.rstrip('/')}{target}"
        try:
            return await client.request(method, url, content=body, headers=self._of_part(request) | dict(headers or {}))
        except httpx.HTTPError as error:
            raise RestException(503, _reason(service, error), {"Retry-After": "1"}) from error

    async def send_here(self, request: Request, target: str, body: bytes) -> httpx.Response:
        """A part of a request, with its headers, to another path of this application, for the same caller."""
        import httpx

        headers = self._of_part(request)
        client = (request.client.host, request.client.port) if request.client else ("127.0.0.1", 0)
        transport = httpx.ASGITransport(request.app, raise_app_exceptions=False, client=client)
        async with httpx.AsyncClient(transport=transport, base_url=str(request.base_url)) as app_client:
            return await app_client.request(request.method, target, content=body, headers=headers)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client[1].aclose()
            self._client = None

    def _of_part(self, request: Request) -> dict[str, str]:
        return self._headers((name, value) for name, value in request.headers.items() if name != "content-length")

    def _headers(self, headers: Any) -> dict[str, str]:
        passed = {name: value for name, value in headers if name.lower() not in _NOT_PASSED}
        return passed | {FORWARDED: f"{self._owner.host}:{self._owner.pid}"}

    def _not_again(self, request: Request, service: ServiceRecord) -> JSONResponse:
        by = request.headers[FORWARDED]
        return answer(
            503,
            f"the request came from {by} and would be forwarded again, to {service.name}: the owner of the topic is "
            "changing",
            {"Retry-After": "1"},
        )

    async def _of_this_loop(self) -> httpx.AsyncClient:
        """The connections to other services, made with the first request by a thread: that reads files."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            created = await asyncio.to_thread(self._new_client)
            if self._client is None or self._client[0] is not loop:  # another request may have been faster
                self._client = (loop, created)
        return self._client[1]

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        # No proxy of the environment: tokens go to the other service alone.
        return httpx.AsyncClient(
            timeout=httpx.Timeout(self._seconds, connect=min(_CONNECT_SECONDS, self._seconds)),
            transport=self._transport,
            verify=self._trusted or _trusted(),
            trust_env=False,
            limits=httpx.Limits(max_connections=self._most, max_keepalive_connections=_KEPT_CONNECTIONS),
        )


def _trusted(ca_file: str = "") -> ssl.SSLContext:
    """Whose certificates are trusted: the usual authorities, and those of a file. Reads files."""
    import httpx

    context = httpx.create_ssl_context(trust_env=False)
    if ca_file:
        context.load_verify_locations(ca_file)
    return context


def _url(service: ServiceRecord, scope: Mapping[str, Any]) -> str:
    path = kept((scope.get("raw_path") or scope["path"].encode()).decode("latin-1"))
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{service.url.rstrip('/')}{path}" + (f"?{query}" if query else "")


class _Passed(StreamingResponse):
    """An answer of another service, as it comes; its connection is released, also if the client has gone."""

    def __init__(self, response: httpx.Response, headers: Mapping[str, str]) -> None:
        super().__init__(response.aiter_raw(), response.status_code, headers)
        self._found = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._found.aclose()


def _reason(service: ServiceRecord, error: httpx.HTTPError) -> str:
    """Return why the other service gave no answer, as far as the connection shows."""
    import httpx

    if isinstance(error, httpx.TimeoutException):
        what, then = "has not answered in time", "try again"
    elif "CERTIFICATE_VERIFY_FAILED" in str(error):
        what, then = "has a certificate that is not trusted here", "name its authority in tls.ca"
    else:
        what, then = "cannot be reached", "try again"
    cause = " ".join(str(error).split())[:_CAUSE_CHARACTERS] or type(error).__name__
    return f"{service.name} has the topic, but {what} at {service.url} ({cause}): {then}"
