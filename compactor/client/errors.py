"""Errors of the client: each states what happened, to what, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx


class ClientError(Exception):
    """A request that failed. `status`: of the service's answer; None: there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NotFound(ClientError):
    """There is no such topic."""


class AccessRefused(ClientError):
    """The token is missing, not valid, or its role may not read the topic."""


class StateMayBeStale(ClientError):
    """The reader may have missed a deletion (R7): read again from earliest, into an empty state."""


class Unavailable(ClientError):
    """No service answers, or not now: try again."""


_TOKEN = re.compile(r"[!-~]+")
_KINDS: dict[int, type[ClientError]] = {
    401: AccessRefused,
    403: AccessRefused,
    404: NotFound,
    409: StateMayBeStale,
    503: Unavailable,
    507: Unavailable,
}


def raise_for_status(answer: httpx.Response) -> None:
    """Raise the ClientError of an error status, with the service's own reason. Do nothing for a success.

    The body of the answer must have been read.
    """
    if answer.is_success:
        return
    try:
        reason = str(json.loads(answer.content)["reason"])
    except (ValueError, KeyError, TypeError):
        reason = answer.text.strip()[:200] or f"the service answered {answer.status_code} without a reason"
    where = f"{answer.url.host}{answer.url.path}"
    raise _KINDS.get(answer.status_code, ClientError)(f"{where}: {reason}", answer.status_code)


@contextmanager
def convert_transport_errors(url: str) -> Iterator[None]:
    """Run the body, and convert httpx's errors of the transport to `Unavailable`.

    No text of an error is shown that may hold a header, and so a token.
    """
    try:
        yield
    except httpx.TimeoutException as error:
        raise Unavailable(f"{url} did not answer in time: try again, or connect with a larger timeout") from error
    except httpx.NetworkError as error:
        raise Unavailable(f"{url} does not answer ({error}): try again, or check the address") from error
    except httpx.TransportError as error:
        raise Unavailable(f"{url} broke off its answer, or is no service of HTTP: try again") from error


def connection_headers(url: str, token: str | None) -> dict[str, str]:
    """Return the HTTP headers of all requests, with the token. Raise ValueError for a wrong URL or token."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no address of a service: begin it with http:// or https://")
    if token is None:
        return {}
    if not _TOKEN.fullmatch(plain := token.strip()):
        raise ValueError("the token has characters that no token has: is it the content of the right file?")
    return {"Authorization": f"Bearer {plain}"}
