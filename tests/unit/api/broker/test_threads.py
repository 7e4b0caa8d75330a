"""A pool whose threads hang: what waits for something else continues, and who comes is refused soon, not late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.broker.refusals import NotTheOwner, PoolBusy
from api.broker.threads import STUCK_MS, LimitedWorkers, Pool, WaitsFor
from storage.errors import Unavailable, public_text
from storage.metadata.records import ServiceRecord
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop

FAR_MS = 60_000


@pytest.fixture
def leave() -> Iterator[threading.Event]:
    """An event for which hanging threads wait."""
    event = threading.Event()
    yield event
    event.set()


async def hung(pool: Pool, leave: threading.Event, count: int) -> list[asyncio.Task[bool]]:
    """So many threads of the pool, that hang."""
    begun = threading.Semaphore(0)

    def hang() -> bool:
        begun.release()
        return leave.wait(30)

    tasks = [asyncio.create_task(pool.run(hang)) for _ in range(count)]
    await asyncio.sleep(0)
    for _ in range(count):
        await asyncio.to_thread(begun.acquire)
    return tasks


@in_event_loop
async def test_what_hangs_holds_its_own_pool_alone_and_the_next_are_refused_at_once(leave: threading.Event) -> None:
    clock = ManualClock()
    store, database = Pool(WaitsFor.STORE, 2, FAR_MS, clock), Pool(WaitsFor.DATABASE, 2, FAR_MS, clock)
    tasks = await hung(store, leave, 2)
    assert await database.run(int, "7") == 7
    queued = asyncio.create_task(store.run(int, "8"))  # they may be just about to end
    await asyncio.sleep(0)
    clock.advance(STUCK_MS)
    with pytest.raises(PoolBusy, match="object store has not answered any of 2 requests") as refused:
        await store.run(int, "9")
    assert (refused.value.kind, refused.value.resource) == ("stuck", WaitsFor.STORE)
    assert public_text(refused.value) == "the object store has not answered any of 2 requests for 5000 ms: try again"
    leave.set()
    assert (await asyncio.gather(*tasks), await queued) == ([True, True], 8)
    assert await store.run(int, "9") == 9


@in_event_loop
async def test_at_the_deadline_the_answer_comes_and_what_has_not_begun_never_does(
    leave: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(WaitsFor.STORE, 1, 1, ManualClock())
    begun: list[str] = []
    started = threading.Event()
    while not started.is_set():  # on a busy machine a call may miss its deadline before it begins
        with pytest.raises(PoolBusy, match="has not answered within 1 ms"):
            await pool.run(lambda: (started.set(), leave.wait(30)))
    with pytest.raises(PoolBusy, match="has not answered within 1 ms"):
        await pool.run(begun.append, "too late")
    leave.set()
    # Not `pool.run`: its own deadline is as short.
    settled = threading.Event()
    while not settled.is_set():
        try:
            await pool.run(settled.set)
        except PoolBusy:
            continue
    assert begun == []
    assert [record.message for record in caplog.records] == [
        "requests are answered 503: the object store has not answered within 1 ms"
    ], "once, however many requests"


@in_event_loop
async def test_a_queue_has_an_end(leave: threading.Event) -> None:
    pool = Pool(WaitsFor.LOG, 1, FAR_MS, ManualClock())
    tasks = await hung(pool, leave, 1)
    waiting = [asyncio.create_task(pool.run(int, "1")) for _ in range(16)]
    await asyncio.sleep(0)
    with pytest.raises(PoolBusy, match="is waited for by 17 requests already"):
        await pool.run(int, "1")
    leave.set()
    await asyncio.gather(*tasks, *waiting)


@in_event_loop
async def test_a_call_that_may_not_be_refused_waits_behind_a_full_queue(leave: threading.Event) -> None:
    pool = Pool(WaitsFor.LOG, 1, FAR_MS, ManualClock())
    tasks = await hung(pool, leave, 1)
    waiting = [asyncio.create_task(pool.run_without_deadline_or_queue_limit(int, "1")) for _ in range(100)]
    await asyncio.sleep(0)
    leave.set()
    assert await asyncio.gather(*waiting) == [1] * 100
    await asyncio.gather(*tasks)


@in_event_loop
async def test_a_result_that_comes_later_holds_no_thread() -> None:
    pool = Pool(WaitsFor.LOG, 1, FAR_MS, ManualClock())
    deliveries: list[Callable[[str], object]] = []
    waiting = [asyncio.create_task(pool.run_with_callback(deliveries.append)) for _ in range(2)]
    await asyncio.sleep(0)  # both are before the next call
    assert await pool.run(int, "1") == 1, "the only thread is free"
    assert len(deliveries) == 2
    threading.Thread(target=lambda: [deliver("later") for deliver in deliveries]).start()
    assert await asyncio.gather(*waiting) == ["later"] * 2
    with pytest.raises(ZeroDivisionError):
        await pool.run_with_callback(lambda deliver: 1 / 0)
    assert await pool.run_with_callback(lambda deliver: deliver("at once")) == "at once"


@in_event_loop
async def test_a_result_that_does_not_come_in_time_is_refused() -> None:
    pool = Pool(WaitsFor.LOG, 1, 1, ManualClock())
    deliveries: list[Callable[[str], object]] = []
    with pytest.raises(PoolBusy, match="has not answered within 1 ms"):
        await pool.run_with_callback(deliveries.append)
    for deliver in deliveries:
        deliver("too late")
    await asyncio.sleep(0)


@in_event_loop
async def test_errors_and_the_parts_of_a_stream_come_back(leave: threading.Event) -> None:
    pool = Pool(WaitsFor.STORE, 1, FAR_MS, ManualClock())
    closed: list[bool] = []

    def numbers() -> Any:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)
    assert [item async for item in pool.iterate(numbers())] == list(range(10))
    stream = pool.iterate(numbers())
    assert await anext(stream) == 0
    await stream.aclose()
    await pool.run(int)  # the one thread is through with what came before
    assert closed == [True, True]


@in_event_loop
async def test_a_stream_that_is_left_during_a_step_is_closed_by_the_thread_that_makes_it(
    leave: threading.Event,
) -> None:
    pool = Pool(WaitsFor.STORE, 2, FAR_MS, ManualClock())
    begun, closed = threading.Event(), threading.Event()
    closed_by: list[str] = []

    def parts() -> Generator[int, None, None]:
        try:
            begun.set()
            leave.wait(30)
            yield 1
        finally:
            closed_by.append(threading.current_thread().name)
            closed.set()

    step = asyncio.ensure_future(anext(pool.iterate(parts())))
    await asyncio.to_thread(begun.wait, 30)
    step.cancel()
    await asyncio.wait({step})
    del step
    await pool.run(int)  # the other thread is through with what the end of the stream began
    leave.set()
    await asyncio.to_thread(closed.wait, 30)
    assert closed_by == ["store-pool"]


@in_event_loop
async def test_a_stream_is_closed_by_a_thread_also_while_the_pool_takes_no_more(leave: threading.Event) -> None:
    clock = ManualClock()
    pool = Pool(WaitsFor.STORE, 1, FAR_MS, clock)
    closed_by: list[str] = []
    closed = threading.Event()

    def parts() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            closed_by.append(threading.current_thread().name)
            closed.set()

    stream = pool.iterate(parts())
    await anext(stream)
    tasks = await hung(pool, leave, 1)
    clock.advance(STUCK_MS)
    await stream.aclose()
    del stream
    leave.set()
    await asyncio.gather(*tasks)
    assert await asyncio.to_thread(closed.wait, 30)
    assert closed_by == ["store-pool"]


@in_event_loop
async def test_what_ends_other_work_is_called_also_by_a_pool_that_refuses(leave: threading.Event) -> None:
    clock = ManualClock()
    pool = Pool(WaitsFor.LOG, 1, FAR_MS, clock)
    tasks = await hung(pool, leave, 1)
    clock.advance(STUCK_MS)
    with pytest.raises(PoolBusy):
        await pool.run(int, "1")
    finished = asyncio.create_task(pool.run_required(lambda: "released"))
    await asyncio.sleep(0)
    leave.set()
    assert await finished == "released"
    await asyncio.gather(*tasks)


@in_event_loop
async def test_what_ends_other_work_is_called_also_after_its_deadline(leave: threading.Event) -> None:
    pool = Pool(WaitsFor.LOG, 1, 1, ManualClock())
    begun, released = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        leave.wait(30)

    with pytest.raises(PoolBusy, match="within 1 ms"):
        await pool.run_required(hang)  # a call of `run` that no thread began by its deadline is dropped
    assert await asyncio.to_thread(begun.wait, 30)
    with pytest.raises(PoolBusy, match="within 1 ms"):
        await pool.run_required(released.set)
    leave.set()
    assert await asyncio.to_thread(released.wait, 30)


def not_the_owner() -> NotTheOwner:
    topic = SimpleNamespace(name="persistent://public/default/t")
    return NotTheOwner(ServiceRecord("there:1:a", "http://there", None, 0, 0), cast(Any, topic))


@pytest.mark.parametrize(
    ("error", "reasons"),
    [
        (RuntimeError("a defect"), ["RuntimeError: a defect"]),
        (Unavailable("the store is away", "x"), ["Unavailable: the"]),
        (not_the_owner(), []),
    ],
    ids=["a defect", "a known one", "a topic of another service"],
)
@in_event_loop
async def test_an_error_of_a_request_that_has_its_answer_already_is_logged_if_something_failed(
    error: Exception, reasons: list[str], leave: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(WaitsFor.STORE, 1, FAR_MS, ManualClock())
    begun = threading.Event()
    threads: list[threading.Thread] = []

    def fail() -> None:
        threads.append(threading.current_thread())
        begun.set()
        leave.wait(30)
        raise error

    task = asyncio.ensure_future(pool.run(fail))
    await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    await asyncio.wait({task})
    leave.set()
    pool.close()
    await asyncio.to_thread(threads[0].join)
    for record, reason in zip(caplog.records, reasons, strict=True):
        assert reason in record.message
        assert (record.exc_info is not None) == isinstance(error, RuntimeError)


@in_event_loop
async def test_where_no_thread_can_be_made_the_request_is_refused_and_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(WaitsFor.STORE, 1, FAR_MS, ManualClock())
    begun: list[int] = []

    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(PoolBusy, match="has no thread") as refused:
            await pool.run(begun.append, 1)
    assert refused.value.kind == "threads"
    assert await pool.run(int, "7") == 7
    assert begun == []


@in_event_loop
async def test_a_call_keeps_its_turn_until_its_thread_ends(leave: threading.Event) -> None:
    """The caller stops waiting, but the thread hangs on: it is one of the topic's."""
    pool, begun = Pool(WaitsFor.STORE, 2, FAR_MS, ManualClock()), threading.Event()
    one_at_a_time = LimitedWorkers(pool, 1, 0.01, "other reads of the topic")

    def hang() -> bool:
        begun.set()
        return leave.wait(30)

    caller = asyncio.create_task(one_at_a_time.run(hang))
    await asyncio.to_thread(begun.wait)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    with pytest.raises(Unavailable, match="other reads of the topic have not ended within"):
        await one_at_a_time.run(int, "7")
    leave.set()
    answers: list[int] = []
    while not answers:  # the turn comes back with the thread
        with suppress(Unavailable):
            answers.append(await one_at_a_time.run(int, "8"))
    assert [*answers, await one_at_a_time.run_without_deadline(int, "9")] == [8, 9]
