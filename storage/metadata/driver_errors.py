"""Translation of a database driver's errors into our error tree (storage/errors.py).

    unreachable, locked, shutting down, deadlock -> Unavailable      disk full -> StorageFull
    password, rights, missing database or table  -> Misconfigured    damaged file -> DataLoss
    a text that it cannot hold (NUL, too long)   -> InvalidInput

All other errors (a constraint, a type) are defects of ours and are raised unchanged. SQLite and PostgreSQL identify an
error by code; only a refused PostgreSQL login and a NUL have none, so there the English text is checked, and an error
that remains unclear counts as Unavailable. The password is removed from every message.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, TimeoutError as PoolTimeout

from storage.advice import Advice, AdviceKind
from storage.errors import CompactorError, DataLoss, InvalidInput, Misconfigured, StorageFull, Unavailable

UPGRADE_REMEDY = Advice(AdviceKind.UPGRADE_SCHEMA)

_UNHELD = "give a shorter text, without NUL"
_RETRY = "try again; if it stays, check the database"
_FREE_SPACE = "free some space, then try again"
_LOGIN = "check user, password and database name in the database URL, and the user's rights"
_SQLITE_FILE = "check that its directory exists and that this user may write there"

_BY_SQLITE_NAME: dict[str, tuple[type[CompactorError], str | Advice]] = {
    "SQLITE_BUSY": (Unavailable, "another process is writing; try again"),
    "SQLITE_LOCKED": (Unavailable, "another process is writing; try again"),
    "SQLITE_FULL": (StorageFull, _FREE_SPACE),
    "SQLITE_IOERR": (Unavailable, "check the disk, then try again"),
    "SQLITE_PROTOCOL": (Unavailable, _RETRY),
    "SQLITE_CANTOPEN": (Misconfigured, _SQLITE_FILE),
    "SQLITE_READONLY": (Misconfigured, _SQLITE_FILE),
    "SQLITE_PERM": (Misconfigured, _SQLITE_FILE),
    "SQLITE_AUTH": (Misconfigured, _SQLITE_FILE),
    "SQLITE_NOTADB": (Misconfigured, "the file is something else; check the path in the database URL"),
    "SQLITE_CORRUPT": (DataLoss, "the file is damaged; bring it back from a backup"),
}
"""By SQLite's result code without its extension: SQLITE_IOERR stands for SQLITE_IOERR_FSYNC too."""

_BY_SQLSTATE: dict[str, tuple[type[CompactorError], str | Advice]] = {
    "08": (Unavailable, _RETRY),  # connection
    "28": (Misconfigured, _LOGIN),
    "3D": (Misconfigured, _LOGIN),
    "40": (Unavailable, "another transaction was in the way; try again"),
    "42501": (Misconfigured, _LOGIN),
    "42P01": (Misconfigured, UPGRADE_REMEDY),  # no such table
    "42703": (Misconfigured, UPGRADE_REMEDY),  # no such column
    "22021": (InvalidInput, _UNHELD),  # no text of the encoding
    "25006": (Misconfigured, "the server is read-only (a standby?); use the primary's URL"),
    "54": (InvalidInput, _UNHELD),  # too long for an index
    "53": (Unavailable, _RETRY),  # out of memory, too many connections
    "53100": (StorageFull, _FREE_SPACE),
    "55P03": (Unavailable, "another transaction holds the row; try again"),
    "57": (Unavailable, _RETRY),  # shutting down, starting, cancelled
    "58": (Unavailable, _RETRY),  # the server's own disk
    "XX001": (DataLoss, "the database is damaged; bring it back from a backup"),
    "XX002": (DataLoss, "an index of the database is damaged; REINDEX or bring it back from a backup"),
}
"""By SQLSTATE or its class (the first two characters); the longer one wins."""

_REFUSED_LOGIN = (
    "password authentication failed",
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    'FATAL:  database "',
    'FATAL:  role "',
    "invalid connection option",
    "invalid URI",
)


@contextmanager
def translate_driver_errors(url: URL) -> Iterator[None]:
    """Translate errors of the driver that are raised inside the context, with the driver's error as the cause.

    `url`: of the database, for the text. Errors that are defects of ours are raised unchanged.
    """
    try:
        yield
    except DBAPIError as error:
        named = _translate(url, error)
        if named is None:
            raise
        raise named from error.orig
    except PoolTimeout as error:
        raise Unavailable(
            f"no connection to the database {url_without_password(url)} came free in time",
            "try again, or run fewer things at once",
        ) from error


def may_mean_disk_full(original: object) -> bool:
    """Return whether a driver's error has one of the codes that SQLite reports when the disk is full."""
    name = getattr(original, "sqlite_errorname", None) or ""
    return name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN"))


def url_without_password(url: URL) -> str:
    """Return the URL without the password, and without options, which may hold another password."""
    return url.set(query={}).render_as_string(hide_password=True)


def _translate(url: URL, error: DBAPIError) -> CompactorError | None:
    original = error.orig
    if isinstance(original, sqlite3.Error):
        kind_and_remedy = _classify_sqlite_error(original)
    else:
        kind_and_remedy = _classify_postgresql_error(original, error)
    if kind_and_remedy is None:
        return None
    kind, remedy = kind_and_remedy
    public = "a text in it cannot be held" if kind is InvalidInput else ""
    message = f"the database {url_without_password(url)} failed: {_redacted_first_line(original, url)}"
    return kind(message, remedy, public=public)


def _classify_sqlite_error(original: sqlite3.Error) -> tuple[type[CompactorError], str | Advice] | None:
    if "no such table" in str(original) or "no such column" in str(original):
        return Misconfigured, UPGRADE_REMEDY
    name = getattr(original, "sqlite_errorname", None) or ""
    return _BY_SQLITE_NAME.get("_".join(name.split("_")[:2]))


def _classify_postgresql_error(original: object, error: DBAPIError) -> tuple[type[CompactorError], str | Advice] | None:
    state = getattr(original, "sqlstate", None)
    if state:
        return _BY_SQLSTATE.get(state) or _BY_SQLSTATE.get(state[:2])
    if any(part in str(original) for part in _REFUSED_LOGIN):
        return Misconfigured, _LOGIN
    if type(original).__name__ == "DataError" and "NUL" in str(original):
        return InvalidInput, _UNHELD
    # Without a code the server was never reached, or the connection was lost.
    if error.connection_invalidated or type(original).__name__ == "OperationalError":
        return Unavailable, "check that the database runs and can be reached from here, then try again"
    return None


def _redacted_first_line(original: object, url: URL) -> str:
    lines = str(original).strip().splitlines()
    text = lines[0] if lines else type(original).__name__
    return text.replace(url.password, "***") if url.password else text
