"""Pulsar's own Java clients at a real service: one service a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from py4j.java_gateway import JavaGateway

from tests.clients.java.jvm import PulsarAdmin, jvm
from tests.clients.java.maven import class_path
from tests.servers.compactor_service import RunningService, compactor_service

_HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def tools_class_path() -> str:
    """What `pulsar-admin` runs with."""
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


@pytest.fixture
def admin(tools_class_path: str, client_conf: Path) -> Iterator[PulsarAdmin]:
    """`pulsar-admin`, in a Java of its own: the clients that each call leaves open would make it slow."""
    with jvm(tools_class_path) as gateway:
        yield PulsarAdmin(gateway, client_conf)


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[JavaGateway]:
    """A Java process with the admin client of the broker that was recorded."""
    with jvm(class_path(_HERE / "pulsar-client.lock")) as gateway:
        yield gateway
