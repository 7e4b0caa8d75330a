"""Opening a database by URL, and its three kinds of transaction.

    read      what one statement sees
    snapshot  everything as of one moment, over several statements
    write     all or nothing; a row that was read with `FOR UPDATE` stays as it is until the end

PostgreSQL: READ COMMITTED with row locks for writes, REPEATABLE READ (read-only) for snapshots. SQLite: one writer at
a time, by BEGIN IMMEDIATE, so that a write changes the rows that it read, and waits for a lock at the start, where
SQLite waits, and not in the middle, where it fails at once; readers never wait (WAL). A commit is on disk when it
returns (synchronous=FULL).

Errors are those of driver_errors.py. Nothing here connects before it has to. Must not know: tables.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from storage.errors import CompactorError, Misconfigured, StorageFull, Unavailable
from storage.metadata.disk_reserve import DiskReserve
from storage.metadata.driver_errors import may_mean_disk_full, translate_driver_errors, url_without_password

Answer = TypeVar("Answer")

SQLITE = "sqlite"
POSTGRESQL = "postgresql"

LOCK_WAIT_SECONDS = 30
"""The time for which a transaction waits for another's lock before it fails as Unavailable."""

_URL_REMEDY = "use sqlite:///path/to/file.db or postgresql://user:password@host/database"
# A dead server is noticed in half a minute, not after TCP's two hours.
_POSTGRESQL_DEFAULTS = {
    "connect_timeout": "10",
    "application_name": "compactor",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_WAL_TRIES = 10
_MAX_CONNECTIONS = 5
_MAX_MORE_CONNECTIONS = 20


class Database:
    """An engine and its transactions. Safe to share between threads, not between processes."""

    def __init__(self, url: str | URL) -> None:
        """Create the engine; does not connect. Raises Misconfigured for a URL that cannot be used."""
        self.url = _parse_url(url)
        self.engine = open_engine(self.url)
        self.dialect = self.engine.dialect.name
        self.reserve: DiskReserve | None = None
        """The space that is kept for a full disk; None: the database is not a local file."""
        self._writing: Engine = self.engine
        self._snapshots: Engine = self.engine
        if self.dialect == SQLITE:
            assert self.url.database is not None, "it was parsed"
            self.reserve = DiskReserve(Path(self.url.database))
            self._writing = self.engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")
        else:
            self._snapshots = self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    @property
    def redacted_url(self) -> str:
        """The URL without its password."""
        return url_without_password(self.url)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads. Its statements may see different moments, unlike those of `snapshot`.

        Raises Unavailable, Misconfigured.
        """
        with self._translate_errors_and_free_reserve(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Open a transaction that only reads, and in which all statements see the same moment. Raises as `read`."""
        with self._translate_errors_and_free_reserve(), self._snapshots.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that commits at the end, or is rolled back if anything was raised.

        Raises Unavailable, StorageFull, Misconfigured. After Unavailable from a lost connection the commit may have
        happened: check before you repeat the change, or let `write_once` check.
        """
        with self._translate_errors_and_free_reserve(), self._writing.begin() as connection:
            if self.dialect == POSTGRESQL:
                connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_WAIT_SECONDS}s'"))
            yield connection

    def write_once(
        self, change: Callable[[Connection], Answer], happened: Callable[[Connection, Answer], bool], question: str
    ) -> Answer:
        """Execute `change` in a write that must not count as failed when only the answer to its COMMIT was lost.

        If the COMMIT fails as Unavailable, `happened(connection, answer)` checks once, in a transaction of its own,
        whether the change was committed. It must first lock a row that `change` has locked: the lost transaction may
        still be about to end. Returns the answer of `change`. Raises the errors of `write`; if the check fails too,
        Unavailable, which says that `question` ("whether ...") is not known.
        """
        committing = False
        try:
            with self.write() as connection:
                answer = change(connection)
                committing = True
            return answer
        except Unavailable as error:
            if not committing:
                raise
            lost = error
        try:
            with self.write() as connection:
                if happened(connection, answer):
                    return answer
        except CompactorError as second:
            raise Unavailable(
                f"{question} is not known: {lost.message}; and when checked: {second.message}",
                "check when the database answers again, before doing it again",
            ) from lost
        raise lost

    @contextmanager
    def _translate_errors_and_free_reserve(self) -> Iterator[None]:
        """Translate the driver's errors that are raised inside. The first for lack of space frees the disk reserve."""
        try:
            with translate_driver_errors(self.url):
                yield
        except Unavailable as error:
            if self.reserve is None or not may_mean_disk_full(error.__cause__):
                raise
            freed = self.reserve.release_if_full()
            if not freed:
                raise
            raise StorageFull(
                f"{error.message}; the disk is full, and {freed} bytes that were reserved for this are free now",
                "try again; then delete topics, trim them or free space otherwise",
            ) from error

    def close(self) -> None:
        """Close all connections that are not in use. The object may be used again afterwards."""
        self.engine.dispose()


def _parse_url(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The text is not repeated, and the cause is dropped: it may contain a password.
        raise Misconfigured("the database URL cannot be read as a URL", _URL_REMEDY) from None
    backend = parsed.drivername.partition("+")[0]
    if backend in ("postgres", POSTGRESQL):
        return parsed.set(drivername="postgresql+psycopg")
    if backend != SQLITE:
        raise Misconfigured(
            f"the database URL {url_without_password(parsed)} is neither SQLite's nor PostgreSQL's", _URL_REMEDY
        )
    if parsed.database in (None, "", ":memory:"):
        raise Misconfigured(
            f"the database URL {url_without_password(parsed)} names no file, so nothing would last", _URL_REMEDY
        )
    return parsed.set(drivername=SQLITE)


def open_engine(url: URL) -> Engine:
    """Create an engine with the pool and the settings of each connection; it does not connect."""
    options: dict[str, Any] = {
        "pool_size": _MAX_CONNECTIONS,
        "max_overflow": _MAX_MORE_CONNECTIONS,
        "pool_timeout": LOCK_WAIT_SECONDS,
        # Values may be large (index directories) and belong in no log and no error.
        "hide_parameters": True,
    }
    if url.drivername == SQLITE:
        if _is_in_read_only_folder(Path(str(url.database))):
            engine = create_engine(_immutable_file_url(url), **options)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        engine = create_engine(url, connect_args={"timeout": LOCK_WAIT_SECONDS}, **options)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    # The options of the URL have priority; connect_args would override them.
    defaults = {name: value for name, value in _POSTGRESQL_DEFAULTS.items() if name not in url.query}
    try:
        return create_engine(url, pool_pre_ping=True, connect_args=defaults, **options)
    except ImportError as error:
        raise Misconfigured(
            f"the database {url_without_password(url)} needs psycopg, which cannot be loaded ({error})",
            "pip install 'ledger-compactor[postgres]'",
        ) from error


def _is_in_read_only_folder(file: Path) -> bool:
    """Return whether a database file exists in a folder in which this process may not write, as SQLite must."""
    return file.exists() and not os.access(file.parent, os.W_OK)


def _immutable_file_url(url: URL) -> URL:
    """Return the URL by which SQLite reads a file that no process changes.

    Raises Misconfigured for a copy of a database that was in use.
    """
    file = Path(str(url.database)).absolute()
    log = file.with_name(f"{file.name}-wal")
    if log.exists() and log.stat().st_size:
        raise Misconfigured(
            f"{file} is in a folder that cannot be written, and was copied while a process used it ({log.name} is not "
            "empty)",
            "copy the folder to where it can be written",
        )
    query = {"mode": "ro", "immutable": "1", "uri": "true"}
    return URL.create(SQLITE, database=f"file:{quote(str(file))}", query=query)


def _prepare_sqlite(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    assert isinstance(connection, sqlite3.Connection)
    # Python's own transaction control begins late and never IMMEDIATE; _begin_sqlite does it instead.
    connection.isolation_level = None
    try:
        _use_write_ahead_log(connection)
        for pragma in ("synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}").close()
    except sqlite3.Error:
        connection.close()  # the pool does not have it yet, so it would not
        raise


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Set SQLite's journal mode to WAL, which is stored in the file.

    Only concurrent first openings of a new file conflict here.
    """
    for tries_left in reversed(range(_WAL_TRIES)):
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or not tries_left:
                raise
        # SQLite does not wait for a lock when it changes the mode, but it does for this.
        connection.execute("BEGIN IMMEDIATE").close()
        connection.rollback()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))
