"""Shares: amounts by name, of which none is kept without need."""

from __future__ import annotations

import pytest

from api.broker.shares import Shares


def test_a_name_without_an_amount_is_not_kept() -> None:
    shares = Shares[str]()
    shares.add("ann", 5)
    shares.add("bob", 2)
    shares.add("ann", -5)
    assert dict(shares) == {"bob": 2}
    assert shares["ann"] == 0
    assert "ann" not in shares
    assert shares.total() == 2


def test_a_counted_name_is_released_after_an_error() -> None:
    shares = Shares[str]()

    def fail() -> None:
        with shares.counting("ann"):
            assert shares["ann"] == 2
            raise ValueError("wrong")

    with shares.counting("ann"):
        with pytest.raises(ValueError, match="wrong"):
            fail()
        assert shares["ann"] == 1
    assert not shares
