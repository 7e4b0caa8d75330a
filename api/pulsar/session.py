"""A client's session: its identity, its producers, consumers and watchers, and the requests that are under way.

    connection.py  ──  receive(request)  ─►  session  ─►  a handler (handlers/)
                   ◄─  channel.send(response)  ──

Requests are handled in the order in which they arrive. Those that wait for database, log or store continue in a task,
whose result is the response; clients wait for the response before they send what builds on it. An error ends a request
and no other one; what no client of the protocol does raises MalformedFrame, and ends the session.

Must not know: bytes, sockets, protobuf.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from api.broker.serving.consumer import Consumer
from api.broker.serving.producer import Producer
from api.broker.serving.subscription import Subscription
from api.broker.serving.topic import PersistentTopic
from api.pulsar import pending_requests
from api.pulsar.codec import requests, responses
from api.pulsar.codec.responses import Response
from api.pulsar.context import ServerContext
from api.pulsar.errors import Refused, ServerError
from api.pulsar.frames import MalformedFrame
from api.pulsar.identity import Identity
from api.pulsar.pending_requests import PendingRequests, Work, failure
from api.pulsar.publish_budget import PendingPublishes
from api.pulsar.watching import Watchers
from storage.entries.rebuild import DeliverableEntry

PROTOCOL_VERSION = 20
"""The highest version of Pulsar's protocol that is spoken; the lowest is `OLDEST_VERSION`."""
OLDEST_VERSION = 10
_NO_REQUEST = (1 << 64) - 1
"""The request id of a refused connection, as a broker sends it."""


class Channel(pending_requests.Channel, Protocol):
    """The connection, as its session uses it. Calls return at once and never fail."""

    @property
    def address(self) -> str:
        """The client's host and port."""

    @property
    def is_writable(self) -> bool:
        """Return whether the client accepts more bytes now."""

    def deliver(
        self,
        consumer_id: int,
        entry: DeliverableEntry,
        live: int,
        redelivery_count: int,
        partition: int,
        consumer_epoch: int | None,
    ) -> None:
        """Send an entry to a consumer; see codec/encoding.py."""

    def connected(self) -> None:
        """Accept all requests: the client is connected."""

    def close(self) -> None:
        """End the connection, and the session with it."""


class SessionProducer(Protocol):
    """A producer of a session (connected_producer.py)."""

    @property
    def producer(self) -> Producer: ...

    @property
    def topic(self) -> PersistentTopic: ...

    def send_error(self, sequence_id: int, error: Exception) -> None:
        """Report an entry that can never be appended."""


class SessionConsumer(Protocol):
    """A consumer of a session (connected_consumer.py)."""

    epoch: int | None

    @property
    def consumer(self) -> Consumer: ...

    @property
    def topic(self) -> PersistentTopic: ...

    @property
    def subscription(self) -> Subscription: ...


