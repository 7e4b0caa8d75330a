"""The object store that this database uses: the binding to its identity, and the locations that passed their trial.

The binding is one row: the uid that the store holds, too (storage/store_identity.py compares them), and the location of
the store. The row is inserted before the store's object, unconfirmed, so that the next process finishes a binding that
was cut off. Trials (storage/store_trial.py) have one row per location. Each function may be called again. Must not
know: stores.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, select

from storage.metadata import queries
from storage.metadata.tables import compacted_ledgers, ledgers, store_bindings, store_trials, topics
from storage.metadata.transactions import Context

OBJECTS = "objects"
"""The only role."""


@dataclass(frozen=True)
class StoreBindingRecord:
    """The binding of a store. `uid`: the store's; `url`: its location when it was bound.

    `confirmed`: the store is known to hold the uid.
    """

    uid: str
    url: str
    confirmed: bool


def find(connection: Connection) -> StoreBindingRecord | None:
    """Return the binding of the object store; None: this database has never written to one."""
    row = connection.execute(select(store_bindings).where(store_bindings.c.role == OBJECTS)).one_or_none()
    return None if row is None else StoreBindingRecord(row.uid, row.url, row.bound_at is not None)


def ensure(connection: Connection, url: str) -> StoreBindingRecord:
    """Return the binding of the object store; if there is none, insert one with a new uid, unconfirmed."""
    queries.insert_new(connection, store_bindings, role=OBJECTS, uid=new_uid(), url=url, bound_at=None)
    record = find(connection)
    assert record is not None
    return record


def confirm(connection: Connection, context: Context, uid: str, url: str) -> None:
    """Store that the object store at `url` holds the uid, and is this database's. Call `ensure` before."""
    queries.change(connection, store_bindings, OBJECTS, uid=uid, url=url, bound_at=context.now)


def expected_object(connection: Connection) -> str | None:
    """Return the name of an object that the store must hold; None: the database names none.

    It is of the newest ledger or, without ledgers, of a compacted ledger that serves.
    """
    ledger = select(ledgers.c.rows_name).where(ledgers.c.deleted_at.is_(None)).order_by(ledgers.c.ledger_id.desc())
    compacted = select(compacted_ledgers.c.manifest_name).where(compacted_ledgers.c.retired_at.is_(None))
    for statement in (ledger, compacted):
        name = connection.execute(statement.limit(1)).scalar_one_or_none()
        if name is not None:
            return str(name)
    return None


def knows_topic(connection: Connection, uid: str) -> bool:
    """Return whether a topic that is not deleted has the uid."""
    return queries.exists(connection, topics, topics.c.uid == uid)


def has_passed_trial(connection: Connection, location: str) -> bool:
    """Return whether the object store at `location` has passed its trial.

    `location`: as `store_trial.location_text` returns it.
    """
    return queries.exists(connection, store_trials, store_trials.c.location == location)


def record_passed_trial(connection: Connection, context: Context, location: str) -> None:
    """Record that the object store at a location has passed its trial. Idempotent."""
    queries.insert_new(connection, store_trials, location=location, passed_at=context.now)


def new_uid() -> str:
    """Return a new random uid for a store: 32 hex digits."""
    return secrets.token_hex(16)
