"""The server of Pulsar's binary protocol, on ports of its own.

It runs in the event loop of the HTTP server. Work that waits for database, log directory or store runs in the threads
of api/broker/threads.py. Jobs that recur every second or keep-alive interval close idle topics, notify watchers, end
slow and silent connections, read the broker's limits, and begin and end mirrors of Kafka's topics.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from api.broker.broker import Broker
from api.broker.mirroring.service import POLL_SECONDS, MirrorService
from api.broker.serving.loop_turns import in_turns
from api.broker.serving.topic_registry import TICK_SECONDS
from api.broker.threads import WaitsFor
from api.http.access import AuthorizationService
from api.http.listener import Listener, connection_limit
from api.observability.error_text import one_line
from api.pulsar.connection import Connection
from api.pulsar.context import ServerContext
from api.pulsar.handlers.table import HANDLERS
from api.pulsar.watching import NamespaceWatch
from storage.errors import CompactorError
from storage.metadata.policy_store import BROKER

LOG = logging.getLogger(__name__)
_KEPT_ALIVE_AT_ONCE = 64


class PulsarServer:
    """The server of Pulsar's protocol: sockets, connections and recurring jobs of one service.

    For one event loop; `start` and `close` are called in it.
    """

    def __init__(
        self,
        broker: Broker,
        access: AuthorizationService,
        sockets: Sequence[tuple[socket.socket, ssl.SSLContext | None]],
    ) -> None:
        """`sockets`: bound, each with the TLS that it speaks, or None."""
        self.context = ServerContext(broker, access)
        self._broker = broker
        self._sockets = sockets
        turns = self.context.turns
        self._mirrors = MirrorService(broker, self.context.topics)
        self._watch = NamespaceWatch(self.context.topics_of, broker.pools[WaitsFor.PARSING], turns.now)
        self._connections: set[Connection] = set()
        self._unconnected: dict[Connection, None] = {}
        """Connections without CONNECT until now, the oldest first."""
        self._listeners: list[Listener] = []
        self._jobs: list[asyncio.Task[None]] = []
        self._ends = False

    @property
    def tls_contexts(self) -> list[ssl.SSLContext]:
        """Return the TLS contexts of the sockets."""
        return [context for _, context in self._sockets if context is not None]

    async def start(self) -> None:
        """Accept connections on the sockets, and start the recurring jobs."""
        try:
            await self._read_max_message_size()
        except CompactorError as error:  # it is read again with each keep-alive interval
            LOG.warning(
                "cannot read the broker's limit of message sizes now; the default holds until it is read: %s", error
            )
        self.context.topics.register_callbacks()
        self._broker.clients.connections = lambda: len(self._connections)
        settings = self._broker.settings
        limit = connection_limit(settings.broker_max_connections, max(1, len(self._sockets)))
        for listening, tls in self._sockets:
            listener = Listener(
                listening,
                limit,
                "broker.max-connections",
                settings.limits_header_timeout_ms / 1000,
                self.context.log_throttle,
            )
            listener.start(partial(Connection, self, self.context, HANDLERS), tls)
            self._listeners.append(listener)
        keep_alive_seconds = settings.broker_keep_alive_interval_ms / 1000
        for interval, work in (
            (TICK_SECONDS, self.context.topics.tick),
            (TICK_SECONDS, self._notify_watchers),
            (POLL_SECONDS, self._mirrors.tick),
            (TICK_SECONDS, self._close_slow_connections),
            (keep_alive_seconds, self._ping_or_close_connections),
            (keep_alive_seconds, self._read_max_message_size),
        ):
            self._jobs.append(asyncio.create_task(self._repeat(interval, work), name=work.__name__))
        self._jobs.append(asyncio.create_task(self.context.topics.cursor_writer.run(), name="cursor writer"))

    async def close(self) -> None:
        """Accept no more connections, close all topics, and disconnect the clients."""
        self._ends = True
        self.context.topics.refuse_new_topics()
        for listener in self._listeners:
            listener.close()
        for task in self._jobs:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._mirrors.close()
        await self.context.topics.close()
        for connection in list(self._connections):
            connection.close()

    # Calls of connections

    def add_connection(self, connection: Connection) -> bool:
        """Register a new connection. Return False if the service is ending; the connection must close then."""
        if not self._ends:
            self._connections.add(connection)
            self._unconnected[connection] = None
        return not self._ends

    def mark_connected(self, connection: Connection) -> None:
        """Note that a connection's CONNECT was accepted."""
        self._unconnected.pop(connection, None)
        for listener in self._listeners:
            listener.mark_busy(connection.transport)

    def remove_connection(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self._connections.discard(connection)
        self._unconnected.pop(connection, None)

    # Jobs

    async def _repeat(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a job for ever, with a pause of `seconds` before each run, and log its errors."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except CompactorError as error:
                self.context.log_throttle.warn("the Pulsar server waits: %s", one_line(error), condition=work.__name__)
            except Exception:
                LOG.exception("the job %s of the Pulsar server failed", work.__name__)

    async def _notify_watchers(self) -> None:
        await self._watch.send_changes([connection.session for connection in self._connections])

    async def _read_max_message_size(self) -> None:
        """Read the maximum message size from the broker's policies, for new connections."""
        policies = self._broker.environment.metadata.policies
        resolution = await self._broker.pools[WaitsFor.DATABASE].run(policies.policies_inherited_from, BROKER)
        self.context.max_message_size = resolution.policies.max_message_bytes

    async def _close_slow_connections(self) -> None:
        """Close connections that did not send CONNECT in time, and those whose large frame stalls."""
        for connection in list(self._unconnected):
            if not connection.is_connect_time_over():
                break
            connection.close()
        self.context.receive_buffers.close_stalled_connections()

    async def _ping_or_close_connections(self) -> None:
        """Reload the keys of tokens if due, and let each connection ping its client or close."""
        if self.context.access.keys is not None:
            await self.context.access.keys.reload_if_due()
        async for connection in in_turns(list(self._connections), _KEPT_ALIVE_AT_ONCE):
            connection.ping_or_close()  # each verifies a token


def build_server(
    broker: Broker, access: AuthorizationService, plain: socket.socket | None, tls: socket.socket | None
) -> PulsarServer:
    """Return the Pulsar server of a service on bound sockets; None: no such port. It is not started."""
    settings = broker.settings
    sockets: list[tuple[socket.socket, ssl.SSLContext | None]] = [] if plain is None else [(plain, None)]
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(settings.tls_certificate, settings.tls_key or None)
        sockets.append((tls, context))
    return PulsarServer(broker, access, sockets)
