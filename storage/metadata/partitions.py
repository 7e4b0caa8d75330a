"""Partitioned topics: a row with the number of partitions, and as many topics of their own.

Invariants: the partitions 0 … n-1 of a partitioned topic are created with it in one transaction, and deleted with it in
one (but each may be deleted by itself before; adding more brings it back). Locks: creation and addition lock the
namespace, then the partitioned topic's own row, if it exists. Deletion locks that row, then the partitions in their
order, and never the namespace. So two changes of one partitioned topic form a queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sqlalchemy import Connection, bindparam, delete, insert, select

from storage.errors import Conflict, InvalidInput, NotFound
from storage.metadata import queries, row_mapping, schemas, tenancy, topic_deletion, topics
from storage.metadata.records import DeletedTopic, PartitionedTopic
from storage.metadata.tables import partitioned_topics, permissions
from storage.metadata.transactions import Context
from storage.model import TopicName

MAX_PARTITIONS = 10_000
"""Of one topic: each is a handful of rows, all inserted in one transaction."""
_OF_NAME = select(partitioned_topics).where(partitioned_topics.c.name == bindparam("partitioned"))


def find(connection: Connection, name: TopicName) -> PartitionedTopic | None:
    """Return the partitioned topic of that name; None: there is none."""
    return queries.find(connection, _OF_NAME, row_mapping.partitioned_topic, {"partitioned": str(name)})


def by_names(connection: Connection, names: Collection[TopicName]) -> dict[TopicName, PartitionedTopic]:
    """Return those of the partitioned topics that exist, by name. `names`: few enough for one statement."""
    statement = select(partitioned_topics).where(partitioned_topics.c.name.in_([str(name) for name in names]))
    return {topic.name: topic for topic in queries.fetch(connection, statement, row_mapping.partitioned_topic)}


def in_namespace(connection: Connection, namespace: str) -> list[PartitionedTopic]:
    """Return the partitioned topics of `tenant/namespace`, by name; none is no error. Raises InvalidInput."""
    topics.parse_namespace(namespace)
    statement = select(partitioned_topics).where(partitioned_topics.c.namespace == namespace)
    records = queries.fetch(connection, statement, row_mapping.partitioned_topic)
    return sorted(records, key=lambda topic: str(topic.name))


def create(
    connection: Connection, context: Context, name: TopicName, partitions: int, properties: Mapping[str, str]
) -> PartitionedTopic:
    """Insert a new partitioned topic with its partitions.

    Raises NotFound for its namespace, InvalidInput for an invalid number or name, Conflict if it, or a topic of its
    name or of the name of one of its partitions, exists.
    """
    _check_partition_count(name, partitions)
    name.check_new()
    if name.partition >= 0:
        raise InvalidInput(f"{name} is named like a partition, so it cannot have any", "choose another name")
    namespace = f"{name.tenant}/{name.namespace}"
    tenancy.lock_namespace(connection, namespace)
    if find(connection, name) is not None or topics.find(connection, name) is not None:
        raise Conflict(f"the topic {name} exists already", "nothing was changed; choose another name")
    new = PartitionedTopic(name, partitions, topics.validated_properties(properties), context.now)
    values = {"partitions": partitions, "properties": new.properties, "created_at": context.now}
    # The namespace's lock, under which nothing of the name exists, keeps others from inserting it.
    connection.execute(insert(partitioned_topics).values(name=str(name), namespace=namespace, **values))
    _create_partitions(connection, context, name, 0, partitions)
    return new


def increase_partitions_to(
    connection: Connection, context: Context, name: TopicName, partitions: int
) -> PartitionedTopic:
    """Raise the number of partitions to `partitions`; partitions that were deleted by themselves come back, empty.

    Raises NotFound, InvalidInput, Conflict for a smaller number, or if a topic of a new partition's name exists.
    """
    _check_partition_count(name, partitions)
    tenancy.lock_namespace(connection, f"{name.tenant}/{name.namespace}")
    record = _get_locked(connection, name)
    if partitions < record.partitions:
        raise Conflict(
            f"{name} has {record.partitions} partitions, and cannot be brought to {partitions}",
            "partitions can only be added; make another topic",
        )
    _create_partitions(connection, context, name, record.partitions, partitions)
    queries.change(connection, partitioned_topics, str(name), partitions=partitions)
    return replace(record, partitions=partitions)


def set_properties(
    connection: Connection, name: TopicName, updates: Mapping[str, str], removed: Collection[str] = ()
) -> None:
    """Add or replace properties, and remove those of `removed`; the others stay. Raises NotFound, InvalidInput."""
    kept = {key: value for key, value in _get_locked(connection, name).properties.items() if key not in removed}
    merged = topics.validated_properties({**kept, **updates})
    queries.change(connection, partitioned_topics, str(name), properties=merged)


def delete_topic(connection: Connection, context: Context, name: TopicName, force: bool) -> list[DeletedTopic]:
    """Delete the partitioned topic and those of its partitions that exist, all or nothing. Returns the partitions.

    Raises NotFound; LeaseHeld, unless forced, if one of them has a writer.
    """
    record = _get_locked(connection, name)
    partitions = topics.by_names(connection, [name.of_partition(index) for index in range(record.partitions)])
    topic_ids = [topic.id for topic in partitions.values()]
    deleted = topic_deletion.delete_topics(connection, context, topic_ids, force=force)
    connection.execute(delete(permissions).where(permissions.c.scope == str(name)))
    schemas.remove(connection, name)
    connection.execute(delete(partitioned_topics).where(partitioned_topics.c.name == str(name)))
    return deleted


def _create_partitions(connection: Connection, context: Context, name: TopicName, present: int, count: int) -> None:
    """Create those of the first `count` partitions that do not exist.

    Raises Conflict if a topic has the name of one that is new, which are those from number `present` on.
    """
    partitions = [name.of_partition(index) for index in range(count)]
    taken = topics.by_names(connection, partitions[present:])
    if taken:
        first = min(taken, key=lambda topic: topic.partition)
        raise Conflict(
            f"the topic {first} exists already, and is no partition of {name}",
            "nothing was changed; delete that topic, or choose another name",
        )
    tenancy.ensure_topics(connection, context, partitions)


def _get_locked(connection: Connection, name: TopicName) -> PartitionedTopic:
    statement = select(partitioned_topics).where(partitioned_topics.c.name == str(name)).with_for_update()
    record = queries.find(connection, statement, row_mapping.partitioned_topic)
    if record is None:
        raise NotFound(f"the partitioned topic {name} does not exist", "create it first, or check the name")
    return record


def _check_partition_count(name: TopicName, partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidInput(
            f"{partitions} is no number of partitions for {name}", f"a topic has 1 to {MAX_PARTITIONS} of them"
        )
