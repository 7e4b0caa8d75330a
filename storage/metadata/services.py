"""Services and their leader, in rows.

Invariants: the token of the leadership grows by one with each leader and never starts again. Time only decides when
leadership may be taken (liveness.py); whether a leader's claim counts is decided by the token alone (`check_leader`,
in the transaction of the claim). So a wrong clock costs waiting, never two leaders that both begin runs.
"""

from __future__ import annotations

from sqlalchemy import Connection, Row, delete, select

from storage.errors import Fenced
from storage.metadata import queries
from storage.metadata.liveness import beating, is_held
from storage.metadata.queries import Store
from storage.metadata.records import SERVICE_DEAD_MS, ServiceRecord
from storage.metadata.tables import leadership, services
from storage.owner import is_dead, same_process

SCHEDULER = "scheduler"
"""The one role there is."""
_PURGED_AFTER = 20
"""Rows of dead services are purged at this many times the age at which they count as dead."""


class ServiceStore(Store):
    """Services and their leader.

    TTLs are counted by the caller's clock: services of one database should agree on it within a fraction of a TTL; if
    they do not, a leader may be overtaken early, and is then fenced.
    """

    # Services

    def heartbeat(self, record: ServiceRecord) -> None:
        """The service lives now; the time in `record` does not count."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            values = {
                "url": record.url,
                "log_uid": record.log_uid,
                "heartbeat_at": now,
                "broker_service_url": record.broker_service_url,
                "broker_service_url_tls": record.broker_service_url_tls,
            }
            if queries.change(connection, services, record.name, **values):
                return
            if not queries.insert_new(connection, services, name=record.name, started_at=record.started_at, **values):
                queries.change(connection, services, record.name, **values)  # another thread of the service was first

    def live(self, dead_ms: int = SERVICE_DEAD_MS) -> list[ServiceRecord]:
        """The services that live, by name."""
        with self._database.read() as connection:
            return live(connection, dead_ms, self._clock.now_ms())

    def lost(self, dead_ms: int = SERVICE_DEAD_MS) -> list[ServiceRecord]:
        """Return the services that ended without leaving and whose rows are not purged yet, by name."""
        with self._database.read() as connection:
            now = self._clock.now_ms()
            living = {record.name for record in live(connection, dead_ms, now)}
            rows = connection.execute(select(services).order_by(services.c.name)).mappings()
            return [ServiceRecord(**row) for row in rows if row["name"] not in living]

    def of_owner(self, owner: str) -> ServiceRecord | None:
        """The service that lives and whose process an owner is (storage/owner.py); None: it is of no service."""
        return next((service for service in self.live() if same_process(service.name, owner)), None)

    def leave(self, name: str, dead_ms: int = SERVICE_DEAD_MS) -> None:
        """A service is gone; the rows of those that died long ago go along."""
        with self._database.write() as connection:
            connection.execute(delete(services).where(services.c.name == name))
            self._purge_dead(connection, dead_ms)

    def purge_dead(self, dead_ms: int = SERVICE_DEAD_MS) -> int:
        """Delete the rows of services that died long ago, and so could not leave; how many."""
        with self._database.write() as connection:
            return self._purge_dead(connection, dead_ms)

    def _purge_dead(self, connection: Connection, dead_ms: int) -> int:
        alive = beating(_PURGED_AFTER * dead_ms, self._clock.now_ms()).where(services.c.heartbeat_at)
        return connection.execute(delete(services).where(~alive)).rowcount

    # Their leader

    def lead(self, name: str, ttl_ms: int) -> int | None:
        """Take the leadership for a TTL, if it is free, expired or ours already; its token, None: another leads."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            row = _locked(connection)
            if row.holder != name and is_held(row.holder, row.expires_at, ttl_ms, now):
                return None
            token = int(row.token) + 1
            _set(connection, holder=name, token=token, expires_at=now + ttl_ms)
            return token

    def renew(self, token: int, ttl_ms: int) -> None:
        """A new TTL from now on, also after the old one if no other took the leadership. Raises Fenced."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            _check(_locked(connection), token)
            _set(connection, expires_at=now + ttl_ms)

    def resign(self, token: int) -> None:
        """End the leadership; nothing happens if it was lost."""
        with self._database.write() as connection:
            if _locked(connection).token == token:
                _set(connection, holder=None, expires_at=0)

    def leader(self) -> str | None:
        """The name of the service that leads, if one does."""
        with self._database.read() as connection:
            row = connection.execute(select(leadership).where(leadership.c.role == SCHEDULER)).one()
            leads = row.holder is not None and row.expires_at > self._clock.now_ms()
            return str(row.holder) if leads else None


def live(connection: Connection, dead_ms: int, now: int) -> list[ServiceRecord]:
    """Those that are alive, by name."""
    alive = beating(dead_ms, now).where(services.c.heartbeat_at)
    found = connection.execute(select(services).where(alive).order_by(services.c.name)).mappings()
    return [ServiceRecord(**row) for row in found if not is_dead(row["name"])]


def check_leader(connection: Connection, token: int) -> None:
    """The leadership is still that of `token`, and stays so until this transaction ends. Raises Fenced.

    For the end of a transaction: one that still has to wait for a topic would keep the leader from renewing meanwhile.
    """
    statement = select(leadership).where(leadership.c.role == SCHEDULER).with_for_update(read=True)
    _check(connection.execute(statement).one(), token)


def _check(row: Row[tuple[object, ...]], token: int) -> None:
    if row.token != token or row.holder is None:
        who = f"{row.holder} leads now" if row.holder is not None else "it was released"
        raise Fenced(f"the leadership (token {token}) was lost: {who}", "nothing was begun; stand for leadership again")


def _locked(connection: Connection) -> Row[tuple[object, ...]]:
    return connection.execute(select(leadership).where(leadership.c.role == SCHEDULER).with_for_update()).one()


def _set(connection: Connection, **values: object) -> None:
    queries.change(connection, leadership, SCHEDULER, **values)
