"""Connections before they are requests: how many there are, and how long one may take to say what it wants.

`Listener` takes no more connections than it may hold. All listeners together hold at most half of the process's file
descriptors: files, log and database have the others. Where a listener is full, the connection that has been idle for
longest makes room: one on which no request is under way, or which is not authenticated yet. If there is none, a new
connection is closed at once, with a 503 where it can be read. Where descriptors run out all the same, accepting rests
for a second. `deadline_protocol` makes uvicorn's protocol one with deadlines: for request line and headers, from the
first moment, and for a body. A client that is slower is answered 408 and its connection is closed. One that does not
take its answer has no use for another: its connection is cut off, which ends its request.

Whatever thousands of connections do is one line of the log a minute (`LogThrottle`). Must not know: requests.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from api.observability.logs import LogThrottle
from api.settings.settings import Settings

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

_PART_OF_DESCRIPTORS = 4
_LEAST_TAKEN = 64 << 10
"""Bytes of an answer that a client takes in `limits.answer-timeout`, if more wait for it."""
_REASON = b'{"reason": "too many connections are open: try again"}'
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_REASON), _REASON)
)


def most_connections(requested: int, listeners: int = 1) -> int:
    """Return how many connections one of the `listeners` of a protocol may hold: at most as many as requested, and all
    of the protocol a quarter of the process's descriptors."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return requested
    return max(1, min(requested, descriptors // (_PART_OF_DESCRIPTORS * listeners)))


class _Accepted(socket.socket):
    """A connection that counts until it is closed."""

    counted_in: Listener | None = None
    descriptor = -1

    def close(self) -> None:
        super().close()
        if self.counted_in is not None:
            self.counted_in.forget(self.descriptor)


class Listener(socket.socket):
    """A listening socket with a limit of connections. Its loop is asyncio's."""

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self._open: WeakValueDictionary[int, _Accepted] = WeakValueDictionary()
        """By their descriptors."""
        self._idle: dict[int, None] = {}
        """Descriptors of connections that may make room, the longest idle first."""
        self._most = 1
        self._says_so = True
        self._log_throttle: LogThrottle | None = None
        self._rests = False

    def limit(self, most_connections: int, log_throttle: LogThrottle, *, plain: bool) -> None:
        """Hold at most `most_connections`. `plain`: without TLS, so that a refusal can be read."""
        self._most, self._log_throttle, self._says_so = most_connections, log_throttle, plain

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection. Raises ConnectionAbortedError where one was closed: asyncio continues with other
        work and accepts again then."""
        if self._rests:  # asyncio still accepts in the pass in which it was paused
            self._rests = False
            raise ConnectionAbortedError
        if len(self._open) >= self._most and self._end_longest_idle():
            raise ConnectionAbortedError
        try:
            descriptor, address = cast(Any, self)._accept()
        except OSError as error:
            self._rests = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
            raise
        connection = _Accepted(self.family, self.type, self.proto, fileno=descriptor)
        if len(self._open) < self._most:
            connection.counted_in, connection.descriptor = self, descriptor
            self._open[descriptor] = connection
            self._idle[descriptor] = None
            return connection, address
        with connection:
            connection.setblocking(False)
            if self._says_so:
                with suppress(OSError):  # it has gone away already
                    connection.send(_BUSY)
        if self._log_throttle is not None:
            self._log_throttle.warn(
                f"{self._most} connections are open, as many as may: others are refused. Raise limits.connections and "
                "the limit of file descriptors (ulimit -n, LimitNOFILE), or find the process that opens them"
            )
        raise ConnectionAbortedError

    def mark_busy(self, transport: asyncio.BaseTransport) -> None:
        """Keep a connection although others need room."""
        self._idle.pop(_descriptor_of(transport), None)

    def mark_idle(self, transport: asyncio.BaseTransport) -> None:
        """Let a connection make room for others, after those that have been idle for longer."""
        descriptor = _descriptor_of(transport)
        if descriptor in self._open:
            self._idle.pop(descriptor, None)
            self._idle[descriptor] = None

    def forget(self, descriptor: int) -> None:
        """Count a connection no more: it is closed."""
        self._open.pop(descriptor, None)
        self._idle.pop(descriptor, None)

    def _end_longest_idle(self) -> bool:
        """End the connection that has been idle for longest; returns False if none is idle."""
        for descriptor in list(self._idle):
            del self._idle[descriptor]
            connection = self._open.get(descriptor)
            if connection is not None and _has_sent(connection):
                self._idle[descriptor] = None  # its request is read soon
            elif connection is not None:
                with suppress(OSError):  # the client has closed it
                    connection.shutdown(socket.SHUT_RDWR)  # its transport reads the end, and closes it
                return True
        return False


def _has_sent(connection: socket.socket) -> bool:
    """Return whether a client has sent something that was not read yet."""
    with suppress(OSError):
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


def _descriptor_of(transport: asyncio.BaseTransport) -> int:
    connection = transport.get_extra_info("socket")
    return -1 if connection is None else int(connection.fileno())


def loop_errors(log_throttle: LogThrottle) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """A handler of an event loop's errors that limits how often "out of descriptors" is logged."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "socket.accept()" in context.get("message", ""):
            log_throttle.warn("no file descriptor is left for a connection: raise their limit (ulimit -n, LimitNOFILE)")
        else:
            loop.default_exception_handler(context)

    return handle


def deadline_protocol(
    settings: Settings, log_throttle: LogThrottle, listener: Listener | None = None
) -> type[H11Protocol]:
    """uvicorn's protocol, with the deadlines of the settings. `listener`: learns which connections are idle."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    deadlines: dict[object, tuple[str, float]] = {
        h11.IDLE: ("limits.header-timeout", settings.limits_header_timeout_ms / 1000),
        h11.SEND_BODY: ("limits.body-timeout", settings.limits_body_timeout_ms / 1000),
    }

    answer_seconds = settings.limits_answer_timeout_ms / 1000

    class DeadlineProtocol(H11Protocol):
        """One connection. A timer runs while something of a request is still to come, another while the client takes
        less of the answer than there is."""

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
            """Nothing: a request for WebSockets gets an answer without."""

        def _time(self, state: object) -> None:
            """Let the timer run for what the client still has to send."""
            if state is self._timed:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._timed, self._timer = state, None
            if state in deadlines and not self.transport.is_closing():
                self._timer = self.loop.call_later(deadlines[state][1], self._too_slow, *deadlines[state])

        def _too_slow(self, setting: str, allowed: float) -> None:
            log_throttle.warn(f"connections that send a request slower than {setting} ({allowed:g} s) are closed")
            if self.cycle is not None:
                self.cycle.disconnected = True  # the task that waits for the body learns that none comes
                self.cycle.message_event.set()
            self._refuse(408, f"the request took longer than {setting}, {allowed:g} s, to arrive")

        def _time_answer(self, *, is_held_up: bool) -> None:
            """Let a timer run while the answer waits for the client to take some of it."""
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
                f"connections of clients that take less than {_LEAST_TAKEN >> 10} KiB of an answer in "
                f"limits.answer-timeout ({answer_seconds:g} s) are cut off"
            )
            self.transport.abort()

        def send_400_response(self, msg: str) -> None:
            log_throttle.warn("requests that are no HTTP, or have headers larger than limits.header-bytes, are refused")
            self._refuse(400, "this is no HTTP request, or its headers are larger than limits.header-bytes")

        def _refuse(self, status: int, reason: str) -> None:
            """Answer, if nothing was answered yet, and close the connection."""
            if not self.transport.is_closing() and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                body = json.dumps({"reason": reason}).encode()
                headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
                answer = h11.Response(status_code=status, headers=[*headers, ("connection", "close")])
                for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

    return DeadlineProtocol


_TOLD_ELSEWHERE = ("Invalid HTTP request received.", "ASGI callable returned without completing response.")


def without_repeats(record: logging.LogRecord) -> bool:
    """A filter of uvicorn's log: what `DeadlineProtocol` logs at a limited rate, and `api/http/audit.py` in words."""
    return record.msg not in _TOLD_ELSEWHERE
