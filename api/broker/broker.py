"""Broker: the state of one service process that operations on topics work with; it knows no door.

Operations are functions of a noun in modules of `api/broker`. One that needs only database, store and log takes an
`Environment`, so that the command line calls it without a broker. One that needs live state takes a `Broker`.
Importing this module loads none of the broker's parts: `api/broker/opening.py` makes them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api.background.maintenance_loop import MaintenanceLoop
    from api.broker.mirroring.view import MirrorsView
    from api.broker.ownership import TopicOwnership
    from api.broker.schema_processes import SchemaProcesses
    from api.broker.schemas import SchemaRegistry
    from api.broker.serving.connected_clients import ConnectedClientsView
    from api.broker.serving.logs import TopicLogs
    from api.broker.threads import Pools
    from api.settings.settings import Settings
    from compactor.scheduling.backlog import BacklogReader
    from compactor.scheduling.control_loop import ControlLoop
    from storage.environment import Environment
    from storage.log.lease_renewer import LeaseRenewer


@dataclass
class Broker:
    """The components of one service process: settings, storage, logs, thread pools and background loops.

    They run inside the context `running`.
    """

    settings: Settings
    environment: Environment
    """For requests: a call to the store times out before the request does."""
    long_work_environment: Environment
    """For long work: the store's own time-outs apply."""
    pools: Pools
    ownership: TopicOwnership
    leases: LeaseRenewer
    logs: TopicLogs
    """The open logs of the topics that this process writes."""
    control: ControlLoop
    maintenance: MaintenanceLoop
    schema_processes: SchemaProcesses
    schemas: SchemaRegistry
    clients: ConnectedClientsView
    """Clients of Pulsar's protocol."""
    mirrors: MirrorsView
    """Mirrors of Kafka's topics that this service runs."""
    backlogs: BacklogReader
    """For requests: they share its counts of open segments, so that each entry is read once."""
    verify_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a topic is verified: verification reads the whole topic, so the process verifies one at a time."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start all background work, compactions included; at the end of the context, finish active work and stop it.

        The order of stopping is the opposite of that of starting.
        """
        with ExitStack() as started:
            started.enter_context(self.running_without_compactions())
            self.control.start()
            started.callback(self.control.drain, self.settings.shutdown_grace_ms / 1000)
            yield

    @contextmanager
    def running_without_compactions(self) -> Iterator[None]:
        """Start the background work without compactions, for a process that only appends, rolls and seals; stop it at
        the end of the context."""
        with ExitStack() as started:
            started.enter_context(self.maintenance)
            started.enter_context(self.leases)
            started.callback(self.logs.drain_and_close)
            self.logs.start()
            for pool in self.pools.values():
                started.callback(pool.close)
            started.callback(self.schema_processes.close)
            yield
