"""The writer lease of a topic: who may append, for how long, and since how many holders.

Invariants: the token grows by one with each acquisition and never starts again, so a holder that lost the lease can
be told from the one that has it, however long it slept. Time only decides when a lease may be taken (liveness.py);
whether a write counts is decided by the token alone (`check`). So a wrong clock costs waiting, or a failed append,
never two writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, select, update

from storage.clock import Clock
from storage.errors import Fenced, LeaseHeld
from storage.metadata import services, topics
from storage.metadata.engine import Database
from storage.metadata.liveness import LEASE_TTL_MS, is_held
from storage.metadata.records import SERVICE_DEAD_MS, Lease
from storage.metadata.tables import leases
from storage.model import TopicName
from storage.owner import is_alive_here, same_process


def acquire(connection: Connection, topic_id: int, holder: str, ttl_ms: int, now: int) -> Lease:
    """Take the lease if it is free or expired. Raises LeaseHeld, TopicNotFound."""
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
    taken = Lease(topic_id, holder, row["token"] + 1, now + ttl_ms)
    connection.execute(
        update(leases)
        .where(leases.c.topic_id == topic_id)
        .values(holder=holder, token=taken.token, expires_at=taken.expires_at)
    )
    return taken


def held(
    connection: Connection, topic: TopicName, row: RowMapping, now: int, remedy: str, of_service: str
) -> LeaseHeld:
    """What says that a topic is written, by whom, and what to do; `of_service`: where that is a service that lives."""
    holder = str(row["holder"])
    told = f"{holder} is writing to {topic} and holds its lease until {shown_time(row['expires_at'])}"
    for one in services.live(connection, SERVICE_DEAD_MS, now):
        if same_process(one.name, holder):
            return LeaseHeld(f"{told}; it is `compactor serve` at {one.url}, which writes for its clients", of_service)
    return LeaseHeld(told, remedy)


def renew(connection: Connection, lease: Lease, ttl_ms: int, now: int) -> Lease:
    """A new term for the same holder, also after the old one is over if nobody took it. Raises Fenced."""
    check(connection, lease)
    renewed = Lease(lease.topic_id, lease.holder, lease.token, now + ttl_ms)
    connection.execute(update(leases).where(leases.c.topic_id == lease.topic_id).values(expires_at=renewed.expires_at))
    return renewed


class Unrenewed(NamedTuple):
    """The leases that got no new term. `lost`: forever, to another or with their topic; `busy`: try these again."""

    lost: list[Lease]
    busy: list[Lease]


def renew_many(connection: Connection, held: Sequence[Lease], ttl_ms: int, now: int) -> Unrenewed:
    """`renew` for many at once, in three statements; it waits for nobody, so no order of locks counts.

    A row that another transaction holds (a roll, say) is busy. That one lease is lost is no error: others go on.
    """
    columns = (leases.c.topic_id, leases.c.holder, leases.c.token)
    ids = [lease.topic_id for lease in held]
    locking = select(*columns).where(leases.c.topic_id.in_(ids)).with_for_update(skip_locked=True)
    found = {row.topic_id: (row.holder, row.token) for row in connection.execute(locking)}
    ours = [lease for lease in held if found.get(lease.topic_id) == (lease.holder, lease.token)]
    if ours:
        renewed = update(leases).where(leases.c.topic_id.in_([lease.topic_id for lease in ours]))
        connection.execute(renewed.values(expires_at=now + ttl_ms))
    unseen = [topic_id for topic_id in ids if topic_id not in found]
    there: set[int] = set()
    if unseen:
        there.update(connection.execute(select(leases.c.topic_id).where(leases.c.topic_id.in_(unseen))).scalars())
    done = set(ours)
    lost = [lease for lease in held if lease not in done and lease.topic_id not in there]
    return Unrenewed(lost, [lease for lease in held if lease.topic_id in there])


def find(connection: Connection, topic_id: int) -> Lease | None:
    """The lease as it was taken or renewed last, whether or not its term is over; None: nobody has it."""
    row = connection.execute(select(leases).where(leases.c.topic_id == topic_id)).mappings().one_or_none()
    if row is None or row["holder"] is None:
        return None
    return Lease(topic_id, row["holder"], row["token"], row["expires_at"])


def release(connection: Connection, lease: Lease) -> None:
    """Give the lease back; nothing happens if it is not ours any more."""
    connection.execute(
        update(leases)
        .where(leases.c.topic_id == lease.topic_id, leases.c.token == lease.token)
        .values(holder=None, expires_at=0)
    )


def end(connection: Connection, topic_id: int, now: int, *, force: bool, dry_run: bool) -> Lease | None:
    """Take the lease from its owner, which is fenced from then on; the lease as it was, None: nobody held it.

    For an owner that died elsewhere, and whose TTL is not to be waited for. `dry_run`: only check. Raises
    TopicNotFound; LeaseHeld, unless forced, for an owner that is known to be alive: a service, or a process of this
    machine.
    """
    row = _locked(connection, topic_id)
    if not is_held(row["holder"], row["expires_at"], LEASE_TTL_MS, now):
        return None
    lease = Lease(topic_id, row["holder"], row["token"], row["expires_at"])
    if not force:
        alive = "its owner is alive: stop it, or force it; what it appends from then on fails"
        if is_alive_here(lease.holder) or any(
            same_process(one.name, lease.holder) for one in services.live(connection, SERVICE_DEAD_MS, now)
        ):
            raise held(connection, topics.by_id(connection, topic_id).name, row, now, alive, alive)
    if not dry_run:
        release(connection, lease)
    return lease


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


class LeaseStore:
    """The rows of leases, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def acquire(self, topic_id: int, holder: str, ttl_ms: int) -> Lease:
        """Take the topic's lease. `holder` must be unique to one piece of work. Raises LeaseHeld."""
        with self._database.write() as connection:
            return acquire(connection, topic_id, holder, ttl_ms, self._clock.now_ms())

    def renew(self, lease: Lease, ttl_ms: int) -> Lease:
        """A new term from now on. Raises Fenced if somebody took the lease, or it was given back."""
        with self._database.write() as connection:
            return renew(connection, lease, ttl_ms, self._clock.now_ms())

    def release(self, lease: Lease) -> None:
        """Give the lease back; nothing happens if it was lost."""
        with self._database.write() as connection:
            release(connection, lease)

    def current(self, topic_id: int) -> Lease | None:
        """Who holds the topic's lease now; None: nobody."""
        with self._database.read() as connection:
            lease = find(connection, topic_id)
        now = self._clock.now_ms()
        return lease if lease is not None and is_held(lease.holder, lease.expires_at, LEASE_TTL_MS, now) else None

    def end(self, topic_id: int, *, force: bool = False, dry_run: bool = False) -> Lease | None:
        """Take the topic's lease from its owner, which is fenced from then on; the lease as it was, None: none is held.

        `dry_run`: only check. Raises LeaseHeld, unless forced, for an owner that is known to be alive.
        """
        with self._database.write() as connection:
            return end(connection, topic_id, self._clock.now_ms(), force=force, dry_run=dry_run)

    def renew_many(self, held: Sequence[Lease], ttl_ms: int) -> Unrenewed:
        """A new term from now on for many leases, in one transaction; those that got none."""
        with self._database.write() as connection:
            return renew_many(connection, held, ttl_ms, self._clock.now_ms())
