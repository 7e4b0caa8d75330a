"""The servers, worlds and the nursery that tests of faults share; each is made when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage.clock import SystemClock
from tests.conformance.metadata.conftest import clock, database_url, open_store, postgres_database, store, topic
from tests.faults.child import Nursery
from tests.faults.worlds import LocalWorlds, S3Worlds, Worlds
from tests.servers.fixtures_postgres import postgres_server
from tests.servers.fixtures_s3 import moto_server, use_credentials, versitygw

__all__ = [
    "clock",
    "database_url",
    "moto_server",
    "open_store",
    "postgres_database",
    "postgres_server",
    "store",
    "topic",
    "versitygw",
]

SCHEMES = ["file", "s3"]
"""Of the stores that crash tests go over; as in `Failpoint.store`."""


@pytest.fixture(scope="session")
def began_ms() -> int:
    """When everything in these worlds begins: the stores date objects by the machine's clock, so ours must agree."""
    return SystemClock().now_ms()


@pytest.fixture(scope="session")
def local_worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return LocalWorlds(tmp_path_factory.mktemp("worlds"))


@pytest.fixture(scope="session")
def s3_worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    folder = tmp_path_factory.mktemp("logs")
    return S3Worlds(request.getfixturevalue("versitygw"), request.getfixturevalue("postgres_server"), folder)


@pytest.fixture
def worlds(request: pytest.FixtureRequest, scheme: str, monkeypatch: pytest.MonkeyPatch) -> Worlds:
    """The worlds of the test's `scheme`, with their credentials in the environment."""
    instance: Worlds = request.getfixturevalue("local_worlds" if scheme == "file" else "s3_worlds")
    if scheme == "s3":
        use_credentials(monkeypatch, request.getfixturevalue("versitygw"))
    return instance


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery
