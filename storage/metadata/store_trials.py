"""StoreTrials: the locations of object stores that passed their trial (storage/store_trial.py).

One row a location. Each method is one transaction, may be called again, and may raise Unavailable and Misconfigured.
Must not know: stores.
"""

from __future__ import annotations

from sqlalchemy import select

from storage.metadata import queries
from storage.metadata.queries import Store
from storage.metadata.tables import store_trials


class StoreTrials(Store):
    """The locations that passed."""

    def has_passed(self, location: str) -> bool:
        """Return whether the store at the location has passed its trial."""
        with self._database.read() as connection:
            statement = select(store_trials.c.location).where(store_trials.c.location == location)
            return connection.execute(statement).one_or_none() is not None

    def record_pass(self, location: str) -> None:
        """Keep that the store at the location has passed its trial. Idempotent."""
        with self._database.write() as connection:
            queries.insert_new(connection, store_trials, location=location, passed_at=self._clock.now_ms())
