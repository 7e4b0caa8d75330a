"""Audit log: one line for each request that may change something, and an id for every request.

The line is a log record of the logger `audit` with the fields `who`, `address`, `method`, `target` (the path without
its query, which may hold anything), `action` (the route's name), `status`, `request_id`, `duration_ms`. Bodies, headers
and tokens are in no line. It is written when the answer begins; refusals are written, too. An unexpected error
ends here, as a 500 that names its request; a request that the end of the service cuts off, as a 503. The id is
the one that the client or the service before sent (`X-Request-Id`, if it is a plain word), else a new one; it is in
every answer and, while the request is worked on, in every line of the log.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from contextlib import suppress

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.access import Caller
from api.http.problems import answer, unforeseen
from storage.clock import Clock

LOG = logging.getLogger("audit")
HEADER = b"x-request-id"
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_PLAIN = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")
_TARGET_MOST = 1024
_ENDS = "the service is ending, and has not finished this request in time: check its effect, or ask another service"


class Audit:
    """The middleware; the outermost but for the one that finds the caller, so that refusals are seen."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name == HEADER), b"")
        request_id = sent.decode() if _PLAIN.fullmatch(sent) else uuid.uuid4().hex[:16]
        scope["state"]["request_id"] = request_id
        began = self._clock.now_ms()
        status = 0

        async def say(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (HEADER, request_id.encode())]}
                if not status:
                    status = message["status"]
                    self._write(scope, status, self._clock.now_ms() - began)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, say)
            except Exception as error:
                # Here, or the server would log it once more.
                response = unforeseen(scope, error)
                if not status:
                    await response(scope, receive, say)
            except asyncio.CancelledError:
                # The server ends, and the grace time has passed: waiting requests are answered, and half-sent answers
                # are cut off.
                LOG.warning("a request was cut off at the end of the service", extra={"target": scope["path"]})
                if not status:
                    with suppress(asyncio.CancelledError):
                        await answer(503, _ENDS, {"Retry-After": "1", "Connection": "close"})(scope, receive, say)

    def _write(self, scope: Scope, status: int, duration_ms: int) -> None:
        if scope["method"] not in CHANGING:
            return
        note_change(
            scope["state"]["caller"],
            scope["method"],
            scope["path"],
            getattr(scope.get("route"), "name", None),
            status=status,
            request_id=scope["state"]["request_id"],
            duration_ms=duration_ms,
        )


def note_change(caller: Caller, method: str, target: str, action: str | None, **more: object) -> None:
    """Write a line. `method`: of HTTP, or PULSAR for a change by a client of Pulsar's protocol."""
    fields = {"who": caller.name, "address": caller.address, "method": method, "target": target[:_TARGET_MOST]}
    LOG.info("change", extra={**fields, "action": action, **more})
