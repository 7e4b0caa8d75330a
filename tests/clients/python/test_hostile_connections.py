"""Malformed frames by the thousand, and many connections at once, do not affect other clients."""

from __future__ import annotations

import random
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pulsar
import pytest

from api.pulsar.pulsar_api_pb2 import BaseCommand
from tests.clients.python.conftest import WAIT_MS, connected
from tests.frames import encoded
from tests.servers.compactor_service import RunningService, compactor_service

pytestmark = pytest.mark.slow

FRAMES = 10_000
FRAMES_A_CONNECTION = 20
IDLE, BUSY = 2_000, 200
MOST_GROWTH = 100 << 20


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with compactor_service(tmp_path_factory.mktemp("service")) as running:
        yield running


def frame(**command: object) -> bytes:
    return b"".join(encoded(BaseCommand(**command)))


CONNECT = frame(type=BaseCommand.CONNECT, connect={"client_version": "test", "protocol_version": 20})
PRODUCER = frame(
    type=BaseCommand.PRODUCER,
    producer={"topic": "persistent://public/default/hostile", "producer_id": 1, "request_id": 1},
)


def hostile(rng: random.Random) -> bytes:
    """One frame that no client would send."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 200))
    if kind == 1:  # truncated, with what follows in its place
        return CONNECT[: rng.randrange(1, len(CONNECT))] + rng.randbytes(8)
    if kind == 2:  # oversized
        return rng.randrange(6 << 20, 1 << 32).to_bytes(4, "big") + rng.randbytes(50)
    if kind == 3:  # a wrong checksum
        sent = BaseCommand(type=BaseCommand.SEND, send={"producer_id": 1, "sequence_id": rng.randrange(1 << 60)})
        return b"".join(encoded(sent, b"\x0e\x01" + rng.randbytes(60)))
    if kind == 4:  # of the wrong order, or for no receiver
        commands = [
            {"type": BaseCommand.FLOW, "flow": {"consumer_id": 7, "message_permits": 1 << 31}},
            {"type": BaseCommand.ACK, "ack": {"consumer_id": 7, "ack_type": 0}},
            {"type": BaseCommand.SEEK, "seek": {"consumer_id": 7, "request_id": 9}},
            {"type": BaseCommand.CONNECTED, "connected": {"server_version": "x"}},
            {"type": BaseCommand.CLOSE_CONSUMER, "close_consumer": {"consumer_id": 7, "request_id": 9}},
            {"type": BaseCommand.GET_LAST_MESSAGE_ID, "get_last_message_id": {"consumer_id": 7, "request_id": 9}},
        ]
        return frame(**rng.choice(commands))
    changed = bytearray(rng.choice([CONNECT, PRODUCER]))
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(4, len(changed))] = rng.randrange(256)
    return bytes(changed)


def address(service: RunningService) -> tuple[str, int]:
    url = urlsplit(service.broker_service_url)
    return str(url.hostname), int(url.port or 0)


def resident_bytes(service: RunningService) -> int:
    for line in Path(f"/proc/{service.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the service has ended")


def test_malformed_frames_disturb_nobody(service: RunningService) -> None:
    rng = random.Random(7)
    client = connected(service.broker_service_url)
    producer = client.create_producer("quiet")
    consumer = client.subscribe("quiet", "s")

    def send_some(frames: int) -> None:
        for _ in range(frames // FRAMES_A_CONNECTION):
            with socket.create_connection(address(service), 10) as hostile_client:
                try:
                    if rng.random() < 0.8:
                        hostile_client.sendall(CONNECT + PRODUCER)
                    for _ in range(FRAMES_A_CONNECTION):
                        hostile_client.sendall(hostile(rng))
                except OSError:
                    pass  # it was cut off

    send_some(FRAMES // 5)
    before = resident_bytes(service)
    for turn in range(4):
        send_some(FRAMES // 5)
        producer.send(b"%d" % turn)
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        assert message.data() == b"%d" % turn
    client.close()

    assert resident_bytes(service) - before < MOST_GROWTH
    assert "Traceback" not in service.log.read_text()


def test_many_connections(service: RunningService) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4 * IDLE:
        pytest.skip(f"{hard} file descriptors are too few")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * IDLE), hard))
    with ExitStack() as open_ones:
        for _ in range(IDLE):
            idle = open_ones.enter_context(socket.create_connection(address(service), 10))
            idle.sendall(CONNECT)
            assert idle.recv(4)
        clients = [connected(service.broker_service_url) for _ in range(BUSY)]
        producers = [
            client.create_producer(f"busy-{number % 20}", batching_enabled=True)
            for number, client in enumerate(clients)
        ]
        failed: list[object] = []
        for _ in range(20):
            for producer in producers:
                producer.send_async(
                    b"x" * 100, lambda result, _: None if result == pulsar.Result.Ok else failed.append(result)
                )
        for producer in producers:
            producer.flush()
        for client in clients:
            client.close()

    assert not failed
