"""Queries of every module: rows read as records, new rows, changed rows, and long lists of ids.

Must not know: tables, the meaning of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection, RowMapping, Select, Table, insert, update
from sqlalchemy.exc import IntegrityError

Id = TypeVar("Id", int, str)
Record = TypeVar("Record")

AT_ONCE = 1000
"""The number of ids in one statement, far below the limits of SQLite (32,766) and PostgreSQL (65,535)."""


def find(
    connection: Connection,
    statement: Select[Any],
    record: Callable[[RowMapping], Record],
    parameters: Mapping[str, object] | None = None,
) -> Record | None:
    """Return the record of the one row that a statement selects; None: it selects none."""
    row = connection.execute(statement, parameters).mappings().one_or_none()
    return None if row is None else record(row)


def fetch(
    connection: Connection,
    statement: Select[Any],
    record: Callable[[RowMapping], Record],
    parameters: Mapping[str, object] | None = None,
) -> list[Record]:
    """Return the records of the rows that a statement selects, in their order."""
    return [record(row) for row in connection.execute(statement, parameters).mappings()]


def insert_new(connection: Connection, table: Table, **values: object) -> bool:
    """Insert a row. Returns False, and changes nothing, if a row with its key exists, perhaps since a moment ago."""
    try:
        with connection.begin_nested():
            connection.execute(insert(table).values(**values))
    except IntegrityError:
        return False
    return True


def change(connection: Connection, table: Table, key: object, **values: object) -> int:
    """Change the row of that key, in a table whose key is one column; return the number of rows: 0 or 1."""
    (column,) = table.primary_key.columns
    return connection.execute(update(table).where(column == key).values(**values)).rowcount


def batches(ids: Collection[Id]) -> Iterator[list[Id]]:
    """Yield ids in their order, as many at a time as go into one statement."""
    ordered = list(ids)
    for first in range(0, len(ordered), AT_ONCE):
        yield ordered[first : first + AT_ONCE]
