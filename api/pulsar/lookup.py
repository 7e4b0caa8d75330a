"""Lookup: which service has a topic, how many partitions it has, which topics a namespace has.

A topic is where its writer's lease is, or its open segment; if it is nowhere, it is whoever was asked that has it, and
the first producer or consumer makes it so. For threads: it reads SQL.
"""

from __future__ import annotations

from dataclasses import dataclass

from api.broker.broker import Broker
from api.broker.refusals import NotTheOwner
from api.pulsar.errors import Refused, ServerError
from storage.errors import NotFound, TopicNotFound
from storage.metadata.records import ServiceRecord, TopicRecord
from storage.model import DOMAIN, TopicName


def parse_name(text: str) -> TopicName:
    """A topic's name as clients send it. Raises Refused for one that is not persistent, InvalidTopicName."""
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
    """Where a topic is served. An empty URL: not without TLS, or not with it."""

    url: str
    tls_url: str


def find_or_create(broker: Broker, name: TopicName, create: bool) -> tuple[TopicRecord, bool]:
    """Return the topic, created if that is allowed, and whether it was created. Raises Refused, also for a partitioned
    topic as a whole."""
    metadata = broker.environment.metadata
    try:
        return metadata.topics.get(name), False
    except TopicNotFound:
        if metadata.partitions.find(name) is not None:
            raise Refused(
                ServerError.NotAllowedError, f"{name} is a partitioned topic: use its partitions, as clients do"
            ) from None
    _check_creation(broker, name, create)
    _check_partition(broker, name)
    return metadata.tenancy.ensure_topic(name), True


def _check_creation(broker: Broker, name: TopicName, create: bool) -> None:
    """Check that a topic which does not exist may be created in its namespace. Raises Refused (TopicNotFound)."""
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


def _check_partition(broker: Broker, name: TopicName) -> None:
    """Check that a name of a partition is that of one that may exist. Raises Refused: NotAllowedError,
    TopicNotFound."""
    if name.whole is None:
        return
    whole = broker.environment.metadata.partitions.find(name.whole)
    if whole is None:
        raise Refused(
            ServerError.NotAllowedError,
            f"{name} is named like a partition, and there is no partitioned topic {name.whole}: create that, or choose "
            "another name",
        )
    if name.partition >= whole.partitions:
        raise Refused(
            ServerError.TopicNotFound, f"{name} does not exist: {name.whole} has {whole.partitions} partitions"
        )


def owner_of(broker: Broker, record: TopicRecord) -> ServiceRecord | None:
    """The service that has a topic; None: this one may. Raises RestException (503)."""
    if broker.logs.is_open(record):
        return None
    try:
        broker.ownership.check_for_writing(record)
    except NotTheOwner as other:
        return other.service
    return None


def look_up(broker: Broker, name: TopicName, ours: LookupResult, create: bool) -> LookupResult:
    """Return where a topic is served. Raises Refused unless it exists or may be created."""
    try:
        record = broker.environment.metadata.topics.get(name)
    except TopicNotFound:
        if broker.environment.metadata.partitions.find(name) is None:
            _check_creation(broker, name, create)
        return ours
    owner = owner_of(broker, record)
    if owner is None:
        return ours
    if owner.broker_service_url is None and owner.broker_service_url_tls is None:
        raise Refused(
            ServerError.ServiceNotReady,
            f"{name} is written by {owner.name}, which does not speak Pulsar's protocol: end it, or set its "
            "broker-service-port",
        )
    return LookupResult(owner.broker_service_url or "", owner.broker_service_url_tls or "")


def partitions_of(broker: Broker, name: TopicName, create: bool) -> int:
    """Return the number of a topic's partitions; 0: it is not partitioned, or may be created so. Raises Refused."""
    metadata = broker.environment.metadata
    partitioned = metadata.partitions.find(name)
    if partitioned is not None:
        return partitioned.partitions
    try:
        metadata.topics.get(name)
    except TopicNotFound:
        _check_creation(broker, name, create)
    return 0


def topics_of(broker: Broker, namespace: str) -> list[str]:
    """Return the topics of a namespace, partitions one by one; none of one that does not exist, as a broker does."""
    return [str(item.name) for item in broker.environment.metadata.topics.in_namespace(namespace)]
