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
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from api.broker.serving.channel import Receipt
from api.broker.serving.consumer import Consumer, ConsumerOptions
from api.broker.serving.loop_turns import repeat_while
from api.broker.serving.producer import AccessMode, Producer, ProducerOptions
from api.broker.serving.subscription import Subscription
from api.broker.serving.topic import PersistentTopic
from api.pulsar import pending_requests
from api.pulsar.codec import requests, responses
from api.pulsar.codec.responses import Response
from api.pulsar.context import ServerContext
from api.pulsar.errors import Refused, ServerError, refusal
from api.pulsar.frames import MalformedFrame
from api.pulsar.identity import Identity
from api.pulsar.pending_requests import PendingRequests, Work, failure_response
from api.pulsar.publish_budget import PendingPublishes
from api.pulsar.watching import Watchers
from storage.entries.rebuild import DeliverableEntry
from storage.errors import ChecksumMismatch

PROTOCOL_VERSION = 20
"""The highest version of Pulsar's protocol that is spoken; the lowest is `OLDEST_VERSION`."""
OLDEST_VERSION = 10
LIVENESS_SECONDS = 5.0
"""The time that a client has to send bytes after a PING when another one asks for its place."""
_PENDING_BYTES = 32 << 20
"""The bytes of one connection that may wait to be appended."""
MAX_CLIENTS = 10_000
"""The producers and consumers of one connection, together."""
ENDED_AT_ONCE = 100
"""Producers, or subscriptions' consumers, that are removed in one step of the event loop when a connection ends."""
_NO_REQUEST = (1 << 64) - 1
"""The request id of a refused connection, as a broker sends it."""

IsReserved = Callable[[], bool]
"""Returns whether a reservation still holds."""


class SessionConnection(pending_requests.RequestConnection, Protocol):
    """The part of a connection that its session uses. Calls return at once and never fail."""

    @property
    def address(self) -> str:
        """The client's host and port."""

    @property
    def is_writable(self) -> bool:
        """Return whether the client accepts more bytes now."""

    @property
    def is_reading(self) -> bool:
        """Return whether the client's bytes are read now; False: they wait, for memory, a turn or the log."""

    def deliver(
        self,
        consumer_id: int,
        entry: DeliverableEntry,
        live_mask: int,
        redelivery_count: int,
        partition: int,
        consumer_epoch: int | None,
    ) -> None:
        """Send an entry to a consumer; see codec/encoding.py."""

    def accept_requests(self) -> None:
        """Accept all types of requests from now on: CONNECT was accepted."""

    def close(self) -> None:
        """End the connection, and the session with it."""


