"""The writer lease of a topic: its owner, its TTL, and the token that fences earlier owners.

Invariants: the token grows by one with each acquisition and never starts again, so an owner that lost the lease differs
from the current one, however long it slept. Time only decides when a lease may be taken (liveness.py); the token alone
decides whether a write counts (`check`). So a wrong clock costs waiting, or a failed append, never two writers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, bindparam, select

from storage.advice import Advice, AdviceKind
from storage.errors import Fenced, LeaseHeld
from storage.metadata import queries, row_mapping, services, topic_work, topics
from storage.metadata.liveness import LEASE_TTL_MS, is_held
from storage.metadata.records import Lease, TopicRecord
from storage.metadata.tables import leases
from storage.metadata.transactions import Context
from storage.owner import is_alive_here, same_process

_LOCKED = select(leases).where(leases.c.topic_id == bindparam("topic")).with_for_update()


class UnrenewedLeases(NamedTuple):
    """The leases that `renew_many` did not renew.

    `lost`: another owner has them, or their topic was deleted. `busy`: another transaction has locked their row; try
    them again.
    """

    lost: list[Lease]
    busy: list[Lease]


def acquire(connection: Connection, context: Context, topic_id: int, owner: str, ttl_ms: int) -> Lease:
    """Take the topic's lease if it is free or expired. `owner`: unique to one piece of work; `ttl_ms`: its TTL.

    Raises LeaseHeld, which names the present owner; TopicNotFound.
    """
    row = _lock_row(connection, topic_id)
    if is_held(row["holder"], row["expires_at"], LEASE_TTL_MS, context.now):
        remedy = "wait for it to finish, or end that process, then try again"
        raise lease_held_error(connection, context, row, remedy, Advice(AdviceKind.APPEND_THROUGH_OWNER))
    lease = Lease(topic_id, owner, row["token"] + 1, context.now + ttl_ms)
    queries.change(connection, leases, topic_id, holder=owner, token=lease.token, expires_at=lease.expires_at)
    return lease


def renew(connection: Connection, context: Context, lease: Lease, ttl_ms: int) -> Lease:
    """Extend a lease by a new TTL from now, also if it has expired and no other owner took it. Raises Fenced.

    The owner may have appended to the open segment, so the topic is queued (topic_work.py).
    """
    lock_and_check(connection, lease)
    renewed = replace(lease, expires_at=context.now + ttl_ms)
    queries.change(connection, leases, lease.topic_id, expires_at=renewed.expires_at)
    topic_work.mark(connection, topic_work.WorkKind.COMPACT, [lease.topic_id])
    return renewed


def renew_many(connection: Connection, context: Context, owned: Sequence[Lease], ttl_ms: int) -> UnrenewedLeases:
    """Renew many leases in three statements; return those that were not renewed. An error of one stops no other.

    This waits for no lock, so it needs no order of locks: a row that another transaction has locked is `busy`.
    """
    columns = (leases.c.topic_id, leases.c.holder, leases.c.token)
    ids = [lease.topic_id for lease in owned]
    locking = select(*columns).where(leases.c.topic_id.in_(ids)).with_for_update(skip_locked=True)
    locked = {row.topic_id: (row.holder, row.token) for row in connection.execute(locking)}
    renewed = {lease for lease in owned if locked.get(lease.topic_id) == (lease.owner, lease.token)}
    if renewed:
        own = leases.c.topic_id.in_([lease.topic_id for lease in owned if lease in renewed])
        queries.change_where(connection, leases, own, expires_at=context.now + ttl_ms)
    busy: set[int] = set()
    unlocked = [topic_id for topic_id in ids if topic_id not in locked]
    if unlocked:
        present = select(leases.c.topic_id).where(leases.c.topic_id.in_(unlocked))
        busy.update(connection.execute(present).scalars())
    lost = [lease for lease in owned if lease not in renewed and lease.topic_id not in busy]
    return UnrenewedLeases(lost, [lease for lease in owned if lease.topic_id in busy])


def release(connection: Connection, lease: Lease) -> None:
    """End the lease, so that it is free. A lease that was lost is not touched. Idempotent.

    The owner may have appended to the open segment, so the topic is queued (topic_work.py).
    """
    same = (leases.c.topic_id == lease.topic_id) & (leases.c.token == lease.token)
    if queries.change_where(connection, leases, same, holder=None, expires_at=0):
        topic_work.mark(connection, topic_work.WorkKind.COMPACT, [lease.topic_id])


def current(connection: Connection, context: Context, topic_id: int) -> Lease | None:
    """Return the topic's lease, as it was taken or renewed last; None: it is free or expired."""
    return current_of(connection, context, [topic_id]).get(topic_id)


