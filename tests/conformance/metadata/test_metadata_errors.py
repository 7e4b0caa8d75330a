"""A database that cannot serve, or is not ours: a clear error of our tree, and never a password in it."""

from __future__ import annotations

import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, text

from storage.advice import Advice, AdviceKind
from storage.errors import CompactorError, DataLoss, InvalidInput, Misconfigured, NotFound, StorageFull, Unavailable
from storage.metadata.engine import Database
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.conftest import OpenStore, OpenStores
from tests.servers.postgres import PostgresServer

PASSWORD = "s3cret/pa:ss@word"


def raised(kind: type[CompactorError], call: Callable[[], object]) -> CompactorError:
    with pytest.raises(CompactorError) as caught:
        call()
    assert type(caught.value) is kind, caught.value
    return caught.value


def check_no_password(error: CompactorError, url: URL) -> None:
    message = "".join(traceback.format_exception(error))
    assert url.password is not None
    assert url.password not in message
    assert url.render_as_string(hide_password=False) not in message


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"password": PASSWORD}, "password authentication failed"),
        ({"username": "stranger"}, "stranger"),
        ({"database": "nowhere"}, "nowhere"),
    ],
)
def test_a_refused_login_is_misconfigured(
    postgres_server: PostgresServer, open_store: OpenStore, part: dict[str, str], expected: str
) -> None:
    url = postgres_server.url("postgres").set(**part)
    store = open_store(url)
    for call in (store.check_schema, store.upgrade, store.topics.all):
        error = raised(Misconfigured, call)
        assert expected in error.message
        assert "check user, password and database name" in error.remedy
        check_no_password(error, url)
    assert url.password not in store.url
    assert "***" in store.url


def test_a_server_that_is_not_there_is_unavailable(open_store: OpenStore) -> None:
    # Nothing listens on port 1.
    url = URL.create("postgres", "me", PASSWORD, "127.0.0.1", 1, "db")
    error = raised(Unavailable, open_store(url).topics.all)
    assert "127.0.0.1" in error.message
    check_no_password(error, url)


def test_a_session_that_the_server_ends_is_unavailable(postgres_server: PostgresServer, open_store: OpenStore) -> None:
    store = open_store(postgres_server.new_database())

    def die() -> None:
        with store.database.write() as connection:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    raised(Unavailable, die)
    store.upgrade()  # the pool has noticed, and connects again


def test_a_url_that_cannot_be_used_is_misconfigured() -> None:
    for url in (
        "",
        "nonsense",
        f"mysql://me:{PASSWORD}@host/db",
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql://host:port/db",
    ):
        error = raised(Misconfigured, partial(Database, url))
        assert "sqlite:///path" in error.remedy
        assert "pa:ss" not in "".join(traceback.format_exception(error))


def test_options_in_the_url_are_not_shown(clock: ManualClock) -> None:
    store = MetadataStore(f"postgresql://me@host/db?password={PASSWORD.replace('/', '%2F')}", clock)
    assert store.url == "postgresql+psycopg://me@host/db"


def test_a_missing_driver_is_misconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = raised(Misconfigured, lambda: Database(f"postgresql://me:{'x' * 20}@host/db"))
    assert "psycopg" in error.message
    assert error.remedy == "pip install 'ledger-compactor[postgres]'"
    assert "xxx" not in str(error)


