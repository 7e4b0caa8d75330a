"""One service for the tests of a module, and names for its topics: tests share it and each has topics of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.serving import Served, serving

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class RestTopic:
    """A topic of a service, as HTTP has it."""

    served: Served
    local: str

    @property
    def path(self) -> str:
        return f"/admin/v2/persistent/public/default/{self.local}"

    @property
    def name(self) -> str:
        return f"persistent://public/default/{self.local}"

    def ask(self, verb: str, below: str = "", body: object = None) -> Any:
        """One request below the topic's path."""
        return self.served.ask(verb, self.path + below, None if body is None else json.dumps(body))

    def produce(self, *messages: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
        """Produce in Pulsar's form; the acknowledgements."""
        path = f"/topics/persistent/public/default/{self.local}{query}"
        answer = self.served.ask("POST", path, json.dumps({"messages": list(messages)}))
        assert answer.status_code == 200, answer.text
        return list(answer.json()["messagePublishResults"])

    def put(self, **values: str | None) -> list[str]:
        """Produce a message a key; their ids."""
        acks = self.produce(*({"key": key, "payload": value} for key, value in values.items()))
        assert [ack["errorCode"] for ack in acks] == [0] * len(values)
        return [ack["messageId"] for ack in acks]

    def read(self, query: str = "") -> list[dict[str, Any]]:
        """A page of messages."""
        answer = self.ask("GET", f"/messages?{query}")
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]

    def values(self, query: str = "") -> list[tuple[str | None, str | None]]:
        """Keys and values of a page."""
        return [(item["key"], item["value"]) for item in self.read(query)]

    def compact(self) -> None:
        """One run, which succeeds."""
        assert self.ask("PUT", "/compaction").status_code == 204
        self.served.compact_requested()
        assert self.ask("GET", "/compaction").json()["status"] == "SUCCESS"


def assert_refused(answer: Any, status: int, *words: str) -> None:
    """The answer has this status, and a reason with these words."""
    assert answer.status_code == status, answer.text
    assert [word for word in words if word not in answer.json()["reason"]] == [], answer.text


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service in this process; nothing is compacted by itself."""
    with serving(tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture
def rest_topic(served: Served) -> RestTopic:
    """A topic without messages."""
    created = RestTopic(served, f"t{next(_NUMBERS)}")
    assert created.ask("PUT").status_code == 204
    return created
