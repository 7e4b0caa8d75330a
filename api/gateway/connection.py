"""One connection of a client: its handshake, and the commands that come on it, each handed to whom it concerns.

Commands are handled in the order in which they come. Those that wait for database, log or store continue in a task of
their own, and their answers name the request; the protocol's clients wait for the answer of what later commands build
on. Invariants: before CONNECT nothing but CONNECT is answered; what is no frame, or out of order, ends the connection;
an error ends a request, and never another connection.

Back-pressure: entries that wait to be appended are bounded in number and bytes, beyond which nothing is read from the
socket; while a socket takes no more, nothing is dispatched to it. A client that says nothing for two keep-alive
intervals is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from api.gateway import lookup
from api.gateway.commands import Refused, failure, id_data, message_id, refusal, success
from api.gateway.consumers import Consumer
from api.gateway.frames import Frame, FrameParser, MalformedFrame, encoded
from api.gateway.lookup import parse_name
from api.gateway.producers import Producer, Publish, check_quota
from api.gateway.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandConsumerStatsResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandProducer,
    CommandSubscribe,
    MessageIdData,
    Schema,
    ServerError,
)
from api.gateway.schema_data import has_schema, schema_data, schema_record, version_bytes, version_of
from api.gateway.subscriptions import entry_of
from api.http.access import AuthAction, Caller
from api.http.problems import RestException
from api.http.thread_pools import WaitsFor
from storage.errors import CompactorError, Fenced
from storage.model import LATEST, TopicName

if TYPE_CHECKING:
    from api.gateway.gateway import Gateway

LOG = logging.getLogger(__name__)
PROTOCOL_VERSION = 20
"""The highest of Pulsar's protocol that is spoken; the lowest is `OLDEST_VERSION`."""
OLDEST_VERSION = 10
MOST_REQUESTS = 5_000
"""Requests of one connection that are under way; beyond, the client is told to wait."""
_WRITE_BYTES = 1 << 20
_Handler = Callable[["Connection", BaseCommand, bytes], Any]


class Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._parts = gateway.parts
        self._pools = gateway.parts.pools
        self._settings = gateway.settings
        self._frames = FrameParser(gateway.settings.max_message_size)
        self._transport: asyncio.Transport | None = None
        self._connected = False
        self._caller = Caller("unknown")
        self._token: str | None = None
        self.address = "unknown"
        self.client_version = ""
        self.is_writable = True
        self.is_closed = False
        self._producers: dict[int, Producer] = {}
        self._consumers: dict[int, Consumer] = {}
        self._watchers: dict[int, tuple[str, re.Pattern[str], frozenset[str]]] = {}
        self._requests: set[asyncio.Task[Any]] = set()
        self._published_entries = 0
        self._published_bytes = 0
        self._is_paused = False
        self._heard_at = gateway.clock.now_ms()
        self._pinged = False
        self._pong_waiters: list[asyncio.Future[None]] = []

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"
        self._caller = Caller(self.address.rpartition(":")[0])
        if not self._gateway.take(self):
            self.close()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._gateway.clock.now_ms()
        self._pinged = False
        try:
            for frame in self._frames.feed(data):
                self._handle(frame)
                if self.is_closed:
                    return
        except MalformedFrame as error:
            self._gateway.log_throttle.warn(f"{self.address} is cut off: {error}", "malformed")
            self.close()
        except Exception:
            LOG.exception("a command of %s failed, and it is cut off", self.address)
            self.close()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        for consumer in self._consumers.values():
            _wake(consumer)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self.is_writable = False
        self._gateway.drop(self)
        for waiter in self._pong_waiters:
            if not waiter.done():
                waiter.set_result(None)
        for producer in self._producers.values():
            producer.topic.remove_producer(producer)
        for consumer in self._consumers.values():
            if consumer.subscription is not None:
                topic = consumer.subscription.topic
                topic.spawn(topic.remove_consumer(consumer))
        self._producers.clear()
        self._consumers.clear()

    # What others ask of it

    def send(self, command: BaseCommand, entry: bytes = b"") -> None:
        """Send a command; nothing if the connection has ended."""
        if self._transport is not None and not self.is_closed:
            head, rest = encoded(command, entry)
            self._transport.write(head)
            if rest:
                self._transport.write(rest)

    def publishing(self, entries: int, size: int) -> None:
        """So many more entries wait to be appended."""
        self._published_entries += entries
        self._published_bytes += size
        is_full = self._gateway.publishing(self, size)
        settings = self._settings
        over = self._published_entries >= settings.max_pending_publishes
        over = over or is_full or self._published_bytes >= settings.max_pending_bytes
        if over and not self._is_paused and self._transport is not None and not self.is_closed:
            self._transport.pause_reading()
            self._is_paused = True
        elif not over:
            self.resume()

    def resume(self) -> None:
        """Read on, once half of what may wait is appended."""
        half = self._published_entries <= self._settings.max_pending_publishes // 2
        if self._is_paused and half and self._transport is not None and not self.is_closed:
            self._transport.resume_reading()
            self._is_paused = False

    def close_producer(self, producer: Producer) -> None:
        """Tell a producer to come again."""
        if self._producers.pop(producer.producer_id, None) is producer:
            producer.topic.remove_producer(producer)
            command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
            command.close_producer.producer_id, command.close_producer.request_id = producer.producer_id, 0
            self.send(command)

    def close_consumer(self, consumer: Consumer) -> None:
        """Tell a consumer to come again."""
        if self._consumers.pop(consumer.consumer_id, None) is consumer:
            if consumer.subscription is not None and consumer.subscription.dispatcher is not None:
                consumer.subscription.dispatcher.remove(consumer)
            command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
            command.close_consumer.consumer_id, command.close_consumer.request_id = consumer.consumer_id, 0
            self.send(command)

    def tell_active(self, consumer: Consumer, is_active: bool) -> None:
        """Tell a failover consumer whether it gets messages."""
        command = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE)
        command.active_consumer_change.consumer_id = consumer.consumer_id
        command.active_consumer_change.is_active = is_active
        self.send(command)

    def keep_alive(self) -> None:
        """Once an interval: ask a client that said nothing whether it is there; cut off one that does not answer."""
        now = self._gateway.clock.now_ms()
        if not self._connected or not self._holds_token():
            self.close()
        elif self._is_paused or now - self._heard_at < self._settings.keep_alive_ms:
            return
        elif self._pinged:
            self.close()
        else:
            self._pinged = True
            self.send(BaseCommand(type=BaseCommand.PING, ping={}))

    def _holds_token(self) -> bool:
        """Whether the client's token still holds; true where none is needed."""
        from api.http.tokens import BadToken

        verifier = self._parts.access.verifier
        if verifier is None or self._token is None:
            return True
        try:
            return verifier.role(self._token) == self._caller.role
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

    def check_watchers(self, topics_of: Callable[[str], Awaitable[list[str]]]) -> Coroutine[Any, Any, None] | None:
        """What tells watchers of namespaces what has changed; None: nobody watches."""
        return self._tell_watchers(topics_of) if self._watchers else None

    def close(self) -> None:
        """End the connection."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()

    # Commands

    def _handle(self, frame: Frame) -> None:
        command = frame.command
        handler = _HANDLERS.get(command.type)
        field = _FIELDS.get(command.type)
        if handler is None or field is None or not command.HasField(field):
            raise MalformedFrame(f"a command of type {command.type} that a client does not send")
        if not self._connected and command.type != BaseCommand.CONNECT:
            raise MalformedFrame("a command before CONNECT")
        handler(self, command, frame.entry)

    def _begin(self, request_id: int, work: Coroutine[Any, Any, BaseCommand | None]) -> None:
        """Do what waits in a task, whose result is the answer."""
        if len(self._requests) >= MOST_REQUESTS:
            work.close()
            too_many = Refused(ServerError.TooManyRequests, f"{MOST_REQUESTS} requests are under way: wait for answers")
            self.send(failure(request_id, too_many))
            return
        task = asyncio.create_task(self._answer(request_id, work))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _answer(self, request_id: int, work: Coroutine[Any, Any, BaseCommand | None]) -> None:
        try:
            answer = await work
        except Exception as error:
            if not isinstance(error, Refused | CompactorError | RestException):
                LOG.exception("a request of %s failed", self.address)
            answer = failure(request_id, refusal(error))
        if answer is not None:
            self.send(answer)

    def _connect(self, command: BaseCommand, _: bytes) -> None:
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
            self._authenticate(wish.auth_method_name, wish.auth_data)
        except Refused as error:
            self._refuse_connection(error)
            return
        self._connected = True
        answer = BaseCommand(type=BaseCommand.CONNECTED)
        answer.connected.server_version = self._gateway.server_version
        answer.connected.protocol_version = min(wish.protocol_version, PROTOCOL_VERSION)
        answer.connected.max_message_size = self._settings.max_message_size
        answer.connected.feature_flags.supports_topic_watchers = True
        answer.connected.feature_flags.supports_auth_refresh = False
        answer.connected.feature_flags.supports_partial_producer = True
        self.send(answer)

    def _authenticate(self, method: str, data: bytes) -> None:
        access = self._parts.access
        if access.verifier is None:
            return
        from api.http.tokens import BadToken

        if method != "token" or not data:
            raise Refused(ServerError.AuthenticationError, "a token is needed: authentication method `token`")
        try:
            self._token = data.decode("latin-1").strip()
            role = access.verifier.role(self._token)
        except BadToken as error:
            raise Refused(ServerError.AuthenticationError, f"not authenticated: {error}") from error
        self._caller = Caller(self._caller.address, role)

    def _refuse_connection(self, error: Refused) -> None:
        self._gateway.log_throttle.warn(f"{self.address} is refused: {error.message}", "refused")
        self.send(failure((1 << 64) - 1, error))
        self.close()

    async def _allow(self, name: TopicName, *actions: AuthAction) -> None:
        """Raises RestException unless the client may do any of that on a topic."""
        access = self._parts.access
        if access.asks_sql(self._caller, actions):
            await self._pools[WaitsFor.DATABASE].run(
                access.require, self._caller, actions, name.tenant, name.namespace, name.topic
            )
        else:
            access.require(self._caller, actions, name.tenant, name.namespace, name.topic)

    def _ping(self, _command: BaseCommand, _: bytes) -> None:
        self.send(BaseCommand(type=BaseCommand.PONG, pong={}))

    def _pong(self, _command: BaseCommand, _: bytes) -> None:
        waiters, self._pong_waiters = self._pong_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Lookup

    def _lookup(self, command: BaseCommand, _: bytes) -> None:
        wish = command.lookup_topic
        self._begin(wish.request_id, self._looked_up(wish.request_id, wish.topic))

    async def _looked_up(self, request_id: int, topic: str) -> BaseCommand:
        answer = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
        response = answer.lookup_topic_response
        response.request_id = request_id
        try:
            name = parse_name(topic)
            await self._allow(name, AuthAction.PRODUCE, AuthAction.CONSUME)
            found = await self._pools[WaitsFor.DATABASE].run(
                lookup.look_up, self._parts, name, self._gateway.address, self._settings.auto_create
            )
            response.response = CommandLookupTopicResponse.Connect
            response.authoritative = True
            response.broker_service_url = found.url
            if found.tls_url:
                response.broker_service_url_tls = found.tls_url
        except Exception as error:
            refused = refusal(error)
            response.response = CommandLookupTopicResponse.Failed
            response.error, response.message = refused.error, refused.message
        return answer

    def _partitioned_metadata(self, command: BaseCommand, _: bytes) -> None:
        wish = command.partition_metadata
        self._begin(wish.request_id, self._counted(wish.request_id, wish.topic))

    async def _counted(self, request_id: int, topic: str) -> BaseCommand:
        answer = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
        response = answer.partition_metadata_response
        response.request_id = request_id
        try:
            name = parse_name(topic)
            await self._allow(name, AuthAction.PRODUCE, AuthAction.CONSUME)
            response.partitions = await self._pools[WaitsFor.DATABASE].run(lookup.partitions_of, self._parts, name)
            response.response = CommandPartitionedTopicMetadataResponse.Success
        except Exception as error:
            refused = refusal(error)
            response.response = CommandPartitionedTopicMetadataResponse.Failed
            response.error, response.message = refused.error, refused.message
        return answer

    def _list_topics(self, command: BaseCommand, _: bytes) -> None:
        wish = command.get_topics_of_namespace

        async def listed() -> BaseCommand:
            answer = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
            response = answer.get_topics_of_namespace_response
            response.request_id = wish.request_id
            await self._allow_namespace(wish.namespace)
            response.topics.extend(
                await self._pools[WaitsFor.DATABASE].run(lookup.topics_of, self._parts, wish.namespace, wish.mode)
            )
            return answer

        self._begin(wish.request_id, listed())

    async def _allow_namespace(self, namespace: str) -> None:
        tenant, _, rest = namespace.partition("/")
        access, actions = self._parts.access, (AuthAction.PRODUCE, AuthAction.CONSUME)
        if access.asks_sql(self._caller, actions):
            await self._pools[WaitsFor.DATABASE].run(access.require, self._caller, actions, tenant, rest)
        else:
            access.require(self._caller, actions, tenant, rest)

    def _watch(self, command: BaseCommand, _: bytes) -> None:
        wish = command.watch_topic_list

        async def watched() -> BaseCommand:
            await self._allow_namespace(wish.namespace)
            try:
                pattern = lookup.pattern_of(wish.topics_pattern)
            except re.error as error:
                raise Refused(ServerError.NotAllowedError, f"{wish.topics_pattern!r} is no pattern: {error}") from error
            names = await self._gateway.topics_of(wish.namespace)
            found = await self._pools[WaitsFor.PARSING].run(lookup.matching, pattern, names)
            self._watchers[wish.watcher_id] = (wish.namespace, pattern, frozenset(found))
            answer = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
            response = answer.watch_topic_list_success
            response.request_id, response.watcher_id = wish.request_id, wish.watcher_id
            response.topic.extend(found)
            response.topics_hash = lookup.hash_of(found)
            return answer

        self._begin(wish.request_id, watched())

    def _unwatch(self, command: BaseCommand, _: bytes) -> None:
        wish = command.watch_topic_list_close
        self._watchers.pop(wish.watcher_id, None)
        self.send(success(wish.request_id))

    async def _tell_watchers(self, topics_of: Callable[[str], Awaitable[list[str]]]) -> None:
        for watcher_id, (namespace, pattern, before) in list(self._watchers.items()):
            names = await topics_of(namespace)
            found = await self._pools[WaitsFor.PARSING].run(lookup.matching, pattern, names)
            now = frozenset(found)
            if now == before or watcher_id not in self._watchers:
                continue
            self._watchers[watcher_id] = (namespace, pattern, now)
            command = BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE)
            update = command.watch_topic_update
            update.watcher_id = watcher_id
            update.new_topics.extend(sorted(now - before))
            update.deleted_topics.extend(sorted(before - now))
            update.topics_hash = lookup.hash_of(found)
            self.send(command)

    # Producers

    def _producer(self, command: BaseCommand, _: bytes) -> None:
        self._begin(command.producer.request_id, self._add_producer(command.producer))

    async def _add_producer(self, wish: CommandProducer) -> BaseCommand | None:
        name = parse_name(wish.topic)
        await self._allow(name, AuthAction.PRODUCE)
        if wish.txn_enabled:
            raise Refused(ServerError.NotAllowedError, "transactions are not offered")
        there = self._producers.get(wish.producer_id)
        if there is not None and there.epoch >= wish.epoch:
            return self._producer_success(wish.request_id, there, None)
        topic = await self._gateway.topic(name, self._settings.auto_create)
        check_quota(topic)
        version = await self._schema_version(name, wish.schema if wish.HasField("schema") else None)
        if wish.initial_subscription_name:
            await self._gateway.ensure_subscription(topic, wish.initial_subscription_name)
        producer = Producer(self, topic, wish, wish.producer_name or self._gateway.new_producer_name())
        other = topic.producers.named(producer.name)
        if other is not None and other.connection is not self:
            # Its client may have lost the connection without our knowing; else it answers, and this one is refused.
            await other.connection.is_alive(self._settings.liveness_seconds)
        if self.is_closed:
            return None
        turn = topic.producers.add(producer, wish)
        self._producers[wish.producer_id] = producer
        topic.idle_since = None
        if turn is not None:
            self.send(self._producer_success(wish.request_id, producer, version, is_ready=False))
            await turn
        return self._producer_success(wish.request_id, producer, version)

    def _producer_success(
        self, request_id: int, producer: Producer, version: bytes | None, is_ready: bool = True
    ) -> BaseCommand:
        answer = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
        response = answer.producer_success
        response.request_id, response.producer_name = request_id, producer.name
        response.last_sequence_id = producer.topic.last_sequence_id(producer.name)
        response.schema_version = version or b""
        if producer.topic.producers.epoch is not None and producer.access_mode:
            response.topic_epoch = producer.topic.producers.epoch
        response.producer_ready = is_ready
        return answer

    async def _schema_version(self, name: TopicName, schema: Schema | None) -> bytes | None:
        """The version of a producer's schema, which is stored if it is new. Raises CompactorError where it does not
        fit."""
        if schema is None or not has_schema(schema):
            return None
        found = await self._pools[WaitsFor.DATABASE].run(self._gateway.schemas.ensure, name, schema_record(schema))
        return version_bytes(found)

    def _send(self, command: BaseCommand, entry: bytes) -> None:
        wish = command.send
        producer = self._producers.get(wish.producer_id)
        if producer is None or producer.is_closed:
            return  # it was told to come again, and will send this once more
        publish = Publish(producer, wish.sequence_id, wish.highest_sequence_id, wish.num_messages, entry)
        if wish.txnid_most_bits or wish.txnid_least_bits or wish.marker:
            producer.failed(publish, Refused(ServerError.NotAllowedError, "transactions and markers are not offered"))
        elif not entry:
            raise MalformedFrame("SEND without an entry")
        else:
            producer.topic.publishing.put(publish)

    def _close_producer(self, command: BaseCommand, _: bytes) -> None:
        wish = command.close_producer
        producer = self._producers.pop(wish.producer_id, None)
        if producer is None:
            self.send(success(wish.request_id))
            return

        async def closed() -> BaseCommand:
            await producer.topic.publishing.settled()
            producer.topic.remove_producer(producer)
            return success(wish.request_id)

        self._begin(wish.request_id, closed())

    # Consumers

    def _subscribe(self, command: BaseCommand, _: bytes) -> None:
        self._begin(command.subscribe.request_id, self._add_consumer(command.subscribe))

    async def _add_consumer(self, wish: CommandSubscribe) -> BaseCommand | None:
        name = parse_name(wish.topic)
        await self._allow(name, AuthAction.CONSUME)
        if wish.consumer_id in self._consumers:
            return success(wish.request_id)
        if wish.HasField("schema") and has_schema(wish.schema):
            await self._pools[WaitsFor.DATABASE].run(
                self._gateway.schemas.ensure_read, name, schema_record(wish.schema)
            )
        topic = await self._gateway.topic(name, wish.force_topic_creation and self._settings.auto_create)
        consumer = Consumer(self, wish, name.partition, self._gateway.clock.now_ms())
        if not consumer.name:
            consumer.name = self._gateway.new_consumer_name()
        there = topic.subscriptions.get(wish.subscription)
        if there is not None and wish.sub_type == CommandSubscribe.Exclusive:
            for other in list(there.consumers):
                if other.connection is not self:
                    await other.connection.is_alive(self._settings.liveness_seconds)
        subscription = await topic.subscribe(consumer, wish)
        if self.is_closed:
            await topic.remove_consumer(consumer)
            return None
        # The answer goes first: a client takes no message of a consumer that it does not know yet.
        self._consumers[wish.consumer_id] = consumer
        self.send(success(wish.request_id))
        assert subscription.dispatcher is not None
        subscription.dispatcher.add(consumer)
        return None

    def _flow(self, command: BaseCommand, _: bytes) -> None:
        consumer = self._consumers.get(command.flow.consumer_id)
        if consumer is not None:
            consumer.permits += command.flow.message_permits
            _wake(consumer)

    def _ack(self, command: BaseCommand, _: bytes) -> None:
        wish = command.ack
        consumer = self._consumers.get(wish.consumer_id)
        if consumer is None or consumer.subscription is None:
            return
        subscription = consumer.subscription

        refused = self._refused_ack(consumer, wish)
        rest: list[MessageIdData] = []
        is_cumulative = wish.ack_type == CommandAck.Cumulative
        try:
            if refused is not None:
                pass
            elif is_cumulative:
                rest = [data for data in wish.message_id[:1] if not subscription.acknowledge_to(consumer, data)]
            else:
                rest = subscription.acknowledge(consumer, wish.message_id)
        except Fenced as error:  # another one has moved or deleted the cursor
            refused = refusal(error)
            if subscription.cursor is not None:
                subscription.topic.spawn(subscription.reopen(subscription.cursor))
        if not rest and not wish.HasField("request_id"):
            return

        async def acknowledged() -> BaseCommand | None:
            error = refused
            try:
                if is_cumulative:
                    for data in rest:
                        await subscription.acknowledge_found_to(consumer, data)
                else:
                    await subscription.acknowledge_found(rest)
                if wish.HasField("request_id") and error is None:
                    await subscription.flush(for_receipt=True)
            except (CompactorError, RestException) as failed:
                error = refusal(failed)
                LOG.warning("an acknowledgement of %s failed: %s", subscription.name, error.message)
            if not wish.HasField("request_id"):
                return None
            answer = BaseCommand(type=BaseCommand.ACK_RESPONSE)
            answer.ack_response.consumer_id, answer.ack_response.request_id = wish.consumer_id, wish.request_id
            if error is not None:
                answer.ack_response.error, answer.ack_response.message = error.error, error.message
            return answer

        self._begin(wish.request_id, acknowledged())

    def _refused_ack(self, consumer: Consumer, wish: CommandAck) -> Refused | None:
        if wish.txnid_most_bits or wish.txnid_least_bits:
            return Refused(ServerError.NotAllowedError, "transactions are not offered")
        shared = consumer.sub_type in (CommandSubscribe.Shared, CommandSubscribe.KeyShared)
        if shared and wish.ack_type == CommandAck.Cumulative:
            return Refused(ServerError.NotAllowedError, "shared consumers acknowledge one by one")
        return None

    def _redeliver(self, command: BaseCommand, _: bytes) -> None:
        wish = command.redeliver_unacknowledged_messages
        consumer = self._consumers.get(wish.consumer_id)
        if consumer is None or consumer.subscription is None or consumer.subscription.dispatcher is None:
            return
        if wish.HasField("consumer_epoch"):
            consumer.epoch = wish.consumer_epoch
        dispatcher = consumer.subscription.dispatcher
        if wish.message_ids:
            found = (consumer.subscription.pending.get((item.ledger_id, item.entry_id)) for item in wish.message_ids)
            dispatcher.redeliver(consumer, [item for item in found if item is not None])
        else:
            dispatcher.redeliver_all(consumer)

    def _unsubscribe(self, command: BaseCommand, _: bytes) -> None:
        wish = command.unsubscribe
        consumer = self._consumer(wish.consumer_id, wish.request_id)
        if consumer is None or consumer.subscription is None:
            return
        subscription = consumer.subscription
        if len(subscription.consumers) > 1 and not wish.force:
            self.send(
                failure(
                    wish.request_id,
                    Refused(ServerError.MetadataError, f"{subscription.name} has other consumers: it stays"),
                )
            )
            return

        async def unsubscribed() -> BaseCommand:
            self._consumers.pop(wish.consumer_id, None)
            await subscription.topic.unsubscribe(subscription)
            return success(wish.request_id)

        self._begin(wish.request_id, unsubscribed())

    def _seek(self, command: BaseCommand, _: bytes) -> None:
        wish = command.seek
        consumer = self._consumer(wish.consumer_id, wish.request_id)
        if consumer is None or consumer.subscription is None:
            return
        subscription = consumer.subscription

        async def sought() -> BaseCommand:
            if wish.HasField("message_id"):
                place = message_id(wish.message_id)
                await subscription.seek(place if wish.message_id.ledger_id < LATEST.ledger_id else entry_of(place))
            else:
                await subscription.seek(wish.message_publish_time)
            return success(wish.request_id)

        self._begin(wish.request_id, sought())

    def _close_consumer(self, command: BaseCommand, _: bytes) -> None:
        wish = command.close_consumer
        consumer = self._consumers.pop(wish.consumer_id, None)

        async def closed() -> BaseCommand:
            if consumer is not None and consumer.subscription is not None:
                await consumer.subscription.topic.remove_consumer(consumer)
            return success(wish.request_id)

        self._begin(wish.request_id, closed())

    def _last_message_id(self, command: BaseCommand, _: bytes) -> None:
        wish = command.get_last_message_id
        consumer = self._consumer(wish.consumer_id, wish.request_id)
        if consumer is None or consumer.subscription is None:
            return
        subscription = consumer.subscription

        async def found() -> BaseCommand:
            topic = subscription.topic
            last = await self._pools[WaitsFor.STORE].run(topic.storage.last_message_id, subscription.read_compacted)
            answer = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
            response = answer.get_last_message_id_response
            response.request_id = wish.request_id
            response.last_message_id.CopyFrom(id_data(last, topic.name.partition))
            before = subscription.delivered_before
            if before is not None:
                response.consumer_mark_delete_position.CopyFrom(id_data(before))
                response.consumer_mark_delete_position.ClearField("batch_index")
            return answer

        self._begin(wish.request_id, found())

    def _consumer_stats(self, command: BaseCommand, _: bytes) -> None:
        wish = command.consumer_stats
        answer = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
        response: CommandConsumerStatsResponse = answer.consumer_stats_response
        response.request_id = wish.request_id
        consumer = self._consumers.get(wish.consumer_id)
        if consumer is None:
            response.error_code, response.error_message = ServerError.ConsumerNotFound, "there is no such consumer"
        else:
            response.msg_rate_out = consumer.delivered.per_second
            response.msg_throughput_out = consumer.delivered.bytes_per_second
            response.msg_rate_redeliver = consumer.redelivered.per_second
            response.message_ack_rate = consumer.acknowledged.per_second
            response.consumer_name = consumer.name
            response.available_permits = max(0, consumer.permits)
            response.unacked_messages = max(0, consumer.unacked)
            response.address = self.address
            response.type = CommandSubscribe.SubType.Name(consumer.sub_type)
        self.send(answer)

    def _consumer(self, consumer_id: int, request_id: int) -> Consumer | None:
        """The consumer; where there is none, the request is refused."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            missing = Refused(ServerError.ConsumerNotFound, f"this connection has no consumer {consumer_id}")
            self.send(failure(request_id, missing))
        return consumer

    # Schemas

    def _get_schema(self, command: BaseCommand, _: bytes) -> None:
        wish = command.get_schema

        async def found() -> BaseCommand:
            answer = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
            response = answer.get_schema_response
            response.request_id = wish.request_id
            try:
                name = parse_name(wish.topic)
                await self._allow(name, AuthAction.PRODUCE, AuthAction.CONSUME)
                version = version_of(wish.schema_version)
                schema = await self._pools[WaitsFor.DATABASE].run(self._gateway.schemas.find, name, version)
                if schema is None:
                    raise Refused(ServerError.TopicNotFound, f"Topic {name} has no schema")
                response.schema.CopyFrom(schema_data(schema))
                response.schema_version = version_bytes(schema)
            except Exception as error:
                refused = refusal(error)
                response.error_code, response.error_message = refused.error, refused.message
            return answer

        self._begin(wish.request_id, found())

    def _ensure_schema(self, command: BaseCommand, _: bytes) -> None:
        wish = command.get_or_create_schema

        async def ensured() -> BaseCommand:
            answer = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
            response = answer.get_or_create_schema_response
            response.request_id = wish.request_id
            try:
                name = parse_name(wish.topic)
                await self._allow(name, AuthAction.PRODUCE)
                wanted = schema_record(wish.schema)
                found = await self._pools[WaitsFor.DATABASE].run(self._gateway.schemas.ensure, name, wanted)
                response.schema_version = version_bytes(found)
            except Exception as error:
                refused = refusal(error)
                response.error_code, response.error_message = refused.error, refused.message
            return answer

        self._begin(wish.request_id, ensured())

    # What is not offered

    def _transaction(self, command: BaseCommand, _: bytes) -> None:
        request = getattr(command, _FIELDS[command.type])
        answer = BaseCommand(type=_NAMES[command.type + 1])
        response = getattr(answer, _ANSWERS[command.type])
        response.request_id = request.request_id
        response.error, response.message = ServerError.NotAllowedError, "transactions are not offered"
        self.send(answer)

    def _auth_response(self, command: BaseCommand, _: bytes) -> None:
        """Nothing was asked: connections end with their token, and clients connect again with a new one."""