def test_a_locked_database_is_unavailable(
    database_url: URL, open_stores: OpenStores, topic: TopicRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.metadata.engine.LOCK_WAIT_SECONDS", 0.001)
    holder, other = open_stores(2)
    with holder.database.write() as connection:
        connection.execute(text("SELECT * FROM topics" + ("" if is_sqlite(database_url) else " FOR UPDATE")))
        error = raised(Unavailable, lambda: other.cursors.ensure(topic.id, "c"))
        assert "try again" in error.remedy
        # Readers do not mind.
        assert other.topics.all() == [topic]
    assert other.cursors.ensure(topic.id, "c").name == "c"


@pytest.mark.parametrize("name", ["a\x00b", "".join(chr(0x4E00 + number) for number in range(9000))])
def test_a_name_that_the_database_cannot_hold_is_invalid_input_or_not_there(
    database_url: URL, open_store: OpenStore, topic: TopicRecord, name: str
) -> None:
    """SQLite holds it: there is no such thing. PostgreSQL cannot even be asked, or cannot keep it."""
    store = open_store(database_url)
    tenant = topic.name.tenant
    with suppress(InvalidInput):
        store.tenancy.set_permissions(tenant, name, ["consume"])
    for check in (lambda: store.cursors.get(topic.id, name), lambda: store.tenancy.tenant(name)):
        with pytest.raises((InvalidInput, NotFound)):
            check()


def is_sqlite(url: URL) -> bool:
    return url.drivername == "sqlite"


def test_schema_states(database_url: URL, open_store: OpenStore) -> None:
    store = open_store(database_url)
    store.check_schema()
    store.upgrade()
    with store.database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for call in (store.check_schema, store.upgrade):
        error = raised(Misconfigured, call)
        assert "newer compactor (9999)" in error.message
    with store.database.write() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
    error = raised(Misconfigured, store.check_schema)
    assert "has no tables of ours" in error.message
    assert error.advice == Advice(AdviceKind.UPGRADE_SCHEMA)


def test_an_empty_postgresql_wants_an_upgrade(postgres_server: PostgresServer, open_store: OpenStore) -> None:
    store = open_store(postgres_server.new_database())
    for call in (store.check_schema, store.topics.all):
        assert raised(Misconfigured, call).advice == Advice(AdviceKind.UPGRADE_SCHEMA)


def test_checking_makes_no_sqlite_file(tmp_path: Path, open_store: OpenStore) -> None:
    file = tmp_path / "deep" / "down" / "metadata.db"
    store = open_store(f"sqlite:///{file}")
    assert raised(Misconfigured, store.check_schema).advice == Advice(AdviceKind.UPGRADE_SCHEMA)
    assert not file.parent.exists()
    raised(Misconfigured, store.topics.all)
    store.upgrade()
    store.check_schema()
    assert file.exists()


def test_a_folder_that_cannot_be_made_is_misconfigured(tmp_path: Path, open_store: OpenStore) -> None:
    (tmp_path / "file").write_text("in the way")
    raised(Misconfigured, open_store(f"sqlite:///{tmp_path}/file/metadata.db").upgrade)
    raised(Misconfigured, open_store(f"sqlite:///{tmp_path}/file/below/metadata.db").upgrade)


def test_a_file_that_is_no_database_is_misconfigured(tmp_path: Path, open_store: OpenStore) -> None:
    file = tmp_path / "holiday.jpg"
    file.write_bytes(b"\xff\xd8 no database" * 100)
    store = open_store(f"sqlite:///{file}")
    for call in (store.check_schema, store.upgrade, store.topics.all):
        assert "holiday.jpg" in raised(Misconfigured, call).message
    assert file.read_bytes() == b"\xff\xd8 no database" * 100


def test_a_full_disk_is_storage_full(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'metadata.db'}")
    store.upgrade()
    topic = store.tenancy.ensure_topic(TopicName.parse("orders"))

    def fill() -> None:
        with store.database.write() as connection:
            pages = connection.execute(text("PRAGMA page_count")).scalar_one()
            connection.execute(text(f"PRAGMA max_page_count = {pages}"))
        store.cursors.ensure(topic.id, "c" * 100_000)

    assert "free some space" in raised(StorageFull, fill).remedy
    assert store.cursors.of_topic(topic.id) == []


@pytest.mark.parametrize(
    ("original", "kind"),
    [
        (psycopg.errors.DiskFull, StorageFull),
        (psycopg.errors.TooManyConnections, Unavailable),
        (psycopg.errors.DeadlockDetected, Unavailable),
        (psycopg.errors.SerializationFailure, Unavailable),
        (psycopg.errors.AdminShutdown, Unavailable),
        (psycopg.errors.ReadOnlySqlTransaction, Misconfigured),
        (psycopg.errors.InsufficientPrivilege, Misconfigured),
        (psycopg.errors.DataCorrupted, DataLoss),
    ],
)
def test_postgresql_states(
    postgres_server: PostgresServer,
    open_store: OpenStore,
    original: type[psycopg.Error],
    kind: type[CompactorError],
) -> None:
    """The server itself raises errors that are hard to cause, with their states."""
    store = open_store(postgres_server.url("postgres"))

    def fail() -> None:
        with store.database.write() as connection:
            connection.execute(text(f"DO $$ BEGIN RAISE 'as ordered' USING ERRCODE = '{original.sqlstate}'; END $$"))

    error = raised(kind, fail)
    assert "as ordered" in error.message
    assert isinstance(error.__cause__, original)


def test_a_damaged_sqlite_file_is_data_loss(tmp_path: Path, open_store: OpenStore) -> None:
    file = tmp_path / "metadata.db"
    store = open_store(f"sqlite:///{file}")
    store.upgrade()
    with store.database.write() as connection:
        page_size = connection.execute(text("PRAGMA page_size")).scalar_one()
    store.close()
    content = bytearray(file.read_bytes())
    content[page_size:] = b"\xa5" * (len(content) - page_size)
    file.write_bytes(content)
    error = raised(DataLoss, store.topics.all)
    assert "backup" in error.remedy
    assert isinstance(error.__cause__, sqlite3.DatabaseError)
