"""A mirror in the foreground: this process owns its topic meanwhile, as a service would, and serves no client."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

from api.broker.mirroring.service import POLL_SECONDS, MirrorService
from api.broker.opening import open_broker
from api.broker.serving.topic_registry import TopicRegistry
from api.broker.threads import WaitsFor
from api.observability.logs import LogThrottle
from storage.errors import Conflict
from storage.metadata.mirrors import MirrorState

if TYPE_CHECKING:
    from api.broker.broker import Broker
    from api.settings.settings import Settings
    from storage.model import TopicName

LOG = logging.getLogger(__name__)


def run_in_foreground(settings: Settings, topic: TopicName, *, to_end: bool) -> int:
    """Run a mirror until a signal ends it, or it stops; return the number of records that were mirrored.

    `to_end`: end when the source had no more records. Raises NotFound for a topic that is no mirror, Conflict for one
    that is paused, or with the reason for which it stopped; the errors of opening.
    """
    with open_broker(settings) as broker, broker.running_without_compactions():
        return asyncio.run(_run(broker, topic, to_end))


async def _run(broker: Broker, topic: TopicName, to_end: bool) -> int:
    registry = TopicRegistry(broker, LogThrottle(broker.environment.clock, LOG))
    registry.register_callbacks()
    service = MirrorService(broker, registry, topic)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    try:
        while not ended.is_set() and not (to_end and service.is_at_end(topic)):
            await _check_runs(broker, topic)
            await service.tick()
            await registry.tick()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await ended.wait()
            except TimeoutError:
                continue
    finally:
        await service.close()
        registry.refuse_new_topics()
        await registry.close()
    return sum(item.records for item in service.counts())


async def _check_runs(broker: Broker, topic: TopicName) -> None:
    """Raise Conflict unless a mirror is to run."""
    mirror = await broker.pools[WaitsFor.DATABASE].run(broker.environment.metadata.mirrors.get, topic)
    if mirror.state is MirrorState.FAILED:
        raise _Stopped(str(mirror.error), "")
    if mirror.state is MirrorState.PAUSED:
        raise Conflict(f"the mirror {topic} is paused", "resume it")


class _Stopped(Conflict):
    """A mirror has stopped; its error has the remedy."""

    def worded(self, wording: object) -> str:
        return self.message
