"""Watches in which order transactions lock rows, on any database: SQLite has one lock, but it runs the statements that
PostgreSQL takes row locks for.

The order is that of storage/metadata/topics.py. Tables are compared, and of topics the rows: of several, each is locked
by its id, in ascending order, before attempts and runs of any. What PostgreSQL locks without being
asked counts too: a foreign key is checked with FOR KEY SHARE on the parent's row when a row is inserted, and again when
a row is updated that the same transaction has inserted or updated before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import BindParameter, Connection, Delete, Engine, Insert, Select, Table, Update, event
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BinaryExpression

from storage.metadata.tables import METADATA, topics as topics_table


class Strength(IntEnum):
    """PostgreSQL's row locks, the weakest first."""

    KEY_SHARE = 1
    SHARE = 2
    NO_KEY_UPDATE = 3
    UPDATE = 4


RANKS = {"tenants": 0, "namespaces": 1, "partitioned_topics": 2, "leases": 3, "topics": 4, "attempts": 5, "runs": 6}
_REST = 7
_QUEUES = ("tenants", "namespaces", "topics")
"""A transaction that locks a row of these for itself queues all others: no other one holds what it locks after that,
except rows of the tables of `RANKS`."""


@dataclass
class _Transaction:
    locked: dict[str, Strength] = field(default_factory=dict)
    topics: set[int] = field(default_factory=set)
    written: set[str] = field(default_factory=set)


class LockOrder:
    """Listens to an engine; `violations` names each lock that was taken too late, with the locks before it."""

    def __init__(self, engine: Engine) -> None:
        self.violations: list[str] = []
        self._transactions: WeakKeyDictionary[Connection, _Transaction] = WeakKeyDictionary()
        event.listen(engine, "before_execute", self._before)
        for ending in ("commit", "rollback"):
            event.listen(engine, ending, self._ended)

    def _ended(self, connection: Connection) -> None:
        self._transactions.pop(connection, None)

    def _before(self, connection: Connection, statement: Any, *arguments: Any) -> None:
        transaction = self._transactions.setdefault(connection, _Transaction())
        if _locks_topics(statement):
            many, single, *_ = arguments
            self._topics(transaction, statement, [single, *many])
        if isinstance(statement, Select):
            self._select(transaction, statement)
        elif isinstance(statement, Insert | Update | Delete) and isinstance(statement.table, Table):
            self._write(transaction, statement, statement.table)

    def _select(self, transaction: _Transaction, statement: Select[Any]) -> None:
        for_update = statement._for_update_arg
        if for_update is None or for_update.skip_locked or for_update.nowait:
            return
        if for_update.read:
            strength = Strength.KEY_SHARE if for_update.key_share else Strength.SHARE
        else:
            strength = Strength.NO_KEY_UPDATE if for_update.key_share else Strength.UPDATE
        tables = for_update.of or [item for source in _froms(statement) for item in _tables(source)]
        for table in tables:
            self._lock(transaction, getattr(table, "table", table).name, strength)

    def _topics(self, transaction: _Transaction, statement: Any, parameters: Sequence[Mapping[str, object]]) -> None:
        """Check the order in which topics are locked. All strengths count alike.

        `topics.lock_against_deletion` is the weakest lock.
        """
        ids = _topic_ids(statement, parameters)
        new = sorted(set(ids or ()) - transaction.topics)
        before = max(transaction.topics, default=-1)
        if ids is None and transaction.topics:
            self.violations.append(f"topics are locked behind topic {before}, and not by id")
        elif new and new[0] < before:
            self.violations.append(f"topic {new[0]} is locked behind topic {before}")
        elif len(new) > 1 and not getattr(statement, "_order_by_clauses", ()):
            self.violations.append(f"topics {new} are locked in any order")
        elif new and (later := sorted(item for item in ("attempts", "runs") if item in transaction.locked)):
            self.violations.append(f"topic {new[0]} is locked behind {', '.join(later)}")
        transaction.topics.update(new)

    def _write(self, transaction: _Transaction, statement: Insert | Update | Delete, table: Table) -> None:
        if not isinstance(statement, Insert):
            strength = Strength.UPDATE if isinstance(statement, Delete) else Strength.NO_KEY_UPDATE
            self._lock(transaction, table.name, strength)
        if isinstance(statement, Insert) or (isinstance(statement, Update) and table.name in transaction.written):
            for key in table.foreign_keys:
                self._lock(transaction, key.column.table.name, Strength.KEY_SHARE)
        transaction.written.add(table.name)

    def _lock(self, transaction: _Transaction, table: str, strength: Strength) -> None:
        before = transaction.locked
        # Raising a lock waits for those who share the row; only topics are shared by who continues to lock more.
        enough = strength if table == "topics" else min(strength, Strength.NO_KEY_UPDATE)
        if table not in METADATA.tables or before.get(table, 0) >= enough:
            return
        gated = any(before.get(queue, 0) >= Strength.NO_KEY_UPDATE for queue in _QUEUES)
        rank = RANKS.get(table, _REST)
        later = sorted(item for item in before if rank < RANKS.get(item, rank if gated else _REST))
        if later:
            self.violations.append(f"{table} ({strength.name}) is locked behind {', '.join(later)}")
        before[table] = max(strength, before.get(table, strength))


_FROMS: dict[object, Sequence[Any]] = {}
"""The FROM elements of statements, by what SQLAlchemy finds their compiled form by: to compute them is a half of this
check's time."""


def _froms(statement: Select[Any]) -> Sequence[Any]:
    cache_key = statement._generate_cache_key()
    key = statement if cache_key is None else cache_key.key
    if key not in _FROMS:
        _FROMS[key] = statement.get_final_froms()
    return _FROMS[key]


def _tables(source: Any) -> list[Any]:
    """The tables of a FROM element."""
    if isinstance(source, Table):
        return [source]
    return [table for side in ("left", "right") if hasattr(source, side) for table in _tables(getattr(source, side))]


def _locks_topics(statement: Any) -> bool:
    if isinstance(statement, Select):
        for_update = statement._for_update_arg
        waits = for_update is not None and not (for_update.skip_locked or for_update.nowait or for_update.of)
        return waits and _froms(statement) == [topics_table]
    return isinstance(statement, Update | Delete) and statement.table is topics_table


def _topic_ids(statement: Any, parameters: Sequence[Mapping[str, object]]) -> list[int] | None:
    """Return the ids by which a statement chooses topics. None: it chooses them by another column."""
    for part in visitors.iterate(statement.whereclause):
        by_id = isinstance(part, BinaryExpression) and part.left is topics_table.c.id
        if by_id and part.operator in (operators.eq, operators.in_op) and isinstance(part.right, BindParameter):
            key, value = part.right.key, part.right.value
            values = [item[key] for item in parameters if key in item] or [value]
            return [int(item) for some in values for item in (some if isinstance(some, list | tuple) else [some])]
    return None
