"""Persistent topics without partitions: created, listed, deleted, truncated, their properties, the writer's lease.

What is done to a partitioned topic as a whole is in `partitioned.py`; properties, unloading and truncation take both.
The lease of an owner that died on another machine can be released before its TTL is over. An owner that lives all the
same is fenced.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Query
from pydantic import BaseModel, Field

from api.broker import names
from api.broker.threads import WaitsFor
from api.http.access import ANY_USE, AuthAction
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Namespace, Topic
from api.http.problems import RestException, reported_as
from api.http.query_parameters import AUTHORITATIVE, KNOWN_QUERY
from api.http.router import Routes
from api.rest.brokers.unsupported_features import check_no_shadow
from api.rest.models import StrictBody, TextByName
from api.rest.tenancy.bundles import bundle_of, check_bundle
from compactor.maintenance.truncation import truncate
from storage.errors import LeaseHeld, NotFound
from storage.metadata.records import PartitionedTopic
from storage.model import TopicName
from storage.owner import owner_name, same_process

router = Routes("topics")

EXISTS = "This topic already exists"
NO_NAMESPACE = "Namespace not found"
Properties = Annotated[TextByName | None, Body(description="Properties of the topic; may be left out.")]


class ReleaseLeaseRequest(StrictBody):
    """`force`: also the lease of an owner that is known to be alive."""

    force: bool = False
    dry_run: bool = Field(default=True, description="Say who owns it, and change nothing.")


class LeaseReport(BaseModel):
    """The lease that was, or would be, released. `owner` and `expires_at` (ms since 1970) null: no process owned it."""

    topic: str
    dry_run: bool
    owner: str | None
    expires_at: int | None


@router.get("/persistent/{tenant}/{namespace}", *ANY_USE)
def list_topics(
    broker: Broker,
    namespace: Namespace,
    bundle: Annotated[str | None, Query(description="Only of this bundle.")] = None,
) -> list[str]:
    """The topics of a namespace, partitions one by one."""
    names.namespace(broker.environment, namespace)
    wanted = None if bundle is None else check_bundle(bundle)
    topics = (item.name for item in broker.environment.metadata.topics.in_namespace(namespace))
    return [str(name) for name in topics if wanted is None or bundle_of(name) == wanted]


@router.put(TOPIC_PATH, AuthAction.ADMIN, refuses=(409,))
def create_topic(broker: Broker, topic: Topic, properties: Properties = None) -> None:
    """Create a topic without partitions."""
    check_no_shadow(properties or {})
    metadata = broker.environment.metadata
    whole = _whole_of_partition(broker, topic)
    if metadata.partitions.find(topic) is not None:
        raise RestException(409, EXISTS)
    with reported_as(NO_NAMESPACE, EXISTS):
        metadata.tenancy.create_topic(topic, properties or {})
    if whole is not None:
        names.share_policies(broker.environment, whole)


@router.delete(TOPIC_PATH, AuthAction.ADMIN, refuses=(409,), waits_for=WaitsFor.LOG)
def delete_topic(broker: Broker, topic: Topic, force: bool = False) -> None:
    """Delete a topic with all that belongs to it; a compaction that runs is stopped and never publishes (S8).

    Refused while clients are connected to it, or a process writes it that is no service, an import for example, unless
    `force` is given: they are disconnected then.
    """
    metadata = broker.environment.metadata
    if metadata.partitions.find(topic) is not None:
        advice = "instead of calling delete topic, please call delete-partitioned-topic."
        raise RestException(409, f"{topic} is a partitioned topic, {advice}")
    record = names.topic(broker.environment, topic)
    if not force:
        refuse_clients(broker, topic)
    broker.logs.close_topic(record.id)
    try:
        metadata.tenancy.delete_topic(record.id, force=force or written_by_a_service(broker, record.id))
    except LeaseHeld as error:
        raise RestException(412, connected()) from error
    except NotFound as error:
        raise names.missing(broker.environment, topic) from error


def refuse_clients(broker: Broker, *topics: TopicName) -> None:
    """Raises RestException (412) while Pulsar's clients are connected to one of them here."""
    for topic in topics:
        live = broker.clients.of_topic(topic)
        if live.clients.publishers or any(item.clients.consumers for item in live.subscriptions.values()):
            raise RestException(
                412, f"Topic {topic} has active producers/subscriptions: end them, or delete with force"
            )


