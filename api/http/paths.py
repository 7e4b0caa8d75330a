"""Topics and namespaces as URL paths name them, in Pulsar's way.

A slash inside a name is encoded (`%2F`). Servers decode a path before routes are matched, which would split the name:
`EncodedSlashMiddleware` keeps it encoded until the route is matched, and with it the percent sign (`%25`), so that a
name may contain `%2F` itself. Servers decode bytes that are not UTF-8 to one replacement character, so different names
would be one: `EncodedSlashMiddleware` refuses them, for every route but those of pages, which refuse them by a page
(`check_utf8_url`). Then this module decodes and checks the names. It reads them from the request, because FastAPI's own
parameters for each route would take a tenth of the service's start; `NAMES` describes them in the OpenAPI document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated
from urllib.parse import quote, unquote, unquote_to_bytes

from fastapi import Depends, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.problems import RestException, error_response
from storage.errors import InvalidTopicName
from storage.model import TopicName

TOPIC_PATH = "/persistent/{tenant}/{namespace}/{topic}"
NAMESPACE_PATH = "/namespaces/{tenant}/{namespace}"
_KEPT = re.compile(rb"%(2[fF5])")
_ENCODED = re.compile("%2[fF5]")
NOT_VALID = "Topic name is not valid"
NAMES: Mapping[str, str] = {
    "tenant": "Tenant.",
    "namespace": "Namespace, without its tenant.",
    "topic": "Topic, percent-encoded.",
}
"""The parameters of paths that this module reads, with their descriptions."""


class EncodedSlashMiddleware:
    """Middleware that keeps encoded slashes in a path, so that routes do not split names at them, and refuses a URL
    that is not UTF-8 (400)."""

    def __init__(self, app: ASGIApp, is_page: Callable[[str], bool] = lambda _: False) -> None:
        """`is_page`: returns whether the routes of a path refuse its URL themselves, by `check_utf8_url`."""
        self._app = app
        self._is_page = is_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if not self._is_page(scope["path"]) and (reason := _url_refusal_reason(scope)):
                await error_response(400, reason)(scope, receive, send)
                return
            raw = scope.get("raw_path") or b""
            if _KEPT.search(raw):
                # "%252F" is what decoding once makes "%2F" of.
                scope = {**scope, "path": unquote(_KEPT.sub(rb"%25\1", raw).decode("latin-1"))}
        await self._app(scope, receive, send)


async def check_utf8_url(request: Request) -> None:
    """Raise RestException (400) for a URL that is not UTF-8."""
    if reason := _url_refusal_reason(request.scope):
        raise RestException(400, reason)


def _url_refusal_reason(scope: Scope) -> str:
    """Return the reason why the URL of a request is refused: it is not UTF-8. Empty: it is UTF-8."""
    for part, encoded in (("path", scope.get("raw_path") or b""), ("query", scope.get("query_string") or b"")):
        if not _is_utf8(encoded):
            return f"the {part} of the URL is not UTF-8: encode its names in UTF-8 before percent-encoding"
    return ""


def _is_utf8(encoded: bytes) -> bool:
    """Return whether percent-encoded bytes are UTF-8."""
    try:
        unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        return False
    return True


def decode_path_part(part: str) -> str:
    """Decode `%2F` and `%25` in a part of a path, and return it; the server has decoded all else."""
    return _ENCODED.sub(lambda match: "%" if match[0] == "%25" else "/", part) if "%" in part else part


def path_parameter(request: Request, name: str) -> str:
    """Return the decoded value of one of `NAMES` in the request's path."""
    return decode_path_part(request.path_params[name])


def encode_path_segment(name: str) -> str:
    """Return a name, percent-encoded, as one segment of a path. The dots of `.` and `..` are encoded, too: clients and
    proxies would resolve them."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def with_encoded_dots(raw_path: str) -> str:
    """Return a percent-encoded path in which segments of dots alone are encoded: no client resolves `.` or `..`
    then."""
    return "/".join(part if part.strip(".") else part.replace(".", "%2E") for part in raw_path.split("/"))


async def topic_name(request: Request) -> TopicName:
    """Return the topic that a request's path names. Raise RestException (412) for an invalid name, in Pulsar's
    words."""
    try:
        return TopicName(*(path_parameter(request, name) for name in NAMES))
    except InvalidTopicName as error:
        raise RestException(412, NOT_VALID) from error


async def namespace_name(request: Request) -> str:
    """Return the namespace that a request's path names, as `tenant/namespace`. Raise RestException (412) for an invalid
    name."""
    tenant, namespace = path_parameter(request, "tenant"), path_parameter(request, "namespace")
    try:
        TopicName(tenant, namespace, "any")
    except InvalidTopicName as error:
        raise RestException(412, "Namespace name is not valid") from error
    return f"{tenant}/{namespace}"


Topic = Annotated[TopicName, Depends(topic_name)]
"""A route's parameter: the topic that the path names; it need not exist."""
Namespace = Annotated[str, Depends(namespace_name)]
"""A route's parameter: `tenant/namespace`; it need not exist."""
