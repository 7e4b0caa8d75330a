"""What machines ask of a service: is it alive, is it ready, its numbers. None of it is Pulsar's admin tree.

`/livez` says that the process answers, and nothing more: a database that is away is no reason to restart it. `/readyz`
looks at database, schema and object store, and says which cannot serve, and why.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel

from api.access import Access, Action, caller_of
from api.masking import masked
from api.problems import without_places
from api.routes import Routes
from api.service import Parts, Service
from storage.errors import CompactorError, ObjectMissing

router = Routes(tags=["health"])
_OK = "ok"


class Readiness(BaseModel):
    """What was looked at: `ok`, or what is wrong. `reason`: all that is wrong, in one line."""

    reason: str
    checks: dict[str, str]


@router.get("/livez", operation_id="livez", response_class=PlainTextResponse)
async def livez() -> str:
    """The process answers."""
    return "ok\n"


@router.get("/readyz", operation_id="readyz", responses={503: {"model": Readiness}})
async def readyz(parts: Parts) -> Readiness:
    """The service can do its work: database, schema and object store answer."""
    checks = await parts.readiness.answer(lambda: _checked(parts))
    wrong = [f"{name}: {said}" for name, said in checks.items() if said != _OK]
    found = Readiness(reason="; ".join(wrong), checks=dict(checks))
    return found if not wrong else cast(Readiness, JSONResponse(found.model_dump(), 503))


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=PlainTextResponse,
    responses={401: {"description": "metrics.authenticate is set."}, 403: {"description": "No superuser."}},
)
async def metrics(request: Request, parts: Parts) -> Response:
    """Metrics as Prometheus reads them; a superuser's token is needed if `metrics.authenticate` is set."""
    if parts.settings.metrics_authenticate:
        cast(Access, request.app.state.access).require(caller_of(request), (Action.SUPERUSER,), None, None)
    return Response(await parts.scrapes.answer(parts.metrics.exposition), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _checked(parts: Service) -> Mapping[str, str]:
    components = parts.components
    return {
        "database": _said(components.metadata.metrics.ping),
        "schema": _said(components.metadata.check_schema),
        "store": _said(lambda: _look(components.store.size)),
    }


def _look(size: Callable[[str], int]) -> None:
    """Ask the store for an object that nobody has: it answers, if only that there is none."""
    with suppress(ObjectMissing):
        size(f"readyz/{secrets.token_hex(4)}")


def _said(check: Callable[[], object]) -> str:
    try:
        check()
    except CompactorError as error:
        return masked(without_places(" ".join(str(error).split())))
    return _OK