class Session:
    """The session of one client. For the event loop alone."""

    def __init__(
        self, context: ServerContext, channel: Channel, handlers: Mapping[type, Callable[[Session, Any], None]]
    ) -> None:
        """`handlers`: the function that handles each type of request."""
        self.context = context
        self.settings = settings = context.settings
        self.channel = channel
        self.identity = Identity(context.access, context.admission, channel.address.rpartition(":")[0])
        self.client_version = ""
        self.is_closed = False
        self.producers: dict[int, SessionProducer] = {}
        self.consumers: dict[int, SessionConsumer] = {}
        self.watchers = Watchers()
        self.pending_publishes = PendingPublishes(
            channel, context.publish_budget, settings.max_pending_publishes, settings.max_pending_bytes
        )
        self._handlers = handlers
        self._requests = PendingRequests(channel, context.admission, self.identity)
        self._is_connected = False
        self._creating: dict[tuple[str, int], int] = {}
        """The requests that create a producer or consumer now, by its kind and number."""
        self._pong_waiters: list[asyncio.Future[None]] = []

    @property
    def is_connected(self) -> bool:
        """Return whether the client's CONNECT was accepted."""
        return self._is_connected

    # Requests

    def receive(self, request: Any, command_bytes: int = 0) -> None:
        """Handle a request. Raise MalformedFrame for one that ends the session."""
        self._requests.command_bytes = command_bytes
        self._handlers[type(request)](self, request)

    def send(self, response: Response) -> None:
        """Send a response."""
        self.channel.send(response)

    def begin(self, request: Any, work: Work) -> bool:
        """Continue with a request in a task. Return False for a request that is refused: too many are under way."""
        return self._requests.begin(request, work)

    def refuse(self, request: Any, error: Refused) -> None:
        """Send a refusal as the response to a request."""
        self.channel.send(failure(request, error))

    # The client

    def connect(self, request: requests.Connect) -> None:
        """Handle the first request of a client."""
        if self._is_connected:
            raise MalformedFrame("a second CONNECT")
        self.client_version = request.client_version[:100]
        try:
            if request.protocol_version < OLDEST_VERSION:
                raise Refused(
                    ServerError.UnsupportedVersionError,
                    f"protocol version {request.protocol_version} is too old: {OLDEST_VERSION} is the oldest",
                )
            self.identity.authenticate(request)
        except Refused as error:
            self.context.log_throttle.warn(f"{self.channel.address} is refused: {error.message}", "refused")
            self.send(responses.Failure(_NO_REQUEST, error.error, error.message))
            self.channel.close()
            return
        self._is_connected = True
        self.channel.connected()
        flags = {"supports_topic_watchers": True, "supports_auth_refresh": False, "supports_partial_producer": True}
        self.send(
            responses.Connected(
                self.context.server_version,
                min(request.protocol_version, PROTOCOL_VERSION),
                self.settings.max_message_size,
                flags,
            )
        )

    async def is_alive(self) -> bool:
        """Return whether the client still answers; end the session of one that does not."""
        if self.is_closed:
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._pong_waiters.append(waiter)
        self.send(requests.Ping())
        try:
            await asyncio.wait_for(waiter, self.settings.liveness_seconds)
        except TimeoutError:
            self.channel.close()
        return not self.is_closed

    def pong(self) -> None:
        """Note that the client answers."""
        waiters, self._pong_waiters = self._pong_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Producers and consumers

    @contextmanager
    def creating(self, kind: str, number: int, request_id: int) -> Iterator[Callable[[], bool]]:
        """Reserve the number of a producer or consumer while it is created.

        Yield a function that returns whether the reservation holds: False after the client has closed the producer or
        consumer. Raise Refused for a number that is reserved already.
        """
        if (kind, number) in self._creating:
            raise Refused(ServerError.ServiceNotReady, f"the {kind} {number} of this connection is being created")
        self._creating[kind, number] = request_id
        try:
            yield lambda: self._creating.get((kind, number)) == request_id
        finally:
            if self._creating.get((kind, number)) == request_id:
                del self._creating[kind, number]

    def cancel_creation(self, kind: str, number: int) -> None:
        """Cancel a creation in progress: the client has closed the producer or consumer."""
        self._creating.pop((kind, number), None)

    def close_producer(self, connected: SessionProducer) -> None:
        """Remove a producer and ask its client to connect again."""
        if self.remove_producer(connected):
            self.send(requests.CloseProducer(0, connected.producer.options.producer_id))

    def remove_producer(self, connected: SessionProducer) -> bool:
        """Remove a producer. Return whether the session had it."""
        producer_id = connected.producer.options.producer_id
        is_present = self.producers.get(producer_id) is connected
        if is_present:
            del self.producers[producer_id]
        return is_present

    def close_consumer(self, connected: SessionConsumer) -> None:
        """Remove a consumer and ask its client to subscribe again."""
        consumer_id = connected.consumer.options.consumer_id
        if self.consumers.get(consumer_id) is connected:
            del self.consumers[consumer_id]
            connected.subscription.leave(connected.consumer)
            self.send(requests.CloseConsumer(0, consumer_id))

    def wake_consumers(self) -> None:
        """Continue to deliver: the client takes more bytes."""
        for connected in self.consumers.values():
            connected.subscription.wake()

    def end(self) -> None:
        """Remove producers and consumers from their topics at once, so that others may use their names. Idempotent."""
        self.is_closed = True
        self._creating.clear()
        self.context.publish_budget.discard(self.pending_publishes)
        self.pong()
        for producer in list(self.producers.values()):
            producer.topic.remove_producer(producer.producer)
        for connected in list(self.consumers.values()):
            connected.subscription.leave(connected.consumer)
            connected.topic.spawn(connected.topic.remove_consumer(connected.subscription, connected.consumer))
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
