"""One suite that every database passes. A new one joins by a name in DATABASES and a branch in `database_url`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, make_url

from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.lock_order import LockOrder
from tests.servers.fixtures_postgres import postgres_server
from tests.servers.postgres import PostgresServer, ReusedDatabase

__all__ = ["postgres_server"]

DATABASES = ["sqlite", "postgresql"]

OpenStore = Callable[..., MetadataStore]
OpenStores = Callable[[int], list[MetadataStore]]


@pytest.fixture(scope="session")
def postgres_database(postgres_server: PostgresServer) -> Iterator[ReusedDatabase]:
    """A database with our schema, for one test at a time."""
    url = postgres_server.new_database()
    store = MetadataStore(url, ManualClock())
    store.upgrade()
    store.close()
    database = ReusedDatabase(url)
    yield database
    database.close()


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """A database with our schema, of this test alone."""
    if request.param == "postgresql":
        database: ReusedDatabase = request.getfixturevalue("postgres_database")
        return database.reset()
    url = make_url(f"sqlite:///{tmp_path / 'metadata.db'}")
    store = MetadataStore(url, ManualClock())
    store.upgrade()
    store.close()
    return url


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_store(clock: ManualClock) -> Iterator[OpenStore]:
    """Opens stores, and closes them when the test is over. Each of their transactions keeps the order of locks."""
    opened: list[tuple[MetadataStore, LockOrder]] = []

    def opener(url: URL | str) -> MetadataStore:
        store = MetadataStore(url, clock)
        opened.append((store, LockOrder(store.database.engine)))
        return store

    yield opener
    for store, order in opened:
        store.close()
        assert order.violations == []


@pytest.fixture
def open_stores(database_url: URL, open_store: OpenStore) -> OpenStores:
    """Opens stores of this test's database, as so many processes would."""
    return lambda count: [open_store(database_url) for _ in range(count)]


@pytest.fixture
def store(database_url: URL, open_store: OpenStore) -> MetadataStore:
    return open_store(database_url)


@pytest.fixture
def topic(store: MetadataStore) -> TopicRecord:
    return store.tenancy.ensure_topic(TopicName.parse("orders"))


@pytest.fixture
def other(store: MetadataStore, topic: TopicRecord) -> TopicRecord:
    """Another topic, which was created after the first."""
    return store.tenancy.ensure_topic(TopicName.parse("other"))
