"""A broker of Pulsar with the plug-in, the service that compacts its topics, and a link between them that can fail."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from benchmarks.peers.broker import free_ports
from benchmarks.peers.pulsar import Pulsar
from tests.certificates import certificate
from tests.clients.java.broker import pulsar_broker, replicate_to
from tests.clients.java.plugin_jar import FACTORY
from tests.clients.python.conftest import all_of, connected, position, wait_for
from tests.servers.compactor_service import RunningService, compactor_service
from tests.servers.faulty_link import FaultyLink

NAMESPACE = "public/repl"
PATTERN = "persistent://public/(repl|prices)/.*"
SETTINGS = {
    "compactionServiceFactoryClassName": FACTORY,
    "compactorTopics": PATTERN,
    "compactorRetryForMs": "3000",
    "dispatcherReadFailureBackoffInitialTimeInMs": "500",  # 15 s by default
    "defaultRetentionTimeInMinutes": "0",
    "defaultRetentionSizeInMB": "0",
    "replicationStartAt": "earliest",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "brokerServiceCompactionMonitorIntervalInSeconds": "1",
}
_NUMBERS = count()
Row = tuple[str, bytes, tuple[int, int, int]]
"""Key, value and id of a message."""


@dataclass
class CompactingBroker:
    """The three, and a client of the broker. `pattern`: the topics that the service compacts."""

    folder: Path
    broker: Pulsar
    link: FaultyLink
    admin: httpx.Client
    client: pulsar.Client
    ports: tuple[str, ...]
    service: RunningService
    life: ExitStack = field(default_factory=ExitStack)

    def topic(self, namespace: str = NAMESPACE) -> str:
        """The name of a new topic."""
        return f"persistent://{namespace}/c{next(_NUMBERS)}"

    def ask(self, verb: str, topic: str, below: str = "", **options: Any) -> httpx.Response:
        """A call of the broker's REST for a topic."""
        path = topic.replace("://", "/")
        return self.admin.request(verb, f"/admin/v2/{path}{below}", **options)

    def at_service(self, verb: str, topic: str, below: str = "") -> httpx.Response:
        """A call of the service's REST, not through the link."""
        path = topic.replace("://", "/")
        return httpx.request(verb, f"{self.service.url}/admin/v2/{path}{below}", timeout=60)

    def send(self, topic: str, *messages: tuple[str | None, bytes | None], batch: int = 1) -> None:
        """Produce messages, `batch` of them in an entry."""
        options: dict[str, Any] = {"batching_enabled": batch > 1, "block_if_queue_full": True}
        if batch > 1:
            options |= {"batching_max_messages": batch, "batching_max_publish_delay_ms": 10_000}
        producer = self.client.create_producer(topic, **options)
        failed = []
        for key, value in messages:
            chosen = {} if key is None else {"partition_key": key}
            producer.send_async(
                value, lambda result, _: None if result == pulsar.Result.Ok else failed.append(result), **chosen
            )
        producer.flush()
        producer.close()
        assert not failed

    def status(self, topic: str) -> dict[str, str]:
        return dict(self.ask("GET", topic, "/compaction").json())

    def compact(self, topic: str, expected: str = "SUCCESS") -> str:
        """Trigger a compaction and wait for its end; the error, if there is one."""
        answer = self.ask("PUT", topic, "/compaction")
        assert answer.status_code == 204, answer.text
        wait_for(lambda: self.status(topic)["status"] not in ("RUNNING", "NOT_RUN"), seconds=90)
        status = self.status(topic)
        assert status["status"] == expected, status
        return status["lastError"]

    def reader(self, topic: str, **options: Any) -> pulsar.Reader:
        return self.client.create_reader(topic, pulsar.MessageId.earliest, **{"is_read_compacted": True} | options)

    def read(self, topic: str, **options: Any) -> list[Row]:
        """All messages of a compacted read, without slots that compaction dropped."""
        reader = self.reader(topic, **options)
        rows = [(message.partition_key(), message.data(), position(message)) for message in all_of(reader)]
        reader.close()
        return [row for row in rows if row[0] or row[1]]

    def values(self, topic: str, **options: Any) -> list[tuple[str, bytes]]:
        return [(key, value) for key, value, _ in self.read(topic, **options)]

    def unload(self, topic: str) -> None:
        answer = self.ask("PUT", topic, "/unload")
        assert answer.status_code == 204, answer.text

    def cursor(self, topic: str) -> dict[str, Any]:
        """The cursor `__compaction`, by the broker's internal statistics; empty: it has none."""
        cursors = self.ask("GET", topic, "/internalStats").json()["cursors"]
        return dict(cursors.get("__compaction", {}))

    def generation(self, topic: str) -> int | None:
        """The generation that the cursor `__compaction` has in its properties; None: it has none."""
        return self.cursor(topic).get("properties", {}).get("CompactorGeneration")

    def log(self) -> str:
        return (self.broker.folder / "broker.log").read_text(errors="replace")

    def replace_in_settings(self, old: str, new: str) -> None:
        """Change a line of broker.conf, for the next launch."""
        file = self.broker.folder / "standalone.conf"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def restart(self) -> None:
        """Start the broker again, which has ended, with its data and ports."""
        self.broker.launch()
        self.client.close()
        self.client = connected(self.broker.url)

    def stop_service(self) -> None:
        """Kill the service."""
        self.service.process.kill()
        self.service.process.wait()
        self.life.close()

    def start_service(self) -> None:
        self.service = self.life.enter_context(compactor_service(self.folder / "service", *self.ports))


