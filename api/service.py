"""One process of the service: its parts, how they start and in which order they end.

Routes reach the parts through `Parts`; nothing here knows of HTTP but that. Everything is handed in, so a test makes a
service of its own with a clock and an engine that it controls.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request

from api.control import control_loop
from api.forwarding import Forwarding
from api.metrics import Appended, Metrics, Sources
from api.producers import Producers
from api.run_looks import RunLooks
from api.settings import Settings
from api.sharing import Shared
from api.upkeep import Upkeep
from api.wiring import Components, open_components
from compactor.control_loop import ControlLoop
from storage.log.watch import LogWatch

if TYPE_CHECKING:
    from api.admin.health import Check


@dataclass
class Service:
    """The parts of one service process."""

    settings: Settings
    components: Components
    producers: Producers
    forwarding: Forwarding
    looks: RunLooks
    metrics: Metrics
    control: ControlLoop
    maintenance: Upkeep
    verifying: threading.Lock = field(default_factory=threading.Lock)
    """Held while a topic is verified: it reads all of it, so one at a time."""
    readiness: Shared[Mapping[str, Check]] = field(default_factory=Shared)
    not_ready: dict[str, str] = field(default_factory=dict)
    """By what was looked at, what is wrong with it, as it was logged last."""
    scrapes: Shared[bytes] = field(default_factory=Shared)
    """What is told without a token is made for all who ask at once."""


@contextmanager
def running(settings: Settings) -> Iterator[Service]:
    """A service with all its parts, started; ended in the opposite order, when what goes on has been let finish."""
    with ExitStack() as parts:
        components = parts.enter_context(open_components(settings))
        components = replace(components, log=replace(components.log, wake_sealer=lambda: maintenance.wake()))
        control = control_loop(settings, components)
        maintenance = parts.enter_context(Upkeep(settings, components, lambda: control.leads))
        watch = parts.enter_context(LogWatch(components.metadata))
        producers = Producers(
            components.clock, settings.producers_max, settings.producers_idle_ms, maintenance.wake, watch
        )
        parts.callback(producers.drain)
        producers.start()
        forwarding = Forwarding(components.metadata, components.clock, components.log, settings.forwarding_timeout_ms)
        looks = RunLooks(components.metadata, components.clock)
        sources = Sources(
            leads=lambda: control.leads,
            last_check=lambda: control.last_check,
            engine_error=lambda: control.engine_error,
            appended=lambda: Appended(producers.appended_entries, producers.appended_bytes, len(producers.topics)),
        )
        metrics = Metrics(
            components.metadata.metrics,
            components.clock,
            settings.metrics_max_topics,
            sources,
            settings.cluster_name,
        )
        control.start()
        parts.callback(control.drain, settings.shutdown_grace_ms / 1000)
        yield Service(settings, components, producers, forwarding, looks, metrics, control, maintenance)


async def service_of(request: Request) -> Service:
    """The service that this request came to. Async, like all that routes depend on without waiting: no thread."""
    return cast(Service, request.app.state.service)


Parts = Annotated[Service, Depends(service_of)]
"""A route's parameter: the parts of the service."""