@router.delete(TOPIC_PATH + "/truncate", AuthAction.ADMIN, AUTHORITATIVE, refuses=(409,), waits_for=WaitsFor.WORK)
def truncate_topic(broker: Broker, topic: Topic) -> None:
    """Clear a topic, or all partitions of one or none, raw and compacted; offsets continue.

    What cursors and compaction have not read is lost to them.
    """
    records = names.local_topics(broker, topic)
    for record in records:
        broker.ownership.check_for_clients(record)
    truncate(broker.patient, records)
    for record in records:
        broker.clients.truncated(record)


@router.get(TOPIC_PATH + "/properties", *ANY_USE)
def get_topic_properties(broker: Broker, topic: Topic) -> dict[str, str]:
    """The properties of a topic, or of a partitioned topic."""
    metadata = broker.environment.metadata
    whole = metadata.partitions.find(topic)
    if whole is not None:
        return dict(whole.properties)
    return metadata.topics.properties(names.topic(broker.environment, topic).id)


@router.put(TOPIC_PATH + "/properties", AuthAction.ADMIN)
def update_topic_properties(
    broker: Broker,
    topic: Topic,
    properties: Annotated[TextByName, Body(description="Those to add or replace.")],
) -> None:
    """Add or replace properties; those that are not named stay."""
    metadata = broker.environment.metadata
    if metadata.partitions.find(topic) is not None:
        metadata.partitions.set_properties(topic, properties)
    else:
        metadata.topics.set_properties(names.topic(broker.environment, topic).id, properties)


@router.delete(TOPIC_PATH + "/properties", AuthAction.ADMIN)
def remove_topic_property(
    broker: Broker,
    topic: Topic,
    key: Annotated[str, Query(description="The property to remove; none of that name is no error.")],
) -> None:
    """Remove one property."""
    metadata = broker.environment.metadata
    if metadata.partitions.find(topic) is not None:
        metadata.partitions.set_properties(topic, {}, [key])
    else:
        metadata.topics.remove_property(names.topic(broker.environment, topic).id, key)


@router.put(TOPIC_PATH + "/unload", AuthAction.ADMIN)
def unload_topic(broker: Broker, topic: Topic) -> None:
    """Gives up the writer's lease, and tells clients to look the topic up again. A compaction continues, and its status
    stays (S7)."""
    for record in names.topics(broker.environment, topic):
        broker.ownership.check_for_clients(record)
        broker.logs.close_topic(record.id)


@router.post(
    TOPIC_PATH + "/release-lease", AuthAction.ADMIN, KNOWN_QUERY, refuses=(409,), response_model=list[LeaseReport]
)
def release_lease(
    broker: Broker,
    topic: Topic,
    wanted: Annotated[ReleaseLeaseRequest, Body()] = ReleaseLeaseRequest(),  # noqa: B008
) -> Any:
    """Release the writer's lease of a topic, or of each partition. A dry run by default."""
    found = []
    for record in names.topics(broker.environment, topic):
        lease = broker.environment.metadata.leases.end(record.id, force=wanted.force, dry_run=wanted.dry_run)
        owner, until = (None, None) if lease is None else (lease.owner, lease.expires_at)
        found.append(LeaseReport(topic=str(record.name), dry_run=wanted.dry_run, owner=owner, expires_at=until))
    return found


def written_by_a_service(broker: Broker, topic_id: int) -> bool:
    """Whether a live service holds the topic's lease: its producers open the topic again, so it may be deleted."""
    metadata = broker.environment.metadata
    lease = metadata.leases.current(topic_id)
    if lease is None:
        return False
    return same_process(lease.owner, owner_name()) or metadata.services.of_owner(lease.owner) is not None


def connected(producers: int = 1) -> str:
    """Why a topic that has a writer is not deleted, in the words of a broker."""
    return f"Topic has {producers} client connected Including 0 consumers, {producers} producers, and 0 replicators."


def _whole_of_partition(broker: Broker, topic: TopicName) -> PartitionedTopic | None:
    """The partitioned topic that it is to be a partition of; None for a name of no partition.

    A name of a partition is for partitions. 412 in the words of a broker.
    """
    whole = topic.whole
    if whole is None:
        return None
    found = broker.environment.metadata.partitions.find(whole)
    if found is None:
        reason = (
            f"Can't create topic {topic} with \"-partition-\" followed by numeric value if there isn't a partitioned "
            f"topic {whole} created."
        )
        raise RestException(412, reason)
    if topic.partition >= found.partitions:
        reason = (
            f'Can\'t create topic {topic} with "-partition-" followed by a number smaller than number of partition of '
            f"partitioned topic {whole}"
        )
        raise RestException(412, reason)
    return found
