"""Services and their leader, in rows.

Invariants: the token of the leadership grows by one with each leader and never starts again. Time only decides when
leadership may be taken (liveness.py); the token alone decides whether a leader's claim counts
(`lock_and_check_leader`, in the transaction of the claim). So a wrong clock costs waiting, never two leaders that both
begin runs.

TTLs are counted by the caller's clock: services of one database should agree on it within a fraction of a TTL.
Otherwise a leader may be overtaken early, and is then fenced.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from sqlalchemy import Connection, Row, delete, select

from storage.errors import Fenced
from storage.metadata import queries
from storage.metadata.liveness import is_held, live_heartbeat_bounds
from storage.metadata.records import SERVICE_DEAD_MS, ServiceRecord
from storage.metadata.tables import leadership, services
from storage.metadata.transactions import Context
from storage.owner import is_dead

SCHEDULER = "scheduler"
"""The only role."""
_PURGED_AFTER = 20
"""Rows of dead services are purged at this many times the age at which they count as dead."""


# Services


def heartbeat(connection: Connection, context: Context, record: ServiceRecord) -> None:
    """Store that the service is alive now. `record.heartbeat_at` is ignored."""
    queries.put(connection, services, asdict(replace(record, heartbeat_at=context.now)))


def live(connection: Connection, context: Context, dead_ms: int = SERVICE_DEAD_MS) -> list[ServiceRecord]:
    """Return the services that are alive, by name. `dead_ms`: the age of a heartbeat from which its service is dead."""
    alive = live_heartbeat_bounds(dead_ms, context.now).condition(services.c.heartbeat_at)
    rows = connection.execute(select(services).where(alive).order_by(services.c.name)).mappings()
    return [ServiceRecord(**row) for row in rows if not is_dead(row["name"])]


def lost(connection: Connection, context: Context, dead_ms: int = SERVICE_DEAD_MS) -> list[ServiceRecord]:
    """Return the services that are not alive, did not leave, and whose rows are not purged yet, by name."""
    living = {record.name for record in live(connection, context, dead_ms)}
    rows = connection.execute(select(services).order_by(services.c.name)).mappings()
    return [ServiceRecord(**row) for row in rows if row["name"] not in living]


def leave(connection: Connection, context: Context, name: str, dead_ms: int = SERVICE_DEAD_MS) -> None:
    """Delete the row of the service `name`, which ends, and the rows of services that died long ago."""
    connection.execute(delete(services).where(services.c.name == name))
    purge_dead(connection, context, dead_ms)


def purge_dead(connection: Connection, context: Context, dead_ms: int = SERVICE_DEAD_MS) -> int:
    """Delete the rows of services that died long ago (20 times `dead_ms`), and so could not leave.

    Returns their number.
    """
    alive = live_heartbeat_bounds(_PURGED_AFTER * dead_ms, context.now).condition(services.c.heartbeat_at)
    return connection.execute(delete(services).where(~alive)).rowcount


# Their leader


def acquire_leadership(connection: Connection, context: Context, name: str, ttl_ms: int) -> int | None:
    """Take the leadership for a TTL, if it is free, expired or already that of `name`.

    Returns its token; None: another service leads.
    """
    row = _lock_leadership(connection)
    if row.holder != name and is_held(row.holder, row.expires_at, ttl_ms, context.now):
        return None
    token = int(row.token) + 1
    _update_leadership(connection, holder=name, token=token, expires_at=context.now + ttl_ms)
    return token


def renew_leadership(connection: Connection, context: Context, token: int, ttl_ms: int) -> None:
    """Extend the leadership by a new TTL, also if it has expired and no other service took it. Raises Fenced."""
    _check_token(_lock_leadership(connection), token)
    _update_leadership(connection, expires_at=context.now + ttl_ms)


def resign(connection: Connection, token: int) -> None:
    """Release the leadership that has `token`; does nothing if it was lost."""
    if _lock_leadership(connection).token == token:
        _update_leadership(connection, holder=None, expires_at=0)


def leader(connection: Connection, context: Context) -> str | None:
    """Return the name of the service that leads; None: there is none."""
    row = connection.execute(select(leadership).where(leadership.c.role == SCHEDULER)).one()
    return str(row.holder) if row.holder is not None and row.expires_at > context.now else None


def lock_and_check_leader(connection: Connection, token: int) -> None:
    """Raise Fenced unless the leadership still has the token `token`; it stays so until this transaction ends.

    Call it at the end of a transaction: one that still has to wait for a topic would keep the leader from renewing
    meanwhile.
    """
    statement = select(leadership).where(leadership.c.role == SCHEDULER).with_for_update(read=True)
    _check_token(connection.execute(statement).one(), token)


def _check_token(row: Row[tuple[object, ...]], token: int) -> None:
    if row.token != token or row.holder is None:
        state = f"{row.holder} leads now" if row.holder is not None else "it was released"
        raise Fenced(
            f"the leadership (token {token}) was lost: {state}", "nothing was begun; stand for leadership again"
        )


def _lock_leadership(connection: Connection) -> Row[tuple[object, ...]]:
    return connection.execute(select(leadership).where(leadership.c.role == SCHEDULER).with_for_update()).one()


def _update_leadership(connection: Connection, **values: object) -> None:
    queries.change(connection, leadership, SCHEDULER, **values)
