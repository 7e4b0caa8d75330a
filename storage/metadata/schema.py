"""The database schema: upgrade to the schema of this version, and the check for it.

One Alembic history (the package `migrations`) for SQLite and PostgreSQL. An upgrade is one transaction: it happens or
it does not, and of two at once the second waits and has nothing to do. The check changes nothing; it does not even
create an empty SQLite file. It recognizes a database of this version by one statement, without Alembic, which is slow
to load: every service starts with it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

import migrations
from storage.clock import Clock
from storage.errors import Misconfigured, Unavailable
from storage.file_modes import create_private_folder
from storage.metadata.driver_errors import UPGRADE_REMEDY
from storage.metadata.engine import POSTGRESQL, SQLITE, Database
from storage.metadata.liveness import is_alive
from storage.metadata.records import SERVICE_DEAD_MS

if TYPE_CHECKING:
    from alembic.config import Config

# Any number that nothing else locks in this database; it serialises upgrades.
_UPGRADE_LOCK = 0x636F6D7061637431
_VERSIONS = "alembic_version"
_DIGITS = 4


def upgrade(database: Database, clock: Clock) -> None:
    """Bring the database to the newest schema. Creates the file of a SQLite database, and its folder.

    Raises Misconfigured if the schema is of a newer version; Unavailable if a service of the older schema is alive,
    because it would continue to write, or if the database does not answer.
    """
    file = _sqlite_file(database)
    if file is not None:
        if file.exists():
            with database.read() as connection:
                if _stored_revisions(connection) == {newest_revision()}:
                    return
        _create_sqlite_file(file, database)
    from alembic import command

    with database.write() as connection:
        if database.dialect == POSTGRESQL:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
        revisions = _stored_revisions(connection)
        config = alembic_config()
        if not _are_known(revisions, config):
            raise _newer_schema_error(database, revisions)
        if revisions != {newest_revision()}:
            _refuse_running_services(connection, database, clock)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def check(database: Database) -> None:
    """Raise Misconfigured unless the database has exactly the schema of this version. Raises Unavailable."""
    file = _sqlite_file(database)
    if file is not None and not file.exists():
        raise Misconfigured(f"the database {database.redacted_url} does not exist", UPGRADE_REMEDY)
    with database.read() as connection:
        revisions = _stored_revisions(connection)
    if revisions == {newest_revision()}:
        return
    if not revisions:
        raise Misconfigured(f"the database {database.redacted_url} has no tables of ours", UPGRADE_REMEDY)
    if _are_known(revisions, alembic_config()):
        raise Misconfigured(
            f"the database {database.redacted_url} has the schema of an older compactor "
            f"({_revisions_text(revisions)}, not {newest_revision()})",
            UPGRADE_REMEDY,
        )
    raise _newer_schema_error(database, revisions)


def newest_revision() -> str:
    """Return the revision of the schema of this version, four digits.

    Migrations are numbered, and each follows the one before.
    """
    return max(file.name[:_DIGITS] for file in (Path(migrations.__file__).parent / "versions").glob("[0-9]*_*.py"))


def _refuse_running_services(connection: Connection, database: Database, clock: Clock) -> None:
    """Raise Unavailable if a service sends heartbeats; the table is read with the columns that every schema has."""
    if not inspect(connection).has_table("services"):
        return
    now = clock.now_ms()
    rows = connection.execute(text("SELECT name, heartbeat_at FROM services ORDER BY name"))
    running = [str(name) for name, beat in rows if is_alive(str(name), int(beat), SERVICE_DEAD_MS, now)]
    if running:
        raise Unavailable(
            f"the database {database.redacted_url} has the schema of an older compactor, and services of it still run: "
            f"{', '.join(running)}",
            f"stop all services, then upgrade; one that was killed counts as running for {SERVICE_DEAD_MS // 1000} s",
        )


def alembic_config() -> Config:
    """Return the configuration of Alembic that finds the migrations of this version."""
    from alembic.config import Config

    config = Config()
    # Alembic interpolates; a path may well hold a percent sign.
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _stored_revisions(connection: Connection) -> set[str]:
    """Return the revisions that Alembic has stored; none in a database without its table."""
    if not inspect(connection).has_table(_VERSIONS):
        return set()
    return {str(revision) for revision in connection.scalars(text(f"SELECT version_num FROM {_VERSIONS}"))}  # noqa: S608


def _are_known(revisions: set[str], config: Config) -> bool:
    from alembic.script import ScriptDirectory

    return revisions <= {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}


def _newer_schema_error(database: Database, revisions: set[str]) -> Misconfigured:
    return Misconfigured(
        f"the database {database.redacted_url} has the schema of a newer compactor ({_revisions_text(revisions)})",
        "use that version, or another database",
    )


def _revisions_text(revisions: set[str]) -> str:
    return ", ".join(sorted(revisions))


def _sqlite_file(database: Database) -> Path | None:
    return Path(database.url.database or "") if database.dialect == SQLITE else None


def _create_sqlite_file(file: Path, database: Database) -> None:
    try:
        if not file.parent.is_dir():
            create_private_folder(file.parent)
    except OSError as error:
        raise Misconfigured(
            f"the folder of the database {database.redacted_url} cannot be created: {error.strerror}",
            "choose another path, or change the rights of the folder above",
        ) from error
    # SQLite reports the error; its write-ahead log and index get the mode of this file. O_EXCL, because closing an
    # existing file ends SQLite's locks on it (fcntl) in this process; another process then deletes the log in use.
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
