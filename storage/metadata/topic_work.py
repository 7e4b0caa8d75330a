"""Queues of topics with work: a check costs what the queue has, not what exists.

The transaction that may make work for a topic marks it (`mark`, `mark_where`). A mark only means: check the topic. What
work there is, and when, only the check decides, from the topic's rows, so a mark that was not needed does no harm. The
leader checks the topics that are due, and `reschedule`s each: it stays, is due again at a later time, or is removed,
until the next event marks it. Conditions that come with time alone, such as a maximum lag, are such later times.

    COMPACT   the topic's compaction may be due. Marked by: bulk append, roll, publishing, trim, truncation, removal of
              `__compaction`, resumption, a change of policies in any scope, and appends to the open segment, by the
              owner of the log (storage/log/lease_renewer.py), and when it renews or ends a lease of its own
    COLLECT   the topic may have garbage, now or when a grace time is over. Marked by: the begin of an attempt, trim,
              truncation, the retirement of a compacted ledger. A topic stays queued while an attempt is unfinished, so
              the end of one marks nothing (compactor/maintenance/garbage.py)

Invariants: `reschedule` removes no mark that came after the read which the check is based on: each mark raises
`changes`, which begins at a random number, so that a row that was removed and queued again differs. The leader alone
reschedules due compactions, fenced by its token, since what another process can read of open segments differs. Marks of
several topics lock their rows in the order of ids; `reschedule` waits for no row. A topic that is deleted takes its
marks with it.

Policies that are not in SQL (a settings file, another version's defaults) mark nothing: a leader whose policies differ
from those of the leader before it marks all topics (`queue_for_new_leader`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Executable, bindparam, delete, literal, select, true, update

from storage.metadata import queries, services
from storage.metadata.records import SegmentState
from storage.metadata.tables import leader_notes, segments, topic_work, topics
from storage.metadata.transactions import Context
from storage.options.policies import POLICIES

AT_ONCE = 0
"""The time of a mark: the next check includes the topic."""
_MAX_FIRST = 1 << 62
_POLICIES = "policies"
"""The note with the digest of the policies that are not in SQL, for which all topics were queued last."""


class WorkKind(StrEnum):
    """Kind of work: each has its own queue."""

    COMPACT = "compact"
    COLLECT = "collect"


class TopicWork(NamedTuple):
    """A queued topic, as it was read. `due_at`: in milliseconds; 0: at once."""

    topic_id: int
    kind: WorkKind
    due_at: int
    changes: int


# Parts of other transactions


def mark(connection: Connection, kind: WorkKind, topic_ids: Collection[int]) -> None:
    """Queue topics to be checked at once. They must be locked, at least against deletion."""
    if topic_ids:
        first = secrets.randbelow(_MAX_FIRST)
        rows = [
            {"topic_id": topic_id, "kind": kind.value, "due_at": AT_ONCE, "changes": first}
            for topic_id in sorted(topic_ids)
        ]
        connection.execute(_mark_statement(connection.dialect.name), rows)


def mark_where(connection: Connection, kind: WorkKind, condition: ColumnElement[bool]) -> None:
    """Queue the topics that meet a condition to be checked at once, in one statement, and lock them against deletion.

    Call it before other rows are locked.
    """
    chosen = (
        select(topics.c.id, literal(kind.value), literal(AT_ONCE), literal(secrets.randbelow(_MAX_FIRST)))
        .where(condition)
        .order_by(topics.c.id)
        .with_for_update(read=True, key_share=True)
    )
    insert = queries.insert_for_on_conflict(connection.dialect.name, topic_work)
    columns = ["topic_id", "kind", "due_at", "changes"]
    connection.execute(_increment_mark_on_conflict(insert.from_select(columns, chosen)))


@functools.cache
def _mark_statement(dialect: str) -> Executable:
    """Return the statement that queues topics at once; built once, since transactions of the log execute it."""
    return _increment_mark_on_conflict(queries.insert_for_on_conflict(dialect, topic_work))


def _increment_mark_on_conflict(insert: queries.OnConflictInsert) -> Executable:
    """Return an insert that, for a topic that is queued already, makes it due at once and counts the change."""
    return insert.on_conflict_do_update(
        index_elements=topic_work.primary_key, set_={"due_at": AT_ONCE, "changes": topic_work.c.changes + 1}
    )


# Checks


def queue(connection: Connection, kind: WorkKind, topic_ids: Collection[int]) -> None:
    """Queue topics to be checked at once, in a transaction that changes nothing else; deleted ones are left out."""
    for ids in queries.batches(sorted(topic_ids)):
        mark_where(connection, kind, topics.c.id.in_(ids))


def queue_for_new_leader(connection: Connection, context: Context, leader_token: int, log_uid: str | None) -> None:
    """Queue the topics for which a new leader may decide otherwise than the leader before it. Raises Fenced.

    All, if its policies that are not in SQL differ; else those with an open segment in its log directory `log_uid`,
    which only this process can read.
    """
    digest = _broker_defaults_digest(context)
    if leader_note(connection, _POLICIES) != digest:
        mark_where(connection, WorkKind.COMPACT, true())
        queries.put(connection, leader_notes, {"name": _POLICIES, "value": digest})
    elif log_uid is not None:
        is_open = (segments.c.state == SegmentState.OPEN.value) & (segments.c.log_uid == log_uid)
        mark_where(connection, WorkKind.COMPACT, topics.c.id.in_(select(segments.c.topic_id).where(is_open)))
    services.lock_and_check_leader(connection, leader_token)


def leader_note(connection: Connection, name: str) -> str | None:
    """Return the text of the leader's note of that name; None: there is none."""
    return connection.execute(select(leader_notes.c.value).where(leader_notes.c.name == name)).scalar_one_or_none()


