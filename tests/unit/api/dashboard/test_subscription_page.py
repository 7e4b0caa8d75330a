"""The form that moves a subscription."""

from __future__ import annotations

import pytest
from fastapi import Request

from api.dashboard.subscription_page import reset_rest_call
from storage.model import TopicName


@pytest.mark.parametrize(("time", "sent"), [("5", 5), ("1970-01-01T00:00:01Z", 1000), ("1969-12-31T00:00:00Z", 0)])
def test_a_time_before_1970_is_sent_as_the_first_one_that_rest_takes(time: str, sent: int) -> None:
    request = Request({"type": "http", "path_params": {"subscription": "s"}})
    call = reset_rest_call(request, TopicName("public", "default", "t"), {"to": "time", "time": time})
    assert call.path == f"subscription/s/resetcursor/{sent}"
