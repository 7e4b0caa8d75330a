"""The gateway: Pulsar's binary protocol on a port of its own, over the log, the readers and the cursors of REST.

It runs in the event loop of the HTTP server. What waits for database, log directory or store runs in the threads of
`api/broker/threads.py`. A topic is opened once for all its producers and consumers (serving/topic.py); once a second
cursors are flushed, topics that nobody uses are closed, and those that were lost tell their clients to look them up
again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from api import DISTRIBUTION
from api.broker.broker import Broker
from api.broker.refusals import NotTheOwner
from api.broker.serving.connected_clients import ClientCounts, TopicClients
from api.broker.serving.cursor_writer import CursorWriter
from api.broker.serving.deduplication import Deduplication
from api.broker.serving.live_subscriptions import ServedSubscription
from api.broker.serving.page_budget import PageBudget
from api.broker.serving.sequence_loads import SequenceLoads
from api.broker.serving.tail import Tail, TailBudget
from api.broker.serving.topic import PersistentTopic, TopicSettings
from api.broker.threads import WaitsFor
from api.http.access import AuthorizationService
from api.http.connections import Listener, most_connections
from api.http.problems import RestException
from api.observability.logs import LogThrottle
from api.pulsar import stats
from api.pulsar.admission import Admission
from api.pulsar.connection import Connection
from api.pulsar.errors import Refused
from api.pulsar.lookup import LookupResult, find_or_create, owner_of, topics_of
from api.pulsar.pulsar_api_pb2 import CommandGetTopicsOfNamespace, ServerError
from api.pulsar.receive_buffers import ReceiveBuffers
from api.pulsar.turns import Turns
from api.pulsar.watching import NamespaceWatch
from storage.errors import CompactorError, LeaseHeld, NotFound
from storage.log.segment import AppendResult
from storage.metadata.policy_store import BROKER
from storage.metadata.records import TopicRecord
from storage.model import TopicName
from storage.options.policies import TopicPolicies
from storage.topic import Topic

if TYPE_CHECKING:
    from api.broker.serving.logs import HeldLog
    from api.settings.settings import Settings
    from compactor.maintenance.backlog_limits import OverQuota

LOG = logging.getLogger(__name__)
TICK_SECONDS = 1.0
_BACKLOG = 2048
_KEPT_ALIVE_AT_ONCE = 64
_CLOSED_AT_ONCE = 8
_CONNECTION_BYTES = 32 << 20
"""Bytes of one connection that may wait to be appended."""
_RECEIVE_BYTES = 64 << 20
"""Large frames that arrive at once."""


@dataclass(frozen=True)
class PulsarSettings:
    """What the settings say of the protocol. Times are milliseconds, sizes bytes."""

    max_message_size: int
    """Until `PulsarServer.start` has read the broker's policies."""
    connect_timeout_ms: int
    keep_alive_ms: int
    max_concurrent_lookups: int
    liveness_seconds: float
    max_pending_publishes: int
    max_pending_bytes: int
    max_all_pending_bytes: int
    auto_create: bool
    tail_bytes: int
    page_bytes: int
    topic: TopicSettings
    topic_idle_ms: int

    @classmethod
    def of(cls, settings: Settings) -> PulsarSettings:
        """As they are set."""
        return cls(
            max_message_size=TopicPolicies.max_message_bytes,
            connect_timeout_ms=settings.limits_header_timeout_ms,
            keep_alive_ms=settings.broker_keep_alive_interval_ms,
            max_concurrent_lookups=settings.broker_max_concurrent_lookups,
            liveness_seconds=5.0,
            max_pending_publishes=settings.broker_max_pending_publishes,
            max_pending_bytes=min(_CONNECTION_BYTES, settings.broker_publish_buffer_bytes),
            max_all_pending_bytes=settings.broker_publish_buffer_bytes,
            auto_create=settings.broker_auto_topic_creation,
            tail_bytes=settings.broker_cache_bytes,
            page_bytes=settings.broker_page_bytes,
            topic=TopicSettings(settings.broker_max_unacked_messages),
            topic_idle_ms=settings.producers_idle_ms,
        )


