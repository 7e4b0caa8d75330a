"""Attempts: pieces of work that may write objects, known before the first object and until the end.

Invariant: objects of an attempt become part of a topic only while the attempt is not finished
(`lock_and_check_unfinished`). So the garbage collector finishes them first (`expire`), and no late commit can name an
object that is gone. The row of a finished attempt may be purged: an attempt without a row counts as finished.

Rows of several attempts are locked in the order of their ids, so that two transactions never wait for each other.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Set

from sqlalchemy import ColumnElement, Connection, bindparam, delete, insert, or_, select

from storage.errors import Fenced
from storage.metadata import queries, row_mapping, topic_work, topics
from storage.metadata.liveness import live_heartbeat_bounds
from storage.metadata.records import Attempt, AttemptKind, RunRecord
from storage.metadata.tables import attempts
from storage.metadata.transactions import Context

_OF_TOPIC = (
    select(attempts)
    .where(attempts.c.topic_id == bindparam("topic"))
    .order_by(attempts.c.started_at, attempts.c.attempt_id)
)


def begin(connection: Connection, context: Context, topic_id: int, kind: AttemptKind, owner: str) -> Attempt:
    """Insert a new attempt of `owner`, before its first object is written, and return it. Raises TopicNotFound."""
    topics.lock_against_deletion(connection, topic_id)
    attempt = Attempt(uuid.uuid4().hex, topic_id, kind, owner, started_at=context.now, heartbeat_at=context.now)
    connection.execute(insert(attempts).values(**row_mapping.attempt_values(attempt)))
    topic_work.mark(connection, topic_work.WorkKind.COLLECT, [topic_id])
    return attempt


def heartbeat(connection: Connection, context: Context, attempt: Attempt | RunRecord) -> None:
    """Store that the attempt, or the attempt of a run, is alive. Raises Fenced if it is finished."""
    lock_and_check_unfinished(connection, [attempt.attempt_id])
    queries.change(connection, attempts, attempt.attempt_id, heartbeat_at=context.now)


def finish(connection: Connection, context: Context, attempt_id: str) -> None:
    """Mark an attempt as finished: it writes no more objects. Idempotent."""
    finish_all(connection, [attempt_id], context.now)


def find(connection: Connection, attempt_id: str) -> Attempt | None:
    """Return the attempt of an id; None: it was purged, or never begun."""
    return queries.find(connection, select(attempts).where(attempts.c.attempt_id == attempt_id), row_mapping.attempt)


def of_topic(connection: Connection, topic_id: int) -> list[Attempt]:
    """Return the topic's attempts that have a row, finished or not, the oldest first."""
    return queries.fetch(connection, _OF_TOPIC, row_mapping.attempt, {"topic": topic_id})


def purge(connection: Connection, topic_id: int, finished_before: int, keep: Set[str] = frozenset()) -> int:
    """Delete the rows of attempts that were finished before that time (ms), except those with an id in `keep`.

    `keep`: attempts that still have objects. Returns the number of deleted rows. Raises TopicNotFound.
    """
    topics.lock(connection, topic_id)
    finished = select(attempts.c.attempt_id).where(
        attempts.c.topic_id == topic_id, attempts.c.finished_at < finished_before
    )
    purged = sorted(set(connection.execute(finished).scalars()) - keep)
    for ids in queries.batches(purged):
        connection.execute(delete(attempts).where(attempts.c.attempt_id.in_(ids)))
    return len(purged)


def lock_unfinished(connection: Connection, attempt_ids: Collection[str]) -> list[str]:
    """Lock those of the attempts that are not finished; return their ids, in order.

    They stay unfinished until this transaction ends.
    """
    return _lock_unfinished_where(connection, attempts.c.attempt_id.in_(attempt_ids))


def lock_and_check_unfinished(connection: Connection, attempt_ids: Collection[str]) -> None:
    """Raise Fenced unless all these attempts exist and are not finished.

    They are locked, so that they stay unfinished until this transaction ends.
    """
    closed = set(attempt_ids) - set(lock_unfinished(connection, attempt_ids))
    if closed:
        raise Fenced(
            f"attempt {min(closed)} is finished or expired, and its objects may have been deleted",
            "nothing was written; start again",
        )


def finish_all(connection: Connection, attempt_ids: Collection[str], now: int) -> None:
    """Mark attempts as finished at `now` (ms). Those that are finished already keep their time. Idempotent."""
    is_open = attempts.c.attempt_id.in_(attempt_ids) & attempts.c.finished_at.is_(None)
    queries.change_where(connection, attempts, is_open, finished_at=now)


def expire(connection: Connection, topic_id: int, older_than_ms: int, now: int) -> list[str]:
    """Finish the topic's attempts whose heartbeat is at least `older_than_ms` old; return their ids.

    Those of the kind TASKS are finished later (`AttemptKind.heartbeat_ttl_ms`). Also finished are those with a
    heartbeat of a clock that ran ahead (liveness.py). The caller must end their runs (runs.py). An attempt with a
    heartbeat at the same moment is either seen as alive, or fenced at its next heartbeat. Raises TopicNotFound.
    """
    topics.lock(connection, topic_id)
    is_silent = [
        (attempts.c.kind == kind.value)
        & ~live_heartbeat_bounds(kind.heartbeat_ttl_ms(older_than_ms), now).condition(attempts.c.heartbeat_at)
        for kind in AttemptKind
    ]
    expired = _lock_unfinished_where(connection, (attempts.c.topic_id == topic_id) & or_(*is_silent))
    finish_all(connection, expired, now)
    return expired


def _lock_unfinished_where(connection: Connection, condition: ColumnElement[bool]) -> list[str]:
    """Lock the unfinished attempts that meet a condition, by id, and return their ids."""
    is_open = select(attempts.c.attempt_id).where(condition, attempts.c.finished_at.is_(None))
    return list(connection.execute(is_open.order_by(attempts.c.attempt_id).with_for_update()).scalars())
