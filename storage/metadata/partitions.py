"""Partitioned topics: a row that says how many, and as many topics of their own.

Invariants: the partitions 0 … n-1 of a partitioned topic are made with it in one transaction, and go with it in one
(but each may be deleted by itself before; making more brings it back). Locks: the partitioned topic's own row, then
its namespace, then the partitions in their order, so two changes of one partitioned topic form a queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, RowMapping, Select, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from storage.clock import Clock
from storage.errors import Conflict, InvalidInput, NotFound
from storage.metadata import tenancy, topic_deletion, topics
from storage.metadata.engine import Database
from storage.metadata.records import DeletedTopic, PartitionedTopic
from storage.metadata.tables import partitioned_topics, permissions
from storage.metadata.tenancy import make
from storage.metadata.topics import check_properties
from storage.model import TopicName

MAX_PARTITIONS = 10_000
"""Of one topic: each is a handful of rows, all made in one transaction."""
_OF_NAME = select(partitioned_topics).where(partitioned_topics.c.name == bindparam("partitioned"))


def find(connection: Connection, name: TopicName) -> PartitionedTopic | None:
    row = connection.execute(_OF_NAME, {"partitioned": str(name)}).mappings().one_or_none()
    return _record(row) if row is not None else None


def in_namespace(connection: Connection, namespace: str) -> list[PartitionedTopic]:
    """Those of `tenant/namespace`, by name; none is no error."""
    statement = select(partitioned_topics).where(partitioned_topics.c.namespace == namespace)
    found = [_record(row) for row in connection.execute(statement).mappings()]
    return sorted(found, key=lambda one: str(one.name))


def create(
    connection: Connection,
    name: TopicName,
    partitions: int,
    properties: Mapping[str, str],
    now: int,
    defaults: Mapping[str, object],
) -> PartitionedTopic:
    """A new partitioned topic with its partitions. `defaults`: the broker's policies.

    Raises NotFound for its namespace, InvalidInput for a number or name that cannot be, Conflict if it, or a topic of
    its name or of one of its partitions, exists.
    """
    _check_number(name, partitions)
    if name.partition >= 0:
        raise InvalidInput(f"{name} is named like a partition, so it cannot have any", "choose another name")
    namespace = f"{name.tenant}/{name.namespace}"
    tenancy.locked_namespace(connection, namespace)
    if find(connection, name) is not None or topics.find(connection, name) is not None:
        raise Conflict(f"the topic {name} exists already", "nothing was changed; choose another name")
    made = PartitionedTopic(name, partitions, check_properties(properties), now)
    try:
        with connection.begin_nested():
            connection.execute(
                insert(partitioned_topics).values(
                    name=str(name),
                    namespace=namespace,
                    partitions=partitions,
                    properties=made.properties,
                    created_at=now,
                )
            )
    except IntegrityError as error:  # the namespace's lock makes this impossible
        raise Conflict(f"the topic {name} exists already", "nothing was changed; choose another name") from error
    _make(connection, name, 0, partitions, now, defaults)
    return made


def update_number(
    connection: Connection, name: TopicName, partitions: int, now: int, defaults: Mapping[str, object]
) -> PartitionedTopic:
    """More partitions, or as many; those that were deleted by themselves come back, empty.

    Raises NotFound, InvalidInput, Conflict for fewer, or if a topic of a new partition's name exists.
    """
    _check_number(name, partitions)
    tenancy.locked_namespace(connection, f"{name.tenant}/{name.namespace}")
    found = _locked(connection, name)
    if partitions < found.partitions:
        raise Conflict(
            f"{name} has {found.partitions} partitions, and cannot be brought to {partitions}",
            "partitions can only be added; make another topic",
        )
    make(connection, [partition_of(name, index) for index in range(found.partitions)], now, defaults)
    _make(connection, name, found.partitions, partitions, now, defaults)
    connection.execute(
        update(partitioned_topics).where(partitioned_topics.c.name == str(name)).values(partitions=partitions)
    )
    return PartitionedTopic(name, partitions, found.properties, found.created_at)


def set_properties(
    connection: Connection, name: TopicName, updates: Mapping[str, str], removed: Collection[str]
) -> None:
    """Add or replace properties of the partitioned topic, take those of `removed`. Raises NotFound, InvalidInput."""
    found = {key: value for key, value in _locked(connection, name).properties.items() if key not in removed}
    connection.execute(
        update(partitioned_topics)
        .where(partitioned_topics.c.name == str(name))
        .values(properties=check_properties({**found, **updates}))
    )


def remove(connection: Connection, name: TopicName, now: int, *, force: bool) -> list[DeletedTopic]:
    """Delete the partitioned topic and those of its partitions that there are; their lives.

    Raises NotFound; without `force` LeaseHeld if somebody writes one of them.
    """
    found = _locked(connection, name)
    partitions = topics.ids_of(connection, [partition_of(name, index) for index in range(found.partitions)])
    gone = topic_deletion.delete_topics(connection, partitions, now, force=force)
    connection.execute(delete(permissions).where(permissions.c.scope == str(name)))
    connection.execute(delete(partitioned_topics).where(partitioned_topics.c.name == str(name)))
    return gone


def partition_of(name: TopicName, index: int) -> TopicName:
    """The name of one partition."""
    return TopicName(name.tenant, name.namespace, f"{name.topic}-partition-{index}")


def _make(
    connection: Connection, name: TopicName, first: int, end: int, now: int, defaults: Mapping[str, object]
) -> None:
    partitions = [partition_of(name, index) for index in range(first, end)]
    for partition in partitions:
        if topics.find(connection, partition) is not None:
            raise Conflict(
                f"the topic {partition} exists already, and is no partition of {name}",
                "nothing was changed; delete that topic, or choose another name",
            )
    if partitions:
        make(connection, partitions, now, defaults)


def _locked(connection: Connection, name: TopicName) -> PartitionedTopic:
    row = connection.execute(_of(name).with_for_update()).mappings().one_or_none()
    if row is None:
        raise NotFound(f"the partitioned topic {name} does not exist", "create it first, or check the name")
    return _record(row)


def _of(name: TopicName) -> Select[tuple[object, ...]]:
    return select(partitioned_topics).where(partitioned_topics.c.name == str(name))


def _check_number(name: TopicName, partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidInput(
            f"{partitions} is no number of partitions for {name}", f"a topic has 1 to {MAX_PARTITIONS} of them"
        )


def _record(row: RowMapping) -> PartitionedTopic:
    return PartitionedTopic(TopicName.parse(row["name"]), row["partitions"], dict(row["properties"]), row["created_at"])


class PartitionStore:
    """The rows of partitions, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database, clock: Clock, defaults: Mapping[str, object]) -> None:
        """`defaults`: the broker's policies (PolicyStore)."""
        self._database = database
        self._clock = clock
        self._defaults = defaults

    def find(self, name: TopicName) -> PartitionedTopic | None:
        """The partitioned topic of that name, if it is one."""
        with self._database.read() as connection:
            return find(connection, name)

    def in_namespace(self, namespace: str) -> list[PartitionedTopic]:
        """Those of `tenant/namespace`, by name. Raises InvalidInput."""
        topics.parse_namespace(namespace)
        with self._database.read() as connection:
            return in_namespace(connection, namespace)

    def create(self, name: TopicName, partitions: int, properties: Mapping[str, str]) -> PartitionedTopic:
        """With its partitions. Raises NotFound for the namespace, Conflict, InvalidInput."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            return create(connection, name, partitions, properties, now, self._defaults)

    def update(self, name: TopicName, partitions: int) -> PartitionedTopic:
        """Make more of them. Raises NotFound, InvalidInput, Conflict if they were to be fewer."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            return update_number(connection, name, partitions, now, self._defaults)

    def set_properties(self, name: TopicName, updates: Mapping[str, str], removed: Collection[str] = ()) -> None:
        """Add or replace properties, and take those of `removed`; the others stay. Raises NotFound, InvalidInput."""
        with self._database.write() as connection:
            set_properties(connection, name, updates, removed)

    def delete(self, name: TopicName, force: bool) -> list[DeletedTopic]:
        """With its partitions, all or nothing. Raises NotFound; LeaseHeld unless forced, if somebody writes one."""
        with self._database.write() as connection:
            return remove(connection, name, self._clock.now_ms(), force=force)
