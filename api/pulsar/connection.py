"""One connection of a client: its handshake, its limits, and the commands that come on it, each handed to its handler.

Commands are handled in the order in which they come, in turns with other connections (incoming.py). Those that wait for
database, log or store continue in a task of their own, and their answers name the request; the protocol's clients wait
for the answer of what later commands build on. Invariants: before CONNECT nothing but CONNECT is read; what is no
frame, or out of order, ends the connection; an error ends a request, and never another connection.

Back-pressure: entries that wait to be appended are bounded in number and bytes, beyond which nothing is read from the
socket; while a socket takes no more, nothing is dispatched to it, and a client that asks and never reads is cut off. So
is one that says nothing for two keep-alive intervals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from api.broker.serving.consumer import Consumer
from api.broker.threads import WaitsFor
from api.http.access import AuthAction, Caller
from api.http.audit import note_change
from api.pulsar.admission import MOST_OF_CONNECTION, RoleThreads
from api.pulsar.codec.limits import CONNECT_BYTES, OverLimit
from api.pulsar.consumer_channel import ConnectedConsumer
from api.pulsar.errors import Refused, failure, refusal
from api.pulsar.frames import PADDING_BYTES, Frame, MalformedFrame, decoded, encoded
from api.pulsar.handlers.table import HANDLERS
from api.pulsar.incoming import REQUEST_SECONDS, Incoming
from api.pulsar.producer_channel import ConnectedProducer
from api.pulsar.pulsar_api_pb2 import BaseCommand, CommandConnect, ServerError
from api.pulsar.watching import Watchers
from storage.model import TopicName

if TYPE_CHECKING:
    from api.pulsar.server import PulsarServer

LOG = logging.getLogger(__name__)
PROTOCOL_VERSION = 20
"""The highest of Pulsar's protocol that is spoken; the lowest is `OLDEST_VERSION`."""
OLDEST_VERSION = 10
_LOOKUPS = frozenset((BaseCommand.LOOKUP, BaseCommand.PARTITIONED_METADATA, BaseCommand.GET_TOPICS_OF_NAMESPACE))
MOST_REQUEST_BYTES = 4 << 20
"""Commands whose requests are under way; beyond, nothing more is read."""
MOST_UNREAD_BYTES = 16 << 20
"""Answers that a client may leave unread, besides one message."""
_WRITE_BYTES = 1 << 20
_TLS_HANDSHAKE = b"\x16\x03"


class Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, gateway: PulsarServer) -> None:
        self.gateway = gateway
        self.broker = gateway.broker
        self.access = gateway.access
        self.settings = gateway.settings
        self._incoming = Incoming(self, gateway.turns, gateway.receive_buffers, CONNECT_BYTES, (BaseCommand.CONNECT,))
        self._threads: RoleThreads | None = None
        self.transport: asyncio.Transport | None = None
        self._connected = False
        self._caller = Caller("unknown")
        self._token: str | None = None
        self.address = "unknown"
        self.client_version = ""
        self.is_writable = True
        self.is_closed = False
        self.producers: dict[int, ConnectedProducer] = {}
        self.consumers: dict[int, ConnectedConsumer] = {}
        self.watchers = Watchers()
        self._creating: dict[tuple[str, int], int] = {}
        """Producers and consumers that are being made, and the requests for them."""
        self._requests: set[asyncio.Task[Any]] = set()
        self._command_bytes = self._request_bytes = 0
        self._published_entries = 0
        self._published_bytes = 0
        self._opened_at = self._heard_at = gateway.clock.now_ms()
        self._pinged = False
        self._pong_waiters: list[asyncio.Future[None]] = []

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"
        self._caller = Caller(self.address.rpartition(":")[0])
        if not self.gateway.take(self):
            self.close()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.gateway.clock.now_ms()
        self._pinged = False
        if not self._connected and data.startswith(_TLS_HANDSHAKE):
            self.cut_off("it speaks TLS at the port without it: name broker-service-port-tls, with pulsar+ssl")
            return
        self._incoming.put(data)

    def pause_reading(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.transport is not None:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        for connected in self.consumers.values():
            connected.subscription.wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._detach()

    def _detach(self) -> None:
        """Take its producers and consumers out of their topics, at once: others may have their names."""
        self.is_closed = True
        self.is_writable = False
        self._incoming.end()
        self._creating.clear()
        self.gateway.drop(self)
        for waiter in self._pong_waiters:
            if not waiter.done():
                waiter.set_result(None)
        for producer in list(self.producers.values()):
            producer.topic.remove_producer(producer.producer)
        for connected in list(self.consumers.values()):
            connected.subscription.leave(connected.consumer)
            connected.topic.spawn(connected.topic.remove_consumer(connected.subscription, connected.consumer))
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()

    # What others ask of it

    def send(self, command: BaseCommand, entry: bytes = b"") -> None:
        """Send a command; nothing if the connection has ended. A client that reads nothing is cut off."""
        # A transport that is closing has lost its client, and would log each write.
        if self.transport is not None and not self.is_closed and not self.transport.is_closing():
            head, rest = encoded(command, entry)
            self.transport.write(head)
            if rest:
                self.transport.write(rest)
            if not self.is_writable:
                unread = self.transport.get_write_buffer_size()
                if unread > MOST_UNREAD_BYTES + self.settings.max_message_size:
                    self.cut_off(f"it asks, and leaves {unread} bytes unread")

    def publishing(self, entries: int, size: int) -> None:
        """So many more entries wait to be appended."""
        self._published_entries += entries
        self._published_bytes += size
        is_full = self.gateway.publishing(self, size)
        settings = self.settings
        over = self._published_entries >= settings.max_pending_publishes
        if over or is_full or self._published_bytes >= settings.max_pending_bytes:
            self._incoming.hold("publishing")
        else:
            self.resume()

    def hold(self, reason: str) -> None:
        """Handle no command until `go_on` with the same reason."""
        self._incoming.hold(reason)

    def go_on(self, reason: str) -> None:
        """Handle commands again, unless there is another reason not to."""
        self._incoming.go_on(reason)

    def resume(self) -> None:
        """Read on, once half of what may wait is appended."""
        if self._published_entries <= self.settings.max_pending_publishes // 2:
            self._incoming.go_on("publishing")

    def close_producer(self, connected: ConnectedProducer) -> None:
        """Remove a producer and ask its client to connect again."""
        if self.remove_producer(connected):
            command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
            close = command.close_producer
            close.producer_id, close.request_id = connected.producer.options.producer_id, 0
            self.send(command)

    def remove_producer(self, connected: ConnectedProducer) -> bool:
        """Remove a producer. Return whether the connection had it."""
        producer_id = connected.producer.options.producer_id
        is_present = self.producers.get(producer_id) is connected
        if is_present:
            del self.producers[producer_id]
        return is_present

    @contextmanager
    def creating(self, kind: str, number: int, request_id: int) -> Iterator[Callable[[], bool]]:
        """While a producer or consumer is made; yields what says whether the client still wants it. Raises Refused for
        a second one of that number."""
        if (kind, number) in self._creating:
            raise Refused(ServerError.ServiceNotReady, f"the {kind} {number} of this connection is being made")
        self._creating[kind, number] = request_id
        try:
            yield lambda: self._creating.get((kind, number)) == request_id
        finally:
            if self._creating.get((kind, number)) == request_id:
                del self._creating[kind, number]

    def not_wanted(self, kind: str, number: int) -> None:
        """What is being made is not to be: the client has closed it already."""
        self._creating.pop((kind, number), None)

    def close_consumer(self, connected: ConnectedConsumer) -> None:
        """Remove a consumer and ask its client to subscribe again."""
        consumer_id = connected.consumer.options.consumer_id
        if self.consumers.get(consumer_id) is connected:
            del self.consumers[consumer_id]
            connected.subscription.leave(connected.consumer)
            command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
            command.close_consumer.consumer_id, command.close_consumer.request_id = consumer_id, 0
            self.send(command)

    def tell_active(self, consumer: Consumer, is_active: bool) -> None:
        """Tell a failover consumer whether it gets messages."""
        command = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE)
        command.active_consumer_change.consumer_id = consumer.options.consumer_id
        command.active_consumer_change.is_active = is_active
        self.send(command)

    def is_late(self) -> bool:
        """Return whether the client has had its time to send CONNECT."""
        return self.gateway.clock.now_ms() - self._opened_at >= self.settings.connect_timeout_ms

    def keep_alive(self) -> None:
        """Once an interval: ask a client that said nothing whether it is there; cut off one that does not answer."""
        if not self._connected:
            return
        if not self._holds_token():
            self.close()
        elif self._incoming.is_paused or self.gateway.clock.now_ms() - self._heard_at < self.settings.keep_alive_ms:
            return
        elif self._pinged:
            self.close()
        else:
            self._pinged = True
            self.send(BaseCommand(type=BaseCommand.PING, ping={}))

    def _holds_token(self) -> bool:
        """Whether the client's token still holds; true where none is needed."""
        from api.http.tokens import BadToken

        verifier = self.access.verifier
        if verifier is None or self._token is None:
            return True
        try:
            return verifier.role(self._token) == self._caller.authenticated_role
        except BadToken:
            return False

    async def is_alive(self, seconds: float) -> bool:
        """Whether the client still answers; one that does not is cut off."""
        if self.is_closed:
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._pong_waiters.append(waiter)
        self.send(BaseCommand(type=BaseCommand.PING, ping={}))
        try:
            await asyncio.wait_for(waiter, seconds)
        except TimeoutError:
            self.close()
        return not self.is_closed

    def cut_off(self, reason: str) -> None:
        """End a connection that does what no client does."""
        self.gateway.log_throttle.warn(f"{self.address} is cut off: {reason}", "cut off")
        self.close()

    def close(self) -> None:
        """End the connection. What the client has not read yet is not waited for."""
        self._detach()
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self.transport is not None:
            self.transport.close()

    def audit(self, action: str, topic: TopicName, subscription: str = "") -> None:
        """Note a change that the client has made, as one over REST is (api/http/audit.py)."""
        target = f"{topic}/subscription/{subscription}" if subscription else str(topic)
        note_change(self._caller, "PULSAR", target, action)

    # Commands

    @property
    def role(self) -> str:
        """The client's role, or its address if it has none."""
        return self._caller.name

    @property
    def pools(self) -> RoleThreads:
        """The threads that work for the client's role."""
        if self._threads is None:
            self._threads = self.gateway.admission.threads(self.role)
        return self._threads

    def handle(self, frame: Frame) -> None:
        """Handle a command. Raises MalformedFrame for one that ends the connection."""
        self._command_bytes = len(frame.command)
        try:
            command = decoded(frame)
        except OverLimit as error:
            if error.request_id is None:
                raise MalformedFrame(error.message) from error
            self.send(failure(error.request_id, error, frame.kind))
        else:
            HANDLERS[frame.kind](self, command, frame.entry)

    def begin(
        self, request_id: int, work: Coroutine[Any, Any, BaseCommand | None], kind: int = BaseCommand.ERROR
    ) -> bool:
        """Do what waits in a task, whose result is the answer. `kind`: the request's type, if its answer has its own.
        Return False for a request that is refused, because too many are under way."""
        role = self.role
        try:
            if len(self._requests) >= MOST_OF_CONNECTION:
                reason = f"{MOST_OF_CONNECTION} requests of this connection are under way: wait for answers"
                raise Refused(ServerError.TooManyRequests, reason)
            self.gateway.admission.enter(role, kind in _LOOKUPS)
        except Refused as error:
            work.close()
            self.send(failure(request_id, error, kind))
            return False
        self._incoming.charge(REQUEST_SECONDS)
        task = asyncio.create_task(self._answer(request_id, work, kind))
        self._requests.add(task)
        size = self._command_bytes
        self._request_bytes += size
        if self._request_bytes >= MOST_REQUEST_BYTES:
            self._incoming.hold("requests")

        def ended(_: object) -> None:
            self._requests.discard(task)
            self._request_bytes -= size
            if self._request_bytes <= MOST_REQUEST_BYTES // 2:
                self._incoming.go_on("requests")
            self.gateway.admission.leave(role, kind in _LOOKUPS)

        task.add_done_callback(ended)
        return True

    async def _answer(self, request_id: int, work: Coroutine[Any, Any, BaseCommand | None], kind: int) -> None:
        try:
            answer = await work
        except Exception as error:
            answer = failure(request_id, refusal(error), kind)
        if answer is not None:
            self.send(answer)

    def connect(self, command: BaseCommand) -> None:
        if self._connected:
            raise MalformedFrame("a second CONNECT")
        wish = command.connect
        self.client_version = wish.client_version[:100]
        if wish.protocol_version < OLDEST_VERSION:
            self._refuse_connection(
                Refused(
                    ServerError.UnsupportedVersionError,
                    f"protocol version {wish.protocol_version} is too old: {OLDEST_VERSION} is the oldest",
                )
            )
            return
        try:
            self._authenticate(wish)
        except Refused as error:
            self._refuse_connection(error)
            return
        self._connected = True
        self.gateway.connected(self)
        self._incoming.allow(self.settings.max_message_size + PADDING_BYTES, HANDLERS)
        answer = BaseCommand(type=BaseCommand.CONNECTED)
        answer.connected.server_version = self.gateway.server_version
        answer.connected.protocol_version = min(wish.protocol_version, PROTOCOL_VERSION)
        answer.connected.max_message_size = self.settings.max_message_size
        answer.connected.feature_flags.supports_topic_watchers = True
        answer.connected.feature_flags.supports_auth_refresh = False
        answer.connected.feature_flags.supports_partial_producer = True
        self.send(answer)

    def _authenticate(self, connect: CommandConnect) -> None:
        access = self.access
        if access.verifier is None:
            return
        from api.http.tokens import BadToken

        if connect.auth_method_name != "token" or not connect.auth_data:
            raise Refused(ServerError.AuthenticationError, "a token is needed: authentication method `token`")
        try:
            self._token = connect.auth_data.decode("latin-1").strip()
            role = access.verifier.role(self._token)
        except BadToken as error:
            raise Refused(ServerError.AuthenticationError, f"not authenticated: {error}") from error
        try:
            self._caller = access.behind(Caller(self._caller.address, role), connect.original_principal)
        except BadToken as error:
            raise Refused(ServerError.AuthorizationError, f"Invalid roles: {error}") from error

    def check_original_principal(self, named: str) -> None:
        """Check the original principal of a command, which is that of CONNECT. Raises Refused (AuthorizationError)."""
        if named and self.access.verifier is not None and named != self._caller.role:
            raise Refused(
                ServerError.AuthorizationError,
                "the command names another original principal than CONNECT: a connection serves one client",
            )

    def _refuse_connection(self, error: Refused) -> None:
        self.gateway.log_throttle.warn(f"{self.address} is refused: {error.message}", "refused")
        self.send(failure((1 << 64) - 1, error))
        self.close()

    async def allow(self, name: TopicName, *actions: AuthAction) -> None:
        """Raises RestException unless the client may do any of that on a topic."""
        await self._require(actions, name.tenant, name.namespace, name.topic)

    async def allow_namespace(self, namespace: str, *actions: AuthAction) -> None:
        """As `allow`, for a namespace."""
        tenant, _, name = namespace.partition("/")
        await self._require(actions, tenant, name)

    async def _require(self, actions: tuple[AuthAction, ...], *scope: str) -> None:
        access = self.access
        if access.asks_sql(self._caller, actions):
            await self.pools[WaitsFor.DATABASE].run(access.require, self._caller, actions, *scope)
        else:
            access.require(self._caller, actions, *scope)

    def ping(self) -> None:
        self.send(BaseCommand(type=BaseCommand.PONG, pong={}))

    def pong(self) -> None:
        waiters, self._pong_waiters = self._pong_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
