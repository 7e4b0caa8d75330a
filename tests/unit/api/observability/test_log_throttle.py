"""Warnings that are logged once a minute, by their conditions."""

from __future__ import annotations

import logging

import pytest

from api.observability.logs import CONDITIONS, SELDOM_MS, LogThrottle
from tests.clocks import ManualClock

LOG = logging.getLogger(__name__)


def test_each_condition_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    throttle = LogThrottle(clock, LOG)
    for _ in range(3):
        throttle.warn("%s is refused", "a", condition="no token")
        throttle.warn("%s is refused", "b", condition="an expired token")
    assert caplog.messages == ["a is refused", "b is refused"]
    clock.advance(SELDOM_MS)
    throttle.warn("%s is refused", "c", condition="no token")
    assert caplog.messages[2:] == ["c is refused (2 times more since this was logged last)"]


def test_conditions_with_text_of_clients_have_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    throttle = LogThrottle(ManualClock(), LOG)
    for number in range(2 * CONDITIONS):
        throttle.warn("%s is refused", number, condition=f"reason {number}")
    assert len(caplog.messages) == CONDITIONS + 1
