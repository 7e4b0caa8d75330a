"""Work that is shared by those who ask at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from api.broker.threads import Pool, WaitsFor
from api.http import single_flight
from api.http.single_flight import SingleFlight, TopicsPoller
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop
from tests.workbench import Workbench


@in_event_loop
async def test_who_asks_meanwhile_shares_what_is_made_next() -> None:
    shared: SingleFlight[int] = SingleFlight(Pool(WaitsFor.DATABASE, 4, 30_000, ManualClock()))
    begun, leave = threading.Event(), threading.Event()
    created: list[int] = []

    def make() -> int:
        created.append(len(created))
        begun.set()
        leave.wait(30)
        return created[-1]

    first = asyncio.create_task(shared.answer(make))
    await asyncio.to_thread(begun.wait, 30)
    later = [asyncio.create_task(shared.answer(make)) for _ in range(50)]
    await asyncio.sleep(0)
    assert created == [0], "one at a time"
    leave.set()
    assert [await first, *await asyncio.gather(*later)] == [0, *[1] * 50]
    assert await shared.answer(make) == 2


@in_event_loop
async def test_one_who_leaves_takes_nothing_from_the_others_and_an_error_is_told_to_all() -> None:
    shared: SingleFlight[int] = SingleFlight(Pool(WaitsFor.DATABASE, 4, 30_000, ManualClock()))

    def fail() -> int:
        raise LookupError("nothing there")

    cancelled, *rest = (asyncio.create_task(shared.answer(fail)) for _ in range(3))
    await asyncio.sleep(0)
    cancelled.cancel()
    for item in rest:
        with pytest.raises(LookupError, match="nothing there"):
            await item
    assert await shared.answer(lambda: 7) == 7


@in_event_loop
async def test_the_sizes_of_many_topics_are_shared_and_renewed_meanwhile(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_flight, "FEW_TOPICS", 1)
    pool = Pool(WaitsFor.DATABASE, 1, 30_000, ManualClock())
    poller = TopicsPoller(bench.metadata, bench.log, bench.clock, pool)

    async def names() -> list[str]:
        return [summary.name.topic for summary in (await poller.of_all()).summaries]

    bench.topic("a")
    assert await names() == ["a"]
    bench.topic("b")
    assert await names() == ["a", "b"], "few topics are read for each request"
    bench.topic("c")
    bench.clock.advance(single_flight.RENEW_AFTER_MS - 1)
    assert await names() == ["a", "b"]
    bench.clock.advance(1)
    assert await names() == ["a", "b"], "it is renewed meanwhile"
    while await names() == ["a", "b"]:
        await asyncio.sleep(0)
    assert await names() == ["a", "b", "c"]
    bench.topic("d")
    bench.clock.advance(single_flight.MAX_SIZES_AGE_MS)
    assert await names() == ["a", "b", "c", "d"], "a read that is too old is not shared"
