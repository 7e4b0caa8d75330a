"""Services and their leader, in rows.

Invariants: the token of the leadership grows by one with each leader and never starts again. Time only decides when
leadership may be taken (liveness.py); whether a leader's claim counts is decided by the token alone (`check_leader`,
in the transaction of the claim). So a wrong clock costs waiting, never two leaders that both begin runs.
"""

from __future__ import annotations

from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from storage.clock import Clock
from storage.errors import Fenced
from storage.metadata.engine import Database
from storage.metadata.liveness import beating, is_held
from storage.metadata.records import SERVICE_DEAD_MS, ServiceRecord
from storage.metadata.tables import leadership, services
from storage.owner import is_dead, same_process

SCHEDULER = "scheduler"
"""The one role there is."""


def beat(connection: Connection, record: ServiceRecord, now: int) -> None:
    """Say that the service lives."""
    values = {"url": record.url, "log_uid": record.log_uid, "heartbeat_at": now}
    ours = update(services).where(services.c.name == record.name)
    if connection.execute(ours.values(**values)).rowcount:
        return
    try:
        with connection.begin_nested():
            connection.execute(insert(services).values(name=record.name, started_at=record.started_at, **values))
    except IntegrityError:  # another thread of the same service was first
        connection.execute(ours.values(**values))


def live(connection: Connection, dead_ms: int, now: int) -> list[ServiceRecord]:
    """Those that are alive, by name."""
    alive = beating(dead_ms, now).where(services.c.heartbeat_at)
    found = connection.execute(select(services).where(alive).order_by(services.c.name)).mappings()
    return [ServiceRecord(**row) for row in found if not is_dead(row["name"])]


def remove(connection: Connection, name: str) -> None:
    """Nothing happens if it is gone."""
    connection.execute(delete(services).where(services.c.name == name))


def forget(connection: Connection, dead_ms: int, now: int) -> int:
    """Delete the rows of services whose heartbeat is `dead_ms` old, or of a clock that ran ahead; how many."""
    return connection.execute(delete(services).where(~beating(dead_ms, now).where(services.c.heartbeat_at))).rowcount


def lead(connection: Connection, name: str, term_ms: int, now: int) -> int | None:
    """Take the leadership if it is free, expired or ours; its token, or None if another has it."""
    row = _locked(connection)
    if row.holder != name and is_held(row.holder, row.expires_at, term_ms, now):
        return None
    token = int(row.token) + 1
    _set(connection, holder=name, token=token, expires_at=now + term_ms)
    return token


def renew(connection: Connection, token: int, term_ms: int, now: int) -> None:
    """Another term, also after the old one if nobody took the leadership. Raises Fenced."""
    _check(_locked(connection), token)
    _set(connection, expires_at=now + term_ms)


def resign(connection: Connection, token: int) -> None:
    """Nothing happens if the leadership was lost."""
    if _locked(connection).token == token:
        _set(connection, holder=None, expires_at=0)


def leader(connection: Connection, now: int) -> str | None:
    """Who leads."""
    row = connection.execute(select(leadership).where(leadership.c.role == SCHEDULER)).one()
    return str(row.holder) if row.holder is not None and row.expires_at > now else None


def check_leader(connection: Connection, token: int) -> None:
    """The leadership is still that of `token`, and stays so until this transaction ends. Raises Fenced.

    For the end of a transaction: one that still has to wait for a topic would keep the leader from renewing meanwhile.
    """
    statement = select(leadership).where(leadership.c.role == SCHEDULER).with_for_update(read=True)
    _check(connection.execute(statement).one(), token)


def _check(row: Row[tuple[object, ...]], token: int) -> None:
    if row.token != token or row.holder is None:
        who = f"{row.holder} leads now" if row.holder is not None else "it was given back"
        raise Fenced(f"the leadership (token {token}) was lost: {who}", "nothing was begun; stand for leadership again")


def _locked(connection: Connection) -> Row[tuple[object, ...]]:
    return connection.execute(select(leadership).where(leadership.c.role == SCHEDULER).with_for_update()).one()


def _set(connection: Connection, **values: object) -> None:
    connection.execute(update(leadership).where(leadership.c.role == SCHEDULER).values(**values))


_FORGOTTEN_AFTER = 20
"""Rows of dead services go after so many times the age at which they are held for dead."""


class ServiceStore:
    """The rows of services, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def heartbeat(self, record: ServiceRecord) -> None:
        """Say that the service lives, now; the time in `record` does not count."""
        with self._database.write() as connection:
            beat(connection, record, self._clock.now_ms())

    def live(self, dead_ms: int = SERVICE_DEAD_MS) -> list[ServiceRecord]:
        """The services that live, by name."""
        with self._database.read() as connection:
            return live(connection, dead_ms, self._clock.now_ms())

    def of_owner(self, owner: str) -> ServiceRecord | None:
        """The service that lives and whose process an owner is (storage/owner.py); None: it is of no service."""
        return next((one for one in self.live() if same_process(one.name, owner)), None)

    def leave(self, name: str, dead_ms: int = SERVICE_DEAD_MS) -> None:
        """Say that a service is gone; the rows of those that died long ago go along."""
        with self._database.write() as connection:
            remove(connection, name)
            forget(connection, _FORGOTTEN_AFTER * dead_ms, self._clock.now_ms())

    def purge_dead(self, dead_ms: int = SERVICE_DEAD_MS) -> int:
        """Delete the rows of services that died long ago, and so could not leave; how many."""
        with self._database.write() as connection:
            return forget(connection, _FORGOTTEN_AFTER * dead_ms, self._clock.now_ms())

    def lead(self, name: str, term_ms: int) -> int | None:
        """Take the leadership for a term, if it is free, expired or ours already; its token, None: another leads."""
        with self._database.write() as connection:
            return lead(connection, name, term_ms, self._clock.now_ms())

    def renew(self, token: int, term_ms: int) -> None:
        """Another term from now on. Raises Fenced if another took the leadership."""
        with self._database.write() as connection:
            renew(connection, token, term_ms, self._clock.now_ms())

    def resign(self, token: int) -> None:
        """Give the leadership back; nothing happens if it was lost."""
        with self._database.write() as connection:
            resign(connection, token)

    def leader(self) -> str | None:
        """The name of the service that leads, if one does."""
        with self._database.read() as connection:
            return leader(connection, self._clock.now_ms())