class PulsarServer:
    """All connections and topics of one service. For one event loop; `start` and `close` are called in it."""

    def __init__(
        self,
        broker: Broker,
        access: AuthorizationService,
        settings: PulsarSettings,
        address: LookupResult,
        sockets: Sequence[tuple[Listener, ssl.SSLContext | None]],
    ) -> None:
        """`sockets`: bound, and how they speak TLS, or that they do not."""
        self._sockets = sockets
        self.broker = broker
        self.access = access
        self.settings = settings
        self.address = address
        self.clock = broker.environment.clock
        self.server_version = f"Compactor {version(DISTRIBUTION)}"
        self.log_throttle = LogThrottle(self.clock, LOG)
        self.turns = Turns(lambda work: asyncio.get_running_loop().call_soon(work))
        self.receive_buffers = ReceiveBuffers(_RECEIVE_BYTES, self.clock)
        self.admission = Admission(
            broker.pools, broker.settings.limits_request_timeout_ms, settings.max_concurrent_lookups
        )
        self._watch = NamespaceWatch(self._topics_or_none, broker.pools[WaitsFor.PARSING], self.turns.now)
        self._connections: set[Connection] = set()
        self._unconnected: dict[Connection, None] = {}
        """Without CONNECT until now, the oldest first."""
        self._topics: dict[TopicName, PersistentTopic] = {}
        self._by_id: dict[int, PersistentTopic] = {}
        self._opening: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        """While a topic is opened or closed; gone with the last that waits for it."""
        self._tails = TailBudget(settings.tail_bytes)
        self._pages = PageBudget(settings.page_bytes)
        self._cursor_writer = CursorWriter(broker.environment.metadata, broker.pools[WaitsFor.DATABASE], TICK_SECONDS)
        self._ticked_ms = self.clock.now_ms()
        self._sequence_loads = SequenceLoads(broker.pools[WaitsFor.SEQUENCES].run_to_end)
        self._servers: list[asyncio.Server] = []
        self._loops: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._started_ms = self.clock.now_ms()
        self._published_bytes = 0
        self._held_back: set[Connection] = set()
        self._ends = False

    @property
    def tls_contexts(self) -> list[ssl.SSLContext]:
        """How its sockets speak TLS."""
        return [context for _, context in self._sockets if context is not None]

    async def start(self) -> None:
        """Answer on the sockets."""
        try:
            await self._read_limits()
        except (CompactorError, RestException) as error:  # it is read again with each keep-alive interval
            LOG.warning("the broker's limit of messages is not known yet, and is taken as the default: %s", error)
        loop = asyncio.get_running_loop()
        self.broker.logs.on_appended = partial(self._appended, loop)
        clients = self.broker.clients
        clients.of_topic, clients.counts, clients.connections = self._clients_of, self._client_counts, self._connected
        clients.subscription = partial(self._live_subscription, loop)
        clients.truncated = partial(self._truncated, loop)
        most = most_connections(self.broker.settings.broker_max_connections, max(1, len(self._sockets)))
        for item, context in self._sockets:
            item.limit(most, self.log_throttle, plain=False)
            seconds = self.broker.settings.limits_header_timeout_ms / 1000 if context is not None else None
            self._servers.append(
                await loop.create_server(
                    partial(Connection, self),
                    sock=item,
                    ssl=context,
                    backlog=_BACKLOG,
                    ssl_handshake_timeout=seconds,
                )
            )
        for seconds, work in (
            (TICK_SECONDS, self._tick_topics),
            (TICK_SECONDS, self._notify_watchers),
            (TICK_SECONDS, self._end_slow),
            (self.settings.keep_alive_ms / 1000, self._keep_alive),
            (self.settings.keep_alive_ms / 1000, self._read_limits),
        ):
            self._loops.append(asyncio.create_task(self._repeat(seconds, work), name=work.__name__))
        self._loops.append(asyncio.create_task(self._cursor_writer.run(), name="cursor writer"))

    async def close(self) -> None:
        """Take no more connections; flush, and tell clients to go elsewhere."""
        self._ends = True
        for server in self._servers:
            server.close()
        for task in self._loops:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        while some := list(itertools.islice(self._topics.values(), _CLOSED_AT_ONCE)):
            await asyncio.gather(*map(self._close_topic, some))
        for connection in list(self._connections):
            connection.close()
        self.broker.logs.on_appended = lambda _topic, _entries: None

    def _clients_of(self, name: TopicName) -> TopicClients:
        topic = self._topics.get(name)
        return TopicClients() if topic is None else stats.topic_clients(topic)

    def _live_subscription(
        self, loop: asyncio.AbstractEventLoop, record: TopicRecord, name: str
    ) -> ServedSubscription | None:
        """Return a durable subscription whose state is here. Called by threads."""
        topic = self._by_id.get(record.id)
        subscription = None if topic is None or topic.is_lost else topic.subscriptions.get(name)
        cursor = None if subscription is None else subscription.position.cursor
        if topic is None or subscription is None or cursor is None:
            return None
        return ServedSubscription(loop, topic, subscription, cursor)

    def _truncated(self, loop: asyncio.AbstractEventLoop, record: TopicRecord) -> None:
        """Called by threads."""

        def restart() -> None:
            topic = self._by_id.get(record.id)
            if topic is not None:
                topic.truncated()

        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(restart)

    def _client_counts(self) -> Iterator[tuple[TopicName, ClientCounts]]:
        return stats.counts(self.topics)

    def _connected(self) -> int:
        return len(self._connections)

    # Connections

    def take(self, connection: Connection) -> bool:
        """Note a connection; False if the service ends."""
        if not self._ends:
            self._connections.add(connection)
            self._unconnected[connection] = None
        return not self._ends

    def connected(self, connection: Connection) -> None:
        """Note that a connection has sent a CONNECT that holds."""
        self._unconnected.pop(connection, None)
        if connection.transport is not None:
            for listener, _ in self._sockets:
                listener.mark_busy(connection.transport)

    def drop(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._unconnected.pop(connection, None)
        self._held_back.discard(connection)

    def publishing(self, connection: Connection, size: int) -> bool:
        """So many more bytes of a connection wait to be appended; whether those of all are too many."""
        self._published_bytes += size
        is_full = self._published_bytes >= self.settings.max_all_pending_bytes
        if is_full:
            self._held_back.add(connection)
        elif self._held_back and self._published_bytes <= self.settings.max_all_pending_bytes // 2:
            held_back, self._held_back = self._held_back, set()
            for item in held_back:
                item.resume()
        return is_full

    def new_producer_name(self) -> str:
        """A name that no other producer has."""
        return f"{self.broker.settings.cluster_name}-{self._started_ms:x}-{next(self._numbers)}"

    def new_consumer_name(self) -> str:
        """A name that no other consumer has."""
        return f"{self._started_ms:x}-{next(self._numbers)}"

    # Topics

    @property
    def topics(self) -> Iterator[PersistentTopic]:
        """Those that are open."""
        return iter(list(self._topics.values()))

    async def topic(self, name: TopicName, create: bool, audit: Callable[[str, TopicName], None]) -> PersistentTopic:
        """The topic, opened if need be; `audit` notes that it was created. Raises Refused, CompactorError and
        RestException, also where it is another service's."""
        async with self._opening.setdefault(name, asyncio.Lock()):
            if self._ends:
                raise Refused(ServerError.ServiceNotReady, f"the service that had {name} ends: look it up again")
            found = self._topics.get(name)
            if found is not None and (found.is_lost or await self._is_changed(found)):
                await self._close_topic(found)
                found = None
            if found is None:
                found = await self._open(name, create, audit)
                if self._ends:
                    await found.close()
                self._topics[name] = found
                self._by_id[found.record.id] = found
            found.idle_since = None if found.idle_since is None else self.clock.now_ms()
            return found

    async def _is_changed(self, topic: PersistentTopic) -> bool:
        """Whether it was opened with another policy than it has now."""
        wanted = await self.broker.pools[WaitsFor.DATABASE].run(self._deduplicates, topic.record)
        return topic.is_deduplicating != wanted

    async def _open(self, name: TopicName, create: bool, audit: Callable[[str, TopicName], None]) -> PersistentTopic:
        pools = self.broker.pools
        record, is_new = await pools[WaitsFor.DATABASE].run(find_or_create, self.broker, name, create)
        if is_new:
            audit("create_topic", name)
        storage = Topic(self.broker.environment, record)
        held = await pools[WaitsFor.LOG].run(self._hold, storage)
        try:
            deduplicates, epoch = await pools[WaitsFor.DATABASE].run(self._producer_state, record)
        except BaseException:
            await pools[WaitsFor.LOG].finish(held.release)
            raise
        return PersistentTopic(
            storage,
            held,
            self.broker.environment.metadata,
            self.clock,
            pools,
            self.settings.topic,
            Tail(self._tails),
            self._cursor_writer,
            self._pages,
            self._deduplication(storage) if deduplicates else None,
            self._sequence_loads,
            epoch,
            partial(self._over_quota, record),
            self._lost,
            self.log_throttle,
        )

    def _hold(self, storage: Topic) -> HeldLog:
        """The topic's log, which makes it ours. Raises RestException (503) if another process has it."""
        try:
            if owner_of(self.broker, storage.record) is None:
                return self.broker.logs.hold(storage)
        except LeaseHeld as error:
            with suppress(NotTheOwner):
                self.broker.ownership.check_for_writing(storage.record)
            self.log_throttle.warn(f"{storage.name} cannot be served here now: {error}", "held")
            reason = f"{storage.name} cannot be served here: another process still has its log open: look it up again"
            raise RestException(503, reason) from error
        raise RestException(503, f"{storage.name} is served by another service: look it up again")

    def _producer_state(self, record: TopicRecord) -> tuple[bool, int | None]:
        """Return whether the topic deduplicates, and the epoch of its last exclusive producer."""
        metadata, deduplicates = self.broker.environment.metadata, self._deduplicates(record)
        if not deduplicates:  # switched on again, it begins at the topic's end
            metadata.producer_sequences.delete(record.id)
        return deduplicates, metadata.topics.producer_epoch(record.id)

    def _deduplication(self, storage: Topic) -> Deduplication:
        most = self.broker.settings.broker_deduplication_max_producers
        return Deduplication(self.broker.environment.metadata, storage, most)

    def _deduplicates(self, record: TopicRecord) -> bool:
        return self.broker.environment.metadata.policies.effective(record).deduplication_enabled

    def _over_quota(self, record: TopicRecord) -> OverQuota | None:
        return self.broker.maintenance.maintenance.over_quota.get(record.id)

    def _appended(
        self, loop: asyncio.AbstractEventLoop, record: TopicRecord, entries: Sequence[tuple[bytes, AppendResult]]
    ) -> None:
        """By the appending thread: let consumers know."""
        if record.id in self._by_id:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._take_appended, record.id, entries)

    def _take_appended(self, topic_id: int, entries: Sequence[tuple[bytes, AppendResult]]) -> None:
        topic = self._by_id.get(topic_id)
        if topic is not None:
            topic.tail.append(entries)
            topic.published.add(sum(result.messages for _, result in entries), sum(len(data) for data, _ in entries))
            topic.appended()

    def _lost(self, topic: PersistentTopic) -> None:
        if self._topics.get(topic.name) is topic:
            self._spawn(self._close_topic(topic))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close_topic(self, topic: PersistentTopic) -> None:
        if self._topics.get(topic.name) is not topic:
            return
        del self._topics[topic.name]
        self._by_id.pop(topic.record.id, None)
        try:
            await topic.close()
        except (CompactorError, RestException) as error:
            LOG.warning("%s is closed, but not all is written down: %s", topic.name, error)

    async def topics_of(self, namespace: str) -> list[str]:
        """The topics of a namespace."""
        return await self.broker.pools[WaitsFor.DATABASE].run(
            topics_of, self.broker, namespace, CommandGetTopicsOfNamespace.Persistent
        )

    # Again and again

    async def _repeat(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Each in a task of its own, so that one that waits holds up no other."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except (CompactorError, RestException) as error:
                self.log_throttle.warn(f"the gateway waits: {error}", work.__name__)
            except Exception:
                LOG.exception("the gateway's %s failed", work.__name__)

    async def _notify_watchers(self) -> None:
        await self._watch.notify([item for item in self._connections if len(item.watchers)])

    async def _topics_or_none(self, namespace: str) -> list[str]:
        """List a namespace; no topics if it was deleted, and its topics with it."""
        try:
            return await self.topics_of(namespace)
        except NotFound:
            return []

    async def _tick_topics(self) -> None:
        """Take rates; begin to close topics that are lost or idle. It waits for none of them."""
        now, before = self.clock.now_ms(), self._ticked_ms
        self._ticked_ms = now
        seconds = max(now - before, 1) / 1000  # the loop may have been late
        for topic in list(self._topics.values()):
            if topic.is_lost:
                self._lost(topic)
            elif topic.idle_since is not None and now - topic.idle_since >= self.settings.topic_idle_ms:
                self._spawn(self._close_idle(topic))
            else:
                topic.tick(seconds)

    async def _close_idle(self, topic: PersistentTopic) -> None:
        async with self._opening.setdefault(topic.name, asyncio.Lock()):
            if topic.idle_since is not None:
                await self._close_topic(topic)

    async def _read_limits(self) -> None:
        """Take the broker's limit of messages from its policies, for the connections to come."""
        policies = self.broker.environment.metadata.policies
        resolution = await self.broker.pools[WaitsFor.DATABASE].run(policies.resolved_around, BROKER)
        self.settings = replace(self.settings, max_message_size=resolution.policies.max_message_bytes)

    async def _end_slow(self) -> None:
        """End connections that do not send CONNECT, and those whose large frame stalls."""
        for connection in list(self._unconnected):
            if not connection.is_late():
                break
            connection.close()
        self.receive_buffers.end_stalled()

    async def _keep_alive(self) -> None:
        if self.access.keys is not None:
            await self.access.keys.keep_up()
        for number, connection in enumerate(list(self._connections), 1):
            connection.keep_alive()
            if not number % _KEPT_ALIVE_AT_ONCE:  # each verifies a token
                await asyncio.sleep(0)


def open_server(
    broker: Broker, access: AuthorizationService, plain: Listener | None, tls: Listener | None
) -> PulsarServer:
    """The gateway of a service, on sockets that are bound; it is not started."""
    settings = broker.settings
    sockets: list[tuple[Listener, ssl.SSLContext | None]] = [] if plain is None else [(plain, None)]
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(settings.tls_certificate, settings.tls_key or None)
        sockets.append((tls, context))
    address = LookupResult(settings.broker_service_url or "", settings.broker_service_url_tls or "")
    return PulsarServer(broker, access, PulsarSettings.of(settings), address, sockets)
