"""The FastAPI application: routes, errors and pages around a running service.

Where to add: a group of routes → a module in `api/rest` with a `router`, and a line in `ROUTERS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from api import version
from api.broker.threads import WaitsFor
from api.dashboard import DASHBOARD_ROUTERS, rendering
from api.dashboard.lost_objects import LossCache
from api.dashboard.topic_sizes import TopicSizesCache
from api.http import openapi, partition_fan_out, problems
from api.http.access import AuthenticationMiddleware
from api.http.audit import AuditMiddleware
from api.http.context import HttpContext
from api.http.limits import RequestLimitMiddleware
from api.http.paths import EncodedSlashMiddleware
from api.http.request_metrics import RequestMetricsMiddleware
from api.http.router import Routes
from api.rest.brokers import broker_info, broker_stats, health, unsupported_features
from api.rest.compaction import compacted, garbage, runs, trigger, trim
from api.rest.messages import produce, read, single_messages
from api.rest.mirrors import mirrors
from api.rest.policies import named_policies, pulsar_policies
from api.rest.subscriptions import backlog, cursors
from api.rest.tables import iceberg_catalog
from api.rest.tenancy import namespaces, permissions, tenants
from api.rest.topics import internal_stats, lifecycle, lookup, non_persistent, partitioned, schemas, stats

ROUTERS: tuple[Routes, ...] = (
    health.router,
    stats.router,  # routes are matched in order, so the most frequent ones come first
    internal_stats.router,
    trigger.router,
    tenants.router,
    namespaces.router,
    permissions.router,
    lifecycle.router,
    partitioned.router,
    *pulsar_policies.ROUTERS,
    lookup.router,
    schemas.router,
    produce.router,
    read.router,
    single_messages.router,
    cursors.router,
    backlog.router,
    runs.router,
    compacted.router,
    named_policies.router,
    trim.router,
    garbage.router,
    mirrors.router,
    iceberg_catalog.router,
    broker_stats.router,
    unsupported_features.router,
    broker_info.router,  # after policies: its `/brokers/{cluster}` matches all that no other route matches
    non_persistent.router,
)


def make_app(context: HttpContext) -> FastAPI:
    """Return the FastAPI application over a running broker. The application neither starts nor stops the broker."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await context.proxy.close()

    app: FastAPI = FastAPIOffline(
        title="Compactor",
        version=version(),
        docs_url="/docs",
        redoc_url=None,
        static_url="/docs-static",
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect precedes the check of the token, and repeats the caller's Host header
    )
    broker = context.broker
    app.state.broker = broker
    app.state.context = context
    clock = broker.environment.clock
    routers = (*ROUTERS, *DASHBOARD_ROUTERS) if broker.settings.dashboard else ROUTERS
    app.state.routers = routers
    app.state.access = context.access
    problems.install_error_handlers(app)
    partition_fan_out.install_owner_forwarding(app)
    openapi.install_openapi(app)
    rendering.install_error_pages(app)
    iceberg_catalog.install_catalog_error_handlers(app)
    app.state.topic_sizes = TopicSizesCache(
        broker.environment.metadata, broker.backlogs, clock, broker.pools[WaitsFor.DATABASE]
    )
    app.state.loss_cache = LossCache()
    # The last one is the outermost: the order is path, authentication, audit, metrics, limits.
    app.add_middleware(RequestLimitMiddleware, settings=broker.settings, clock=clock)
    app.add_middleware(RequestMetricsMiddleware, metrics=context.metrics)
    app.add_middleware(AuditMiddleware, clock=clock)
    app.add_middleware(AuthenticationMiddleware, access=app.state.access)
    is_page = rendering.is_dashboard_path if broker.settings.dashboard else lambda _: False
    app.add_middleware(EncodedSlashMiddleware, is_page=is_page)
    for router in routers:
        app.router.routes.extend(router.routes)
    return app
