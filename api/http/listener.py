"""A listening socket with a limit of connections.

A connection gets its transport and protocol when the first bytes of its client arrive. Until then it is a bare socket,
so that connections without a request cost little, however many a process opens; on Linux the kernel keeps the first
thousands of them to itself for a second. A connection is closed when nothing has arrived in the time for a request.

All listeners of a protocol together hold at most a quarter of the process's file descriptors, because files, log and
database need the others. A full listener closes the connection that has been idle for longest: it has sent nothing, no
request is under way on it, or it is not authenticated yet. If no connection is idle, the new one is closed at once. If
descriptors run out nevertheless, accepting pauses for a second.

Events of thousands of connections become one line of the log a minute (`LogThrottle`). Must not know: requests.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from weakref import WeakValueDictionary

from api.observability.logs import LogThrottle

_PART_OF_DESCRIPTORS = 4
_BACKLOG = 4096
"""Connections that wait in the kernel; at most `net.core.somaxconn`."""
_DEFERRED_SECONDS = 1
"""The time that Linux keeps a connection without bytes to itself."""
_ACCEPTED_AT_ONCE = 16
"""Connections that are accepted, in less than a millisecond, before other work has its turn."""
CONNECTED_AT_ONCE = 16
"""Connections that get their transports and protocols before other work has its turn: 4,000 take 0.4 s."""
PAUSE_SECONDS = 1.0
"""The time without accepting after descriptors ran out."""
_DRAINED_BYTES = 64 << 10
_LOOK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True)
class RefusalBytes:
    """The bytes that a client reads before its connection is closed, in its protocol: because the listener is full, or
    because the client has sent nothing in time. Empty: nothing."""

    when_full: bytes = b""
    when_silent: bytes = b""


def warn_of_slow_clients(log_throttle: LogThrottle, setting: str, seconds: float) -> None:
    """Log that connections are closed because a client is slow; at most once a minute for each `setting`.

    `setting`: the setting of the time to send a request; `seconds`: its value.
    """
    text = "connections that send a request slower than %s (%g s) are closed"
    log_throttle.warn(text, setting, seconds, condition=f"slow {setting}")


def connection_limit(requested: int, listener_count: int = 1) -> int:
    """Return the limit of connections for each of the `listener_count` listeners of one protocol.

    It is at most `requested`, and for all of them together a quarter of the process's descriptors.
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return requested
    return max(1, min(requested, descriptors // (_PART_OF_DESCRIPTORS * listener_count)))


class _AcceptedSocket(socket.socket):
    """An accepted connection, which its listener counts until the connection is closed."""

    counted_in: Listener | None = None
    descriptor = -1

    def close(self) -> None:
        super().close()
        if self.counted_in is not None:
            self.counted_in.remove_connection(self.descriptor)


class Listener:
    """A listening socket that accepts connections up to a limit. Each gets its transport and protocol when its first
    bytes arrive. For one event loop."""

    def __init__(
        self,
        listening: socket.socket,
        limit: int,
        setting: str,
        silent_seconds: float,
        log_throttle: LogThrottle,
        refusals: RefusalBytes = RefusalBytes(),
    ) -> None:
        """`listening`: bound. `setting`: the name of the limit's setting. `silent_seconds`: the time until the first
        bytes of a connection, or until the end of TLS's handshake after them."""
        self._listening = listening
        self._kind = listening.family, listening.type, listening.proto
        self._limit = limit
        self._setting = setting
        self._silent_seconds = silent_seconds
        self._log_throttle = log_throttle
        self._refusals = refusals
        self._open: WeakValueDictionary[int, _AcceptedSocket] = WeakValueDictionary()
        """Connections without bytes, by descriptor."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Descriptors of connections that may make room, the longest idle first."""
        self._silent: dict[int, tuple[_AcceptedSocket, float]] = {}
        """Connections without a transport, and when their time ends; the oldest first. By their descriptors."""
        self._timer: asyncio.TimerHandle | None = None
        self._selector: DefaultSelector
        """Watches the connections without a transport. The event loop would make a handle for each of them."""
        self._ready: deque[_AcceptedSocket] = deque()
        """Those that have bytes or have ended, unless they were closed meanwhile."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Begin to accept connections, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._protocol_factory = protocol_factory
        self._ssl = ssl_context
        self._listening.setblocking(False)
        if hasattr(socket, "TCP_DEFER_ACCEPT"):
            self._listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFERRED_SECONDS)
        self._listening.listen(_BACKLOG)
        self._selector = DefaultSelector()
        self._loop.add_reader(self._selector, self._connect_ready_sockets)
        self._resume_accepting()

    def close(self) -> None:
        """Accept no more, and close the connections that have sent nothing. Idempotent."""
        if self._listening.fileno() < 0:
            return
        self._loop.remove_reader(self._listening)
        self._listening.close()
        if self._timer is not None:
            self._timer.cancel()
        for descriptor in list(self._silent):
            self._pop_silent(descriptor).close()
        self._loop.remove_reader(self._selector)
        self._selector.close()

    async def wait_closed(self) -> None:
        """Return at once: the connections end by their protocols."""

    def mark_busy(self, transport: asyncio.BaseTransport) -> None:
        """Mark a connection as busy: it is not closed to make room for a new one."""
        self._idle.pop(_descriptor_of(transport), None)

    def mark_idle(self, transport: asyncio.BaseTransport) -> None:
        """Mark a connection as idle: it may be closed to make room for a new one, after those idle for longer."""
        descriptor = _descriptor_of(transport)
        if descriptor in self._open:
            self._idle[descriptor] = None
            self._idle.move_to_end(descriptor)

    def remove_connection(self, descriptor: int) -> None:
        """Remove a closed connection from the count of open connections."""
        self._open.pop(descriptor, None)
        self._idle.pop(descriptor, None)

    # Accepting

    def _resume_accepting(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept_connections)

    def _accept_connections(self) -> None:
        """Accept the connections that wait, at most `_ACCEPTED_AT_ONCE`. Without a free descriptor, pause."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                descriptor = self._listening.accept()[0].detach()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._log_throttle.warn(
                    "no file descriptor is left for a connection: raise their limit (ulimit -n, LimitNOFILE)"
                )
                self._loop.remove_reader(self._listening)
                self._loop.call_later(PAUSE_SECONDS, self._resume_accepting)
                return
            connection = _AcceptedSocket(*self._kind, descriptor)
            connection.setblocking(False)
            if len(self._open) < self._limit or self._end_longest_idle():
                self._add_connection(connection)
            else:
                self._refuse_connection(connection)

    def _refuse_connection(self, connection: socket.socket) -> None:
        """Close a new connection beyond the limit, after the bytes of its refusal, and log that."""
        self._log_throttle.warn(
            "%d connections are open, the limit: others are refused. Raise %s and the limit of file descriptors "
            "(ulimit -n, LimitNOFILE), or find the process that opens them",
            self._limit,
            self._setting,
        )
        _send_and_close(connection, self._refusals.when_full)

    def _end_longest_idle(self) -> bool:
        """End the connection that has been idle for longest, and return True; return False if none is idle."""
        for _ in range(len(self._idle)):
            descriptor, _ = self._idle.popitem(last=False)
            connection = self._open.get(descriptor)
            if connection is None:
                continue
            if _has_sent(connection):
                self._idle[descriptor] = None  # its request is read soon
            elif descriptor in self._silent:
                self._pop_silent(descriptor).close()
                return True
            else:
                with suppress(OSError):  # the client has closed it
                    connection.shutdown(socket.SHUT_RDWR)  # its transport reads the end, and closes it
                return True
        return False

    # Connections without bytes

    def _add_connection(self, connection: _AcceptedSocket) -> None:
        """Count a connection, and wait for its first bytes."""
        descriptor = connection.fileno()
        connection.counted_in, connection.descriptor = self, descriptor
        self._open[descriptor] = connection
        self._idle[descriptor] = None
        self._silent[descriptor] = connection, self._loop.time() + self._silent_seconds
        self._selector.register(descriptor, EVENT_READ)
        if self._timer is None:
            self._timer = self._loop.call_later(self._silent_seconds, self._close_timed_out)

    def _pop_silent(self, descriptor: int) -> _AcceptedSocket:
        """Remove a connection from those whose first bytes are awaited, and return it."""
        self._selector.unregister(descriptor)
        return self._silent.pop(descriptor)[0]

    def _connect_ready_sockets(self) -> None:
        """Give connections with bytes their transports and protocols; close those whose clients left without a byte.

        The event loop calls this again while the selector has such connections.
        """
        if not self._ready:
            self._ready.extend(self._silent[key.fd][0] for key, _ in self._selector.select(0))
        for _ in range(min(len(self._ready), CONNECTED_AT_ONCE)):
            connection = self._ready.popleft()
            silent = self._silent.get(connection.descriptor)
            if silent is None or silent[0] is not connection:
                continue
            self._pop_silent(connection.descriptor)
            if _has_sent(connection):
                task = self._loop.create_task(self._open_transport(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                connection.close()

    async def _open_transport(self, connection: socket.socket) -> None:
        """Give a connection its transport and protocol, after the handshake of TLS if there is one."""
        with suppress(OSError):  # the client left, or TLS's handshake failed
            await self._loop.connect_accepted_socket(
                self._protocol_factory,
                connection,
                ssl=self._ssl,
                ssl_handshake_timeout=self._silent_seconds if self._ssl else None,
            )

    def _close_timed_out(self) -> None:
        """Close the connections that have sent nothing in time, and set the timer for the next one."""
        self._timer = None
        for descriptor, (_, ends) in list(self._silent.items()):
            if ends > self._loop.time():
                self._timer = self._loop.call_at(ends, self._close_timed_out)
                return
            warn_of_slow_clients(self._log_throttle, "limits.header-timeout", self._silent_seconds)
            _send_and_close(self._pop_silent(descriptor), self._refusals.when_silent)


def _send_and_close(connection: socket.socket, refusal: bytes) -> None:
    """Send the bytes of a refusal on a connection, and close it."""
    with connection:
        with suppress(OSError):
            connection.recv(_DRAINED_BYTES)  # with bytes unread, the close would reset the connection
        with suppress(OSError):  # the client has closed it
            connection.send(refusal)


def _has_sent(connection: socket.socket) -> bool:
    """Return whether bytes from the client wait to be read on a connection."""
    with suppress(OSError):
        return bool(connection.recv(1, _LOOK))
    return False


def _descriptor_of(transport: asyncio.BaseTransport) -> int:
    connection = transport.get_extra_info("socket")
    return -1 if connection is None else int(connection.fileno())
