"""Persistent topics without partitions: made, listed, deleted, their properties.

What is done to a partitioned topic as a whole is in `partitioned.py`; properties and unloading take both.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query
from starlette.responses import Response

from api.admin import resolve
from api.admin.brokers.not_offered import check_no_shadow
from api.admin.models import TextByName, done
from api.admin.tenancy.bundles import bundle_of, check_bundle
from api.http.access import Action, allowed
from api.http.paths import Namespace, Topic
from api.http.problems import Problem, refusals
from api.http.routes import Routes
from api.http.thread_pools import WaitsFor, waits_for
from api.service import Parts, Service
from storage.errors import Conflict, LeaseHeld, NotFound
from storage.metadata.records import PartitionedTopic
from storage.model import TopicName
from storage.owner import owner_name, same_process

router = Routes(prefix="/admin/v2", tags=["topics"])

EXISTS = "This topic already exists"
NO_NAMESPACE = "Namespace not found"
Properties = Annotated[TextByName | None, Body(description="Properties of the topic; may be left out.")]


@router.get(
    "/persistent/{tenant}/{namespace}",
    dependencies=[allowed(Action.PRODUCE, Action.CONSUME, Action.COMPACT)],
    operation_id="listTopics",
    responses=refusals(404, 412),
)
def list_topics(
    parts: Parts,
    namespace: Namespace,
    bundle: Annotated[str | None, Query(description="Only of this bundle.")] = None,
) -> list[str]:
    """The topics of a namespace, partitions one by one."""
    resolve.namespace(parts, namespace)
    wanted = None if bundle is None else check_bundle(bundle)
    names = (one.name for one in parts.components.metadata.topics.in_namespace(namespace))
    return [str(name) for name in names if wanted is None or bundle_of(name) == wanted]


@router.put(
    "/persistent/{tenant}/{namespace}/{topic}",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="createTopic",
    status_code=204,
    responses=refusals(400, 404, 409, 412),
)
def create_topic(parts: Parts, topic: Topic, properties: Properties = None) -> Response:
    """Make a topic without partitions."""
    check_no_shadow(properties or {})
    metadata = parts.components.metadata
    whole = _whole_of_partition(parts, topic)
    if metadata.partitions.find(topic) is not None:
        raise Problem(409, EXISTS)
    try:
        metadata.tenancy.create_topic(topic, properties or {})
    except NotFound as error:
        raise Problem(404, NO_NAMESPACE) from error
    except Conflict as error:
        raise Problem(409, EXISTS) from error
    if whole is not None:
        resolve.share_policies(parts, whole)
    return done()


@router.delete(
    "/persistent/{tenant}/{namespace}/{topic}",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="deleteTopic",
    status_code=204,
    responses=refusals(404, 409, 412),
)
@waits_for(WaitsFor.LOG)
def delete_topic(parts: Parts, topic: Topic, force: bool = False) -> Response:
    """Delete a topic with all that belongs to it; a compaction that runs is stopped and never publishes (S8).

    Refused while somebody writes it who is no service, an import for example, unless `force` is given.
    """
    metadata = parts.components.metadata
    if metadata.partitions.find(topic) is not None:
        told = f"{topic} is a partitioned topic, instead of calling delete topic, please call delete-partitioned-topic."
        raise Problem(409, told)
    record = resolve.topic(parts, topic)
    parts.producers.close_topic(record.id)
    try:
        metadata.tenancy.delete_topic(record.id, force=force or written_by_a_service(parts, record.id))
    except LeaseHeld as error:
        raise Problem(412, connected()) from error
    except NotFound as error:
        raise resolve.not_found(parts, topic) from error
    return done()


@router.get(
    "/persistent/{tenant}/{namespace}/{topic}/properties",
    dependencies=[allowed(Action.PRODUCE, Action.CONSUME, Action.COMPACT)],
    operation_id="getTopicProperties",
    responses=refusals(404, 412),
)
def get_properties(parts: Parts, topic: Topic) -> dict[str, str]:
    """The properties of a topic, or of a partitioned topic."""
    metadata = parts.components.metadata
    whole = metadata.partitions.find(topic)
    if whole is not None:
        return dict(whole.properties)
    return metadata.topics.properties(resolve.topic(parts, topic).id)


@router.put(
    "/persistent/{tenant}/{namespace}/{topic}/properties",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="updateTopicProperties",
    status_code=204,
    responses=refusals(400, 404, 412),
)
def update_properties(
    parts: Parts,
    topic: Topic,
    properties: Annotated[TextByName, Body(description="Those to add or replace.")],
) -> Response:
    """Add or replace properties; those that are not named stay."""
    metadata = parts.components.metadata
    if metadata.partitions.find(topic) is not None:
        metadata.partitions.set_properties(topic, properties)
    else:
        metadata.topics.set_properties(resolve.topic(parts, topic).id, properties)
    return done()


@router.delete(
    "/persistent/{tenant}/{namespace}/{topic}/properties",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="removeTopicProperty",
    status_code=204,
    responses=refusals(400, 404, 412),
)
def remove_property(
    parts: Parts,
    topic: Topic,
    key: Annotated[str, Query(description="The property to remove; none of that name is no error.")],
) -> Response:
    """Remove one property."""
    metadata = parts.components.metadata
    if metadata.partitions.find(topic) is not None:
        metadata.partitions.set_properties(topic, {}, [key])
    else:
        metadata.topics.remove_property(resolve.topic(parts, topic).id, key)
    return done()


@router.put(
    "/persistent/{tenant}/{namespace}/{topic}/unload",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="unloadTopic",
    status_code=204,
    responses=refusals(404, 412),
)
def unload_topic(parts: Parts, topic: Topic) -> Response:
    """Nothing is loaded, so nothing happens: a compaction goes on, and its status stays (S7)."""
    resolve.topics(parts, topic)
    return done()


def written_by_a_service(parts: Service, topic_id: int) -> bool:
    """Whether a live service holds the topic's lease: its producers open the topic again, so it may be deleted."""
    metadata = parts.components.metadata
    lease = metadata.leases.current(topic_id)
    if lease is None:
        return False
    return same_process(lease.owner, owner_name()) or metadata.services.of_owner(lease.owner) is not None


def connected(producers: int = 1) -> str:
    """Why a topic is not deleted that somebody writes, in the words of a broker."""
    return f"Topic has {producers} client connected Including 0 consumers, {producers} producers, and 0 replicators."


def _whole_of_partition(parts: Service, topic: TopicName) -> PartitionedTopic | None:
    """The partitioned topic that it is to be a partition of; None for a name of no partition.

    A name of a partition is for partitions. 412 in the words of a broker.
    """
    whole = topic.whole
    if whole is None:
        return None
    found = parts.components.metadata.partitions.find(whole)
    if found is None:
        told = (
            f"Can't create topic {topic} with \"-partition-\" followed by numeric value if there isn't a partitioned "
            f"topic {whole} created."
        )
        raise Problem(412, told)
    if topic.partition >= found.partitions:
        told = (
            f'Can\'t create topic {topic} with "-partition-" followed by a number smaller than number of partition of '
            f"partitioned topic {whole}"
        )
        raise Problem(412, told)
    return found
