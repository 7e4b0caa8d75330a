"""The end of a topic that is open: whatever fails on the way, other processes can serve it afterwards."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from storage.errors import Unavailable
from storage.topic import Topic
from tests.unit.api.broker.serving.served_topic import LOGS, opened
from tests.workbench import Workbench


def test_a_topic_whose_subscriptions_cannot_be_written_is_released(
    bench: Workbench, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise Unavailable("down", "wait")

    async def main() -> None:
        async with opened(bench, topic) as served:
            failing = SimpleNamespace(name="s", disconnect=lambda: None, close=fail)
            served.subscriptions["s"] = served.subscriptions["t"] = cast(Any, failing)
            LOGS[served].close_topics(topic.record)  # unloaded: the last one that uses it gives the lease back
            await served.close()
            with topic.append_log(wait_ms=0):
                pass

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "the subscription s of" in caplog.text
