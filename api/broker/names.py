"""Names of topics and namespaces, and the records that they stand for.

A partitioned topic is a row of its own and as many topics. An operation on it is executed on each of them. Policies of
a partitioned topic are stored with each partition; a single partition has no policies of its own, as in Pulsar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from api.broker.refusals import (
    MissingNamespace,
    MissingPartition,
    MissingTopic,
    NotTheOwner,
    PartitionedTopicRefused,
    PartitionOfMissingTopic,
    PartitionOutOfRange,
    PartitionPolicyRefused,
    PartitionWithoutTopic,
)
from storage.errors import InvalidTopicName, NotFound, TopicNotFound
from storage.metadata.policy_store import topic_scope
from storage.options import policies

if TYPE_CHECKING:
    from api.broker.broker import Broker
    from storage.environment import Environment
    from storage.metadata.records import NamespaceRecord, PartitionedTopic, ServiceRecord, TopicRecord
    from storage.model import TopicName


_SYSTEM_TOPICS = ("__change_events", "__transaction_", "transaction_coordinator_")
_PENDING_ACK = "__transaction_pending_ack"


def is_system_topic(name: TopicName) -> bool:
    """Return whether the name is that of an internal topic of Pulsar's brokers: for policies or transactions."""
    return name.topic.startswith(_SYSTEM_TOPICS) or _PENDING_ACK in name.topic


def check_not_system_topic(name: TopicName) -> None:
    """Raise InvalidTopicName for the name of an internal topic of Pulsar's brokers, which a replication may send."""
    if is_system_topic(name):
        raise InvalidTopicName(
            f"{name} has the name of a system topic of Pulsar's brokers, and this service has none",
            "use another name; a replication goes on without it",
        )


def topic(environment: Environment, name: TopicName) -> TopicRecord:
    """Return the record of a topic or a single partition. Raise TopicNotFound, also for a partitioned topic."""
    try:
        return environment.metadata.topics.get(name)
    except TopicNotFound as error:
        raise missing_topic_error(environment, name) from error


def unpartitioned_topic(environment: Environment, name: TopicName) -> TopicRecord:
    """Return the record of a topic or a single partition. Raise PartitionedTopicRefused, TopicNotFound."""
    check_not_partitioned(environment, name)
    return topic(environment, name)


def topics(environment: Environment, name: TopicName) -> list[TopicRecord]:
    """Return the record of a topic, or those of the existing partitions of a partitioned topic, in order.

    Raise TopicNotFound, also if all partitions are deleted.
    """
    partitioned = environment.metadata.partitions.find(name)
    if partitioned is None:
        return [topic(environment, name)]
    records = partitions(environment, partitioned)
    if not records:
        raise MissingPartition(name)
    return records


class FoundTopic(NamedTuple):
    """The record of a topic or partition. `is_new`: the call has created it."""

    record: TopicRecord
    is_new: bool


def find_or_create(environment: Environment, name: TopicName, allow_creation: bool) -> FoundTopic:
    """Return the record of a topic or partition. `allow_creation`: create a missing one; otherwise raise MissingTopic.

    A partition that was deleted gets the policies of the others. Raise PartitionedTopicRefused, MissingNamespace,
    PartitionWithoutTopic, PartitionOutOfRange.
    """
    try:
        return FoundTopic(environment.metadata.topics.get(name), False)
    except TopicNotFound:
        check_not_partitioned(environment, name)
        _check_creation(environment, name, allow_creation)
    return FoundTopic(ensure_with_namespace(environment, name), True)


def ensure_with_namespace(environment: Environment, name: TopicName) -> TopicRecord:
    """Return the record of a topic; create the topic and its namespace if they are missing.

    A new partition gets the policies of the others.

    Raise PartitionWithoutTopic, PartitionOutOfRange; Conflict for a partitioned topic.
    """
    partitioned = partitioned_topic_of(environment, name)
    record = environment.metadata.tenancy.ensure_topic(name)
    if partitioned is not None:
        copy_policies_to_partitions_without_any(environment, partitioned)
    return record


def other_owner(broker: Broker, name: TopicName, allow_missing: bool) -> ServiceRecord | None:
    """Return the other service that owns a topic; None: this service owns it, or may claim it.

    Creates nothing. `allow_missing`: a missing topic is no error if its namespace exists. Raise MissingTopic,
    MissingNamespace, WriterElsewhere, NoLogOwner.
    """
    environment = broker.environment
    try:
        record = environment.metadata.topics.get(name)
    except TopicNotFound:
        find_partitioned(environment, name, allow_missing)
        return None
    try:
        broker.ownership.check_for_writing(record)
    except NotTheOwner as error:
        return error.service
    return None


