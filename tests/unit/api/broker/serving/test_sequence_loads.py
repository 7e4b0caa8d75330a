"""A topic holds one thread while its sequence ids are loaded, however often it is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from api.broker.serving.deduplication import Deduplication
from api.broker.serving.sequence_loads import SequenceLoads
from storage.errors import Unavailable
from tests.event_loop import in_event_loop


class Load:
    """A load that ends when the gate is opened."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_loaded = False
        self.begun = 0

    def load(self) -> None:
        self.begun += 1
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.is_loaded = True


class Threads:
    """Threads that hang until the gate is opened."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.running = self.peak = 0

    async def run(self, work: Callable[[], None]) -> None:
        self.running += 1
        self.peak = max(self.peak, self.running)
        await self.gate.wait()
        self.running -= 1
        work()


def begun(loads: SequenceLoads, topic_id: int, *items: Load) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(loads.load(topic_id, cast(Deduplication, item))) for item in items]


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@in_event_loop
async def test_a_topic_that_hangs_holds_one_thread_and_no_other_topic() -> None:
    hanging, threads = Threads(), Threads()
    threads.gate.set()
    current = hanging
    loads = SequenceLoads(lambda work: current.run(work))
    before, again, other = Load(), Load(), Load()
    tasks = begun(loads, 1, before, before)
    await _turns()
    for task in tasks:  # its clients have lost patience, and the topic was closed and opened again
        task.cancel()
    tasks = begun(loads, 1, again, again, again)
    await _turns()
    assert hanging.peak == 1
    current = threads
    await loads.load(2, cast(Deduplication, other))
    assert other.is_loaded
    hanging.gate.set()
    await asyncio.gather(*tasks)
    assert (before.begun, again.begun, threads.peak) == (1, 1, 1)


@in_event_loop
async def test_all_that_wait_learn_why_a_load_failed_and_the_next_loads_again() -> None:
    threads = Threads()
    loads = SequenceLoads(threads.run)
    load = Load(Unavailable("the store does not answer", "wait"))
    tasks = begun(loads, 1, load, load)
    await _turns()
    threads.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    await loads.load(1, cast(Deduplication, load))
    assert (load.begun, load.is_loaded) == (2, True)
    await loads.load(1, cast(Deduplication, load))
    assert load.begun == 2


@pytest.mark.parametrize("cancelled", [True, False])
@in_event_loop
async def test_an_error_that_no_request_waits_for_is_no_error_of_the_event_loop(cancelled: bool) -> None:
    threads = Threads()
    loads = SequenceLoads(threads.run)
    tasks = begun(loads, 1, Load(Unavailable("the store does not answer", "wait")))
    await _turns()
    if cancelled:
        tasks[0].cancel()
    threads.gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _turns()
