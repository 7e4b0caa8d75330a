"""Topics and namespaces as URL paths name them, in Pulsar's way.

A slash inside a name is encoded (`%2F`). Servers decode a path before routes are matched, which would split the name:
`EncodedSlashes` keeps it encoded until the route is matched, and with it the percent sign (`%25`), so that a name may
contain `%2F` itself. Then this module decodes and checks the names. It reads them from the request, because FastAPI's
own parameters for each route would take a tenth of the service's start; `NAMES` describes them in the OpenAPI document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote, unquote

from fastapi import Depends, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.problems import RestException
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


class EncodedSlashes:
    """Middleware that keeps encoded slashes, so that they do not split the path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if scope["type"] == "http" and _KEPT.search(raw):
            # "%252F" is what decoding once makes "%2F" of.
            scope = {**scope, "path": unquote(_KEPT.sub(rb"%25\1", raw).decode("latin-1"), errors="replace")}
        await self._app(scope, receive, send)


def decoded(part: str) -> str:
    """Return a part of the path with its slashes and percent signs; the rest is decoded already."""
    return _ENCODED.sub(lambda match: "%" if match[0] == "%25" else "/", part) if "%" in part else part


def named(request: Request, name: str) -> str:
    """Return one of `NAMES` in the request's path."""
    return decoded(request.path_params[name])


def segment(name: str) -> str:
    """Return a name as one segment of a path, also `.` or `..`, which clients and proxies would resolve."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def kept(raw_path: str) -> str:
    """Return a percent-encoded path in which no client resolves `.` or `..`: they are names here."""
    return "/".join(part if part.strip(".") else part.replace(".", "%2E") for part in raw_path.split("/"))


async def topic_name(request: Request) -> TopicName:
    """Return the topic of a path. Raise RestException (412) for an invalid name, in Pulsar's words."""
    try:
        return TopicName(*(named(request, name) for name in NAMES))
    except InvalidTopicName as error:
        raise RestException(412, NOT_VALID) from error


async def namespace_name(request: Request) -> str:
    """Return `tenant/namespace` of a path. Raise RestException (412) for an invalid name."""
    tenant, namespace = named(request, "tenant"), named(request, "namespace")
    try:
        TopicName(tenant, namespace, "any")
    except InvalidTopicName as error:
        raise RestException(412, "Namespace name is not valid") from error
    return f"{tenant}/{namespace}"


Topic = Annotated[TopicName, Depends(topic_name)]
"""A route's parameter: the topic that the path names; it need not exist."""
Namespace = Annotated[str, Depends(namespace_name)]
"""A route's parameter: `tenant/namespace`; it need not exist."""
