"""The requests of one connection that are under way: each is a task, whose result is the response.

They are bounded in number, by connection and by role (admission.py), and in bytes: beyond, the connection handles
nothing more. An exception of a task is the refusal of its request, and of no other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from api.pulsar.admission import MAX_OF_CONNECTION, Admission
from api.pulsar.codec.requests import GetTopicsOfNamespace, Lookup, PartitionedMetadata
from api.pulsar.codec.responses import Failure, Response
from api.pulsar.errors import Refused, ServerError, refusal
from api.pulsar.identity import Identity
from api.pulsar.publish_budget import Holdable

MAX_REQUEST_BYTES = 4 << 20
"""The bytes of commands whose requests are under way; at this number the connection reads nothing more."""
REQUEST_SECONDS = 0.000_15
"""The time that the event loop spends on a request besides its command: a task and a thread's result."""
_LOOKUPS = (Lookup, PartitionedMetadata, GetTopicsOfNamespace)
_REASON = "requests"
Work = Coroutine[Any, Any, Response | None]


class RequestConnection(Holdable, Protocol):
    """The part of a connection that its pending requests use."""

    def send(self, response: Response) -> None:
        """Send a response to the client."""

    def charge(self, seconds: float) -> None:
        """Charge the connection with time that a request costs the event loop later."""


class PendingRequests:
    """The requests of one connection that are under way. `command_bytes`: the size of the command that is handled
    now."""

    def __init__(self, connection: RequestConnection, admission: Admission, identity: Identity) -> None:
        self.command_bytes = 0
        self._identity = identity
        self._connection = connection
        self._admission = admission
        self._tasks: set[asyncio.Task[Any]] = set()
        self._bytes = 0

    def begin(self, request: Any, work: Work) -> bool:
        """Start the work for a request in a task, which sends the response.

        Return False if too many requests are under way; the client is sent the refusal.
        """
        role, is_lookup = self._identity.role, isinstance(request, _LOOKUPS)
        try:
            if len(self._tasks) >= MAX_OF_CONNECTION:
                reason = f"{MAX_OF_CONNECTION} requests of this connection are under way: wait for responses"
                raise Refused(ServerError.TooManyRequests, reason)
            self._admission.admit(role, is_lookup)
        except Refused as error:
            work.close()
            self._connection.send(failure_response(request, error))
            return False
        self._connection.charge(REQUEST_SECONDS)
        task = asyncio.create_task(self._respond(request, work))
        self._tasks.add(task)
        size = self.command_bytes
        self._bytes += size
        if self._bytes >= MAX_REQUEST_BYTES:
            self._connection.hold_requests(_REASON)

        def ended(_: object) -> None:
            self._tasks.discard(task)
            self._bytes -= size
            if self._bytes <= MAX_REQUEST_BYTES // 2:
                self._connection.resume_requests(_REASON)
            self._admission.release(role, is_lookup)

        task.add_done_callback(ended)
        return True

    async def _respond(self, request: Any, work: Work) -> None:
        try:
            response = await work
        except Exception as error:
            response = failure_response(request, refusal(error))
        if response is not None:
            self._connection.send(response)


def failure_response(request: Any, error: Refused) -> Failure:
    """Return the response that tells a client the refusal of its request."""
    return Failure(request.request_id or 0, error.error, error.message, type(request))
