"""Pins, and the collection of compacted ledgers: a pin keeps a compacted ledger for a reader.

Invariants: a compacted ledger is collected only when it no longer serves, its grace time is over and no live pin is on
it (A3); pin and collection of one topic form a queue at the topic's row, so a reader that pins either holds the ledger
or sees a newer one. A ledger that serves no more can be pinned again until it is collected. The database itself forbids
to delete a row that is pinned (tables.py).

Time decides only how long a pin lasts (liveness.py). A wrong clock costs a reader its pin, which its next renewal
reports, or keeps objects for too long; a ledger that serves is never collected, whatever the time.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, bindparam, delete, insert, select

from storage.errors import Fenced
from storage.metadata import attempts, cursors, ledgers, queries, row_mapping, snapshots, topics
from storage.metadata.liveness import PIN_TTL_MS, live_expiry_bounds
from storage.metadata.records import CompactedLedgerRecord, GcSnapshot, Pin, TopicSnapshot
from storage.metadata.tables import compacted_ledgers, pins
from storage.metadata.transactions import Context

_UNCOLLECTED = (
    select(compacted_ledgers)
    .where(compacted_ledgers.c.topic_id == bindparam("topic"))
    .order_by(compacted_ledgers.c.generation)
)


def take(
    connection: Connection, context: Context, topic_id: int, owner: str, ttl_ms: int, ledger_id: int | None = None
) -> tuple[TopicSnapshot, Pin | None]:
    """Pin the compacted ledger that serves; return the topic as of one moment and the pin, None if never compacted.

    `ttl_ms`: PIN_TTL_MS at most. `ledger_id`: pin that compacted ledger instead, unless it is collected already; it
    need not serve any more. While the pin lives, nothing that the pinned compacted ledger refers to is deleted. Raises
    TopicNotFound.
    """
    _check_ttl(ttl_ms)
    # The lock comes first, so the rows that the snapshot's statements read cannot change between them.
    topics.lock(connection, topic_id)
    pinned = None if ledger_id is None else _find_ledger(connection, topic_id, ledger_id)
    pinned = pinned or cursors.serving_compacted_ledger(connection, topic_id)
    pin = None
    if pinned is not None:
        # Dead readers leave rows; each new pin deletes them, so there are never more than readers.
        connection.execute(delete(pins).where(pins.c.topic_id == topic_id, ~_live_condition(context.now)))
        pin = Pin(uuid.uuid4().hex, topic_id, pinned.ledger_id, owner, context.now + ttl_ms)
        connection.execute(insert(pins).values(**row_mapping.pin_values(pin)))
    return snapshots.of_topic(connection, topic_id), pin


def renew(connection: Connection, context: Context, pin: Pin, ttl_ms: int) -> Pin:
    """Extend a pin by a new TTL from now, also if it has expired and the compacted ledger was not collected.

    Returns the pin with its new end. Raises Fenced if the compacted ledger was collected, TopicNotFound.
    """
    _check_ttl(ttl_ms)
    topic = topics.lock(connection, pin.topic_id)
    if _find_ledger(connection, pin.topic_id, pin.ledger_id) is None:
        raise Fenced(
            f"the pin of {pin.owner} on compacted ledger {pin.ledger_id} of {topic.name} expired, and the ledger was "
            "collected",
            "continue at the same position with the compacted ledger that serves now",
        )
    renewed = replace(pin, expires_at=context.now + ttl_ms)
    if not queries.change(connection, pins, pin.pin_id, expires_at=renewed.expires_at):  # another pin deleted it
        connection.execute(insert(pins).values(**row_mapping.pin_values(renewed)))
    return renewed


def release(connection: Connection, pin: Pin) -> None:
    """Delete a pin, so that it no longer keeps its compacted ledger. Idempotent."""
    connection.execute(delete(pins).where(pins.c.pin_id == pin.pin_id))


def retired_ledgers(connection: Connection, topic_id: int) -> list[CompactedLedgerRecord]:
    """Return the compacted ledgers that serve no more and are not collected yet, the oldest first."""
    return [ledger for ledger in _uncollected_ledgers(connection, topic_id) if ledger.retired_at is not None]


def delete_ledger_if_unpinned(
    connection: Connection, context: Context, topic_id: int, ledger_id: int, grace_ms: int
) -> bool:
    """Delete the row of a compacted ledger that retired at least `grace_ms` ago and that no live pin holds (A3).

    Returns False if the ledger must stay, or its row does not exist. Afterwards those of its objects may be deleted
    that nothing else refers to. Raises TopicNotFound.
    """
    topics.lock(connection, topic_id)
    ledger = _find_ledger(connection, topic_id, ledger_id)
    if ledger is None or ledger.retired_at is None or context.now - ledger.retired_at < grace_ms:
        return False
    if any(pin.ledger_id == ledger_id for pin in _live_pins(connection, topic_id, context.now)):
        return False
    connection.execute(delete(pins).where(pins.c.ledger_id == ledger_id, ~_live_condition(context.now)))
    connection.execute(delete(compacted_ledgers).where(compacted_ledgers.c.ledger_id == ledger_id))
    return True


def gc_snapshot(connection: Connection, context: Context, topic_id: int) -> GcSnapshot:
    """Return the rows that lead to objects of the topic, and the attempts that may still write some, as of one moment.

    Ledgers that are trimmed are among them until they are purged. List the objects first and call this afterwards: each
    attempt is known before its first object, so an object that was listed, that no row here leads to, and whose attempt
    is finished or unknown here, is garbage forever. Raises TopicNotFound.
    """
    return GcSnapshot(
        topic=topics.by_id(connection, topic_id),
        ledgers=ledgers.with_trimmed(connection, topic_id),
        compacted=_uncollected_ledgers(connection, topic_id),
        attempts=tuple(attempts.of_topic(connection, topic_id)),
        pins=_live_pins(connection, topic_id, context.now),
    )


def _live_pins(connection: Connection, topic_id: int, now: int) -> tuple[Pin, ...]:
    """Return the pins that hold a compacted ledger at this moment."""
    statement = select(pins).where(pins.c.topic_id == topic_id, _live_condition(now)).order_by(pins.c.pin_id)
    return tuple(queries.fetch(connection, statement, row_mapping.pin))


def _uncollected_ledgers(connection: Connection, topic_id: int) -> tuple[CompactedLedgerRecord, ...]:
    """Return the compacted ledgers whose rows exist, the one that serves and the retired ones, by generation."""
    return tuple(queries.fetch(connection, _UNCOLLECTED, row_mapping.compacted_ledger, {"topic": topic_id}))


def _check_ttl(ttl_ms: int) -> None:
    if ttl_ms > PIN_TTL_MS:
        raise AssertionError(f"a pin of {ttl_ms} ms would count as one of a wrong clock; renew one of {PIN_TTL_MS} ms")


def _live_condition(now: int) -> ColumnElement[bool]:
    return live_expiry_bounds(PIN_TTL_MS, now).condition(pins.c.expires_at)


def _find_ledger(connection: Connection, topic_id: int, ledger_id: int) -> CompactedLedgerRecord | None:
    statement = select(compacted_ledgers).where(
        compacted_ledgers.c.topic_id == topic_id, compacted_ledgers.c.ledger_id == ledger_id
    )
    return queries.find(connection, statement, row_mapping.compacted_ledger)
