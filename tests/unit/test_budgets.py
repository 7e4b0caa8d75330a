"""A property whose examples are bounded by seconds ends as a pass when they are over."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests import budgets
from tests.budgets import within


def test_a_budget_may_end_before_an_example_draws_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example then draws less than an earlier one of the same beginning, which hypothesis takes for a defect."""
    monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    tried = []

    @within(fast=1, ci=1)
    @settings(max_examples=300, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.booleans(), st.data())
    def prove(first: bool, data: st.DataObject) -> None:
        tried.append(data.draw(st.integers(0, 3)) + first)

    prove()
    assert budgets.LEAST <= len(tried) <= budgets.LEAST + 1


def test_an_example_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=itertools.count().__next__))

    @within(fast=1, ci=1)
    @settings(max_examples=300, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.booleans(), st.data())
    def prove(first: bool, data: st.DataObject) -> None:
        assert data.draw(st.integers(0, 3)) < 3

    with pytest.raises(AssertionError):
        prove()
