"""The HTTP of `compactor-admin`: requests as JSON, and each failure as an error kind with a remedy.

Errors: a refusal by the kind that the service names, or else by its status (`exit_codes.KINDS`), with the service's own
reason, which names commands of this program instead of routes; `Unavailable` if no service answers, with the URL and
the command that starts a service; `Misconfigured` for TLS and for an answer of another server. No error contains a
token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from api.cli.admin.client_config import ClientConfig
from api.cli.admin.exit_codes import KINDS
from api.observability.error_text import ADMIN, CONFLICT, KIND_HEADER, WORDING_HEADER
from storage.errors import CompactorError, Conflict, InvalidInput, Misconfigured, Unavailable

_LONGEST_REASON = 1000
_NOT_TLS = re.compile(r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|HTTP_REQUEST|UNKNOWN_PROTOCOL", re.IGNORECASE)
"""OpenSSL's errors for an answer in plain HTTP."""
_NOT_HTTP = re.compile(r"without sending a response|illegal (status|request) line")
"""h11's errors for an answer in another protocol, or none."""


class ServerSideError(CompactorError):
    """The service reported an unexpected error."""


class Connection:
    """An HTTP client of one service. `transport`: replaces the network in tests."""

    def __init__(self, target: ClientConfig, transport: httpx.BaseTransport | None = None) -> None:
        self._url = target.url
        headers = {WORDING_HEADER: ADMIN}
        if target.token:
            headers["Authorization"] = f"Bearer {target.token}"
        self._client = httpx.Client(
            timeout=target.timeout,
            headers=headers,
            transport=transport,
            verify=_tls_trust(target),
            follow_redirects=True,
        )

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, **query: object) -> Any:
        """Return the JSON of a GET's answer, or its plain text; None for an empty answer."""
        return self.request("GET", path, query)

    def request(self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None) -> Any:
        """Send a request and return the answer's JSON, or its plain text; None for an empty answer. Raises
        CompactorError."""
        answer = self.send(method, path, query, body)
        if not answer.content.strip():
            return None
        try:
            return answer.json()
        except ValueError:
            kind = answer.headers.get("content-type", "")
            if kind.startswith("text/plain"):
                return answer.text.strip()
            raise Misconfigured(
                f"{self._url} answered {kind or 'something'} where JSON was expected",
                "is it a compactor service? check --admin-url",
            ) from None

    def send(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None, **headers: str
    ) -> httpx.Response:
        """Send a request and return the response if it is successful. Raises CompactorError for any other response.

        None in `query` and as `body` is omitted. `headers`: their names, with underscores for hyphens.
        """
        with self.stream(method, path, query, body, None, False, **headers) as answer:
            answer.read()
        return answer

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        content: Iterator[bytes] | None = None,
        unlimited_read: bool = False,
        **headers: str,
    ) -> Iterator[httpx.Response]:
        """Send a request and yield the response, whose content is read in pieces. Raises CompactorError unless it is
        successful.

        None in `query` is omitted. `content`: the body in pieces; `body`: the body as JSON. `unlimited_read`: without a
        limit on the time between two pieces of the answer. `headers`: their names, with underscores for hyphens.
        """
        url = f"{self._url}{path}"
        parameters = {name: _query_value_text(value) for name, value in (query or {}).items() if value is not None}
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        with self._convert_transport_errors():
            request = self._client.build_request(
                method, url, params=parameters, headers=fields, content=content, json=body
            )
            if unlimited_read:
                request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}
            answer = self._client.send(request, stream=True)
            try:
                if not answer.is_success:
                    answer.read()
                _raise_for_status(answer)
                yield answer
            finally:
                answer.close()

    @contextmanager
    def _convert_transport_errors(self) -> Iterator[None]:
        """Convert errors of the transport (TCP, TLS, broken HTTP) to Misconfigured or Unavailable."""
        try:
            yield
        except httpx.ConnectError as error:
            if _NOT_TLS.search(str(error)):
                raise Misconfigured(
                    f"{self._url} does not speak TLS ({error})", "name it with http:// if plain HTTP is acceptable"
                ) from error
            if "SSL" in str(error) or "CERTIFICATE" in str(error).upper():
                raise Misconfigured(
                    f"no trusted connection to {self._url} ({error})",
                    "name the authority's certificate with --ca-cert, or check the URL",
                ) from error
            raise Unavailable(
                f"no service answers at {self._url} ({error})",
                "start one with `compactor serve`, or name another with --admin-url or COMPACTOR_ADMIN_URL",
            ) from error
        except httpx.TimeoutException as error:
            raise Unavailable(
                f"the service at {self._url} did not answer in time", "try again, or give it longer with --timeout"
            ) from error
        except (httpx.TransportError, httpx.TooManyRedirects, httpx.DecodingError) as error:
            broken = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
            if broken and self._url.startswith("http://") and _speaks_tls(self._url):
                raise Misconfigured(
                    f"{self._url} speaks TLS, not plain HTTP", f"name it https{self._url.removeprefix('http')}"
                ) from error
            if _NOT_HTTP.search(str(error)):
                raise Unavailable(
                    f"{self._url} does not answer as HTTP ({error})",
                    "check that its port is the HTTP port of a service, not the broker service port, or try again",
                ) from error
            raise Unavailable(
                f"the connection to {self._url} failed ({type(error).__name__}: {error})", "try again"
            ) from error
        except (httpx.InvalidURL, UnicodeError) as error:
            if isinstance(error, UnicodeError) and "idna" not in str(error):  # of a text that is sent, not of a host
                raise
            raise Misconfigured(f"{self._url!r} is not the URL of a service ({error})", "check --admin-url") from error


