"""`pulsar-client` and `pulsar-perf`, as their scripts run them, at a real service; real input through three clients."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pulsar
import pytest

from tests.clients.java.jvm import OPTIONS, PulsarAdmin, java, jvm
from tests.clients.java.maven import class_path
from tests.clients.java.messaging import java_client
from tests.clients.python.conftest import connected
from tests.real_input import real_input
from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow

_HERE = Path(__file__).resolve().parent
TOPIC = "persistent://public/default/command-line"


def run(lock: str, main: str, *arguments: str) -> str:
    """A program of Pulsar's; what it printed, its log too."""
    command = [java(), *OPTIONS, "-cp", class_path(_HERE / f"{lock}.lock"), main, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def records(done: str, printed: str) -> int:
    """Return the number of records that pulsar-perf reports as sent or received."""
    return int(re.findall(rf"(\d+) records {done}", printed)[-1])


@pytest.fixture(scope="module")
def conf(service: RunningService, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("conf") / "client.conf"
    file.write_text(f"webServiceUrl={service.url}/\nbrokerServiceUrl={service.broker_service_url}/\n")
    return str(file)


def test_pulsar_client_produces_consumes_and_reads(service: RunningService, conf: str) -> None:
    tool = ("pulsar-tools", "org.apache.pulsar.client.cli.PulsarClientTool", conf)
    run(*tool, "produce", TOPIC, "-m", "one,two,three", "-k", "key")
    read = run(*tool, "read", TOPIC, "-m", "earliest", "-n", "3")
    assert all(word in read for word in ("content:one", "content:two", "content:three"))
    consumed = run(*tool, "consume", TOPIC, "-s", "s", "-n", "2", "-p", "Earliest")
    assert "content:one" in consumed
    assert "content:three" not in consumed
    assert "content:three" in run(*tool, "consume", TOPIC, "-s", "s", "-n", "1")


def test_pulsar_perf_produces_consumes_and_reads(service: RunningService, conf: str) -> None:
    tool = ("pulsar-perf", "org.apache.pulsar.testclient.PulsarPerfTestTool", conf)
    topic, at = "persistent://public/default/perf", ("--service-url", service.broker_service_url)
    count = ("--num-messages", "5000")
    output = run(*tool, "produce", topic, *at, *count, "--rate", "20000", "--warmup-time", "0")
    assert records("sent", output) >= 5000
    assert records("received", run(*tool, "consume", topic, *at, *count, "-sp", "Earliest")) >= 5000
    assert records("received", run(*tool, "read", topic, *at, *count)) >= 5000


def test_real_changes_through_python_pulsar_admin_and_java(service: RunningService, conf: str) -> None:
    source = real_input()
    topic = "persistent://public/default/bookkeeper"
    client = connected(service.broker_service_url)
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    failed: list[object] = []
    for key, value in source.messages:
        producer.send_async(
            value or b"",
            lambda result, _: None if result == pulsar.Result.Ok else failed.append(result),
            partition_key=key,
        )
    producer.flush()
    client.close()
    assert not failed
    with jvm(class_path(_HERE / "pulsar-tools.lock")) as gateway:
        admin = PulsarAdmin(gateway, Path(conf))
        admin("topics", "compact", topic).done()
        admin("topics", "compaction-status", "--wait-complete", topic).done()
    with (
        jvm(class_path(_HERE / "pulsar-messaging.lock")) as gateway,
        java_client(gateway, service.broker_service_url) as reader,
    ):
        values = {message.key.encode(): message.value for message in reader.reader(topic, compacted=True).all()}
    assert values == source.tree
