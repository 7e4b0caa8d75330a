"""Reads of the sizes of all topics, which requests share."""

from __future__ import annotations

import asyncio

import pytest

from api.broker.threads import Pool, WaitsFor
from api.dashboard import topic_sizes
from api.dashboard.topic_sizes import TopicSizesCache
from compactor.scheduling.backlog import BacklogReader
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop
from tests.workbench import Workbench


@in_event_loop
async def test_the_sizes_of_many_topics_are_shared_and_renewed_meanwhile(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_sizes, "FEW_TOPICS", 1)
    pool = Pool(WaitsFor.DATABASE, 1, 30_000, ManualClock())
    poller = TopicSizesCache(bench.metadata, BacklogReader(bench.metadata, bench.log), bench.clock, pool)

    async def names() -> list[str]:
        return [row.name.topic for row in (await poller.all_sizes()).rows]

    bench.topic("a")
    assert await names() == ["a"]
    bench.topic("b")
    assert await names() == ["a", "b"], "few topics are read for each request"
    bench.topic("c")
    bench.clock.advance(topic_sizes.RENEW_AFTER_MS - 1)
    assert await names() == ["a", "b"]
    bench.clock.advance(1)
    assert await names() == ["a", "b"], "it is renewed meanwhile"
    while await names() == ["a", "b"]:
        await asyncio.sleep(0)
    assert await names() == ["a", "b", "c"]
    bench.topic("d")
    bench.clock.advance(topic_sizes.MAX_SIZES_AGE_MS)
    assert await names() == ["a", "b", "c", "d"], "a read that is too old is not shared"
