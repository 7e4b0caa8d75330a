"""Operations on topics: create, delete and truncate them, change their properties, release the writer's lease.

`partitions.py` has the operations on partitioned topics as a whole. Truncation, unloading, properties and leases are
for both: they take the name of either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from api.broker import names
from api.broker.refusals import TopicHasWriter
from compactor.maintenance.truncation import truncate as truncate_all
from storage.errors import LeaseHeld, NotFound

if TYPE_CHECKING:
    from api.broker.broker import Broker
    from storage.environment import Environment
    from storage.metadata.records import Lease, TopicRecord
    from storage.model import TopicName


def in_namespace(environment: Environment, namespace: str) -> list[TopicName]:
    """Return the names of the topics of a namespace `tenant/namespace`; of partitioned topics, the names of the
    partitions. Raise MissingNamespace."""
    names.namespace(environment, namespace)
    return [record.name for record in environment.metadata.topics.in_namespace(namespace)]


def create(environment: Environment, name: TopicName, properties: Mapping[str, str]) -> None:
    """Create a topic without partitions, or a deleted partition again, which gets the policies of the others.

    Raise NotFound for its namespace, Conflict if a topic or partitioned topic of this name exists,
    PartitionWithoutTopic, PartitionOutOfRange, InvalidTopicName for a system topic.
    """
    names.check_not_system_topic(name)
    partitioned = names.partitioned_topic_of(environment, name)
    environment.metadata.tenancy.create_topic(name, properties)
    if partitioned is not None:
        names.copy_policies_to_partitions_without_any(environment, partitioned)


def delete(broker: Broker, name: TopicName, force: bool = False) -> None:
    """Delete a topic with its messages, cursors and runs; an active compaction never publishes (S8).

    `force`: disconnect clients, and delete it although a process that is no service writes it, for example an import.
    Raise TopicNotFound, PartitionedTopicRefused, NotTheOwner; ClientsConnected and TopicHasWriter unless forced.
    """
    metadata = broker.environment.metadata
    record = names.unpartitioned_topic(broker.environment, name)
    broker.ownership.check_not_owned_elsewhere(record)
    if not force:
        broker.clients.check_no_clients(name)
    broker.logs.close_topics(record)
    try:
        metadata.tenancy.delete_topic(record.id, force=force or broker.ownership.is_leased_here(record.id))
    except LeaseHeld as error:
        broker.ownership.check_not_owned_elsewhere(record)
        raise TopicHasWriter(1) from error
    except NotFound as error:
        raise names.missing_topic_error(broker.environment, name) from error


def truncate(broker: Broker, name: TopicName) -> None:
    """Remove all messages, raw and compacted, of a topic, or of all partitions or none. Offsets continue.

    Cursors and compaction lose what they have not read. Raise TopicNotFound, NotTheOwner, and the errors of
    `compactor.maintenance.truncation.truncate`.
    """
    records = names.local_topics(broker, name)
    broker.ownership.check_not_owned_elsewhere(*records)
    truncate_all(broker.long_work_environment, records)
    for record in records:
        broker.clients.note_truncated(record)
    # A lease may have moved meanwhile: its new owner truncates again, and drops the entries that it has read.
    broker.ownership.check_not_owned_elsewhere(*records)


def unload(broker: Broker, name: TopicName) -> None:
    """Close the log and release this service's lease of a topic, or of each partition. Clients look the topic up again.

    A compaction continues, and its status stays (S7). Raise TopicNotFound, NotTheOwner.
    """
    records = names.topics(broker.environment, name)
    broker.ownership.check_not_owned_elsewhere(*records)
    broker.logs.close_topics(*records)


def properties(environment: Environment, name: TopicName) -> dict[str, str]:
    """Return the properties of a topic or of a partitioned topic. Raise TopicNotFound."""
    partitioned = environment.metadata.partitions.find(name)
    if partitioned is not None:
        return dict(partitioned.properties)
    return environment.metadata.topics.properties(names.topic(environment, name).id)


def set_properties(
    environment: Environment, name: TopicName, updates: Mapping[str, str], removed: Collection[str] = ()
) -> None:
    """Add or replace properties of a topic or partitioned topic, and remove those of `removed`; the others stay.

    Raise TopicNotFound, InvalidInput.
    """
    metadata = environment.metadata
    if metadata.partitions.find(name) is not None:
        metadata.partitions.set_properties(name, updates, removed)
    else:
        metadata.topics.set_properties(names.topic(environment, name).id, updates, removed)


def revoke_leases(
    environment: Environment, name: TopicName, *, force: bool, dry_run: bool
) -> list[tuple[TopicRecord, Lease | None]]:
    """Revoke the writer's lease of a topic, or of each partition. The former owner cannot write any more.

    For an owner that died on another machine. Return each topic with its former lease; None: it had no lease. `force`:
    also if the owner is alive, which otherwise raises LeaseHeld. `dry_run`: change nothing. Raise TopicNotFound.
    """
    return [
        (record, environment.metadata.leases.revoke(record.id, force=force, dry_run=dry_run))
        for record in names.topics(environment, name)
    ]
