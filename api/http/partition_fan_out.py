"""A request for a partitioned topic whose partitions are with several services: asked of each partition, where it is.

Before anything was done here the request is taken apart into one a partition; those that are here go to this same
application. The answers become one: lists are joined, objects merged, of the messages of a key the newest counts, also
where it is a tombstone. The first answer that is a refusal is the answer, but for those that say no more than that
another partition has it: a key that one partition does not have, a subscription that one has already. Partitions that
were deleted by themselves are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from api.broker import names
from api.broker.refusals import NotTheOwner
from api.broker.threads import WaitsFor
from api.http.context import HttpContext, context_of
from api.http.dependencies import broker_of
from api.http.paths import segment
from api.http.problems import RestException, answer
from api.rest.messages.single_messages import AGE
from storage.errors import TopicNotFound
from storage.metadata.records import PartitionedTopic
from storage.model import TopicName

if TYPE_CHECKING:
    import httpx

_PREFIX = "/admin/v2/persistent/"
_TOPIC_AT = 6
"""Where the topic stands among the segments of the path."""
_TOLERATED = frozenset({404, 409})


def install(app: FastAPI) -> None:
    """Let `app` forward requests for topics that are not local."""
    app.add_exception_handler(NotTheOwner, _not_the_owner)


async def _not_the_owner(request: Request, error: Exception) -> Response:
    assert isinstance(error, NotTheOwner)
    return await answered(request, error)


async def answered(request: Request, other: NotTheOwner) -> Response:
    """The answer to a request of which `other` is to be asked something."""
    context = context_of(request)
    name = other.topic.name
    whole = name.whole
    path = raw_path(request).split("/")
    # Compared decoded: clients differ in what they encode, and what is asked of one partition is not for all.
    if whole is None or not request.url.path.startswith(_PREFIX) or unquote(path[_TOPIC_AT]) == name.topic:
        return await context.proxy.forward(request, other.service)
    metadata = context.broker.environment.metadata
    database = broker_of(request).pools[WaitsFor.DATABASE]
    partitioned: PartitionedTopic | None = await database.run(metadata.partitions.find, whole)
    if partitioned is None:
        return await context.proxy.forward(request, other.service)
    body = await request.body()
    responses = []
    for item in names.partition_names(partitioned):
        path[_TOPIC_AT] = segment(item.topic)
        try:
            responses.append(await _asked(request, context, item, "/".join(path), body))
        except TopicNotFound:
            continue  # each can be deleted by itself
        except RestException as error:
            return answer(error.status_code, str(error.detail), error.headers)
    if not responses:
        return answer(404, "Topic partitions were not yet created")
    return await broker_of(request).pools[WaitsFor.PARSING].run(together, request.method, responses)


async def _asked(request: Request, context: HttpContext, name: TopicName, path: str, body: bytes) -> httpx.Response:
    """The answer of one partition."""
    query = request.scope.get("query_string", b"").decode("latin-1")
    target = f"{path}?{query}" if query else path
    database = broker_of(request).pools[WaitsFor.DATABASE]
    record = await database.run(context.broker.environment.metadata.topics.get, name)
    try:
        await database.run(context.broker.ownership.check_for_reading, record)
    except NotTheOwner as other:
        return await context.proxy.send(request, other.service, request.method, target, body)
    return await context.proxy.send_here(request, target, body)


def together(method: str, responses: Sequence[httpx.Response]) -> Response:
    """One answer of those of the partitions, which are at least one."""
    dated = [item for item in responses if AGE in item.headers]
    good = [item for item in responses if item.is_success]
    bad = [item for item in responses if not item.is_success and AGE not in item.headers]
    tolerated = bool(good or dated) and all(item.status_code in _TOLERATED for item in bad) and method in ("GET", "PUT")
    if bad and not tolerated:
        return _passed(bad[0])
    if dated:
        return _passed(max(dated, key=_age))
    contents = [json.loads(item.content) for item in good if item.content]
    if not contents:
        return Response(status_code=204)
    if isinstance(contents[0], list):
        return JSONResponse([item for content in contents for item in content])
    return JSONResponse({name: value for content in contents for name, value in content.items()})


def _age(answer: httpx.Response) -> tuple[int, ...]:
    return tuple(map(int, answer.headers[AGE].split(":")))


def _passed(answer: httpx.Response) -> Response:
    return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))


def raw_path(request: Request) -> str:
    """The path as it came, percent-encoded."""
    raw: bytes = request.scope.get("raw_path") or quote(request.url.path).encode()
    return raw.decode("latin-1")