def find_partitioned(environment: Environment, name: TopicName, allow_missing: bool) -> PartitionedTopic | None:
    """Return a partitioned topic; None: the topic has no partitions, or does not exist and may be created.

    Creates nothing. `allow_missing`: a missing topic is no error if its namespace exists. Raise MissingTopic,
    MissingNamespace.
    """
    partitioned = environment.metadata.partitions.find(name)
    if partitioned is None:
        try:
            environment.metadata.topics.get(name)
        except TopicNotFound:
            _check_creation(environment, name, allow_missing)
    return partitioned


def _check_creation(environment: Environment, name: TopicName, allow_creation: bool) -> None:
    """Raise MissingTopic unless a missing topic may be created, MissingNamespace unless its namespace exists."""
    if not allow_creation:
        raise missing_topic_error(environment, name)
    namespace(environment, namespace_of(name))


def local_topic(broker: Broker, name: TopicName) -> TopicRecord:
    """Return the record of a topic. Raise NotTheOwner if another service has its newest messages.

    Raise PartitionedTopicRefused, TopicNotFound.
    """
    record = unpartitioned_topic(broker.environment, name)
    broker.ownership.check_for_reading(record)
    return record


def local_topics(broker: Broker, name: TopicName) -> list[TopicRecord]:
    """Return the record of a topic, or of all its partitions. Raise NotTheOwner if another service has the newest
    messages of one, TopicNotFound."""
    records = topics(broker.environment, name)
    for record in records:
        broker.ownership.check_for_reading(record)
    return records


def topics_holding_policies_of(environment: Environment, name: TopicName) -> list[TopicRecord]:
    """Return the records with which the policies of a topic are stored: of the topic, or of all its partitions.

    Raise TopicNotFound; PartitionPolicyRefused for a single partition.
    """
    if name.partition >= 0:
        raise PartitionPolicyRefused(name)
    return topics(environment, name)


def copy_policies_to_partitions_without_any(environment: Environment, partitioned: PartitionedTopic) -> None:
    """Copy the policies of the first partition that has some to the partitions that have none.

    Policies are set for all partitions together. This restores them for a partition that was created again, and after
    a creation that was interrupted.
    """
    store = environment.metadata.policies
    settings = store.readable_of_scopes([topic_scope(partition) for partition in partitions(environment, partitioned)])
    shared = next((values for values in settings.values() if values), {})
    store.change(
        [scope for scope, values in settings.items() if not values],
        {name: policies.to_json(name, value) for name, value in shared.items()},
    )


def check_not_partitioned(environment: Environment, name: TopicName) -> None:
    """Raise PartitionedTopicRefused for a partitioned topic."""
    if environment.metadata.partitions.find(name) is not None:
        raise PartitionedTopicRefused(name)


def partitions(environment: Environment, partitioned: PartitionedTopic) -> list[TopicRecord]:
    """Return the records of the partitions of a partitioned topic that are not deleted, in order."""
    names = partition_names(partitioned)
    records = environment.metadata.topics.by_names(names)
    return [records[name] for name in names if name in records]


def partitioned_topic_of(environment: Environment, name: TopicName) -> PartitionedTopic | None:
    """Return the partitioned topic to which a new topic belongs by its name; None: the name is not that of a partition.

    Raise PartitionWithoutTopic if the partitioned topic does not exist, PartitionOutOfRange.
    """
    if name.partitioned_topic is None:
        return None
    partitioned = environment.metadata.partitions.find(name.partitioned_topic)
    if partitioned is None:
        raise PartitionWithoutTopic(name)
    if name.partition >= partitioned.partitions:
        raise PartitionOutOfRange(name, partitioned.partitions)
    return partitioned


def partition_names(partitioned: PartitionedTopic) -> list[TopicName]:
    """Return the names of all partitions of a partitioned topic, also of deleted ones, in order."""
    return [partitioned.name.of_partition(number) for number in range(partitioned.partitions)]


def namespace(environment: Environment, name: str) -> NamespaceRecord:
    """Return the record of a namespace, which is named `tenant/namespace`. Raise MissingNamespace."""
    try:
        return environment.metadata.tenancy.namespace(name)
    except NotFound as error:
        raise MissingNamespace(error) from error


def namespace_of(name: TopicName) -> str:
    """Return the name of a topic's namespace, as `tenant/namespace`."""
    return f"{name.tenant}/{name.namespace}"


def missing_topic_error(environment: Environment, name: TopicName) -> MissingTopic:
    """Return the error for a topic that does not exist: MissingTopic, PartitionOfMissingTopic or MissingPartition."""
    if name.partitioned_topic is None:
        return MissingTopic(name)
    has_topic = environment.metadata.partitions.find(name.partitioned_topic) is not None
    return MissingPartition(name) if has_topic else PartitionOfMissingTopic(name)