class Session:
    """The session of one client. For the event loop alone."""

    def __init__(self, context: ServerContext, channel: SessionConnection, handlers: Handlers) -> None:
        self.context = context
        self.settings = settings = context.settings
        self.max_message_size = context.max_message_size
        self.channel = channel
        self.address = channel.address
        self.identity = Identity(context.access, context.admission, self.address.rpartition(":")[0])
        self.client_version = ""
        self.is_closed = False
        self.producers: dict[int, ConnectedProducer] = {}
        self.consumers: dict[int, ConnectedConsumer] = {}
        self.watchers = Watchers()
        self.pending_publishes = PendingPublishes(
            channel,
            context.publish_budget,
            settings.broker_max_pending_publishes,
            min(_PENDING_BYTES, settings.broker_publish_buffer_bytes),
        )
        self._handlers = handlers
        self._requests = PendingRequests(channel, context.admission, self.identity)
        self.is_connected = False
        """True if the client's CONNECT was accepted."""
        self.sends_positions = False
        """True if the client's replicators send the position of each entry at its source."""
        self._creating: dict[tuple[str, int], int] = {}
        """The requests that create a producer or consumer now, by its kind and id."""
        self._liveness_waiters: list[asyncio.Future[None]] = []
        self._ending: asyncio.Task[None] | None = None
        """Removes the producers and consumers that `end` has not removed at once."""

    # Requests

    def receive(self, request: Any, command_bytes: int = 0) -> None:
        """Handle a request, and send the response. Raise MalformedFrame for a request that must end the session."""
        self._requests.command_bytes = command_bytes
        try:
            result = self._handlers[type(request)](self, request)
        except Refused as error:
            result = failure_response(request, error)
        if result is None:
            return
        if isinstance(result, Coroutine):
            self.begin(request, result)
        else:
            self.send(result)

    def send(self, response: Response) -> None:
        """Send a response to the client."""
        self.channel.send(response)

    def begin(self, request: Any, work: Work) -> bool:
        """Start the work for a request in a task, which sends the response.

        Return False if too many requests are under way; the client is sent the refusal.
        """
        return self._requests.begin(request, work)

    # The client

    def connect(self, request: requests.Connect) -> None:
        """Handle CONNECT: authenticate the client and send the response. A refused client is disconnected.

        Raise MalformedFrame for a second CONNECT.
        """
        if self.is_connected:
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
            condition = f"clients are refused: {error.message}"
            self.context.log_throttle.warn("%s is refused: %s", self.address, error.message, condition=condition)
            self.send(responses.Failure(_NO_REQUEST, error.error, error.message))
            self.channel.close()
            return
        self.is_connected = True
        self.sends_positions = request.supports_repl_dedup_by_lid_and_eid
        self.channel.accept_requests()
        flags = {
            "supports_topic_watchers": True,
            "supports_auth_refresh": False,
            "supports_partial_producer": True,
            "supports_repl_dedup_by_lid_and_eid": True,
        }
        self.send(
            responses.Connected(
                self.context.server_version,
                min(request.protocol_version, PROTOCOL_VERSION),
                self.max_message_size,
                flags,
            )
        )

    async def close_unless_alive(self) -> bool:
        """Ping the client, and end its session after `LIVENESS_SECONDS` of silence. Return whether it sends bytes.

        A client whose bytes are not read now counts as alive. After a return of False, the names of the client's
        producers and consumers are free.
        """
        if not self.is_closed:
            waiter = asyncio.get_running_loop().create_future()
            self._liveness_waiters.append(waiter)
            self.send(requests.Ping())
            try:
                await asyncio.wait_for(waiter, LIVENESS_SECONDS)
            except TimeoutError:
                if self.channel.is_reading:
                    self.channel.close()
        if self._ending is not None:
            await asyncio.shield(self._ending)
        return not self.is_closed

    def note_alive(self) -> None:
        """Note that the client has sent bytes."""
        if not self._liveness_waiters:
            return
        waiters, self._liveness_waiters = self._liveness_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Producers and consumers

    @contextmanager
    def reserve_id(self, kind: str, client_id: int, request_id: int) -> Iterator[IsReserved]:
        """Reserve the id of a producer or consumer while it is created. `kind`: "producer" or "consumer".

        Yield a function that returns whether the reservation holds: False after the client has closed the producer or
        consumer. Raise Refused for an id that is reserved already, and for one more than `MAX_CLIENTS`.
        """
        if (kind, client_id) in self._creating:
            raise Refused(ServerError.ServiceNotReady, f"the {kind} {client_id} of this connection is being created")
        if len(self.producers) + len(self.consumers) + len(self._creating) >= MAX_CLIENTS:
            raise Refused(
                ServerError.TooManyRequests,
                f"this connection has {MAX_CLIENTS} producers and consumers: close some, or use another connection",
            )
        self._creating[kind, client_id] = request_id
        try:
            yield lambda: self._creating.get((kind, client_id)) == request_id
        finally:
            if self._creating.get((kind, client_id)) == request_id:
                del self._creating[kind, client_id]

    def cancel_creation(self, kind: str, client_id: int) -> None:
        """Cancel a creation in progress: the client has closed the producer or consumer."""
        self._creating.pop((kind, client_id), None)

    def remove_producer(self, connected: ConnectedProducer) -> bool:
        """Remove a producer from the session, not from its topic. Return whether the session had it."""
        producer_id = connected.producer.options.producer_id
        is_present = self.producers.get(producer_id) is connected
        if is_present:
            del self.producers[producer_id]
        return is_present

    def wake_consumers(self) -> None:
        """Continue to deliver messages to all consumers: the client takes more bytes."""
        for connected in self.consumers.values():
            connected.subscription.wake()

    def end(self) -> None:
        """End the session: remove its producers and consumers, so that others may use their names. Idempotent.

        The first `ENDED_AT_ONCE` are removed at once, the others in later turns of the loop.
        """
        self.is_closed = True
        self._creating.clear()
        self.context.publish_budget.cancel_resume(self.pending_publishes)
        self.note_alive()  # its callers see that it is closed
        removal = self._remove_in_steps(list(self.producers.values()), list(self.consumers.values()))
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        if next(removal, False):
            self._ending = asyncio.create_task(repeat_while(lambda: next(removal, False)))

    def _remove_in_steps(
        self, producers: Sequence[ConnectedProducer], consumers: Sequence[ConnectedConsumer]
    ) -> Iterator[bool]:
        """Remove producers and consumers from their topics, `ENDED_AT_ONCE` in a step; yield True between steps."""
        count = 0
        for producer in producers:
            if count >= ENDED_AT_ONCE:
                count = 0
                yield True
            producer.topic.remove_producer(producer.producer)
            count += 1
        groups: dict[Subscription, list[ConnectedConsumer]] = {}
        for connected in consumers:
            groups.setdefault(connected.subscription, []).append(connected)
        for subscription, group in groups.items():
            if count >= ENDED_AT_ONCE:
                count = 0
                yield True
            subscription.remove_consumers(*(connected.consumer for connected in group))
            topic = group[0].topic
            topic.spawn(topic.close_unused_subscription(subscription))
            count += len(group)


