"""The contract of engines, on the one in this process, and how light tasks are packed."""

from __future__ import annotations

import threading
from itertools import chain

import pytest
from hypothesis import given, strategies as st

from compactor.engines.engine import (
    LIGHT,
    PARTITIONS_PER_CORE,
    InProcessEngine,
    InProcessEngineProvider,
    TaskFailure,
    answers_or_raise,
    current_task,
    partition_tasks,
)
from storage.errors import Fenced, ObjectMissing

GONE = ObjectMissing("object 1 is gone", "restore it")


def second_fails(number: int) -> int:
    if number == 1:
        raise GONE
    return 10 // (number - 3)


def test_what_fails_stands_in_its_place() -> None:
    seen: list[int] = []
    outcomes = InProcessEngine().run(4, second_fails, seen.append)
    assert outcomes[:3] == [-4, TaskFailure(GONE), -10]
    assert isinstance(outcomes[3], TaskFailure)
    assert isinstance(outcomes[3].error, ZeroDivisionError)
    assert seen == [1, 2, 3, 4]
    with pytest.raises(ObjectMissing, match="object 1 is gone"):
        answers_or_raise(outcomes)
    assert answers_or_raise([1, 2]) == [1, 2]


def test_a_cancel_is_heard_between_tasks_and_holds_for_this_job_alone() -> None:
    engines = InProcessEngineProvider()
    engine, other = engines.open(), engines.open()
    seen: list[int] = []

    def cancelled_by_the_second(number: int) -> int:
        if number == 1:
            engine.cancel()
        (answer,) = answers_or_raise(other.run(1, lambda _: number, lambda _: None))
        return answer

    with pytest.raises(Fenced, match="was cancelled"):
        engine.run(3, cancelled_by_the_second, seen.append)
    assert seen == [1, 2]
    assert engine.run(2, lambda number: number, seen.append) == [0, 1]


def test_a_task_can_ask_whether_it_is_to_end_and_then_fails_for_that_alone() -> None:
    engine = InProcessEngine()

    def ends(_: int) -> None:
        task = current_task()
        assert task is not None
        assert task.concurrent == 1
        assert not task.stop.is_set()
        engine.cancel()
        assert task.stop.is_set()
        raise GONE

    with pytest.raises(Fenced, match="was cancelled"):
        engine.run(1, ends, lambda _: None)
    assert current_task() is None


def test_tasks_run_at_the_same_time_the_heaviest_first() -> None:
    meeting, begun, done = threading.Barrier(2), list[int](), list[int]()

    def meets(number: int) -> int:
        begun.append(number)
        task = current_task()
        assert task is not None
        assert task.concurrent == 2
        meeting.wait(60)
        if number == 3:
            raise GONE
        return number * 10

    outcomes = InProcessEngine(2).run(4, meets, done.append, [1.0, 9.0, 8.0, 2.0])
    assert outcomes == [0, 10, 20, TaskFailure(GONE)]
    assert sorted(begun[:2]) == [1, 2]
    assert done == [1, 2, 3, 4]


def test_a_cancel_ends_all_tasks_and_begins_no_other() -> None:
    engine, begun = InProcessEngine(2), list[int]()
    meeting = threading.Barrier(2)

    def cancelled(number: int) -> None:
        begun.append(number)
        meeting.wait(60)
        if number:
            engine.cancel()
        task = current_task()
        assert task is not None
        assert task.stop.wait(60)

    with pytest.raises(Fenced, match="was cancelled"):
        engine.run(50, cancelled, lambda _: None)
    assert sorted(begun) == [0, 1]


def test_an_error_of_the_listener_ends_all_tasks() -> None:
    def refuses(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InProcessEngine(2).run(50, lambda number: number, refuses)


def test_without_weights_every_task_is_a_partition() -> None:
    assert partition_tasks(3, None, 8) == [[0], [1], [2]]


@given(st.lists(st.floats(0, 4 * LIGHT), max_size=200), st.integers(1, 8))
def test_light_tasks_share_partitions_of_about_equal_weight(weights: list[float], cores: int) -> None:
    packed = partition_tasks(len(weights), weights, cores)
    assert sorted(chain.from_iterable(packed)) == list(range(len(weights)))
    assert all(packed), "an empty partition costs as much to start as any"
    loads = [sum(weights[number] for number in numbers) for numbers in packed]
    for load, numbers in zip(loads, packed, strict=True):
        assert len(numbers) == 1 or max(weights[number] for number in numbers) < LIGHT
        assert load < 2 * LIGHT or len(numbers) == 1
    light = [load for load, numbers in zip(loads, packed, strict=True) if weights[numbers[0]] < LIGHT]
    if light:
        assert max(light) - min(light) <= max(weight for weight in weights if weight < LIGHT) + 1e-3
        assert len(light) <= max(PARTITIONS_PER_CORE * cores, sum(weights) / LIGHT + 1)


def test_weights_of_nothing_spread_as_well() -> None:
    assert [len(numbers) for numbers in partition_tasks(12, [0.0] * 12, 1)] == [4, 4, 4]


def test_a_weight_a_task() -> None:
    with pytest.raises(ValueError, match="2 weights for 3 tasks"):
        partition_tasks(3, [1.0, 2.0], 1)
