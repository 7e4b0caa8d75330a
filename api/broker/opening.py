"""Opening of a broker from settings: its state is made here, and started by `Broker.running`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from api.background.control_loop_setup import control_loop
from api.background.maintenance_loop import MaintenanceLoop
from api.broker.broker import Broker
from api.broker.mirroring.view import MirrorsView
from api.broker.ownership import TopicOwnership
from api.broker.schema_processes import SchemaProcesses
from api.broker.schemas import SchemaRegistry
from api.broker.serving.connected_clients import ConnectedClientsView
from api.broker.serving.logs import TopicLogs
from api.broker.threads import make_pools
from api.components import open_for_writing, store_trial
from api.settings.settings import Settings
from compactor.scheduling.backlog import BacklogReader
from storage.errors import Unavailable
from storage.log.lease_renewer import LeaseRenewer
from storage.log.ledger_id_recovery import reserve_lost_ids

_STORE_SHARE = 0.8
"""The share of a request's time after which a call to the store times out."""


@contextmanager
def open_broker(settings: Settings, expected_errors: tuple[type[Exception], ...] = ()) -> Iterator[Broker]:
    """Create the broker of a process from settings, without starting its background work; close it at the end.

    `expected_errors`: the errors of calls that are logged without a traceback. Raises Misconfigured, Unavailable.
    """
    with open_for_writing(settings) as environment:
        log = replace(
            environment.log,
            wake_sealer=lambda: maintenance.wake_sealer(),
            roll_open=lambda topic_id, wait_ms: leases.roll(topic_id, wait_ms),
            has_preparation=settings.maintenance_prepared_bytes > 0,
        )
        environment = replace(environment, log=log)
        metadata, clock = environment.metadata, environment.clock
        with suppress(Unavailable):  # then the maintenance tries it
            store_trial(settings, environment).try_unless_passed()
        _ = environment.log.uid  # made now: other services find by it who has a topic's newest messages
        with suppress(Unavailable):  # then it is done before this process gives out an id
            reserve_lost_ids(metadata, environment.log)
        control = control_loop(settings, environment)
        clients = ConnectedClientsView()
        maintenance = MaintenanceLoop(
            settings, environment, lambda: control.is_leader, lambda topic, name: clients.subscription(topic, name)
        )
        leases = LeaseRenewer(metadata, clock=clock)
        schema_processes = SchemaProcesses()
        quick_store = environment.store.with_timeout(settings.limits_request_timeout_ms * _STORE_SHARE / 1000)
        logs = TopicLogs(
            clock,
            settings.producers_max,
            settings.producers_idle_ms,
            maintenance.wake_sealer,
            leases,
            maintenance.report_log_growth if settings.maintenance_prepared_bytes else None,
            settings.limits_bodies_bytes,
        )
        try:
            yield Broker(
                settings=settings,
                environment=replace(environment, store=quick_store),
                long_work_environment=environment,
                pools=make_pools(settings, clock, expected_errors),
                ownership=TopicOwnership(metadata, clock, environment.log, logs.is_open),
                leases=leases,
                logs=logs,
                control=control,
                maintenance=maintenance,
                schema_processes=schema_processes,
                schemas=SchemaRegistry(metadata, schema_processes),
                clients=clients,
                mirrors=MirrorsView(),
                backlogs=BacklogReader(metadata, environment.log),
            )
        finally:
            if quick_store is not environment.store:
                quick_store.close()
