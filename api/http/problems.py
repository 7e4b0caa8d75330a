"""Errors as HTTP has them: one table from kinds to statuses, and Pulsar's body, `{"reason": …}`.

A reason states what happened, to what, and what to do; never a traceback. An unexpected error is logged with its
traceback, and answered as a 500 that names the request. Pulsar's own words are used where a real broker has some
(docs/rest.md): a route raises them as `RestException`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import Scope

from api.broker import refusals as broker_refusals
from api.broker.refusals import PoolBusy
from api.observability.error_text import OPERATOR_WORDS, one_line
from api.observability.logs import LogThrottle
from api.observability.redaction import excerpt
from storage import errors
from storage.advice import AdviceKind, Words
from storage.clock import SystemClock

LOG = logging.getLogger(__name__)
_SHOWN = 200

BY_KIND: Mapping[type[Exception], int] = {
    errors.InvalidTopicName: 412,
    errors.OffsetOutOfRange: 416,
    errors.InvalidInput: 400,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Misconfigured: 503,
    errors.Unavailable: 503,
    errors.DataLoss: 507,
}
"""The first that fits decides. 507: what was stored cannot be given (R8); 503: an operator, or time, helps."""
PULSAR_WORDS: Mapping[type[errors.CompactorError], tuple[int, str]] = {
    broker_refusals.MissingPartition: (404, "Topic partitions were not yet created"),
    broker_refusals.MissingPartitionedTopic: (404, "Partitioned Topic not found: {topic} has zero partitions"),
    broker_refusals.MissingTopic: (404, "Topic {topic} not found"),
    broker_refusals.MissingNamespace: (404, "Namespace does not exist"),
    broker_refusals.PartitionedTopicRefused: (405, "{topic} is a partitioned topic: use its partitions"),
    broker_refusals.NotPartitioned: (409, "Topic {topic} is not the partitioned topic."),
    broker_refusals.FewerPartitions: (
        409,
        "Desired partitions {partitions} can't be less than the current partitions {current}.",
    ),
    broker_refusals.PartitionWithoutTopic: (
        412,
        "Can't create topic {topic} with \"-partition-\" followed by numeric value if there isn't a partitioned topic "
        "{partitioned} created.",
    ),
    broker_refusals.NoSuchPartition: (
        412,
        'Can\'t create topic {topic} with "-partition-" followed by a number smaller than number of partition of '
        "partitioned topic {partitioned}",
    ),
    broker_refusals.ClientsConnected: (
        412,
        "Topic {topic} has active producers/subscriptions: end them, or delete with force",
    ),
    broker_refusals.TopicHasWriter: (
        412,
        "Topic has {producers} client connected Including 0 consumers, {producers} producers, and 0 replicators.",
    ),
    broker_refusals.PartitionPolicyRefused: (412, "Not allowed to set/get topic policy for a partition"),
}
"""Status and reason of refusals for which a real broker has words, with fields of the error. The first that fits
decides."""


_ERRORS = 10
"""The number of a request's errors that are reported."""
HTTP_WORDS: Words = {
    **OPERATOR_WORDS,
    AdviceKind.LIST_TOPICS: "see GET /admin/v2/persistent/{{tenant}}/{{namespace}}",
    AdviceKind.LIST_RUNS: "GET …/{{topic}}/compactions shows those that do",
    AdviceKind.LIST_RUNS_AFTER_END: (
        "nothing was changed and nothing is left to do; GET …/{{topic}}/compactions shows which runs continue"
    ),
    AdviceKind.WATCH_OR_CANCEL_RUN: (
        "wait for it to finish; GET /admin/v2/compactions/{run_id} shows its progress, "
        "DELETE /admin/v2/compactions/{run_id} ends it"
    ),
    AdviceKind.READ_RAW: OPERATOR_WORDS[AdviceKind.READ_RAW].replace("--read-compacted", "readCompacted"),
    AdviceKind.TRIM_COMPACTED: OPERATOR_WORDS[AdviceKind.TRIM_COMPACTED].replace("--before", "`before`"),
}
"""Advice as routes, for a caller over HTTP; what has no route is advice for an operator."""


class RestException(HTTPException):
    """An answer other than success, with its status and reason in the words of a real broker."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, reason, dict(headers) if headers else None)


class UnreadableBody(HTTPException):
    """A body that is not JSON of the asked kind, in the words of a broker's JSON parser: 400, in plain text."""

    media_type = "text/plain"

    def __init__(self, reason: str) -> None:
        super().__init__(400, reason)


