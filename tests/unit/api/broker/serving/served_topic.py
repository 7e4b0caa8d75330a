"""A topic as the gateway serves it, over a real log and real cursors, without connections and without threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

from api.broker.serving.cursor_writer import CursorWriter
from api.broker.serving.deduplication import Deduplication
from api.broker.serving.logs import TopicLogs
from api.broker.serving.page_budget import PageBudget
from api.broker.serving.sequence_loads import SequenceLoads
from api.broker.serving.tail import Tail, TailBudget
from api.broker.serving.topic import PersistentTopic
from api.broker.threads import Pools, WaitsFor
from api.observability.logs import LogThrottle
from storage.entries.encode import encode_message
from storage.topic import Topic
from tests.serving import append_to
from tests.workbench import Workbench


class AtOnce:
    """A pool that has no threads."""

    size = 1

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return work(*arguments)

    run_without_deadline = run_without_deadline_or_queue_limit = run_required = run


POOLS = cast(Pools, dict.fromkeys(WaitsFor, AtOnce()))
LOGS: WeakKeyDictionary[PersistentTopic, TopicLogs] = WeakKeyDictionary()
"""The open logs behind each topic of `opened`."""


@asynccontextmanager
async def opened(
    bench: Workbench,
    storage: Topic,
    keys: Sequence[str] = (),
    max_unacked_messages: int = 0,
    max_consumers: int = 0,
    max_producers: int = 0,
    deduplicates: bool = False,
    page_budget: PageBudget | None = None,
    pools: Pools = POOLS,
) -> AsyncIterator[PersistentTopic]:
    """The topic with a message for each of `keys`, whose entry id is its number; no client is connected."""
    logs = TopicLogs(bench.clock, max_open=2, idle_ms=5_000)
    topic = PersistentTopic(
        storage,
        logs.hold(storage),
        bench.metadata,
        bench.clock,
        pools,
        max_unacked_messages,
        max_consumers,
        max_producers,
        Tail(TailBudget(0)),
        CursorWriter(bench.metadata, AtOnce()),
        page_budget or PageBudget(1 << 30),
        Deduplication(bench.metadata, storage, 100, of_producers=deduplicates),
        SequenceLoads(AtOnce().run),
        bench.metadata.topics.producer_epoch(storage.record.id),
        lambda: None,
        lambda _: None,
        LogThrottle(bench.clock, logging.getLogger(__name__)),
    )
    LOGS[topic] = logs
    produce(topic, keys)
    try:
        yield topic
    finally:
        await topic.close()
        logs.drain_and_close()


def append(topic: PersistentTopic, *entries: bytes) -> None:
    """Append entries as they are."""
    append_to(LOGS[topic], topic.storage, entries)
    topic.wake_subscriptions()


def produce(topic: PersistentTopic, keys: Sequence[str]) -> None:
    """Append a message for each key."""
    entries = (
        encode_message(key.encode(), b"v", producer="p", sequence_id=number, publish_time=1)
        for number, key in enumerate(keys)
    )
    append(topic, *entries)
