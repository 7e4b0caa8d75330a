"""Pins, and the end of a compacted ledger's row: what readers hold, and what nobody needs any more.

Invariants: a compacted ledger is collected only when it no longer serves, its grace time is over and no live pin is on
it (A3); pin and collection of one topic form a queue at the topic's row, so a reader that pins either holds the ledger
or sees a newer one. One that serves no more can be pinned again until it is collected. The database itself forbids to
delete a row that is pinned (tables.py).

Time decides only how long a pin lasts (liveness.py). A clock that is wrong costs a reader its pin, of which its next
renewal tells it, or keeps objects for too long; a ledger that serves is never collected, whatever the time.
"""

from __future__ import annotations

import uuid

from sqlalchemy import ColumnElement, Connection, bindparam, delete, insert, select, update

from storage.clock import Clock
from storage.errors import Fenced
from storage.metadata import attempts, cursors, ledgers, row_mapping, snapshots, topics
from storage.metadata.engine import Database
from storage.metadata.liveness import PIN_TTL_MS, expiring
from storage.metadata.records import CompactedLedgerRecord, GcSnapshot, Pin, TopicSnapshot
from storage.metadata.tables import compacted_ledgers, pins

_KEPT = (
    select(compacted_ledgers)
    .where(compacted_ledgers.c.topic_id == bindparam("topic"))
    .order_by(compacted_ledgers.c.generation)
)


def take(
    connection: Connection, topic_id: int, holder: str, ttl_ms: int, now: int, ledger_id: int | None = None
) -> Pin | None:
    """Pin compacted ledger `ledger_id`, if it is not collected yet, else the one that serves; None if there is none.

    `ttl_ms`: PIN_TTL_MS at most. Raises TopicNotFound.
    """
    _check_ttl(ttl_ms)
    topics.locked(connection, topic_id)
    pinned = None if ledger_id is None else _find(connection, topic_id, ledger_id)
    pinned = pinned or cursors.serving_compacted(connection, topic_id)
    if pinned is None:
        return None
    # Readers that died leave rows; a process that makes rows sweeps them, so they are never more than there are
    # readers.
    connection.execute(delete(pins).where(pins.c.topic_id == topic_id, ~_alive(now)))
    pin = Pin(uuid.uuid4().hex, topic_id, pinned.ledger_id, holder, now + ttl_ms)
    connection.execute(insert(pins).values(**row_mapping.pin_values(pin)))
    return pin


def renew(connection: Connection, pin: Pin, ttl_ms: int, now: int) -> Pin:
    """A new term, also after the old one is over if its compacted ledger is still there.

    Raises Fenced if it is not, TopicNotFound.
    """
    _check_ttl(ttl_ms)
    topic = topics.locked(connection, pin.topic_id)
    if _find(connection, pin.topic_id, pin.ledger_id) is None:
        raise Fenced(
            f"the pin of {pin.holder} on compacted ledger {pin.ledger_id} of {topic.name} expired, and the ledger was "
            "collected",
            "go on at the same position with the compacted ledger that serves now",
        )
    renewed = Pin(pin.pin_id, pin.topic_id, pin.ledger_id, pin.holder, now + ttl_ms)
    changed = connection.execute(update(pins).where(pins.c.pin_id == pin.pin_id).values(expires_at=renewed.expires_at))
    if changed.rowcount == 0:  # it had expired and was swept
        connection.execute(insert(pins).values(**row_mapping.pin_values(renewed)))
    return renewed


def release(connection: Connection, pin: Pin) -> None:
    """Give the pin back; nothing happens if it is gone."""
    connection.execute(delete(pins).where(pins.c.pin_id == pin.pin_id))


def live(connection: Connection, topic_id: int, now: int) -> tuple[Pin, ...]:
    """The pins that hold a compacted ledger at this moment, in no order that means anything."""
    statement = select(pins).where(pins.c.topic_id == topic_id, _alive(now)).order_by(pins.c.pin_id)
    return tuple(row_mapping.pin(row) for row in connection.execute(statement).mappings())


def kept(connection: Connection, topic_id: int) -> tuple[CompactedLedgerRecord, ...]:
    """All compacted ledgers whose rows exist: the one that serves and the retired ones, by generation."""
    return tuple(row_mapping.compacted_ledger(row) for row in connection.execute(_KEPT, {"topic": topic_id}).mappings())


