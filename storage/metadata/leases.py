"""The writer lease of a topic: who may append, for how long, and since how many holders.

Invariants: the token grows by one with each acquisition and never starts again, so a holder that lost the lease can
be told from the one that has it, however long it slept. Time only decides when a lease may be taken; whether a write
counts is decided by the token alone (`check`). So a wrong clock costs waiting, or a failed append, never two writers.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, RowMapping, select, update

from storage.errors import Fenced, LeaseHeld
from storage.metadata import topics
from storage.metadata.records import Lease
from storage.metadata.tables import leases


def acquire(connection: Connection, topic_id: int, holder: str, ttl_ms: int, now: int) -> Lease:
    """Take the lease if it is free or expired. Raises LeaseHeld, TopicNotFound."""
    row = _locked(connection, topic_id)
    if row["holder"] is not None and row["expires_at"] > now:
        topic = topics.by_id(connection, topic_id)
        raise LeaseHeld(
            f"{row['holder']} is writing to {topic.name} and holds its lease until {shown_time(row['expires_at'])}",
            "wait for it to finish, then try again",
        )
    taken = Lease(topic_id, holder, row["token"] + 1, now + ttl_ms)
    connection.execute(
        update(leases)
        .where(leases.c.topic_id == topic_id)
        .values(holder=holder, token=taken.token, expires_at=taken.expires_at)
    )
    return taken


def renew(connection: Connection, lease: Lease, ttl_ms: int, now: int) -> Lease:
    """A new term for the same holder, also after the old one is over if nobody took it. Raises Fenced."""
    check(connection, lease)
    renewed = Lease(lease.topic_id, lease.holder, lease.token, now + ttl_ms)
    connection.execute(update(leases).where(leases.c.topic_id == lease.topic_id).values(expires_at=renewed.expires_at))
    return renewed


def release(connection: Connection, lease: Lease) -> None:
    """Give the lease back; nothing happens if it is not ours any more."""
    connection.execute(
        update(leases)
        .where(leases.c.topic_id == lease.topic_id, leases.c.token == lease.token)
        .values(holder=None, expires_at=0)
    )


def check(connection: Connection, lease: Lease) -> None:
    """The lease is still its holder's, and stays so until this transaction ends. Raises Fenced."""
    row = _locked(connection, lease.topic_id)
    if row["token"] == lease.token and row["holder"] == lease.holder:
        return
    topic = topics.by_id(connection, lease.topic_id)
    now_held = f"{row['holder']} has it now" if row["holder"] is not None else "it was given back"
    raise Fenced(
        f"{lease.holder} no longer holds the lease of {topic.name} (token {lease.token}): {now_held} "
        f"(token {row['token']})",
        "nothing was written; start again",
    )


def shown_time(milliseconds: int) -> str:
    """A time as an operator reads it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _locked(connection: Connection, topic_id: int) -> RowMapping:
    statement = select(leases).where(leases.c.topic_id == topic_id).with_for_update()
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        # Made and deleted together with the topic; this says so in the topic's words.
        topics.by_id(connection, topic_id)
        raise AssertionError(f"the topic with id {topic_id} has no row in leases; restore the database from a backup")
    return row
