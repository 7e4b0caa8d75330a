"""The history of migrations ends at the tables that the code works with, on every database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, inspect, text

from storage.metadata.engine import Database
from storage.metadata.schema import check, upgrade
from storage.metadata.tables import METADATA
from tests.conformance.metadata.builders import at_once
from tests.servers.postgres import PostgresServer

DATABASES = ["sqlite", "postgresql"]


@pytest.fixture(params=DATABASES)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Database]]:
    """Two empty databases of the same kind."""
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        databases = [Database(server.new_database()) for _ in range(2)]
    else:
        databases = [Database(f"sqlite:///{tmp_path}/with %20 percent {number}.db") for number in range(2)]
    yield databases
    for database in databases:
        database.close()


def test_the_history_makes_the_tables(empty: list[Database]) -> None:
    migrated, created = empty
    upgrade(migrated)
    with created.write() as connection:
        METADATA.create_all(connection)
    with migrated.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        by_history = described(connection)
    with created.read() as connection:
        assert by_history == described(connection)


def described(connection: Connection) -> dict[str, Any]:
    """All that the database knows of our tables, in a form that two databases can be compared by."""
    looked_at = inspect(connection)
    found: dict[str, Any] = {}
    for table in sorted(set(looked_at.get_table_names()) - {"alembic_version"}):
        found[table] = {
            "columns": sorted(
                (
                    column["name"],
                    str(column["type"]),
                    column["nullable"],
                    re.sub(r"\s", "", str(column["default"])),
                )
                for column in looked_at.get_columns(table)
            ),
            "primary key": looked_at.get_pk_constraint(table),
            "unique": sorted(looked_at.get_unique_constraints(table), key=lambda found: str(found["name"])),
            "foreign keys": sorted(looked_at.get_foreign_keys(table), key=lambda found: str(found["name"])),
        }
    if connection.dialect.name == "sqlite":
        indices = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        counted = text("SELECT name, sql LIKE '%AUTOINCREMENT%' FROM sqlite_master WHERE type = 'table'")
        found["autoincrement"] = {name: value for name, value in connection.execute(counted) if name in METADATA.tables}
    else:
        indices = text("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'")
    found["indices"] = {
        name: re.sub(r"\s+", " ", sql)
        for name, sql in connection.execute(indices)
        if not name.startswith("alembic_version")
    }
    return found


def test_the_description_sees_the_partial_indices(empty: list[Database]) -> None:
    upgrade(empty[0])
    with empty[0].read() as connection:
        found = described(connection)
    assert set(METADATA.tables) < set(found)
    assert "WHERE" in found["indices"]["uq_runs_running"]
    assert "UNIQUE" in found["indices"]["uq_compacted_ledgers_serving"]


def test_upgrading_twice_and_at_once(empty: list[Database]) -> None:
    database = empty[0]
    others = [Database(database.url) for _ in range(4)]
    assert at_once([lambda other=other: upgrade(other) for other in others]) == [None] * 4
    upgrade(database)
    check(database)
    for other in others:
        other.close()
    with database.read() as connection:
        assert connection.execute(text("SELECT name, next_value FROM sequences")).all() == [("ledger", 1)]


def test_an_upgrade_that_fails_leaves_nothing(empty: list[Database]) -> None:
    database = empty[0]
    with database.write() as connection:
        # The last table of the history is in the way.
        connection.execute(text("CREATE TABLE runs (mine INTEGER)"))
    with pytest.raises(Exception, match="already exists"):
        upgrade(database)
    assert table_names(database.engine) == ["runs"]


def table_names(engine: Engine) -> list[str]:
    return inspect(engine).get_table_names()