def collect(connection: Connection, topic_id: int, ledger_id: int, grace_ms: int, now: int) -> bool:
    """Delete the row of a retired compacted ledger that may go. False if it may not, or is gone. TopicNotFound."""
    topics.locked(connection, topic_id)
    found = _find(connection, topic_id, ledger_id)
    if found is None or found.retired_at is None or now - found.retired_at < grace_ms:
        return False
    if any(pin.ledger_id == ledger_id for pin in live(connection, topic_id, now)):
        return False
    connection.execute(delete(pins).where(pins.c.ledger_id == ledger_id, ~_alive(now)))
    connection.execute(delete(compacted_ledgers).where(compacted_ledgers.c.ledger_id == ledger_id))
    return True


def _check_ttl(ttl_ms: int) -> None:
    if ttl_ms > PIN_TTL_MS:
        raise AssertionError(f"a pin of {ttl_ms} ms would count as one of a wrong clock; renew one of {PIN_TTL_MS} ms")


def _alive(now: int) -> ColumnElement[bool]:
    return expiring(PIN_TTL_MS, now).where(pins.c.expires_at)


def _find(connection: Connection, topic_id: int, ledger_id: int) -> CompactedLedgerRecord | None:
    statement = select(compacted_ledgers).where(
        compacted_ledgers.c.topic_id == topic_id, compacted_ledgers.c.ledger_id == ledger_id
    )
    row = connection.execute(statement).mappings().one_or_none()
    return row_mapping.compacted_ledger(row) if row is not None else None


def of_references(connection: Connection, topic_id: int, now: int) -> GcSnapshot:
    """What leads to objects, also trimmed ledgers until they are forgotten. Raises TopicNotFound.

    List the objects first and call this after: each attempt is known before its first object, so an object that was
    listed, that nothing here leads to, and whose attempt is finished or unknown here, is garbage forever.
    """
    return GcSnapshot(
        topic=topics.by_id(connection, topic_id),
        ledgers=ledgers.with_trimmed(connection, topic_id),
        compacted=kept(connection, topic_id),
        attempts=attempts.of_topic(connection, topic_id),
        pins=live(connection, topic_id, now),
    )


class PinStore:
    """The rows of pins, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def take(
        self, topic_id: int, holder: str, ttl_ms: int, ledger_id: int | None = None
    ) -> tuple[TopicSnapshot, Pin | None]:
        """The topic of one moment, with a pin on the compacted ledger that serves in it; None: never compacted.

        `ledger_id`: pin that compacted ledger instead, unless it is collected already; it need not serve any more.
        While the pin lives, nothing that the pinned compacted ledger refers to is deleted.
        """
        with self._database.write() as connection:
            # The pin locks the topic first, so what the snapshot's statements see cannot change between them.
            pin = take(connection, topic_id, holder, ttl_ms, self._clock.now_ms(), ledger_id)
            return snapshots.of_topic(connection, topic_id), pin

    def renew(self, pin: Pin, ttl_ms: int) -> Pin:
        """A new term from now on. Raises Fenced if the pin expired and its compacted ledger was collected."""
        with self._database.write() as connection:
            return renew(connection, pin, ttl_ms, self._clock.now_ms())

    def release(self, pin: Pin) -> None:
        """Give the pin back; nothing happens if it is gone."""
        with self._database.write() as connection:
            release(connection, pin)

    def retired(self, topic_id: int) -> list[CompactedLedgerRecord]:
        """The compacted ledgers that serve no more and are not collected yet, the oldest first."""
        with self._database.read() as connection:
            return [one for one in kept(connection, topic_id) if one.retired_at is not None]

    def collect(self, topic_id: int, ledger_id: int, grace_ms: int) -> bool:
        """Delete the row of a compacted ledger that retired at least `grace_ms` ago and that no live pin holds (A3).

        False if it must stay, or is gone already. Afterwards its objects may be deleted that nothing else refers to.
        """
        with self._database.write() as connection:
            return collect(connection, topic_id, ledger_id, grace_ms, self._clock.now_ms())

    def referenced(self, topic_id: int) -> GcSnapshot:
        """What refers to objects of the topic, and who may still write some, all of one moment. List objects first."""
        with self._database.snapshot() as connection:
            return of_references(connection, topic_id, self._clock.now_ms())
