"""HTTP's own state of one process: what REST and the dashboard need besides the broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from fastapi import Depends, Request

from api.broker.broker import Broker
from api.broker.threads import WaitsFor
from api.http.access import AuthorizationService
from api.http.long_polls import LongPolls
from api.http.owner_proxy import OwnerProxy
from api.http.single_flight import RunPoller, SingleFlight, TopicsPoller
from api.observability.metrics import AppendTotals, Metrics, MetricSources
from storage.log.log_space import LogRoom


@dataclass
class HttpContext:
    """HTTP's state over a broker."""

    broker: Broker
    access: AuthorizationService
    proxy: OwnerProxy
    polls: LongPolls
    runs: RunPoller
    topics: TopicsPoller
    metrics: Metrics
    readiness: SingleFlight[Any]
    """The checks of readiness by name: computed once for all requests that wait, since it needs no token."""
    scrapes: SingleFlight[bytes]
    """The metrics as text: computed once for all requests that wait, since it needs no token."""
    failing_checks: dict[str, str] = field(default_factory=dict)
    """By name of a readiness check, the fault that was logged last."""


def http_context(broker: Broker, access: AuthorizationService) -> HttpContext:
    """Return HTTP's state over a broker."""
    settings, environment = broker.settings, broker.environment
    metadata, clock, log = environment.metadata, environment.clock, environment.log
    control, logs = broker.control, broker.logs
    sources = MetricSources(
        leads=lambda: control.leads,
        last_check=lambda: control.last_check,
        engine_error=lambda: control.engine_error,
        clients=lambda: broker.clients,
        log_room=lambda: log.room.room() if log.room is not None else LogRoom(),
        appended=lambda: AppendTotals(logs.appended_entries, logs.appended_bytes, len(logs.topics)),
    )
    return HttpContext(
        broker,
        access,
        OwnerProxy(
            settings.forwarding_timeout_ms, ca_file=settings.tls_ca, connections=settings.limits_requests_at_once
        ),
        LongPolls(metadata, log, clock, broker.pools, settings.limits_waiting_polls),
        RunPoller(metadata, clock, broker.pools[WaitsFor.DATABASE]),
        TopicsPoller(metadata, log, clock, broker.pools[WaitsFor.DATABASE]),
        Metrics(metadata.metrics, clock, settings.metrics_max_topics, sources, settings.cluster_name),
        readiness=SingleFlight(broker.pools[WaitsFor.STORE]),
        scrapes=SingleFlight(broker.pools[WaitsFor.DATABASE]),
    )


def context_of(request: Request) -> HttpContext:
    """Return HTTP's state of the process that received a request."""
    return cast(HttpContext, request.app.state.context)


async def _context(request: Request) -> HttpContext:
    return context_of(request)


Context = Annotated[HttpContext, Depends(_context)]
"""A route's parameter: HTTP's state. Its dependency is async, so FastAPI calls it without a thread."""
