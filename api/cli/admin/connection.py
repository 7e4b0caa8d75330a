"""The HTTP of `compactor-admin`: requests as JSON, and each failure as an error kind with a remedy.

Errors: a refusal by the kind that the service names, or else by its status (`exit_codes.KINDS`), with the service's own
reason, which names commands of this program instead of routes; `Unavailable` if no service
answers, with the URL and the command that starts a service; `Misconfigured` for TLS and for an answer of another
server. No error contains a token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import httpx

from api.cli.admin.client_config import ClientConfig
from api.cli.admin.exit_codes import KINDS
from api.observability.error_text import ADMIN, CONFLICT, KIND_HEADER, WORDS_HEADER
from storage.errors import CompactorError, Conflict, InvalidInput, Misconfigured, Unavailable

_LONGEST_REASON = 1000
_NOT_TLS = re.compile(r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|HTTP_REQUEST|UNKNOWN_PROTOCOL", re.IGNORECASE)
"""OpenSSL's errors for an answer in plain HTTP."""


class ServerSideError(CompactorError):
    """The service reported an unexpected error."""


class Connection:
    """A client of one service. `transport`: for a test with the application in its own process."""

    def __init__(self, target: ClientConfig, transport: httpx.BaseTransport | None = None) -> None:
        self._url = target.url
        headers = {WORDS_HEADER: ADMIN}
        if target.token:
            headers["Authorization"] = f"Bearer {target.token}"
        self._client = httpx.Client(
            timeout=target.timeout, headers=headers, transport=transport, verify=_trusted(target), follow_redirects=True
        )

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, **query: object) -> Any:
        """Return the JSON of a GET's answer, or its plain text; None for an empty answer."""
        return self.request("GET", path, query)

    def request(self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None) -> Any:
        """Return the answer's JSON, or its plain text; None for an empty answer."""
        answer = self.ask(method, path, query, body)
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

    def ask(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None, **headers: str
    ) -> httpx.Response:
        """Send a request and return its successful answer. None in `query` and as `body` is omitted."""
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
        patient: bool = False,
        **headers: str,
    ) -> Iterator[httpx.Response]:
        """Send a request and open its successful answer, which is read piece by piece.

        None in `query` is omitted. `content`: the body in pieces; `body`: the body as JSON. `patient`: without a limit
        on the time between two pieces of the answer.
        """
        url = f"{self._url}{path}"
        parameters = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        request = self._client.build_request(method, url, params=parameters, headers=fields, content=content, json=body)
        if patient:
            request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}
        with self._failures():
            answer = self._client.send(request, stream=True)
            try:
                if not answer.is_success:
                    answer.read()
                _check(answer)
                yield answer
            finally:
                answer.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Convert errors below HTTP to error kinds of this project."""
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
            raise Unavailable(
                f"the connection to {self._url} failed ({type(error).__name__}: {error})", "try again"
            ) from error
        except httpx.InvalidURL as error:
            raise Misconfigured(f"{self._url!r} is not the URL of a service ({error})", "check --admin-url") from error


def _trusted(target: ClientConfig) -> Any:
    """Return the `verify` argument for httpx: the system's authorities, or those of `ca_cert`. Raises Misconfigured."""
    if target.ca_cert is None:
        return True
    import ssl

    try:
        return ssl.create_default_context(cafile=str(target.ca_cert))
    except (ssl.SSLError, OSError) as error:
        raise Misconfigured(
            f"{target.ca_cert} is not a file of certificates ({error})", "give one in PEM format with --ca-cert"
        ) from error


def _check(answer: httpx.Response) -> None:
    """Raise the error of a refusal."""
    if answer.is_success:
        return
    status, stated = answer.status_code, _reason(answer)
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
    own = next((text for pattern, text in _REMEDIES.items() if re.search(pattern, stated)), "")
    if own and not advised:
        path = answer.request.url.raw_path.decode().partition("?")[0]
        names = re.sub("^.*?/(persistent|namespaces|tenants|clusters)/", "", path).split("/")
        remedy = own.format(*map(unquote, names))
    wait = answer.headers.get("retry-after", "")
    if wait.isdigit():
        again = f"try again in {wait} s"
        if "try again" in remedy and stated:
            remedy = f"{remedy} (in {wait} s)"
        else:
            remedy = f"{remedy}; {again}" if advised else again
    raise kind(reason.removesuffix("."), remedy)


_REMEDIES: Mapping[str, str] = {
    "^Tenant already exist": (
        "{0} was not changed; choose another name, or change it with `compactor-admin tenants update {0}`"
    ),
    "^Namespace already exists": (
        "{0}/{1} was not changed; choose another name, or use it as it is: `compactor-admin namespaces policies "
        "{0}/{1}` shows it"
    ),
    "^This topic already exists": (
        "persistent://{0}/{1}/{2} was not changed; choose another name, or use it as it is: `compactor-admin topics "
        "get-partitioned-topic-metadata {0}/{1}/{2}` shows whether it has partitions"
    ),
    "^Subscription already exists": (
        "{4} was not changed; choose another name, or move it with `compactor-admin topics reset-cursor {0}/{1}/{2} -s "
        "{4}`"
    ),
    "tenant still has active namespaces": "delete them first; `compactor-admin namespaces list {0}` shows them",
    "^Cannot delete non empty namespace": "delete its topics first; `compactor-admin topics list {0}/{1}` shows them",
    "^Compaction already in progress": (
        "wait with `compactor-admin topics compaction-status {0}/{1}/{2} --wait-complete`, or end it with "
        "`compactor-admin compactions abort {0}/{1}/{2}`"
    ),
    "please call delete-partitioned-topic": "run `compactor-admin topics delete-partitioned-topic {0}/{1}/{2}`",
    "please call delete[.]": "run `compactor-admin topics delete {0}/{1}/{2}`",
    "client connected Including": "end them, or give --force",
    "^Couldn't find leader": "try again in some seconds; `compactor-admin brokers list` shows the live services",
    "^Permissions are not set": "nothing was changed; `compactor-admin topics permissions {0}/{1}/{2}` shows them",
    "^(Tenant|Namespace) name is not valid": "use letters, digits and _ - = : . alone",
    "^Desired partitions": "partitions can only be added; give a larger number, or make another topic",
    "isn't a partitioned topic": (
        "create that first, with `compactor-admin topics create-partitioned-topic`, or choose another name"
    ),
    "smaller than number of partition": (
        "choose another name, or add partitions with `compactor-admin topics update-partitioned-topic`"
    ),
    "topic policy for a partition": "name its partitioned topic: a partition has the policies of that",
    "^Tenant (does not exist|not found)": "see `compactor-admin tenants list`",
    "^Namespace (does not exist|not found)": "see `compactor-admin namespaces list {0}`",
    "^Subscription .* not found": "see `compactor-admin topics subscriptions {0}/{1}/{2}`",
    "^(Partitioned )?Topic .* not found|^Partitioned Topic not found": "see `compactor-admin topics list {0}/{1}`",
    "^Cluster does not exist": "see `compactor-admin clusters list`",
}
"""The remedies of refusals for which a service uses a broker's words, by these words. The first that fits decides; the
fields are names of the request's path."""


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


def _reason(answer: httpx.Response) -> str:
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


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
