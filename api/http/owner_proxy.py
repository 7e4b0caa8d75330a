"""Forwarding of requests to the service that owns their topic (`api/broker/ownership.py`), once.

A header marks a forwarded request, which is not forwarded again. Headers are passed on, also the caller's
Authorization; bodies are streamed in both directions. If the other service breaks off its answer, so does this one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.broker.refusals import NotTheOwner
from api.http.paths import encode_path_segment, with_encoded_dots
from api.http.problems import RestException, error_response
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
"""Headers of a request that are not passed on; Host and Origin name this service (`header_checks.py`)."""
_CONNECT_SECONDS = 5.0
MAX_CONNECTIONS = 512
_KEPT_CONNECTIONS = 20
_CAUSE_CHARACTERS = 200


class OwnerProxy:
    """An HTTP client that forwards requests to other services. For the tasks of one event loop at a time."""

    def __init__(
        self,
        timeout_ms: int,
        transport: httpx.AsyncBaseTransport | None = None,
        ca_file: str = "",
        connections: int = MAX_CONNECTIONS,
    ) -> None:
        """`transport`: of httpx, for a test. `ca_file`: authorities to trust besides the usual ones. `connections`: the
        number of requests that are forwarded at once."""
        self._seconds = timeout_ms / 1000
        self._transport = transport
        self._max_connections = connections
        # Read now: the file may be missing, or half written, when the first request is sent.
        self._trusted = _tls_context(ca_file) if ca_file else None
        self._owner = Owner.current()
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    async def forward(self, request: Request, service: ServiceRecord) -> Response:
        """Forward a request to another service, and return its answer, which is streamed.

        Return 503 with Retry-After if the service cannot be reached, or if the request was forwarded here already.
        """
        if FORWARDED in request.headers:
            return self._second_forward_refusal(request, service)
        client = await self._client_of_this_loop()
        import httpx  # the client's thread has loaded it

        length = request.headers.get("content-length")
        has_body = length not in (None, "0") or "transfer-encoding" in request.headers
        created = client.build_request(
            request.method,
            _forward_url(service, request.scope),
            headers=self._forwarded_headers(request.headers.items()),
            content=request.stream() if has_body else None,
        )
        try:
            response = await client.send(created, stream=True)
        except httpx.HTTPError as error:
            return error_response(503, _failure_reason(service, error), {"Retry-After": "1"})
        headers = {name: value for name, value in response.headers.items() if name.lower() not in _HOP_BY_HOP}
        return _ForwardedResponse(response, headers)

    async def send(
        self,
        request: Request,
        service: ServiceRecord,
        method: str,
        target: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a part of a request to another path of a service, and return the answer, whatever its status.

        `target`: path and query. `headers`: they replace the request's own headers of these names. Raise RestException
        (503) if the service cannot be reached, or if the request was forwarded here already.
        """
        if FORWARDED in request.headers:
            raise RestException(
                503, f"{service.name} does not have the topic that it was asked for", {"Retry-After": "1"}
            )
        client = await self._client_of_this_loop()
        import httpx  # the client's thread has loaded it

        url = f"{service.url.rstrip('/')}{target}"
        try:
            return await client.request(
                method, url, content=body, headers=self._subrequest_headers(request) | dict(headers or {})
            )
        except httpx.HTTPError as error:
            raise RestException(503, _failure_reason(service, error), {"Retry-After": "1"}) from error

    async def send_to_owner(self, request: Request, owner: NotTheOwner, method: str, operation: str) -> bytes:
        """Send a part of a request to the owner of a topic. Return the content of its answer; empty if it answers 404.

        `operation`: the path below the topic's, percent-encoded. Raise RestException for another error, with the
        owner's reason.
        """
        name = owner.topic.name
        path = "/".join(map(encode_path_segment, (name.tenant, name.namespace, name.topic)))
        response = await self.send(request, owner.service, method, f"/admin/v2/persistent/{path}/{operation}", b"")
        if response.status_code == 404:
            return b""
        if not response.is_success:
            retry = response.headers.get("retry-after")
            headers = {"Retry-After": retry} if retry else None
            raise RestException(response.status_code, f"{name}: {reason_in_response(response)}", headers) from owner
        return response.content

    async def send_to_own_application(
        self, request: Request, target: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send a part of a request, for the same caller, to another path of this process's application, without a
        connection. The application may forward it.

        `headers`: they replace the request's own headers of these names. Return the answer, whatever its status.
        """
        import httpx

        passed = self._subrequest_headers(request) | dict(headers or {})
        del passed[FORWARDED]
        client = (request.client.host, request.client.port) if request.client else ("127.0.0.1", 0)
        transport = httpx.ASGITransport(request.app, raise_app_exceptions=False, client=client)
        async with httpx.AsyncClient(transport=transport, base_url=str(request.base_url)) as app_client:
            return await app_client.request(request.method, target, content=body, headers=passed)

    async def close(self) -> None:
        """Close the connections to other services."""
        if self._client is not None:
            await self._client[1].aclose()
            self._client = None

    def _subrequest_headers(self, request: Request) -> dict[str, str]:
        """Return the headers to forward with a part of a request, whose body has another length."""
        return self._forwarded_headers(
            (name, value) for name, value in request.headers.items() if name != "content-length"
        )

    def _forwarded_headers(self, headers: Any) -> dict[str, str]:
        """Return the headers to forward, with the mark that this process has forwarded the request."""
        passed = {name: value for name, value in headers if name.lower() not in _NOT_PASSED}
        return passed | {FORWARDED: f"{self._owner.host}:{self._owner.pid}"}

    def _second_forward_refusal(self, request: Request, service: ServiceRecord) -> JSONResponse:
        """Return the answer (503) to a forwarded request that would be forwarded a second time."""
        by = request.headers[FORWARDED]
        return error_response(
            503,
            f"the request came from {by} and would be forwarded again, to {service.name}: the owner of the topic is "
            "changing",
            {"Retry-After": "1"},
        )

    async def _client_of_this_loop(self) -> httpx.AsyncClient:
        """Return the HTTP client of the running event loop. A thread creates it for the first request, because that
        reads files."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            created = await asyncio.to_thread(self._new_client)
            if self._client is None or self._client[0] is not loop:  # another request may have been faster
                self._client = (loop, created)
        return self._client[1]

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        # trust_env=False: a proxy of the environment would get the tokens.
        return httpx.AsyncClient(
            timeout=httpx.Timeout(self._seconds, connect=min(_CONNECT_SECONDS, self._seconds)),
            transport=self._transport,
            verify=self._trusted or _tls_context(),
            trust_env=False,
            limits=httpx.Limits(max_connections=self._max_connections, max_keepalive_connections=_KEPT_CONNECTIONS),
        )


def _tls_context(ca_file: str = "") -> ssl.SSLContext:
    """Return a TLS context that trusts the usual authorities and those of a file. It reads files."""
    import httpx

    context = httpx.create_ssl_context(trust_env=False)
    if ca_file:
        context.load_verify_locations(ca_file)
    return context


def _forward_url(service: ServiceRecord, scope: Mapping[str, Any]) -> str:
    """Return the URL of another service with the path and query of a request."""
    path = with_encoded_dots((scope.get("raw_path") or scope["path"].encode()).decode("latin-1"))
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{service.url.rstrip('/')}{path}" + (f"?{query}" if query else "")


class _ForwardedResponse(StreamingResponse):
    """The answer of another service, streamed to the client. The connection to the service is released at the end, also
    if the client disconnects."""

    def __init__(self, response: httpx.Response, headers: Mapping[str, str]) -> None:
        super().__init__(response.aiter_raw(), response.status_code, headers)
        self._response = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._response.aclose()


def reason_in_response(response: httpx.Response) -> str:
    """Return the `reason` in the body of another service's error answer; the beginning of the body if it has none."""
    try:
        return str(response.json()["reason"])
    except (ValueError, LookupError, TypeError):
        return response.text[:500]


def _failure_reason(service: ServiceRecord, error: httpx.HTTPError) -> str:
    """Return the text of an error: why another service gave no answer, and what to do."""
    import httpx

    if isinstance(error, httpx.TimeoutException):
        failure, remedy = "has not answered in time", "try again"
    elif "CERTIFICATE_VERIFY_FAILED" in str(error):
        failure, remedy = "has a certificate that is not trusted here", "name its authority in tls.ca"
    else:
        failure, remedy = "cannot be reached", "try again"
    cause = " ".join(str(error).split())[:_CAUSE_CHARACTERS] or type(error).__name__
    return f"{service.name} has the topic, but {failure} at {service.url} ({cause}): {remedy}"
