"""Locations of object stores that passed their trial (storage/store_trial.py): one row per location.

Each function may be called again. Must not know: stores.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from storage.metadata import queries
from storage.metadata.tables import store_trials
from storage.metadata.transactions import Context


def has_passed(connection: Connection, location: str) -> bool:
    """Return whether the store at the location has passed its trial."""
    statement = select(store_trials.c.location).where(store_trials.c.location == location)
    return connection.execute(statement).one_or_none() is not None


def record_pass(connection: Connection, context: Context, location: str) -> None:
    """Store that the store at the location has passed its trial. Idempotent."""
    queries.insert_new(connection, store_trials, location=location, passed_at=context.now)
