"""What all stores are built from: one database, rows read as records, new rows, and long lists of ids.

Must not know: tables; what a row means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection, RowMapping, Select, Table, insert, update
from sqlalchemy.exc import IntegrityError

from storage.clock import Clock
from storage.metadata.engine import Database

Id = TypeVar("Id", int, str)
Record = TypeVar("Record")

AT_ONCE = 1000
"""Ids in one statement: far below what SQLite (32,766) and PostgreSQL (65,535) take."""


class Store:
    """One noun of a MetadataStore, over its database. Safe to share between threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock


def find(
    connection: Connection,
    statement: Select[Any],
    record: Callable[[RowMapping], Record],
    parameters: Mapping[str, object] | None = None,
) -> Record | None:
    """The record of a statement's row; None: it has none."""
    row = connection.execute(statement, parameters).mappings().one_or_none()
    return None if row is None else record(row)


def fetch(
    connection: Connection,
    statement: Select[Any],
    record: Callable[[RowMapping], Record],
    parameters: Mapping[str, object] | None = None,
) -> list[Record]:
    """The records of a statement's rows, in their order."""
    return [record(row) for row in connection.execute(statement, parameters).mappings()]


def insert_new(connection: Connection, table: Table, **values: object) -> bool:
    """Insert a row; False: there is one of its key, perhaps since a moment ago, and nothing is changed."""
    try:
        with connection.begin_nested():
            connection.execute(insert(table).values(**values))
    except IntegrityError:
        return False
    return True


def change(connection: Connection, table: Table, key: object, **values: object) -> int:
    """Change the row of that key, in a table whose key is one column; 0: there is none."""
    (column,) = table.primary_key.columns
    return connection.execute(update(table).where(column == key).values(**values)).rowcount


def batches(ids: Collection[Id]) -> Iterator[list[Id]]:
    """Ids in their order, as many at a time as go into one statement."""
    ordered = list(ids)
    for first in range(0, len(ordered), AT_ONCE):
        yield ordered[first : first + AT_ONCE]
