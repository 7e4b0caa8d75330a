"""Calls that run ahead: order, bound, errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from storage.ahead import run_ahead


def calls(begun: list[int], count: int) -> Iterator[Callable[[], int]]:
    for number in range(count):
        begun.append(number)
        yield partial(int, number)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_results_come_in_order_and_no_more_calls_begin_than_may_run_ahead(ahead: int) -> None:
    begun: list[int] = []
    results = run_ahead(calls(begun, 9), ahead)
    assert begun == []
    for number, result in enumerate(results):
        assert result == number
        assert begun == list(range(min(9, number + 1 + ahead)))


def test_calls_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)
    assert sorted(run_ahead([both.wait, both.wait], 2)) == [0, 1]


def test_without_calls_ahead_each_runs_in_the_callers_thread() -> None:
    assert set(run_ahead([threading.get_ident] * 3, 0)) == {threading.get_ident()}


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_an_error_comes_in_its_place_and_ends_the_calls(ahead: int) -> None:
    begun: list[int] = []

    def failing() -> Iterator[Callable[[], int]]:
        for call in calls(begun, 9):
            yield (lambda: 1 // 0) if len(begun) == 3 else call

    results = run_ahead(failing(), ahead)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert len(begun) <= 3 + ahead
    assert list(results) == []


def test_a_caller_that_stops_begins_no_more_calls_and_waits_for_none() -> None:
    """The garbage collector may be the one that stops, while its thread starts: a join would wait forever."""
    begun, end = threading.Event(), threading.Event()
    calls_begun: list[int] = []

    def waiting() -> Iterator[Callable[[], object]]:
        yield from calls(calls_begun, 1)
        yield lambda: (begun.set(), end.wait(60))
        yield from calls(calls_begun, 9)

    results = run_ahead(waiting(), 1)
    assert next(results) == 0
    assert begun.wait(60)
    results.close()  # type: ignore[attr-defined]
    assert not end.is_set()
    end.set()
    assert calls_begun == [0]
