"""Places of subscriptions by time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.rest.subscriptions.cursor_access import before_time
from storage.topic import Topic
from tests.entries import one, produce
from tests.workbench import Workbench


def test_what_is_appended_during_the_look_does_not_lie_before_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, plain = Workbench.embedded(tmp_path).topic(), Topic.read
    produce(topic, [one(b"k", b"old", publish_time=1)])

    def read(topic: Topic, *arguments: Any, **options: Any) -> Iterator[Any]:
        yield from list(plain(topic, *arguments, **options))
        produce(topic, [one(b"k", b"new", publish_time=3)])

    monkeypatch.setattr(Topic, "read", read)
    found = before_time(topic, 2)
    assert found is not None
    assert found.offset == 0
