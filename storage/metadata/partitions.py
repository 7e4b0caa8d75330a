"""Partitioned topics: a row that says how many, and as many topics of their own.

Invariants: the partitions 0 … n-1 of a partitioned topic are created with it in one transaction, and deleted with it in
one (but each may be deleted by itself before; adding more brings it back). Locks: the partitioned topic's own row, then
its namespace, then the partitions in their order, so two changes of one partitioned topic form a queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sqlalchemy import Connection, bindparam, delete, insert, select

from storage.clock import Clock
from storage.errors import Conflict, InvalidInput, NotFound
from storage.metadata import queries, row_mapping, schemas, tenancy, topic_deletion, topics
from storage.metadata.engine import Database
from storage.metadata.queries import Store
from storage.metadata.records import DeletedTopic, PartitionedTopic
from storage.metadata.tables import partitioned_topics, permissions
from storage.model import TopicName

MAX_PARTITIONS = 10_000
"""Of one topic: each is a handful of rows, all made in one transaction."""
_OF_NAME = select(partitioned_topics).where(partitioned_topics.c.name == bindparam("partitioned"))


class PartitionStore(Store):
    """Partitioned topics."""

    def __init__(self, database: Database, clock: Clock, defaults: Mapping[str, object]) -> None:
        """`defaults`: the broker's policies (PolicyStore)."""
        super().__init__(database, clock)
        self._defaults = defaults

    def find(self, name: TopicName) -> PartitionedTopic | None:
        """The partitioned topic of that name; None: there is none."""
        with self._database.read() as connection:
            return _find(connection, name)

    def in_namespace(self, namespace: str) -> list[PartitionedTopic]:
        """Those of `tenant/namespace`, by name; none is no error. Raises InvalidInput."""
        topics.parse_namespace(namespace)
        statement = select(partitioned_topics).where(partitioned_topics.c.namespace == namespace)
        with self._database.read() as connection:
            found = queries.fetch(connection, statement, row_mapping.partitioned_topic)
        return sorted(found, key=lambda topic: str(topic.name))

    def create(self, name: TopicName, partitions: int, properties: Mapping[str, str]) -> PartitionedTopic:
        """A new partitioned topic with its partitions.

        Raises NotFound for its namespace, InvalidInput for a number or name that cannot be, Conflict if it, or a topic
        of its name or of one of its partitions, exists.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            _check_number(name, partitions)
            if name.partition >= 0:
                raise InvalidInput(f"{name} is named like a partition, so it cannot have any", "choose another name")
            namespace = f"{name.tenant}/{name.namespace}"
            tenancy.lock_namespace(connection, namespace)
            if _find(connection, name) is not None or topics.find(connection, name) is not None:
                raise _exists(name)
            new = PartitionedTopic(name, partitions, topics.check_properties(properties), now)
            values = {"partitions": partitions, "properties": new.properties, "created_at": now}
            # The namespace's lock, under which nothing of the name was found, keeps others from inserting it.
            connection.execute(insert(partitioned_topics).values(name=str(name), namespace=namespace, **values))
            self._create_partitions(connection, name, 0, partitions, now)
            return new

    def update(self, name: TopicName, partitions: int) -> PartitionedTopic:
        """More partitions, or as many; those that were deleted by themselves come back, empty.

        Raises NotFound, InvalidInput, Conflict for fewer, or if a topic of a new partition's name exists.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            _check_number(name, partitions)
            tenancy.lock_namespace(connection, f"{name.tenant}/{name.namespace}")
            found = _locked(connection, name)
            if partitions < found.partitions:
                raise Conflict(
                    f"{name} has {found.partitions} partitions, and cannot be brought to {partitions}",
                    "partitions can only be added; make another topic",
                )
            present = [name.of_partition(index) for index in range(found.partitions)]
            tenancy.create_topics(connection, present, now, self._defaults)
            self._create_partitions(connection, name, found.partitions, partitions, now)
            queries.change(connection, partitioned_topics, str(name), partitions=partitions)
            return replace(found, partitions=partitions)

    def set_properties(self, name: TopicName, updates: Mapping[str, str], removed: Collection[str] = ()) -> None:
        """Add or replace properties, and take those of `removed`; the others stay. Raises NotFound, InvalidInput."""
        with self._database.write() as connection:
            found = {key: value for key, value in _locked(connection, name).properties.items() if key not in removed}
            merged = topics.check_properties({**found, **updates})
            queries.change(connection, partitioned_topics, str(name), properties=merged)

    def delete(self, name: TopicName, force: bool) -> list[DeletedTopic]:
        """Delete the partitioned topic and those of its partitions that there are, all or nothing; the partitions.

        Raises NotFound; LeaseHeld, unless forced, if one of them has a writer.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            found = _locked(connection, name)
            partitions = topics.ids_of(connection, [name.of_partition(index) for index in range(found.partitions)])
            deleted = topic_deletion.delete_topics(connection, partitions, now, force=force)
            connection.execute(delete(permissions).where(permissions.c.scope == str(name)))
            schemas.remove(connection, name)
            connection.execute(delete(partitioned_topics).where(partitioned_topics.c.name == str(name)))
            return deleted

    def _create_partitions(self, connection: Connection, name: TopicName, first: int, end: int, now: int) -> None:
        partitions = [name.of_partition(index) for index in range(first, end)]
        for partition in partitions:
            if topics.find(connection, partition) is not None:
                raise Conflict(
                    f"the topic {partition} exists already, and is no partition of {name}",
                    "nothing was changed; delete that topic, or choose another name",
                )
        if partitions:
            tenancy.create_topics(connection, partitions, now, self._defaults)


def _find(connection: Connection, name: TopicName) -> PartitionedTopic | None:
    return queries.find(connection, _OF_NAME, row_mapping.partitioned_topic, {"partitioned": str(name)})


def _locked(connection: Connection, name: TopicName) -> PartitionedTopic:
    statement = select(partitioned_topics).where(partitioned_topics.c.name == str(name)).with_for_update()
    found = queries.find(connection, statement, row_mapping.partitioned_topic)
    if found is None:
        raise NotFound(f"the partitioned topic {name} does not exist", "create it first, or check the name")
    return found


def _check_number(name: TopicName, partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidInput(
            f"{partitions} is no number of partitions for {name}", f"a topic has 1 to {MAX_PARTITIONS} of them"
        )


def _exists(name: TopicName) -> Conflict:
    return Conflict(f"the topic {name} exists already", "nothing was changed; choose another name")
