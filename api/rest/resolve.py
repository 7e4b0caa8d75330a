"""What a path names, as it is: a topic, a partition, a partitioned topic; or nothing, in a broker's words.

A partitioned topic is a row of its own and as many topics; what is done to it is done to each of them. Policies of a
partitioned topic are stored with each partition, and those of one partition alone may not be touched, as in a broker.
"""

from __future__ import annotations

from api.broker.broker import Broker
from api.http.problems import RestException, reported_as
from storage.errors import TopicNotFound
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import NamespaceRecord, PartitionedTopic, TopicRecord
from storage.model import TopicName
from storage.options import policies

NO_PARTITION_POLICY = "Not allowed to set/get topic policy for a partition"


def topic(broker: Broker, name: TopicName) -> TopicRecord:
    """The topic, or partition, of that name. 404 for a missing one, also for a partitioned topic itself."""
    try:
        return broker.environment.metadata.topics.get(name)
    except TopicNotFound as error:
        raise not_found(broker, name) from error


def topics(broker: Broker, name: TopicName) -> list[TopicRecord]:
    """The topic alone, or the partitions of the partitioned topic of that name, in order. 404."""
    whole = broker.environment.metadata.partitions.find(name)
    if whole is None:
        return [topic(broker, name)]
    found = partitions(broker, whole)
    if not found:
        raise RestException(404, "Topic partitions were not yet created")
    return found


def local_topic(broker: Broker, name: TopicName) -> TopicRecord:
    """As `topic`; its newest messages are local. Raises NotTheOwner if another service has them."""
    record = topic(broker, name)
    broker.ownership.check_for_reading(record)
    return record


def local_topics(broker: Broker, name: TopicName) -> list[TopicRecord]:
    """As `topics`; their newest messages are local. Raises NotTheOwner, before anything is done, if another service has
    those of one."""
    records = topics(broker, name)
    for record in records:
        broker.ownership.check_for_reading(record)
    return records


def refuse_partitioned(broker: Broker, name: TopicName, reason: str) -> None:
    """Raises RestException (405) for a partitioned topic."""
    if broker.environment.metadata.partitions.find(name) is not None:
        raise RestException(405, reason)


def partitions(broker: Broker, whole: PartitionedTopic) -> list[TopicRecord]:
    """The partitions that there are: each can be deleted by itself."""
    names = partition_names(whole)
    found = broker.environment.metadata.topics.named(names)
    return [found[name] for name in names if name in found]


def partition_names(whole: PartitionedTopic) -> list[TopicName]:
    """In order."""
    return [whole.name.of_partition(number) for number in range(whole.partitions)]


def share_policies(broker: Broker, whole: PartitionedTopic) -> None:
    """Partitions that have no policies get those of the first that has some: what is set is set for the whole.

    So a partition that was created again has them, and one whose creation was cut off gets them the next time.
    """
    store = broker.environment.metadata.policies
    found = [(scope, store.of_scope(scope)) for scope in map(topic_scope, partitions(broker, whole))]
    shared = next((settings for _, settings in found if settings), {})
    store.change(
        [scope for scope, settings in found if not settings],
        {name: policies.to_json(name, value) for name, value in shared.items()},
    )


def with_policies(broker: Broker, name: TopicName) -> list[TopicRecord]:
    """Where the policies of a topic are stored: the topic, or its partitions. 404; 412 for one partition alone."""
    if name.partition >= 0:
        raise RestException(412, NO_PARTITION_POLICY)
    return topics(broker, name)


def namespace(broker: Broker, name: str, reason: str = "Namespace does not exist") -> NamespaceRecord:
    """The namespace; 404 with this reason if it does not exist."""
    with reported_as(reason):
        return broker.environment.metadata.tenancy.namespace(name)


def namespace_of(name: TopicName) -> str:
    """`tenant/namespace`."""
    return f"{name.tenant}/{name.namespace}"


def not_found(broker: Broker, name: TopicName) -> RestException:
    """Why there is no such topic, in a broker's words."""
    whole = name.whole
    if whole is None:
        return RestException(404, f"Topic {name} not found")
    if broker.environment.metadata.partitions.find(whole) is None:
        return RestException(404, f"Partitioned Topic not found: {name} has zero partitions")
    return RestException(404, "Topic partitions were not yet created")
