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
    """The results of the readiness checks. `checks`: by name `ok`, or the fault; `reason`: all faults, in one line."""

    reason: str
    checks: dict[str, str]


class HealthCheckResult(NamedTuple):
    """The result of a readiness check, `ok` or the fault. `public`: for any caller; `full`: with its cause, for the log
    and superusers."""

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
    results: Mapping[str, HealthCheckResult] = await context.readiness.share_call(lambda: _run_checks(context))
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
        context.access.require_any(caller_of(request), (AuthAction.SUPERUSER,), None, None)
    return Response(await context.scrapes.share_call(context.metrics.exposition), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _run_checks(context: HttpContext) -> Mapping[str, HealthCheckResult]:
    """Return the results of the readiness checks by name. Log each result that differs from the one before."""
    environment = context.broker.environment
    results = {
        "database": _run_check(environment.metadata.metrics.ping),
        "schema": _run_check(environment.metadata.check_schema),
        "store": _run_check(lambda: _probe_store(environment.store.size)),
        "log": _run_check(environment.log.check_space),
    }
    for name, check in results.items():
        if check.full != context.failing_checks.get(name, _OK):
            LOG.warning("readiness: %s: %s", name, check.full)
        context.failing_checks[name] = check.full
    return results


def _probe_store(size: Callable[[str], int]) -> None:
    """Check that the object store answers, with a request for an object that does not exist. Raise the store's error if
    it does not. `size`: returns the size of an object."""
    with suppress(ObjectMissing):
        size(f"readyz/{secrets.token_hex(4)}")


def _run_check(check: Callable[[], object]) -> HealthCheckResult:
    """Call `check`, and return the result: `ok`, or the error that it raises."""
    try:
        check()
    except CompactorError as error:
        return HealthCheckResult(
            f"it {failure_phrase(error)}: see the service's log", redacted(" ".join(error.worded(HTTP_WORDING).split()))
        )
    return HealthCheckResult(_OK, _OK)