class ConnectedProducer:
    """A producer of a session with its channel (serving/channel.py), which sends receipts and errors to the client."""

    def __init__(self, session: Session, topic: PersistentTopic, request: requests.Producer, name: str) -> None:
        self.connection = session
        self.topic = topic
        self._producer_id = request.producer_id
        self._send = session.channel.send
        self.add_queued = session.pending_publishes.add
        options = ProducerOptions(
            name,
            request.producer_id,
            request.epoch,
            AccessMode(request.producer_access_mode),
            request.topic_epoch,
            request.metadata,
        )
        self.producer: Producer = topic.new_producer(self, options)

    def send_receipts(self, receipts: Sequence[Receipt]) -> None:
        self._send(responses.SendReceipts(self._producer_id, receipts))

    def send_error(self, sequence_id: int, error: BaseException) -> None:
        reason = refusal(error)
        code = ServerError.ChecksumError if isinstance(error, ChecksumMismatch) else reason.error
        self._send(responses.SendError(self._producer_id, sequence_id, code, reason.message))

    def disconnect(self) -> None:
        if self.connection.remove_producer(self):
            self._send(requests.CloseProducer(0, self._producer_id))


class ConnectedConsumer:
    """A consumer of a session with its channel, which sends entries to the client.

    `subscription`: set once the consumer has joined.
    """

    subscription: Subscription

    def __init__(self, session: Session, topic: PersistentTopic, options: ConsumerOptions, epoch: int | None) -> None:
        self.connection = session
        self.topic = topic
        self.consumer = Consumer(self, options, topic.clock.now_ms())
        self.epoch = epoch
        """A count of the redeliveries that the client asked for; it drops messages of a lower epoch. None: it has
        none."""
        self._channel = session.channel
        self._partition = topic.name.partition

    @property
    def is_writable(self) -> bool:
        return self._channel.is_writable

    def deliver(self, entry: DeliverableEntry, live_mask: int, redeliveries: int) -> None:
        options = self.consumer.options
        epoch = None if options.type.is_individual else self.epoch
        self._channel.deliver(options.consumer_id, entry, live_mask, redeliveries, self._partition, epoch)

    def set_active(self, is_active: bool) -> None:
        self._channel.send(responses.ActiveConsumerChange(self.consumer.options.consumer_id, is_active))

    def disconnect(self) -> None:
        consumers, consumer_id = self.connection.consumers, self.consumer.options.consumer_id
        if consumers.get(consumer_id) is self:
            del consumers[consumer_id]
            self._channel.send(requests.CloseConsumer(0, consumer_id))


Handlers = Mapping[type, Callable[[Session, Any], Response | Work | None]]
"""The function that handles each type of request. Its result is the response, or the work whose result is; None: it has
sent the response itself, or sends none. It may raise Refused and MalformedFrame."""
