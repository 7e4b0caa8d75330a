"""Sealing: a rolled segment is claimed by an attempt, and its ledger takes its place in one transaction.

Invariants: at any moment a message is in a segment that no ledger replaces, or in a ledger, never in both and
never in neither. A segment is sealed by the attempt that has claimed it last: a sealer that claims a segment from a
sealer without heartbeats finishes the attempt of that one, so a late commit is fenced. The ledger holds exactly the
messages of the segment (invariants.check_seal); it is below the topic's end, so it is inserted here and not by
ledgers.append. Each claim counts as a try, so a segment that kills its sealers is known. The try is uncounted when its
sealer ends by itself (`release`), or when the next claim finds the process of a silent sealer alive.

A sealed segment's row stays until its file is removed, and names the log directory of the file. Must not know: files,
objects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, insert, select

from storage.failpoints import Failpoint, failpoint
from storage.metadata import attempts, queries, row_mapping, segments, topics
from storage.metadata.invariants import check_seal
from storage.metadata.liveness import is_alive
from storage.metadata.records import MAX_SEALING_TRIES, Attempt, AttemptKind, SegmentRecord, SegmentState, TopicRecord
from storage.metadata.tables import attempts as attempts_table, ledgers, segments as segments_table
from storage.metadata.transactions import Context
from storage.model import LedgerRecord
from storage.owner import is_alive_here


def claim(
    connection: Connection,
    context: Context,
    topic_id: int,
    owner: str,
    log_uid: str,
    stale_ms: int,
    below_offset: int | None = None,
    excluded_ids: Collection[int] = (),
    *,
    retry_abandoned: bool = False,
) -> tuple[SegmentRecord, Attempt] | None:
    """Claim the oldest unclaimed rolled segment of a log directory, by a new attempt; None: there is none.

    `below_offset`: only a segment that begins below this offset; `excluded_ids`: none of these ledger ids. An attempt
    whose heartbeat is `stale_ms` old is finished, and can seal nothing any more. Each claim counts as a try, until
    `release`, or until the next claim if the process of the claim before lives. `retry_abandoned`: also claim a
    segment that was tried too often. Raises TopicNotFound.
    """
    topics.lock(connection, topic_id)
    rolled = segments.of_topic(connection, topic_id, [SegmentState.ROLLED])
    claims = _lock_unfinished_claims(connection, rolled)
    alive = {
        attempt.attempt_id
        for attempt in claims.values()
        if is_alive(attempt.owner, attempt.heartbeat_at, stale_ms, context.now)
    }
    candidates = (
        segment
        for segment in rolled
        if segment.log_uid == log_uid
        and segment.ledger_id not in excluded_ids
        and (below_offset is None or segment.first_offset < below_offset)
        and (retry_abandoned or not _counted_tries(segment, claims) >= MAX_SEALING_TRIES)
    )
    free = next((segment for segment in candidates if segment.sealing_attempt_id not in alive), None)
    if free is None:
        return None
    if free.sealing_attempt_id is not None:
        attempts.finish(connection, context, free.sealing_attempt_id)
    attempt = attempts.begin(connection, context, topic_id, AttemptKind.SEAL, owner)
    values = {"sealing_attempt_id": attempt.attempt_id, "sealing_tries": _counted_tries(free, claims) + 1}
    queries.change(connection, segments_table, free.ledger_id, **values)
    claimed = segments.find(connection, topic_id, free.ledger_id)
    assert claimed is not None
    return claimed, attempt


def release(connection: Connection, context: Context, attempt: Attempt) -> None:
    """Finish the attempt of a sealer that ended by itself, sealed or not, so that it does not count as a try.

    Idempotent. Raises TopicNotFound.
    """
    topics.lock(connection, attempt.topic_id)
    if not attempts.lock_unfinished(connection, [attempt.attempt_id]):
        return
    table = segments_table.c
    claimed = (table.topic_id == attempt.topic_id) & (table.sealing_attempt_id == attempt.attempt_id)
    queries.change_where(connection, segments_table, claimed, sealing_tries=table.sealing_tries - 1)
    attempts.finish(connection, context, attempt.attempt_id)


def seal(connection: Connection, context: Context, attempt: Attempt, ledger: LedgerRecord) -> None:
    """Replace a rolled segment by the ledger of the same id, whose objects exist, and finish the attempt.

    Raises TopicNotFound; Fenced if the attempt was finished as dead, or another has claimed or sealed the segment.
    """
    topic = topics.lock(connection, attempt.topic_id)
    attempts.lock_and_check_unfinished(connection, [attempt.attempt_id])
    check_seal(topic, attempt, segments.find(connection, topic.id, ledger.ledger_id), ledger)
    connection.execute(insert(ledgers).values(**row_mapping.ledger_values(topic.id, ledger)))
    sealed = {"state": SegmentState.SEALED.value, "sealed_at": context.now}
    queries.change(connection, segments_table, ledger.ledger_id, **sealed)
    attempts.finish(connection, context, attempt.attempt_id)
    failpoint(Failpoint.SEAL_INSIDE_COMMIT)


def has_sealed(connection: Connection, _: None, attempt: Attempt, ledger: LedgerRecord) -> bool:
    """Return whether a `seal` was committed: the ledger is part of the topic as this attempt's."""
    topics.lock(connection, attempt.topic_id)
    same = (ledgers.c.ledger_id == ledger.ledger_id) & (ledgers.c.attempt_id == attempt.attempt_id)
    return queries.exists(connection, ledgers, (ledgers.c.topic_id == attempt.topic_id) & same)


def removable_segments(
    connection: Connection, log_uid: str, sealed_until: int, topic_id: int | None = None
) -> list[tuple[TopicRecord, SegmentRecord]]:
    """Return the sealed segments of a log directory whose files may be removed, with their topics, the oldest first.

    `sealed_until`: they were sealed at that time (ms) or before. `topic_id`: only segments of that topic; None: of all.
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
    return segments.fetch_with_topics(connection, statement)


def purge_segment(connection: Connection, topic_id: int, ledger_id: int) -> None:
    """Delete the row of a sealed segment whose file was removed. Idempotent. Raises TopicNotFound."""
    topic = topics.lock(connection, topic_id)
    segments.remove(connection, topic, ledger_id, SegmentState.SEALED, "seal it before its row is purged")


def _lock_unfinished_claims(connection: Connection, rolled: Sequence[SegmentRecord]) -> dict[str, Attempt]:
    """Lock the unfinished attempts to seal these segments, so that none gets a heartbeat; return them by attempt id."""
    claimed = {segment.sealing_attempt_id for segment in rolled if segment.sealing_attempt_id is not None}
    open_ids = attempts.lock_unfinished(connection, claimed)
    statement = select(attempts_table).where(attempts_table.c.attempt_id.in_(open_ids))
    return {attempt.attempt_id: attempt for attempt in queries.fetch(connection, statement, row_mapping.attempt)}


def _counted_tries(segment: SegmentRecord, claims: Mapping[str, Attempt]) -> int:
    """Return the tries to seal a segment that count: the last does not if its claim is open and its process lives."""
    last = claims.get(segment.sealing_attempt_id or "")
    return segment.sealing_tries - (last is not None and is_alive_here(last.owner))
