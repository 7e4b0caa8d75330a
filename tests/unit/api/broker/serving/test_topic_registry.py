"""A topic that deduplicates is opened at once: what its producers have stored is read when the first one comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.broker.broker import Broker
from api.broker.serving.deduplication import Deduplication
from api.broker.serving.logs import TopicLogs
from api.broker.serving.topic_registry import TopicRegistry
from api.broker.threads import WaitsFor
from api.observability.logs import LogThrottle
from api.settings.settings import Settings
from storage.entries.encode import encode_message
from storage.metadata.producer_sequences import ProducerSequences
from storage.topic import Topic
from tests.event_loop import in_event_loop
from tests.unit.api.broker.serving.served_topic import AtOnce
from tests.workbench import Workbench

LOG = logging.getLogger(__name__)


class Hanging:
    """A pool whose threads hang."""

    async def run(self, *_: object) -> Any:
        await asyncio.Event().wait()

    run_without_deadline = run_required = run


@pytest.fixture
def make_registry(bench: Workbench) -> Iterator[Callable[..., TopicRegistry]]:
    """A function that creates a registry over the workbench; some of its pools hang."""
    logs: list[TopicLogs] = []

    def make(*hanging: WaitsFor) -> TopicRegistry:
        for earlier in logs:
            earlier.drain_and_close()
        logs.append(TopicLogs(bench.clock, max_open=2, idle_ms=5_000))
        broker = SimpleNamespace(
            environment=bench,
            pools={what: Hanging() if what in hanging else AtOnce() for what in WaitsFor},
            logs=logs[-1],
            ownership=SimpleNamespace(check_for_writing=lambda _: None),
            settings=Settings(),
        )
        return TopicRegistry(cast(Broker, broker), LogThrottle(bench.clock, LOG))

    yield make
    for created in logs:
        created.drain_and_close()


def no_audit(*_: object) -> None:
    pass


@in_event_loop
async def _opened_while(registry: TopicRegistry, topic: Topic) -> None:
    served = await registry.get_or_open(topic.name, False, no_audit)
    loading = asyncio.create_task(served.load_sequences())
    await asyncio.sleep(0)
    assert not loading.done()
    loading.cancel()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Deduplication, "store", lambda _: None)
        await served.close()


@pytest.mark.parametrize("hanging", [(WaitsFor.SEQUENCES,), (WaitsFor.SEQUENCES, WaitsFor.STORE)])
def test_a_topic_is_open_while_its_sequence_ids_are_read(
    bench: Workbench, topic: Topic, make_registry: Callable[..., TopicRegistry], hanging: tuple[WaitsFor, ...]
) -> None:
    bench.set_policies(topic, **{"deduplication.enabled": True})
    _opened_while(make_registry(*hanging), topic)


@in_event_loop
async def _load(registry: TopicRegistry, topic: Topic, is_deduplicating: bool) -> None:
    served = await registry.get_or_open(topic.name, False, no_audit)
    await served.load_sequences()
    assert served.is_deduplicating == is_deduplicating
    await served.close()


def test_deduplication_that_is_switched_on_again_begins_at_the_end(
    bench: Workbench, topic: Topic, make_registry: Callable[..., TopicRegistry]
) -> None:
    bench.metadata.producer_sequences.store(topic.record.id, ProducerSequences(0, {"a": 9}))
    with topic.append_log() as log:
        log.append(encode_message(b"k", b"v", producer="b", sequence_id=7, publish_time=1))
    _load(make_registry(WaitsFor.STORE, WaitsFor.SEQUENCES), topic, False)
    assert bench.metadata.producer_sequences.of_topic(topic.record.id) is None
    bench.set_policies(topic, **{"deduplication.enabled": True})
    _load(make_registry(WaitsFor.STORE), topic, True)
    assert bench.metadata.producer_sequences.of_topic(topic.record.id) == ProducerSequences(1, {})
