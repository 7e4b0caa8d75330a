"""Deduplication where connections end at any moment: what is acknowledged is stored, once."""

from __future__ import annotations

import json

import pytest

from api.gateway.pulsar_api_pb2 import BaseCommand
from storage.entries.encode import encode_message
from tests.clients.python.conftest import Admin
from tests.clients.python.frame_client import FrameClient, frame_client
from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow
ROUNDS = 40
AT_ONCE = 5


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
