"""Deadlines of an HTTP connection: the time to send a request and to receive its answer.

`deadline_protocol_class` adds deadlines to uvicorn's protocol: for request line and headers, from the first byte, and
for a body. A slower client is answered 408 and its connection is closed. The connection of a client that does not
receive its answer is cut off, which ends its request. The time until the first byte is listener.py's.
"""

from __future__ import annotations

import asyncio
import json
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from api.http.listener import Listener, RefusalBytes, warn_of_slow_clients
from api.observability.logs import LogThrottle
from api.settings.settings import Settings

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

_LEAST_TAKEN = 64 << 10
"""The bytes of a waiting answer that a client must receive in `limits.answer-timeout`."""


def http_refusal_bytes(settings: Settings) -> RefusalBytes:
    """Return HTTP's answers for connections that a port without TLS closes before their first request: 503 if the
    listener is full, 408 if the client has sent nothing in time."""
    seconds = settings.limits_header_timeout_ms / 1000
    return RefusalBytes(
        when_full=_response_bytes(503, "too many connections are open: try again", "Retry-After: 1\r\n"),
        when_silent=_response_bytes(408, _timeout_reason("limits.header-timeout", seconds)),
    )


def _response_bytes(status: int, reason: str, headers: str = "") -> bytes:
    """Return an HTTP response with a reason, after which the connection is closed, as bytes."""
    body = json.dumps({"reason": reason})
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def _timeout_reason(setting: str, seconds: float) -> str:
    return f"the request took longer than {setting}, {seconds:g} s, to arrive"


def deadline_protocol_class(
    settings: Settings, log_throttle: LogThrottle, listener: Listener | None = None
) -> type[H11Protocol]:
    """Return a subclass of uvicorn's HTTP protocol with the deadlines of the settings. `listener`: it is notified when
    a connection becomes idle or busy."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    deadlines: dict[object, tuple[str, float]] = {
        h11.IDLE: ("limits.header-timeout", settings.limits_header_timeout_ms / 1000),
        h11.SEND_BODY: ("limits.body-timeout", settings.limits_body_timeout_ms / 1000),
    }

    answer_seconds = settings.limits_answer_timeout_ms / 1000

    class DeadlineProtocol(H11Protocol):
        """One connection. A timer runs while a part of a request is missing, another one while a part of the answer
        waits for the client."""

        _timer: asyncio.TimerHandle | None = None
        _timed: object = None
        """The state of the client for which the timer runs."""
        _answer_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._time(h11.IDLE)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            state = self.conn.their_state
            self._time(state)
            if listener is not None and state is not h11.IDLE:
                listener.mark_busy(self.transport)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            state = self.conn.their_state
            if listener is not None and state is h11.IDLE:
                listener.mark_idle(self.transport)
            # Between two requests it is uvicorn's timer for idle connections that runs.
            self._time(state if state is not h11.IDLE or self.conn.trailing_data[0] else None)

        def connection_lost(self, exc: Exception | None) -> None:
            self._time(None)
            self._time_answer(is_held_up=False)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._time_answer(is_held_up=True)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._time_answer(is_held_up=False)

        def _unsupported_upgrade_warning(self) -> None:
            """Log nothing: a request for WebSockets is answered without an upgrade."""

        def _time(self, state: object) -> None:
            """Let the timer run for the part of a request that the client has to send next."""
            if state is self._timed:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._timed, self._timer = state, None
            if state in deadlines and not self.transport.is_closing():
                self._timer = self.loop.call_later(deadlines[state][1], self._refuse_slow_client, *deadlines[state])

        def _refuse_slow_client(self, setting: str, allowed: float) -> None:
            warn_of_slow_clients(log_throttle, setting, allowed)
            if self.cycle is not None:
                self.cycle.disconnected = True  # wakes the task that waits for the body
                self.cycle.message_event.set()
            self._refuse(408, _timeout_reason(setting, allowed))

        def _time_answer(self, *, is_held_up: bool) -> None:
            """Let a timer run while the answer waits for the client."""
            if self._answer_timer is not None:
                self._answer_timer.cancel()
                self._answer_timer = None
            if is_held_up:
                waits = self.transport.get_write_buffer_size()
                self._answer_timer = self.loop.call_later(answer_seconds, self._check_taken, waits)

        def _check_taken(self, waited: int) -> None:
            # With TLS the encrypted bytes in flight are not visible: all of them have the time of one check.
            if waited - self.transport.get_write_buffer_size() >= _LEAST_TAKEN:
                self._time_answer(is_held_up=True)
                return
            log_throttle.warn(
                "connections of clients that take less than %d KiB of an answer in limits.answer-timeout (%g s) are "
                "cut off",
                _LEAST_TAKEN >> 10,
                answer_seconds,
            )
            self.transport.abort()

        def send_400_response(self, msg: str) -> None:
            log_throttle.warn("requests that are no HTTP, or have headers larger than limits.header-bytes, are refused")
            self._refuse(400, "this is no HTTP request, or its headers are larger than limits.header-bytes")

        def _refuse(self, status: int, reason: str) -> None:
            """Send an answer unless one was begun, and close the connection."""
            if not self.transport.is_closing() and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.write(_response_bytes(status, reason))
            self.transport.close()

    return DeadlineProtocol


_LOGGED_ELSEWHERE = ("Invalid HTTP request received.", "ASGI callable returned without completing response.")


def keep_uvicorn_record(record: logging.LogRecord) -> bool:
    """Return False for a record of uvicorn's log that this service logs in its own words; True for any other record."""
    return record.msg not in _LOGGED_ELSEWHERE
