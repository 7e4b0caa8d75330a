"""Queries of every module: rows read as records, new rows, changed rows, sums, and long lists of ids.

Must not know: tables, the meaning of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Table,
    cast,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

Id = TypeVar("Id", int, str)
Record = TypeVar("Record")

OnConflictInsert = sqlite.Insert | postgresql.Insert
_INSERTS: Mapping[str, Callable[[Table], OnConflictInsert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}
"""Inserts that can change a row instead, by dialect."""
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
    return [record(row) for row in connection.execute(statement, parameters).mappings().all()]


def insert_new(connection: Connection, table: Table, **values: object) -> bool:
    """Insert a row. Returns False, and changes nothing, if another row has its key, or was just inserted with it."""
    try:
        with connection.begin_nested():
            connection.execute(insert(table).values(**values))
    except IntegrityError:
        return False
    return True


def insert_numbered(connection: Connection, table: Table, **values: object) -> int:
    """Insert a row, and return the key that the database gave it."""
    inserted = connection.execute(insert(table).values(**values)).inserted_primary_key
    assert inserted is not None
    return int(inserted[0])


def change(connection: Connection, table: Table, key: object, **values: object) -> int:
    """Update columns of the row of that key, in a table whose key is one column; return the number of rows: 0 or 1."""
    (column,) = table.primary_key.columns
    return connection.execute(update(table).where(column == key).values(**values)).rowcount


def change_where(connection: Connection, table: Table, condition: ColumnElement[bool], **values: object) -> int:
    """Update columns of the rows that meet a condition; return their number."""
    return connection.execute(update(table).where(condition).values(**values)).rowcount


def exists(connection: Connection, table: Table, condition: ColumnElement[bool]) -> bool:
    """Return whether a row meets a condition."""
    return connection.execute(select(*table.primary_key.columns).where(condition).limit(1)).first() is not None


def put(connection: Connection, table: Table, *rows: Mapping[str, object]) -> None:
    """Insert rows, or change those whose keys exist, to the values of the same columns; of two callers the last counts.

    `rows`: at least one; all have the same columns, the key among them. One statement for any number of rows.
    """
    statement = _INSERTS[connection.dialect.name](table)
    changed = {name: statement.excluded[name] for name in rows[0] if not table.c[name].primary_key}
    connection.execute(statement.on_conflict_do_update(index_elements=table.primary_key, set_=changed), list(rows))


def insert_for_on_conflict(dialect: str, table: Table) -> OnConflictInsert:
    """Return an insert into the table that may have an ON CONFLICT clause."""
    return _INSERTS[dialect](table)


def total(values: ColumnElement[int]) -> ColumnElement[int]:
    """Return the sum of a column or expression, 0 without rows; PostgreSQL's own sum of BIGINT is a decimal."""
    return cast(func.coalesce(func.sum(values), 0), BigInteger)


def batches(ids: Collection[Id], size: int | None = None) -> Iterator[list[Id]]:
    """Yield `ids` in lists, in their order, `size` at a time; None: AT_ONCE, as many as a statement may have."""
    ordered, size = list(ids), size or AT_ONCE
    for first in range(0, len(ordered), size):
        yield ordered[first : first + size]
