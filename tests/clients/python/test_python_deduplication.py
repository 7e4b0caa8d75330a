"""Deduplication where connections end at any moment: what is acknowledged is stored, once."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path

import pulsar
import pytest

from api.pulsar.pulsar_api_pb2 import BaseCommand
from storage.entries.encode import encode_message
from tests.clients.python.conftest import Admin, connected
from tests.clients.python.frame_client import FrameClient, frame_client
from tests.clients.python.test_python_faults import free_port
from tests.servers.compactor_service import RunningService, compactor_service

pytestmark = pytest.mark.slow
ROUNDS = 40
AT_ONCE = 5


@pytest.mark.parametrize("how", ["trim", "truncate"])
def test_removed_messages_are_not_stored_again_after_the_service_died(tmp_path: Path, how: str) -> None:
    topic, removed = "persistent://public/default/t", range(10)
    options = ("--broker-service-port", free_port())
    with compactor_service(tmp_path, *options) as running:
        admin, client = Admin(running.url), connected(running.broker_service_url)
        admin.topic("PUT", topic)
        admin.topic("PUT", topic, "/policies", {"deduplication.enabled": True, "cleanup.policy": ["compact"]})
        client.create_producer(topic, producer_name="B").send(b"B", partition_key="b")  # keeps the topic open
        producer = client.create_producer(topic, producer_name="A", batching_enabled=False)
        for number in removed:
            producer.send(b"A%d" % number, partition_key="a", sequence_id=number + 1)
        if how == "truncate":
            admin.topic("DELETE", topic, "/truncate")
        else:
            admin.compact(topic)
            admin.topic("POST", topic, "/trim?dryRun=false")
        assert admin.topic("GET", topic, "/messages").text == ""
        running.process.send_signal(signal.SIGKILL)
        running.process.wait(30)
        with suppress(pulsar.NotConnected):  # the client may have noticed it
            client.close()
    with compactor_service(tmp_path, *options) as running:
        admin, client = Admin(running.url), connected(running.broker_service_url)
        again = client.create_producer(topic, producer_name="A", batching_enabled=False)
        assert again.last_sequence_id() == len(removed)
        for number in removed:
            again.send(b"A%d" % number, partition_key="a", sequence_id=number + 1)
        again.send(b"new", partition_key="a")
        stored = admin.topic("GET", topic, "/messages").text.splitlines()
        client.close()
    assert [json.loads(line)["value"] for line in stored] == ["new"]


def _publish(client: FrameClient, sequence_id: int, value: bytes) -> None:
    entry = encode_message(b"k", value, producer="A", sequence_id=sequence_id, publish_time=1)
    send = {"producer_id": 1, "sequence_id": sequence_id, "num_messages": 1}
    client.send(entry, type=BaseCommand.SEND, send=send)


def test_connection_resets_lose_no_acknowledged_message(service: RunningService, admin: Admin, topic: str) -> None:
    admin.topic("PUT", topic)
    admin.topic("POST", topic, "/deduplicationEnabled", True)
    acknowledged: list[bytes] = []
    serial = 0
    for number in range(ROUNDS):
        with frame_client(service) as client:
            producer = {"topic": topic, "producer_id": 1, "request_id": 1, "producer_name": "A"}
            last = client.ask(type=BaseCommand.PRODUCER, producer=producer).producer_success.last_sequence_id
            values = {}
            for sequence_id in range(last + 1, last + 1 + AT_ONCE):
                values[sequence_id] = b"%d" % serial
                _publish(client, sequence_id, values[sequence_id])
                serial += 1
            if number % 2:
                acknowledged += [values[client.next().send_receipt.sequence_id] for _ in range(AT_ONCE)]
            client.reset()

    lines = admin.topic("GET", topic, f"/messages?limit={2 * ROUNDS * AT_ONCE}").text.splitlines()
    stored = [json.loads(line)["value"].encode() for line in lines]
    assert len(stored) == len(set(stored))
    assert set(acknowledged) <= set(stored)
