"""A topic that deduplicates is opened at once: what its producers have stored is read when the first one comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.broker.broker import Broker
from api.broker.serving.logs import TopicLogs
from api.broker.threads import WaitsFor
from api.pulsar import server as server_module
from api.pulsar.lookup import LookupResult
from api.pulsar.server import PulsarServer, PulsarSettings
from api.settings.settings import Settings
from storage.entries.encode import encode_message
from storage.metadata.producer_sequences import ProducerSequences
from storage.topic import Topic
from tests.event_loop import in_event_loop
from tests.unit.api.broker.serving.served_topic import AtOnce
from tests.workbench import Workbench


class Hanging:
    """A pool whose threads hang."""

    async def run(self, *_: object) -> Any:
        await asyncio.Event().wait()

    run_to_end = finish = run


@pytest.fixture
def open_server(bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PulsarServer]:
    """Makes a gateway over the workbench, some of whose pools hang."""

    def make(*hanging: WaitsFor) -> PulsarServer:
        monkeypatch.setattr(server_module, "find_or_create", lambda *_: (topic.record, False))
        monkeypatch.setattr(server_module, "owner_of", lambda *_: None)
        broker = SimpleNamespace(
            environment=bench,
            pools={what: Hanging() if what in hanging else AtOnce() for what in WaitsFor},
            logs=TopicLogs(bench.clock, max_open=2, idle_ms=5_000),
            settings=Settings(),
        )
        return PulsarServer(
            cast(Broker, broker), cast(Any, None), PulsarSettings.of(Settings()), LookupResult("", ""), []
        )

    return make


def no_audit(*_: object) -> None:
    pass


@in_event_loop
async def _opened_while(gateway: PulsarServer, topic: Topic) -> None:
    served = await gateway.topic(topic.name, False, no_audit)
    loading = asyncio.create_task(served.load_sequences())
    await asyncio.sleep(0)
    assert not loading.done()
    loading.cancel()
    served._deduplication = None  # nothing is written at the end
    await served.close()


@pytest.mark.parametrize("hanging", [(WaitsFor.SEQUENCES,), (WaitsFor.SEQUENCES, WaitsFor.STORE)])
def test_a_topic_is_open_while_its_sequence_ids_are_read(
    bench: Workbench, topic: Topic, open_server: Callable[..., PulsarServer], hanging: tuple[WaitsFor, ...]
) -> None:
    bench.set_policies(topic, **{"deduplication.enabled": True})
    _opened_while(open_server(*hanging), topic)


@in_event_loop
async def _load(gateway: PulsarServer, topic: Topic, is_deduplicating: bool) -> None:
    served = await gateway.topic(topic.name, False, no_audit)
    await served.load_sequences()
    assert served.is_deduplicating == is_deduplicating
    await served.close()
    gateway.broker.logs.drain()


def test_deduplication_that_is_switched_on_again_begins_at_the_end(
    bench: Workbench, topic: Topic, open_server: Callable[..., PulsarServer]
) -> None:
    bench.metadata.producer_sequences.store(topic.record.id, ProducerSequences(0, {"a": 9}))
    with topic.append_log() as log:
        log.append(encode_message(b"k", b"v", producer="b", sequence_id=7, publish_time=1))
    _load(open_server(WaitsFor.STORE, WaitsFor.SEQUENCES), topic, False)
    assert bench.metadata.producer_sequences.of_topic(topic.record.id) is None
    bench.set_policies(topic, **{"deduplication.enabled": True})
    _load(open_server(WaitsFor.STORE), topic, True)
    assert bench.metadata.producer_sequences.of_topic(topic.record.id) == ProducerSequences(1, {})
