"""Streams over a real connection: what breaks in the middle is not taken for the end."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any

import httpx
import pytest
import uvicorn

from tests.clients.rest.conftest import RestTopic
from tests.serving import Served
from tests.workbench import content


@pytest.fixture(scope="module")
def url(served: Served) -> Iterator[str]:
    """The service's application at a port of its own."""
    ready = threading.Event()

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: object = None) -> None:
            await super().startup()
            ready.set()

    server = Announcing(uvicorn.Config(served.client.app, port=0, log_config=None, lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, name="server", daemon=True)
    thread.start()
    assert ready.wait(60)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/vnd.apache.arrow.stream"])
def test_an_error_in_the_middle_breaks_the_connection(url: str, rest_topic: RestTopic, accept: str) -> None:
    topic = rest_topic.served.topic(rest_topic.name)
    for first in (0, 1000):
        rows = [(b"k%d" % number, b"v" * 100) for number in range(first, first + 1000)]
        topic.bulk_append().append([content(*rows)])
    ask = f"{url}{rest_topic.path}/messages?stream=true"
    whole = httpx.get(ask, headers={"accept": accept})
    assert whole.status_code == 200
    rest_topic.served.broker.environment.store.delete(topic.snapshot().ledgers[1].rows.name)
    chunks: list[bytes] = []
    with httpx.stream("GET", ask, headers={"accept": accept}) as broken:
        assert broken.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            chunks.extend(broken.iter_bytes())
    received = b"".join(chunks)
    assert 0 < len(received) < len(whole.content)
    assert whole.content.startswith(received[:1000])


def test_a_large_topic_comes_whole(url: str, rest_topic: RestTopic) -> None:
    topic = rest_topic.served.topic(rest_topic.name)
    topic.bulk_append().append([content(*((b"k%d" % number, b"v" * 1000) for number in range(2000)))])
    with httpx.stream("GET", f"{url}{rest_topic.path}/messages?stream=true") as answer:
        offsets = [json.loads(line)["offset"] for line in answer.iter_lines()]
    assert offsets == list(range(2000))


def test_who_waits_for_messages_and_goes_away_is_waited_for_no_more(rest_topic: RestTopic) -> None:
    """Else those who left would hold places of requests under way for as long as they wanted to wait."""
    statuses: list[int] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        statuses.append(message.get("status", 0))

    path = f"{rest_topic.path}/messages"
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": [], "client": None}
    waiting = rest_topic.served.client.app({**scope, "query_string": b"start=latest&waitMs=60000"}, receive, send)  # type: ignore[arg-type]
    asyncio.run(asyncio.wait_for(waiting, 30))  # type: ignore[arg-type]
    assert statuses[0] == 200
