"""Threads of the commands that carry a schema: comparisons hold none that wait for the database."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.broker.threads import WaitsFor
from api.pulsar.handlers.schemas import ensure_stored, store_if_first_or_check_readable
from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName
from tests.event_loop import in_event_loop

TOPIC = TopicName.parse("t")
STRING = SchemaRecord(-1, 1, "s", b"")
STORED = SchemaRecord(0, 1, "s", b"")


class Pool:
    """Calls at once, and keeps the names of what it called."""

    def __init__(self, kind: WaitsFor, calls: list[tuple[WaitsFor, str]]) -> None:
        self._kind = kind
        self._calls = calls

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self._calls.append((self._kind, work.__name__))
        return work(*arguments)


class Registry:
    """Holds a schema, or none."""

    def __init__(self, *, is_stored: bool) -> None:
        self._is_stored = is_stored

    def find_equal(self, topic: TopicName, schema: SchemaRecord) -> SchemaRecord | None:
        return STORED if self._is_stored else None

    def ensure(self, topic: TopicName, schema: SchemaRecord) -> SchemaRecord:
        return STORED

    def is_newest(self, topic: TopicName, schema: SchemaRecord) -> bool:
        return self._is_stored

    def store_if_first_or_check_readable(self, topic: TopicName, schema: SchemaRecord) -> None:
        pass


@pytest.mark.parametrize("is_stored", [True, False])
@in_event_loop
async def test_only_a_new_schema_waits_for_a_comparison(is_stored: bool) -> None:
    calls: list[tuple[WaitsFor, str]] = []
    broker = SimpleNamespace(schemas=Registry(is_stored=is_stored))
    pools = {kind: Pool(kind, calls) for kind in WaitsFor}
    session = cast(
        Any, SimpleNamespace(identity=SimpleNamespace(threads=pools), context=SimpleNamespace(broker=broker))
    )
    assert await ensure_stored(session, TOPIC, STRING) is STORED
    await store_if_first_or_check_readable(session, TOPIC, STRING)
    compared = [(WaitsFor.SCHEMAS, "ensure"), (WaitsFor.SCHEMAS, "store_if_first_or_check_readable")]
    read = [(WaitsFor.DATABASE, "find_equal"), (WaitsFor.DATABASE, "is_newest")]
    assert calls == (read if is_stored else [read[0], compared[0], read[1], compared[1]])
