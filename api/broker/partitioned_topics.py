"""Operations on partitioned topics as a whole: create, list, grow and delete them; create deleted partitions again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from api.broker import names
from api.broker.refusals import FewerPartitions, NotPartitioned, NotTheOwner, TopicHasWriter
from storage.errors import LeaseHeld

if TYPE_CHECKING:
    from api.broker.broker import Broker
    from storage.environment import Environment
    from storage.metadata.records import PartitionedTopic
    from storage.model import TopicName


def in_namespace(environment: Environment, namespace: str) -> list[TopicName]:
    """Return the names of the partitioned topics of a namespace `tenant/namespace`. Raise MissingNamespace."""
    names.namespace(environment, namespace)
    return [partitioned.name for partitioned in environment.metadata.partitions.in_namespace(namespace)]


def get(environment: Environment, name: TopicName) -> PartitionedTopic:
    """Return the partitioned topic of that name. Raise TopicNotFound, NotPartitioned."""
    partitioned = environment.metadata.partitions.find(name)
    if partitioned is None:
        names.topic(environment, name)
        raise NotPartitioned(name)
    return partitioned


def create(environment: Environment, name: TopicName, partitions: int, properties: Mapping[str, str]) -> None:
    """Create a partitioned topic with its partitions.

    Raise NotFound for its namespace, InvalidInput for the name, the number or the properties, InvalidTopicName for a
    system topic, Conflict if a topic with its name or that of a partition exists.
    """
    names.check_not_system_topic(name)
    environment.metadata.partitions.create(name, partitions, properties)


def grow(environment: Environment, name: TopicName, partitions: int) -> None:
    """Increase the number of partitions of a topic to `partitions`; new ones get the policies of the others.

    Raise TopicNotFound, NotPartitioned, FewerPartitions, Conflict.
    """
    current = get(environment, name).partitions
    if partitions < current:
        raise FewerPartitions(name, current, partitions)
    names.copy_policies_to_partitions_without_any(
        environment, environment.metadata.partitions.increase_partitions_to(name, partitions)
    )


def recreate_deleted_partitions(environment: Environment, name: TopicName) -> None:
    """Create the deleted partitions of a partitioned topic again, empty, with the policies of the others.

    Raise TopicNotFound, NotPartitioned.
    """
    current = get(environment, name).partitions
    names.copy_policies_to_partitions_without_any(
        environment, environment.metadata.partitions.increase_partitions_to(name, current)
    )


def owned_elsewhere(broker: Broker, name: TopicName) -> list[NotTheOwner]:
    """Return a NotTheOwner error, which names the service, for each partition that another service serves to clients.

    Raise TopicNotFound, NotPartitioned.
    """
    return broker.ownership.owned_elsewhere(names.partitions(broker.environment, get(broker.environment, name)))


def delete(broker: Broker, name: TopicName, force: bool = False) -> None:
    """Delete a partitioned topic with its partitions, all or nothing.

    The caller has unloaded the partitions of other services. `force`: as of `topics.delete`. Raise TopicNotFound,
    NotPartitioned; ClientsConnected and TopicHasWriter unless forced.
    """
    metadata = broker.environment.metadata
    records = names.partitions(broker.environment, get(broker.environment, name))
    if not force:
        broker.clients.check_no_clients(*(record.name for record in records))
    broker.logs.close_topics(*records)
    leases = metadata.leases.current_of([record.id for record in records]).values()
    foreign = sum(not broker.ownership.holds(lease) for lease in leases)
    if foreign and not force:
        raise TopicHasWriter(foreign)
    try:
        metadata.partitions.delete(name, force=force or bool(leases))
    except LeaseHeld as error:
        raise TopicHasWriter(1) from error
    broker.logs.close_topics(*records)  # a client may have opened one again in between
