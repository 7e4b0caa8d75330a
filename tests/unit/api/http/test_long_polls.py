"""Reads that wait share one check the database, are woken by what comes, and are not too many of one caller."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, NoReturn

import pytest

from api.broker.threads import Pool, WaitsFor
from api.http import long_polls
from api.http.long_polls import LongPolls
from api.http.problems import RestException
from storage.errors import Unavailable
from tests.entries import produce, single
from tests.event_loop import in_event_loop
from tests.workbench import Workbench

FAR_MS = 10**15


async def is_here() -> bool:
    return False


async def is_disconnected() -> bool:
    return True


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other without a pause."""
    monkeypatch.setattr(long_polls, "POLL_SECONDS", 0)


def polls_of(bench: Workbench, limit: int = 1000) -> LongPolls:
    pools = {what: Pool(what, 2, 60_000, bench.clock) for what in WaitsFor}
    return LongPolls(bench.metadata, bench.log, bench.clock, pools, limit)


def threads_of(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> list[str]:
    """The threads in which a function is called from now on."""
    polled: list[str] = []
    called = getattr(where, name)

    def noted(*arguments: Any) -> Any:
        polled.append(threading.current_thread().name)
        return called(*arguments)

    monkeypatch.setattr(where, name, noted)
    return polled


@in_event_loop
async def test_reads_that_wait_share_a_look_and_are_woken_by_what_comes_to_their_topic(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = polls_of(bench)
    topics = [bench.topic("t"), bench.topic("other")]
    looks = threads_of(monkeypatch, bench.metadata.segments, "active_segments")
    files = threads_of(monkeypatch, long_polls, "open_segment_end")
    many = [polls.topic_changes(topics[0].record.id, FAR_MS, is_here) for _ in range(100)]
    other = polls.topic_changes(topics[1].record.id, FAR_MS, is_here)
    await asyncio.gather(*(anext(item) for item in (*many, other)))  # what came before they were checked
    assert len(looks) <= 2
    waiting = [asyncio.ensure_future(anext(item)) for item in many]
    unmoved = asyncio.ensure_future(anext(other))
    await asyncio.to_thread(produce, topics[0], [single(b"k", b"v")])
    await asyncio.gather(*waiting)
    assert not unmoved.done()
    unmoved.cancel()
    assert (set(looks), set(files)) == ({"database-pool"}, {"log-pool"}), "a disk that hangs holds its own threads"


@in_event_loop
async def test_a_read_ends_at_its_time_and_when_its_client_goes_away(bench: Workbench) -> None:
    polls, topic = polls_of(bench), bench.topic().record.id
    assert [1 async for _ in polls.topic_changes(topic, bench.clock.now_ms(), is_here)] == []
    assert [1 async for _ in polls.topic_changes(topic, FAR_MS, is_disconnected)] == []
    polls.end_waits()
    assert [1 async for _ in polls.topic_changes(topic, FAR_MS, is_here)] == []


@in_event_loop
async def test_a_deleted_topic_and_a_database_that_is_away_wake_who_waits(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls, topic = polls_of(bench), bench.topic().record.id

    def away(_: object) -> NoReturn:
        raise Unavailable("the database is away", "try again")

    changes = polls.topic_changes(topic, FAR_MS, is_here)
    await anext(changes)
    bench.metadata.tenancy.delete_topic(topic)
    await anext(changes)
    monkeypatch.setattr(bench.metadata.segments, "active_segments", away)
    await anext(changes)  # the read finds out by itself


def test_one_caller_has_so_many_reads_that_wait_and_others_have_theirs(bench: Workbench) -> None:
    polls = polls_of(bench, limit=2)
    with polls.counted_wait("a"), polls.counted_wait("a"), polls.counted_wait("b"):
        with (
            pytest.raises(RestException, match=r"2 reads of a wait .* limits.waiting-polls") as refused,
            polls.counted_wait("a"),
        ):
            pass
        assert (refused.value.status_code, refused.value.headers) == (503, {"Retry-After": "1"})
    with polls.counted_wait("a"), polls.counted_wait("a"):
        pass
