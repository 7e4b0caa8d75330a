"""The writer lease of a topic: who may append, for how long, and the token that fences the owners before.

Invariants: the token grows by one with each acquisition and never starts again, so an owner that lost the lease differs
from the one that has it, however long it slept. Time only decides when a lease may be taken (liveness.py);
whether a write counts is decided by the token alone (`check`). So a wrong clock costs waiting, or a failed append,
never two writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, select, update

from storage.errors import Fenced, LeaseHeld
from storage.metadata import queries, row_mapping, services, topics
from storage.metadata.liveness import LEASE_TTL_MS, is_held
from storage.metadata.queries import Store
from storage.metadata.records import SERVICE_DEAD_MS, Lease, TopicRecord
from storage.metadata.tables import leases
from storage.model import TopicName
from storage.owner import is_alive_here, same_process


class UnrenewedLeases(NamedTuple):
    """The leases that were not renewed. `lost`: forever, to another or with their topic; `busy`: try these again."""

    lost: list[Lease]
    busy: list[Lease]


class LeaseStore(Store):
    """Leases."""

    def acquire(self, topic_id: int, owner: str, ttl_ms: int) -> Lease:
        """Take the topic's lease if it is free or expired. `owner` must be unique to one piece of work.

        Raises LeaseHeld, TopicNotFound.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            row = _locked(connection, topic_id)
            if is_held(row["holder"], row["expires_at"], LEASE_TTL_MS, now):
                raise held(
                    connection,
                    topics.by_id(connection, topic_id).name,
                    row,
                    now,
                    "wait for it to finish, or end that process, then try again",
                    "append through it, with `compactor-admin topics produce`, or stop it first",
                )
            taken = Lease(topic_id, owner, row["token"] + 1, now + ttl_ms)
            queries.change(connection, leases, topic_id, holder=owner, token=taken.token, expires_at=taken.expires_at)
            return taken

    def renew(self, lease: Lease, ttl_ms: int) -> Lease:
        """A new TTL from now on, also after the old one if no other took the lease. Raises Fenced."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            check(connection, lease)
            renewed = replace(lease, expires_at=now + ttl_ms)
            queries.change(connection, leases, lease.topic_id, expires_at=renewed.expires_at)
            return renewed

    def renew_many(self, owned: Sequence[Lease], ttl_ms: int) -> UnrenewedLeases:
        """`renew` for many at once, in three statements; it waits for no lock, so no order of locks counts.

        A row that another transaction holds (a roll, say) is busy. That one lease is lost is no error: others continue.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            columns = (leases.c.topic_id, leases.c.holder, leases.c.token)
            ids = [lease.topic_id for lease in owned]
            locking = select(*columns).where(leases.c.topic_id.in_(ids)).with_for_update(skip_locked=True)
            found = {row.topic_id: (row.holder, row.token) for row in connection.execute(locking)}
            ours = [lease for lease in owned if found.get(lease.topic_id) == (lease.owner, lease.token)]
            if ours:
                renewed = update(leases).where(leases.c.topic_id.in_([lease.topic_id for lease in ours]))
                connection.execute(renewed.values(expires_at=now + ttl_ms))
            unseen = [topic_id for topic_id in ids if topic_id not in found]
            there: set[int] = set()
            if unseen:
                present = select(leases.c.topic_id).where(leases.c.topic_id.in_(unseen))
                there.update(connection.execute(present).scalars())
            renewed_leases = set(ours)
            lost = [lease for lease in owned if lease not in renewed_leases and lease.topic_id not in there]
            return UnrenewedLeases(lost, [lease for lease in owned if lease.topic_id in there])

    def release(self, lease: Lease) -> None:
        """End the lease; nothing happens if it was lost."""
        with self._database.write() as connection:
            _release(connection, lease)

    def current(self, topic_id: int) -> Lease | None:
        """The topic's lease, as it was taken or renewed last; None: it is free or expired."""
        with self._database.read() as connection:
            row = connection.execute(select(leases).where(leases.c.topic_id == topic_id)).mappings().one_or_none()
        if row is None or not is_held(row["holder"], row["expires_at"], LEASE_TTL_MS, self._clock.now_ms()):
            return None
        return row_mapping.lease(row)

    def end(self, topic_id: int, *, force: bool = False, dry_run: bool = False) -> Lease | None:
        """Take the lease from its owner, which is fenced from then on; the lease as it was, None: it was free.

        For an owner that died on another machine, and whose TTL is not to be waited for. `dry_run`: only check. Raises
        TopicNotFound; LeaseHeld, unless forced, for an owner that is known to be alive: a service, or a process of this
        machine.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            row = _locked(connection, topic_id)
            if not is_held(row["holder"], row["expires_at"], LEASE_TTL_MS, now):
                return None
            lease = row_mapping.lease(row)
            if not force:
                alive = "its owner is alive: stop it, or force it; what it appends from then on fails"
                if is_alive_here(lease.owner) or any(
                    same_process(service.name, lease.owner)
                    for service in services.live(connection, SERVICE_DEAD_MS, now)
                ):
                    raise held(connection, topics.by_id(connection, topic_id).name, row, now, alive, alive)
            if not dry_run:
                _release(connection, lease)
            return lease


def held(
    connection: Connection, topic: TopicName, row: RowMapping, now: int, remedy: str, of_service: str
) -> LeaseHeld:
    """The error that names the topic's writer and what to do; `of_service`: where that is a service that lives."""
    owner = str(row["holder"])
    message = f"{owner} is writing to {topic} and holds its lease until {shown_time(row['expires_at'])}"
    for service in services.live(connection, SERVICE_DEAD_MS, now):
        if same_process(service.name, owner):
            return LeaseHeld(
                f"{message}; it is `compactor serve` at {service.url}, which writes for its clients", of_service
            )
    return LeaseHeld(message, remedy)


def check(connection: Connection, lease: Lease) -> None:
    """The lease is still its owner's, and stays so until this transaction ends. Raises Fenced."""
    row = _locked(connection, lease.topic_id)
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
    """The topic of a lease, both locked. Raises Fenced if the lease was overtaken."""
    check(connection, lease)
    return topics.locked(connection, lease.topic_id)


def shown_time(milliseconds: int) -> str:
    """A time as an operator reads it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _release(connection: Connection, lease: Lease) -> None:
    connection.execute(
        update(leases)
        .where(leases.c.topic_id == lease.topic_id, leases.c.token == lease.token)
        .values(holder=None, expires_at=0)
    )


def _locked(connection: Connection, topic_id: int) -> RowMapping:
    statement = select(leases).where(leases.c.topic_id == topic_id).with_for_update()
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        # Made and deleted together with the topic; this says so in the topic's words.
        topics.by_id(connection, topic_id)
        raise AssertionError(f"the topic with id {topic_id} has no row in leases; restore the database from a backup")
    return row
