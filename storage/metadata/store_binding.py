"""StoreBinding: the identity of the object store that this database uses.

One row: the uid that the store holds, too (storage/store_identity.py compares them), and where the store was. The row
comes before the store's object, unconfirmed, so that the next process finishes what one left that was cut off.
Each method is one transaction, may be called again, and may raise Unavailable and Misconfigured. Must not know: stores.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, select

from storage.clock import Clock
from storage.metadata import queries
from storage.metadata.engine import Database
from storage.metadata.queries import Store
from storage.metadata.tables import compacted_ledgers, ledgers, store_bindings, topics

OBJECTS = "objects"
"""The one role there is."""


@dataclass(frozen=True)
class StoreBindingRecord:
    """`uid`: of the store; `url`: where it was when it was bound; `confirmed`: it is known to hold the uid."""

    uid: str
    url: str
    confirmed: bool


class StoreBinding(Store):
    """The store's identity."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.verified: set[str] = set()
        """Locations of stores that this process has found to be the right one."""

    def find(self) -> StoreBindingRecord | None:
        """None: no store was written to with this database."""
        with self._database.read() as connection:
            return _find(connection)

    def begin(self, url: str) -> StoreBindingRecord:
        """The binding, made with a new uid and unconfirmed if there is none."""
        with self._database.write() as connection:
            queries.insert_new(connection, store_bindings, role=OBJECTS, uid=new_uid(), url=url, bound_at=None)
            found = _find(connection)
            assert found is not None
            return found

    def bind(self, uid: str, url: str) -> None:
        """The store at `url`, which holds the uid, is this database's, whichever was before. Behind `begin`."""
        with self._database.write() as connection:
            values = {"uid": uid, "url": url, "bound_at": self._clock.now_ms()}
            queries.change(connection, store_bindings, OBJECTS, **values)

    def some_object(self) -> str | None:
        """The name of an object that the store must hold: of the newest ledger, or compacted ledger; None: none."""
        ledger = select(ledgers.c.rows_name).where(ledgers.c.deleted_at.is_(None)).order_by(ledgers.c.ledger_id.desc())
        compacted = select(compacted_ledgers.c.manifest_name).where(compacted_ledgers.c.retired_at.is_(None))
        with self._database.read() as connection:
            for statement in (ledger, compacted):
                name = connection.execute(statement.limit(1)).scalar_one_or_none()
                if name is not None:
                    return str(name)
        return None

    def knows_topic(self, uid: str) -> bool:
        """Whether a topic that lives has the uid."""
        with self._database.read() as connection:
            return connection.execute(select(topics.c.id).where(topics.c.uid == uid)).one_or_none() is not None


def new_uid() -> str:
    """A uid for a store: 32 hex digits, drawn."""
    return secrets.token_hex(16)


def _find(connection: Connection) -> StoreBindingRecord | None:
    row = connection.execute(select(store_bindings).where(store_bindings.c.role == OBJECTS)).one_or_none()
    return None if row is None else StoreBindingRecord(row.uid, row.url, row.bound_at is not None)
