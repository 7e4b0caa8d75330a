"""Pulsar's own geo-replication into a service: an unmodified broker replicates, and the service is killed meanwhile.

Two topics at the same time, one of which deduplicates its producers here. Each has a producer that batches and one that
does not. Everything must be here once, in the order of the source.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from tests.clients.java.broker import pulsar_broker, replicate_to
from tests.clients.java.service_lives import Lives
from tests.clients.python.conftest import WAIT_MS, connected, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2_400)]
MESSAGES = 300
"""Messages that are sent to each topic in one life of the service."""
CAUGHT_UP_WITHIN_SECONDS = 120
NAMESPACE = "public/repl"
TOPICS = ("plain", "deduplicating")


@contextmanager
def _senders(url: str, topic: str) -> Iterator[list[pulsar.Producer]]:
    client = connected(url)
    name = f"persistent://{NAMESPACE}/{topic}"
    single = client.create_producer(name, producer_name="single", batching_enabled=False)
    batching = {"batching_enabled": True, "batching_max_messages": 20, "batching_max_publish_delay_ms": 5}
    batches = client.create_producer(name, producer_name="batches", **batching)
    yield [single, batches]
    client.close()


def _received(url: str, topic: str) -> list[tuple[Any, ...]]:
    client = connected(url)
    try:
        reader = client.create_reader(f"persistent://{NAMESPACE}/{topic}", pulsar.MessageId.earliest)
        messages = []
        while reader.has_message_available():
            message = reader.read_next(WAIT_MS)
            times = message.publish_timestamp(), message.event_timestamp()
            messages.append((message.data(), message.partition_key(), message.properties(), *times))
        return messages
    finally:
        client.close()


def _is_caught_up(source: httpx.Client, topic: str) -> bool:
    stats = source.get(f"/admin/v2/persistent/{NAMESPACE}/{topic}/stats").json()["replication"]["compactor"]
    return bool(stats["connected"] and not stats["replicationBacklog"])


@pytest.mark.parametrize(
    ("max_kills", "seconds", "restart_every"),
    [(10, 120, None), pytest.param(100, 1_800, 25, marks=pytest.mark.soak)],
)
def test_everything_once_and_in_order_through_kills(
    tmp_path: Path, max_kills: int, seconds: float, restart_every: int | None
) -> None:
    """Up to `max_kills` kills, the last one of which begins within that time. After each `restart_every` of them the
    broker is restarted."""
    rng = random.Random(5)
    with ExitStack() as stack:
        lives = Lives(tmp_path, stack)
        for path in (f"namespaces/{NAMESPACE}", f"persistent/{NAMESPACE}/deduplicating"):
            assert lives.rest.put(f"/admin/v2/{path}").is_success
        enabled = lives.rest.post(f"/admin/v2/persistent/{NAMESPACE}/deduplicating/deduplicationEnabled", json=True)
        assert enabled.is_success
        broker = stack.enter_context(pulsar_broker(tmp_path))
        source = stack.enter_context(httpx.Client(base_url=broker.web_url, timeout=60))
        replicate_to(source, "compactor", lives.service.url, lives.service.broker_service_url, "repl")
        senders = {topic: stack.enter_context(_senders(broker.url, topic)) for topic in TOPICS}
        kills = sent = 0
        until = time.monotonic() + seconds
        while kills < max_kills and time.monotonic() < until:
            for _ in range(MESSAGES):
                for topic in TOPICS:
                    value, number = f"{sent}".encode(), rng.random() < 0.5
                    options = {
                        "partition_key": f"k{sent % 50}",
                        "properties": {"n": f"{sent}"},
                        "event_timestamp": sent,
                    }
                    senders[topic][number].send_async(value, lambda *_: None, **options)
                sent += 1
            topic = rng.choice(TOPICS)
            stored = lives.entries(f"{NAMESPACE}/{topic}") + rng.randrange(1, MESSAGES // 4)
            wait_for(lambda topic=topic, stored=stored: lives.entries(f"{NAMESPACE}/{topic}") >= stored, seconds=60)
            lives.kill()
            kills += 1
            if restart_every and kills % restart_every == 0:
                broker.stop()
                broker.launch()
            lives.start()
        for topic in TOPICS:
            for producer in senders[topic]:
                producer.flush()

        for topic in TOPICS:
            wait_for(lambda topic=topic: _is_caught_up(source, topic), seconds=CAUGHT_UP_WITHIN_SECONDS)
            expected = _received(broker.url, topic)
            assert len(expected) == sent
            assert _received(lives.service.broker_service_url, topic) == expected, f"{topic} after {kills} kills"
        print(f"{kills} kills, {sent} messages of each topic")
        assert kills >= 3, "the machine is too slow for what this test is to prove"
        stored_topics = lives.rest.get(f"/admin/v2/persistent/{NAMESPACE}").json()
        assert sorted(stored_topics) == sorted(f"persistent://{NAMESPACE}/{topic}" for topic in TOPICS)


@pytest.mark.soak
def test_two_clusters_replicate_into_the_partitions_of_one_topic(tmp_path: Path) -> None:
    """Each partition has the messages of both, those of each once and in its order, through kills of the service."""
    topics, clusters = ("parted-partition-0", "parted-partition-1"), ("east", "west")
    sent: list[bytes] = []
    with ExitStack() as stack:
        lives = Lives(tmp_path, stack)
        assert lives.rest.put(f"/admin/v2/namespaces/{NAMESPACE}").is_success
        sources: dict[str, httpx.Client] = {}
        senders: dict[tuple[str, str], list[pulsar.Producer]] = {}
        for cluster in clusters:
            (tmp_path / cluster).mkdir()
            broker = stack.enter_context(pulsar_broker(tmp_path / cluster, clusterName=cluster))
            source = sources[cluster] = stack.enter_context(httpx.Client(base_url=broker.web_url, timeout=60))
            replicate_to(source, "compactor", lives.service.url, lives.service.broker_service_url, "repl", cluster)
            assert source.put(f"/admin/v2/persistent/{NAMESPACE}/parted/partitions", json=len(topics)).is_success
            for topic in topics:
                senders[cluster, topic] = stack.enter_context(_senders(broker.url, topic))
        for _ in range(4):
            stored = lives.entries(f"{NAMESPACE}/{topics[0]}")
            for _ in range(MESSAGES):
                for (cluster, _), producers in senders.items():
                    producers[1].send_async(f"{cluster} {len(sent)}".encode(), lambda *_: None)
                sent.append(b"%d" % len(sent))
            wait_for(lambda stored=stored: lives.entries(f"{NAMESPACE}/{topics[0]}") > stored, seconds=120)
            lives.kill()
            lives.start()
        for (cluster, topic), producers in senders.items():
            producers[1].flush()
            wait_for(
                lambda cluster=cluster, topic=topic: _is_caught_up(sources[cluster], topic),
                seconds=CAUGHT_UP_WITHIN_SECONDS,
            )
        for topic in topics:
            received = [row[0].split() for row in _received(lives.service.broker_service_url, topic)]
            for cluster in clusters:
                assert [number for name, number in received if name == cluster.encode()] == sent
