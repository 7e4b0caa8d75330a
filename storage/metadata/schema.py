"""Bringing a database to the schema that this version needs, and telling whether it is there.

One Alembic history (the package `migrations`) for SQLite and PostgreSQL. An upgrade is one transaction: it happens or
it does not, and of two at once one waits and then finds nothing left to do. Checking never changes anything, not even
by making an empty SQLite file.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

import migrations
from storage.errors import Misconfigured
from storage.metadata.driver_errors import UPGRADE_REMEDY
from storage.metadata.engine import POSTGRESQL, SQLITE, Database

# Any number does that nobody else uses in this database; it only serialises upgrades among themselves.
_UPGRADE_LOCK = 0x636F6D7061637431


def upgrade(database: Database) -> None:
    """Bring the database to the newest schema; makes the file of a SQLite database, and its folder.

    Raises Misconfigured if a newer compactor has been here, Unavailable.
    """
    file = _sqlite_file(database)
    if file is not None:
        _make_folder(file, database)
    with database.write() as connection:
        if database.dialect == POSTGRESQL:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
        found = _revisions(MigrationContext.configure(connection))
        config = _config()
        if not _known(found, config):
            raise _newer(database, found)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def check(database: Database) -> None:
    """The database has exactly the schema that this version needs. Raises Misconfigured, Unavailable."""
    file = _sqlite_file(database)
    if file is not None and not file.exists():
        raise Misconfigured(f"the database {database.shown_url} does not exist", UPGRADE_REMEDY)
    with database.read() as connection:
        found = _revisions(MigrationContext.configure(connection))
    config = _config()
    heads = set(ScriptDirectory.from_config(config).get_heads())
    if found == heads:
        return
    if not found:
        raise Misconfigured(f"the database {database.shown_url} has no tables of ours", UPGRADE_REMEDY)
    if _known(found, config):
        raise Misconfigured(
            f"the database {database.shown_url} has the schema of an older compactor ({_shown(found)}, not "
            f"{_shown(heads)})",
            UPGRADE_REMEDY,
        )
    raise _newer(database, found)


def _config() -> Config:
    config = Config()
    # Alembic interpolates; a path may well hold a percent sign.
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _revisions(context: MigrationContext) -> set[str]:
    return set(context.get_current_heads())


def _known(found: set[str], config: Config) -> bool:
    ours = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    return found <= ours


def _newer(database: Database, found: set[str]) -> Misconfigured:
    return Misconfigured(
        f"the database {database.shown_url} has the schema of a newer compactor ({_shown(found)})",
        "use that version, or another database",
    )


def _shown(revisions: set[str]) -> str:
    return ", ".join(sorted(revisions))


def _sqlite_file(database: Database) -> Path | None:
    return Path(database.url.database or "") if database.dialect == SQLITE else None


def _make_folder(file: Path, database: Database) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misconfigured(
            f"the folder of the database {database.shown_url} cannot be made: {error.strerror}",
            "choose another path, or change the rights of the folder above",
        ) from error
