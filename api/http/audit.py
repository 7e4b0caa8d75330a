"""Audit log: a line for each request that may change something, and an id for every request.

A line is a record of the logger `audit` with the fields `who`, `address`, `method`, `target` (the path without its
query, which may contain any text), `action` (the route's name), `status`, `request_id` and `duration_ms`. No line
contains bodies, headers or tokens. It is written when the answer begins, also for refusals. Here an unexpected error
becomes a 500 that names its request, and a request that is cut off by the end of the service a 503.

The id is that of the header `X-Request-Id`, if it is a plain word, else a new one. Every answer contains it, and every
log line of the request.
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
from api.http.problems import answer_unexpected_error, error_response
from storage.clock import Clock

LOG = logging.getLogger("audit")
HEADER = b"x-request-id"
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_PLAIN = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")
_MAX_TARGET = 1024
_ENDS = "the service is ending, and has not finished this request in time: check its effect, or ask another service"


class AuditMiddleware:
    """Middleware that gives each request an id, and writes a line of the audit log for each that may change something.

    It is outside of all middleware that refuses requests, so that refusals have lines, too.
    """

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = next((value for name, value in scope["headers"] if name == HEADER), b"")
        request_id = header.decode() if _PLAIN.fullmatch(header) else uuid.uuid4().hex[:16]
        scope["state"]["request_id"] = request_id
        began = self._clock.now_ms()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (HEADER, request_id.encode())]}
                if not status:
                    status = message["status"]
                    self._write_line_of_request(scope, status, self._clock.now_ms() - began)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            except Exception as error:
                response = answer_unexpected_error(scope, error)  # raised further, the server would log it again
                if not status:
                    await response(scope, receive, send_with_id)
            except asyncio.CancelledError:
                # The server ends, and the grace time has passed: waiting requests are answered, and half-sent answers
                # are cut off.
                LOG.warning("a request was cut off at the end of the service", extra={"target": scope["path"]})
                if not status:
                    with suppress(asyncio.CancelledError):
                        await error_response(503, _ENDS, {"Retry-After": "1", "Connection": "close"})(
                            scope, receive, send_with_id
                        )

    def _write_line_of_request(self, scope: Scope, status: int, duration_ms: int) -> None:
        """Write the audit line of a request, unless its method changes nothing."""
        if scope["method"] not in CHANGING:
            return
        write_audit_line(
            scope["state"]["caller"],
            scope["method"],
            scope["path"],
            getattr(scope.get("route"), "name", None),
            status=status,
            request_id=scope["state"]["request_id"],
            duration_ms=duration_ms,
        )


def write_audit_line(caller: Caller, method: str, target: str, action: str | None, **extra_fields: object) -> None:
    """Write a line of the audit log.

    `method`: HTTP's, or PULSAR for a change by a client of Pulsar's protocol. `target`: the changed object. `action`:
    the name of the operation. `extra_fields`: further fields of the line.
    """
    fields = {"who": caller.name, "address": caller.address, "method": method, "target": target[:_MAX_TARGET]}
    LOG.info("change", extra={**fields, "action": action, **extra_fields})
