"""Pulsar's Python client while the service dies and comes back, with tokens, and with TLS."""

from __future__ import annotations

import base64
import signal
import socket
from pathlib import Path

import jwt
import pulsar
import pytest

from tests.certificates import certificate
from tests.clients.python.conftest import WAIT_MS, Admin, all_of, connected, wait_for
from tests.servers.compactor_service import compactor_service

pytestmark = pytest.mark.slow

EARLIEST = pulsar.InitialPosition.Earliest
TOPIC = "persistent://public/default/t"
SECRET = b"0123456789abcdef0123456789abcdef"


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@pytest.mark.parametrize("deduplicating", [False, True])
def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path, deduplicating: bool) -> None:
    port = free_port()
    config = tmp_path / "config.toml"
    config.write_text(f'"deduplication.enabled" = {str(deduplicating).lower()}\n')
    options = ("--broker-service-port", port)
    acknowledged: list[bytes] = []
    environment = {"COMPACTOR_CONFIG": str(config)}
    with compactor_service(tmp_path, *options, **environment) as running:
        client = connected(running.broker_service_url)
        producer = client.create_producer(
            "t", producer_name="p", batching_enabled=True, batching_max_messages=20, block_if_queue_full=True
        )
        for number in range(2_000):
            value = b"%d" % number
            producer.send_async(
                value,
                lambda result, _, value=value: acknowledged.append(value) if result == pulsar.Result.Ok else None,
            )
            if number == 1_000:
                running.process.send_signal(signal.SIGKILL)
                running.process.wait(30)
                break
    with compactor_service(tmp_path, *options, **environment) as running:
        for number in range(1_001, 2_000):
            value = b"%d" % number
            producer.send_async(
                value,
                lambda result, _, value=value: acknowledged.append(value) if result == pulsar.Result.Ok else None,
            )
        producer.flush()
        read = [message.data() for message in all_of(client.create_reader("t", pulsar.MessageId.earliest))]
        client.close()

    assert set(acknowledged) == {b"%d" % number for number in range(2_000)}
    assert set(read) == set(acknowledged)
    first = list(dict.fromkeys(read))
    assert first == [b"%d" % number for number in range(2_000)]
    if deduplicating:
        assert len(read) == 2_000


def test_a_consumer_goes_on_after_a_restart(tmp_path: Path) -> None:
    options = ("--broker-service-port", free_port())
    with compactor_service(tmp_path, *options) as running:
        client = connected(running.broker_service_url)
        consumer = client.subscribe("t", "s", initial_position=EARLIEST)
        producer = client.create_producer("t")
        for number in range(10):
            producer.send(b"%d" % number)
        for _ in range(5):
            consumer.acknowledge(consumer.receive(WAIT_MS))
        admin = Admin(running.url)
        wait_for(lambda: admin.topic("GET", TOPIC, "/stats").json()["subscriptions"]["s"]["msgBacklog"] == 5)
    with compactor_service(tmp_path, *options):
        producer.send(b"10")
        got: set[bytes] = set()
        while b"10" not in got:
            got.add(consumer.receive(WAIT_MS).data())
        client.close()

    assert got == {b"5", b"6", b"7", b"8", b"9", b"10"}


def test_tokens_and_permissions(tmp_path: Path) -> None:
    with compactor_service(
        tmp_path,
        COMPACTOR_AUTH_TOKEN_SECRET_KEY="data:;base64," + base64.b64encode(SECRET).decode(),
        COMPACTOR_AUTH_SUPERUSER_ROLES="admin",
    ) as running:

        def client_of(role: str) -> pulsar.Client:
            token = jwt.encode({"sub": role}, SECRET, "HS256")
            return connected(running.broker_service_url, authentication=pulsar.AuthenticationToken(token))

        def permit(role: str, action: str) -> None:
            headers = {"Authorization": "Bearer " + jwt.encode({"sub": "admin"}, SECRET, "HS256")}
            Admin(running.url, headers).ask("POST", f"/admin/v2/namespaces/public/default/permissions/{role}", [action])

        admin = client_of("admin")
        admin.create_producer("t").send(b"x")
        permit("writer", "produce")
        permit("reader", "consume")
        writer, reader = client_of("writer"), client_of("reader")
        writer.create_producer("t").send(b"y")
        with pytest.raises(pulsar.AuthorizationError):
            writer.subscribe("t", "s")
        assert reader.subscribe("t", "s", initial_position=EARLIEST).receive(WAIT_MS).data() == b"x"
        with pytest.raises(pulsar.AuthorizationError):
            reader.create_producer("t")
        with pytest.raises(pulsar.AuthorizationError):
            client_of("stranger").create_producer("t")
        with pytest.raises(pulsar.PulsarException):
            connected(running.broker_service_url, operation_timeout_seconds=2).create_producer("t")
        bad = connected(
            running.broker_service_url,
            authentication=pulsar.AuthenticationToken("no.such.token"),
            operation_timeout_seconds=2,
        )
        with pytest.raises(pulsar.PulsarException):
            bad.create_producer("t")


def test_tls(tmp_path: Path) -> None:
    certificate_file, key = certificate(tmp_path)
    port = free_port()
    with compactor_service(
        tmp_path,
        COMPACTOR_TLS_CERTIFICATE=str(certificate_file),
        COMPACTOR_TLS_KEY=str(key),
        COMPACTOR_BROKER_SERVICE_PORT_TLS=port,
    ):
        client = connected(f"pulsar+ssl://127.0.0.1:{port}", tls_trust_certs_file_path=str(certificate_file))
        client.create_producer("t").send(b"x")
        assert [message.data() for message in all_of(client.create_reader("t", pulsar.MessageId.earliest))] == [b"x"]
        client.close()
