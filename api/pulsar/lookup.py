"""Lookup of topics: their owner, their partitions, the topics of a namespace.

The owner of a topic is the service that holds its writer's lease or its open segment. If no service owns the topic, the
service that received the lookup claims it when the first producer or consumer connects. For threads: functions read
SQL.
"""

from __future__ import annotations

from dataclasses import dataclass

from api.broker import names
from api.broker.broker import Broker
from api.broker.refusals import NotTheOwner
from api.pulsar.errors import Refused, ServerError
from storage.errors import NotFound, TopicNotFound
from storage.metadata.records import ServiceRecord, TopicRecord
from storage.model import DOMAIN, TopicName


def parse_name(text: str) -> TopicName:
    """Return the topic's name that a client sent. Raise Refused for one that is not persistent, InvalidTopicName."""
    domain, separator, _ = text.partition("://")
    if separator and domain != DOMAIN:
        raise Refused(
            ServerError.NotAllowedError,
            f"{text} is not a persistent topic: only persistent:// topics are served, and only they can be read "
            "compacted",
        )
    return TopicName.parse(text)


@dataclass(frozen=True)
class LookupResult:
    """The URLs of the service that owns a topic, without and with TLS; empty: the service does not listen there."""

    url: str
    tls_url: str


def find_or_create(broker: Broker, name: TopicName, create: bool) -> tuple[TopicRecord, bool]:
    """Return a topic and whether it was created now; `create`: creation is allowed. Raise Refused, also for a
    partitioned topic; PartitionWithoutTopic, NoSuchPartition."""
    metadata = broker.environment.metadata
    try:
        return metadata.topics.get(name), False
    except TopicNotFound:
        if metadata.partitions.find(name) is not None:
            raise Refused(
                ServerError.NotAllowedError,
                f"{name} is a partitioned topic: connect to its partitions, as client libraries do",
            ) from None
    _check_creation(broker, name, create)
    names.partitioned_topic_of(broker.environment, name)
    return metadata.tenancy.ensure_topic(name), True


def _check_creation(broker: Broker, name: TopicName, create: bool) -> None:
    """Check that a topic that does not exist may be created in its namespace. Raise Refused (TopicNotFound)."""
    if not create:
        raise Refused(
            ServerError.TopicNotFound,
            f"{name} does not exist, and is not created on first use (broker.auto-topic-creation, or the client's own "
            f"choice): create it with `pulsar-admin topics create {name}`",
        )
    try:
        broker.environment.metadata.tenancy.namespace(f"{name.tenant}/{name.namespace}")
    except NotFound as error:
        raise Refused(ServerError.TopicNotFound, f"Namespace not found: {error.message}") from error


def owner_of(broker: Broker, record: TopicRecord) -> ServiceRecord | None:
    """Return the service that owns a topic; None: this service owns it or may claim it. Raise Unavailable."""
    if broker.logs.is_open(record):
        return None
    try:
        broker.ownership.check_for_writing(record)
    except NotTheOwner as other:
        return other.service
    return None


def look_up(broker: Broker, name: TopicName, this_service: LookupResult, create: bool) -> LookupResult:
    """Return the URLs of a topic's owner. Raise Refused unless the topic exists or may be created."""
    try:
        record = broker.environment.metadata.topics.get(name)
    except TopicNotFound:
        if broker.environment.metadata.partitions.find(name) is None:
            _check_creation(broker, name, create)
        return this_service
    owner = owner_of(broker, record)
    if owner is None:
        return this_service
    if owner.broker_service_url is None and owner.broker_service_url_tls is None:
        raise Refused(
            ServerError.ServiceNotReady,
            f"{name} is owned by {owner.name}, which does not speak Pulsar's protocol: stop that service, or set its "
            "broker-service-port",
        )
    return LookupResult(owner.broker_service_url or "", owner.broker_service_url_tls or "")


def partitions_of(broker: Broker, name: TopicName, create: bool) -> int:
    """Return the number of a topic's partitions; 0: it is not partitioned, or may be created so. Raise Refused."""
    metadata = broker.environment.metadata
    partitioned_topic = metadata.partitions.find(name)
    if partitioned_topic is not None:
        return partitioned_topic.partitions
    try:
        metadata.topics.get(name)
    except TopicNotFound:
        _check_creation(broker, name, create)
    return 0


def topics_of(broker: Broker, namespace: str) -> list[str]:
    """Return the names of a namespace's topics, each partition by itself. A namespace that does not exist has none."""
    return [str(item.name) for item in broker.environment.metadata.topics.in_namespace(namespace)]
