"""examples/state_restore.py: a state that is restored, kept up to date, and read again where deletions were missed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from compactor.client import Client
from tests.clients.rest.conftest import RestTopic
from tests.serving import Served

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "state_restore.py"


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("state_restore", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def compact(topic: RestTopic) -> None:
    assert topic.ask("PUT", "/compaction").status_code == 204
    topic.served.compact_requested()


def test_a_state_is_restored_and_goes_on(
    example: ModuleType, rest_topic: RestTopic, served: Served, tmp_path: Path
) -> None:
    users, file = Client(served.client).topic(rest_topic.name), tmp_path / "state.json"
    rest_topic.put(a="1", b="1", d="1")
    rest_topic.put(a="2")
    compact(rest_topic)
    rest_topic.put(c="1", d=None)
    state = example.catch_up(users, example.load(file))
    assert state.values == {"a": "2", "b": "1", "c": "1"}
    example.save(state, file)
    assert example.catch_up(users, example.load(file)) == state, "nothing came since"
    rest_topic.put(b=None, a="3")
    assert example.catch_up(users, example.load(file)).values == {"a": "3", "c": "1"}


def test_a_state_that_missed_a_deletion_is_read_again(
    example: ModuleType, rest_topic: RestTopic, served: Served
) -> None:
    users = Client(served.client).topic(rest_topic.name)
    rest_topic.put(a="1", b="1")
    state = example.catch_up(users, example.State())
    rest_topic.put(b=None, c="1")
    compact(rest_topic)
    rest_topic.put(d="1")
    compact(rest_topic)
    assert rest_topic.ask("POST", "/trim?dryRun=false", {"before": 4}).status_code == 200
    assert example.catch_up(users, state).values == {"a": "1", "c": "1", "d": "1"}


def test_without_a_topic_or_a_service_the_example_says_so(
    example: ModuleType, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*arguments: str) -> object:
        monkeypatch.setattr(sys, "argv", ["state_restore.py", *arguments])
        with pytest.raises(SystemExit) as refused:
            example.main()
        return refused.value.code

    file = str(tmp_path / "state.json")
    assert str(refusal("http://127.0.0.1:1", "users", file)).startswith(
        "users was not read: http://127.0.0.1:1 does not"
    )
    assert "begin it with http://" in str(refusal("127.0.0.1:1", "users", file))
    assert str(refusal("users")).startswith("usage: ")
    monkeypatch.setattr("compactor.client.connect", lambda url: nullcontext(Client(served.client)))
    assert "nosuch" in str(refusal("http://127.0.0.1:1", "nosuch", file))