def _wake(consumer: Consumer) -> None:
    if consumer.subscription is not None and consumer.subscription.dispatcher is not None:
        consumer.subscription.dispatcher.wake()


_HANDLERS: dict[int, _Handler] = {
    BaseCommand.CONNECT: Connection._connect,
    BaseCommand.PING: Connection._ping,
    BaseCommand.PONG: Connection._pong,
    BaseCommand.LOOKUP: Connection._lookup,
    BaseCommand.PARTITIONED_METADATA: Connection._partitioned_metadata,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: Connection._list_topics,
    BaseCommand.WATCH_TOPIC_LIST: Connection._watch,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: Connection._unwatch,
    BaseCommand.PRODUCER: Connection._producer,
    BaseCommand.SEND: Connection._send,
    BaseCommand.CLOSE_PRODUCER: Connection._close_producer,
    BaseCommand.SUBSCRIBE: Connection._subscribe,
    BaseCommand.FLOW: Connection._flow,
    BaseCommand.ACK: Connection._ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: Connection._redeliver,
    BaseCommand.UNSUBSCRIBE: Connection._unsubscribe,
    BaseCommand.SEEK: Connection._seek,
    BaseCommand.CLOSE_CONSUMER: Connection._close_consumer,
    BaseCommand.GET_LAST_MESSAGE_ID: Connection._last_message_id,
    BaseCommand.CONSUMER_STATS: Connection._consumer_stats,
    BaseCommand.GET_SCHEMA: Connection._get_schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: Connection._ensure_schema,
    BaseCommand.AUTH_RESPONSE: Connection._auth_response,
    BaseCommand.NEW_TXN: Connection._transaction,
    BaseCommand.ADD_PARTITION_TO_TXN: Connection._transaction,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: Connection._transaction,
    BaseCommand.END_TXN: Connection._transaction,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: Connection._transaction,
}
"""What a client may send, and who handles it."""
_NAMES = {number: name for name, number in BaseCommand.Type.items()}
_FIELDS = {
    BaseCommand.Type.Value(name): field
    for name, field in {
        **{name: name.lower() for name in _NAMES.values()},
        "PARTITIONED_METADATA": "partition_metadata",
        "LOOKUP": "lookup_topic",
    }.items()
}
_ANSWERS = {kind: _FIELDS[kind + 1] for kind in _FIELDS if kind + 1 in _FIELDS}
