"""A mirror that runs in a command: the process owns the topic, as a service would, and serves no clients."""

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


def mirror_records_in_foreground(settings: Settings, topic: TopicName, *, to_end: bool) -> int:
    """Copy records from Kafka until a signal comes or the mirror fails; return the number of copied records.

    `to_end`: also end when all records of the source are copied. Raises NotFound for a topic that is no mirror;
    Conflict for a paused or failed mirror; the errors of `open_broker`.
    """
    with open_broker(settings) as broker, broker.running_without_compactions():
        return asyncio.run(_mirror_records(broker, topic, to_end))


async def _mirror_records(broker: Broker, topic: TopicName, to_end: bool) -> int:
    registry = TopicRegistry(broker, LogThrottle(broker.environment.clock, LOG))
    registry.register_callbacks()
    service = MirrorService(broker, registry, topic)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    try:
        while not ended.is_set() and not (to_end and service.is_at_end(topic)):
            await _check_state_is_running(broker, topic)
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


async def _check_state_is_running(broker: Broker, topic: TopicName) -> None:
    """Raise Conflict if the mirror is paused or has failed."""
    mirror = await broker.pools[WaitsFor.DATABASE].run(broker.environment.metadata.mirrors.get, topic)
    if mirror.state is MirrorState.FAILED:
        raise _MirrorFailed(str(mirror.error), "")
    if mirror.state is MirrorState.PAUSED:
        raise Conflict(f"the mirror {topic} is paused", "resume it")


class _MirrorFailed(Conflict):
    """A mirror has failed. The message is the stored error of the mirror, which has its remedy."""

    def worded(self, wording: object) -> str:
        return self.message
