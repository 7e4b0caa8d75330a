"""The history of migrations ends at the tables that the code works with, on every database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, inspect, text

from storage.advice import Advice, AdviceKind
from storage.errors import ErrorText, Misconfigured, Unavailable
from storage.metadata import schema
from storage.metadata.engine import Database
from storage.metadata.records import SERVICE_DEAD_MS, SegmentRecord, SegmentState
from storage.metadata.schema import check, upgrade
from storage.metadata.store import MetadataStore
from storage.metadata.tables import METADATA
from storage.options.policies import TopicPolicies
from tests.clocks import ManualClock
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
    upgrade(migrated, ManualClock())
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
    description: dict[str, Any] = {}
    for table in sorted(set(looked_at.get_table_names()) - {"alembic_version"}):
        description[table] = {
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
            "unique": sorted(looked_at.get_unique_constraints(table), key=lambda constraint: str(constraint["name"])),
            "foreign keys": sorted(looked_at.get_foreign_keys(table), key=lambda constraint: str(constraint["name"])),
        }
    if connection.dialect.name == "sqlite":
        indices = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        counted = text("SELECT name, sql LIKE '%AUTOINCREMENT%' FROM sqlite_master WHERE type = 'table'")
        description["autoincrement"] = {
            name: value for name, value in connection.execute(counted) if name in METADATA.tables
        }
    else:
        indices = text("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'")
    description["indices"] = {
        name: re.sub(r"\s+", " ", sql)
        for name, sql in connection.execute(indices)
        if not name.startswith("alembic_version")
    }
    return description


def test_the_description_sees_the_partial_indices(empty: list[Database]) -> None:
    upgrade(empty[0], ManualClock())
    with empty[0].read() as connection:
        description = described(connection)
    assert set(METADATA.tables) < set(description)
    assert "WHERE" in description["indices"]["uq_runs_running"]
    assert "UNIQUE" in description["indices"]["uq_compacted_ledgers_serving"]


def test_an_older_schema_is_brought_up_to_date_with_what_is_in_it(empty: list[Database]) -> None:
    database = empty[0]
    with database.write() as connection:
        config = schema.alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(text(OLD_TOPIC))
        connection.execute(text(OLD_COMPACTED))
    with pytest.raises(Misconfigured, match=r"older compactor \(0001, not \d{4}\)") as answer:
        check(database)
    assert answer.value.advice == Advice(AdviceKind.UPGRADE_SCHEMA)
    upgrade(database, ManualClock())
    check(database)
    store = MetadataStore(database.url, ManualClock())
    (topic,) = store.topics.all()
    snapshot, pin = store.pins.take(topic.id, "reader", 1)
    assert snapshot.compacted is not None
    assert pin is not None
    assert (str(topic.name), snapshot.compacted.generation, pin.ledger_id) == ("persistent://t/n/old", 4, 77)
    assert store.tenancy.tenants() == ["public", "t"]
    assert store.tenancy.namespaces("t") == ["t/n"]
    assert store.topics.properties(topic.id) == {}
    assert store.tenancy.delete_topic(topic.id).uid == "ab"
    store.close()


OLD_TOPIC = "INSERT INTO topics VALUES (1, 'ab', 'persistent://t/n/old', 5, 4, 9, 100, 0)"
OLD_COMPACTED = (
    "INSERT INTO compacted_ledgers VALUES (77, 1, 4, 99, 3, 2, -1, -1, 'm', 1, 1, 1, 1, 1, 3, 2, -1, -1, 'cd', 0, NULL)"
)


def test_services_that_still_run_stop_an_upgrade(empty: list[Database]) -> None:
    """The older ones would go on writing by the older schema, as during a rolling update of Kubernetes."""
    database, clock = empty[0], ManualClock()
    beat = clock.now_ms()
    with database.write() as connection:
        config = schema.alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0007")
        connection.execute(
            text(
                f"INSERT INTO services (name, url, started_at, heartbeat_at) "
                f"VALUES ('pod-0:1:x', 'http://pod-0', {beat}, {beat})"
            )
        )
    with pytest.raises(Unavailable, match="services of it still run: pod-0:1:x") as refused:
        upgrade(database, clock)
    assert "stop all services" in refused.value.remedy
    with pytest.raises(Misconfigured):
        check(database)
    clock.advance(SERVICE_DEAD_MS)
    upgrade(database, clock)
    check(database)


def test_the_log_comes_to_a_database_with_topics(empty: list[Database]) -> None:
    """From 0002 on: every row stays, nothing is trimmed, nothing waits to be rolled, and the topic can be written."""
    database = empty[0]
    with database.write() as connection:
        config = schema.alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        for statement in (OLD_TOPIC, OLD_COMPACTED, *ROWS_OF_0002):
            connection.execute(text(statement), {"directory": b"\x00\xff"})
        before = everything(connection)
    upgrade(database, ManualClock())
    with database.read() as connection:
        after = everything(connection)
    assert after["policies"] == after["segments"] == after["cursor_ranges"] == []
    for table, rows in before.items():
        assert [{name: row[name] for name in rows[0]} for row in after[table]] == rows, table
    assert len(before) == 9

    clock = ManualClock()
    store = MetadataStore(database.url, clock)
    (topic,) = store.topics.all()
    snapshot = store.topic_snapshot(topic.id)
    assert (topic.start_offset, topic.next_offset, snapshot.segments) == (0, 100, ())
    assert [(ledger.ledger_id, ledger.last_offset, ledger.deleted_at) for ledger in snapshot.ledgers] == [(5, 99, None)]
    assert snapshot.cursor is not None
    assert snapshot.cursor.properties == {"CompactedTopicLedger": "77"}
    assert not store.segments.is_roll_requested(topic.id)
    assert store.policies.effective(topic) == TopicPolicies()
    lease = store.leases.acquire(topic.id, "writer", 1)
    segment = SegmentRecord(store.ledgers.allocate_ids(1), 100, "ab" * 16, SegmentState.OPEN, created_at=1)
    store.segments.open(lease, segment)
    assert store.topic_snapshot(topic.id).segments == (segment,)
    store.close()


ROWS_OF_0002 = (
    "UPDATE sequences SET next_value = 78",
    "INSERT INTO leases VALUES (1, NULL, 7, 0)",
    f"INSERT INTO attempts VALUES ('{'a' * 32}', 1, 'run', 'worker', 1, 2, 3)",
    "INSERT INTO ledgers VALUES (5, 1, 0, 99, 100, 100, 5, 99, -1, -1, 1000, 1, 2, 'rows', 3, 4, 5, 'index', 6, 7, "
    f":directory, '{'b' * 32}', 8)",
    "INSERT INTO cursors VALUES (1, '__compaction', 99, 5, 99, -1, -1, '{\"CompactedTopicLedger\": \"77\"}')",
    "INSERT INTO runs VALUES "
    f"(3, 1, '{'a' * 32}', 'worker', 9, 'SUCCESS', 'done', '{{}}', 1, 2, 3, '', 99, 5, 99, -1, -1, 77, '{{}}')",
    f"INSERT INTO pins VALUES ('{'c' * 32}', 1, 77, 'reader', 9)",
)


def test_texts_of_errors_come_to_have_parts(empty: list[Database]) -> None:
    """From 0011 on, and back: a stored text of two parts becomes two columns, and one without parts stays."""
    database = empty[0]
    two, plain, tail = "it failed\nin full: s3://b failed\nand more", "by hand", "left\nin full: left in /log"
    with database.write() as connection:
        config = schema.alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(text(OLD_TOPIC))
        command.upgrade(config, "0011")
        for error, statistics in ((two, {}), (plain, {"tail_left": tail, "parts": 3}), ("", {})):
            row = {"attempt": error[:9], "error": error, "statistics": json.dumps(statistics)}
            connection.execute(text(OLD_RUN), row)
        connection.execute(text("INSERT INTO controls (topic_id, failures, last_error) VALUES (1, 2, :e)"), {"e": two})
        before = everything(connection)
    upgrade(database, ManualClock())
    with closing(MetadataStore(database.url, ManualClock())) as store:
        (topic,) = store.topics.all()
        runs = store.runs.of_topic(topic.id, 5)
        parts = ErrorText("it failed", "s3://b failed\nand more")
        assert [run.error for run in runs] == [ErrorText(), ErrorText(plain), parts]
        assert [run.skipped_tail_error for run in runs] == [ErrorText(), ErrorText("left", "left in /log"), ErrorText()]
        assert runs[1].statistics["parts"] == 3
        assert store.compaction_control.get(topic.id).last_error == parts
        store.runs.cancel(store.runs.claim(topic.id, "worker", {}, 1).run_id, "not wanted")
        last = store.runs.last(topic.id)
        assert last is not None
        assert last.error == ErrorText("not wanted")
    with database.write() as connection:
        connection.execute(text("DELETE FROM runs WHERE run_id > 3"))
        config.attributes["connection"] = connection
        command.downgrade(config, "0011")
        after = everything(connection)
    after["runs"].sort(key=lambda row: row["run_id"])
    assert (after["runs"], after["controls"]) == (before["runs"], before["controls"])


OLD_RUN = (
    "INSERT INTO runs (topic_id, attempt_id, holder, epoch, state, phase, policies, started_at, heartbeat_at, "
    "error, statistics) VALUES (1, :attempt, 'worker', 9, 'ERROR', 'done', '{}', 1, 2, :error, :statistics)"
)


def everything(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables, by name of table and column."""
    tables = sorted(set(inspect(connection).get_table_names()) - {"alembic_version"})
    contents = {table: connection.execute(text(f"SELECT * FROM {table}")).mappings() for table in tables}
    return {table: [dict(row) for row in rows] for table, rows in contents.items()}


def test_upgrading_twice_and_at_once(empty: list[Database]) -> None:
    database = empty[0]
    others = [Database(database.url) for _ in range(4)]
    assert at_once(*(partial(upgrade, other, ManualClock()) for other in others)) == [None] * 4
    upgrade(database, ManualClock())
    check(database)
    for other in others:
        other.close()
    with database.read() as connection:
        assert connection.execute(text("SELECT name, next_value FROM sequences")).all() == [("ledger", 1)]


def test_an_upgrade_that_fails_leaves_nothing(empty: list[Database]) -> None:
    database = empty[0]
    with database.write() as connection:
        # The last table of the history is in the way.
        connection.execute(text("CREATE TABLE cursor_ranges (mine INTEGER)"))
    with pytest.raises(Exception, match="already exists"):
        upgrade(database, ManualClock())
    assert table_names(database.engine) == ["cursor_ranges"]


def table_names(engine: Engine) -> list[str]:
    return inspect(engine).get_table_names()
