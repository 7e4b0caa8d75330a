"""Requests for a partitioned topic whose partitions belong to several services: each partition's service gets a part.

Before it has any effect, the request is split into one for each partition, which this application gets itself: the
operation checks the owner of its partition, and the request is forwarded if that is another service. The answers are
merged: lists are concatenated, objects united; of the messages of a key the newest is the answer, also if it is a
tombstone. A refusal of one partition refuses the request, except for 404 and 409 of a GET or PUT if another partition
succeeds: a key that one partition does not have, or a subscription that one has already. Partitions that do not exist
are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from api.broker import names
from api.broker.broker import Broker
from api.broker.refusals import NotTheOwner
from api.broker.threads import WaitsFor
from api.http.context import context_of
from api.http.owner_proxy import FORWARDED
from api.http.paths import encode_path_segment
from api.http.problems import answer_to_error, error_response
from storage.errors import CompactorError
from storage.model import TopicName

if TYPE_CHECKING:
    import httpx

AGE = "X-Compactor-Age"
"""The header with the age of a key's newest message, also of a tombstone; the largest is that of the newest."""
_PREFIX = "/admin/v2/persistent/"
_TOPIC_AT = 6
"""The index of the topic among the segments of the path."""
_TOLERATED = frozenset({404, 409})


def install_owner_forwarding(app: FastAPI) -> None:
    """Register the handler of NotTheOwner with `app`: the services that own the topic answer the request."""
    app.add_exception_handler(NotTheOwner, _handle_not_the_owner)


async def _handle_not_the_owner(request: Request, error: Exception) -> Response:
    assert isinstance(error, NotTheOwner)
    try:
        return await forward_to_owners(request, error)
    except (CompactorError, HTTPException) as refusal:  # raised in a handler, it would reach no other one
        return await answer_to_error(request, refusal)


async def forward_to_owners(request: Request, other: NotTheOwner) -> Response:
    """Forward a request to the services that own its topic or its partitions, and return their answer, merged for
    partitions."""
    context = context_of(request)
    name = other.topic.name
    whole = name.partitioned_topic
    path = raw_path(request).split("/")
    # Decoded names are compared, because clients differ in the characters that they encode.
    is_whole = request.url.path.startswith(_PREFIX) and unquote(path[_TOPIC_AT]) != name.topic
    if whole is None or not is_whole or FORWARDED in request.headers:
        return await context.proxy.forward(request, other.service)
    broker = context.broker
    partitions = await broker.pools[WaitsFor.DATABASE].run(_existing_partitions, broker, whole)
    if partitions is None:
        return await context.proxy.forward(request, other.service)
    query = request.scope.get("query_string", b"").decode("latin-1")
    body = await request.body()
    responses = []
    for item in partitions:
        path[_TOPIC_AT] = encode_path_segment(item.topic)
        target = "/".join(path)
        responses.append(
            await context.proxy.send_to_own_application(request, f"{target}?{query}" if query else target, body)
        )
    if not responses:
        return error_response(404, "Topic partitions were not yet created")
    return await broker.pools[WaitsFor.PARSING].run(merge_partition_answers, request.method, responses)


def _existing_partitions(broker: Broker, whole: TopicName) -> list[TopicName] | None:
    """Return the names of the partitions that exist; None: there is no partitioned topic of that name."""
    partitioned = broker.environment.metadata.partitions.find(whole)
    if partitioned is None:
        return None
    return [record.name for record in names.partitions(broker.environment, partitioned)]


def merge_partition_answers(method: str, responses: Sequence[httpx.Response]) -> Response:
    """Return one answer from the answers of the partitions, of which there is at least one. `method`: the request's.

    Lists are concatenated, objects united. A refusal of one partition is the answer, with exceptions for GET and PUT.
    """
    dated = [item for item in responses if AGE in item.headers]
    good = [item for item in responses if item.is_success]
    bad = [item for item in responses if not item.is_success and AGE not in item.headers]
    tolerated = bool(good or dated) and all(item.status_code in _TOLERATED for item in bad) and method in ("GET", "PUT")
    if bad and not tolerated:
        return _copied_response(bad[0])
    if dated:
        return _copied_response(max(dated, key=_key_message_rank))
    contents = [json.loads(item.content) for item in good if item.content]
    if not contents:
        return Response(status_code=204)
    if isinstance(contents[0], list):
        return JSONResponse([item for content in contents for item in content])
    return JSONResponse({name: value for content in contents for name, value in content.items()})


def _key_message_rank(answer: httpx.Response) -> tuple[int, ...]:
    """Return the rank of the message of a key in an answer; the newest message has the largest."""
    return tuple(map(int, answer.headers[AGE].split(":")))


def _copied_response(answer: httpx.Response) -> Response:
    """Return a response with the status, the body and some headers of another service's answer."""
    headers = {name: answer.headers[name] for name in ("content-type", "retry-after") if name in answer.headers}
    return Response(answer.content, answer.status_code, headers)


def raw_path(request: Request) -> str:
    """Return the path of a request as it was received, percent-encoded."""
    raw: bytes = request.scope.get("raw_path") or quote(request.url.path).encode()
    return raw.decode("latin-1")
