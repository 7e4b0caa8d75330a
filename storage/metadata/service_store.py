"""ServiceStore: which service processes live, and which of them schedules. Reached as MetadataStore.services.

Each method is one transaction, may be called again, and may raise Unavailable and Misconfigured. Terms are counted by
the caller's clock: services of one database should agree on it within a fraction of a term; if they do not, a
leader may be overtaken early, and is then fenced (services.py).
"""

from __future__ import annotations

from storage.clock import Clock
from storage.metadata import services
from storage.metadata.compaction_state_records import SERVICE_DEAD_MS, ServiceRecord
from storage.metadata.engine import Database
from storage.owner import same_process

_FORGOTTEN_AFTER = 20
"""Rows of dead services go after so many times the age at which they are held for dead."""


class ServiceStore:
    """The services' part of the metadata, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def beat(self, record: ServiceRecord) -> None:
        """Say that the service lives, now; the time in `record` does not count."""
        with self._database.write() as connection:
            services.beat(connection, record, self._clock.now_ms())

    def services(self, dead_ms: int = SERVICE_DEAD_MS) -> list[ServiceRecord]:
        """The services that live, by name."""
        with self._database.read() as connection:
            return services.live(connection, dead_ms, self._clock.now_ms())

    def of_owner(self, owner: str) -> ServiceRecord | None:
        """The service that lives and whose process an owner is (storage/owner.py); None: it is of no service."""
        return next((one for one in self.services() if same_process(one.name, owner)), None)

    def leave(self, name: str, dead_ms: int = SERVICE_DEAD_MS) -> None:
        """Say that a service is gone; the rows of those that died long ago go along."""
        with self._database.write() as connection:
            services.remove(connection, name)
            services.forget(connection, _FORGOTTEN_AFTER * dead_ms, self._clock.now_ms())

    def forget_dead(self, dead_ms: int = SERVICE_DEAD_MS) -> int:
        """Delete the rows of services that died long ago, and so could not leave; how many."""
        with self._database.write() as connection:
            return services.forget(connection, _FORGOTTEN_AFTER * dead_ms, self._clock.now_ms())

    def lead(self, name: str, term_ms: int) -> int | None:
        """Take the leadership for a term, if it is free, expired or ours already; its token, None: another leads."""
        with self._database.write() as connection:
            return services.lead(connection, name, term_ms, self._clock.now_ms())

    def renew(self, token: int, term_ms: int) -> None:
        """Another term from now on. Raises Fenced if another took the leadership."""
        with self._database.write() as connection:
            services.renew(connection, token, term_ms, self._clock.now_ms())

    def resign(self, token: int) -> None:
        """Give the leadership back; nothing happens if it was lost."""
        with self._database.write() as connection:
            services.resign(connection, token)

    def leader(self) -> str | None:
        """The name of the service that leads, if one does."""
        with self._database.read() as connection:
            return services.leader(connection, self._clock.now_ms())
