"""Data of the previous version: database, store and log open, answer as before, and go on.

`record_version.py` recorded the archive in a clone of that version.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from tests.migration.record_version import ADMIN, PREFIX, TOPICS, expected
from tests.servers.compactor_service import SERVE, RunningService, compactor_service

pytestmark = pytest.mark.slow
ARCHIVE = Path(__file__).with_name("version-0.1.0.tar.xz")
RECEIVE_MS = 20_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the unpacked archive."""
    folder = tmp_path_factory.mktemp("version")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def service(recorded: Path) -> Iterator[RunningService]:
    """Run this version on the data of the previous one."""
    with compactor_service(recorded, command=SERVE) as running:
        yield running


@pytest.fixture(scope="module")
def answers(recorded: Path) -> dict[str, Any]:
    """Return the answers of the previous version."""
    document: dict[str, Any] = json.loads((recorded / "expected.json").read_text())
    return document


def test_it_answers_as_before(service: RunningService, answers: dict[str, Any]) -> None:
    now = expected(service.url)
    # The service retries the failed compaction at once.
    now["broken"] = now["broken"][-len(answers["broken"]) :]
    assert now == answers


def test_it_goes_on(service: RunningService, answers: dict[str, Any]) -> None:
    client = pulsar.Client(service.broker_service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(PREFIX + "batches", "shared", pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
    remaining = [consumer.receive(RECEIVE_MS).data() for _ in range(answers["batches"]["subscriptions"]["shared"])]
    assert sorted(remaining) == sorted(b"batch %d" % number for number in [*range(12, 15), *range(16, 30)])

    for topic in TOPICS:
        producer = client.create_producer(PREFIX + topic, schema=pulsar.schema.BytesSchema())
        producer.send(b"newest", partition_key="k0")
        httpx.put(f"{service.url}{ADMIN}{topic}/compaction").raise_for_status()
    client.close()
    for topic in TOPICS:
        while httpx.get(f"{service.url}{ADMIN}{topic}/compaction").json()["status"] == "RUNNING":
            service.process.poll()

    now = expected(service.url)
    for topic in TOPICS:
        assert now[topic]["raw"][:-1] == answers[topic]["raw"]
        before = [message for message in answers[topic]["compacted"] if message["key"] != "k0"]
        assert [message for message in now[topic]["compacted"] if message["key"] != "k0"] == newest(before)
        assert now[topic]["compacted"][-1]["value"] == "newest"
    assert httpx.post(f"{service.url}{ADMIN}plain/compaction/verify", timeout=60).is_success


def newest(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest message of each key, by offset."""
    by_key = {message["key"]: message for message in messages}
    return sorted(by_key.values(), key=lambda message: message["offset"])