def current_of(connection: Connection, context: Context, topic_ids: Collection[int]) -> dict[int, Lease]:
    """Return the leases of these topics, by topic id; those that are free or expired are left out."""
    return {
        lease.topic_id: lease
        for batch in queries.batches(topic_ids)
        for lease in queries.fetch(connection, select(leases).where(leases.c.topic_id.in_(batch)), row_mapping.lease)
        if is_held(lease.owner, lease.expires_at, LEASE_TTL_MS, context.now)
    }


def revoke(
    connection: Connection, context: Context, topic_id: int, *, force: bool = False, dry_run: bool = False
) -> Lease | None:
    """Take the lease away from its owner, which is fenced from then on. Returns the lease as it was; None: it was free.

    For an owner that died on another machine, if its TTL is too long to wait for. `dry_run`: only check, and change
    nothing. Raises TopicNotFound; LeaseHeld, unless `force`, for an owner that is known to be alive: a service, or a
    process of this machine.
    """
    row = _lock_row(connection, topic_id)
    if not is_held(row["holder"], row["expires_at"], LEASE_TTL_MS, context.now):
        return None
    lease = row_mapping.lease(row)
    if not force:
        alive = "its owner is alive: stop it, or force it; what it appends from then on fails"
        if is_alive_here(lease.owner) or any(
            same_process(service.name, lease.owner) for service in services.live(connection, context)
        ):
            raise lease_held_error(connection, context, row, alive, alive)
    if not dry_run:
        release(connection, lease)
    return lease


# Parts of other transactions


def lease_held_error(
    connection: Connection, context: Context, row: RowMapping, remedy: str, service_remedy: str | Advice
) -> LeaseHeld:
    """Return the error that names the present owner in a row of `leases`.

    `remedy`: of the error; `service_remedy`: the remedy instead, if the owner is a live service.
    """
    topic, owner = topics.by_id(connection, row["topic_id"]).name, str(row["holder"])
    message = f"{owner} is writing to {topic} and holds its lease until {time_text(row['expires_at'])}"
    for service in services.live(connection, context):
        if same_process(service.name, owner):
            return LeaseHeld(
                f"{message}; it is the service at {service.url}, which writes for its clients", service_remedy
            )
    return LeaseHeld(message, remedy)


def lock_and_check(connection: Connection, lease: Lease) -> None:
    """Raise Fenced unless the owner still holds the lease.

    The lease's row is locked, so the owner holds it until this transaction ends.
    """
    row = _lock_row(connection, lease.topic_id)
    if row["token"] == lease.token and row["holder"] == lease.owner:
        return
    topic = topics.by_id(connection, lease.topic_id)
    now_held = f"{row['holder']} has it now" if row["holder"] is not None else "it was released"
    raise Fenced(
        f"{lease.owner} no longer holds the lease of {topic.name} (token {lease.token}): {now_held} "
        f"(token {row['token']})",
        "nothing was written; start again",
    )


def lock_topic(connection: Connection, lease: Lease) -> TopicRecord:
    """Lock a lease and its topic, and return the topic. Raises Fenced if the owner no longer holds the lease."""
    lock_and_check(connection, lease)
    return topics.lock(connection, lease.topic_id)


def time_text(milliseconds: int) -> str:
    """Return a time (ms) as text for operators: ISO 8601, UTC, in seconds."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _lock_row(connection: Connection, topic_id: int) -> RowMapping:
    row = connection.execute(_LOCKED, {"topic": topic_id}).mappings().one_or_none()
    if row is None:
        # The row is inserted and deleted together with the topic, so this raises TopicNotFound.
        topics.by_id(connection, topic_id)
        raise AssertionError(f"the topic with id {topic_id} has no row in leases; restore the database from a backup")
    return row
