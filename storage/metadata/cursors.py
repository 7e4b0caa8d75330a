"""Cursors, and the guard around `__compaction`.

Invariants: the mark-delete position of `__compaction` and its property `CompactedTopicLedger` are written by
`publishing` alone. Here they are never moved, changed or lost (A2, A4): other properties are merged beside them.
Deleting the cursor takes the compacted ledger out of service with it and raises the epoch, so a run that is still at
work cannot publish into the topic's new life (S8).
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete, insert, select, update

from storage.errors import InvalidInput, NotFound
from storage.metadata import mapping, topics
from storage.metadata.records import (
    COMPACTED_LEDGER_PROPERTY,
    COMPACTION_CURSOR,
    READ_COMPACTED_PROPERTY,
    CompactedLedgerRecord,
    CursorRecord,
    TopicRecord,
)
from storage.metadata.tables import compacted_ledgers, cursors
from storage.metadata.tables import topics as topics_table
from storage.model import Position


def create(connection: Connection, topic_id: int, name: str) -> CursorRecord:
    """The cursor of that name; made, with nothing acknowledged, if it does not exist. Raises TopicNotFound."""
    topics.locked(connection, topic_id)
    existing = find(connection, topic_id, name)
    if existing is not None:
        return existing
    empty = mapping.position_values("mark_delete", None)
    connection.execute(insert(cursors).values(topic_id=topic_id, name=name, **empty, properties={}))
    return CursorRecord(name, None, {})


def find(connection: Connection, topic_id: int, name: str) -> CursorRecord | None:
    statement = select(cursors).where(cursors.c.topic_id == topic_id, cursors.c.name == name)
    row = connection.execute(statement).mappings().one_or_none()
    return mapping.cursor(row) if row is not None else None


def get(connection: Connection, topic: TopicRecord, name: str) -> CursorRecord:
    """Raises NotFound."""
    cursor = find(connection, topic.id, name)
    if cursor is None:
        raise NotFound(f"the topic {topic.name} has no cursor {name!r}", "create it first, or check its name")
    return cursor


def of_topic(connection: Connection, topic_id: int) -> list[CursorRecord]:
    """By name, in the order of code points."""
    found = connection.execute(select(cursors).where(cursors.c.topic_id == topic_id)).mappings()
    return sorted((mapping.cursor(row) for row in found), key=lambda cursor: cursor.name)


def reset(connection: Connection, topic_id: int, name: str, position: Position) -> CursorRecord:
    """Move a cursor. Raises InvalidInput for `__compaction` (A4), NotFound, TopicNotFound."""
    topic = topics.locked(connection, topic_id)
    if name == COMPACTION_CURSOR:
        raise InvalidInput(
            f"the cursor {COMPACTION_CURSOR} of {topic.name} cannot be reset or skipped: it is the compaction horizon",
            "compact the topic to move it on, or delete the cursor to give up the compacted ledger",
        )
    cursor = get(connection, topic, name)
    _update(connection, topic_id, name, **mapping.position_values("mark_delete", position))
    return CursorRecord(name, position, cursor.properties)


def set_properties(connection: Connection, topic_id: int, name: str, updates: Mapping[str, str]) -> CursorRecord:
    """Merge `updates` into a cursor's properties. Raises InvalidInput, NotFound, TopicNotFound."""
    topic = topics.locked(connection, topic_id)
    cursor = get(connection, topic, name)
    merged = {**cursor.properties, **updates}
    pointer = cursor.properties.get(COMPACTED_LEDGER_PROPERTY)
    if name == COMPACTION_CURSOR and merged.get(COMPACTED_LEDGER_PROPERTY) != pointer:
        raise InvalidInput(
            f"the property {COMPACTED_LEDGER_PROPERTY} of {topic.name} cannot be set by hand: it names the compacted "
            "ledger that serves",
            "leave it out; a compaction sets it",
        )
    _update(connection, topic_id, name, properties=merged)
    return CursorRecord(name, cursor.mark_delete, merged)


def remove(connection: Connection, topic_id: int, name: str, now: int) -> None:
    """Delete a cursor; with `__compaction` goes the compacted ledger. Raises NotFound, TopicNotFound."""
    topic = topics.locked(connection, topic_id)
    get(connection, topic, name)
    connection.execute(delete(cursors).where(cursors.c.topic_id == topic_id, cursors.c.name == name))
    if name == COMPACTION_CURSOR:
        connection.execute(
            update(topics_table).where(topics_table.c.id == topic_id).values(epoch=topics_table.c.epoch + 1)
        )
        retire_compacted(connection, topic_id, now)


def compacted_floor(connection: Connection, topic_id: int) -> int | None:
    """The offset that the slowest cursor of a compacted reader has acknowledged (T1); None: there is no such cursor.

    -1 if one has acknowledged nothing. Such a cursor has the property `readCompacted` = "true"; `__compaction`, the
    compactor's own, does not count.
    """
    readers = [
        cursor
        for cursor in of_topic(connection, topic_id)
        if cursor.name != COMPACTION_CURSOR and cursor.properties.get(READ_COMPACTED_PROPERTY) == "true"
    ]
    return min((cursor.mark_delete.offset if cursor.mark_delete else -1 for cursor in readers), default=None)


def serving_compacted(connection: Connection, topic_id: int) -> CompactedLedgerRecord | None:
    """The compacted ledger that compacted reads use now."""
    statement = select(compacted_ledgers).where(
        compacted_ledgers.c.topic_id == topic_id, compacted_ledgers.c.retired_at.is_(None)
    )
    row = connection.execute(statement).mappings().one_or_none()
    return mapping.compacted_ledger(row) if row is not None else None


def retire_compacted(connection: Connection, topic_id: int, now: int) -> None:
    """Take the compacted ledger that serves, if any, out of service; its objects stay for a grace time (A3)."""
    connection.execute(
        update(compacted_ledgers)
        .where(compacted_ledgers.c.topic_id == topic_id, compacted_ledgers.c.retired_at.is_(None))
        .values(retired_at=now)
    )


def move_horizon(connection: Connection, topic_id: int, horizon: Position, compacted_ledger_id: int) -> None:
    """Set mark-delete and pointer of `__compaction` together; all other properties stay (A1, A2)."""
    cursor = create(connection, topic_id, COMPACTION_CURSOR)
    _update(
        connection,
        topic_id,
        COMPACTION_CURSOR,
        **mapping.position_values("mark_delete", horizon),
        properties={**cursor.properties, COMPACTED_LEDGER_PROPERTY: str(compacted_ledger_id)},
    )


def _update(connection: Connection, topic_id: int, name: str, **values: object) -> None:
    connection.execute(update(cursors).where(cursors.c.topic_id == topic_id, cursors.c.name == name).values(**values))
