"""Sealing: a rolled segment is claimed by an attempt, and its ledger takes its place in one transaction.

Invariants: at any moment a message is in a segment that no ledger replaces, or in a ledger, never in both and
never in neither. A segment is sealed by the attempt that has claimed it last: the sealer that claims from one that
stopped answering finishes that one's attempt, so a late commit finds itself fenced. The ledger holds exactly what the
segment holds (invariants.check_seal); it is below the topic's end, so it is inserted here and not by ledgers.append. A
claim is counted when it is made, so a segment that kills its sealers is known. It is taken back when its sealer ends by
itself (`release`), or else, as the sealer could not say so or stood still, when the next one finds its process alive.

A sealed segment's row stays until its file is gone, and says which log directory has it. Must not know: files, objects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, insert, select, update

from storage.failpoints import Failpoint, failpoint
from storage.metadata import attempts, queries, row_mapping, segments, topics
from storage.metadata.invariants import check_seal
from storage.metadata.liveness import is_alive
from storage.metadata.queries import Store
from storage.metadata.records import MAX_SEALING_TRIES, Attempt, AttemptKind, SegmentRecord, SegmentState, TopicRecord
from storage.metadata.tables import attempts as attempts_table, ledgers, segments as segments_table
from storage.model import LedgerRecord
from storage.owner import is_alive_here


class SealingStore(Store):
    """Sealing."""

    def claim(
        self,
        topic_id: int,
        owner: str,
        log_uid: str,
        stale_ms: int,
        below: int | None = None,
        but: Collection[int] = (),
        *,
        again: bool = False,
    ) -> tuple[SegmentRecord, Attempt] | None:
        """Claim the oldest unclaimed rolled segment of a log directory, by a new attempt; None: there is none.

        `below`: only one that begins below this offset; `but`: none of these ledger ids. An attempt whose heartbeat is
        `stale_ms` old is finished, and seals nothing any more. Each claim is a try, until `release`, or until the next
        claim if the process of the one before lives; `again`: also a segment that was tried too often. Raises
        TopicNotFound.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            topics.locked(connection, topic_id)
            rolled = segments.of_topic(connection, topic_id, [SegmentState.ROLLED])
            claims = _open_claims(connection, rolled)
            alive = {
                attempt.attempt_id
                for attempt in claims.values()
                if is_alive(attempt.owner, attempt.heartbeat_at, stale_ms, now)
            }
            wanted = (
                segment
                for segment in rolled
                if segment.log_uid == log_uid
                and segment.ledger_id not in but
                and (below is None or segment.first_offset < below)
                and (again or not _tries(segment, claims) >= MAX_SEALING_TRIES)
            )
            free = next((segment for segment in wanted if segment.sealing_attempt_id not in alive), None)
            if free is None:
                return None
            if free.sealing_attempt_id is not None:
                attempts.finish(connection, [free.sealing_attempt_id], now)
            attempt = attempts.begin(connection, topic_id, AttemptKind.SEAL, owner, now)
            claim = {"sealing_attempt_id": attempt.attempt_id, "sealing_tries": _tries(free, claims) + 1}
            queries.change(connection, segments_table, free.ledger_id, **claim)
            claimed = segments.find(connection, topic_id, free.ledger_id)
            assert claimed is not None
            return claimed, attempt

    def release(self, attempt: Attempt) -> None:
        """Finish a sealer's attempt that has ended by itself, sealed or not: it is no try. Again changes nothing."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            topics.locked(connection, attempt.topic_id)
            if not attempts.lock_open(connection, [attempt.attempt_id]):
                return
            connection.execute(
                update(segments_table)
                .where(
                    segments_table.c.topic_id == attempt.topic_id,
                    segments_table.c.sealing_attempt_id == attempt.attempt_id,
                )
                .values(sealing_tries=segments_table.c.sealing_tries - 1)
            )
            attempts.finish(connection, [attempt.attempt_id], now)

    def seal(self, attempt: Attempt, ledger: LedgerRecord) -> None:
        """Let a ledger, whose objects exist, stand for the segment of its id, and finish the attempt.

        Raises TopicNotFound; Fenced if the attempt was finished as dead, or another has claimed or sealed the segment.
        """

        def change(connection: Connection) -> None:
            seal(connection, attempt, ledger, self._clock.now_ms())
            failpoint(Failpoint.SEAL_INSIDE_COMMIT)

        def happened(connection: Connection, _: None) -> bool:
            topics.locked(connection, attempt.topic_id)
            return sealed_by(connection, attempt, ledger.ledger_id)

        self._database.write_once(change, happened, f"whether ledger {ledger.ledger_id} was sealed")

    def files(
        self, log_uid: str, sealed_until: int, topic_id: int | None = None
    ) -> list[tuple[TopicRecord, SegmentRecord]]:
        """The segments of a log directory that were sealed at that time (ms) or before: their files may go.

        The oldest first, with their topics. `topic_id`: only of that topic.
        """
        statement = (
            select(segments_table)
            .where(
                segments_table.c.log_uid == log_uid,
                segments_table.c.state == SegmentState.SEALED.value,
                segments_table.c.sealed_at <= sealed_until,
            )
            .order_by(segments_table.c.sealed_at, segments_table.c.ledger_id)
        )
        if topic_id is not None:
            statement = statement.where(segments_table.c.topic_id == topic_id)
        with self._database.snapshot() as connection:
            return segments.with_topics(connection, statement)

    def purge(self, topic_id: int, ledger_id: int) -> None:
        """Delete the row of a sealed segment whose file is gone; nothing happens without one. Raises TopicNotFound."""
        with self._database.write() as connection:
            topic = topics.locked(connection, topic_id)
            segments.remove(connection, topic, ledger_id, SegmentState.SEALED, "seal it before its row is purged")


def seal(connection: Connection, attempt: Attempt, ledger: LedgerRecord, now: int) -> None:
    """What `SealingStore.seal` changes."""
    topic = topics.locked(connection, attempt.topic_id)
    attempts.check_open(connection, [attempt.attempt_id])
    check_seal(topic, attempt, segments.find(connection, topic.id, ledger.ledger_id), ledger)
    connection.execute(insert(ledgers).values(**row_mapping.ledger_values(topic.id, ledger)))
    queries.change(connection, segments_table, ledger.ledger_id, state=SegmentState.SEALED.value, sealed_at=now)
    attempts.finish(connection, [attempt.attempt_id], now)


def sealed_by(connection: Connection, attempt: Attempt, ledger_id: int) -> bool:
    """Whether that ledger is part of the topic as this attempt's."""
    statement = select(ledgers.c.ledger_id).where(
        ledgers.c.topic_id == attempt.topic_id,
        ledgers.c.ledger_id == ledger_id,
        ledgers.c.attempt_id == attempt.attempt_id,
    )
    return connection.execute(statement).first() is not None


def _open_claims(connection: Connection, rolled: tuple[SegmentRecord, ...]) -> dict[str, Attempt]:
    """The open attempts on those segments, by id; they are locked, so none gets a heartbeat meanwhile."""
    claimed = {segment.sealing_attempt_id for segment in rolled if segment.sealing_attempt_id is not None}
    open_ids = attempts.lock_open(connection, claimed)
    found = select(attempts_table).where(attempts_table.c.attempt_id.in_(open_ids))
    return {attempt.attempt_id: attempt for attempt in queries.fetch(connection, found, row_mapping.attempt)}


def _tries(segment: SegmentRecord, claims: Mapping[str, Attempt]) -> int:
    """How often it was tried, without an open claim whose process lives: that process did not die over it."""
    last = claims.get(segment.sealing_attempt_id or "")
    return segment.sealing_tries - (last is not None and is_alive_here(last.owner))
