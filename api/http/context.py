"""HTTP's own state of one process: what REST and the dashboard need besides the broker."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import Depends, Request

from api.broker.broker import Broker
from api.broker.threads import WaitsFor
from api.http.access import AuthorizationService
from api.http.long_polls import LongPolls
from api.http.metrics import Metrics
from api.http.owner_proxy import OwnerProxy
from api.http.single_flight import RunReportCache, SingleFlight


class HttpContext:
    """The state of one process that REST and the dashboard share: the broker, access control, the proxy to topic
    owners, waiting reads, cached run reports and metrics."""

    def __init__(self, broker: Broker, access: AuthorizationService) -> None:
        settings, pools = broker.settings, broker.pools
        metadata, clock, log = broker.environment.metadata, broker.environment.clock, broker.environment.log
        self.broker = broker
        self.access = access
        self.proxy = OwnerProxy(
            settings.forwarding_timeout_ms, ca_file=settings.tls_ca, connections=settings.limits_requests_at_once
        )
        self.polls = LongPolls(metadata, log, clock, pools, settings.limits_waiting_polls)
        self.runs = RunReportCache(metadata, clock, pools[WaitsFor.DATABASE])
        self.metrics = Metrics(broker)
        self.readiness: SingleFlight[Any] = SingleFlight(pools[WaitsFor.STORE])
        """The checks of readiness by name: computed once for all requests that wait, since it needs no token."""
        self.scrapes: SingleFlight[bytes] = SingleFlight(pools[WaitsFor.DATABASE])
        """The metrics as text: computed once for all requests that wait, since it needs no token."""
        self.failing_checks: dict[str, str] = {}
        """Faults that were logged last, by the name of the readiness check."""


def context_of(request: Request) -> HttpContext:
    """Return the HttpContext of the process that received a request."""
    return cast(HttpContext, request.app.state.context)


async def _context(request: Request) -> HttpContext:
    return context_of(request)


Context = Annotated[HttpContext, Depends(_context)]
"""A route's parameter: HTTP's state. Its dependency is async, so FastAPI calls it without a thread."""