def set_leader_note(connection: Connection, name: str, value: str, leader_token: int | None = None) -> None:
    """Store the text of the leader's note of that name. `leader_token`: raise Fenced if that leadership was lost."""
    queries.put(connection, leader_notes, {"name": name, "value": value})
    if leader_token is not None:
        services.lock_and_check_leader(connection, leader_token)


def due(connection: Connection, kind: WorkKind, now: int) -> list[TopicWork]:
    """Return the queued topics of a kind that are due at `now` (ms), by topic id."""
    is_due = (topic_work.c.kind == kind.value) & (topic_work.c.due_at <= now)
    return _fetch_work(connection, is_due)


def of_topics(connection: Connection, kind: WorkKind, topic_ids: Collection[int]) -> dict[int, TopicWork]:
    """Return those of the topics that are queued, due or not, by topic id."""
    return {
        work.topic_id: work
        for ids in queries.batches(sorted(topic_ids))
        for work in _fetch_work(connection, (topic_work.c.kind == kind.value) & topic_work.c.topic_id.in_(ids))
    }


def reschedule(
    connection: Connection, checked: Sequence[tuple[TopicWork, int | None]], leader_token: int | None = None
) -> None:
    """Set the times (ms) at which queued topics are due again; None: remove the topic from the queue.

    A topic that was marked since it was read stays as it is.

    `checked`: of one kind. A row that another transaction has locked is being marked, and is left alone.
    `leader_token`: raise Fenced if that leadership was lost.
    """
    later: list[dict[str, object]] = []
    removed: list[dict[str, object]] = []
    for batch in queries.batches(range(len(checked))):
        works = {checked[index][0].topic_id: checked[index] for index in batch}
        kind = checked[0][0].kind.value
        unlocked = (
            select(topic_work.c.topic_id, topic_work.c.changes)
            .where(topic_work.c.kind == kind, topic_work.c.topic_id.in_(works))
            .with_for_update(skip_locked=True)
        )
        for topic_id, changes in connection.execute(unlocked):
            work, due_at = works[topic_id]
            if changes == work.changes:
                key = {"topic": topic_id, "of_kind": kind}
                removed.append(key) if due_at is None else later.append({**key, "due": due_at})
    if later:
        connection.execute(_POSTPONE, later)
    if removed:
        connection.execute(_REMOVE, removed)
    if leader_token is not None:
        services.lock_and_check_leader(connection, leader_token)


_KEY = (topic_work.c.topic_id == bindparam("topic")) & (topic_work.c.kind == bindparam("of_kind"))
_REMOVE = delete(topic_work).where(_KEY)
_POSTPONE = update(topic_work).where(_KEY).values(due_at=bindparam("due"))


def _fetch_work(connection: Connection, condition: ColumnElement[bool]) -> list[TopicWork]:
    columns = (topic_work.c.topic_id, topic_work.c.kind, topic_work.c.due_at, topic_work.c.changes)
    rows = connection.execute(select(*columns).where(condition).order_by(topic_work.c.topic_id))
    return [TopicWork(topic_id, WorkKind(kind), due_at, changes) for topic_id, kind, due_at, changes in rows]


def _broker_defaults_digest(context: Context) -> str:
    """Return a digest of the policies that are not in SQL: this version's defaults, and the settings file's."""
    defaults = {policy.name: repr(policy.default) for policy in POLICIES.values()}
    configured = {name: repr(value) for name, value in context.broker_defaults.items()}
    return hashlib.sha256(json.dumps([defaults, configured], sort_keys=True).encode()).hexdigest()
