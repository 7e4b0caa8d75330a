"""Trimming: raw ledgers are marked as deleted and the start of the topic moves, in one transaction (C1, C2, C3).

Invariants: messages that a durable cursor still has to read, or that are above the horizon of a topic that is
compacted, are trimmed only if forced; messages that alone have sequence ids of deduplication are never trimmed
(producer_sequences.py); `start_offset` only grows; a marked ledger is never listed again. Its row stays until it is
purged, and until then its objects count as referenced, so its readers may finish.

A cursor below the topic's start needs nothing below that start any more. The caller chooses the ledgers. Must not know:
objects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, delete

from storage.errors import Conflict
from storage.failpoints import Failpoint, failpoint
from storage.metadata import cursors, ledgers, queries, topic_work, topics
from storage.metadata.invariants import check_trim
from storage.metadata.policy_store import ensure_compaction_cursors
from storage.metadata.producer_sequences import check_stored
from storage.metadata.records import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, SegmentState, TopicRecord
from storage.metadata.segments import TAIL, of_topic as segments_of
from storage.metadata.tables import ledgers as ledgers_table, segments, topics as topics_table
from storage.metadata.transactions import Context
from storage.model import LedgerRecord


def trim(
    connection: Connection,
    context: Context,
    topic_id: int,
    start_offset: int,
    ledger_ids: Collection[int],
    *,
    force: bool,
    keep_start: bool = False,
) -> None:
    """Move the start of a topic to `start_offset` and mark ledgers, which are wholly below it, as deleted (C1, C3).

    A topic for which compaction is enabled, and that has no cursor `__compaction`, needs all its messages (S9). The
    start never goes back. `keep_start`: the start stays; the ledgers are the topic's oldest and are at or below the
    horizon, and their survivors are in the compacted ledger (C2). `force`: no cursor holds anything back. Raises
    TopicNotFound; InvalidInput for an offset beyond the topic's end; Conflict if a cursor, which it names, needs the
    messages, if a ledger was trimmed already, or if deduplication needs it (producer_sequences.py).
    """
    topic = topics.lock(connection, topic_id)
    present = ledgers.of_topic(connection, topic_id)
    compacted = cursors.serving_compacted_ledger(connection, topic_id)
    check_trim(topic, start_offset, ledger_ids, present, compacted.horizon if compacted else None, keep_start)
    trimmed_now = [ledger for ledger in present if ledger.ledger_id in set(ledger_ids)]
    end = max((ledger.last_offset + 1 for ledger in trimmed_now), default=0)
    check_stored(connection, topic, end if keep_start else max(end, start_offset))
    if not force:
        ensure_compaction_cursors(connection, context, [topic])
        _check_cursors(connection, topic, end if keep_start else start_offset)
    _mark_deleted(connection, topic_id, trimmed_now, context.now)
    if not keep_start:
        start = max(topic.start_offset, start_offset)
        queries.change(connection, topics_table, topic_id, start_offset=start)
    topic_work.mark(connection, topic_work.WorkKind.COMPACT, [topic_id])
    failpoint(Failpoint.TRIM_INSIDE_COMMIT)


def has_trimmed(
    connection: Connection,
    _: None,
    topic_id: int,
    start_offset: int,
    ledger_ids: Collection[int],
    *,
    force: bool,
    keep_start: bool = False,
) -> bool:
    """Return whether a `trim` was committed."""
    topic = topics.lock(connection, topic_id)
    moved = keep_start or topic.start_offset >= start_offset
    listed = {ledger.ledger_id for ledger in ledgers.of_topic(connection, topic_id)}
    return moved and not listed & set(ledger_ids)


def truncate_all(connection: Connection, context: Context, topic_ids: Sequence[int]) -> list[TopicRecord]:
    """Delete all messages below the present end of topics, raw and compacted, also those that cursors need (C2).

    All topics or none. Returns them as they are afterwards, in their order. Offsets continue. An open segment stays: it
    begins at that end, so roll it before. Rolled segments count as sealed, so their files are removed in the same way.
    The epoch ends, so a run that continues publishes nothing; `__compaction` has no horizon any more. Called again,
    this clears the messages that were appended meanwhile. Raises TopicNotFound, Conflict if deduplication needs
    messages (producer_sequences.py).
    """
    truncated = {topic_id: truncate(connection, topic_id, context.now) for topic_id in sorted(topic_ids)}
    failpoint(Failpoint.TRUNCATE_INSIDE_COMMIT)
    return [truncated[topic_id] for topic_id in topic_ids]


def has_truncated(connection: Connection, truncated: list[TopicRecord], topic_ids: Sequence[int]) -> bool:
    """Return whether a `truncate_all` with this result was committed."""
    return all(_is_truncated(connection, topic) for topic in sorted(truncated, key=lambda topic: topic.id))


def trimmed_ledgers(connection: Connection, topic_id: int) -> list[LedgerRecord]:
    """Return the topic's ledgers that are marked as deleted and not purged, in the order of offsets."""
    return [ledger for ledger in ledgers.with_trimmed(connection, topic_id) if ledger.deleted_at is not None]


