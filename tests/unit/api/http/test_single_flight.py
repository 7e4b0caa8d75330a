"""Work that is shared by those who ask at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from api.broker.threads import Pool, WaitsFor
from api.http.single_flight import SingleFlight
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop


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

    first = asyncio.create_task(shared.share_call(make))
    await asyncio.to_thread(begun.wait, 30)
    later = [asyncio.create_task(shared.share_call(make)) for _ in range(50)]
    await asyncio.sleep(0)
    assert created == [0], "one at a time"
    leave.set()
    assert [await first, *await asyncio.gather(*later)] == [0, *[1] * 50]
    assert await shared.share_call(make) == 2


@in_event_loop
async def test_one_who_leaves_takes_nothing_from_the_others_and_an_error_is_told_to_all() -> None:
    shared: SingleFlight[int] = SingleFlight(Pool(WaitsFor.DATABASE, 4, 30_000, ManualClock()))

    def fail() -> int:
        raise LookupError("nothing there")

    cancelled, *rest = (asyncio.create_task(shared.share_call(fail)) for _ in range(3))
    await asyncio.sleep(0)
    cancelled.cancel()
    for item in rest:
        with pytest.raises(LookupError, match="nothing there"):
            await item
    assert await shared.share_call(lambda: 7) == 7
