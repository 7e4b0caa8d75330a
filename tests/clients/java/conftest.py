"""Pulsar's own Java clients at a real service: one service a module."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from py4j.java_gateway import JavaGateway

from tests.clients.java.jvm import PulsarAdmin, jvm
from tests.clients.java.maven import class_path
from tests.clients.java.messaging import JavaClient, java_client
from tests.clients.python.conftest import Admin
from tests.servers.compactor_service import RunningService, compactor_service

_HERE = Path(__file__).resolve().parent
_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def tools_class_path() -> str:
    """The class path of `pulsar-admin`."""
    return class_path(_HERE / "pulsar-tools.lock")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service of its own, without access control."""
    with compactor_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def rest(service: RunningService) -> Iterator[httpx.Client]:
    """For what no Java client does: producing over REST."""
    with httpx.Client(base_url=service.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client_conf(service: RunningService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pulsar's client.conf for the service."""
    file = tmp_path_factory.mktemp("conf") / "client.conf"
    file.write_text(f"webServiceUrl={service.url}/\n")
    return file


@pytest.fixture(scope="module")
def admin(tools_class_path: str, client_conf: Path) -> Iterator[PulsarAdmin]:
    """`pulsar-admin`, in one Java."""
    with jvm(tools_class_path) as gateway:
        yield PulsarAdmin(gateway, client_conf)


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[JavaGateway]:
    """A Java process with the admin client of the broker that was recorded."""
    with jvm(class_path(_HERE / "pulsar-client.lock")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def gateway() -> Iterator[JavaGateway]:
    """A Java process with Pulsar's client for messages."""
    with jvm(class_path(_HERE / "pulsar-messaging.lock")) as java_process:
        yield java_process


@pytest.fixture(scope="module")
def java(service: RunningService, gateway: JavaGateway) -> Iterator[JavaClient]:
    """Pulsar's client for messages, at the service."""
    with java_client(gateway, service.broker_service_url) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A topic's name that no other test has."""
    return f"persistent://public/default/j{next(_NUMBERS)}"


@pytest.fixture
def compact(service: RunningService) -> Callable[[str], None]:
    """Compacts a topic, and waits for it."""
    return Admin(service.url).compact
