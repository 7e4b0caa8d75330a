"""Reads of large entries wait for each other; one always goes on."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from storage.errors import Unavailable
from storage.log.decode_budget import DecodeBudget


def test_what_does_not_fit_waits_and_is_refused() -> None:
    budget = DecodeBudget(100, wait_seconds=0)
    with ExitStack() as held:
        held.enter_context(budget.hold(60))
        held.enter_context(budget.hold(40))
        held.enter_context(budget.hold(0))
        with pytest.raises(Unavailable, match="other large entries"), budget.hold(1):
            pass
    with budget.hold(100):
        pass


def test_one_larger_than_all_is_read_alone() -> None:
    budget = DecodeBudget(100, wait_seconds=0)
    with budget.hold(500), pytest.raises(Unavailable), budget.hold(1):
        pass
    with budget.hold(1), pytest.raises(Unavailable), budget.hold(500):
        pass


def test_it_goes_on_when_another_has_finished() -> None:
    budget = DecodeBudget(100, wait_seconds=60)
    finished = threading.Event()

    def read() -> None:
        with budget.hold(80):
            finished.set()

    with budget.hold(80):
        thread = threading.Thread(target=read)
        thread.start()
        assert not finished.is_set()
    thread.join(60)
    assert finished.is_set()
