"""Two services on one database and one store, each with a log directory of its own: clients may ask either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pulsar
import pytest

from tests.clients.python.conftest import WAIT_MS, Admin, all_of, connected, wait_for
from tests.servers.compactor_service import RunningService, compactor_service
from tests.servers.service_forks import service_forks

pytestmark = pytest.mark.slow

TOPIC = "persistent://public/default/t"
EARLIEST = pulsar.InitialPosition.Earliest


class Services:
    """Services on one database and store."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._shared = {
            "COMPACTOR_DATABASE": f"sqlite:///{folder / 'metadata.db'}",
            "COMPACTOR_STORE": (folder / "objects").as_uri(),
        }
        with service_forks().open("--database", self._shared["COMPACTOR_DATABASE"], "db", "upgrade") as upgrade:
            output = upgrade.communicate()
        assert upgrade.wait() == 0, output

    def start(self, name: str) -> RunningService:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return self._stack.enter_context(compactor_service(folder, **self._shared))

    def end(self, service: RunningService) -> None:
        service.process.terminate()
        service.process.wait(30)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with ExitStack() as stack:
        yield Services(tmp_path, stack)


def test_either_service_leads_to_the_owner_and_shows_its_clients(services: Services) -> None:
    first, second = services.start("first"), services.start("second")
    owner, other = connected(first.broker_service_url), connected(second.broker_service_url)
    owner.create_producer(TOPIC).send(b"1")

    other.create_producer(TOPIC).send(b"2")
    consumer = other.subscribe(TOPIC, "s", initial_position=EARLIEST)

    assert [consumer.receive(WAIT_MS).data() for _ in range(2)] == [b"1", b"2"]
    for service in (first, second):
        admin = Admin(service.url)
        stats = admin.topic("GET", TOPIC, "/stats").json()
        assert len(stats["publishers"]) == 2
        assert len(stats["subscriptions"]["s"]["consumers"]) == 1
        lookup = admin.ask("GET", "/lookup/v2/topic/" + TOPIC.replace("://", "/")).json()
        assert urlsplit(lookup["brokerUrl"]).port == urlsplit(first.broker_service_url).port
    _check_deletion_of_partitions(owner, Admin(second.url))
    owner.close()
    other.close()


def _check_deletion_of_partitions(owner: pulsar.Client, other: Admin) -> None:
    """Delete a partitioned topic at a service that has none of its clients."""
    name = "persistent://public/default/parted"
    path = f"{other.url}/admin/v2/{name.replace('://', '/')}"
    other.topic("PUT", name, "/partitions", 2)
    consumer = owner.subscribe(name, "s")
    refusal = httpx.delete(f"{path}/partitions")
    assert refusal.status_code == 412
    assert f"{name}-partition-0 has active" in refusal.text
    consumer.close()
    producer = owner.create_producer(f"{name}-partition-1", send_timeout_millis=1_000)
    assert httpx.delete(f"{path}/partitions").status_code == 412
    other.topic("DELETE", name, "/partitions?force=true")
    with pytest.raises(pulsar.Timeout):  # it connects again, which is refused
        producer.send(b"1")
    with pytest.raises(pulsar.NotAllowedError):
        owner.subscribe(f"{name}-partition-1", "s")
    assert httpx.get(f"{path}-partition-1/stats").status_code == 404


def test_a_service_takes_over_what_is_sealed(services: Services) -> None:
    first, second = services.start("first"), services.start("second")
    client = connected(f"{first.broker_service_url},{second.broker_service_url.removeprefix('pulsar://')}")
    producer = client.create_producer(TOPIC, producer_name="p")
    consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
    for number in range(10):
        producer.send(b"%d" % number)
    for _ in range(5):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    owner = Admin(first.url)
    wait_for(lambda: owner.topic("GET", TOPIC, "/stats").json()["subscriptions"]["s"]["msgBacklog"] == 5)
    # What is not sealed is in the log directory of the service that ends: no other has it.
    owner.compact(TOPIC)
    services.end(first)

    producer.send(b"10")

    got = set[bytes]()
    while b"10" not in got:
        got.add(consumer.receive(WAIT_MS).data())
    assert got >= {b"%d" % number for number in range(5, 11)}
    assert [message.data() for message in all_of(client.create_reader(TOPIC, pulsar.MessageId.earliest))] == [
        b"%d" % number for number in range(11)
    ]
    client.close()


def test_what_is_not_sealed_waits_for_its_service(services: Services) -> None:
    first, second = services.start("first"), services.start("second")
    client = connected(second.broker_service_url)
    connected(first.broker_service_url).create_producer(TOPIC).send(b"1")
    producer = client.create_producer(TOPIC, send_timeout_millis=0)
    services.end(first)
    sent = list[pulsar.Result]()
    producer.send_async(b"2", lambda result, _: sent.append(result))

    services.start("first")
    wait_for(lambda: sent)

    assert sent == [pulsar.Result.Ok]
    read = all_of(client.create_reader(TOPIC, pulsar.MessageId.earliest))
    assert [message.data() for message in read] == [b"1", b"2"]
    client.close()