@contextmanager
def compacting_broker(
    folder: Path, version: str, jar: Path, *, is_secure: bool = False, is_direct: bool = False, **settings: str
) -> Iterator[CompactingBroker]:
    """Start a service, and a broker of a version with the plug-in.

    `is_secure`: the link speaks TLS; `is_direct`: the broker asks the service past the link. `settings`: more lines of
    broker.conf.
    """
    with ExitStack() as stack:
        port, broker_service_port = free_ports(2)
        ports = ("--port", str(port), "--broker-service-port", str(broker_service_port))
        (folder / "service").mkdir()
        life = ExitStack()
        stack.callback(lambda: life.close())
        service = life.enter_context(compactor_service(folder / "service", *ports))
        files = certificate(folder) if is_secure else None
        link = stack.enter_context(FaultyLink(service.url, files).running())
        assert httpx.put(f"{service.url}/admin/v2/namespaces/{NAMESPACE}").is_success
        lines = {
            **SETTINGS,
            **settings,
            "compactorServiceUrl": service.url if is_direct else link.url,
            "compactorTlsTrustCertsFilePath": str(files[0]) if files else "",
        }
        broker = stack.enter_context(pulsar_broker(folder, version=version, jar=jar, **lines))
        admin = stack.enter_context(httpx.Client(base_url=broker.web_url, timeout=60))
        replicate_to(admin, "compactor", service.url, service.broker_service_url, NAMESPACE.split("/")[1])
        started = CompactingBroker(folder, broker, link, admin, connected(broker.url), ports, service, life)
        stack.callback(lambda: started.client.close())
        yield started


@contextmanager
def two_compacting_brokers(folder: Path, version: str, jar: Path) -> Iterator[list[CompactingBroker]]:
    """Start a service, and two brokers of one cluster with the plug-in, with a link each.

    The broker that is asked first for a topic that none has loads it.
    """
    with ExitStack() as stack:
        service = stack.enter_context(compactor_service(folder))
        assert httpx.put(f"{service.url}/admin/v2/namespaces/{NAMESPACE}").is_success
        metadata = folder / "zookeeper"
        metadata.mkdir()  # where there is such a folder, a standalone broker starts ZooKeeper, which several can share
        shared = (f"--zookeeper-dir={metadata}", f"--zookeeper-port={free_ports(1)[0]}")
        brokers = []
        for number, arguments in enumerate((shared, (*shared, "--only-broker"))):
            link = stack.enter_context(FaultyLink(service.url).running())
            home = folder / f"home-{number}"
            home.mkdir()
            # Without topics of their own, which each of the brokers would load before it asks the other one.
            lines = SETTINGS | {"compactorServiceUrl": link.url, "topicLevelPoliciesEnabled": "false"}
            lines |= {"systemTopicEnabled": "false"}
            broker = stack.enter_context(
                pulsar_broker(home, version=version, jar=jar, arguments=arguments, address=_outside_address(), **lines)
            )
            admin = stack.enter_context(httpx.Client(base_url=broker.web_url, timeout=60, follow_redirects=True))
            client = connected(broker.url)
            stack.callback(client.close)
            brokers.append(CompactingBroker(home, broker, link, admin, client, (), service))
        url, broker_service_url = service.url, service.broker_service_url
        replicate_to(brokers[0].admin, "compactor", url, broker_service_url, NAMESPACE.split("/")[1])
        yield brokers


def _outside_address() -> str:
    """Return an address of this machine that is not the loopback's.

    A standalone broker there tells clients to stay with the broker that they asked first, even if another one has the
    topic (TopicLookupBase.shouldRedirectThroughServiceUrl): a reader would never follow its topic.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as item:
        try:
            item.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address besides the loopback's")
        return str(item.getsockname()[0])
