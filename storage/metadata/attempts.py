"""Attempts: somebody at work who may write objects, known before the first object and until the end.

Invariant: objects of an attempt become part of a topic only while the attempt is not finished (`check_open`). So
whoever clears away what dead attempts left finishes them first, and no late commit can name an object that is gone.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

from sqlalchemy import Connection, insert, select, update

from storage.errors import Fenced
from storage.metadata import mapping, topics
from storage.metadata.records import Attempt, AttemptKind
from storage.metadata.tables import attempts


def begin(connection: Connection, topic_id: int, kind: AttemptKind, holder: str, now: int) -> Attempt:
    """Raises TopicNotFound."""
    topics.by_id(connection, topic_id)
    attempt = Attempt(uuid.uuid4().hex, topic_id, kind, holder, started_at=now, heartbeat_at=now)
    connection.execute(
        insert(attempts).values(
            attempt_id=attempt.attempt_id,
            topic_id=topic_id,
            kind=kind.value,
            holder=holder,
            started_at=now,
            heartbeat_at=now,
        )
    )
    return attempt


def find(connection: Connection, attempt_id: str) -> Attempt | None:
    row = connection.execute(select(attempts).where(attempts.c.attempt_id == attempt_id)).mappings().one_or_none()
    return mapping.attempt(row) if row is not None else None


def heartbeat(connection: Connection, attempt_id: str, now: int) -> None:
    """Say that the attempt is alive. Raises Fenced if it was finished by somebody else."""
    check_open(connection, [attempt_id])
    connection.execute(update(attempts).where(attempts.c.attempt_id == attempt_id).values(heartbeat_at=now))


def check_open(connection: Connection, attempt_ids: Collection[str]) -> None:
    """The attempts exist and are not finished, and stay so until this transaction ends. Raises Fenced."""
    statement = (
        select(attempts.c.attempt_id)
        .where(attempts.c.attempt_id.in_(attempt_ids), attempts.c.finished_at.is_(None))
        .with_for_update()
    )
    closed = set(attempt_ids) - set(connection.execute(statement).scalars())
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