def purge(connection: Connection, topic_id: int, before_ms: int) -> int:
    """Delete the rows of ledgers that were marked as deleted at `before_ms` (ms) or before; return their number.

    Afterwards nothing refers to their objects, and garbage collection may delete them. Raises TopicNotFound.
    """
    topics.lock(connection, topic_id)
    marked = (ledgers_table.c.topic_id == topic_id) & (ledgers_table.c.deleted_at <= before_ms)
    return connection.execute(delete(ledgers_table).where(marked)).rowcount


def truncate(connection: Connection, topic_id: int, now: int) -> TopicRecord:
    """Delete all messages of one topic, as `truncate_all`, and return the topic. Raises TopicNotFound, Conflict."""
    topic = topics.lock(connection, topic_id)
    check_stored(connection, topic, topic.next_offset)
    _mark_deleted(connection, topic_id, ledgers.of_topic(connection, topic_id), now)
    rolled = (segments.c.topic_id == topic_id) & (segments.c.state == SegmentState.ROLLED.value)
    sealed = {"state": SegmentState.SEALED.value, "sealed_at": now, "sealing_attempt_id": None}
    queries.change_where(connection, segments, rolled, **sealed)
    cursor = cursors.find(connection, topic_id, COMPACTION_CURSOR)
    if cursor is not None:
        cursors.remove(connection, topic_id, COMPACTION_CURSOR, now)
        kept = {name: value for name, value in cursor.properties.items() if name != COMPACTED_LEDGER_PROPERTY}
        cursors.ensure(connection, topic_id, COMPACTION_CURSOR)
        cursors.set_properties(connection, topic_id, COMPACTION_CURSOR, kept)
    queries.change(connection, topics_table, topic_id, start_offset=topic.next_offset, epoch=topics_table.c.epoch + 1)
    topic_work.mark(connection, topic_work.WorkKind.COMPACT, [topic_id])
    return topics.by_id(connection, topic_id)


def _is_truncated(connection: Connection, truncated: TopicRecord) -> bool:
    """Return whether a topic was cleared up to the start of `truncated`. It is locked from then on."""
    topic = topics.lock(connection, truncated.id)
    # the epoch alone proves nothing: a claim may have raised it
    cleared = _is_cleared(connection, truncated.id, truncated.start_offset)
    return cleared and topic.epoch >= truncated.epoch and topic.start_offset >= truncated.start_offset


def _is_cleared(connection: Connection, topic_id: int, below: int) -> bool:
    """Return whether no message below an offset, raw or compacted, can be read."""
    compacted = cursors.serving_compacted_ledger(connection, topic_id)
    raw = min((ledger.first_offset for ledger in ledgers.of_topic(connection, topic_id)), default=below)
    rolled = min((segment.first_offset for segment in segments_of(connection, topic_id, TAIL)), default=below)
    return min(raw, rolled) >= below and (compacted is None or compacted.horizon.offset >= below)


def _check_cursors(connection: Connection, topic: TopicRecord, end: int) -> None:
    """Raise Conflict if a cursor needs messages below the offset `end`; it names the slowest one."""
    slowest = min(cursors.of_topic(connection, topic.id), key=lambda cursor: cursor.mark_delete_offset, default=None)
    if slowest is None or max(slowest.mark_delete_offset + 1, topic.start_offset) >= end:
        return
    at = f"at offset {slowest.mark_delete_offset + 1}" if slowest.mark_delete else "with nothing acknowledged"
    remedy = (
        "compact the topic first, or force it"
        if slowest.name == COMPACTION_CURSOR
        else "let its reader acknowledge, delete the cursor, or force it"
    )
    raise Conflict(f"{topic.name} cannot be trimmed up to offset {end}: its cursor {slowest.name!r} is {at}", remedy)


def _mark_deleted(connection: Connection, topic_id: int, records: Sequence[LedgerRecord], now: int) -> None:
    for ids in queries.batches([ledger.ledger_id for ledger in records]):
        queries.change_where(connection, ledgers_table, ledgers_table.c.ledger_id.in_(ids), deleted_at=now)
    if records:
        topic_work.mark(connection, topic_work.WorkKind.COLLECT, [topic_id])
