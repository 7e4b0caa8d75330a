"""Pulsar's own Python client, unmodified, at a real service: one service a module, a topic of its own a test."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import httpx
import pulsar
import pytest

from tests.servers.compactor_service import RunningService, compactor_service

pytestmark = pytest.mark.slow
_NUMBERS = itertools.count()
WAIT_MS = 20_000
"""How long a message may take that is expected."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service without access control."""
    with compactor_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture
def client(service: RunningService) -> Iterator[pulsar.Client]:
    """A client that logs errors only."""
    instance = connected(service.broker_service_url)
    try:
        yield instance
    finally:
        instance.close()


def connected(url: str, **options: object) -> pulsar.Client:
    """A client that logs errors only."""
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)


@pytest.fixture
def topic() -> str:
    """A topic's name that no other test has."""
    return f"persistent://public/default/t{next(_NUMBERS)}"


@dataclass(frozen=True)
class Admin:
    """The admin REST of the service."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def ask(self, verb: str, path: str, body: object = None) -> httpx.Response:
        """One request; a body goes as JSON."""
        answer = httpx.request(verb, self.url + path, json=body, headers=dict(self.headers), timeout=60)
        assert answer.status_code < 300, answer.text
        return answer

    def topic(self, verb: str, topic: str, below: str = "", body: object = None) -> httpx.Response:
        """One request below a topic's path."""
        return self.ask(verb, "/admin/v2/" + topic.replace("://", "/") + below, body)

    def compact(self, topic: str) -> None:
        """Compact a topic, and wait for it."""
        self.topic("PUT", topic, "/compaction")
        wait_for(lambda: self.topic("GET", topic, "/compaction").json()["status"] in ("SUCCESS", "ERROR"))
        status = self.topic("GET", topic, "/compaction").json()
        assert status["status"] == "SUCCESS", status

    def cursor_names(self, topic: str) -> list[str]:
        return list(self.topic("GET", topic, "/subscriptions").json())


@pytest.fixture
def admin(service: RunningService) -> Admin:
    return Admin(service.url)


def wait_for(done: Callable[[], object], seconds: float = 30) -> None:
    """Returns when something in another process is so; asks again and again."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.02)


def all_of(reader: pulsar.Reader) -> list[pulsar.Message]:
    """Return all messages that a reader has available."""
    messages = []
    while reader.has_message_available():
        messages.append(reader.read_next(WAIT_MS))
    return messages


def values(messages: list[pulsar.Message]) -> list[tuple[str, bytes]]:
    return [(message.partition_key(), message.data()) for message in messages]


def compacted_values(rest: httpx.Client, topic: str) -> dict[bytes, bytes]:
    """Return the value of each key of a compacted topic, `tenant/namespace/topic`, as the service has it."""
    options = {"stream": "true", "readCompacted": "true"}
    answer = rest.get(f"/admin/v2/persistent/{topic}/messages", params=options)
    assert answer.is_success, answer.text
    messages = map(json.loads, answer.text.splitlines())
    return {message["key"].encode(): message["value"].encode() for message in messages}


def position(message: pulsar.Message) -> tuple[int, int, int]:
    """An id without its partition."""
    message_id = message.message_id()
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def send_all(producer: pulsar.Producer, messages: list[tuple[str, bytes]], **options: object) -> None:
    """Send messages together, and wait for all of them."""
    failed = []
    for key, value in messages:
        producer.send_async(
            value,
            lambda result, _: None if result == pulsar.Result.Ok else failed.append(result),
            partition_key=key,
            **options,
        )
    producer.flush()
    assert not failed
