"""Shared state of the connections and sessions of one server."""

from __future__ import annotations

import asyncio
import itertools
import logging
from importlib.metadata import version

from api import DISTRIBUTION
from api.broker.broker import Broker
from api.broker.threads import WaitsFor
from api.http.access import AuthorizationService
from api.observability.logs import LogThrottle
from api.pulsar.admission import Admission
from api.pulsar.lookup import LookupResult, topics_of
from api.pulsar.publish_budget import PublishBudget
from api.pulsar.receive_buffers import ReceiveBuffers
from api.pulsar.settings import PulsarSettings
from api.pulsar.topic_registry import TopicRegistry
from api.pulsar.turns import Turns

_RECEIVE_BYTES = 64 << 20
"""Memory for large frames that arrive at the same time."""


class ServerContext:
    """The shared state of one server. For one event loop."""

    def __init__(
        self, broker: Broker, access: AuthorizationService, settings: PulsarSettings, address: LookupResult
    ) -> None:
        """`settings`: for connections to come; they may be replaced. `address`: the URLs of this service."""
        self.broker = broker
        self.access = access
        self.settings = settings
        self.address = address
        self.clock = broker.environment.clock
        self.server_version = f"Compactor {version(DISTRIBUTION)}"
        self.log_throttle = LogThrottle(self.clock, logging.getLogger(__name__))
        self.turns = Turns(lambda work: asyncio.get_running_loop().call_soon(work))
        self.receive_buffers = ReceiveBuffers(_RECEIVE_BYTES, self.clock)
        self.publish_budget = PublishBudget(settings.max_all_pending_bytes)
        self.admission = Admission(
            broker.pools, broker.settings.limits_request_timeout_ms, settings.max_concurrent_lookups
        )
        self.topics = TopicRegistry(broker, settings, self.log_throttle)
        self._numbers = itertools.count()
        self._started_ms = self.clock.now_ms()

    def new_producer_name(self) -> str:
        """Return a name that no other producer has."""
        return f"{self.broker.settings.cluster_name}-{self._started_ms:x}-{next(self._numbers)}"

    def new_consumer_name(self) -> str:
        """Return a name that no other consumer has."""
        return f"{self._started_ms:x}-{next(self._numbers)}"

    async def topics_of(self, namespace: str) -> list[str]:
        """Return the names of a namespace's topics."""
        return await self.broker.pools[WaitsFor.DATABASE].run(topics_of, self.broker, namespace)