class ErrorData(BaseModel):
    """The body of every answer that reports a problem."""

    reason: str


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what a route declares of its answers besides success: `responses=refusals(404, 409)`."""
    return {status: {"model": ErrorData} for status in statuses}


@contextmanager
def reported_as(not_found: str = "", conflict: str = "", partitioned: str = "") -> Iterator[None]:
    """Report errors inside the context in these words of a broker, if any: 404, 409, and 405 for a partitioned topic
    that an operation refuses."""
    try:
        yield
    except broker_refusals.PartitionedTopicRefused as error:
        if not partitioned:
            raise
        raise RestException(405, partitioned) from error
    except (errors.NotFound, errors.Conflict) as error:
        status, reason = (404, not_found) if isinstance(error, errors.NotFound) else (409, conflict)
        if not reason:
            raise
        raise RestException(status, reason) from error


def status_of(error: Exception) -> int:
    """Return the status of an error; 500 for an unexpected one."""
    words = _pulsar_words(error)
    if words is not None:
        return words[0]
    return next((status for kind, status in BY_KIND.items() if isinstance(error, kind)), 500)


def _pulsar_words(error: Exception) -> tuple[int, str] | None:
    return next((words for kind, words in PULSAR_WORDS.items() if isinstance(error, kind)), None)


def public_reason(error: errors.CompactorError) -> str:
    """Return an error in one line, for a caller over HTTP."""
    words = _pulsar_words(error)
    if words is not None:
        return words[1].format_map(vars(error))
    return " ".join(errors.public_text(error, HTTP_WORDS).split())


def log_for_operators(request: Request, error: Exception) -> None:
    """Log an error, of which the answer has only the public text, in full."""
    if isinstance(error, errors.Misconfigured | errors.Unavailable | errors.DataLoss) and not isinstance(
        error, PoolBusy
    ):
        route = getattr(request.scope.get("route"), "path", "")
        text = f"{request.method} {route} is answered {status_of(error)}: {one_line(error)}"
        condition = f"{type(error).__name__} {request.method} {route}"
        if isinstance(error, errors.DataLoss):  # of each topic it is news of its own
            condition += f" {'/'.join(map(str, request.path_params.values()))}"
        request.app.state.log_throttle.warn(text, condition)


def answer(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The body that Pulsar's clients read; secrets are hidden in it, and what is long is cut."""
    return JSONResponse({"reason": excerpt(reason)}, status, headers=headers)


def install(app: FastAPI) -> None:
    """Let `app` answer every error in this way."""
    app.state.log_throttle = LogThrottle(SystemClock(), LOG)
    app.add_exception_handler(errors.CompactorError, _known)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unforeseen)


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.CompactorError)
    if isinstance(error, errors.SegmentNotLocal):
        remedy = "start the service on the machine where it is; what is sealed is served without it"
        return answer(503, f"{error.message}, which this service does not have: {remedy}", {"Retry-After": "5"})
    log_for_operators(request, error)
    reported = public_reason(error)
    retry = {"Retry-After": str(error.retry_after_seconds)} if isinstance(error, errors.Unavailable) else None
    return answer(status_of(error), reported, retry)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, UnreadableBody):
        return Response(error.detail, error.status_code, {"content-type": error.media_type})
    headers = dict(error.headers or {})
    knows = isinstance(error, RestException) and "Allow" in headers
    if error.status_code == 405 and not knows and (verbs := _verbs(request)):
        headers["Allow"] = ", ".join(verbs)
    message = str(error.detail)
    if error.status_code == 404 and not isinstance(
        error, RestException
    ):  # no route fits: it is not a topic that is missing
        message = f"{message}: there is no call {request.method} {request.url.path[:_SHOWN]} here"
    return answer(error.status_code, message, headers)


def _verbs(request: Request) -> list[str]:
    """Return the verbs of a path, over all routers: the router that refused a verb knows one route of several."""
    routes = [route for router in getattr(request.app.state, "routers", ()) for route in router.routes]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({verb for route in matching for verb in getattr(route, "methods", None) or ()})


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if any(item["loc"] == ("body",) for item in error.errors()) and not re.fullmatch(r"application/(.+\+)?json", kind):
        sent = f"it came as {kind[:100]}" if kind else "it has none"
        if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            return answer(415, f"a JSON body needs the header Content-Type: application/json, and {sent}")
    return answer(400, f"the request cannot be taken: {shown_errors(error)}")


def shown_errors(error: RequestValidationError | ValidationError) -> str:
    """The first errors of a body or a query, each with its place."""
    places = ((".".join(str(part)[:_SHOWN] for part in item["loc"]), item["msg"]) for item in error.errors()[:_ERRORS])
    return "; ".join(f"{place}: {what}" if place else what for place, what in places)


async def _gone(_: Request, error: Exception) -> Response:
    return answer(400, "the client went away before its body was whole")  # for the log alone


async def _unforeseen(request: Request, error: Exception) -> Response:
    return unforeseen(request.scope, error)


def unforeseen(scope: Scope, error: Exception) -> Response:
    """The answer to an unexpected error, which is logged with its traceback and names the request."""
    LOG.error("unexpected error in %s %s", scope["method"], scope["path"], exc_info=error)
    request = scope.get("state", {}).get("request_id", "without an id")
    reason = f"unexpected {type(error).__name__} in request {request}: see the service's log, and report it"
    return answer(500, reason)
