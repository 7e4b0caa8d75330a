"""The concurrent requests of a role, and the threads that work for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from api.broker.threads import WaitsFor
from api.pulsar import admission
from api.pulsar.admission import Admission
from api.pulsar.errors import Refused, ServerError
from storage.errors import Unavailable
from tests.event_loop import in_event_loop


class Pool:
    """A pool whose work ends when a test says so."""

    size = 8

    def __init__(self) -> None:
        self.running = 0
        self.ends = asyncio.Event()

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self.running += 1
        await self.ends.wait()
        return work(*arguments)

    run_without_deadline = run


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@in_event_loop
async def test_a_role_uses_a_quarter_of_the_threads_and_its_other_requests_wait_in_order() -> None:
    pool = Pool()
    admitted = Admission({WaitsFor.DATABASE: pool}, 60_000, max_lookups=1)
    threads = admitted.threads("attacker")
    assert admitted.threads("attacker") is threads, "all connections of a role share them"
    ended: list[int] = []
    tasks = [asyncio.create_task(threads[WaitsFor.DATABASE].run(ended.append, number)) for number in range(10)]
    await turns()
    assert pool.running == 2
    other = asyncio.create_task(admitted.threads("other")[WaitsFor.DATABASE].run(int))
    await turns()
    assert pool.running == 3
    pool.ends.set()
    await asyncio.gather(other, *tasks)
    assert ended == list(range(10))


@in_event_loop
async def test_a_request_does_not_wait_for_a_thread_of_its_role_for_ever() -> None:
    pool = Pool()
    threads = Admission({WaitsFor.DATABASE: pool}, 1, max_lookups=1).threads("role")[WaitsFor.DATABASE]
    held = [asyncio.create_task(threads.run(int)) for _ in range(2)]
    await turns()
    with pytest.raises(Unavailable, match=r"other requests of the role have not ended within 0\.001 s"):
        await threads.run(int)
    pool.ends.set()
    await asyncio.gather(*held)


def test_lookups_of_a_service_and_requests_of_a_role_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_OF_ROLE", 2)
    admitted = Admission({}, 1, max_lookups=1)
    admitted.admit("a", is_lookup=True)
    with pytest.raises(Refused, match="1 lookups are under way") as refused:
        admitted.admit("b", is_lookup=True)
    assert refused.value.error == ServerError.TooManyRequests
    admitted.admit("a", is_lookup=False)
    with pytest.raises(Refused, match="2 requests of a are under way"):
        admitted.admit("a", is_lookup=False)
    admitted.release("a", is_lookup=True)
    admitted.admit("b", is_lookup=True)
