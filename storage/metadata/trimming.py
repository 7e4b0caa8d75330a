"""Trimming: raw ledgers are marked as deleted and the start of the topic moves, in one transaction (C1, C2, C3).

Invariants: what a durable cursor still has to read, and what is above the horizon of a topic that is compacted, is
not trimmed unless forced; `start_offset` only grows; a marked ledger is never listed again. Its row stays until it is
forgotten, and as long its objects count as referenced, so its readers may finish.

A cursor below the topic's start needs nothing below that start any more. Must not know: objects; which ledgers go is
decided by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, delete, update

from storage.errors import Conflict
from storage.metadata import cursors, ledgers, topics
from storage.metadata.attempts import AT_ONCE
from storage.metadata.invariants import check_trim
from storage.metadata.policy_store import ensure_compaction_cursor
from storage.metadata.records import (
    COMPACTED_LEDGER_PROPERTY,
    COMPACTION_CURSOR,
    CursorRecord,
    SegmentState,
    TopicRecord,
)
from storage.metadata.segments import TAIL
from storage.metadata.segments import of_topic as segments_of
from storage.metadata.tables import ledgers as ledgers_table
from storage.metadata.tables import segments
from storage.metadata.tables import topics as topics_table
from storage.model import LedgerRecord


def trim(
    connection: Connection,
    topic_id: int,
    start_offset: int,
    ledger_ids: Collection[int],
    now: int,
    defaults: Mapping[str, object],
    *,
    force: bool,
    keep_start: bool,
) -> None:
    """Mark ledgers that are below `start_offset`, and begin reads there. `defaults`: the broker's policies.

    `keep_start`: the start stays, and the ledgers must be the topic's oldest and are at or below the horizon.
    Raises InvalidInput, Conflict.
    """
    topic = topics.locked(connection, topic_id)
    present = ledgers.of_topic(connection, topic_id)
    compacted = cursors.serving_compacted(connection, topic_id)
    check_trim(topic, start_offset, ledger_ids, present, compacted.horizon if compacted else None, keep_start)
    going = [ledger for ledger in present if ledger.ledger_id in set(ledger_ids)]
    if not force:
        ensure_compaction_cursor(connection, topic, defaults)
        gone_below = start_offset if not keep_start else max((one.last_offset + 1 for one in going), default=0)
        _check_cursors(connection, topic, gone_below)
    _mark(connection, going, now)
    if not keep_start:
        connection.execute(
            update(topics_table)
            .where(topics_table.c.id == topic_id)
            .values(start_offset=max(topic.start_offset, start_offset))
        )


def truncate(connection: Connection, topic_id: int, now: int) -> TopicRecord:
    """Clear what is below the topic's end of now, raw and compacted, also what cursors need; the topic as it is then
    (C2).

    An open segment stays: it begins at that end. Rolled ones count as sealed, so their files go as those do. The epoch
    is over, so a run that goes on publishes nothing; `__compaction` has no horizon any more. Raises TopicNotFound.
    """
    topic = topics.locked(connection, topic_id)
    _mark(connection, ledgers.of_topic(connection, topic_id), now)
    connection.execute(
        update(segments)
        .where(segments.c.topic_id == topic_id, segments.c.state == SegmentState.ROLLED.value)
        .values(state=SegmentState.SEALED.value, sealed_at=now, sealing_attempt_id=None)
    )
    cursor = cursors.find(connection, topic_id, COMPACTION_CURSOR)
    if cursor is not None:
        cursors.remove(connection, topic_id, COMPACTION_CURSOR, now)
        kept = {name: value for name, value in cursor.properties.items() if name != COMPACTED_LEDGER_PROPERTY}
        cursors.create(connection, topic_id, COMPACTION_CURSOR)
        cursors.set_properties(connection, topic_id, COMPACTION_CURSOR, kept)
    connection.execute(
        update(topics_table)
        .where(topics_table.c.id == topic_id)
        .values(start_offset=topic.next_offset, epoch=topics_table.c.epoch + 1)
    )
    return topics.by_id(connection, topic_id)


def is_trimmed(connection: Connection, topic_id: int, ledger_ids: Collection[int]) -> bool:
    """Whether none of those ledgers is listed."""
    return not {ledger.ledger_id for ledger in ledgers.of_topic(connection, topic_id)} & set(ledger_ids)


def is_cleared(connection: Connection, topic_id: int, below: int) -> bool:
    """Whether nothing that is below an offset, raw or compacted, can be read."""
    compacted = cursors.serving_compacted(connection, topic_id)
    raw = min((one.first_offset for one in ledgers.of_topic(connection, topic_id)), default=below)
    rolled = min((one.first_offset for one in segments_of(connection, topic_id, TAIL)), default=below)
    return min(raw, rolled) >= below and (compacted is None or compacted.horizon.offset >= below)


def trimmed(connection: Connection, topic_id: int) -> list[LedgerRecord]:
    """The ledgers that are marked and not forgotten, in the order of offsets."""
    return [ledger for ledger in ledgers.with_trimmed(connection, topic_id) if ledger.deleted_at is not None]


def forget(connection: Connection, topic_id: int, before_ms: int) -> int:
    """Delete the rows of ledgers that were marked at that time or before; how many. Raises TopicNotFound."""
    topics.locked(connection, topic_id)
    forgotten = connection.execute(
        delete(ledgers_table).where(ledgers_table.c.topic_id == topic_id, ledgers_table.c.deleted_at <= before_ms)
    )
    return forgotten.rowcount


def check_removal(connection: Connection, topic_id: int, name: str) -> None:
    """Deleting that cursor loses nothing that the next run cannot find in raw (R8). Raises Conflict.

    A compacted ledger without messages knows something, too: which keys were deleted or have expired, which holds
    against late values in event-time order (P9), and up to where a reader may have missed deletions (R7).
    """
    if name != COMPACTION_CURSOR:
        return
    topic = topics.locked(connection, topic_id)
    compacted = cursors.serving_compacted(connection, topic_id)
    # Segments need no look: what is not sealed is above the horizon.
    first_raw = min((one.first_offset for one in ledgers.of_topic(connection, topic_id)), default=topic.next_offset)
    first_raw = max(first_raw, topic.start_offset)  # it may be within a ledger
    if compacted is None or first_raw == 0:
        return
    last = min(first_raw - 1, compacted.horizon.offset)
    raise Conflict(
        f"raw messages of {topic.name} are gone up to offset {last}: what is left of offsets 0 to {last} is only in "
        f"compacted ledger {compacted.ledger_id} ({compacted.messages} messages up to offset "
        f"{compacted.horizon.offset}), with what it remembers of deleted keys; it goes with the cursor "
        f"{COMPACTION_CURSOR}",
        "keep the cursor, or force it to give this up forever",
    )


def _check_cursors(connection: Connection, topic: TopicRecord, gone_below: int) -> None:
    """Nobody needs what is below that offset. Raises Conflict, which names the slowest cursor that does."""
    slowest = min(cursors.of_topic(connection, topic.id), key=_needed, default=None)
    if slowest is None or max(_needed(slowest), topic.start_offset) >= gone_below:
        return
    at = f"at offset {_needed(slowest)}" if slowest.mark_delete else "with nothing acknowledged"
    remedy = (
        "compact the topic first, or force it"
        if slowest.name == COMPACTION_CURSOR
        else "let its reader acknowledge, delete the cursor, or force it"
    )
    raise Conflict(
        f"{topic.name} cannot be trimmed up to offset {gone_below}: its cursor {slowest.name!r} is {at}", remedy
    )


def _needed(cursor: CursorRecord) -> int:
    """The first offset that the cursor's reader has not acknowledged."""
    return cursor.mark_delete.offset + 1 if cursor.mark_delete else 0


def _mark(connection: Connection, going: Sequence[LedgerRecord], now: int) -> None:
    for first in range(0, len(going), AT_ONCE):
        ids = [ledger.ledger_id for ledger in going[first : first + AT_ONCE]]
        connection.execute(update(ledgers_table).where(ledgers_table.c.ledger_id.in_(ids)).values(deleted_at=now))
