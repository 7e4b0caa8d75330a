"""Deletion of topics (S8): one transaction deletes every row of a topic, and stores its uid.

After it, no work that was begun before can become part of anything: lease, attempts and runs are deleted, so a writer,
an import, a sealer or a run that continues is fenced or finds no topic, and can publish nothing. Its objects and files
are under the uid in the object store and in log directories. They are garbage, and `deleted_topics` tells garbage
collection and the log managers. A topic that is created again under the name has another id and uid, and shares
nothing with it.

Any table that refers to `topics` by a column `topic_id` is covered: it is found, not listed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, Select, Table, delete, insert, literal, select

from storage.advice import Advice, AdviceKind
from storage.metadata import queries, row_mapping, schemas, topics
from storage.metadata.leases import lease_held_error
from storage.metadata.liveness import LEASE_TTL_MS, is_held
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import COMPACTION_CURSOR, AttemptKind, DeletedTopic, TopicRecord
from storage.metadata.tables import (
    METADATA,
    attempts,
    cursors,
    deleted_topics,
    leases,
    permissions,
    policies as policies_table,
    runs,
    topic_work,
    topics as topics_table,
)
from storage.metadata.transactions import Context


def delete_topic(connection: Connection, context: Context, topic_id: int, *, force: bool) -> DeletedTopic:
    """Delete a topic and all rows that refer to it; return its uid, name and time of deletion, which are stored.

    Raises TopicNotFound; without `force`, LeaseHeld if it has a writer.
    """
    deleted = delete_topics(connection, context, [topic_id], force=force)
    if not deleted:
        topics.by_id(connection, topic_id)  # raises TopicNotFound
    return deleted[0]


def delete_topics(
    connection: Connection, context: Context, topic_ids: Collection[int], *, force: bool
) -> list[DeletedTopic]:
    """Delete those of the topics that exist, and all rows that refer to them; return them.

    It takes as many statements as for one topic. Raises LeaseHeld, without `force`, if one of them has a writer; then
    none is deleted.
    """
    # In the order of locks of topics.py, of all topics together, since a heartbeat locks attempts of many topics. So
    # no two transactions wait for each other.
    connection.execute(_select_leases(topic_ids).with_for_update()).all()
    if not force:
        check_no_writer(connection, context, topic_ids)
    doomed = topics.lock_all_for_deletion(connection, topic_ids)
    deleted = _delete_locked(connection, context, doomed)
    connection.execute(delete(permissions).where(permissions.c.scope.in_([str(topic.name) for topic in doomed])))
    for topic in doomed:
        if topic.name.partitioned_topic is None:  # else it is the partitioned topic's
            schemas.remove(connection, topic.name)
    return deleted


def delete_unused_topic(connection: Connection, context: Context, topic_id: int) -> bool:
    """Delete the topic if it is as it was created: never written to, read by a subscription or configured.

    A topic with a writer, an unfinished append by tasks, rows of its own (but the cursor `__compaction`, other attempts
    and queued work), properties, policies, permissions or a schema is kept. Schemas are never deleted: they may be
    older than the topic.
    Returns True if the topic does not exist afterwards.
    """
    connection.execute(_select_leases([topic_id]).with_for_update()).all()
    held = connection.execute(_select_leases([topic_id])).mappings().all()
    if any(is_held(lease["holder"], lease["expires_at"], LEASE_TTL_MS, context.now) for lease in held):
        return False
    locked = topics.lock_all_for_deletion(connection, [topic_id])
    if any(_is_used(connection, topic) for topic in locked):
        return False
    _delete_locked(connection, context, locked)
    return True


def _is_used(connection: Connection, topic: TopicRecord) -> bool:
    """Return whether a topic was written to, read by a subscription or configured since it was created.

    Failed attempts to write do not count. An append by tasks holds no lease until its commit, so its attempt counts
    until it is finished.
    """
    properties = topics.properties(connection, topic.id)
    if topic.next_offset or properties or schemas.outlines(connection, topic.name):
        return True
    conditions = [
        table.c.topic_id == topic.id
        for table in METADATA.sorted_tables
        if _refers_to_topics(table) and table not in (leases, attempts, cursors, topic_work)
    ]
    is_append = (attempts.c.kind == AttemptKind.TASKS.value) & attempts.c.finished_at.is_(None)
    conditions.append((attempts.c.topic_id == topic.id) & is_append)
    conditions.append((cursors.c.topic_id == topic.id) & (cursors.c.name != COMPACTION_CURSOR))
    conditions.append(policies_table.c.scope == topic_scope(topic))
    conditions.append(permissions.c.scope == str(topic.name))
    return any(
        connection.execute(select(literal(1)).where(condition).limit(1)).first() is not None for condition in conditions
    )


def _delete_locked(connection: Connection, context: Context, doomed: Sequence[TopicRecord]) -> list[DeletedTopic]:
    """Delete the rows of locked topics, except permissions and schemas, and store and return the deleted topics."""
    ids = [topic.id for topic in doomed]
    for table in (attempts, runs):
        (key,) = table.primary_key.columns
        connection.execute(select(key).where(table.c.topic_id.in_(ids)).order_by(key).with_for_update()).all()
    for table in reversed(METADATA.sorted_tables):  # a table comes before the tables that it refers to
        if _refers_to_topics(table):
            connection.execute(delete(table).where(table.c.topic_id.in_(ids)))
    scopes = [topic_scope(topic) for topic in doomed]
    connection.execute(delete(policies_table).where(policies_table.c.scope.in_(scopes)))
    connection.execute(delete(topics_table).where(topics_table.c.id.in_(ids)))
    if doomed:
        values = [
            {"uid": topic.uid, "topic_id": topic.id, "name": str(topic.name), "deleted_at": context.now}
            for topic in doomed
        ]
        connection.execute(insert(deleted_topics), values)
    return [DeletedTopic(topic.uid, topic.name, context.now) for topic in doomed]


def _refers_to_topics(table: Table) -> bool:
    return "topic_id" in table.c and table.c.topic_id.references(topics_table.c.id)


def check_no_writer(connection: Connection, context: Context, topic_ids: Collection[int]) -> None:
    """Raise LeaseHeld if one of the topics has a writer: a deletion without `force` is refused then."""
    for lease in connection.execute(_select_leases(topic_ids)).mappings().all():
        if is_held(lease["holder"], lease["expires_at"], LEASE_TTL_MS, context.now):
            through = Advice(AdviceKind.DELETE_THROUGH_OWNER)
            raise lease_held_error(connection, context, lease, "stop the writer first, or force it", through)


def find_deleted(connection: Connection, uid: str) -> DeletedTopic | None:
    """Return the deleted topic of that uid, however old; None: it was not deleted, or never existed."""
    statement = select(deleted_topics).where(deleted_topics.c.uid == uid)
    return queries.find(connection, statement, row_mapping.deleted_topic)


def uncollected_topics(connection: Connection) -> list[DeletedTopic]:
    """Return the deleted topics whose objects were not all collected yet, in the order of deletion."""
    statement = select(deleted_topics).where(deleted_topics.c.collected_at.is_(None))
    return queries.fetch(connection, statement.order_by(deleted_topics.c.deleted_at), row_mapping.deleted_topic)


def set_collected(connection: Connection, context: Context, uid: str) -> None:
    """Store that all objects of a deleted topic were collected. Idempotent."""
    queries.change(connection, deleted_topics, uid, collected_at=context.now)


def _select_leases(topic_ids: Collection[int]) -> Select[tuple[object, ...]]:
    return select(leases).where(leases.c.topic_id.in_(topic_ids)).order_by(leases.c.topic_id)
