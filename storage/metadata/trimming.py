"""Trimming: raw ledgers are marked as deleted and the start of the topic moves, in one transaction (C1, C2, C3).

Invariants: what a durable cursor still has to read, and what is above the horizon of a topic that is compacted, is
not trimmed unless forced; what deduplication knows by it alone is not trimmed at all (producer_sequences.py);
`start_offset` only grows; a marked ledger is never listed again. Its row stays until it is purged, and until then its
objects count as referenced, so its readers may finish.

A cursor below the topic's start needs nothing below that start any more. Must not know: objects; which ledgers go is
decided by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, delete, update

from storage.clock import Clock
from storage.errors import Conflict
from storage.failpoints import Failpoint, failpoint
from storage.metadata import cursors, ledgers, queries, topics
from storage.metadata.engine import Database
from storage.metadata.invariants import check_trim
from storage.metadata.policy_store import ensure_compaction_cursor
from storage.metadata.producer_sequences import check_stored
from storage.metadata.queries import Store
from storage.metadata.records import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, SegmentState, TopicRecord
from storage.metadata.segments import TAIL, of_topic as segments_of
from storage.metadata.tables import ledgers as ledgers_table, segments, topics as topics_table
from storage.model import LedgerRecord


class TrimmingStore(Store):
    """Trims and truncations."""

    def __init__(self, database: Database, clock: Clock, defaults: Mapping[str, object]) -> None:
        """`defaults`: the broker's policies (PolicyStore)."""
        super().__init__(database, clock)
        self._defaults = defaults

    def trim(
        self,
        topic_id: int,
        start_offset: int,
        ledger_ids: Collection[int],
        *,
        force: bool,
        keep_start: bool = False,
    ) -> None:
        """Begin reads at `start_offset` and mark as deleted the given ledgers, which are wholly below it (C1, C3).

        A topic for which compaction is enabled, and that has no cursor `__compaction`, needs all that it has (S9).
        The start never goes back. `keep_start`: it stays where it is; the ledgers are the topic's oldest and are at or
        below the horizon, and what of them survived is in the compacted ledger (C2). `force`: no cursor holds
        anything back. Raises InvalidInput for an offset beyond the topic's end, Conflict if a cursor needs what would
        go (it is named), if a ledger was trimmed already, or if deduplication needs it (producer_sequences.py).
        """

        def change(connection: Connection) -> None:
            now = self._clock.now_ms()
            topic = topics.locked(connection, topic_id)
            present = ledgers.of_topic(connection, topic_id)
            compacted = cursors.serving_compacted(connection, topic_id)
            check_trim(topic, start_offset, ledger_ids, present, compacted.horizon if compacted else None, keep_start)
            going = [ledger for ledger in present if ledger.ledger_id in set(ledger_ids)]
            end = max((ledger.last_offset + 1 for ledger in going), default=0)
            check_stored(connection, topic, end if keep_start else max(end, start_offset))
            if not force:
                ensure_compaction_cursor(connection, topic, self._defaults)
                _check_cursors(connection, topic, end if keep_start else start_offset)
            _mark(connection, going, now)
            if not keep_start:
                start = max(topic.start_offset, start_offset)
                queries.change(connection, topics_table, topic_id, start_offset=start)
            failpoint(Failpoint.TRIM_INSIDE_COMMIT)

        def happened(connection: Connection, _: None) -> bool:
            topic = topics.locked(connection, topic_id)
            moved = keep_start or topic.start_offset >= start_offset
            listed = {ledger.ledger_id for ledger in ledgers.of_topic(connection, topic_id)}
            return moved and not listed & set(ledger_ids)

        self._database.write_once(change, happened, f"whether the topic with id {topic_id} was trimmed")

    def truncate(self, topic_ids: Sequence[int]) -> list[TopicRecord]:
        """Clear what is below the present end of topics, raw and compacted, also what cursors need; offsets continue
        (C2).

        Each of them or none; as they are then, in their order. An open segment stays: it begins at that end, so roll it
        before. Rolled ones count as sealed, so their files go as those do. The epoch is over, so a run that continues
        publishes nothing; `__compaction` has no horizon any more. Called again, it clears what came meanwhile. Raises
        TopicNotFound, Conflict if deduplication needs what would go (producer_sequences.py).
        """

        def change(connection: Connection) -> list[TopicRecord]:
            now = self._clock.now_ms()
            truncated = {topic_id: truncate(connection, topic_id, now) for topic_id in sorted(topic_ids)}
            failpoint(Failpoint.TRUNCATE_INSIDE_COMMIT)
            return [truncated[topic_id] for topic_id in topic_ids]

        def happened(connection: Connection, truncated: list[TopicRecord]) -> bool:
            return all(_is_truncated(connection, topic) for topic in sorted(truncated, key=lambda topic: topic.id))

        truncated = self._database.write_once(change, happened, f"whether topics {topic_ids} were truncated")
        failpoint(Failpoint.TRUNCATED)
        return truncated

    def trimmed(self, topic_id: int) -> list[LedgerRecord]:
        """The ledgers that are marked as deleted and not purged, in the order of offsets."""
        with self._database.read() as connection:
            return [ledger for ledger in ledgers.with_trimmed(connection, topic_id) if ledger.deleted_at is not None]

    def purge(self, topic_id: int, before_ms: int) -> int:
        """Delete the rows of ledgers that were marked at that time (ms) or before; how many. Raises TopicNotFound.

        Afterwards nothing refers to their objects, and garbage collection may delete them.
        """
        with self._database.write() as connection:
            topics.locked(connection, topic_id)
            marked = (ledgers_table.c.topic_id == topic_id) & (ledgers_table.c.deleted_at <= before_ms)
            return connection.execute(delete(ledgers_table).where(marked)).rowcount


