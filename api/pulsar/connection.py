"""One connection of a client: bytes of a socket become requests of its session, and responses become bytes.

Frames are handled in turns with other connections (incoming.py). Before CONNECT nothing but CONNECT is read; what is no
frame ends the connection, for the next one cannot be located.

Back-pressure: while the session holds requests back, the connection reads nothing from its socket. While the socket
accepts no more bytes, consumers get no messages. The connection ends if the client sends requests without reading
responses, or is silent for two keep-alive intervals.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from api.pulsar.codec.decoding import REQUESTS, decode_request
from api.pulsar.codec.encoding import encode_delivery, encode_response
from api.pulsar.codec.limits import CONNECT, CONNECT_BYTES, LimitExceeded
from api.pulsar.codec.requests import Ping
from api.pulsar.codec.responses import Failure, Response
from api.pulsar.context import ServerContext
from api.pulsar.frames import PADDING_BYTES, Frame, MalformedFrame
from api.pulsar.incoming import IncomingFrames
from api.pulsar.session import Handlers, Session
from storage.entries.rebuild import DeliverableEntry

MAX_UNREAD_BYTES = 16 << 20
"""Bytes of responses that a client may leave unread, besides one message."""
_WRITE_BYTES = 1 << 20
_TLS_HANDSHAKE = b"\x16\x03"


class Server(Protocol):
    """The part of the server that a connection uses."""

    def add_connection(self, connection: Connection) -> bool:
        """Register a new connection. Return False if the service is ending; the connection must close then."""

    def mark_connected(self, connection: Connection) -> None:
        """Note that a connection's CONNECT was accepted."""

    def remove_connection(self, connection: Connection) -> None:
        """Remove a connection that has ended."""


class Connection(asyncio.BufferedProtocol):
    """The connection of one client: passes requests from the socket to the session, and writes its responses."""

    session: Session
    transport: asyncio.Transport

    def __init__(self, server: Server, context: ServerContext, handlers: Handlers) -> None:
        self._server = server
        self._context = context
        self._handlers = handlers
        self._clock = context.clock
        self._incoming = IncomingFrames(self, context.turns, context.receive_buffers, CONNECT_BYTES, (CONNECT,))
        self.address = "unknown"
        self.is_writable = True
        self.is_closed = False
        self._opened_at = self._heard_at = self._clock.now_ms()
        self._pinged = False

    # Calls of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"
        self.session = Session(self._context, self, self._handlers)
        if not self._server.add_connection(self):
            self.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._context.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._context.read_buffer[:nbytes]
        self._heard_at = self._clock.now_ms()
        self._pinged = False
        self.session.note_alive()
        if not self.session.is_connected and data[:2] == _TLS_HANDSHAKE:
            self.cut_off(
                "the client speaks TLS on the port without TLS: connect it to broker-service-port-tls, with pulsar+ssl"
            )
            return
        self._incoming.receive_bytes(data)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self.session.wake_consumers()

    def connection_lost(self, error: Exception | None) -> None:
        self._end_session()

    # Calls of IncomingFrames

    @property
    def role(self) -> str:
        return self.session.identity.role

    def handle_frame(self, frame: Frame) -> None:
        """Pass the request of a frame to the session; refuse a command beyond its limits.

        Raise MalformedFrame for a frame that must end the connection.
        """
        try:
            request = decode_request(frame)
        except LimitExceeded as error:
            if error.request_id is None:
                raise MalformedFrame(error.message) from error
            self.send(Failure(error.request_id, error.error, error.message, REQUESTS[frame.kind]))
        else:
            self.session.receive(request, len(frame.command))

    def pause_reading(self) -> None:
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    # Calls of the session

    @property
    def is_reading(self) -> bool:
        return not self._incoming.is_paused

    def send(self, response: Response) -> None:
        """Write a response to the socket. Do nothing if the connection has ended."""
        # A transport that is closing has lost its client, and would log each write.
        if not self.is_closed and not self.transport.is_closing():
            self.transport.write(encode_response(response))
            if not self.is_writable:
                self._enforce_unread_limit()

    def deliver(
        self,
        consumer_id: int,
        entry: DeliverableEntry,
        live_mask: int,
        redelivery_count: int,
        partition: int,
        consumer_epoch: int | None,
    ) -> None:
        if not self.is_closed and not self.transport.is_closing():
            head, rest = encode_delivery(consumer_id, entry, live_mask, redelivery_count, partition, consumer_epoch)
            self.transport.write(head)
            if rest:
                self.transport.write(rest)
            if not self.is_writable:
                self._enforce_unread_limit()

    def _enforce_unread_limit(self) -> None:
        """End the connection if the client leaves too many bytes of responses unread."""
        unread = self.transport.get_write_buffer_size()
        if unread > MAX_UNREAD_BYTES + self.session.max_message_size:
            self.cut_off(f"the client sends requests, and leaves {unread} bytes of responses unread")

    def accept_requests(self) -> None:
        self._server.mark_connected(self)
        self._incoming.accept_commands(self.session.max_message_size + PADDING_BYTES, REQUESTS)

    def hold_requests(self, reason: str) -> None:
        self._incoming.hold_requests(reason)

    def resume_requests(self, reason: str) -> None:
        self._incoming.resume_requests(reason)

    def charge(self, seconds: float) -> None:
        self._incoming.charge(seconds)

    # Ending

    def is_connect_time_over(self) -> bool:
        """Return whether the time in which a client must send CONNECT is over, also if CONNECT was sent."""
        return self._clock.now_ms() - self._opened_at >= self.session.settings.limits_header_timeout_ms

    def ping_or_close(self) -> None:
        """Ping a client that was silent for an interval. End the connection of one that does not answer, or whose token
        is no longer valid. Called once an interval."""
        if not self.session.is_connected:
            return
        if not self.session.identity.is_valid():
            self.close()
        elif (
            not self.is_reading
            or self._clock.now_ms() - self._heard_at < self.session.settings.broker_keep_alive_interval_ms
        ):
            return
        elif self._pinged:
            self.close()
        else:
            self._pinged = True
            self.send(Ping())

    def cut_off(self, reason: str) -> None:
        """End the connection of a client that breaks the protocol or a bound, and log the reason."""
        self._context.log_throttle.warn("the connection of %s is closed: %s", self.address, reason)
        self.close()

    def close(self) -> None:
        """End the connection and its session. Bytes that wait to be sent are dropped."""
        self._end_session()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _end_session(self) -> None:
        """End the session, drop received bytes, and remove the connection from the server. Idempotent."""
        self.is_closed = True
        self.is_writable = False
        self._incoming.end()
        self._server.remove_connection(self)
        self.session.end()
