"""Attempts: pieces of work that may write objects, known before the first object and until the end.

Invariant: objects of an attempt become part of a topic only while the attempt is not finished (`check_open`). So
the garbage collector finishes them first (`expire`), and no late commit can name an object that is gone. The row of a
finished attempt may be purged: an attempt without a row counts as finished.

Rows of several attempts are locked in the order of their ids, so that two transactions never wait for each other.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Set

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from storage.errors import Fenced
from storage.metadata import queries, row_mapping, topics
from storage.metadata.liveness import beating
from storage.metadata.queries import Store
from storage.metadata.records import Attempt, AttemptKind
from storage.metadata.tables import attempts

_OF_TOPIC = (
    select(attempts)
    .where(attempts.c.topic_id == bindparam("topic"))
    .order_by(attempts.c.started_at, attempts.c.attempt_id)
)


class AttemptStore(Store):
    """Attempts. RunStore expires them."""

    def begin(self, topic_id: int, kind: AttemptKind, owner: str) -> Attempt:
        """A new attempt, before its first object is written. Raises TopicNotFound."""
        with self._database.write() as connection:
            return begin(connection, topic_id, kind, owner, self._clock.now_ms())

    def heartbeat(self, attempt: Attempt) -> None:
        """The attempt is alive. Raises Fenced if it was finished as dead."""
        with self._database.write() as connection:
            heartbeat(connection, attempt.attempt_id, self._clock.now_ms())

    def finish(self, attempt_id: str) -> None:
        """No more objects come; nothing happens if the attempt is finished."""
        with self._database.write() as connection:
            finish(connection, [attempt_id], self._clock.now_ms())

    def find(self, attempt_id: str) -> Attempt | None:
        """None: it was purged, or never begun."""
        with self._database.read() as connection:
            found = select(attempts).where(attempts.c.attempt_id == attempt_id)
            return queries.find(connection, found, row_mapping.attempt)

    def of_topic(self, topic_id: int) -> list[Attempt]:
        """The topic's attempts that have a row, finished or not, the oldest first."""
        with self._database.read() as connection:
            return list(of_topic(connection, topic_id))

    def purge(self, topic_id: int, finished_before: int, keep: Set[str] = frozenset()) -> int:
        """Delete the rows of attempts that were finished before that time (ms), but for the ids in `keep`; how many.

        `keep`: ids of those that have objects yet. Raises TopicNotFound.
        """
        with self._database.write() as connection:
            topics.locked(connection, topic_id)
            finished = select(attempts.c.attempt_id).where(
                attempts.c.topic_id == topic_id, attempts.c.finished_at < finished_before
            )
            purged = sorted(set(connection.execute(finished).scalars()) - keep)
            for ids in queries.batches(purged):
                connection.execute(delete(attempts).where(attempts.c.attempt_id.in_(ids)))
            return len(purged)


def begin(connection: Connection, topic_id: int, kind: AttemptKind, owner: str, now: int) -> Attempt:
    """Raises TopicNotFound."""
    topics.kept(connection, topic_id)
    attempt = Attempt(uuid.uuid4().hex, topic_id, kind, owner, started_at=now, heartbeat_at=now)
    connection.execute(insert(attempts).values(**row_mapping.attempt_values(attempt)))
    return attempt


def heartbeat(connection: Connection, attempt_id: str, now: int) -> None:
    """The attempt is alive. Raises Fenced if it is finished."""
    check_open(connection, [attempt_id])
    queries.change(connection, attempts, attempt_id, heartbeat_at=now)


def lock_open(connection: Connection, attempt_ids: Collection[str]) -> list[str]:
    """Those of the attempts that are not finished, by id; they stay so until this transaction ends."""
    statement = (
        select(attempts.c.attempt_id)
        .where(attempts.c.attempt_id.in_(attempt_ids), attempts.c.finished_at.is_(None))
        .order_by(attempts.c.attempt_id)
        .with_for_update()
    )
    return list(connection.execute(statement).scalars())


def check_open(connection: Connection, attempt_ids: Collection[str]) -> None:
    """The attempts exist and are not finished, and stay so until this transaction ends. Raises Fenced."""
    closed = set(attempt_ids) - set(lock_open(connection, attempt_ids))
    if closed:
        raise Fenced(
            f"attempt {min(closed)} is finished or was given up as dead, and its objects may be gone",
            "nothing was written; start again",
        )


def finish(connection: Connection, attempt_ids: Collection[str], now: int) -> None:
    """Mark attempts as finished; those that are keep their time."""
    connection.execute(
        update(attempts)
        .where(attempts.c.attempt_id.in_(attempt_ids), attempts.c.finished_at.is_(None))
        .values(finished_at=now)
    )


def of_topic(connection: Connection, topic_id: int) -> tuple[Attempt, ...]:
    """All that have a row, finished or not, the oldest first."""
    return tuple(queries.fetch(connection, _OF_TOPIC, row_mapping.attempt, {"topic": topic_id}))


def expire(connection: Connection, topic_id: int, older_than_ms: int, now: int) -> list[str]:
    """Finish the topic's attempts whose heartbeat is that old, or of a clock that ran ahead; their ids.

    Their runs are for the caller to end (runs.py). An attempt with a heartbeat at the same moment is either seen as
    alive, or fenced at its next heartbeat. Raises TopicNotFound.
    """
    topics.locked(connection, topic_id)
    statement = (
        select(attempts.c.attempt_id)
        .where(
            attempts.c.topic_id == topic_id,
            attempts.c.finished_at.is_(None),
            ~beating(older_than_ms, now).where(attempts.c.heartbeat_at),
        )
        .order_by(attempts.c.attempt_id)
        .with_for_update()
    )
    expired = list(connection.execute(statement).scalars())
    finish(connection, expired, now)
    return expired
