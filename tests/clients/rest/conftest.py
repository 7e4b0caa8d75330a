"""One service for the tests of a module, and names for its topics: tests share it and each has topics of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import pytest

from storage.ledger.manifest import read_manifest
from storage.ledger.names import ObjectKind
from tests.serving import Served, serving

SECRET = bytes(32)
"""The key of the tokens of `guarded`."""
_NUMBERS = count()


@dataclass(frozen=True)
class Lost:
    """An object that a test has deleted from the store. `ledger_id`: the compacted ledger that needs it."""

    ledger_id: int
    name: str
    content: bytes


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

    def lose(self, kind: ObjectKind) -> Lost:
        """Delete an object of the compacted ledger from the store: the manifest, or the first part or key index."""
        store = self.served.broker.environment.store
        compacted = self.served.topic(self.name).snapshot().compacted
        assert compacted is not None
        manifest = read_manifest(store, compacted.manifest)
        name = {
            ObjectKind.MANIFEST: compacted.manifest.name,
            ObjectKind.PART: manifest.parts[0].rows.stored.name,
            ObjectKind.INDEX: next(chain.from_iterable(manifest.index)).name,
        }[kind]
        content = store.get(name)
        store.delete(name)
        return Lost(compacted.ledger_id, name, content)


def assert_refused(answer: Any, status: int, *words: str) -> None:
    """The answer has this status, and a reason with these words."""
    assert answer.status_code == status, answer.text
    assert [word for word in words if word not in answer.json()["reason"]] == [], answer.text


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service in this process; nothing is compacted by itself."""
    with serving(tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service in this process that asks for tokens; `root` may do everything."""
    key = "data:;base64," + base64.b64encode(SECRET).decode()
    access = {"auth_token_secret_key": key, "auth_superuser_roles": ("root",), "limits_requests_per_second": 0.0}
    with serving(tmp_path_factory.mktemp("access"), **access) as started:
        yield started


@pytest.fixture
def rest_topic(served: Served) -> RestTopic:
    """A topic without messages."""
    created = RestTopic(served, f"t{next(_NUMBERS)}")
    assert created.ask("PUT").status_code == 204
    return created
