"""A limit of bytes per second, by a clock that moves only when somebody waits."""

from __future__ import annotations

import threading

import pytest

from storage.errors import Fenced, ObjectExists
from storage.objects.interface import ObjectStore
from storage.objects.throttled import RateLimiter, RateLimits, ThrottledStore, throttled
from tests.clocks import ManualClock
from tests.sealed import new_id

START = 1_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


def elapsed(clock: ManualClock) -> int:
    """Milliseconds that were waited."""
    return clock.now_ms() - START


def test_a_call_waits_for_its_own_bytes(clock: ManualClock) -> None:
    """Or tasks of one call each, of which there are thousands, would never wait."""
    for number in range(1, 4):
        RateLimiter(clock, 1000).spend(2000)
        assert elapsed(clock) == 2000 * number


def test_the_rate_holds_over_many_calls_of_any_size(clock: ManualClock) -> None:
    pace = RateLimiter(clock, 1000)
    sizes = [1, 700, 3, 2500, 40, 999, 0, 1300] * 20
    for size in sizes:
        pace.spend(size)
    assert elapsed(clock) == sum(sizes)


def test_a_pause_saves_nothing_up(clock: ManualClock) -> None:
    pace = RateLimiter(clock, 1000)
    pace.spend(1000)
    clock.advance(3_600_000)
    pace.spend(500)
    assert elapsed(clock) == 3_601_500


def test_no_limit_never_waits(clock: ManualClock) -> None:
    pace = RateLimiter(clock, None)
    for _ in range(3):
        pace.spend(2**60)
    assert elapsed(clock) == 0


def test_a_store_without_limits_is_itself(object_store: ObjectStore, clock: ManualClock) -> None:
    assert throttled(object_store, RateLimits(), clock) is object_store
    assert throttled(object_store, RateLimits(None, 5), clock) is not object_store


def test_reading_and_writing_have_a_limit_each(object_store: ObjectStore, clock: ManualClock) -> None:
    store = throttled(object_store, RateLimits(read=1000, write=100), clock)
    name = f"throttled/{new_id()}"
    store.put(name, bytes(300))
    assert elapsed(clock) == 3000
    store.put(f"{name}-2", b"")
    assert elapsed(clock) == 3000
    assert store.get(name) == bytes(300)
    target = bytearray(300)
    store.read_into(name, 0, memoryview(target))
    assert store.get(name, 100, 200) == bytes(200)
    assert store.get(name, 290) == bytes(10)
    assert elapsed(clock) == 3000 + 810


def test_writers_keep_the_pace_and_write_the_same_object(object_store: ObjectStore, clock: ManualClock) -> None:
    store = throttled(object_store, RateLimits(write=1000), clock)
    name = f"throttled/{new_id()}"
    with store.create(name) as writer:
        for number in range(5):
            writer.write(bytes([number]) * 1000)
    assert elapsed(clock) == 5000
    assert object_store.get(name) == b"".join(bytes([number]) * 1000 for number in range(5))
    assert store.size(name) == 5000


def test_a_writer_that_fails_leaves_no_object(object_store: ObjectStore, clock: ManualClock) -> None:
    store = throttled(object_store, RateLimits(write=1000), clock)
    name = f"throttled/{new_id()}"

    def write_half() -> None:
        with store.create(name) as writer:
            writer.write(b"half of it")
            raise RuntimeError("on cue")

    with pytest.raises(RuntimeError, match="on cue"):
        write_half()
    assert list(object_store.list(name)) == []


def test_everything_else_is_handed_on(object_store: ObjectStore, clock: ManualClock) -> None:
    store = throttled(object_store, RateLimits(1, 1), clock)
    assert isinstance(store, ThrottledStore)
    assert (store.location, store.preferred_read_bytes) == (object_store.location, object_store.preferred_read_bytes)
    name = f"throttled/{new_id()}"
    store.put(name, b"1")
    with pytest.raises(ObjectExists):
        store.put(name, b"2")
    assert [info.name for info in store.list(name)] == [name]
    store.delete(name)
    assert list(object_store.list(name)) == []


def test_tasks_share_a_limit() -> None:
    assert RateLimits(100, None).shared_by(4) == RateLimits(25, None)
    assert RateLimits(3, 8).shared_by(4) == RateLimits(1, 2)


@pytest.mark.parametrize("rates", [RateLimits(), RateLimits(read=1000, write=1000)])
def test_what_is_stopped_neither_reads_nor_writes(
    object_store: ObjectStore, clock: ManualClock, rates: RateLimits
) -> None:
    stop = threading.Event()
    store = throttled(object_store, rates, clock, stop)
    name = f"throttled/{new_id()}"
    store.put(name, b"1")
    assert store.get(name) == b"1"

    def half_of_it() -> None:
        with store.create(f"{name}-2") as writer:
            stop.set()
            writer.write(b"2")

    for refused in (half_of_it, lambda: store.get(name), lambda: store.put(f"{name}-3", b"3")):
        with pytest.raises(Fenced, match="was cancelled"):
            refused()
    assert [item.name for item in object_store.list(name)] == [name]


def test_who_waits_for_its_turn_hears_within_a_second_that_it_is_stopped() -> None:
    stop = threading.Event()

    class Stops(ManualClock):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            if elapsed(self) >= 5000:
                stop.set()

    clock = Stops(START)
    pace = RateLimiter(clock, 1000, stop)
    pace.spend(1700)
    assert elapsed(clock) == 1700
    with pytest.raises(Fenced, match="was cancelled"):
        pace.spend(2**60)
    assert 5000 <= elapsed(clock) <= 6000
