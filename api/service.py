"""One process of the service: its parts, how they start and in which order they end.

Routes reach the parts through `Parts`; nothing here knows of HTTP but that. Everything is handed in, so a test makes a
service with a clock and an engine that it controls.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, HTTPException, Request

from api.background.control_loop_setup import control_loop
from api.background.maintenance_loop import MaintenanceLoop
from api.broker.schema_processes import SchemaProcesses
from api.broker.schemas import SchemaRegistry
from api.broker.serving.connected_clients import ConnectedClients
from api.broker.serving.logs import TopicLogs
from api.broker.threads import Pools, WaitsFor, make_pools
from api.components import open_for_writing, store_trial
from api.http.access import AuthorizationService
from api.http.long_polls import LongPolls
from api.http.owner_proxy import OwnerProxy
from api.http.single_flight import RunPoller, SingleFlight
from api.observability.metrics import AppendTotals, Metrics, MetricSources
from api.settings.settings import Settings
from compactor.scheduling.control_loop import ControlLoop
from storage.environment import Environment
from storage.errors import Unavailable
from storage.log.lease_renewer import LeaseRenewer
from storage.log.ledger_id_recovery import keep_lost_ids
from storage.log.log_space import LogRoom

if TYPE_CHECKING:
    from api.rest.brokers.health import HealthCheckResult

_OF_A_REQUEST = 0.8
"""The part of a request's time after which a store that does not answer is given up."""


@dataclass
class Service:
    """The parts of one service process."""

    settings: Settings
    environment: Environment
    """For requests: the store gives up before the request does."""
    patient: Environment
    """For long work."""
    producers: TopicLogs
    forwarding: OwnerProxy
    runs: RunPoller
    metrics: Metrics
    access: AuthorizationService
    control: ControlLoop
    maintenance: MaintenanceLoop
    pools: Pools
    polls: LongPolls
    readiness: SingleFlight[Mapping[str, HealthCheckResult]]
    scrapes: SingleFlight[bytes]
    """What is answered without a token is computed once for all who ask at once."""
    schemas: SchemaRegistry
    verifying: threading.Lock = field(default_factory=threading.Lock)
    """Held while a topic is verified: it reads all of it, so one at a time."""
    clients: ConnectedClients = field(default_factory=ConnectedClients)
    """Those of Pulsar's protocol."""
    not_ready: dict[str, str] = field(default_factory=dict)
    """By name of a check, the fault that was logged last."""


@contextmanager
def running(settings: Settings) -> Iterator[Service]:
    """A service with all its parts, started; stopped in the opposite order, after the work under way has finished."""
    with ExitStack() as parts:
        environment = parts.enter_context(open_for_writing(settings))
        environment = replace(environment, log=replace(environment.log, wake_sealer=lambda: maintenance.wake()))
        with suppress(Unavailable):  # then the maintenance tries it
            store_trial(settings, environment).require()
        _ = environment.log.uid  # made now: other services find by it who has a topic's newest messages
        with suppress(Unavailable):  # then it is done before this process gives out an id
            keep_lost_ids(environment.metadata, environment.log)
        access = AuthorizationService.of(
            settings, environment.metadata.tenancy, environment.clock
        )  # before it leads: a key may be bad
        control = control_loop(settings, environment)
        maintenance = parts.enter_context(MaintenanceLoop(settings, environment, lambda: control.leads))
        watch = parts.enter_context(LeaseRenewer(environment.metadata, clock=environment.clock))
        producers = TopicLogs(
            environment.clock, settings.producers_max, settings.producers_idle_ms, maintenance.wake, watch
        )
        parts.callback(producers.drain)
        producers.start()
        forwarding = OwnerProxy(
            environment.metadata,
            environment.clock,
            environment.log,
            settings.forwarding_timeout_ms,
            ca_file=settings.tls_ca,
            most=settings.limits_requests_at_once,
        )
        quick = environment.store.within(settings.limits_request_timeout_ms * _OF_A_REQUEST / 1000)
        if quick is not environment.store:
            parts.callback(quick.close)
        pools = make_pools(settings, environment.clock, (HTTPException,))
        for pool in pools.values():
            parts.callback(pool.close)
        runs = RunPoller(environment.metadata, environment.clock, pools[WaitsFor.DATABASE])
        sources = MetricSources(
            leads=lambda: control.leads,
            last_check=lambda: control.last_check,
            engine_error=lambda: control.engine_error,
            clients=lambda: clients,
            log_room=lambda: environment.log.room.room() if environment.log.room is not None else LogRoom(),
            appended=lambda: AppendTotals(producers.appended_entries, producers.appended_bytes, len(producers.topics)),
        )
        polls = LongPolls(
            environment.metadata,
            environment.log,
            environment.clock,
            pools,
            settings.limits_waiting_polls,
        )
        clients = ConnectedClients()
        metrics = Metrics(
            environment.metadata.metrics,
            environment.clock,
            settings.metrics_max_topics,
            sources,
            settings.cluster_name,
        )
        processes = SchemaProcesses()
        parts.callback(processes.close)
        control.start()
        parts.callback(control.drain, settings.shutdown_grace_ms / 1000)
        yield Service(
            settings,
            replace(environment, store=quick),
            environment,
            producers,
            forwarding,
            runs,
            metrics,
            access,
            control,
            maintenance,
            pools,
            polls,
            readiness=SingleFlight(pools[WaitsFor.STORE]),
            scrapes=SingleFlight(pools[WaitsFor.DATABASE]),
            schemas=SchemaRegistry(environment.metadata, processes),
            clients=clients,
        )


async def service_of(request: Request) -> Service:
    """The service that this request came to. Async, like all that routes depend on without waiting: no thread."""
    return cast(Service, request.app.state.service)


Parts = Annotated[Service, Depends(service_of)]
"""A route's parameter: the parts of the service."""