def truncate(connection: Connection, topic_id: int, now: int) -> TopicRecord:
    """What `TrimmingStore.truncate` changes."""
    topic = topics.locked(connection, topic_id)
    check_stored(connection, topic, topic.next_offset)
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
        cursors.ensure(connection, topic_id, COMPACTION_CURSOR)
        cursors.set_properties(connection, topic_id, COMPACTION_CURSOR, kept)
    queries.change(connection, topics_table, topic_id, start_offset=topic.next_offset, epoch=topics_table.c.epoch + 1)
    return topics.by_id(connection, topic_id)


def _is_truncated(connection: Connection, truncated: TopicRecord) -> bool:
    """Whether a topic was cleared as far as that. It is locked from then on."""
    topic = topics.locked(connection, truncated.id)
    # a claim may have raised the epoch as far, of a topic of which nothing was cleared
    cleared = _is_cleared(connection, truncated.id, truncated.start_offset)
    return cleared and topic.epoch >= truncated.epoch and topic.start_offset >= truncated.start_offset


def _is_cleared(connection: Connection, topic_id: int, below: int) -> bool:
    """Whether nothing that is below an offset, raw or compacted, can be read."""
    compacted = cursors.serving_compacted(connection, topic_id)
    raw = min((ledger.first_offset for ledger in ledgers.of_topic(connection, topic_id)), default=below)
    rolled = min((segment.first_offset for segment in segments_of(connection, topic_id, TAIL)), default=below)
    return min(raw, rolled) >= below and (compacted is None or compacted.horizon.offset >= below)


def _check_cursors(connection: Connection, topic: TopicRecord, gone_below: int) -> None:
    """No cursor needs what is below that offset. Raises Conflict, which names the slowest one that does."""
    slowest = min(cursors.of_topic(connection, topic.id), key=lambda cursor: cursor.mark, default=None)
    if slowest is None or max(slowest.mark + 1, topic.start_offset) >= gone_below:
        return
    at = f"at offset {slowest.mark + 1}" if slowest.mark_delete else "with nothing acknowledged"
    remedy = (
        "compact the topic first, or force it"
        if slowest.name == COMPACTION_CURSOR
        else "let its reader acknowledge, delete the cursor, or force it"
    )
    raise Conflict(
        f"{topic.name} cannot be trimmed up to offset {gone_below}: its cursor {slowest.name!r} is {at}", remedy
    )


def _mark(connection: Connection, going: Sequence[LedgerRecord], now: int) -> None:
    for ids in queries.batches([ledger.ledger_id for ledger in going]):
        connection.execute(update(ledgers_table).where(ledgers_table.c.ledger_id.in_(ids)).values(deleted_at=now))
