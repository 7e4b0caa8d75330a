"""Errors as HTTP has them: one table from kinds to statuses, and Pulsar's body, `{"reason": …}`.

A reason states what happened, to which object, and what to do; it contains no traceback. An unexpected error is logged
with its traceback, and answered as a 500 that names the request. Where a real broker has words for a refusal
(docs/rest.md), these are used: a route raises them as `RestException`.
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

from api.broker import pulsar_policies, refusals as broker_refusals
from api.formats.validation_text import problem_sentence
from api.observability.error_text import (
    ADMIN,
    ADMIN_WORDING,
    CONFLICT,
    KIND_HEADER,
    NOT_FOUND,
    OPERATOR_WORDING,
    WORDING_HEADER,
    one_line,
)
from api.observability.logs import LogThrottle
from api.observability.redaction import redacted_excerpt
from storage import errors
from storage.advice import AdviceKind, AdviceWording
from storage.clock import SystemClock

LOG = logging.getLogger(__name__)
_EXCERPT = 200
"""The characters of a client's text that an answer repeats."""
_FOR_CALLERS = (
    broker_refusals.PoolBusy,
    broker_refusals.WriterElsewhere,
    broker_refusals.TopicNotServed,
)
"""Errors that say nothing to an operator: the pool has logged its own, and the others are answers about owners."""

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
"""The first kind that fits decides. 507: stored data is missing or damaged (R8). 503: an operator must act, or the call
succeeds later."""
PULSAR_WORDS: Mapping[type[errors.CompactorError], tuple[int, str]] = {
    broker_refusals.MissingPartition: (404, "Topic partitions were not yet created"),
    broker_refusals.PartitionOfMissingTopic: (404, "Partitioned Topic not found: {topic} has zero partitions"),
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
    broker_refusals.PartitionOutOfRange: (
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
    pulsar_policies.PolicyValueRefused: (412, "{reason}"),
    errors.CompactionRunning: (409, "Compaction already in progress"),
    broker_refusals.PartitionPolicyRefused: (412, "Not allowed to set/get topic policy for a partition"),
    errors.CursorNotFound: (404, "Subscription {cursor} not found for topic {topic}"),
    broker_refusals.SubscriptionHasConsumers: (412, "{message}: {remedy}"),
    errors.CompactionCursorProtected: (412, "{message}: {remedy}"),
    broker_refusals.MissingEntry: (404, "Message not found: {topic} has no {entry}"),
    broker_refusals.EntryTooFar: (412, "{message}: {remedy}"),
}
"""Status and reason of refusals for which a real broker has words, with fields of the error. The first kind that fits
decides."""
_MAX_ERRORS = 10
"""The number of a request's errors that are reported."""
HTTP_WORDING: AdviceWording = {
    **OPERATOR_WORDING,
    AdviceKind.LIST_TOPICS: "see GET /admin/v2/persistent/{{tenant}}/{{namespace}}",
    AdviceKind.LIST_POLICIES: "{meant}GET /admin/v2/brokers/policies lists all",
    AdviceKind.LIST_RUNS: "GET …/{{topic}}/compactions shows those that do",
    AdviceKind.LIST_RUNS_AFTER_END: (
        "nothing was changed and nothing is left to do; GET …/{{topic}}/compactions shows which runs continue"
    ),
    AdviceKind.WATCH_OR_CANCEL_RUN: (
        "wait for it to finish; GET /admin/v2/compactions/{run_id} shows its progress, "
        "DELETE /admin/v2/compactions/{run_id} ends it"
    ),
    AdviceKind.FORCE_DELETION: AdviceKind.FORCE_DELETION.value,
    AdviceKind.REBUILD_COMPACTED: (
        "raw reads still work (leave out readCompacted); restore the object from a backup; without one, DELETE "
        "…/{{topic}}/subscription/__compaction: nothing is lost, since the next run reads all raw messages again"
    ),
    AdviceKind.GIVE_UP_COMPACTED: (
        "raw reads still work (leave out readCompacted); restore the object from a backup; only without one, DELETE "
        "…/{{topic}}/subscription/__compaction?force=true: the values whose raw messages are trimmed are then lost"
    ),
    AdviceKind.RESTORE_RAW: OPERATOR_WORDING[AdviceKind.RESTORE_RAW].replace("--force", "?force=true"),
    AdviceKind.READ_RAW: (
        "raw reads still work (leave out readCompacted); restore the object from a backup; without one, see "
        "docs/operations.md on damaged and lost objects"
    ),
    AdviceKind.READ_IN_BASE64: "ask with keyEncoding=base64 or valueEncoding=base64",
    AdviceKind.TRIM_COMPACTED: OPERATOR_WORDING[AdviceKind.TRIM_COMPACTED].replace("--before", "`before`"),
}
"""Advice for a caller over HTTP, which names routes; advice without a route is that for an operator."""


class RestException(HTTPException):
    """An answer other than success, with its status and reason in the words of a real broker."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, reason, dict(headers) if headers else None)


class UnreadableBody(HTTPException):
    """A body that is not JSON of the required type: 400, in plain text with the words of a broker's JSON parser."""

    media_type = "text/plain"

    def __init__(self, reason: str) -> None:
        super().__init__(400, reason)


class ErrorData(BaseModel):
    """The body of every answer that reports a problem."""

    reason: str


def refusal_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI declaration of a route's error answers: `responses=refusal_responses(404, 409)`."""
    return {status: {"model": ErrorData} for status in statuses}


@contextmanager
def reword_errors(not_found: str = "", conflict: str = "", partitioned: str = "") -> Iterator[None]:
    """Return a context that replaces errors by RestException with a broker's words: NotFound by 404 with `not_found`,
    Conflict by 409 with `conflict`, PartitionedTopicRefused by 405 with `partitioned`. An error whose words are empty
    passes unchanged."""
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
    """Return the HTTP status of an error; 500 for an unexpected one."""
    words = _pulsar_status_and_reason(error)
    if words is not None:
        return words[0]
    return next((status for kind, status in BY_KIND.items() if isinstance(error, kind)), 500)


def _pulsar_status_and_reason(error: Exception) -> tuple[int, str] | None:
    """Return the status, and the reason as a format string, that a broker has for an error; None: it has none."""
    return next((words for kind, words in PULSAR_WORDS.items() if isinstance(error, kind)), None)


def wording_of(request: Request) -> AdviceWording:
    """Return the wording of advice in the answers to a request: that of `set_wording`, ADMIN_WORDING if it comes from
    `compactor-admin` (WORDING_HEADER), else HTTP_WORDING."""
    chosen: AdviceWording = getattr(request.state, "wording", HTTP_WORDING)
    return ADMIN_WORDING if request.headers.get(WORDING_HEADER) == ADMIN else chosen


def set_wording(request: Request, wording: AdviceWording) -> None:
    """Set the wording of advice in the answer to a request that is no call of REST."""
    request.state.wording = wording


def public_reason(error: errors.CompactorError, wording: AdviceWording = HTTP_WORDING) -> str:
    """Return the text of an error in one line, without its private part, for a caller over HTTP, with advice in
    `wording`.

    With HTTP_WORDING, an error for which a broker has words is worded by these; `compactor-admin` shows the error's own
    text.
    """
    words = _pulsar_status_and_reason(error) if wording is HTTP_WORDING else None
    if words is not None:
        return words[1].format_map(vars(error))
    return " ".join(errors.public_text(error, wording).split())


def log_for_operators(request: Request, error: Exception, status: int | None = None) -> None:
    """Log the full text of an error whose answer contains only the public text: Misconfigured, Unavailable and
    DataLoss. `status`: that of the answer; None: that of the error.

    Repetitions for the same route, and for DataLoss the same topic, are throttled.
    """
    if isinstance(error, errors.Misconfigured | errors.Unavailable | errors.DataLoss) and not isinstance(
        error, _FOR_CALLERS
    ):
        route = getattr(request.scope.get("route"), "path", "")
        condition = f"{type(error).__name__} {request.method} {route}"
        if isinstance(error, errors.DataLoss):  # is reported for each topic
            condition += f" {'/'.join(map(str, request.path_params.values()))}"
        request.app.state.log_throttle.warn(
            "%s %s is answered %d: %s",
            request.method,
            route,
            status or status_of(error),
            one_line(error),
            condition=condition,
        )


def error_response(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error answer with the body that Pulsar's clients read. Secrets in the reason are redacted, and a long
    reason is cut."""
    return JSONResponse({"reason": redacted_excerpt(reason)}, status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Register the handlers of all errors with `app`."""
    app.state.log_throttle = LogThrottle(SystemClock(), LOG)
    app.add_exception_handler(errors.CompactorError, _handle_compactor_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(ClientDisconnect, _handle_disconnect)
    app.add_exception_handler(Exception, _handle_unexpected_error)


async def answer_to_error(request: Request, error: errors.CompactorError | HTTPException) -> Response:
    """Return the answer to an error that is raised while another one is handled."""
    handle = _handle_compactor_error if isinstance(error, errors.CompactorError) else _handle_http_exception
    return await handle(request, error)


async def _handle_compactor_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.CompactorError)
    if isinstance(error, errors.SegmentNotLocal):
        remedy = "start the service on the machine where it is; what is sealed is served without it"
        return error_response(503, f"{error.message}, which this service does not have: {remedy}", {"Retry-After": "5"})
    log_for_operators(request, error)
    status = status_of(error)
    headers = _allow_header(request) if status == 405 else {}
    if isinstance(error, errors.Conflict) and status != BY_KIND[errors.Conflict]:
        headers[KIND_HEADER] = CONFLICT
    if isinstance(error, errors.NotFound):
        headers[KIND_HEADER] = NOT_FOUND
    if isinstance(error, errors.Unavailable):
        headers["Retry-After"] = str(error.retry_after_seconds)
    return error_response(status, public_reason(error, wording_of(request)), headers)


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, UnreadableBody):
        return Response(error.detail, error.status_code, {"content-type": error.media_type})
    headers = dict(error.headers or {})
    has_verbs = isinstance(error, RestException) and "Allow" in headers
    if error.status_code == 405 and not has_verbs:
        headers |= _allow_header(request)
    message = str(error.detail)
    if error.status_code in (404, 405) and not isinstance(error, RestException):  # no route matches
        message = f"{message}: there is no call {request.method} {request.url.path[:_EXCERPT]} here"
        message += f", only {headers['Allow']}" if "Allow" in headers else ""
    wording = wording_of(request)
    if isinstance(error.__cause__, errors.CompactorError) and wording is not HTTP_WORDING:
        message = public_reason(error.__cause__, wording)
    return error_response(error.status_code, message, headers)


def _allow_header(request: Request) -> dict[str, str]:
    """Return the Allow header with the verbs of the request's path over all routers; empty for a path without
    routes."""
    routes = [route for router in getattr(request.app.state, "routers", ()) for route in router.routes]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    verbs = sorted({verb for route in matching for verb in getattr(route, "methods", None) or ()})
    return {"Allow": ", ".join(verbs)} if verbs else {}


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if any(item["loc"] == ("body",) for item in error.errors()) and not re.fullmatch(r"application/(.+\+)?json", kind):
        received = f"it came as {kind[:100]}" if kind else "it has none"
        if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            return error_response(415, f"a JSON body needs the header Content-Type: application/json, and {received}")
    is_page = wording_of(request) is not HTTP_WORDING
    return error_response(400, f"the request cannot be taken: {validation_summary(error, is_page=is_page)}")


def validation_summary(error: RequestValidationError | ValidationError, *, is_page: bool = False) -> str:
    """Return the first validation errors of a body or query in one line, each with the name of its field. `is_page`:
    for the reader of a page: "the offset" instead of "query.offset"."""
    reported = error.errors()[:_MAX_ERRORS]
    places = (".".join(str(part)[:_EXCERPT] for part in item["loc"]) for item in reported)
    if is_page:
        places = (re.sub(r"^query\.", "the ", place) for place in places)
    return "; ".join(problem_sentence(place or "the body", item) for place, item in zip(places, reported, strict=True))


async def _handle_disconnect(_: Request, error: Exception) -> Response:
    return error_response(
        400, "the client disconnected before its body was complete"
    )  # for the log: no client reads it


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    return answer_unexpected_error(request.scope, error)


def answer_unexpected_error(scope: Scope, error: Exception) -> Response:
    """Log an unexpected error with its traceback, and return the answer (500), which names the request."""
    LOG.error("unexpected error in %s %s", scope["method"], scope["path"], exc_info=error)
    request = scope.get("state", {}).get("request_id", "without an id")
    reason = f"unexpected {type(error).__name__} in request {request}: see the service's log, and report it"
    return error_response(500, reason)
