"""Routes for machines that watch a service: liveness, readiness, metrics. They are not part of Pulsar's admin tree.

`/livez` shows that the process answers, and nothing more: an unreachable database is no reason to restart it. `/readyz`
checks database, schema, object store and the room of the log directory, and names those that cannot serve. The cause is
only for the service's log and for superusers: it names hosts, users and buckets, and no token is needed here.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, cast

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel

from api.http.access import AuthAction, CallerWording, caller_of
from api.http.context import Context, HttpContext
from api.http.problems import HTTP_WORDING
from api.http.router import Routes
from api.observability.redaction import redacted
from storage.errors import CompactorError, ObjectMissing, failure_phrase

router = Routes("health", "")
LOG = logging.getLogger(__name__)
_OK = "ok"


class Readiness(BaseModel):
    """The checks by name: `ok`, or the fault. `reason`: all faults, in one line."""

    reason: str
    checks: dict[str, str]


class HealthCheckResult(NamedTuple):
    """The result of a check: in public words, and in full. Both are `ok` if nothing is wrong."""

    public: str
    full: str


@router.get("/livez", response_class=PlainTextResponse)
async def livez() -> str:
    """Return `ok`: the process answers."""
    return "ok\n"


@router.get("/readyz", responses={503: {"model": Readiness}})
async def readyz(context: Context, wording: CallerWording) -> Readiness:
    """Return the results of the checks: database, schema and object store answer, and the log directory has room. 503
    if a check fails."""
    results: Mapping[str, HealthCheckResult] = await context.readiness.answer(lambda: _run_checks(context))
    checks = {name: check.public if wording is None else check.full for name, check in results.items()}
    wrong = [f"{name}: {result}" for name, result in checks.items() if result != _OK]
    answer = Readiness(reason="; ".join(wrong), checks=checks)
    return answer if not wrong else cast(Readiness, JSONResponse(answer.model_dump(), 503))


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={401: {"description": "metrics.authenticate is set."}, 403: {"description": "No superuser."}},
)
async def metrics(request: Request, context: Context) -> Response:
    """Return metrics in Prometheus's format. A superuser's token is needed if `metrics.authenticate` is set."""
    if context.broker.settings.metrics_authenticate:
        context.access.require(caller_of(request), (AuthAction.SUPERUSER,), None, None)
    return Response(await context.scrapes.answer(context.metrics.exposition), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _run_checks(context: HttpContext) -> Mapping[str, HealthCheckResult]:
    environment = context.broker.environment
    results = {
        "database": _result_of(environment.metadata.metrics.ping),
        "schema": _result_of(environment.metadata.check_schema),
        "store": _result_of(lambda: _probe(environment.store.size)),
        "log": _result_of(environment.log.check_space),
    }
    for name, check in results.items():
        if check.full != context.failing_checks.get(name, _OK):
            LOG.warning("readiness: %s: %s", name, check.full)
        context.failing_checks[name] = check.full
    return results


def _probe(size: Callable[[str], int]) -> None:
    """Ask the store for an object that does not exist: the answer that it is missing is enough."""
    with suppress(ObjectMissing):
        size(f"readyz/{secrets.token_hex(4)}")


def _result_of(check: Callable[[], object]) -> HealthCheckResult:
    try:
        check()
    except CompactorError as error:
        return HealthCheckResult(
            f"it {failure_phrase(error)}: see the service's log", redacted(" ".join(error.worded(HTTP_WORDING).split()))
        )
    return HealthCheckResult(_OK, _OK)
