"""Shared state of the connections and sessions of one server."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping

from api import version
from api.broker.broker import Broker
from api.broker.serving.topic_registry import TopicRegistry
from api.broker.threads import WaitsFor, Workers
from api.http.access import AuthorizationService
from api.observability.logs import LogThrottle
from api.pulsar.admission import Admission
from api.pulsar.publish_budget import PublishBudget
from api.pulsar.receive_buffers import ReceiveBuffers
from api.pulsar.turns import TurnQueue
from storage.options.policies import TopicPolicies

_RECEIVE_BYTES = 64 << 20
"""Memory for large frames that arrive at the same time."""
READ_BYTES = 256 << 10
"""The bytes that are read from a socket at once."""


class ServerContext:
    """The state that all connections and sessions of one server share. For one event loop."""

    def __init__(self, broker: Broker, access: AuthorizationService) -> None:
        self.broker = broker
        self.access = access
        self.settings = settings = broker.settings
        self.max_message_size = TopicPolicies.max_message_bytes
        """For connections to come. The server reads it from the broker's policies."""
        self.clock = broker.environment.clock
        self.server_version = f"Compactor {version()}"
        self.log_throttle = LogThrottle(self.clock, logging.getLogger(__name__))
        self.turns = TurnQueue(lambda work: asyncio.get_running_loop().call_soon(work))
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        """The bytes that a connection has just read: of one at a time, which copies what it keeps."""
        self.receive_buffers = ReceiveBuffers(_RECEIVE_BYTES, self.clock)
        self.publish_budget = PublishBudget(settings.broker_publish_buffer_bytes)
        self.admission = Admission(
            broker.pools, settings.limits_request_timeout_ms, settings.broker_max_concurrent_lookups
        )
        self.topics = TopicRegistry(broker, self.log_throttle)
        self._numbers = itertools.count()
        self._started_ms = self.clock.now_ms()

    def new_producer_name(self) -> str:
        """Return a name that no other producer has."""
        return f"{self.settings.cluster_name}-{self._started_ms:x}-{next(self._numbers)}"

    def new_consumer_name(self) -> str:
        """Return a name that no other consumer has."""
        return f"{self._started_ms:x}-{next(self._numbers)}"

    async def topics_of(self, namespace: str, threads: Mapping[WaitsFor, Workers] | None = None) -> list[str]:
        """Return the full names of a namespace's topics, partitions one by one; none for a namespace that does not
        exist.

        `threads`: the threads that read the database; None: those of the service.
        """
        return await (threads or self.broker.pools)[WaitsFor.DATABASE].run(self._read_topic_names, namespace)

    def _read_topic_names(self, namespace: str) -> list[str]:
        return [str(record.name) for record in self.broker.environment.metadata.topics.in_namespace(namespace)]