def _tls_trust(target: ClientConfig) -> Any:
    """Return the `verify` argument for httpx: True for the system's authorities, or a context with those of `ca_cert`.
    Raises Misconfigured."""
    if target.ca_cert is None:
        return True
    import ssl

    try:
        return ssl.create_default_context(cafile=str(target.ca_cert))
    except FileNotFoundError as error:
        raise Misconfigured(
            f"the file of certificates {target.ca_cert} does not exist", "name another with --ca-cert"
        ) from error
    except (ssl.SSLError, OSError) as error:
        raise Misconfigured(
            f"{target.ca_cert} is not a file of certificates ({error})", "give one in PEM format with --ca-cert"
        ) from error


def _raise_for_status(answer: httpx.Response) -> None:
    """Raise the CompactorError for a response's status and reason; return if the response is successful."""
    if answer.is_success:
        return
    status, stated = answer.status_code, _refusal_reason(answer)
    reason = stated or f"{answer.request.method} {answer.request.url.path} was answered with status {status}"
    if not stated and (status < 500 or status == 501):
        server, service = answer.headers.get("server", ""), answer.request.url.copy_with(raw_path=b"")
        raise Misconfigured(
            f"no compactor service answers at {service}: {reason}{f' by {server}' if server else ''}",
            "check --admin-url",
        )
    kind, remedy = KINDS.get(status, (InvalidInput, "correct the request") if status < 500 else (ServerSideError, ""))
    if answer.headers.get(KIND_HEADER) == CONFLICT:
        kind = Conflict
    if kind is ServerSideError:
        remedy = "read the service's log, and report it"
    advised = kind is not ServerSideError and ": " in stated and status != 401
    if advised:  # the reason ends with the remedy
        reason, _, remedy = stated.rpartition(": ")
    wait = answer.headers.get("retry-after", "")
    if wait.isdigit():
        again = f"try again in {wait} s"
        if "try again" in remedy and stated:
            remedy = f"{remedy} (in {wait} s)"
        else:
            remedy = f"{remedy}; {again}" if advised else again
    raise kind(reason.removesuffix("."), remedy)


def _speaks_tls(url: str) -> bool:
    """Return whether a TLS connection to the URL succeeds."""
    import socket
    import ssl

    address = httpx.URL(url)
    any_server = ssl.create_default_context()
    any_server.check_hostname, any_server.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        with (
            socket.create_connection((address.host, address.port or 80), timeout=2) as plain,
            any_server.wrap_socket(plain, server_hostname=address.host),
        ):
            return True
    except (OSError, ValueError):
        return False


def _refusal_reason(answer: httpx.Response) -> str:
    """Return the reason that a refusal states, in one line; empty if it has none in the service's form."""
    reason: object = None
    try:
        document = json.loads(answer.content)
        reason = document.get("reason") if isinstance(document, dict) else None
    except ValueError:
        # A broker's answer about a body; other refusals are never plain text.
        if answer.status_code == 400 and answer.headers.get("content-type", "").startswith("text/plain"):
            reason = answer.text
    return " ".join(str(reason).split())[:_LONGEST_REASON] if reason else ""


def _query_value_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
